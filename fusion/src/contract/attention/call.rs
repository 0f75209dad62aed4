//! Calls of attention, read as one form.

use tilefuse_block::Elem;

use crate::args::Args;
use crate::contract::operand::{Source, in_memory};
use crate::contract::product::{Access, access};
use crate::graph::{AtenCall, Graph, NodeId, ValueRef};
use crate::plan::is_dense;
use crate::select_attention::is_scale;
use crate::types::Dims;

/// Rows `softmax(scale q kᵀ + mask) v` for each member of a batch, heads among them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Attention {
    /// Sizes of the batch.
    pub(super) batch: Dims,
    /// Rows of queries and of the result.
    pub(super) queries: i64,
    /// Rows of keys and values.
    pub(super) keys: i64,
    /// Elements of a query and a key.
    pub(super) width: i64,
    /// Elements of a value.
    pub(super) depth: i64,
    /// `[queries, width]`.
    pub(super) q: Access,
    /// `[keys, width]`.
    pub(super) k: Access,
    /// `[keys, depth]`.
    pub(super) v: Access,
    /// `[queries, keys]`.
    pub(super) mask: Option<(Access, MaskForm)>,
    /// Strides of the result along the batch.
    pub(super) out_batch: Dims,
    /// Strides of the result along queries and a value's elements.
    pub(super) out: [i64; 2],
    /// The factor of products.
    pub(super) scale: f64,
    /// Whether a query sees only the keys up to its own number.
    pub(super) causal: bool,
    /// Of queries, keys, values and result.
    pub(super) elem: Elem,
}

/// What a mask does with scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaskForm {
    /// True keeps a score, whatever it is elsewhere, as a model writes it out.
    Keeps,
    /// True keeps a score, false adds -inf to it, as libtorch's operator does.
    Opens,
    /// A number of this kind is added.
    Added(Elem),
}

impl MaskForm {
    /// The kind of the mask's elements.
    pub(super) fn elem(self) -> Elem {
        match self {
            MaskForm::Keeps | MaskForm::Opens => Elem::Bool,
            MaskForm::Added(elem) => elem,
        }
    }
}

/// The attention that a call computes; `None` for dropout, and for tensors that the templates do not know.
pub(super) fn read(graph: &Graph, node: NodeId, call: &AtenCall) -> Option<Attention> {
    let args = Args(&call.args);
    let operands = graph.operands(node);
    let operand = |name: &str| -> Option<(u16, ValueRef)> {
        let position = args.tensor(name)?;
        Some((position, *operands.get(usize::from(position))?))
    };
    let [out] = &graph.node(node).outs[..] else { return None };
    let elem = out.dtype.elem().filter(|e| matches!(e, Elem::F32 | Elem::F64 | Elem::Bf16 | Elem::F16))?;
    let known = |ty: &crate::types::TensorType| ty.device == out.device && ty.rank() >= 2;
    let tensor = |name: &str| {
        let (position, value) = operand(name)?;
        let ty = graph.ty(value);
        (ty.dtype == out.dtype && known(ty)).then(|| in_memory(graph, value, position)).flatten()
    };
    let (mut q, mut k, mut v) = (tensor("query")?, tensor("key")?, tensor("value")?);
    let mut mask = None;
    if !args.absent("attn_mask") {
        let (position, value) = operand("attn_mask")?;
        let kind =
            graph.ty(value).dtype.elem().filter(|&e| e == elem || matches!(e, Elem::Bool | Elem::F32))?;
        let form = match kind {
            Elem::Bool if call.selects => MaskForm::Keeps,
            Elem::Bool => MaskForm::Opens,
            _ => MaskForm::Added(kind),
        };
        mask = Some((known(graph.ty(value)).then(|| in_memory(graph, value, position)).flatten()?, form));
    }
    let causal = args.bool("is_causal") == Some(true);
    let dropout = args.float("dropout_p").unwrap_or(0.0) != 0.0;
    if dropout || (causal && mask.is_some()) || !known(out) || !is_dense(&out.shape, &out.strides) {
        return None;
    }
    let mut y = Source { shape: out.shape.clone(), strides: out.strides.clone(), ..q.clone() };
    if args.bool("enable_gqa") == Some(true) {
        let heads = |source: &Source| source.shape.iter().rev().nth(2).copied();
        let (many, few) = (heads(&q)?, heads(&k)?);
        if heads(&v)? != few || few < 1 || many % few != 0 {
            return None;
        }
        let all = [&mut q, &mut k, &mut v, &mut y].into_iter().chain(mask.as_mut().map(|m| &mut m.0));
        all.for_each(|source| split_heads(source, many, few));
    }
    let (batch, &[queries, depth]) = y.shape.split_last_chunk::<2>()?;
    let (&width, &keys) = (q.shape.last()?, k.shape.iter().nth_back(1)?);
    let scale = match args.float("scale") {
        Some(scale) => scale,
        None => 1.0 / (width as f64).sqrt(),
    };
    // What libtorch makes of keys that are hidden is the result then.
    if !is_scale(scale) && (causal || mask.is_some()) {
        return None;
    }
    let (out_batch, &strides) = y.strides.split_last_chunk::<2>()?;
    // No query sees a key beyond the number of queries.
    let seen = if causal { keys.min(queries) } else { keys };
    let read = Attention {
        queries,
        keys: seen,
        width,
        depth,
        q: access(q, batch, [queries, width])?,
        k: access(k, batch, [keys, width])?,
        v: access(v, batch, [keys, depth])?,
        mask: match mask {
            Some((mask, form)) => Some((access(mask, batch, [queries, keys])?, form)),
            None => None,
        },
        batch: Dims::from_slice(batch),
        out_batch: Dims::from_slice(out_batch),
        out: strides,
        scale,
        causal: causal && queries > 1,
        elem,
    };
    let full = read.batch.iter().chain([&queries, &keys, &width, &depth]).all(|&n| n > 0);
    full.then(|| read.folded())
}

/// Makes an axis of so `many` heads two: the heads of keys, of which there are `few`, and those that share one.
fn split_heads(source: &mut Source, many: i64, few: i64) {
    let Some(at) = source.shape.len().checked_sub(3) else { return };
    let (shared, stride) = (many / few, source.strides[at]);
    if source.shape[at] == many {
        source.shape[at] = few;
        source.strides[at] = stride * shared;
        source.shape.insert(at + 1, shared);
        source.strides.insert(at + 1, stride);
    } else {
        source.shape.insert(at + 1, 1);
        source.strides.insert(at + 1, 0);
    }
}

impl Attention {
    /// The same without dimensions of the batch that have one index, and with heads of one query as queries where they
    /// share keys.
    fn folded(mut self) -> Attention {
        let keep: Vec<usize> = (0..self.batch.len()).filter(|&d| self.batch[d] != 1).collect();
        let kept = |dims: &Dims| -> Dims { keep.iter().map(|&d| dims[d]).collect() };
        let accesses = [&mut self.q, &mut self.k, &mut self.v].into_iter();
        for access in accesses.chain(self.mask.as_mut().map(|m| &mut m.0)) {
            access.batch = kept(&access.batch);
        }
        self.out_batch = kept(&self.out_batch);
        self.batch = kept(&self.batch);
        self.together();
        self
    }

    /// Makes heads with one query each that share keys and values queries of one head.
    fn together(&mut self) {
        let shared = |access: &Access| access.batch.last() == Some(&0);
        if self.queries != 1 || !shared(&self.k) || !shared(&self.v) {
            return;
        }
        let Some(count) = self.batch.pop() else { return };
        let (q, k, v) = (&mut self.q, &mut self.k, &mut self.v);
        k.batch.pop();
        v.batch.pop();
        let mask = self.mask.as_mut().map(|(mask, _)| mask);
        for access in [q].into_iter().chain(mask) {
            access.matrix[0] = access.batch.pop().unwrap_or(0);
        }
        self.out[0] = self.out_batch.pop().unwrap_or(0);
        self.queries = count;
    }

    /// Members of the batch.
    pub(super) fn members(&self) -> Option<i64> {
        self.batch.iter().try_fold(1i64, |all, &n| all.checked_mul(n))
    }

    /// Positions of operands in the order of the program's parameters.
    pub(super) fn positions(&self) -> impl Iterator<Item = &Source> {
        let mask = self.mask.as_ref().map(|(access, _)| access);
        [&self.q, &self.k, &self.v].into_iter().chain(mask).map(|access| &access.source)
    }

    /// What sums are made of.
    pub(super) fn sum(&self) -> Elem {
        if self.elem == Elem::F64 { Elem::F64 } else { Elem::F32 }
    }

    /// Pairs of a query and a key that it sees, in all.
    pub(super) fn pairs(&self) -> f64 {
        let (queries, keys) = (self.queries as f64, self.keys as f64);
        let hidden = if self.causal { keys * (keys - 1.0) / 2.0 } else { 0.0 };
        (queries * keys - hidden) * self.members().unwrap_or(i64::MAX) as f64
    }
}
