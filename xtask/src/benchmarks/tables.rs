//! Which rows are shown, and what they are called.

use super::results::Machine;

const H200: Machine = Machine {
    short: "H200",
    files: &["h200_2026-11-21", "h200_2026-11-22", "h200_2026-11-27", "h200_2026-11-28", "h200_2026-11-30"],
};
const CPU: Machine = Machine { short: "CPU", files: &["cpu_2026-11-23_amx", "cpu_2026-11-28"] };
const ZEN4: Machine = Machine { short: "CPU, Zen 4", files: &["cpu_2026-11-29_zen4"] };
const SLOW_CPU: Machine = Machine { short: "CPU, 2.06 GHz", files: &["cpu_2026-11-23"] };

/// The name and the shape of rows (all shapes where it is empty), and their label; `{0}` is the shape's first part.
pub(super) type Shown = (&'static str, &'static str, &'static str);

/// A contender's name in rows, and its title.
pub(super) type Contender = (&'static str, &'static str);

/// What a table's cells are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    /// Microseconds of a call.
    Microseconds,
    /// Milliseconds of a call, the lower quartile where it was kept: others at work on a processor disturb some turns.
    Milliseconds,
    /// Milliseconds to compile, with the first call.
    Compile,
}

/// A last column of one contender alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extra {
    None,
    /// The fraction of the bandwidth that a copy of as many bytes reaches.
    OfCopy,
    /// The host's part of a call, in microseconds.
    Host,
    /// The errors against f64 of eager and of Tilefuse.
    Errors,
}

/// One table of contenders.
#[derive(Debug)]
pub(super) struct Table {
    /// The name of its section.
    pub(super) name: &'static str,
    pub(super) machine: Machine,
    pub(super) kind: &'static str,
    pub(super) dtype: &'static str,
    pub(super) cell: Cell,
    pub(super) extra: Extra,
    /// All but Tilefuse.
    pub(super) others: &'static [Contender],
    pub(super) rows: &'static [Shown],
}

/// Whom the first mean of a summary is over.
pub(super) const EAGER: Contender = ("eager", "eager");
const GPU_OTHERS: &[Contender] = &[
    EAGER,
    ("torchscript", "TorchScript"),
    ("inductor", "Inductor"),
    ("inductor-cudagraphs", "Inductor, CUDA graphs"),
    ("inductor-max-autotune", "max-autotune"),
    ("xla", "XLA"),
];
/// Every contender of a row, wherever it was measured.
pub(super) const ALL_OTHERS: &[Contender] = &[
    EAGER,
    ("torchscript", "TorchScript"),
    ("inductor", "Inductor"),
    ("inductor-cudagraphs", "Inductor, CUDA graphs"),
    ("inductor-max-autotune", "max-autotune"),
    ("onnxruntime", "ONNX Runtime"),
    ("openvino", "OpenVINO"),
    ("xla", "XLA"),
];
const CPU_OTHERS: &[Contender] = &[
    EAGER,
    ("torchscript", "TorchScript"),
    ("inductor", "Inductor"),
    ("onnxruntime", "ONNX Runtime"),
    ("openvino", "OpenVINO"),
    ("xla", "XLA"),
];
const CPU_COMPILERS: &[Contender] =
    &[("inductor", "Inductor"), ("onnxruntime", "ONNX Runtime"), ("openvino", "OpenVINO"), ("xla", "XLA")];

const KERNELS: &[Shown] = &[
    ("vector_add", "", "x + y, {0}"),
    ("chain12", "", "twelve operators, {shape}"),
    ("bias_gelu_residual", "", "gelu(x + bias) + y, {shape}"),
    ("gelu_erf", "", "gelu(x) by erf, {shape}"),
    ("swiglu_act", "", "silu(x) y, {shape}"),
    ("rope", "", "rotary embedding, {shape}"),
    ("batch_norm_relu", "", "batch norm, relu, {shape}"),
    ("add_rms_norm", "", "RMS norm of x + r, {0} rows of {1}"),
    ("add_rms_norm_residual", "", "x + r and its RMS norm, {0} rows of {1}"),
    ("softmax", "", "softmax, {0} rows of {1}"),
    ("layer_norm", "", "layer norm, {0} rows of {1}"),
    ("layer_norm_backward", "", "gradients of a layer norm, {0} rows of {1}"),
    ("cross_entropy", "", "cross-entropy, {shape}"),
    ("sum", "", "sum of {0}"),
    ("sum_dim0", "", "sums of columns, {shape}"),
    ("row_column_sums", "", "sums of rows and of columns, {shape}"),
    ("transpose_add", "", "xᵀ + y, {shape}"),
    ("linear_bias_gelu", "", "gelu(x wᵀ + b), {shape}"),
    ("attention", "", "attention, {shape}"),
    ("grouped_attention", "", "grouped-query attention, {shape}"),
    ("conv_bn_relu", "", "3 × 3 convolution, batch norm, relu, {shape}"),
    ("conv_transpose_relu", "", "transposed convolution, relu, {shape}"),
];

const GPU_MODELS: &[Shown] = &[
    ("gpt2", "gpt2_fwd_bf16_8x1024", "GPT-2, attention written out, 8 × 1024"),
    ("gpt2-sdpa", "gpt2_fwd_bf16_8x1024", "GPT-2, 8 × 1024"),
    ("gpt2", "gpt2_fwd_bf16_1x1", "GPT-2, attention written out, one token"),
    ("gpt2-sdpa", "gpt2_fwd_bf16_1x1", "GPT-2, one token"),
    ("llama", "llama_fwd_bf16_4x2048", "Llama of 124 M parameters, attention written out, 4 × 2048"),
    ("llama-sdpa", "llama_fwd_bf16_4x2048", "Llama of 124 M parameters, 4 × 2048"),
    ("llama1b", "llama1b_fwd_bf16_4x2048", "Llama of 1.1 G parameters, 4 × 2048"),
    ("mlp8x1024", "mlp8x1024_bf16_b1", "MLP of 8 × 1024, one row"),
    ("mlp8x1024", "mlp8x1024_bf16_b64", "MLP of 8 × 1024, 64 rows"),
    ("mlp8x1024", "mlp8x1024_bf16_b8192", "MLP of 8 × 1024, 8192 rows"),
    ("bert-sdpa", "bert_fwd_bf16_1x128", "BERT, 1 × 128"),
    ("bert-sdpa", "bert_fwd_bf16_32x512", "BERT, 32 × 512"),
    ("vit_b_16-sdpa", "vit_b_16_fwd_bf16_b64", "ViT-B/16, batch 64"),
    ("unet-sdpa", "unet_fwd_bf16_b8", "UNet of latent diffusion, batch 8"),
    ("resnet50", "resnet50_fwd_bf16_b1", "ResNet-50, one image"),
    ("resnet50", "resnet50_fwd_bf16_b64", "ResNet-50, batch 64"),
    ("resnet18", "resnet18_fwd_bf16_b64", "ResNet-18, batch 64"),
    ("mobilenet_v2", "mobilenet_v2_fwd_bf16_b64", "MobileNet V2, batch 64"),
    ("mixer_b_16", "mixer_b_16_fwd_bf16_b64", "MLP-Mixer B/16, batch 64"),
];

const CPU_MODELS: &[Shown] = &[
    ("mlp8x1024", "", "MLP of 8 × 1024, 64 rows"),
    ("gpt2", "gpt2_1x128", "GPT-2, attention written out, 1 × 128"),
    ("gpt2-sdpa", "gpt2_1x128", "GPT-2, 1 × 128"),
    ("gpt2", "gpt2_1x1", "GPT-2, attention written out, one token"),
    ("gpt2-sdpa", "gpt2_1x1", "GPT-2, one token"),
    ("llama", "", "Llama of 124 M parameters, attention written out, 1 × 128"),
    ("llama-sdpa", "", "Llama of 124 M parameters, 1 × 128"),
    ("llama1b", "", "Llama of 1.1 G parameters, 1 × 16"),
    ("bert", "bert_1x128", "BERT, attention written out, 1 × 128"),
    ("bert-sdpa", "bert_1x128", "BERT, 1 × 128"),
    ("bert", "bert_masked_1x128", "BERT with a mask, attention written out, 1 × 128"),
    ("bert-sdpa", "bert_masked_1x128", "BERT with a mask, 1 × 128"),
    ("vit_b_16", "", "ViT-B/16, attention written out, one image"),
    ("vit_b_16-sdpa", "", "ViT-B/16, one image"),
    ("mixer_b_16", "", "MLP-Mixer B/16, one image"),
    ("unet", "", "UNet of latent diffusion, attention written out"),
    ("unet-sdpa", "", "UNet of latent diffusion"),
    ("resnet18", "", "ResNet-18, one image"),
    ("resnet50", "", "ResNet-50, one image"),
    ("mobilenet_v2", "", "MobileNet V2, one image"),
];

/// The names of the rows of `tilefuse compare`, which are the shapes of those of `tilefuse bench`.
const COMPARED_MODELS: &[Shown] = &[
    ("mlp8x1024", "mlp8x1024", "MLP of 8 × 1024, 64 rows"),
    ("bert_1x128", "", "BERT, 1 × 128"),
    ("gpt2_1x128", "", "GPT-2, 1 × 128"),
    ("vit_b_16_b1", "", "ViT-B/16, one image"),
    ("resnet50_b1", "", "ResNet-50, one image"),
    ("mobilenet_v2_b1", "", "MobileNet V2, one image"),
];

const BY_HAND: &[Shown] = &[
    ("vector_add 134217728", "", "vector addition, f32, 2^27"),
    ("softmax 4096x4096", "", "softmax, bf16, 4096 × 4096"),
    ("softmax 16384x1024", "", "softmax, bf16, 16384 × 1024"),
    ("softmax 1024x16384", "", "softmax, bf16, 1024 × 16384"),
    ("layer_norm 4096x8192", "", "layer norm, bf16, 4096 × 8192"),
    ("layer_norm_backward 4096x8192", "", "its gradient"),
    ("attention 4x32x4096x64", "", "attention, f16, 4 × 32 × 4096 × 64"),
    ("attention_causal 4x32x4096x64", "", "the same, causal"),
    ("matmul_leaky_relu 1024", "", "matrix product and leaky relu, f16, 1024³"),
    ("matmul_leaky_relu 4096", "", "the same, 4096³"),
    ("matmul_leaky_relu 8192", "", "the same, 8192³"),
    ("grouped_matmul", "", "four products in one launch, f16"),
    ("dropout 67108864", "", "dropout, 2^26"),
];

const fn gpu_kernels(name: &'static str, dtype: &'static str) -> Table {
    Table {
        name,
        machine: H200,
        kind: "kernel",
        dtype,
        cell: Cell::Microseconds,
        extra: Extra::OfCopy,
        others: GPU_OTHERS,
        rows: KERNELS,
    }
}

const fn cpu(name: &'static str, machine: Machine, kind: &'static str, rows: &'static [Shown]) -> Table {
    Table {
        name,
        machine,
        kind,
        dtype: "f32",
        cell: Cell::Milliseconds,
        extra: Extra::None,
        others: CPU_OTHERS,
        rows,
    }
}

/// Every table of contenders.
pub(super) const TABLES: &[Table] = &[
    gpu_kernels("gpu-kernels-bf16", "bf16"),
    gpu_kernels("gpu-kernels-f16", "f16"),
    gpu_kernels("gpu-kernels-f32", "f32"),
    Table { kind: "model", extra: Extra::Host, rows: GPU_MODELS, ..gpu_kernels("gpu-models-bf16", "bf16") },
    Table {
        kind: "tutorial",
        extra: Extra::None,
        others: &[("libtorch", "libtorch"), ("triton", "Triton")],
        rows: BY_HAND,
        ..gpu_kernels("by-hand", "")
    },
    cpu("cpu-kernels-f32", CPU, "kernel", KERNELS),
    cpu("cpu-models-f32", CPU, "model", CPU_MODELS),
    Table { dtype: "bf16", others: &[EAGER], ..cpu("cpu-models-bf16", CPU, "model", CPU_MODELS) },
    Table { cell: Cell::Compile, others: CPU_COMPILERS, ..cpu("cpu-compile", CPU, "model", CPU_MODELS) },
    cpu("slow-cpu-kernels-f32", SLOW_CPU, "kernel", KERNELS),
    cpu("slow-cpu-models-f32", SLOW_CPU, "model", CPU_MODELS),
    Table {
        dtype: "bf16",
        extra: Extra::Errors,
        others: &[EAGER],
        ..cpu("slow-cpu-models-bf16", SLOW_CPU, "model", COMPARED_MODELS)
    },
];

/// A model as `tilefuse compare` compiles it in a process of its own, and the row in which others compiled it.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) name: &'static str,
    pub(super) peer: (&'static str, &'static str),
    pub(super) label: &'static str,
}

const fn compiled(name: &'static str, peer: (&'static str, &'static str), label: &'static str) -> Compiled {
    Compiled { name, peer, label }
}

/// Where [`COMPILED`] was measured.
pub(super) const COMPILED_ON: Machine = H200;

/// The table `gpu-compile`.
pub(super) const COMPILED: &[Compiled] = &[
    compiled("gpt2", ("gpt2", "gpt2_fwd_bf16_8x1024"), "GPT-2, attention written out"),
    compiled("gpt2-sdpa", ("gpt2-sdpa", "gpt2_fwd_bf16_8x1024"), "GPT-2"),
    compiled("llama", ("llama", "llama_fwd_bf16_4x2048"), "Llama of 124 M parameters, attention written out"),
    compiled(
        "bert",
        ("bert-sdpa", "bert_fwd_bf16_32x512"),
        "BERT (the others without attention written out)",
    ),
    compiled("vit_b_16", ("vit_b_16-sdpa", "vit_b_16_fwd_bf16_b64"), "ViT-B/16 (likewise)"),
    compiled("unet", ("unet-sdpa", "unet_fwd_bf16_b8"), "UNet of latent diffusion (likewise)"),
    compiled("resnet50", ("resnet50", "resnet50_fwd_bf16_b64"), "ResNet-50"),
    compiled("mobilenet_v2", ("mobilenet_v2", "mobilenet_v2_fwd_bf16_b64"), "MobileNet V2"),
    compiled("mixer_b_16", ("mixer_b_16", "mixer_b_16_fwd_bf16_b64"), "MLP-Mixer B/16"),
    compiled("mlp8x1024", ("mlp8x1024", "mlp8x1024_bf16_b8192"), "MLP of 8 × 1024"),
    compiled("kernel:gelu_erf", ("", ""), "gelu, one kernel"),
    compiled("kernel:softmax", ("", ""), "softmax, one kernel"),
    compiled("kernel:layer_norm", ("", ""), "layer norm, one kernel"),
];

/// Something that was measured once, beside what it is compared with.
#[derive(Debug)]
pub(super) struct Fact {
    pub(super) label: &'static str,
    pub(super) machine: Machine,
    /// The kind and the name of the row.
    pub(super) row: (&'static str, &'static str),
    /// A caption, the JSON pointer of a number in the row, the factor that makes it one of the unit, and the unit.
    pub(super) values: &'static [(&'static str, &'static str, f64, &'static str)],
}

const fn fact(
    label: &'static str,
    machine: Machine,
    row: (&'static str, &'static str),
    values: &'static [(&'static str, &'static str, f64, &'static str)],
) -> Fact {
    Fact { label, machine, row, values }
}

const STORES: &[(&str, &str, f64, &str)] =
    &[("plain", "/plain_ms", 1.0, "ms"), ("non-temporal", "/past_the_caches_ms", 1.0, "ms")];

/// The table `facts`.
pub(super) const FACTS: &[Fact] = &[
    fact(
        "GPT-2 in bf16, 8 × 1024: memory at its peak",
        H200,
        ("memory", "gpt2 8x1024"),
        &[("eager", "/peak_mb/eager", 1.0, "MB"), ("Tilefuse", "/peak_mb/tilefuse", 1.0, "MB")],
    ),
    fact(
        "GPT-2's CUDA graph for one token: from the end of a kernel to the start of the next",
        H200,
        ("graph", ""),
        &[("median", "/rows/0/gap_median", 1.0, "us"), ("kernels", "/rows/0/nodes", 1.0, "")],
    ),
    fact(
        "a kernel that does nothing, beside twelve operators on 4096 elements",
        H200,
        ("kernel", "chain12"),
        &[
            ("empty", "/empty_launch_us", 1.0, "us"),
            ("copy of as many bytes", "/us/copy", 1.0, "us"),
            ("Tilefuse", "/us/tilefuse", 1.0, "us"),
        ],
    ),
    fact(
        "the host's part of a launch by hand",
        H200,
        ("tutorial", "launch"),
        &[
            ("Tilefuse before the driver", "/before_the_driver_us", 1.0, "us"),
            ("in all", "/checked_us", 1.0, "us"),
            ("Triton in all", "/triton_host_us", 1.0, "us"),
        ],
    ),
    fact(
        "a call of one small kernel, `tilefuse doctor --profile`",
        CPU,
        ("doctor", ""),
        &[("call", "/call_us", 1.0, "us"), ("a parallel region", "/region_us", 1.0, "us")],
    ),
    fact(
        "compiling GPT-2 in a process of its own",
        CPU,
        ("doctor", ""),
        &[("first", "/gpt2_cold_ms", 1.0, "ms"), ("with the cache on disk", "/gpt2_warm_ms", 1.0, "ms")],
    ),
    fact(
        "product of 1024 × 1024 × 1024, f32, alone",
        CPU,
        ("alone", "product 1024x1024x1024"),
        &[("eager", "/us/eager", 1e-3, "ms"), ("Tilefuse", "/us/tilefuse", 1e-3, "ms")],
    ),
    fact(
        "product of one row by 4096 × 4096, f32, alone",
        CPU,
        ("alone", "product 1x4096x4096"),
        &[
            ("eager", "/us/eager", 1e-3, "ms"),
            ("Tilefuse", "/us/tilefuse", 1e-3, "ms"),
            ("reading as many bytes", "/us/reading 64 MiB", 1e-3, "ms"),
        ],
    ),
    fact(
        "first layers of ResNet-50, 8 images, with outer-loop fusion",
        CPU,
        (
            "chain",
            "first layers of ResNet-50, 8 images: convolution, batch norm, relu, max pooling, 1x1 convolution",
        ),
        &[
            ("without", "/us/apart", 1e-3, "ms"),
            ("with", "/us/in blocks", 1e-3, "ms"),
            ("memory without", "/peak_bytes/apart", 1e-6, "MB"),
            ("with", "/peak_bytes/in blocks", 1e-6, "MB"),
        ],
    ),
    fact("x + y, 16384 × 1024, stores", CPU, ("stores", "vector_add"), STORES),
    fact("gelu(x), 16384 × 1024, stores", CPU, ("stores", "gelu_erf"), STORES),
    fact("softmax, 16384 rows of 1024, stores", CPU, ("stores", "softmax"), STORES),
];

/// A row of the README: where, its kind and dtype, its name and shape, and its label.
#[derive(Debug)]
pub(super) struct Highlight {
    pub(super) machine: Machine,
    pub(super) group: (&'static str, &'static str),
    pub(super) row: Shown,
}

const fn highlight(machine: Machine, group: (&'static str, &'static str), row: Shown) -> Highlight {
    Highlight { machine, group, row }
}

const GPU_KERNEL: (&str, &str) = ("kernel", "bf16");
const GPU_MODEL: (&str, &str) = ("model", "bf16");
const CPU_KERNEL: (&str, &str) = ("kernel", "f32");
const CPU_MODEL: (&str, &str) = ("model", "f32");

/// The table `highlights` and the picture.
pub(super) const HIGHLIGHTS: [Highlight; 12] = [
    highlight(H200, GPU_KERNEL, ("bias_gelu_residual", "16384x4096", "gelu(x + bias) + y")),
    highlight(H200, GPU_KERNEL, ("softmax", "26827x5003", "softmax, rows of 5003")),
    highlight(H200, GPU_KERNEL, ("cross_entropy", "8192x50257", "cross-entropy, 50257 classes")),
    highlight(H200, GPU_MODEL, ("gpt2-sdpa", "gpt2_fwd_bf16_8x1024", "GPT-2, 8 × 1024 tokens")),
    highlight(H200, GPU_MODEL, ("gpt2-sdpa", "gpt2_fwd_bf16_1x1", "GPT-2, one token")),
    highlight(H200, GPU_MODEL, ("unet-sdpa", "unet_fwd_bf16_b8", "UNet, batch 8")),
    highlight(H200, GPU_MODEL, ("resnet50", "resnet50_fwd_bf16_b64", "ResNet-50, batch 64")),
    highlight(CPU, CPU_KERNEL, ("linear_bias_gelu", "1024x1024x1024", "gelu(x wᵀ + b), 1024³")),
    highlight(CPU, CPU_KERNEL, ("softmax", "8192x256", "softmax, rows of 256")),
    highlight(CPU, CPU_MODEL, ("gpt2-sdpa", "gpt2_1x128", "GPT-2, 128 tokens")),
    highlight(CPU, CPU_MODEL, ("bert-sdpa", "bert_1x128", "BERT, 128 tokens")),
    highlight(CPU, CPU_MODEL, ("resnet50", "resnet50_b1", "ResNet-50, one image")),
];

/// The tables whose summary the README's section `headline` gives.
pub(super) const HEADLINES: [(&str, &str); 4] = [
    ("gpu-kernels-bf16", "kernels, H200, bf16"),
    ("gpu-models-bf16", "models, H200, bf16"),
    ("cpu-kernels-f32", "kernels, CPU with two threads, f32"),
    ("cpu-models-f32", "models, CPU with two threads, f32"),
];

/// Models whose kernels are shown as predicted and as measured, in which type, and what they are called.
pub(super) const PREDICTIONS: &[(&Machine, &str, &str, &str)] = &[
    (&H200, "gpt2", "bf16", "GPT-2, 8 × 1024"),
    (&H200, "resnet50", "bf16", "ResNet-50, 64 images"),
    (&ZEN4, "gpt2", "f32", "GPT-2, 1 × 128"),
    (&ZEN4, "resnet50", "f32", "ResNet-50, one image"),
];
