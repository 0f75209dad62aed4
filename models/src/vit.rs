//! Vision transformer with the variable names of torchvision.

use tch::Tensor;
use tch::nn::{self, Init, ModuleT};

use crate::layers::{self, Attention, FeedForward, normal, sizes};

/// The sizes of a [`Vit`].
#[derive(Debug, Clone, PartialEq)]
pub struct VitConfig {
    /// Height and width of the images; a multiple of `patch`.
    pub image: i64,
    /// Height and width of a patch.
    pub patch: i64,
    /// Width of the residual stream; a multiple of `heads`.
    pub hidden: i64,
    /// Width inside the feed-forward network.
    pub mlp: i64,
    /// Number of blocks.
    pub layers: i64,
    /// Attention heads of each block.
    pub heads: i64,
    /// Width of the output.
    pub classes: i64,
    /// Probability with which training drops an activation.
    pub dropout: f64,
    /// How attention is computed.
    pub attention: Attention,
}

impl VitConfig {
    /// ViT-B/16 for images of 224×224 and 1000 classes.
    pub fn b_16() -> Self {
        VitConfig {
            image: 224,
            patch: 16,
            hidden: 768,
            mlp: 3072,
            layers: 12,
            heads: 12,
            classes: 1000,
            dropout: 0.0,
            attention: Attention::WrittenOut,
        }
    }

    /// Two blocks of width 32 for images of 32×32, for tests.
    pub fn tiny() -> Self {
        VitConfig {
            image: 32,
            patch: 8,
            hidden: 32,
            mlp: 64,
            layers: 2,
            heads: 4,
            classes: 10,
            ..Self::b_16()
        }
    }

    /// The same sizes with another way to compute attention.
    pub fn attention(self, attention: Attention) -> Self {
        VitConfig { attention, ..self }
    }
}

/// Maps images `[batch, 3, image, image]` to logits `[batch, classes]`.
#[derive(Debug)]
pub struct Vit {
    conv_proj: nn::Conv2D,
    class_token: Tensor,
    pos_embedding: Tensor,
    layers: Vec<EncoderLayer>,
    ln: nn::LayerNorm,
    head: nn::Linear,
    dropout: f64,
}

/// Makes a [`Vit`] with random weights.
pub fn vit(p: &nn::Path, cfg: &VitConfig) -> Vit {
    let encoder = p / "encoder";
    let side = cfg.image / cfg.patch;
    let layer = |i: i64| EncoderLayer::new(&encoder / "layers" / format!("encoder_layer_{i}"), cfg);
    Vit {
        conv_proj: patches(p / "conv_proj", cfg.patch, cfg.hidden),
        class_token: p.var("class_token", &[1, 1, cfg.hidden], Init::Const(0.0)),
        pos_embedding: encoder.var("pos_embedding", &[1, side * side + 1, cfg.hidden], normal(0.02)),
        layers: (0..cfg.layers).map(layer).collect(),
        ln: layers::layer_norm(&encoder / "ln", cfg.hidden, 1e-6),
        head: layers::linear_normal(p / "heads" / "head", cfg.hidden, cfg.classes, 0.02),
        dropout: cfg.dropout,
    }
}

/// The convolution that embeds non-overlapping patches.
pub(crate) fn patches(p: nn::Path, patch: i64, hidden: i64) -> nn::Conv2D {
    let stdev = (1.0 / (3 * patch * patch) as f64).sqrt();
    let ws_init = normal(stdev);
    nn::conv2d(p, 3, hidden, patch, nn::ConvConfig { stride: patch, ws_init, ..Default::default() })
}

impl ModuleT for Vit {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let [batch, ..] = sizes::<4>(xs);
        let tokens = xs.apply(&self.conv_proj).flatten(2, 3).permute([0, 2, 1]);
        let class_token = self.class_token.expand([batch, -1, -1], false);
        let xs = Tensor::cat(&[class_token, tokens], 1) + &self.pos_embedding;
        let xs = xs.dropout(self.dropout, train);
        let xs = self.layers.iter().fold(xs, |xs, layer| xs.apply_t(layer, train));
        xs.apply(&self.ln).select(1, 0).apply(&self.head)
    }
}

#[derive(Debug)]
struct EncoderLayer {
    ln_1: nn::LayerNorm,
    attention: SelfAttention,
    ln_2: nn::LayerNorm,
    mlp: FeedForward,
    dropout: f64,
}

impl EncoderLayer {
    fn new(p: nn::Path, cfg: &VitConfig) -> Self {
        let mlp = &p / "mlp";
        EncoderLayer {
            ln_1: layers::layer_norm(&p / "ln_1", cfg.hidden, 1e-6),
            attention: SelfAttention::new(&p / "self_attention", cfg),
            ln_2: layers::layer_norm(&p / "ln_2", cfg.hidden, 1e-6),
            mlp: FeedForward::new(&mlp / 0, &mlp / 3, cfg.hidden, cfg.mlp),
            dropout: cfg.dropout,
        }
    }
}

impl ModuleT for EncoderLayer {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let ys = xs.apply(&self.ln_1).apply_t(&self.attention, train).dropout(self.dropout, train);
        let xs = xs + ys;
        let ys = xs.apply(&self.ln_2).apply(&self.mlp).dropout(self.dropout, train);
        xs + ys
    }
}

/// `nn.MultiheadAttention` of a sequence with itself.
#[derive(Debug)]
struct SelfAttention {
    in_proj_weight: Tensor,
    in_proj_bias: Tensor,
    out_proj: nn::Linear,
    heads: i64,
    variant: Attention,
}

impl SelfAttention {
    fn new(p: nn::Path, cfg: &VitConfig) -> Self {
        let hidden = cfg.hidden;
        SelfAttention {
            in_proj_weight: p.var(
                "in_proj_weight",
                &[3 * hidden, hidden],
                layers::xavier_uniform(hidden, 3 * hidden),
            ),
            in_proj_bias: p.var("in_proj_bias", &[3 * hidden], Init::Const(0.0)),
            out_proj: layers::linear(&p / "out_proj", hidden, hidden),
            heads: cfg.heads,
            variant: cfg.attention,
        }
    }

    /// Queries, keys and values as one `[3, batch, heads, tokens, width]`.
    fn project(&self, xs: &Tensor) -> Tensor {
        let [batch, tokens, hidden] = sizes(xs);
        let qkv = xs.linear(&self.in_proj_weight, Some(&self.in_proj_bias));
        qkv.reshape([batch, tokens, 3, self.heads, hidden / self.heads]).permute([2, 0, 3, 1, 4])
    }
}

impl ModuleT for SelfAttention {
    fn forward_t(&self, xs: &Tensor, _train: bool) -> Tensor {
        let [batch, tokens, hidden] = sizes(xs);
        let qkv = self.project(xs);
        let (q, k, v) = (qkv.select(0, 0), qkv.select(0, 1), qkv.select(0, 2));
        let ys = match self.variant {
            Attention::WrittenOut => written_out(&q, &k, &v),
            Attention::Sdpa => {
                Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, false, None, false)
            }
        };
        ys.transpose(1, 2).reshape([batch, tokens, hidden]).apply(&self.out_proj)
    }
}

fn written_out(q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
    let [_, _, _, width] = sizes(q);
    let q = q * (1.0 / (width as f64).sqrt());
    q.matmul(&k.transpose(-2, -1)).softmax(-1, None).matmul(v)
}
