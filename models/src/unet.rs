//! A UNet of the kind that diffusion models use, and the blocks that it is made of, with the variable names
//! of diffusers.

use tch::Tensor;
use tch::nn::{self, Module};

use crate::layers::{self, Attention, sizes, upcast, wide_kind};

/// The sizes of a [`UNet`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UNetConfig {
    /// Channels of the sample and of the prediction.
    pub channels: i64,
    /// Width of each level, outermost first; multiples of `groups`. Each level has half the resolution of the
    /// one before it.
    pub widths: Vec<i64>,
    /// Residual blocks of a level on the way down; the way up has one more.
    pub layers: i64,
    /// Groups of each group norm.
    pub groups: i64,
    /// Attention heads.
    pub heads: i64,
    /// The outermost level that has self attention.
    pub attention_from: usize,
    /// How attention is computed.
    pub attention: Attention,
}

impl UNetConfig {
    /// Three levels of 128, 256 and 512 channels for latents of 32×32.
    pub fn small() -> Self {
        UNetConfig {
            channels: 4,
            widths: vec![128, 256, 512],
            layers: 2,
            groups: 32,
            heads: 8,
            attention_from: 1,
            attention: Attention::WrittenOut,
        }
    }

    /// Two levels of 16 and 32 channels, for tests.
    pub fn tiny() -> Self {
        UNetConfig { widths: vec![16, 32], layers: 1, groups: 4, heads: 2, ..Self::small() }
    }

    /// The same sizes with another way to compute attention.
    pub fn attention(self, attention: Attention) -> Self {
        UNetConfig { attention, ..self }
    }

    fn time_width(&self) -> i64 {
        4 * self.first()
    }

    fn first(&self) -> i64 {
        self.widths.first().copied().unwrap_or(self.groups)
    }

    fn last(&self) -> i64 {
        self.widths.last().copied().unwrap_or(self.groups)
    }
}

/// Predicts the noise of a sample `[batch, channels, height, width]` at timesteps `[batch]`. Height and width
/// are multiples of 2 to the number of levels less one.
#[derive(Debug)]
pub struct UNet {
    conv_in: nn::Conv2D,
    time_embedding: TimestepEmbedding,
    down_blocks: Vec<DownBlock>,
    mid: (ResnetBlock, AttentionBlock, ResnetBlock),
    up_blocks: Vec<UpBlock>,
    conv_norm_out: nn::GroupNorm,
    conv_out: nn::Conv2D,
    first: i64,
}

/// Makes a [`UNet`] with PyTorch's default weights.
pub fn unet(p: &nn::Path, cfg: &UNetConfig) -> UNet {
    let (first, last) = (cfg.first(), cfg.last());
    let mid = p / "mid_block";
    let mid_resnet = |i: i64| ResnetBlock::new(&(&mid / "resnets" / i), cfg, last, last);
    UNet {
        conv_in: layers::conv2d(p / "conv_in", cfg.channels, first, 3, 1, 1),
        time_embedding: TimestepEmbedding::new(&(p / "time_embedding"), first, cfg.time_width()),
        down_blocks: down_blocks(&(p / "down_blocks"), cfg),
        mid: (mid_resnet(0), AttentionBlock::new(&(&mid / "attentions" / 0), cfg, last), mid_resnet(1)),
        up_blocks: up_blocks(&(p / "up_blocks"), cfg),
        conv_norm_out: layers::group_norm(p / "conv_norm_out", cfg.groups, first, 1e-5),
        conv_out: layers::conv2d(p / "conv_out", first, cfg.channels, 3, 1, 1),
        first,
    }
}

fn down_blocks(p: &nn::Path, cfg: &UNetConfig) -> Vec<DownBlock> {
    let levels = cfg.widths.len();
    let inputs = std::iter::once(cfg.first()).chain(cfg.widths.iter().copied());
    let level = |(i, (inputs, &width)): (usize, (i64, &i64))| {
        DownBlock::new(&(p / i), cfg, inputs, width, i >= cfg.attention_from, i + 1 < levels)
    };
    inputs.zip(&cfg.widths).enumerate().map(level).collect()
}

/// The blocks of the way up, innermost first. A level's skips are those of its own width and, for the last,
/// the one that entered the level on the way down.
fn up_blocks(p: &nn::Path, cfg: &UNetConfig) -> Vec<UpBlock> {
    let mut blocks = Vec::new();
    let mut inputs = cfg.last();
    for (i, &width) in cfg.widths.iter().enumerate().rev() {
        let entry = if i == 0 { cfg.first() } else { cfg.widths[i - 1] };
        let p = p / blocks.len();
        blocks.push(UpBlock::new(&p, cfg, [inputs, width, entry], i >= cfg.attention_from, i > 0));
        inputs = width;
    }
    blocks
}

impl UNet {
    /// The predicted noise, of the sample's shape. Timesteps may be integers or floating point.
    pub fn forward(&self, sample: &Tensor, timesteps: &Tensor) -> Tensor {
        let time =
            timestep_embedding(timesteps, self.first).to_kind(sample.kind()).apply(&self.time_embedding);
        let mut xs = sample.apply(&self.conv_in);
        let mut skips = vec![xs.shallow_clone()];
        for block in &self.down_blocks {
            xs = block.forward(&xs, &time, &mut skips);
        }
        let (before, attention, after) = &self.mid;
        xs = after.forward(&before.forward(&xs, &time).apply(attention), &time);
        for block in &self.up_blocks {
            xs = block.forward(&xs, &time, &mut skips);
        }
        xs.apply(&self.conv_norm_out).silu().apply(&self.conv_out)
    }
}

/// Cosines and sines of timesteps `[batch]` at `width / 2` frequencies, `[batch, width]` in f32 (f64 for
/// f64).
pub fn timestep_embedding(timesteps: &Tensor, width: i64) -> Tensor {
    let half = width / 2;
    let timesteps = upcast(timesteps);
    let kind = wide_kind(timesteps.kind());
    let exponents =
        Tensor::arange(half, (kind, timesteps.device())) * (-(10000f64.ln()) / half.max(1) as f64);
    let angles = timesteps.unsqueeze(1) * exponents.exp().unsqueeze(0);
    Tensor::cat(&[angles.cos(), angles.sin()], -1)
}

/// Two linear layers with SiLU between them over a [`timestep_embedding`].
#[derive(Debug)]
pub struct TimestepEmbedding {
    linear_1: nn::Linear,
    linear_2: nn::Linear,
}

impl TimestepEmbedding {
    /// Maps `[batch, inputs]` to `[batch, width]`.
    pub fn new(p: &nn::Path, inputs: i64, width: i64) -> Self {
        TimestepEmbedding {
            linear_1: layers::linear(p / "linear_1", inputs, width),
            linear_2: layers::linear(p / "linear_2", width, width),
        }
    }
}

impl Module for TimestepEmbedding {
    fn forward(&self, xs: &Tensor) -> Tensor {
        xs.apply(&self.linear_1).silu().apply(&self.linear_2)
    }
}

/// Group norm, SiLU and convolution, twice, with the time added between and the input added after.
#[derive(Debug)]
pub struct ResnetBlock {
    norm1: nn::GroupNorm,
    conv1: nn::Conv2D,
    time_emb_proj: nn::Linear,
    norm2: nn::GroupNorm,
    conv2: nn::Conv2D,
    conv_shortcut: Option<nn::Conv2D>,
}

impl ResnetBlock {
    /// A block from `inputs` to `outputs` channels.
    pub fn new(p: &nn::Path, cfg: &UNetConfig, inputs: i64, outputs: i64) -> Self {
        ResnetBlock {
            norm1: layers::group_norm(p / "norm1", cfg.groups, inputs, 1e-5),
            conv1: layers::conv2d(p / "conv1", inputs, outputs, 3, 1, 1),
            time_emb_proj: layers::linear(p / "time_emb_proj", cfg.time_width(), outputs),
            norm2: layers::group_norm(p / "norm2", cfg.groups, outputs, 1e-5),
            conv2: layers::conv2d(p / "conv2", outputs, outputs, 3, 1, 1),
            conv_shortcut: (inputs != outputs)
                .then(|| layers::conv2d(p / "conv_shortcut", inputs, outputs, 1, 1, 0)),
        }
    }

    /// Maps `[batch, inputs, height, width]` to `[batch, outputs, height, width]`, given the time's
    /// embedding.
    pub fn forward(&self, xs: &Tensor, time: &Tensor) -> Tensor {
        let hidden = xs.apply(&self.norm1).silu().apply(&self.conv1);
        let time = time.silu().apply(&self.time_emb_proj).unsqueeze(2).unsqueeze(3);
        let hidden = (hidden + time).apply(&self.norm2).silu().apply(&self.conv2);
        match &self.conv_shortcut {
            Some(shortcut) => xs.apply(shortcut) + hidden,
            None => xs + hidden,
        }
    }
}

/// Group norm and self attention over all positions, added to the input.
#[derive(Debug)]
pub struct AttentionBlock {
    group_norm: nn::GroupNorm,
    to_q: nn::Linear,
    to_k: nn::Linear,
    to_v: nn::Linear,
    to_out: nn::Linear,
    heads: i64,
    variant: Attention,
}

impl AttentionBlock {
    /// A block over `channels` channels.
    pub fn new(p: &nn::Path, cfg: &UNetConfig, channels: i64) -> Self {
        AttentionBlock {
            group_norm: layers::group_norm(p / "group_norm", cfg.groups, channels, 1e-5),
            to_q: layers::linear(p / "to_q", channels, channels),
            to_k: layers::linear(p / "to_k", channels, channels),
            to_v: layers::linear(p / "to_v", channels, channels),
            to_out: layers::linear(p / "to_out" / 0, channels, channels),
            heads: cfg.heads,
            variant: cfg.attention,
        }
    }
}

impl Module for AttentionBlock {
    fn forward(&self, xs: &Tensor) -> Tensor {
        let [batch, channels, height, width] = sizes(xs);
        let tokens = xs.apply(&self.group_norm).view([batch, channels, height * width]).transpose(1, 2);
        let heads = |linear| layers::split_heads(&tokens.apply(linear), self.heads);
        let (q, k, v) = (heads(&self.to_q), heads(&self.to_k), heads(&self.to_v));
        let ys = match self.variant {
            Attention::WrittenOut => written_out(&q, &k, &v),
            Attention::Sdpa => {
                Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, false, None, false)
            }
        };
        let ys = layers::merge_heads(&ys).apply(&self.to_out);
        ys.transpose(-1, -2).reshape([batch, channels, height, width]) + xs
    }
}

fn written_out(q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
    let [_, _, _, width] = sizes(q);
    let scores = q.matmul(&k.transpose(-1, -2)) * (1.0 / (width as f64).sqrt());
    scores.softmax(-1, None).matmul(v)
}

/// One level of the way down: residual blocks, attention where the level has it, and a strided convolution.
#[derive(Debug)]
pub struct DownBlock {
    layers: Vec<(ResnetBlock, Option<AttentionBlock>)>,
    downsample: Option<nn::Conv2D>,
}

impl DownBlock {
    /// A level from `inputs` to `width` channels, which halves the resolution where `downsample` says so.
    pub fn new(
        p: &nn::Path,
        cfg: &UNetConfig,
        inputs: i64,
        width: i64,
        attention: bool,
        downsample: bool,
    ) -> Self {
        let layer = |i: i64| level(p, cfg, i, [if i == 0 { inputs } else { width }, width], attention);
        let conv = || layers::conv2d(p / "downsamplers" / 0 / "conv", width, width, 3, 2, 1);
        DownBlock { layers: (0..cfg.layers).map(layer).collect(), downsample: downsample.then(conv) }
    }

    /// The level's output; what the way up will need is pushed on `skips`.
    pub fn forward(&self, xs: &Tensor, time: &Tensor, skips: &mut Vec<Tensor>) -> Tensor {
        let mut xs = xs.shallow_clone();
        for (resnet, attention) in &self.layers {
            xs = apply_level(resnet, attention.as_ref(), &xs, time);
            skips.push(xs.shallow_clone());
        }
        if let Some(conv) = &self.downsample {
            xs = xs.apply(conv);
            skips.push(xs.shallow_clone());
        }
        xs
    }
}

/// One level of the way up: residual blocks over the input and a skip, attention where the level has it, and
/// nearest-neighbour upsampling with a convolution.
#[derive(Debug)]
pub struct UpBlock {
    layers: Vec<(ResnetBlock, Option<AttentionBlock>)>,
    upsample: Option<nn::Conv2D>,
}

impl UpBlock {
    /// A level whose channels are, in `widths`, those of its input, of its output and own skips, and of its
    /// last skip. It doubles the resolution where `upsample` says so.
    pub fn new(p: &nn::Path, cfg: &UNetConfig, widths: [i64; 3], attention: bool, upsample: bool) -> Self {
        let [inputs, width, entry] = widths;
        let layer = |i: i64| {
            let skip = if i == cfg.layers { entry } else { width };
            let inputs = if i == 0 { inputs } else { width };
            level(p, cfg, i, [inputs + skip, width], attention)
        };
        let conv = || layers::conv2d(p / "upsamplers" / 0 / "conv", width, width, 3, 1, 1);
        UpBlock { layers: (0..=cfg.layers).map(layer).collect(), upsample: upsample.then(conv) }
    }

    /// The level's output; the skips that it uses are popped from `skips`.
    pub fn forward(&self, xs: &Tensor, time: &Tensor, skips: &mut Vec<Tensor>) -> Tensor {
        let mut xs = xs.shallow_clone();
        for (resnet, attention) in &self.layers {
            if let Some(skip) = skips.pop() {
                xs = Tensor::cat(&[xs, skip], 1);
            }
            xs = apply_level(resnet, attention.as_ref(), &xs, time);
        }
        match &self.upsample {
            Some(conv) => {
                let [_, _, height, width] = sizes(&xs);
                xs.upsample_nearest2d([2 * height, 2 * width], None, None).apply(conv)
            }
            None => xs,
        }
    }
}

fn level(
    p: &nn::Path,
    cfg: &UNetConfig,
    index: i64,
    [inputs, width]: [i64; 2],
    attention: bool,
) -> (ResnetBlock, Option<AttentionBlock>) {
    let resnet = ResnetBlock::new(&(p / "resnets" / index), cfg, inputs, width);
    (resnet, attention.then(|| AttentionBlock::new(&(p / "attentions" / index), cfg, width)))
}

fn apply_level(
    resnet: &ResnetBlock,
    attention: Option<&AttentionBlock>,
    xs: &Tensor,
    time: &Tensor,
) -> Tensor {
    let xs = resnet.forward(xs, time);
    attention.map_or_else(|| xs.shallow_clone(), |attention| xs.apply(attention))
}
