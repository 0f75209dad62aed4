//! Single operators and short chains, as models without weights: the rows of the tables of measurements.

use tch::nn::ModuleT;
use tch::{Kind, Reduction, Tensor, nn};

use crate::layers;
use crate::zoo::{Case, InputSpec, Model, ZooEntry, entry, take};

/// `xs.float()` of a half-precision tensor, and nothing of others.
fn float(xs: &Tensor) -> Tensor {
    match xs.kind() {
        Kind::Half | Kind::BFloat16 => xs.to_kind(Kind::Float),
        _ => xs.shallow_clone(),
    }
}

fn last_dim(xs: &Tensor) -> i64 {
    xs.size().last().copied().unwrap_or(1)
}

/// A function of `N` tensors as a model.
fn function<const N: usize>(f: fn(&[Tensor; N]) -> Vec<Tensor>) -> Box<dyn Model> {
    Box::new(move |inputs: &[Tensor]| f(take(inputs)))
}

fn rms_norm(xs: &Tensor, weight: &Tensor) -> Tensor {
    let mean = float(xs).pow_tensor_scalar(2).mean_dim([-1i64].as_slice(), true, None);
    xs * (mean + 1e-6).rsqrt().to_kind(xs.kind()) * weight
}

fn rope([q, cos, sin]: &[Tensor; 3]) -> Vec<Tensor> {
    let half = last_dim(q) / 2;
    let rotated = Tensor::cat(&[-q.slice(-1, half, None, 1), q.slice(-1, None, half, 1)], -1);
    vec![q * cos + rotated * sin]
}

fn chain12([x]: &[Tensor; 1]) -> Vec<Tensor> {
    let gated: Tensor = (x * 2.0 + 1.0).sigmoid() * x;
    let bounded = (gated.tanh() - x.abs().sqrt()).exp().clamp(-1.0, 5.0);
    vec![bounded / (x * x + 1.0)]
}

fn softmax_cross_entropy([x, target]: &[Tensor; 2]) -> Vec<Tensor> {
    vec![float(x).cross_entropy_loss(target, None::<&Tensor>, Reduction::Mean, -100, 0.0)]
}

fn layer_norm([x, weight, bias]: &[Tensor; 3]) -> Vec<Tensor> {
    vec![x.layer_norm([last_dim(x)].as_slice(), Some(weight), Some(bias), 1e-5, true)]
}

/// Gradients of a layer norm's input, weight and bias, by the rule of Ba, Kiros and Hinton, "Layer normalization", 2016.
fn layer_norm_backward([x, grad, weight]: &[Tensor; 3]) -> Vec<Tensor> {
    let kind = x.kind();
    let mean = |t: &Tensor| t.mean_dim([-1i64].as_slice(), true, None);
    let sum = |t: &Tensor| t.sum_dim_intlist([0i64].as_slice(), false, None).to_kind(kind);
    let (x, grad) = (float(x), float(grad));
    let off = &x - mean(&x);
    let scale = (mean(&off.square()) + 1e-5).rsqrt();
    let normal = off * &scale;
    let scaled = &grad * float(weight);
    let back = &scaled - mean(&scaled) - &normal * mean(&(&scaled * &normal));
    vec![(back * scale).to_kind(kind), sum(&(&grad * normal)), sum(&grad)]
}

fn sdpa([q, k, v]: &[Tensor; 3]) -> Vec<Tensor> {
    vec![Tensor::scaled_dot_product_attention(q, k, v, None::<&Tensor>, 0.0, false, None, false)]
}

/// Attention of heads of which four share keys and values, written with these repeated.
fn grouped_attention([q, k, v]: &[Tensor; 3]) -> Vec<Tensor> {
    let repeated = |x: &Tensor| {
        let [batch, heads, rows, width] = layers::sizes(x);
        let all = x.unsqueeze(2).expand([batch, heads, 4, rows, width], false);
        all.reshape([batch, 4 * heads, rows, width])
    };
    sdpa(&[q.shallow_clone(), repeated(k), repeated(v)])
}

fn batch_norm_relu(p: &nn::Path) -> Box<dyn Model> {
    let norm = layers::batch_norm2d(p / "norm", 256);
    Box::new(move |inputs: &[Tensor]| {
        let [x] = take(inputs);
        vec![norm.forward_t(x, false).relu()]
    })
}

/// The mean cross-entropy of a language model's last layer.
fn linear_cross_entropy(p: &nn::Path) -> Box<dyn Model> {
    let head = nn::linear(p / "head", 768, 50257, nn::LinearConfig { bias: false, ..Default::default() });
    Box::new(move |inputs: &[Tensor]| {
        let [x, target] = take(inputs);
        softmax_cross_entropy(&[x.apply(&head), target.shallow_clone()])
    })
}

fn linear_add_layer_norm(p: &nn::Path) -> Box<dyn Model> {
    let linear = nn::linear(p / "linear", 768, 768, Default::default());
    let norm = nn::layer_norm(p / "norm", vec![768], Default::default());
    Box::new(move |inputs: &[Tensor]| {
        let [x, residual] = take(inputs);
        vec![(x.apply(&linear) + residual).apply(&norm)]
    })
}

fn rms_norm_linear(p: &nn::Path, columns: i64) -> Box<dyn Model> {
    let weight = p.ones("weight", &[768]);
    let linear =
        nn::linear(p / "linear", 768, columns, nn::LinearConfig { bias: false, ..Default::default() });
    Box::new(move |inputs: &[Tensor]| {
        let [x] = take(inputs);
        vec![rms_norm(x, &weight).apply(&linear)]
    })
}

fn conv_bn_relu(p: &nn::Path) -> Box<dyn Model> {
    let conv = layers::conv2d(p / "conv", 64, 64, 3, 1, 1);
    let norm = layers::batch_norm2d(p / "norm", 64);
    Box::new(move |inputs: &[Tensor]| {
        let [x] = take(inputs);
        vec![norm.forward_t(&x.apply(&conv), false).relu()]
    })
}

/// Doubles the sides of an image, as the way up of a network that segments or makes images does.
fn conv_transpose_relu(p: &nn::Path) -> Box<dyn Model> {
    let config = nn::ConvTransposeConfig { stride: 2, padding: 1, ..Default::default() };
    let conv = nn::conv_transpose2d(p / "conv", 64, 64, 4, config);
    Box::new(move |inputs: &[Tensor]| {
        let [x] = take(inputs);
        vec![x.apply(&conv).relu()]
    })
}

type Shape = &'static [i64];

const fn float_in(shape: Shape) -> InputSpec {
    InputSpec::float(shape)
}

const M: Shape = &[1024, 2048];
const MT: Shape = &[2048, 1024];
const ROW: Shape = &[2048];
const BIG: Shape = &[16384, 4096];

pub(crate) const KERNELS: &[ZooEntry] = &[
    entry!(
        "kernel:vector_add",
        "a + b",
        2,
        &[Case::f32("vector_add_2^21", &[float_in(&[1 << 21]), float_in(&[1 << 21])])],
        &[Case::f32("vector_add_f32_2^27", &[float_in(&[1 << 27]), float_in(&[1 << 27])])],
        |_| function(|[a, b]| vec![a + b])
    ),
    entry!(
        "kernel:bias_gelu_residual",
        "gelu(x + bias, tanh) + y",
        3,
        &[Case::f32("bias_gelu_residual_1024x2048", &[float_in(M), float_in(M), float_in(ROW)])],
        &[Case::bf16(
            "bias_gelu_residual_bf16_16384x4096",
            &[float_in(BIG), float_in(BIG), float_in(&[4096])]
        )],
        |_| function(|[x, y, bias]| vec![(x + bias).gelu("tanh") + y])
    ),
    entry!(
        "kernel:swiglu_act",
        "silu(x) * y",
        2,
        &[Case::f32("swiglu_act_1024x2048", &[float_in(M), float_in(M)])],
        &[Case::bf16("swiglu_act_bf16_16384x4096", &[float_in(BIG), float_in(BIG)])],
        |_| function(|[x, y]| vec![x.silu() * y])
    ),
    entry!(
        "kernel:gelu_erf",
        "gelu(x) by erf",
        1,
        &[Case::f32("gelu_erf_1024x2048", &[float_in(M)])],
        &[Case::bf16("gelu_erf_bf16_16384x4096", &[float_in(BIG)])],
        |_| function(|[x]| vec![x.gelu("none")])
    ),
    entry!(
        "kernel:chain12",
        "twelve pointwise operators",
        1,
        &[Case::f32("chain12_1024x2048", &[float_in(M)])],
        &[Case::bf16("chain12_bf16_16384x4096", &[float_in(BIG)])],
        |_| function(chain12)
    ),
    entry!(
        "kernel:softmax",
        "softmax along rows",
        1,
        &[Case::f32("softmax_1024x2048", &[float_in(M)])],
        &[
            Case::bf16("softmax_bf16_131072x1024", &[float_in(&[131072, 1024])]),
            Case::bf16("softmax_bf16_32768x4096", &[float_in(&[32768, 4096])]),
            Case::bf16("softmax_bf16_8192x16384", &[float_in(&[8192, 16384])]),
            Case::bf16("softmax_bf16_2048x65536", &[float_in(&[2048, 65536])]),
        ],
        |_| function(|[x]| vec![x.softmax(-1, None)])
    ),
    entry!(
        "kernel:layer_norm",
        "layer norm along rows",
        3,
        &[Case::f32("layer_norm_1024x2048", &[float_in(M), float_in(ROW), float_in(ROW)])],
        &[
            Case::bf16(
                "layer_norm_bf16_131072x1024",
                &[float_in(&[131072, 1024]), float_in(&[1024]), float_in(&[1024])]
            ),
            Case::bf16(
                "layer_norm_bf16_32768x4096",
                &[float_in(&[32768, 4096]), float_in(&[4096]), float_in(&[4096])]
            ),
            Case::bf16(
                "layer_norm_bf16_8192x16384",
                &[float_in(&[8192, 16384]), float_in(&[16384]), float_in(&[16384])]
            ),
        ],
        |_| function(layer_norm)
    ),
    entry!(
        "kernel:add_rms_norm",
        "RMS norm of x + r, the sum spelled twice",
        3,
        &[Case::f32("add_rms_norm_1024x2048", &[float_in(M), float_in(M), float_in(ROW)])],
        &[],
        |_| function(|[x, r, w]| {
            let mean = (x + r).pow_tensor_scalar(2).mean_dim([-1i64].as_slice(), true, None);
            vec![(x + r) * (mean + 1e-6).rsqrt() * w]
        })
    ),
    entry!(
        "kernel:add_rms_norm_residual",
        "x + r, and its RMS norm",
        3,
        &[Case::f32("add_rms_norm_residual_1024x2048", &[float_in(M), float_in(M), float_in(ROW)])],
        &[
            Case::bf16(
                "add_rms_norm_bf16_131072x1024",
                &[float_in(&[131072, 1024]), float_in(&[131072, 1024]), float_in(&[1024])]
            ),
            Case::bf16(
                "add_rms_norm_bf16_32768x4096",
                &[float_in(&[32768, 4096]), float_in(&[32768, 4096]), float_in(&[4096])]
            ),
            Case::bf16(
                "add_rms_norm_bf16_8192x16384",
                &[float_in(&[8192, 16384]), float_in(&[8192, 16384]), float_in(&[16384])]
            ),
        ],
        |_| function(|[x, r, w]| vec![x + r, rms_norm(&(x + r), w)])
    ),
    entry!(
        "kernel:cross_entropy",
        "mean cross-entropy of rows",
        2,
        &[Case::f32("cross_entropy_128x50257", &[float_in(&[128, 50257]), InputSpec::ints(&[128], 50257)])],
        &[Case::bf16(
            "cross_entropy_bf16_8192x50257",
            &[float_in(&[8192, 50257]), InputSpec::ints(&[8192], 50257)]
        )],
        |_| function(softmax_cross_entropy)
    ),
    entry!(
        "kernel:linear_cross_entropy",
        "mean cross-entropy behind a linear layer",
        2,
        &[Case::f32(
            "linear_cross_entropy_128x768x50257",
            &[float_in(&[128, 768]), InputSpec::ints(&[128], 50257)]
        )],
        &[],
        linear_cross_entropy
    ),
    entry!(
        "kernel:linear_add_layer_norm",
        "layer norm of a residual and a linear layer",
        2,
        &[Case::f32("linear_add_layer_norm_4096x768", &[float_in(&[4096, 768]), float_in(&[4096, 768])])],
        &[],
        linear_add_layer_norm
    ),
    entry!(
        "kernel:rms_norm_linear",
        "linear layer behind an RMS norm",
        1,
        &[Case::f32("rms_norm_linear_4096x768x3072", &[float_in(&[4096, 768])])],
        &[],
        |p| rms_norm_linear(p, 3072)
    ),
    entry!(
        "kernel:rms_norm_gate",
        "scores of 16 experts behind an RMS norm",
        1,
        &[Case::f32("rms_norm_linear_4096x768x16", &[float_in(&[4096, 768])])],
        &[],
        |p| rms_norm_linear(p, 16)
    ),
    entry!(
        "kernel:sum",
        "sum of all elements",
        1,
        &[Case::f32("sum_all_2^22", &[float_in(&[1 << 22])])],
        &[Case::bf16("sum_bf16_2^27", &[float_in(&[1 << 27])])],
        |_| function(|[x]| vec![float(x).sum(None)])
    ),
    entry!(
        "kernel:sum_dim0",
        "sums of columns",
        1,
        &[Case::f32("sum_dim0_2048x1024", &[float_in(MT)])],
        &[Case::bf16("sum_dim0_bf16_16384x8192", &[float_in(&[16384, 8192])])],
        |_| function(|[x]| vec![x.sum_dim_intlist([0i64].as_slice(), false, None)])
    ),
    entry!(
        "kernel:row_column_sums",
        "sums of rows and of columns",
        1,
        &[Case::f32("row_column_sums_2048x1024", &[float_in(MT)])],
        &[Case::bf16("row_column_sums_bf16_16384x8192", &[float_in(&[16384, 8192])])],
        |_| function(|[x]| {
            let sums = |dim: i64| x.sum_dim_intlist([dim].as_slice(), false, None);
            vec![sums(1), sums(0)]
        })
    ),
    entry!(
        "kernel:layer_norm_backward",
        "gradients of a layer norm's input, weight and bias",
        3,
        &[Case::f32("layer_norm_backward_1024x2048", &[float_in(M), float_in(M), float_in(&[2048])])],
        &[Case::bf16(
            "layer_norm_backward_bf16_65536x1024",
            &[float_in(&[65536, 1024]), float_in(&[65536, 1024]), float_in(&[1024])]
        )],
        |_| function(layer_norm_backward)
    ),
    entry!(
        "kernel:batch_norm_relu",
        "relu of a batch norm of 256 channels",
        1,
        &[Case::f32("batch_norm_relu_4x256x56x56", &[float_in(&[4, 256, 56, 56])])],
        &[Case::bf16("batch_norm_relu_bf16_64x256x56x56", &[float_in(&[64, 256, 56, 56])])],
        batch_norm_relu
    ),
    entry!(
        "kernel:rope",
        "rotary embedding by slices and cat",
        3,
        &[Case::f32(
            "rope_1x32x512x128",
            &[float_in(&[1, 32, 512, 128]), float_in(&[512, 128]), float_in(&[512, 128])]
        )],
        &[Case::bf16(
            "rope_bf16_8x32x4096x128",
            &[float_in(&[8, 32, 4096, 128]), float_in(&[4096, 128]), float_in(&[4096, 128])]
        )],
        |_| function(rope)
    ),
    entry!(
        "kernel:transpose_add",
        "transposed x + y",
        2,
        &[Case::f32("transpose_add_1024x2048", &[float_in(MT), float_in(M)])],
        &[],
        |_| function(|[x, y]| vec![x.tr() + y])
    ),
    entry!(
        "kernel:transpose_contiguous_add",
        "transposed and copied x + y",
        2,
        &[Case::f32("transpose_contiguous_add_1024x2048", &[float_in(MT), float_in(M)])],
        &[Case::bf16("transpose_add_bf16_16384x8192", &[float_in(&[16384, 8192]), float_in(&[8192, 16384])])],
        |_| function(|[x, y]| vec![x.tr().contiguous() + y])
    ),
    entry!(
        "kernel:linear_bias_gelu",
        "gelu(x · wᵀ + bias, tanh)",
        3,
        &[
            Case::f32(
                "linear_bias_gelu_512x3072x768",
                &[float_in(&[512, 768]), float_in(&[3072, 768]), float_in(&[3072])]
            ),
            Case::f32(
                "linear_bias_gelu_1024x1024x1024",
                &[float_in(&[1024, 1024]), float_in(&[1024, 1024]), float_in(&[1024])]
            ),
        ],
        &[Case::bf16(
            "linear_bias_gelu_bf16_4096x4096x4096",
            &[float_in(&[4096, 4096]), float_in(&[4096, 4096]), float_in(&[4096])]
        )],
        |_| function(|[x, w, b]| vec![x.linear(w, Some(b)).gelu("tanh")])
    ),
    entry!(
        "kernel:attention",
        "scaled_dot_product_attention without mask",
        3,
        &[
            Case::f32(
                "attention_12x512x64",
                &[float_in(&[1, 12, 512, 64]), float_in(&[1, 12, 512, 64]), float_in(&[1, 12, 512, 64])]
            ),
            Case::f32(
                "attention_12x1x1024x64",
                &[float_in(&[1, 12, 1, 64]), float_in(&[1, 12, 1024, 64]), float_in(&[1, 12, 1024, 64])]
            ),
            Case::f32(
                "attention_2x1x8192x64",
                &[float_in(&[1, 2, 1, 64]), float_in(&[1, 2, 8192, 64]), float_in(&[1, 2, 8192, 64])]
            ),
        ],
        &[Case::bf16(
            "sdpa_bf16_b16h16s1024d64_full",
            &[float_in(&[16, 16, 1024, 64]), float_in(&[16, 16, 1024, 64]), float_in(&[16, 16, 1024, 64])]
        )],
        |_| function(sdpa)
    ),
    entry!(
        "kernel:grouped_attention",
        "scaled_dot_product_attention of keys and values repeated for 4 heads each",
        3,
        &[Case::f32(
            "grouped_attention_32x1x1024x64",
            &[float_in(&[1, 32, 1, 64]), float_in(&[1, 8, 1024, 64]), float_in(&[1, 8, 1024, 64])]
        )],
        &[],
        |_| function(grouped_attention)
    ),
    entry!(
        "kernel:conv_bn_relu",
        "3×3 convolution, batch norm, relu of 64 channels",
        1,
        &[Case::f32("conv3x3_bn_relu_64x56x56", &[float_in(&[1, 64, 56, 56])])],
        &[Case::bf16("conv3x3_bn_relu_bf16_64x64x56x56", &[float_in(&[64, 64, 56, 56])])],
        conv_bn_relu
    ),
    entry!(
        "kernel:conv_transpose_relu",
        "transposed 4×4 convolution of stride 2, relu of 64 channels",
        1,
        &[Case::f32("conv_transpose4x4_relu_64x28x28", &[float_in(&[1, 64, 28, 28])])],
        &[],
        conv_transpose_relu
    ),
];
