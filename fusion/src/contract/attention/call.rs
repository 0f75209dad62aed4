//! Attention, as templates read it: sizes, and where tensors lie.

use tilefuse_block::Elem;

use crate::contract::match_failure::MatchFailure;
use crate::contract::operand::{Source, in_memory};
use crate::contract::product::{Access, access};
use crate::contract::repeated_heads::RepeatedHeads;
use crate::graph::{Graph, NodeId};
use crate::library_form::{AttentionForm, MaskForm};
use crate::place::is_dense;
use crate::types::{Dims, TensorType};

/// Rows `softmax(scale q kᵀ + mask) v` for each member of a batch, heads among them.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::contract) struct Attention {
    /// Sizes of the batch.
    pub(in crate::contract) batch: Dims,
    /// Rows of queries and of the result.
    pub(in crate::contract) queries: i64,
    /// Rows of keys and values.
    pub(in crate::contract) keys: i64,
    /// Elements of a query and a key.
    pub(in crate::contract) width: i64,
    /// Elements of a value.
    pub(in crate::contract) depth: i64,
    /// `[queries, width]`.
    pub(in crate::contract) q: Access,
    /// `[keys, width]`.
    pub(in crate::contract) k: Access,
    /// `[keys, depth]`.
    pub(in crate::contract) v: Access,
    /// `[queries, keys]`.
    pub(in crate::contract) mask: Option<Mask>,
    /// Strides of the result along the batch.
    pub(in crate::contract) out_batch: Dims,
    /// Strides of the result along queries and a value's elements.
    pub(in crate::contract) out: [i64; 2],
    /// The factor of products.
    pub(in crate::contract) scale: f64,
    /// Whether a query sees only the keys up to its own number.
    pub(in crate::contract) causal: bool,
    /// Whether the result of a query that no key has a weight for is 0, and not NaN.
    pub(in crate::contract) safe: bool,
    /// Of queries, keys, values and result.
    pub(in crate::contract) elem: Elem,
    /// Heads of keys and values of which one of several alike is read.
    pub(in crate::contract) repeated: Option<RepeatedHeads>,
}

/// What is done to scores, `[queries, keys]`.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::contract) struct Mask {
    pub(in crate::contract) access: Access,
    pub(in crate::contract) form: MaskForm,
    /// Of the mask's elements.
    pub(in crate::contract) elem: Elem,
}

/// The attention that a node's form is, but for types and tensors that the templates do not know.
pub(in crate::contract) fn read(
    graph: &Graph,
    node: NodeId,
    form: &AttentionForm,
) -> Result<Attention, MatchFailure> {
    let tensors = Tensors::of(graph, node, form)?;
    let read = tensors.attention(graph.ty(node.into()), form).ok_or(MatchFailure::NoTemplate)?;
    let Attention { batch, queries, keys, width, depth, .. } = &read;
    let is_empty = batch.iter().chain([queries, keys, width, depth]).any(|&size| size <= 0);
    if is_empty { Err(MatchFailure::Small) } else { Ok(read.folded()) }
}

/// Where the operands of attention lie.
struct Tensors {
    q: Source,
    k: Source,
    v: Source,
    mask: Option<(Source, MaskForm, Elem)>,
    elem: Elem,
    repeated: Option<RepeatedHeads>,
}

impl Tensors {
    fn of(graph: &Graph, node: NodeId, form: &AttentionForm) -> Result<Tensors, MatchFailure> {
        let operands = graph.operands(node);
        let operand =
            |position: u16| operands.get(usize::from(position)).copied().ok_or(MatchFailure::NoTemplate);
        let out = graph.ty(node.into());
        let elem = out.dtype.elem().filter(|e| matches!(e, Elem::F32 | Elem::F64 | Elem::Bf16 | Elem::F16));
        let elem = elem.ok_or(MatchFailure::ElementTypes)?;
        let known = |ty: &TensorType| ty.device == out.device && ty.rank() >= 2;
        let repeated = RepeatedHeads::of(graph, node, form);
        let tensor = |position: u16| {
            let value = operand(position)?;
            let ty = graph.ty(value);
            if ty.dtype != out.dtype || !known(ty) {
                return Err(MatchFailure::ElementTypes);
            }
            let source = match repeated.as_ref().filter(|heads| heads.positions.contains(&position)) {
                Some(heads) => heads.source(graph, value, position),
                None => Some(in_memory(graph, value, position)),
            };
            source.ok_or(MatchFailure::Strides)
        };
        let (q, k, v) = (tensor(form.query)?, tensor(form.key)?, tensor(form.value)?);
        let mut mask = None;
        if let Some((position, form)) = form.mask {
            let value = operand(position)?;
            let ty = graph.ty(value);
            let kind = ty.dtype.elem().filter(|&e| e == elem || matches!(e, Elem::Bool | Elem::F32));
            let kind = kind.ok_or(MatchFailure::ElementTypes)?;
            if ty.device != out.device {
                return Err(MatchFailure::ElementTypes);
            }
            mask = Some((in_memory(graph, value, position), form, kind));
        }
        if !is_dense(&out.shape, &out.strides) {
            return Err(MatchFailure::Strides);
        }
        Ok(Tensors { q, k, v, mask, elem, repeated })
    }

    /// The attention of operands, with a result of this type.
    fn attention(self, out: &TensorType, form: &AttentionForm) -> Option<Attention> {
        let Tensors { mut q, mut k, mut v, mut mask, elem, repeated } = self;
        let (causal, scale) = (form.causal, form.scale);
        if causal && mask.is_some() {
            return None;
        }
        let mut y = Source { shape: out.shape.clone(), strides: out.strides.clone(), ..q.clone() };
        let heads = |source: &Source| source.shape.iter().nth_back(2).copied();
        // Heads that are neither one for all nor read as such are as many as those of queries.
        if form.shared > 1 && heads(&k) != heads(&q) {
            let (many, few) = (heads(&q)?, heads(&k)?);
            if heads(&v)? != few || few < 1 || many % few != 0 {
                return None;
            }
            let all = [&mut q, &mut k, &mut v, &mut y].into_iter().chain(mask.as_mut().map(|m| &mut m.0));
            all.for_each(|source| split_heads(source, many, few));
        }
        let (batch, &[queries, depth]) = y.shape.split_last_chunk::<2>()?;
        let (&width, &keys) = (q.shape.last()?, k.shape.iter().nth_back(1)?);
        let (out_batch, &strides) = y.strides.split_last_chunk::<2>()?;
        // No query sees a key beyond the number of queries.
        let seen = if causal { keys.min(queries) } else { keys };
        Some(Attention {
            queries,
            keys: seen,
            width,
            depth,
            q: access(q, batch, [queries, width])?,
            k: access(k, batch, [keys, width])?,
            v: access(v, batch, [keys, depth])?,
            mask: match mask {
                Some((mask, form, elem)) => {
                    Some(Mask { access: access(mask, batch, [queries, keys])?, form, elem })
                }
                None => None,
            },
            batch: Dims::from_slice(batch),
            out_batch: Dims::from_slice(out_batch),
            out: strides,
            scale,
            causal: causal && queries > 1,
            safe: form.safe,
            elem,
            repeated,
        })
    }
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
        for access in accesses.chain(self.mask.as_mut().map(|mask| &mut mask.access)) {
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
        let mask = self.mask.as_mut().map(|mask| &mut mask.access);
        for access in [q].into_iter().chain(mask) {
            access.matrix[0] = access.batch.pop().unwrap_or(0);
        }
        self.out[0] = self.out_batch.pop().unwrap_or(0);
        self.queries = count;
    }

    /// Members of the batch.
    pub(in crate::contract) fn members(&self) -> Option<i64> {
        self.batch.iter().try_fold(1i64, |all, &n| all.checked_mul(n))
    }

    /// Positions of operands in the order of the program's parameters.
    pub(in crate::contract) fn positions(&self) -> impl Iterator<Item = &Source> {
        let mask = self.mask.as_ref().map(|mask| &mask.access);
        [&self.q, &self.k, &self.v].into_iter().chain(mask).map(|access| &access.source)
    }

    /// What sums are made of.
    pub(in crate::contract) fn sum(&self) -> Elem {
        if self.elem == Elem::F64 { Elem::F64 } else { Elem::F32 }
    }

    /// Pairs of a query and a key that it sees, in all.
    pub(in crate::contract) fn pairs(&self) -> f64 {
        let (queries, keys) = (self.queries as f64, self.keys as f64);
        let hidden = if self.causal { keys * (keys - 1.0) / 2.0 } else { 0.0 };
        (queries * keys - hidden) * self.members().unwrap_or(i64::MAX) as f64
    }
}
