//! A Llama-style decoder: RMS norm, rotary embedding, SwiGLU, grouped-query attention.

use std::path::Path;

use tch::nn::{self, Module};
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::layers::{self, Attention, merge_heads, sizes, split_heads, upcast, wide_kind};
use crate::weights::{self, Layout};

/// The sizes of a [`Llama`].
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    /// Number of tokens in the vocabulary.
    pub vocab_size: i64,
    /// The longest sequence.
    pub positions: i64,
    /// Width of the residual stream; a multiple of `heads`.
    pub hidden: i64,
    /// Width inside the feed-forward network.
    pub intermediate: i64,
    /// Number of blocks.
    pub layers: i64,
    /// Query heads of each block; a multiple of `kv_heads`.
    pub heads: i64,
    /// Key and value heads of each block.
    pub kv_heads: i64,
    /// Added to the mean square in RMS norms.
    pub norm_eps: f64,
    /// Base of the rotary frequencies, which are not scaled further.
    pub rope_theta: f64,
    /// Whether the head is the token embedding.
    pub tied_head: bool,
    /// Standard deviation of the weights.
    pub init_stdev: f64,
    /// How attention is computed.
    pub attention: Attention,
}

impl LlamaConfig {
    /// 124 million parameters, for a CPU.
    pub fn small() -> Self {
        LlamaConfig {
            vocab_size: 32000,
            positions: 2048,
            hidden: 768,
            intermediate: 2048,
            layers: 12,
            heads: 12,
            kv_heads: 4,
            norm_eps: 1e-5,
            rope_theta: 10000.0,
            tied_head: false,
            init_stdev: 0.02,
            attention: Attention::WrittenOut,
        }
    }

    /// 1.1 billion parameters, the sizes of TinyLlama.
    pub fn llama1b() -> Self {
        LlamaConfig { hidden: 2048, intermediate: 5632, layers: 22, heads: 32, kv_heads: 4, ..Self::small() }
    }

    /// Two blocks of width 32, for tests.
    pub fn tiny() -> Self {
        LlamaConfig {
            vocab_size: 97,
            positions: 24,
            hidden: 32,
            intermediate: 56,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            init_stdev: 0.2,
            ..Self::small()
        }
    }

    /// The same sizes with another way to compute attention.
    pub fn attention(self, attention: Attention) -> Self {
        LlamaConfig { attention, ..self }
    }
}

/// Maps token ids `i64[batch, tokens]` to logits `[batch, tokens, vocab_size]`.
///
/// Variables carry the Hugging Face names; the rotary tables are `model.rotary_emb.cos` and `.sin`.
#[derive(Debug)]
pub struct Llama {
    embed_tokens: nn::Embedding,
    rotary: Rotary,
    blocks: Vec<Block>,
    norm: RmsNorm,
    lm_head: Option<nn::Linear>,
}

/// Makes a [`Llama`] with random weights.
pub fn llama(p: &nn::Path, cfg: &LlamaConfig) -> Llama {
    let model = p / "model";
    let head = || layers::linear_no_bias(p / "lm_head", cfg.hidden, cfg.vocab_size, cfg.init_stdev);
    Llama {
        embed_tokens: layers::embedding(&model / "embed_tokens", cfg.vocab_size, cfg.hidden, cfg.init_stdev),
        rotary: Rotary::new(&model / "rotary_emb", cfg),
        blocks: (0..cfg.layers).map(|i| Block::new(&model / "layers" / i, cfg)).collect(),
        norm: rms_norm(&(&model / "norm"), cfg.hidden, cfg.norm_eps),
        lm_head: (!cfg.tied_head).then(head),
    }
}

impl Llama {
    /// Reads weights with the names of `transformers.LlamaForCausalLM` or `LlamaModel` into `vs`, in which
    /// the model was made at the root. `path` is a safetensors file or a folder of them.
    ///
    /// A head that is missing from the file is the token embedding. Where an error comes back, no variable
    /// has changed.
    pub fn load_hf(vs: &mut nn::VarStore, path: impl AsRef<Path>) -> Result<(), Error> {
        weights::load(vs, path.as_ref(), &HF)
    }
}

const HF: Layout = Layout {
    prefix: "model.",
    buffers: &["model.rotary_emb.cos", "model.rotary_emb.sin"],
    ignored: &["rotary_emb.inv_freq", "lm_head.weight"],
    transposed: &[],
    renamed: &[],
    shared: &[("lm_head.weight", "model.embed_tokens.weight")],
};

impl Module for Llama {
    fn forward(&self, ids: &Tensor) -> Tensor {
        let [_, tokens] = sizes(ids);
        let xs = ids.apply(&self.embed_tokens);
        let (cos, sin) = self.rotary.tables(tokens);
        let xs = self.blocks.iter().fold(xs, |xs, block| block.forward(&xs, &cos, &sin));
        let xs = xs.apply(&self.norm);
        match &self.lm_head {
            Some(head) => xs.apply(head),
            None => xs.linear(&self.embed_tokens.ws, None::<&Tensor>),
        }
    }
}

/// Root-mean-square norm over the last dimension, computed in f32 and cast back.
#[derive(Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f64,
}

/// Makes an [`RmsNorm`] with weight 1.
pub fn rms_norm(p: &nn::Path, width: i64, eps: f64) -> RmsNorm {
    RmsNorm { weight: p.ones("weight", &[width]), eps }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Tensor {
        let wide = upcast(xs);
        let variance = wide.pow_tensor_scalar(2).mean_dim([-1i64].as_slice(), true, None);
        let normed = wide * (variance + self.eps).rsqrt();
        &self.weight * normed.to_kind(xs.kind())
    }
}

/// Cosines and sines `[positions, head width]` of the rotary embedding; both halves of a row are equal.
#[derive(Debug)]
struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    fn new(p: nn::Path, cfg: &LlamaConfig) -> Self {
        let width = cfg.hidden / cfg.heads;
        let options = (Kind::Double, Device::Cpu);
        let exponents = Tensor::arange_start_step(0, width, 2, options) / width as f64;
        let inv_freq = (exponents * -cfg.rope_theta.ln()).exp();
        let angles = Tensor::arange(cfg.positions, options).outer(&inv_freq);
        let angles = Tensor::cat(&[&angles, &angles], -1);
        let buffer = |name, table: Tensor| p.add(name, table.to_kind(p.kind()).to_device(p.device()), false);
        Rotary { cos: buffer("cos", angles.cos()), sin: buffer("sin", angles.sin()) }
    }

    fn tables(&self, tokens: i64) -> (Tensor, Tensor) {
        (self.cos.narrow(0, 0, tokens), self.sin.narrow(0, 0, tokens))
    }
}

fn rotate_half(xs: &Tensor) -> Tensor {
    let half = sizes::<4>(xs)[3] / 2;
    let (x1, x2) = (xs.slice(-1, None, half, 1), xs.slice(-1, half, None, 1));
    Tensor::cat(&[-x2, x1], -1)
}

fn apply_rotary(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
    xs * cos + rotate_half(xs) * sin
}

/// `[batch, kv_heads, tokens, width]` to `[batch, kv_heads * times, tokens, width]`.
fn repeat_kv(xs: &Tensor, times: i64) -> Tensor {
    let [batch, heads, tokens, width] = sizes(xs);
    let expanded = xs.unsqueeze(2).expand([batch, heads, times, tokens, width], false);
    expanded.reshape([batch, heads * times, tokens, width])
}

#[derive(Debug)]
struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: SwiGlu,
}

impl Block {
    fn new(p: nn::Path, cfg: &LlamaConfig) -> Self {
        let norm = |name| rms_norm(&(&p / name), cfg.hidden, cfg.norm_eps);
        Block {
            input_layernorm: norm("input_layernorm"),
            self_attn: SelfAttention::new(&p / "self_attn", cfg),
            post_attention_layernorm: norm("post_attention_layernorm"),
            mlp: SwiGlu::new(&p / "mlp", cfg),
        }
    }

    fn forward(&self, xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
        let xs = xs + self.self_attn.forward(&xs.apply(&self.input_layernorm), cos, sin);
        let ys = xs.apply(&self.post_attention_layernorm).apply(&self.mlp);
        xs + ys
    }
}

#[derive(Debug)]
struct SwiGlu {
    gate_proj: nn::Linear,
    up_proj: nn::Linear,
    down_proj: nn::Linear,
}

impl SwiGlu {
    fn new(p: nn::Path, cfg: &LlamaConfig) -> Self {
        let linear =
            |name, inputs, outputs| layers::linear_no_bias(&p / name, inputs, outputs, cfg.init_stdev);
        SwiGlu {
            gate_proj: linear("gate_proj", cfg.hidden, cfg.intermediate),
            up_proj: linear("up_proj", cfg.hidden, cfg.intermediate),
            down_proj: linear("down_proj", cfg.intermediate, cfg.hidden),
        }
    }
}

impl Module for SwiGlu {
    fn forward(&self, xs: &Tensor) -> Tensor {
        (xs.apply(&self.gate_proj).silu() * xs.apply(&self.up_proj)).apply(&self.down_proj)
    }
}

#[derive(Debug)]
struct SelfAttention {
    q_proj: nn::Linear,
    k_proj: nn::Linear,
    v_proj: nn::Linear,
    o_proj: nn::Linear,
    heads: i64,
    kv_heads: i64,
    variant: Attention,
}

impl SelfAttention {
    fn new(p: nn::Path, cfg: &LlamaConfig) -> Self {
        let kv_width = cfg.hidden / cfg.heads * cfg.kv_heads;
        let linear = |name, outputs| layers::linear_no_bias(&p / name, cfg.hidden, outputs, cfg.init_stdev);
        SelfAttention {
            q_proj: linear("q_proj", cfg.hidden),
            k_proj: linear("k_proj", kv_width),
            v_proj: linear("v_proj", kv_width),
            o_proj: linear("o_proj", cfg.hidden),
            heads: cfg.heads,
            kv_heads: cfg.kv_heads,
            variant: cfg.attention,
        }
    }

    fn forward(&self, xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
        let q = apply_rotary(&split_heads(&xs.apply(&self.q_proj), self.heads), cos, sin);
        let k = apply_rotary(&split_heads(&xs.apply(&self.k_proj), self.kv_heads), cos, sin);
        let v = split_heads(&xs.apply(&self.v_proj), self.kv_heads);
        let times = self.heads / self.kv_heads;
        let (k, v) = (repeat_kv(&k, times), repeat_kv(&v, times));
        let ys = match self.variant {
            Attention::WrittenOut => written_out(&q, &k, &v),
            Attention::Sdpa => {
                Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, true, None, false)
            }
        };
        merge_heads(&ys).apply(&self.o_proj)
    }
}

fn written_out(q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
    let [_, _, tokens, width] = sizes(q);
    let kind = q.kind();
    let mask = Tensor::full([tokens, tokens], layers::lowest(kind), (kind, q.device())).triu(1);
    let scores = q.matmul(&k.transpose(2, 3)) * (1.0 / (width as f64).sqrt()) + mask;
    scores.softmax(-1, wide_kind(kind)).to_kind(kind).matmul(v)
}
