//! GPT-2, decoder with learned positions and a head tied to the token embedding.

use std::path::Path;

use tch::nn::{self, Module};
use tch::{Kind, Tensor};

use crate::Error;
use crate::layers::{self, Attention, merge_heads, sizes, split_heads};
use crate::weights::{self, Layout};

/// The sizes of a [`Gpt2`].
#[derive(Debug, Clone, PartialEq)]
pub struct Gpt2Config {
    /// Number of tokens in the vocabulary.
    pub vocab_size: i64,
    /// The longest sequence.
    pub positions: i64,
    /// Width of the residual stream; a multiple of `heads`.
    pub hidden: i64,
    /// Number of blocks.
    pub layers: i64,
    /// Attention heads of each block.
    pub heads: i64,
    /// Standard deviation of the weights; that of the projections into the residual stream is smaller by
    /// `sqrt(2 * layers)`.
    pub init_stdev: f64,
    /// How attention is computed.
    pub attention: Attention,
}

impl Gpt2Config {
    /// The 124 million parameters of `openai-community/gpt2`.
    pub fn small() -> Self {
        Gpt2Config {
            vocab_size: 50257,
            positions: 1024,
            hidden: 768,
            layers: 12,
            heads: 12,
            init_stdev: 0.02,
            attention: Attention::WrittenOut,
        }
    }

    /// Two blocks of width 32, for tests.
    pub fn tiny() -> Self {
        Gpt2Config {
            vocab_size: 97,
            positions: 24,
            hidden: 32,
            layers: 2,
            heads: 4,
            init_stdev: 0.2,
            ..Self::small()
        }
    }

    /// The same sizes with another way to compute attention.
    pub fn attention(self, attention: Attention) -> Self {
        Gpt2Config { attention, ..self }
    }
}

/// Maps token ids `i64[batch, tokens]` to logits `[batch, tokens, vocab_size]`.
///
/// Variables carry the Hugging Face names; the weights of `c_attn`, `c_proj` and `c_fc` are stored `[out,
/// in]`.
#[derive(Debug)]
pub struct Gpt2 {
    wte: nn::Embedding,
    wpe: nn::Embedding,
    blocks: Vec<Block>,
    ln_f: nn::LayerNorm,
}

/// Makes a [`Gpt2`] with random weights.
pub fn gpt2(p: &nn::Path, cfg: &Gpt2Config) -> Gpt2 {
    let p = p / "transformer";
    let future = p.add("future", layers::future_mask(cfg.positions, p.device()), false);
    Gpt2 {
        wte: layers::embedding(&p / "wte", cfg.vocab_size, cfg.hidden, cfg.init_stdev),
        wpe: layers::embedding(&p / "wpe", cfg.positions, cfg.hidden, cfg.init_stdev),
        blocks: (0..cfg.layers).map(|i| Block::new(&p / "h" / i, cfg, &future)).collect(),
        ln_f: layers::layer_norm(&p / "ln_f", cfg.hidden, 1e-5),
    }
}

impl Gpt2 {
    /// Reads weights with the names of `transformers.GPT2LMHeadModel` or `GPT2Model` into `vs`, in which the
    /// model was made at the root. `path` is a safetensors file or a folder of them.
    ///
    /// The head is the token embedding, so that a `lm_head.weight` in the file is not read. Where an error
    /// comes back, no variable has changed.
    pub fn load_hf(vs: &mut nn::VarStore, path: impl AsRef<Path>) -> Result<(), Error> {
        weights::load(vs, path.as_ref(), &HF)
    }
}

const HF: Layout = Layout {
    prefix: "transformer.",
    buffers: &["transformer.future"],
    ignored: &[".attn.bias", ".attn.masked_bias", "lm_head.weight"],
    transposed: &[".c_attn.weight", ".c_proj.weight", ".c_fc.weight"],
    renamed: &[],
    shared: &[],
};

impl Module for Gpt2 {
    fn forward(&self, ids: &Tensor) -> Tensor {
        let [_, tokens] = sizes(ids);
        let positions = Tensor::arange(tokens, (Kind::Int64, ids.device())).unsqueeze(0);
        let xs = ids.apply(&self.wte) + positions.apply(&self.wpe);
        let xs = self.blocks.iter().fold(xs, |xs, block| xs.apply(block));
        xs.apply(&self.ln_f).linear(&self.wte.ws, None::<&Tensor>)
    }
}

#[derive(Debug)]
struct Block {
    ln_1: nn::LayerNorm,
    attn: SelfAttention,
    ln_2: nn::LayerNorm,
    c_fc: nn::Linear,
    c_proj: nn::Linear,
}

impl Block {
    fn new(p: nn::Path, cfg: &Gpt2Config, future: &Tensor) -> Self {
        let mlp = &p / "mlp";
        Block {
            ln_1: layers::layer_norm(&p / "ln_1", cfg.hidden, 1e-5),
            attn: SelfAttention::new(&p / "attn", cfg, future),
            ln_2: layers::layer_norm(&p / "ln_2", cfg.hidden, 1e-5),
            c_fc: layers::linear_normal(&mlp / "c_fc", cfg.hidden, 4 * cfg.hidden, cfg.init_stdev),
            c_proj: layers::linear_normal(&mlp / "c_proj", 4 * cfg.hidden, cfg.hidden, residual_stdev(cfg)),
        }
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Tensor {
        let xs = xs + xs.apply(&self.ln_1).apply(&self.attn);
        let hidden = xs.apply(&self.ln_2).apply(&self.c_fc).gelu("tanh");
        xs + hidden.apply(&self.c_proj)
    }
}

fn residual_stdev(cfg: &Gpt2Config) -> f64 {
    cfg.init_stdev / (2.0 * cfg.layers.max(1) as f64).sqrt()
}

#[derive(Debug)]
struct SelfAttention {
    c_attn: nn::Linear,
    c_proj: nn::Linear,
    future: Tensor,
    heads: i64,
    variant: Attention,
}

impl SelfAttention {
    fn new(p: nn::Path, cfg: &Gpt2Config, future: &Tensor) -> Self {
        SelfAttention {
            c_attn: layers::linear_normal(&p / "c_attn", cfg.hidden, 3 * cfg.hidden, cfg.init_stdev),
            c_proj: layers::linear_normal(&p / "c_proj", cfg.hidden, cfg.hidden, residual_stdev(cfg)),
            future: future.shallow_clone(),
            heads: cfg.heads,
            variant: cfg.attention,
        }
    }

    fn written_out(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let [_, _, tokens, width] = sizes(q);
        let scores = q.matmul(&k.transpose(-2, -1)) * (1.0 / (width as f64).sqrt());
        let future = layers::as_bool(&self.future).narrow(2, 0, tokens).narrow(3, 0, tokens);
        scores.masked_fill(&future, f64::NEG_INFINITY).softmax(-1, None).matmul(v)
    }
}

impl Module for SelfAttention {
    fn forward(&self, xs: &Tensor) -> Tensor {
        let [_, _, hidden] = sizes(xs);
        let qkv = xs.apply(&self.c_attn).split(hidden, 2);
        let heads = |i: i64| split_heads(&qkv[i as usize], self.heads);
        let (q, k, v) = (heads(0), heads(1), heads(2));
        let ys = match self.variant {
            Attention::WrittenOut => self.written_out(&q, &k, &v),
            Attention::Sdpa => {
                Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, true, None, false)
            }
        };
        merge_heads(&ys).apply(&self.c_proj)
    }
}
