//! MobileNet V2 with the variable names of torchvision.

use tch::Tensor;
use tch::nn::{self, ModuleT};

use crate::layers;

/// The sizes of a [`MobileNetV2`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MobileNetV2Config {
    /// Stages of inverted residuals: expansion, output channels, blocks, stride of the first block.
    pub stages: Vec<[i64; 4]>,
    /// Channels after the first convolution.
    pub first: i64,
    /// Channels before the classifier.
    pub last: i64,
    /// Width of the output.
    pub classes: i64,
}

impl MobileNetV2Config {
    /// Width 1.0 for 1000 classes.
    pub fn standard() -> Self {
        let stages = vec![
            [1, 16, 1, 1],
            [6, 24, 2, 2],
            [6, 32, 3, 2],
            [6, 64, 4, 2],
            [6, 96, 3, 1],
            [6, 160, 3, 2],
            [6, 320, 1, 1],
        ];
        MobileNetV2Config { stages, first: 32, last: 1280, classes: 1000 }
    }

    /// Three narrow stages, for tests.
    pub fn tiny() -> Self {
        let stages = vec![[1, 8, 1, 1], [4, 12, 2, 2], [4, 16, 1, 1]];
        MobileNetV2Config { stages, first: 8, last: 32, classes: 10 }
    }
}

/// Maps images `[batch, 3, height, width]` to logits `[batch, classes]`.
#[derive(Debug)]
pub struct MobileNetV2 {
    first: ConvNormRelu6,
    blocks: Vec<InvertedResidual>,
    last: ConvNormRelu6,
    classifier: nn::Linear,
}

/// Makes a [`MobileNetV2`] with torchvision's random weights.
pub fn mobilenet_v2(p: &nn::Path, cfg: &MobileNetV2Config) -> MobileNetV2 {
    let features = p / "features";
    let mut blocks = Vec::new();
    let mut channels = cfg.first;
    for &[expansion, outputs, count, stride] in &cfg.stages {
        for i in 0..count {
            let p = &features / (blocks.len() + 1) / "conv";
            let stride = if i == 0 { stride } else { 1 };
            blocks.push(InvertedResidual::new(p, channels, outputs, stride, expansion));
            channels = outputs;
        }
    }
    MobileNetV2 {
        first: ConvNormRelu6::new(&features / 0, 3, cfg.first, 3, 2, 1),
        last: ConvNormRelu6::new(&features / (blocks.len() + 1), channels, cfg.last, 1, 1, 1),
        blocks,
        classifier: layers::linear_normal(p / "classifier" / 1, cfg.last, cfg.classes, 0.01),
    }
}

impl ModuleT for MobileNetV2 {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let xs = xs.apply_t(&self.first, train);
        let xs = self.blocks.iter().fold(xs, |xs, block| xs.apply_t(block, train));
        let xs = xs.apply_t(&self.last, train).adaptive_avg_pool2d([1, 1]).flatten(1, -1);
        xs.dropout(0.2, train).apply(&self.classifier)
    }
}

#[derive(Debug)]
struct ConvNormRelu6 {
    conv: nn::Conv2D,
    norm: nn::BatchNorm,
}

impl ConvNormRelu6 {
    fn new(p: nn::Path, inputs: i64, outputs: i64, kernel: i64, stride: i64, groups: i64) -> Self {
        ConvNormRelu6 {
            conv: conv(&p / 0, inputs, outputs, kernel, stride, groups),
            norm: layers::batch_norm2d(&p / 1, outputs),
        }
    }
}

impl ModuleT for ConvNormRelu6 {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        xs.apply(&self.conv).apply_t(&self.norm, train).clamp(0.0, 6.0)
    }
}

#[derive(Debug)]
struct InvertedResidual {
    expand: Option<ConvNormRelu6>,
    depthwise: ConvNormRelu6,
    project: nn::Conv2D,
    norm: nn::BatchNorm,
    residual: bool,
}

impl InvertedResidual {
    fn new(p: nn::Path, inputs: i64, outputs: i64, stride: i64, expansion: i64) -> Self {
        let hidden = inputs * expansion;
        let first = i64::from(expansion != 1);
        InvertedResidual {
            expand: (expansion != 1).then(|| ConvNormRelu6::new(&p / 0, inputs, hidden, 1, 1, 1)),
            depthwise: ConvNormRelu6::new(&p / first, hidden, hidden, 3, stride, hidden),
            project: conv(&p / (first + 1), hidden, outputs, 1, 1, 1),
            norm: layers::batch_norm2d(&p / (first + 2), outputs),
            residual: stride == 1 && inputs == outputs,
        }
    }
}

impl ModuleT for InvertedResidual {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let expanded = match &self.expand {
            Some(expand) => xs.apply_t(expand, train),
            None => xs.shallow_clone(),
        };
        let ys = expanded.apply_t(&self.depthwise, train).apply(&self.project).apply_t(&self.norm, train);
        if self.residual { xs + ys } else { ys }
    }
}

fn conv(p: nn::Path, inputs: i64, outputs: i64, kernel: i64, stride: i64, groups: i64) -> nn::Conv2D {
    let ws_init = layers::KAIMING_FAN_OUT;
    let padding = kernel / 2;
    let config = nn::ConvConfig { stride, padding, groups, bias: false, ws_init, ..Default::default() };
    nn::conv2d(p, inputs, outputs, kernel, config)
}
