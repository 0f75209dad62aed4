//! BERT, encoder with token types and an optional attention mask.

use std::path::Path;

use tch::nn::{self, ModuleT};
use tch::{Kind, Tensor};

use crate::Error;
use crate::layers::{self, Attention, lowest, merge_heads, sizes, split_heads};
use crate::weights::{self, Layout};

/// The sizes of a [`Bert`].
#[derive(Debug, Clone, PartialEq)]
pub struct BertConfig {
    /// Number of tokens in the vocabulary.
    pub vocab_size: i64,
    /// The longest sequence.
    pub positions: i64,
    /// Number of token types.
    pub token_types: i64,
    /// Width of the residual stream; a multiple of `heads`.
    pub hidden: i64,
    /// Width inside the feed-forward network.
    pub intermediate: i64,
    /// Number of blocks.
    pub layers: i64,
    /// Attention heads of each block.
    pub heads: i64,
    /// Probability with which training drops an activation.
    pub dropout: f64,
    /// Whether the model has a pooler over the first token.
    pub pooler: bool,
    /// Standard deviation of the weights.
    pub init_stdev: f64,
    /// How attention is computed.
    pub attention: Attention,
}

impl BertConfig {
    /// The 110 million parameters of `google-bert/bert-base-uncased`, with its pooler.
    pub fn base() -> Self {
        BertConfig {
            vocab_size: 30522,
            positions: 512,
            token_types: 2,
            hidden: 768,
            intermediate: 3072,
            layers: 12,
            heads: 12,
            dropout: 0.1,
            pooler: true,
            init_stdev: 0.02,
            attention: Attention::WrittenOut,
        }
    }

    /// Two blocks of width 32, for tests.
    pub fn tiny() -> Self {
        BertConfig {
            vocab_size: 97,
            positions: 24,
            hidden: 32,
            intermediate: 64,
            layers: 2,
            heads: 4,
            init_stdev: 0.2,
            ..Self::base()
        }
    }

    /// The same sizes with another way to compute attention.
    pub fn attention(self, attention: Attention) -> Self {
        BertConfig { attention, ..self }
    }
}

/// An encoder of token ids. Variables carry the Hugging Face names, without the prefix `bert.`.
#[derive(Debug)]
pub struct Bert {
    embeddings: Embeddings,
    layers: Vec<Layer>,
    pooler: Option<nn::Linear>,
}

/// What [`Bert::encode`] returns.
#[derive(Debug)]
pub struct BertOutput {
    /// The last hidden state, `[batch, tokens, hidden]`.
    pub hidden: Tensor,
    /// The pooler's output, `[batch, hidden]`, where the model has a pooler.
    pub pooled: Option<Tensor>,
}

/// Makes a [`Bert`] with random weights.
pub fn bert(p: &nn::Path, cfg: &BertConfig) -> Bert {
    let encoder = p / "encoder" / "layer";
    let pooler = || layers::linear_normal(p / "pooler" / "dense", cfg.hidden, cfg.hidden, cfg.init_stdev);
    Bert {
        embeddings: Embeddings::new(p / "embeddings", cfg),
        layers: (0..cfg.layers).map(|i| Layer::new(&encoder / i, cfg)).collect(),
        pooler: cfg.pooler.then(pooler),
    }
}

impl Bert {
    /// Encodes `ids: i64[batch, tokens]`. `token_types: i64[batch, tokens]` are zeros where absent; positions
    /// at which `mask: [batch, tokens]` is 0 are not attended to.
    pub fn encode(
        &self,
        ids: &Tensor,
        token_types: Option<&Tensor>,
        mask: Option<&Tensor>,
        train: bool,
    ) -> BertOutput {
        let xs = self.embeddings.forward(ids, token_types, train);
        let bias = mask.map(|mask| additive_mask(mask, xs.kind()));
        let hidden = self.layers.iter().fold(xs, |xs, layer| layer.forward(&xs, bias.as_ref(), train));
        let pooled = self.pooler.as_ref().map(|pooler| hidden.select(1, 0).apply(pooler).tanh());
        BertOutput { hidden, pooled }
    }

    /// Reads weights with the names of `transformers.BertModel`, or of a model with a head on top of it, into
    /// `vs`, in which the model was made at the root. `path` is a safetensors file or a folder of them.
    ///
    /// Heads (`cls.`, `classifier.`, `qa_outputs.`) are not read, nor is a pooler that the model lacks. Where
    /// an error comes back, no variable has changed.
    pub fn load_hf(vs: &mut nn::VarStore, path: impl AsRef<Path>) -> Result<(), Error> {
        weights::load(vs, path.as_ref(), &HF)
    }
}

const HF: Layout = Layout {
    prefix: "bert.",
    buffers: &[],
    ignored: &[
        "embeddings.position_ids",
        "embeddings.token_type_ids",
        "cls.",
        "classifier.",
        "qa_outputs.",
        "pooler.",
    ],
    transposed: &[],
    renamed: &[(".gamma", ".weight"), (".beta", ".bias")],
    shared: &[],
};

impl ModuleT for Bert {
    /// The last hidden state of token ids, with token types 0 and no mask.
    fn forward_t(&self, ids: &Tensor, train: bool) -> Tensor {
        self.encode(ids, None, None, train).hidden
    }
}

/// `[batch, tokens]` of 0 and 1 to `[batch, 1, 1, tokens]` of the lowest value and 0.
fn additive_mask(mask: &Tensor, kind: Kind) -> Tensor {
    let mask = mask.unsqueeze(1).unsqueeze(2).to_kind(kind);
    (1.0 - mask) * lowest(kind)
}

#[derive(Debug)]
struct Embeddings {
    word: nn::Embedding,
    position: nn::Embedding,
    token_type: nn::Embedding,
    norm: nn::LayerNorm,
    dropout: f64,
}

impl Embeddings {
    fn new(p: nn::Path, cfg: &BertConfig) -> Self {
        let table = |name, rows| layers::embedding(&p / name, rows, cfg.hidden, cfg.init_stdev);
        Embeddings {
            word: table("word_embeddings", cfg.vocab_size),
            position: table("position_embeddings", cfg.positions),
            token_type: table("token_type_embeddings", cfg.token_types),
            norm: layers::layer_norm(&p / "LayerNorm", cfg.hidden, 1e-12),
            dropout: cfg.dropout,
        }
    }

    fn forward(&self, ids: &Tensor, token_types: Option<&Tensor>, train: bool) -> Tensor {
        let [_, tokens] = sizes(ids);
        let zeros = || ids.zeros_like();
        let token_types = token_types.map_or_else(zeros, Tensor::shallow_clone);
        let positions = Tensor::arange(tokens, (Kind::Int64, ids.device())).unsqueeze(0);
        let xs =
            ids.apply(&self.word) + token_types.apply(&self.token_type) + positions.apply(&self.position);
        xs.apply(&self.norm).dropout(self.dropout, train)
    }
}

#[derive(Debug)]
struct Layer {
    attention: SelfAttention,
    attention_output: Output,
    intermediate: nn::Linear,
    output: Output,
}

impl Layer {
    fn new(p: nn::Path, cfg: &BertConfig) -> Self {
        let attention = &p / "attention";
        let intermediate = &p / "intermediate" / "dense";
        Layer {
            attention: SelfAttention::new(&attention / "self", cfg),
            attention_output: Output::new(&attention / "output", cfg, cfg.hidden),
            intermediate: layers::linear_normal(intermediate, cfg.hidden, cfg.intermediate, cfg.init_stdev),
            output: Output::new(&p / "output", cfg, cfg.intermediate),
        }
    }

    fn forward(&self, xs: &Tensor, bias: Option<&Tensor>, train: bool) -> Tensor {
        let attended = self.attention.forward(xs, bias, train);
        let xs = self.attention_output.forward(&attended, xs, train);
        let hidden = xs.apply(&self.intermediate).gelu("none");
        self.output.forward(&hidden, &xs, train)
    }
}

/// Projection, dropout, residual, norm.
#[derive(Debug)]
struct Output {
    dense: nn::Linear,
    norm: nn::LayerNorm,
    dropout: f64,
}

impl Output {
    fn new(p: nn::Path, cfg: &BertConfig, inputs: i64) -> Self {
        Output {
            dense: layers::linear_normal(&p / "dense", inputs, cfg.hidden, cfg.init_stdev),
            norm: layers::layer_norm(&p / "LayerNorm", cfg.hidden, 1e-12),
            dropout: cfg.dropout,
        }
    }

    fn forward(&self, xs: &Tensor, residual: &Tensor, train: bool) -> Tensor {
        let xs = xs.apply(&self.dense).dropout(self.dropout, train);
        (xs + residual).apply(&self.norm)
    }
}

#[derive(Debug)]
struct SelfAttention {
    query: nn::Linear,
    key: nn::Linear,
    value: nn::Linear,
    heads: i64,
    dropout: f64,
    variant: Attention,
}

impl SelfAttention {
    fn new(p: nn::Path, cfg: &BertConfig) -> Self {
        let linear = |name| layers::linear_normal(&p / name, cfg.hidden, cfg.hidden, cfg.init_stdev);
        SelfAttention {
            query: linear("query"),
            key: linear("key"),
            value: linear("value"),
            heads: cfg.heads,
            dropout: cfg.dropout,
            variant: cfg.attention,
        }
    }

    fn forward(&self, xs: &Tensor, bias: Option<&Tensor>, train: bool) -> Tensor {
        let heads = |linear| split_heads(&xs.apply(linear), self.heads);
        let (q, k, v) = (heads(&self.query), heads(&self.key), heads(&self.value));
        let ys = match self.variant {
            Attention::WrittenOut => self.written_out(&q, &k, &v, bias, train),
            Attention::Sdpa => {
                let dropout = if train { self.dropout } else { 0.0 };
                Tensor::scaled_dot_product_attention(&q, &k, &v, bias, dropout, false, None, false)
            }
        };
        merge_heads(&ys)
    }

    fn written_out(&self, q: &Tensor, k: &Tensor, v: &Tensor, bias: Option<&Tensor>, train: bool) -> Tensor {
        let [_, _, _, width] = sizes(q);
        let scores = q.matmul(&k.transpose(-1, -2)) / (width as f64).sqrt();
        let scores = match bias {
            Some(bias) => scores + bias,
            None => scores,
        };
        scores.softmax(-1, None).dropout(self.dropout, train).matmul(v)
    }
}
