//! MLP-Mixer with the variable names of timm.

use tch::Tensor;
use tch::nn::{self, Module};

use crate::layers::{self, FeedForward};
use crate::vit::patches;

/// The sizes of a [`Mixer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixerConfig {
    /// Height and width of the images; a multiple of `patch`.
    pub image: i64,
    /// Height and width of a patch.
    pub patch: i64,
    /// Channels of a patch's embedding.
    pub hidden: i64,
    /// Width inside the network that mixes patches.
    pub tokens_mlp: i64,
    /// Width inside the network that mixes channels.
    pub channels_mlp: i64,
    /// Number of blocks.
    pub layers: i64,
    /// Width of the output.
    pub classes: i64,
}

impl MixerConfig {
    /// Mixer-B/16 for images of 224×224 and 1000 classes.
    pub fn b_16() -> Self {
        MixerConfig {
            image: 224,
            patch: 16,
            hidden: 768,
            tokens_mlp: 384,
            channels_mlp: 3072,
            layers: 12,
            classes: 1000,
        }
    }

    /// Two blocks of width 32 for images of 32×32, for tests.
    pub fn tiny() -> Self {
        MixerConfig {
            image: 32,
            patch: 8,
            hidden: 32,
            tokens_mlp: 24,
            channels_mlp: 64,
            layers: 2,
            classes: 10,
        }
    }
}

/// Maps images `[batch, 3, image, image]` to logits `[batch, classes]`.
#[derive(Debug)]
pub struct Mixer {
    proj: nn::Conv2D,
    blocks: Vec<Block>,
    norm: nn::LayerNorm,
    head: nn::Linear,
}

/// Makes a [`Mixer`] with random weights.
pub fn mixer(p: &nn::Path, cfg: &MixerConfig) -> Mixer {
    Mixer {
        proj: patches(p / "stem" / "proj", cfg.patch, cfg.hidden),
        blocks: (0..cfg.layers).map(|i| Block::new(p / "blocks" / i, cfg)).collect(),
        norm: layers::layer_norm(p / "norm", cfg.hidden, 1e-6),
        head: layers::linear_normal(p / "head", cfg.hidden, cfg.classes, 0.02),
    }
}

impl Module for Mixer {
    fn forward(&self, xs: &Tensor) -> Tensor {
        let xs = xs.apply(&self.proj).flatten(2, 3).transpose(1, 2);
        let xs = self.blocks.iter().fold(xs, |xs, block| xs.apply(block));
        let pooled = xs.apply(&self.norm).mean_dim([1i64].as_slice(), false, None);
        pooled.apply(&self.head)
    }
}

#[derive(Debug)]
struct Block {
    norm1: nn::LayerNorm,
    mlp_tokens: FeedForward,
    norm2: nn::LayerNorm,
    mlp_channels: FeedForward,
}

impl Block {
    fn new(p: nn::Path, cfg: &MixerConfig) -> Self {
        let side = cfg.image / cfg.patch;
        let mlp = |name, width, hidden| {
            let p = &p / name;
            FeedForward::new(&p / "fc1", &p / "fc2", width, hidden)
        };
        Block {
            norm1: layers::layer_norm(&p / "norm1", cfg.hidden, 1e-6),
            mlp_tokens: mlp("mlp_tokens", side * side, cfg.tokens_mlp),
            norm2: layers::layer_norm(&p / "norm2", cfg.hidden, 1e-6),
            mlp_channels: mlp("mlp_channels", cfg.hidden, cfg.channels_mlp),
        }
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Tensor {
        let mixed = xs.apply(&self.norm1).transpose(1, 2).apply(&self.mlp_tokens).transpose(1, 2);
        let xs = xs + mixed;
        let mixed = xs.apply(&self.norm2).apply(&self.mlp_channels);
        xs + mixed
    }
}
