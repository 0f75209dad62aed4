//! Every model under the name by which the `tilefuse` program knows it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use tch::nn::{self, Module, ModuleT};
use tch::{Device, Kind, Tensor};

use crate::{
    Attention, BertConfig, Block, Error, Gpt2Config, LlamaConfig, MixerConfig, MlpConfig, MobileNetV2Config,
    ResNetConfig, SwinConfig, UNetConfig, VitConfig, bert, gpt2, kernels, llama, mixer, mlp, mobilenet_v2,
    resnet, swin, unet, vision, vit,
};

/// A model in evaluation mode, as a function from tensors to tensors.
pub trait Model: Send {
    /// Calls the model.
    ///
    /// # Panics
    ///
    /// As the modules of `tch` do: on shapes and kinds that the model does not take.
    /// [`ZooEntry::check_inputs`] says beforehand whether their number is right.
    fn forward(&self, inputs: &[Tensor]) -> Vec<Tensor>;
}

impl<F: Fn(&[Tensor]) -> Vec<Tensor> + Send> Model for F {
    fn forward(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        self(inputs)
    }
}

/// One input of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputSpec {
    /// Sizes of the dimensions.
    pub shape: &'static [i64],
    /// `Int64`, or `Float` for an input of the kind in which the model runs.
    pub kind: Kind,
    /// The range of the integers, its end excluded; `None` for floating point, which is standard normal.
    pub int_range: Option<(i64, i64)>,
}

impl InputSpec {
    pub(crate) const fn float(shape: &'static [i64]) -> Self {
        InputSpec { shape, kind: Kind::Float, int_range: None }
    }

    pub(crate) const fn ints(shape: &'static [i64], end: i64) -> Self {
        InputSpec { shape, kind: Kind::Int64, int_range: Some((0, end)) }
    }

    /// A random tensor of this shape, of kind `dtype` where the input is floating point.
    pub fn sample(&self, dtype: Kind, device: Device) -> Tensor {
        match self.int_range {
            Some((low, high)) => Tensor::randint_low(low, high, self.shape, (self.kind, device)),
            None => Tensor::randn(self.shape, (dtype, device)),
        }
    }
}

/// Inputs at which a model is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// The row's name in tables of measurements, such as `softmax_bf16_8192x16384`.
    pub name: &'static str,
    /// The kind of the weights and of the floating-point inputs.
    pub dtype: Kind,
    /// One entry for each input.
    pub inputs: &'static [InputSpec],
}

impl Case {
    pub(crate) const fn f32(name: &'static str, inputs: &'static [InputSpec]) -> Self {
        Case { name, dtype: Kind::Float, inputs }
    }

    pub(crate) const fn bf16(name: &'static str, inputs: &'static [InputSpec]) -> Self {
        Case { name, dtype: Kind::BFloat16, inputs }
    }
}

/// A model that can be made by name.
#[derive(Debug, Clone)]
pub struct ZooEntry {
    /// The name, without spaces.
    pub name: &'static str,
    /// What it is, in one line.
    pub description: &'static str,
    /// The fewest inputs that the model takes; the most are those of [`inputs`](Self::inputs).
    pub least_inputs: usize,
    /// Whether the model casts to f32 inside, so that it runs in no other floating-point kind.
    pub f32_only: bool,
    /// Cases for a CPU, of which the first is the default. Never empty.
    pub cpu: &'static [Case],
    /// Cases for a GPU; may be empty.
    pub gpu: &'static [Case],
    /// Makes the model with random weights, as its authors draw them.
    pub build: fn(&nn::Path) -> Box<dyn Model>,
}

impl ZooEntry {
    /// The default inputs.
    pub fn inputs(&self) -> &'static [InputSpec] {
        self.cpu.first().map_or(&[], |case| case.inputs)
    }

    /// Whether the model takes this number of inputs.
    pub fn check_inputs(&self, got: usize) -> Result<(), Error> {
        let (least, most) = (self.least_inputs, self.inputs().len());
        if (least..=most).contains(&got) { Ok(()) } else { Err(Error::InputCount { least, most, got }) }
    }

    /// Makes the model at the root of `vs` and [`disturb`]s its constants.
    pub fn instantiate(&self, vs: &nn::VarStore) -> Box<dyn Model> {
        let model = (self.build)(&vs.root());
        disturb(vs);
        model
    }
}

/// Moves every variable whose elements are all equal (the biases, norms and running statistics of a new
/// model) away from that constant: around 0 by a normal of deviation 0.05, else by a factor between 0.75 and
/// 1.25.
///
/// A comparison on the constants would not notice that a bias was left out.
pub fn disturb(vs: &nn::VarStore) {
    let variables: BTreeMap<String, Tensor> = vs.variables().into_iter().collect();
    tch::no_grad(|| variables.into_values().filter(is_constant).for_each(disturb_variable));
}

fn is_constant(variable: &Tensor) -> bool {
    variable.is_floating_point() && variable.numel() > 1 && variable.min() == variable.max()
}

fn disturb_variable(mut variable: Tensor) {
    let noise = if variable.count_nonzero(None).int64_value(&[]) == 0 {
        variable.randn_like() * 0.05
    } else {
        &variable * (variable.rand_like() * 0.5 + 0.75)
    };
    variable.copy_(&noise);
}

/// Every model: those of this crate, the single kernels (`kernel:…`) and the models of `tch` (`vision:…`).
pub fn zoo() -> &'static [ZooEntry] {
    static ZOO: LazyLock<Vec<ZooEntry>> = LazyLock::new(|| {
        [MODELS, TINY_MODELS, kernels::KERNELS, vision::CLASSIFIERS, vision::OTHERS].concat()
    });
    &ZOO
}

/// The entry of that name.
pub fn find(name: &str) -> Option<&'static ZooEntry> {
    zoo().iter().find(|entry| entry.name == name)
}

/// The inputs as an array. Panics where their number is another.
pub(crate) fn take<const N: usize>(inputs: &[Tensor]) -> &[Tensor; N] {
    let got = inputs.len();
    match inputs.try_into() {
        Ok(inputs) => inputs,
        Err(_) => panic!("{}", Error::InputCount { least: N, most: N, got }),
    }
}

/// A module of one input in evaluation mode.
pub(crate) fn module(net: impl ModuleT + 'static) -> Box<dyn Model> {
    Box::new(move |inputs: &[Tensor]| {
        let [xs] = take(inputs);
        vec![net.forward_t(xs, false)]
    })
}

/// The distribution of a language model over the token that comes next.
fn next_token(net: impl Module + 'static) -> Box<dyn Model> {
    Box::new(move |inputs: &[Tensor]| {
        let [ids] = take(inputs);
        vec![ids.apply(&net).select(1, -1).softmax(-1, None)]
    })
}

/// The mean cross-entropy of a language model's tokens, each but the first predicted by those before it.
fn language_loss(net: impl Module + 'static) -> Box<dyn Model> {
    Box::new(move |inputs: &[Tensor]| {
        let [ids] = take(inputs);
        let logits = ids.apply(&net);
        let logits = logits.narrow(1, 0, logits.size()[1] - 1).flatten(0, 1);
        let targets = ids.narrow(1, 1, ids.size()[1] - 1).flatten(0, 1);
        vec![logits.log_softmax(-1, None).nll_loss(&targets)]
    })
}

fn bert_model(p: &nn::Path, cfg: BertConfig) -> Box<dyn Model> {
    let net = bert(p, &cfg);
    Box::new(move |inputs: &[Tensor]| {
        let Some(ids) = inputs.first() else { panic!("{}", Error::InputCount { least: 1, most: 3, got: 0 }) };
        let output = net.encode(ids, inputs.get(1), inputs.get(2), false);
        std::iter::once(output.hidden).chain(output.pooled).collect()
    })
}

fn unet_model(p: &nn::Path, cfg: UNetConfig) -> Box<dyn Model> {
    let net = unet(p, &cfg);
    Box::new(move |inputs: &[Tensor]| {
        let [sample, timesteps] = take(inputs);
        vec![net.forward(sample, timesteps)]
    })
}

macro_rules! entry {
    ($name:literal, $about:literal, $least:literal, $cpu:expr, $gpu:expr, $build:expr) => {
        ZooEntry {
            name: $name,
            description: $about,
            least_inputs: $least,
            f32_only: false,
            cpu: $cpu,
            gpu: $gpu,
            build: $build,
        }
    };
}
pub(crate) use entry;

const GPT2_HEADS_CPU: &[Case] = &[Case::f32("gpt2_1x128", &[InputSpec::ints(&[1, 128], 50257)])];

const GPT2_CPU: &[Case] = &[
    Case::f32("gpt2_1x128", &[InputSpec::ints(&[1, 128], 50257)]),
    Case::f32("gpt2_1x1", &[InputSpec::ints(&[1, 1], 50257)]),
];
const GPT2_GPU: &[Case] = &[
    Case::bf16("gpt2_fwd_bf16_8x1024", &[InputSpec::ints(&[8, 1024], 50257)]),
    Case::bf16("gpt2_fwd_bf16_1x1", &[InputSpec::ints(&[1, 1], 50257)]),
];
const LLAMA_CPU: &[Case] = &[Case::f32("llama_1x128", &[InputSpec::ints(&[1, 128], 32000)])];
const LLAMA_GPU: &[Case] = &[Case::bf16("llama_fwd_bf16_4x2048", &[InputSpec::ints(&[4, 2048], 32000)])];
const LLAMA1B_CPU: &[Case] = &[Case::f32("llama1b_1x16", &[InputSpec::ints(&[1, 16], 32000)])];
const LLAMA1B_GPU: &[Case] = &[Case::bf16("llama1b_fwd_bf16_4x2048", &[InputSpec::ints(&[4, 2048], 32000)])];
const BERT_CPU: &[Case] = &[
    Case::f32(
        "bert_masked_1x128",
        &[InputSpec::ints(&[1, 128], 30522), InputSpec::ints(&[1, 128], 2), InputSpec::ints(&[1, 128], 2)],
    ),
    Case::f32("bert_1x128", &[InputSpec::ints(&[1, 128], 30522)]),
];
const BERT_GPU: &[Case] = &[
    Case::bf16("bert_fwd_bf16_32x512", &[InputSpec::ints(&[32, 512], 30522)]),
    Case::bf16("bert_fwd_bf16_1x128", &[InputSpec::ints(&[1, 128], 30522)]),
];
const VIT_CPU: &[Case] = &[Case::f32("vit_b_16_b1", &[InputSpec::float(&[1, 3, 224, 224])])];
const VIT_GPU: &[Case] = &[Case::bf16("vit_b_16_fwd_bf16_b64", &[InputSpec::float(&[64, 3, 224, 224])])];
const SWIN_CPU: &[Case] = &[Case::f32("swin_t_b1", &[InputSpec::float(&[1, 3, 224, 224])])];
const SWIN_GPU: &[Case] = &[Case::bf16("swin_t_fwd_bf16_b64", &[InputSpec::float(&[64, 3, 224, 224])])];
const RESNET18_CPU: &[Case] = &[Case::f32("resnet18_b1", &[InputSpec::float(&[1, 3, 224, 224])])];
const RESNET18_GPU: &[Case] = &[Case::bf16("resnet18_fwd_bf16_b64", &[InputSpec::float(&[64, 3, 224, 224])])];
const RESNET50_CPU: &[Case] = &[Case::f32("resnet50_b1", &[InputSpec::float(&[1, 3, 224, 224])])];
const RESNET50_GPU: &[Case] = &[
    Case::bf16("resnet50_fwd_bf16_b64", &[InputSpec::float(&[64, 3, 224, 224])]),
    Case::bf16("resnet50_fwd_bf16_b1", &[InputSpec::float(&[1, 3, 224, 224])]),
];
const MOBILENET_CPU: &[Case] = &[Case::f32("mobilenet_v2_b1", &[InputSpec::float(&[1, 3, 224, 224])])];
const MOBILENET_GPU: &[Case] =
    &[Case::bf16("mobilenet_v2_fwd_bf16_b64", &[InputSpec::float(&[64, 3, 224, 224])])];
const MIXER_CPU: &[Case] = &[Case::f32("mixer_b_16_b1", &[InputSpec::float(&[1, 3, 224, 224])])];
const MIXER_GPU: &[Case] = &[Case::bf16("mixer_b_16_fwd_bf16_b64", &[InputSpec::float(&[64, 3, 224, 224])])];
const UNET_CPU: &[Case] =
    &[Case::f32("unet_b1", &[InputSpec::float(&[1, 4, 32, 32]), InputSpec::ints(&[1], 1000)])];
const UNET_GPU: &[Case] =
    &[Case::bf16("unet_fwd_bf16_b8", &[InputSpec::float(&[8, 4, 64, 64]), InputSpec::ints(&[8], 1000)])];
const MLP_CPU: &[Case] = &[Case::f32("mlp8x1024_b64", &[InputSpec::float(&[64, 1024])])];
const MLP_GPU: &[Case] = &[
    Case::bf16("mlp8x1024_bf16_b8192", &[InputSpec::float(&[8192, 1024])]),
    Case::bf16("mlp8x1024_bf16_b64", &[InputSpec::float(&[64, 1024])]),
    Case::bf16("mlp8x1024_bf16_b1", &[InputSpec::float(&[1, 1024])]),
];

const MODELS: &[ZooEntry] = &[
    entry!("mlp8x1024", "8 × (linear, gelu, layer norm) of width 1024", 1, MLP_CPU, MLP_GPU, |p| {
        module(mlp(p, &MlpConfig::mlp8x1024()))
    }),
    entry!("resnet18", "ResNet-18", 1, RESNET18_CPU, RESNET18_GPU, |p| {
        module(resnet(p, &ResNetConfig::resnet18()))
    }),
    entry!("resnet18-inplace", "ResNet-18 with relu and sums in place", 1, RESNET18_CPU, RESNET18_GPU, |p| {
        module(resnet(p, &ResNetConfig::resnet18().inplace()))
    }),
    entry!("resnet50", "ResNet-50", 1, RESNET50_CPU, RESNET50_GPU, |p| {
        module(resnet(p, &ResNetConfig::resnet50()))
    }),
    entry!("mobilenet_v2", "MobileNet V2", 1, MOBILENET_CPU, MOBILENET_GPU, |p| {
        module(mobilenet_v2(p, &MobileNetV2Config::standard()))
    }),
    entry!("gpt2", "GPT-2 small, attention written out", 1, GPT2_CPU, GPT2_GPU, |p| {
        module(gpt2(p, &Gpt2Config::small()))
    }),
    entry!("gpt2-sdpa", "GPT-2 small, scaled_dot_product_attention", 1, GPT2_CPU, GPT2_GPU, |p| {
        module(gpt2(p, &Gpt2Config::small().attention(Attention::Sdpa)))
    }),
    entry!("gpt2-next", "GPT-2 small, the distribution of the next token", 1, GPT2_HEADS_CPU, &[], |p| {
        next_token(gpt2(p, &Gpt2Config::small()))
    }),
    entry!("gpt2-loss", "GPT-2 small, the loss of its tokens", 1, GPT2_HEADS_CPU, &[], |p| {
        language_loss(gpt2(p, &Gpt2Config::small()))
    }),
    entry!(
        "llama",
        "Llama decoder of 124 M parameters, attention written out",
        1,
        LLAMA_CPU,
        LLAMA_GPU,
        |p| { module(llama(p, &LlamaConfig::small())) }
    ),
    entry!(
        "llama-sdpa",
        "Llama decoder of 124 M parameters, scaled_dot_product_attention",
        1,
        LLAMA_CPU,
        LLAMA_GPU,
        |p| module(llama(p, &LlamaConfig::small().attention(Attention::Sdpa)))
    ),
    entry!("llama1b", "Llama decoder of 1.1 G parameters", 1, LLAMA1B_CPU, LLAMA1B_GPU, |p| {
        module(llama(p, &LlamaConfig::llama1b().attention(Attention::Sdpa)))
    }),
    entry!("bert", "BERT base with pooler, attention written out", 1, BERT_CPU, BERT_GPU, |p| {
        bert_model(p, BertConfig::base())
    }),
    entry!("bert-sdpa", "BERT base with pooler, scaled_dot_product_attention", 1, BERT_CPU, BERT_GPU, |p| {
        bert_model(p, BertConfig::base().attention(Attention::Sdpa))
    }),
    entry!("vit_b_16", "ViT-B/16, attention written out", 1, VIT_CPU, VIT_GPU, |p| {
        module(vit(p, &VitConfig::b_16()))
    }),
    entry!("vit_b_16-sdpa", "ViT-B/16, scaled_dot_product_attention", 1, VIT_CPU, VIT_GPU, |p| {
        module(vit(p, &VitConfig::b_16().attention(Attention::Sdpa)))
    }),
    entry!("swin_t", "Swin-T, shifted windows of 7 × 7 patches", 1, SWIN_CPU, SWIN_GPU, |p| {
        module(swin(p, &SwinConfig::tiny_224()))
    }),
    entry!("mixer_b_16", "MLP-Mixer B/16", 1, MIXER_CPU, MIXER_GPU, |p| {
        module(mixer(p, &MixerConfig::b_16()))
    }),
    entry!("unet", "UNet of three levels, attention written out", 2, UNET_CPU, UNET_GPU, |p| {
        unet_model(p, UNetConfig::small())
    }),
    entry!("unet-sdpa", "UNet of three levels, scaled_dot_product_attention", 2, UNET_CPU, UNET_GPU, |p| {
        unet_model(p, UNetConfig::small().attention(Attention::Sdpa))
    }),
];

const TOKENS_TINY: &[Case] = &[Case::f32("tiny", &[InputSpec::ints(&[2, 17], 97)])];
const BERT_TINY: &[Case] = &[Case::f32(
    "tiny",
    &[InputSpec::ints(&[2, 17], 97), InputSpec::ints(&[2, 17], 2), InputSpec::ints(&[2, 17], 2)],
)];
const IMAGES_TINY: &[Case] = &[Case::f32("tiny", &[InputSpec::float(&[2, 3, 32, 32])])];
const UNET_TINY: &[Case] =
    &[Case::f32("tiny", &[InputSpec::float(&[2, 4, 8, 8]), InputSpec::ints(&[2], 1000)])];
const MLP_TINY: &[Case] = &[Case::f32("tiny", &[InputSpec::float(&[5, 32])])];

const TINY_MODELS: &[ZooEntry] = &[
    entry!("mlp8x1024-tiny", "2 × (linear, gelu, layer norm) of width 32", 1, MLP_TINY, &[], |p| {
        module(mlp(p, &MlpConfig::tiny()))
    }),
    entry!("resnet18-tiny", "narrow ResNet of four basic blocks", 1, IMAGES_TINY, &[], |p| {
        module(resnet(p, &ResNetConfig::tiny(Block::Basic)))
    }),
    entry!("resnet18-inplace-tiny", "narrow ResNet with relu and sums in place", 1, IMAGES_TINY, &[], |p| {
        module(resnet(p, &ResNetConfig::tiny(Block::Basic).inplace()))
    }),
    entry!("resnet50-tiny", "narrow ResNet of four bottleneck blocks", 1, IMAGES_TINY, &[], |p| {
        module(resnet(p, &ResNetConfig::tiny(Block::Bottleneck)))
    }),
    entry!("mobilenet_v2-tiny", "MobileNet V2 of four narrow blocks", 1, IMAGES_TINY, &[], |p| {
        module(mobilenet_v2(p, &MobileNetV2Config::tiny()))
    }),
    entry!("gpt2-tiny", "GPT-2 of two blocks, attention written out", 1, TOKENS_TINY, &[], |p| {
        module(gpt2(p, &Gpt2Config::tiny()))
    }),
    entry!("gpt2-sdpa-tiny", "GPT-2 of two blocks, scaled_dot_product_attention", 1, TOKENS_TINY, &[], |p| {
        module(gpt2(p, &Gpt2Config::tiny().attention(Attention::Sdpa)))
    }),
    entry!(
        "gpt2-next-tiny",
        "GPT-2 of two blocks, the distribution of the next token",
        1,
        TOKENS_TINY,
        &[],
        |p| { next_token(gpt2(p, &Gpt2Config::tiny())) }
    ),
    entry!("gpt2-loss-tiny", "GPT-2 of two blocks, the loss of its tokens", 1, TOKENS_TINY, &[], |p| {
        language_loss(gpt2(p, &Gpt2Config::tiny()))
    }),
    entry!("llama-tiny", "Llama of two blocks, attention written out", 1, TOKENS_TINY, &[], |p| {
        module(llama(p, &LlamaConfig::tiny()))
    }),
    entry!(
        "llama-sdpa-tiny",
        "Llama of two blocks, scaled_dot_product_attention",
        1,
        TOKENS_TINY,
        &[],
        |p| { module(llama(p, &LlamaConfig::tiny().attention(Attention::Sdpa))) }
    ),
    entry!("bert-tiny", "BERT of two blocks, attention written out", 1, BERT_TINY, &[], |p| {
        bert_model(p, BertConfig::tiny())
    }),
    entry!("bert-sdpa-tiny", "BERT of two blocks, scaled_dot_product_attention", 1, BERT_TINY, &[], |p| {
        bert_model(p, BertConfig::tiny().attention(Attention::Sdpa))
    }),
    entry!("vit_b_16-tiny", "ViT of two blocks, attention written out", 1, IMAGES_TINY, &[], |p| {
        module(vit(p, &VitConfig::tiny()))
    }),
    entry!(
        "vit_b_16-sdpa-tiny",
        "ViT of two blocks, scaled_dot_product_attention",
        1,
        IMAGES_TINY,
        &[],
        |p| { module(vit(p, &VitConfig::tiny().attention(Attention::Sdpa))) }
    ),
    entry!("swin_t-tiny", "Swin of two stages of two blocks", 1, IMAGES_TINY, &[], |p| {
        module(swin(p, &SwinConfig::tiny()))
    }),
    entry!("mixer_b_16-tiny", "MLP-Mixer of two blocks", 1, IMAGES_TINY, &[], |p| {
        module(mixer(p, &MixerConfig::tiny()))
    }),
    entry!("unet-tiny", "UNet of two levels, attention written out", 2, UNET_TINY, &[], |p| {
        unet_model(p, UNetConfig::tiny())
    }),
    entry!("unet-sdpa-tiny", "UNet of two levels, scaled_dot_product_attention", 2, UNET_TINY, &[], |p| {
        unet_model(p, UNetConfig::tiny().attention(Attention::Sdpa))
    }),
];
