//! Layers and small helpers that several models share, initialised as PyTorch initialises them.

use tch::nn::{self, Init, Module};
use tch::{Device, Kind, Tensor};

/// How a model computes attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Attention {
    /// Product, scale, mask, softmax, product: one operator each.
    #[default]
    WrittenOut,
    /// One call of `scaled_dot_product_attention`.
    Sdpa,
}

/// `xs` in f32, or in f64 where it has that kind already: what authors write as `xs.float()`, without a loss
/// of precision for f64 models.
pub fn upcast(xs: &Tensor) -> Tensor {
    xs.to_kind(wide_kind(xs.kind()))
}

/// The kind in which norms and softmax of half-precision models are computed.
pub(crate) fn wide_kind(kind: Kind) -> Kind {
    if kind == Kind::Double { Kind::Double } else { Kind::Float }
}

/// The most negative finite value of a floating-point kind, by which masks exclude positions.
pub(crate) fn lowest(kind: Kind) -> f64 {
    match kind {
        Kind::Half => -65504.0,
        Kind::BFloat16 => -3.3895313892515355e38,
        Kind::Double => f64::MIN,
        _ => f64::from(f32::MIN),
    }
}

/// The sizes of a tensor of rank `N`. Panics on another rank, as the modules of `tch` do.
pub(crate) fn sizes<const N: usize>(xs: &Tensor) -> [i64; N] {
    let size = xs.size();
    match <[i64; N]>::try_from(size.as_slice()) {
        Ok(sizes) => sizes,
        Err(_) => panic!("expected a tensor of rank {N}, got one of shape {size:?}"),
    }
}

/// `[batch, tokens, heads * width]` to `[batch, heads, tokens, width]`.
pub(crate) fn split_heads(xs: &Tensor, heads: i64) -> Tensor {
    let [batch, tokens, channels] = sizes(xs);
    xs.view([batch, tokens, heads, channels / heads]).transpose(1, 2)
}

/// `[batch, heads, tokens, width]` to `[batch, tokens, heads * width]`.
pub(crate) fn merge_heads(xs: &Tensor) -> Tensor {
    let [batch, heads, tokens, width] = sizes(xs);
    xs.transpose(1, 2).contiguous().view([batch, tokens, heads * width])
}

/// A boolean mask `[1, 1, len, len]` that is true where the column lies after the row.
pub(crate) fn future_mask(len: i64, device: Device) -> Tensor {
    Tensor::ones([len, len], (Kind::Bool, device)).triu(1).view([1, 1, len, len])
}

/// `mask` as booleans: a `VarStore` whose kind was set for all its variables has cast the mask too.
pub(crate) fn as_bool(mask: &Tensor) -> Tensor {
    if mask.kind() == Kind::Bool { mask.shallow_clone() } else { mask.to_kind(Kind::Bool) }
}

/// Normal with mean 0.
pub(crate) fn normal(stdev: f64) -> Init {
    Init::Randn { mean: 0.0, stdev }
}

fn uniform(bound: f64) -> Init {
    Init::Uniform { lo: -bound, up: bound }
}

fn inverse_sqrt(fan_in: i64) -> f64 {
    1.0 / (fan_in.max(1) as f64).sqrt()
}

/// `nn.Linear` with PyTorch's default: uniform within `1 / sqrt(inputs)`.
pub(crate) fn linear(p: nn::Path, inputs: i64, outputs: i64) -> nn::Linear {
    let init = uniform(inverse_sqrt(inputs));
    nn::linear(p, inputs, outputs, nn::LinearConfig { ws_init: init, bs_init: Some(init), bias: true })
}

/// `nn.Linear` with normal weights and zero biases, as transformers are initialised.
pub(crate) fn linear_normal(p: nn::Path, inputs: i64, outputs: i64, stdev: f64) -> nn::Linear {
    let bs_init = Some(Init::Const(0.0));
    nn::linear(p, inputs, outputs, nn::LinearConfig { ws_init: normal(stdev), bs_init, bias: true })
}

/// `nn.Linear` with `xavier_uniform_` weights and biases close to zero, as vision transformers are
/// initialised.
pub(crate) fn linear_xavier(p: nn::Path, inputs: i64, outputs: i64) -> nn::Linear {
    let bs_init = Some(normal(1e-6));
    nn::linear(
        p,
        inputs,
        outputs,
        nn::LinearConfig { ws_init: xavier_uniform(inputs, outputs), bs_init, bias: true },
    )
}

/// The distribution of `xavier_uniform_`.
pub(crate) fn xavier_uniform(inputs: i64, outputs: i64) -> Init {
    uniform((6.0 / (inputs + outputs).max(1) as f64).sqrt())
}

/// `nn.Linear(bias=False)` with normal weights.
pub(crate) fn linear_no_bias(p: nn::Path, inputs: i64, outputs: i64, stdev: f64) -> nn::Linear {
    nn::linear(p, inputs, outputs, nn::LinearConfig { ws_init: normal(stdev), bs_init: None, bias: false })
}

/// `nn.Embedding` with normal weights.
pub(crate) fn embedding(p: nn::Path, rows: i64, width: i64, stdev: f64) -> nn::Embedding {
    nn::embedding(p, rows, width, nn::EmbeddingConfig { ws_init: normal(stdev), ..Default::default() })
}

/// `nn.LayerNorm` over the last dimension.
pub(crate) fn layer_norm(p: nn::Path, width: i64, eps: f64) -> nn::LayerNorm {
    nn::layer_norm(p, vec![width], nn::LayerNormConfig { eps, ..Default::default() })
}

/// `nn.GroupNorm` with weight 1 and bias 0.
pub(crate) fn group_norm(p: nn::Path, groups: i64, channels: i64, eps: f64) -> nn::GroupNorm {
    nn::group_norm(p, groups, channels, nn::GroupNormConfig { eps, ..Default::default() })
}

/// `nn.BatchNorm2d` with weight 1 and bias 0.
pub(crate) fn batch_norm2d(p: nn::Path, channels: i64) -> nn::BatchNorm {
    nn::batch_norm2d(p, channels, nn::BatchNormConfig { ws_init: Init::Const(1.0), ..Default::default() })
}

/// `nn.Conv2d` with bias and PyTorch's default: uniform within `1 / sqrt(fan in)`.
pub(crate) fn conv2d(
    p: nn::Path,
    inputs: i64,
    outputs: i64,
    kernel: i64,
    stride: i64,
    padding: i64,
) -> nn::Conv2D {
    let init = uniform(inverse_sqrt(inputs * kernel * kernel));
    let config = nn::ConvConfig { stride, padding, ws_init: init, bs_init: init, ..Default::default() };
    nn::conv2d(p, inputs, outputs, kernel, config)
}

/// The distribution of `kaiming_normal_(mode="fan_out", nonlinearity="relu")`, of which convolutional
/// networks draw their kernels.
pub(crate) const KAIMING_FAN_OUT: Init = Init::Kaiming {
    dist: nn::init::NormalOrUniform::Normal,
    fan: nn::init::FanInOut::FanOut,
    non_linearity: nn::init::NonLinearity::ReLU,
};

/// Two linear layers with the exact gelu between them, under the given names.
#[derive(Debug)]
pub(crate) struct FeedForward {
    up: nn::Linear,
    down: nn::Linear,
}

impl FeedForward {
    pub(crate) fn new(up: nn::Path, down: nn::Path, width: i64, hidden: i64) -> Self {
        FeedForward { up: linear_xavier(up, width, hidden), down: linear_xavier(down, hidden, width) }
    }
}

impl Module for FeedForward {
    fn forward(&self, xs: &Tensor) -> Tensor {
        xs.apply(&self.up).gelu("none").apply(&self.down)
    }
}
