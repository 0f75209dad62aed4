//! A stack of `Linear`, `GELU`, `LayerNorm`.

use tch::Tensor;
use tch::nn::{self, Module};

use crate::layers;

/// The sizes of an [`Mlp`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MlpConfig {
    /// How many times `Linear`, `GELU`, `LayerNorm` follow each other.
    pub layers: usize,
    /// Width of input, output and everything between.
    pub hidden: i64,
}

impl MlpConfig {
    /// Eight layers of 1024.
    pub fn mlp8x1024() -> Self {
        MlpConfig { layers: 8, hidden: 1024 }
    }

    /// Two layers of 32.
    pub fn tiny() -> Self {
        MlpConfig { layers: 2, hidden: 32 }
    }
}

/// Maps `[.., hidden]` to `[.., hidden]`. Variables are named as in an `nn.Sequential`: `0.weight`,
/// `2.weight`, ….
#[derive(Debug)]
pub struct Mlp {
    layers: Vec<(nn::Linear, nn::LayerNorm)>,
}

/// Makes an [`Mlp`] with PyTorch's default weights.
pub fn mlp(p: &nn::Path, cfg: &MlpConfig) -> Mlp {
    let layer = |i: usize| {
        let linear = layers::linear(p / (3 * i), cfg.hidden, cfg.hidden);
        (linear, layers::layer_norm(p / (3 * i + 2), cfg.hidden, 1e-5))
    };
    Mlp { layers: (0..cfg.layers).map(layer).collect() }
}

impl Module for Mlp {
    fn forward(&self, xs: &Tensor) -> Tensor {
        let first = xs.shallow_clone();
        self.layers.iter().fold(first, |xs, (linear, norm)| xs.apply(linear).gelu("tanh").apply(norm))
    }
}
