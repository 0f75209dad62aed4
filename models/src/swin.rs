//! Swin transformer with the variable names of torchvision.

use tch::nn::{self, ModuleT};
use tch::{Device, Kind, Tensor};

use crate::layers::{self, FeedForward, normal, sizes};
use crate::vit::patches;

/// The sizes of a [`Swin`].
#[derive(Debug, Clone, PartialEq)]
pub struct SwinConfig {
    /// Height and width of a patch.
    pub patch: i64,
    /// Channels of the first stage; each further one has twice as many.
    pub hidden: i64,
    /// Blocks of each stage.
    pub depths: Vec<i64>,
    /// Attention heads of each stage's blocks.
    pub heads: Vec<i64>,
    /// Height and width of a window of patches, within which attention is computed.
    pub window: i64,
    /// Width of the output.
    pub classes: i64,
}

impl SwinConfig {
    /// Swin-T for 1000 classes.
    pub fn tiny_224() -> Self {
        SwinConfig {
            patch: 4,
            hidden: 96,
            depths: vec![2, 2, 6, 2],
            heads: vec![3, 6, 12, 24],
            window: 7,
            classes: 1000,
        }
    }

    /// Two stages of two blocks of width 16, for tests.
    pub fn tiny() -> Self {
        SwinConfig {
            hidden: 16,
            depths: vec![2, 2],
            heads: vec![2, 4],
            window: 3,
            classes: 10,
            ..Self::tiny_224()
        }
    }
}

/// Maps images `[batch, 3, height, width]` to logits `[batch, classes]`.
#[derive(Debug)]
pub struct Swin {
    patches: nn::Conv2D,
    embedding_norm: nn::LayerNorm,
    stages: Vec<Stage>,
    norm: nn::LayerNorm,
    head: nn::Linear,
}

/// Makes a [`Swin`] with random weights.
pub fn swin(p: &nn::Path, cfg: &SwinConfig) -> Swin {
    let features = p / "features";
    let mut stages = Vec::new();
    let mut width = cfg.hidden;
    for (at, (&depth, &heads)) in cfg.depths.iter().zip(&cfg.heads).enumerate() {
        let merging = (at > 0).then(|| PatchMerging::new(&features / (2 * at), width / 2));
        let stage = &features / (2 * at + 1);
        let block =
            |i: i64| SwinBlock::new(&stage / i, (width, heads), (cfg.window, i % 2 * (cfg.window / 2)));
        stages.push(Stage { merging, blocks: (0..depth).map(block).collect() });
        width *= 2;
    }
    let embedding = &features / 0;
    Swin {
        patches: patches(&embedding / 0, cfg.patch, cfg.hidden),
        embedding_norm: layers::layer_norm(&embedding / 2, cfg.hidden, 1e-5),
        stages,
        norm: layers::layer_norm(p / "norm", width / 2, 1e-5),
        head: layers::linear_normal(p / "head", width / 2, cfg.classes, 0.02),
    }
}

impl ModuleT for Swin {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let xs = xs.apply(&self.patches).permute([0, 2, 3, 1]).apply(&self.embedding_norm);
        let xs = self.stages.iter().fold(xs, |xs, stage| xs.apply_t(stage, train));
        let xs = xs.apply(&self.norm).permute([0, 3, 1, 2]);
        xs.adaptive_avg_pool2d([1, 1]).flatten(1, -1).apply(&self.head)
    }
}

#[derive(Debug)]
struct Stage {
    merging: Option<PatchMerging>,
    blocks: Vec<SwinBlock>,
}

impl ModuleT for Stage {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let xs =
            self.merging.as_ref().map_or_else(|| xs.shallow_clone(), |merging| xs.apply_t(merging, train));
        self.blocks.iter().fold(xs, |xs, block| xs.apply_t(block, train))
    }
}

/// Four neighbours `[.., height, width, channels]` become one of twice the channels.
#[derive(Debug)]
struct PatchMerging {
    norm: nn::LayerNorm,
    reduction: nn::Linear,
}

impl PatchMerging {
    fn new(p: nn::Path, channels: i64) -> Self {
        let config = nn::LinearConfig { ws_init: normal(0.02), bs_init: None, bias: false };
        PatchMerging {
            norm: layers::layer_norm(&p / "norm", 4 * channels, 1e-5),
            reduction: nn::linear(&p / "reduction", 4 * channels, 2 * channels, config),
        }
    }
}

impl ModuleT for PatchMerging {
    fn forward_t(&self, xs: &Tensor, _train: bool) -> Tensor {
        let [_, height, width, _] = sizes(xs);
        let xs = xs.constant_pad_nd([0, 0, 0, width % 2, 0, height % 2]);
        let every_second = |from: [i64; 2]| xs.slice(1, from[0], None, 2).slice(2, from[1], None, 2);
        let parts = [[0, 0], [1, 0], [0, 1], [1, 1]].map(every_second);
        Tensor::cat(&parts, -1).apply(&self.norm).apply(&self.reduction)
    }
}

#[derive(Debug)]
struct SwinBlock {
    norm1: nn::LayerNorm,
    attention: WindowAttention,
    norm2: nn::LayerNorm,
    mlp: FeedForward,
}

impl SwinBlock {
    fn new(p: nn::Path, (width, heads): (i64, i64), window: (i64, i64)) -> Self {
        let mlp = &p / "mlp";
        SwinBlock {
            norm1: layers::layer_norm(&p / "norm1", width, 1e-5),
            attention: WindowAttention::new(&p / "attn", (width, heads), window),
            norm2: layers::layer_norm(&p / "norm2", width, 1e-5),
            mlp: FeedForward::new(&mlp / 0, &mlp / 3, width, 4 * width),
        }
    }
}

impl ModuleT for SwinBlock {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let xs = xs + xs.apply(&self.norm1).apply_t(&self.attention, train);
        &xs + xs.apply(&self.norm2).apply(&self.mlp)
    }
}

/// Attention within windows, which in every second block are shifted by half a window.
#[derive(Debug)]
struct WindowAttention {
    qkv: nn::Linear,
    proj: nn::Linear,
    bias_table: Tensor,
    bias_index: Tensor,
    heads: i64,
    window: i64,
    shift: i64,
}

impl WindowAttention {
    fn new(p: nn::Path, (width, heads): (i64, i64), (window, shift): (i64, i64)) -> Self {
        let offsets = 2 * window - 1;
        WindowAttention {
            qkv: layers::linear_normal(&p / "qkv", width, 3 * width, 0.02),
            proj: layers::linear_normal(&p / "proj", width, width, 0.02),
            bias_table: p.var("relative_position_bias_table", &[offsets * offsets, heads], normal(0.02)),
            bias_index: p.add("relative_position_index", position_index(window, p.device()), false),
            heads,
            window,
            shift,
        }
    }

    /// The bias of each pair of positions of a window, `[1, heads, positions, positions]`.
    fn bias(&self) -> Tensor {
        let positions = self.window * self.window;
        let index = self.bias_index.to_kind(Kind::Int64);
        let bias = self.bias_table.index_select(0, &index).view([positions, positions, self.heads]);
        bias.permute([2, 0, 1]).contiguous().unsqueeze(0)
    }

    /// What keeps positions apart that a shift has brought into one window, `[windows, positions, positions]`.
    fn mask(&self, like: &Tensor, [height, width]: [i64; 2], [down, right]: [i64; 2]) -> Tensor {
        let mask = like.new_zeros([height, width], (like.kind(), like.device()));
        let parts = |size: i64, shift: i64| match shift {
            0 => vec![(0, size)],
            _ => vec![(0, size - self.window), (size - self.window, size - shift), (size - shift, size)],
        };
        let mut region = 0;
        for (top, bottom) in parts(height, down) {
            for &(left, end) in &parts(width, right) {
                let _ = mask.slice(0, top, bottom, 1).slice(1, left, end, 1).fill_(region);
                region += 1;
            }
        }
        let side = self.window;
        let mask = mask.view([height / side, side, width / side, side]).permute([0, 2, 1, 3]);
        let mask = mask.reshape([-1, side * side]);
        let apart = mask.unsqueeze(1) - mask.unsqueeze(2);
        apart.masked_fill(&apart.ne(0), -100.0).masked_fill(&apart.eq(0), 0.0)
    }
}

/// Which of the offsets from one position to another each pair of positions of a window has, in order.
fn position_index(window: i64, device: Device) -> Tensor {
    let at = |i: i64| (i / window, i % window);
    let positions = window * window;
    let pair = |pair: i64| {
        let ((y, x), (v, u)) = (at(pair / positions), at(pair % positions));
        (y - v + window - 1) * (2 * window - 1) + x - u + window - 1
    };
    Tensor::from_slice(&(0..positions * positions).map(pair).collect::<Vec<_>>()).to_device(device)
}

impl ModuleT for WindowAttention {
    fn forward_t(&self, xs: &Tensor, _train: bool) -> Tensor {
        let [batch, height, width, channels] = sizes(xs);
        let side = self.window;
        let fill = |size: i64| (side - size % side) % side;
        let xs = xs.constant_pad_nd([0, 0, 0, fill(width), 0, fill(height)]);
        let [_, tall, wide, _] = sizes(&xs);
        // One window along a dimension has nothing to be shifted into.
        let shift = [tall, wide].map(|size| if side >= size { 0 } else { self.shift });
        let is_shifted = shift.iter().sum::<i64>() > 0;
        let xs = if is_shifted { xs.roll(shift.map(|by| -by), [1, 2]) } else { xs };
        let (rows, columns, positions) = (tall / side, wide / side, side * side);
        let xs = xs.view([batch, rows, side, columns, side, channels]).permute([0, 1, 3, 2, 4, 5]);
        let xs = xs.reshape([batch * rows * columns, positions, channels]);

        let windows = batch * rows * columns;
        let qkv = xs.apply(&self.qkv).reshape([windows, positions, 3, self.heads, channels / self.heads]);
        let qkv = qkv.permute([2, 0, 3, 1, 4]);
        let (q, k, v) = (qkv.select(0, 0), qkv.select(0, 1), qkv.select(0, 2));
        let q = q * (1.0 / ((channels / self.heads) as f64).sqrt());
        let mut scores = q.matmul(&k.transpose(-2, -1)) + self.bias();
        if is_shifted {
            let mask = self.mask(&xs, [tall, wide], shift).unsqueeze(1).unsqueeze(0);
            let apart = scores.view([batch, rows * columns, self.heads, positions, positions]) + mask;
            scores = apart.view([-1, self.heads, positions, positions]);
        }
        let ys = scores.softmax(-1, None).matmul(&v).transpose(1, 2).reshape([windows, positions, channels]);

        let ys = ys.apply(&self.proj).view([batch, rows, columns, side, side, channels]);
        let ys = ys.permute([0, 1, 3, 2, 4, 5]).reshape([batch, tall, wide, channels]);
        let ys = if is_shifted { ys.roll(shift, [1, 2]) } else { ys };
        ys.slice(1, 0, height, 1).slice(2, 0, width, 1).contiguous()
    }
}
