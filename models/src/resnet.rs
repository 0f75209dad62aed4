//! ResNet with the variable names of torchvision.

use tch::Tensor;
use tch::nn::{self, ModuleT};

use crate::layers;

/// The residual block of a [`ResNet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// Two 3×3 convolutions.
    Basic,
    /// 1×1, 3×3 and 1×1 convolutions; the last is four times as wide.
    Bottleneck,
}

impl Block {
    fn expansion(self) -> i64 {
        match self {
            Block::Basic => 1,
            Block::Bottleneck => 4,
        }
    }
}

/// The sizes of a [`ResNet`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResNetConfig {
    /// The kind of block.
    pub block: Block,
    /// Blocks in each of the four stages; each stage is twice as wide as the one before it.
    pub layers: [i64; 4],
    /// Channels of the first stage.
    pub width: i64,
    /// Width of the output.
    pub classes: i64,
    /// Whether relu and the residual sum write over their argument, as torchvision's do.
    pub inplace: bool,
}

impl ResNetConfig {
    /// ResNet-18 for 1000 classes.
    pub fn resnet18() -> Self {
        ResNetConfig { block: Block::Basic, layers: [2, 2, 2, 2], width: 64, classes: 1000, inplace: false }
    }

    /// ResNet-50 for 1000 classes.
    pub fn resnet50() -> Self {
        ResNetConfig { block: Block::Bottleneck, layers: [3, 4, 6, 3], ..Self::resnet18() }
    }

    /// One narrow block a stage, for tests.
    pub fn tiny(block: Block) -> Self {
        ResNetConfig { block, layers: [1, 1, 1, 1], width: 8, classes: 10, inplace: false }
    }

    /// The same network with operators that write over their argument.
    pub fn inplace(self) -> Self {
        ResNetConfig { inplace: true, ..self }
    }
}

/// Maps images `[batch, 3, height, width]` to logits `[batch, classes]`.
#[derive(Debug)]
pub struct ResNet {
    conv1: nn::Conv2D,
    bn1: nn::BatchNorm,
    blocks: Vec<Residual>,
    fc: nn::Linear,
    inplace: bool,
}

/// Makes a [`ResNet`] with torchvision's random weights.
pub fn resnet(p: &nn::Path, cfg: &ResNetConfig) -> ResNet {
    let mut blocks = Vec::new();
    let mut channels = cfg.width;
    for (stage, &count) in (0..).zip(&cfg.layers) {
        let (p, width) = (p / format!("layer{}", stage + 1), cfg.width << stage);
        for i in 0..count {
            let stride = if i == 0 && stage > 0 { 2 } else { 1 };
            blocks.push(Residual::new(&p / i, cfg, channels, width, stride));
            channels = width * cfg.block.expansion();
        }
    }
    ResNet {
        conv1: conv(p / "conv1", 3, cfg.width, 7, 2),
        bn1: layers::batch_norm2d(p / "bn1", cfg.width),
        blocks,
        fc: layers::linear(p / "fc", channels, cfg.classes),
        inplace: cfg.inplace,
    }
}

/// [`resnet`] with [`ResNetConfig::resnet18`].
pub fn resnet18(p: &nn::Path) -> ResNet {
    resnet(p, &ResNetConfig::resnet18())
}

/// [`resnet`] with [`ResNetConfig::resnet50`].
pub fn resnet50(p: &nn::Path) -> ResNet {
    resnet(p, &ResNetConfig::resnet50())
}

impl ModuleT for ResNet {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let xs = xs.apply(&self.conv1).apply_t(&self.bn1, train);
        let xs = relu(xs, self.inplace).max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false);
        let xs = self.blocks.iter().fold(xs, |xs, block| xs.apply_t(block, train));
        xs.adaptive_avg_pool2d([1, 1]).flatten(1, -1).apply(&self.fc)
    }
}

#[derive(Debug)]
struct Residual {
    layers: Vec<(nn::Conv2D, nn::BatchNorm)>,
    downsample: Option<(nn::Conv2D, nn::BatchNorm)>,
    inplace: bool,
}

impl Residual {
    fn new(p: nn::Path, cfg: &ResNetConfig, inputs: i64, width: i64, stride: i64) -> Self {
        let outputs = width * cfg.block.expansion();
        let layer = |n: i64, inputs, outputs, kernel, stride| {
            let conv = conv(&p / format!("conv{n}"), inputs, outputs, kernel, stride);
            (conv, layers::batch_norm2d(&p / format!("bn{n}"), outputs))
        };
        let layers = match cfg.block {
            Block::Basic => vec![layer(1, inputs, width, 3, stride), layer(2, width, width, 3, 1)],
            Block::Bottleneck => vec![
                layer(1, inputs, width, 1, 1),
                layer(2, width, width, 3, stride),
                layer(3, width, outputs, 1, 1),
            ],
        };
        let downsample = (stride != 1 || inputs != outputs).then(|| {
            let p = &p / "downsample";
            (conv(&p / 0, inputs, outputs, 1, stride), layers::batch_norm2d(&p / 1, outputs))
        });
        Residual { layers, downsample, inplace: cfg.inplace }
    }
}

impl ModuleT for Residual {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let mut ys = xs.shallow_clone();
        for (i, (conv, bn)) in self.layers.iter().enumerate() {
            ys = ys.apply(conv).apply_t(bn, train);
            if i + 1 < self.layers.len() {
                ys = relu(ys, self.inplace);
            }
        }
        let identity = match &self.downsample {
            Some((conv, bn)) => xs.apply(conv).apply_t(bn, train),
            None => xs.shallow_clone(),
        };
        relu(add(ys, &identity, self.inplace), self.inplace)
    }
}

fn relu(mut xs: Tensor, inplace: bool) -> Tensor {
    if inplace { xs.relu_() } else { xs.relu() }
}

fn add(mut xs: Tensor, ys: &Tensor, inplace: bool) -> Tensor {
    if inplace { xs.g_add_(ys) } else { xs + ys }
}

fn conv(p: nn::Path, inputs: i64, outputs: i64, kernel: i64, stride: i64) -> nn::Conv2D {
    let ws_init = layers::KAIMING_FAN_OUT;
    let padding = kernel / 2;
    let config = nn::ConvConfig { stride, padding, bias: false, ws_init, ..Default::default() };
    nn::conv2d(p, inputs, outputs, kernel, config)
}
