//! Recognises attention that a model writes out, and calls libtorch's one operator for it.
//!
//! ```text
//! %4 = aten::matmul(self=%q, other=%kt)              ->   %9 = aten::scaled_dot_product_attention(
//! %5 = aten::mul.Scalar(self=%4, other=0.125)                   query=%q, key=%k, value=%v, attn_mask=None,
//! %6 = aten::masked_fill.Scalar(self=%5, mask=%m,               dropout_p=0, is_causal=true, scale=0.125)
//!        value=-inf)
//! %7 = aten::softmax.int(self=%6, dim=-1)
//! %9 = aten::matmul(self=%7, other=%v)
//! ```
//!
//! The scores then stay out of memory. The rewrite is made only where both compute the same: where every position of
//! a row is excluded, the written-out form gives NaN and libtorch's operator 0, so that a mask must be known to leave
//! each row something. [`Facts`] says so for masks that no input has a part in.

use crate::args::{Args, Number, swapped, wrap};
use crate::graph::{AtenCall, Graph, NodeId, Op, ValueRef};
use crate::recording::Arg;
use crate::types::{Device, Dims, TensorType};
use tilefuse_block::Elem;

/// What a mask of attention scores, `[..., queries, keys]`, does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskFacts {
    /// It excludes just the keys that come after the query, and leaves other scores as they are.
    pub causal: bool,
    /// Each row keeps at least one key.
    pub rows_open: bool,
}

/// How a mask acts on scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskKind {
    /// A truth value: true excludes.
    Excludes,
    /// A number that is added.
    Added,
}

/// What the owner of the tensors knows.
pub trait Facts {
    /// What a mask does, where its value depends on nothing but parameters and constants.
    fn mask(&mut self, graph: &Graph, mask: ValueRef, kind: MaskKind) -> Option<MaskFacts>;

    /// The graph has been rewritten on what [`Facts::mask`] says of a mask: it must stay true of the parameters.
    fn rely(&mut self, mask: ValueRef, kind: MaskKind);

    /// The strides of the result of a call with operands of these types.
    fn result_strides(&mut self, call: &AtenCall, operands: &[TensorType]) -> Option<Dims>;
}

impl<F: Facts + ?Sized> Facts for &mut F {
    fn mask(&mut self, graph: &Graph, mask: ValueRef, kind: MaskKind) -> Option<MaskFacts> {
        (**self).mask(graph, mask, kind)
    }

    fn rely(&mut self, mask: ValueRef, kind: MaskKind) {
        (**self).rely(mask, kind);
    }

    fn result_strides(&mut self, call: &AtenCall, operands: &[TensorType]) -> Option<Dims> {
        (**self).result_strides(call, operands)
    }
}

/// Knows nothing: only attention without a mask is recognised, and results are taken to be row-major.
#[derive(Clone, Copy, Debug)]
pub struct NoFacts;

impl Facts for NoFacts {
    fn mask(&mut self, _: &Graph, _: ValueRef, _: MaskKind) -> Option<MaskFacts> {
        None
    }

    fn rely(&mut self, _: ValueRef, _: MaskKind) {}

    fn result_strides(&mut self, _: &AtenCall, _: &[TensorType]) -> Option<Dims> {
        None
    }
}

/// Attention, as a model wrote it.
struct Found {
    /// The product of weights and values.
    last: NodeId,
    /// The product of queries and keys.
    first: NodeId,
    query: ValueRef,
    /// Keys, `[batch, heads, width, keys]`.
    key_transposed: ValueRef,
    value: ValueRef,
    scale: f64,
    mask: Mask,
    /// The mask that the facts are of.
    known: Option<(ValueRef, MaskKind)>,
}

/// The mask of the new call.
enum Mask {
    None,
    Causal,
    /// Added to the scores.
    Added(ValueRef),
    /// True keeps where this is false.
    Not(ValueRef),
}

/// Rewrites every written-out attention of a functional graph; returns how many there were.
pub fn recognise_attention(graph: &mut Graph, facts: &mut dyn Facts) -> usize {
    let ids: Vec<NodeId> = graph.ids().collect();
    let mut count = 0;
    for id in ids {
        if let Some(found) = find(graph, id, facts)
            && replace(graph, &found, facts)
        {
            if let Some((mask, kind)) = found.known {
                facts.rely(mask, kind);
            }
            count += 1;
        }
    }
    if count > 0 {
        graph.remove_unused();
    }
    count
}

/// The call of this name that makes a value as its first result.
fn call<'g>(graph: &'g Graph, value: ValueRef, name: &str) -> Option<&'g AtenCall> {
    match &graph.node(value.node).op {
        Op::Aten(call) if value.out == 0 && call.op == name && call.writes.is_empty() && !call.random => {
            Some(call)
        }
        _ => None,
    }
}

/// The operand that an argument names.
fn operand(graph: &Graph, node: NodeId, name: &str) -> Option<ValueRef> {
    let Op::Aten(call) = &graph.node(node).op else { return None };
    let position = Args(&call.args).tensor(name)?;
    graph.operands(node).get(usize::from(position)).copied()
}

fn used_once(graph: &Graph, value: ValueRef) -> bool {
    graph.users(value.node).len() == 1
        && !graph.outputs.contains(&value)
        && !graph.updates.iter().any(|u| u.value == value)
}

/// Walks up from the weights of a product to the product that made the scores.
fn find(graph: &Graph, last: NodeId, facts: &mut dyn Facts) -> Option<Found> {
    call(graph, last.into(), "aten::matmul")?;
    let (weights, value) = (operand(graph, last, "self")?, operand(graph, last, "other")?);
    let ty = graph.ty(last.into());
    let scores = softmax_of(graph, weights)?;
    let (scores, mask, known) = mask_of(graph, scores, facts)?;
    let (scores, mut scale) = scaled(graph, scores)?;
    call(graph, scores, "aten::matmul").filter(|_| used_once(graph, scores))?;
    let first = scores.node;
    let (mut query, key) = (operand(graph, first, "self")?, operand(graph, first, "other")?);
    if let Some((inner, factor)) = scaled(graph, query).filter(|&(_, factor)| factor != 1.0) {
        (query, scale) = (inner, scale * factor);
    }
    let found = Found { last, first, query, key_transposed: key, value, scale, mask, known };
    let typed = [query, key, value, scores, weights].iter().all(|&v| {
        let other = graph.ty(v);
        other.dtype == ty.dtype && other.device == ty.device && other.rank() == 4 && other.numel() > 0
    });
    (typed && fits(graph, &found) && scale.is_finite()).then_some(found)
}

/// Whether libtorch has a fast operator for these shapes.
fn fits(graph: &Graph, found: &Found) -> bool {
    let ty = graph.ty(found.query);
    let [q, k, v] = [found.query, found.key_transposed, found.value].map(|v| graph.ty(v));
    let width = q.shape[3];
    let heads = q.shape[..2] == k.shape[..2] && q.shape[..2] == v.shape[..2];
    let shapes = k.shape[2] == width && v.shape[3] == width && v.shape[2] == k.shape[3];
    let rows = q.strides[3] == 1 && k.strides[2] == 1 && v.strides[3] == 1;
    let kind = match (ty.device, ty.dtype.elem()) {
        (Device::Cpu, Some(Elem::F32 | Elem::F64 | Elem::Bf16 | Elem::F16)) => true,
        (Device::Cuda(_), Some(Elem::F32 | Elem::Bf16 | Elem::F16)) => width % 8 == 0 && width <= 256,
        _ => false,
    };
    heads && shapes && rows && kind
}

/// The operand of a softmax along the last dimension, looked at through casts that lose nothing and back.
fn softmax_of(graph: &Graph, weights: ValueRef) -> Option<ValueRef> {
    let weights = through_cast(graph, weights)?;
    let softmax = call(graph, weights, "aten::softmax").filter(|_| used_once(graph, weights))?;
    let scores = operand(graph, weights.node, "self")?;
    let dim = Args(&softmax.args).int("dim")?;
    (wrap(dim, graph.ty(scores).rank()) == Some(3)).then(|| through_cast(graph, scores)).flatten()
}

/// The operand of a cast that is used once, or the value itself. Softmax in `f32` of narrower scores is what the
/// one operator computes, too.
fn through_cast(graph: &Graph, value: ValueRef) -> Option<ValueRef> {
    let is_cast = call(graph, value, "aten::to").is_some() || call(graph, value, "aten::_to_copy").is_some();
    if !is_cast {
        return Some(value);
    }
    let inner = operand(graph, value.node, "self")?;
    let narrow = |e: Option<Elem>| matches!(e, Some(Elem::F16 | Elem::Bf16));
    let [from, to] = [inner, value].map(|v| graph.ty(v));
    let pair = [from.dtype.elem(), to.dtype.elem()];
    let wide = pair.contains(&Some(Elem::F32)) && pair.into_iter().any(narrow);
    (wide && from.device == to.device && used_once(graph, value)).then_some(inner)
}

/// The scores before a mask, the mask, and what was asked of it.
type Masked = (ValueRef, Mask, Option<(ValueRef, MaskKind)>);

/// `None` where there is a mask that cannot be expressed.
fn mask_of(graph: &Graph, scores: ValueRef, facts: &mut dyn Facts) -> Option<Masked> {
    if call(graph, scores, "aten::masked_fill").is_some() {
        return filled(graph, scores, facts);
    }
    if let Some(add) = call(graph, scores, "aten::add").filter(|call| call.overload == "Tensor") {
        let plain = Args(&add.args).number("alpha").is_none_or(|a| a.as_f64() == 1.0);
        let [left, right] = ["self", "other"].map(|name| operand(graph, scores.node, name));
        let (left, right) = (left?, right?);
        let (inner, mask) = if is_product(graph, left) { (left, right) } else { (right, left) };
        let ty = graph.ty(mask);
        let new = match facts.mask(graph, mask, MaskKind::Added)? {
            MaskFacts { causal: true, .. } if square(graph, inner, mask) => Mask::Causal,
            MaskFacts { rows_open: true, .. }
                if ty.dtype == graph.ty(inner).dtype && matches!(ty.rank(), 2 | 4) =>
            {
                Mask::Added(mask)
            }
            _ => return None,
        };
        return (plain && used_once(graph, scores)).then_some((inner, new, Some((mask, MaskKind::Added))));
    }
    Some((scores, Mask::None, None))
}

fn is_product(graph: &Graph, value: ValueRef) -> bool {
    scaled(graph, value).is_some_and(|(inner, _)| call(graph, inner, "aten::matmul").is_some())
}

/// Whether there are as many queries as keys, and a row of the mask for each.
fn square(graph: &Graph, scores: ValueRef, mask: ValueRef) -> bool {
    let [scores, mask] = [scores, mask].map(|v| &graph.ty(v).shape);
    scores.len() == 4 && scores[2] == scores[3] && mask.ends_with(&scores[2..])
}

fn filled(graph: &Graph, scores: ValueRef, facts: &mut dyn Facts) -> Option<Masked> {
    let call = call(graph, scores, "aten::masked_fill").filter(|_| used_once(graph, scores))?;
    let fill = match Args(&call.args).number("value") {
        Some(number) => number.as_f64(),
        None => literal(graph, operand(graph, scores.node, "value")?)?,
    };
    let (inner, mask) = (operand(graph, scores.node, "self")?, operand(graph, scores.node, "mask")?);
    let excludes = fill <= highest_excluded(graph.ty(inner).dtype.elem()?);
    let new = match facts.mask(graph, mask, MaskKind::Excludes)? {
        MaskFacts { causal: true, .. } if excludes && square(graph, inner, mask) => Mask::Causal,
        MaskFacts { rows_open: true, .. }
            if fill == f64::NEG_INFINITY && matches!(graph.ty(mask).rank(), 2 | 4) =>
        {
            Mask::Not(mask)
        }
        _ => return None,
    };
    Some((inner, new, Some((mask, MaskKind::Excludes))))
}

/// The highest score that has no weight beside one that is not excluded.
pub fn highest_excluded(elem: Elem) -> f64 {
    match elem {
        Elem::F16 => -65504.0,
        _ => -1e30,
    }
}

/// A number known now: of a literal or a constant of rank 0.
fn literal(graph: &Graph, value: ValueRef) -> Option<f64> {
    let literal = match &graph.node(value.node).op {
        Op::Scalar(literal) => *literal,
        Op::Const(slot) => *graph.literals.get(slot)?,
        _ => return None,
    };
    graph.ty(value).shape.is_empty().then(|| literal.as_f64())
}

/// What a value is a known multiple of, and the factor; the value itself and 1 where it is no such product. `None` where it
/// is one that others use, too.
fn scaled(graph: &Graph, value: ValueRef) -> Option<(ValueRef, f64)> {
    let product = call(graph, value, "aten::mul");
    let Some(call) = product.or_else(|| call(graph, value, "aten::div")) else {
        return Some((value, 1.0));
    };
    let inner = operand(graph, value.node, "self")?;
    let other = Args(&call.args).number("other").map(Number::as_f64);
    let other = other.or_else(|| literal(graph, operand(graph, value.node, "other")?));
    let (Some(other), true) = (other, Args(&call.args).absent("rounding_mode")) else {
        return Some((value, 1.0));
    };
    let same =
        graph.ty(inner).dtype == graph.ty(value).dtype && graph.ty(inner).shape == graph.ty(value).shape;
    if !same {
        return Some((value, 1.0));
    }
    let factor = if product.is_some() { other } else { 1.0 / other };
    used_once(graph, value).then_some((inner, factor))
}

fn replace(graph: &mut Graph, found: &Found, facts: &mut dyn Facts) -> bool {
    let origin = graph.node(found.last).origin;
    let key = transposed(graph, found.key_transposed, origin);
    let mut operands = vec![found.query, key, found.value];
    let mask = match found.mask {
        Mask::None | Mask::Causal => Arg::None,
        Mask::Added(mask) => {
            operands.push(mask);
            Arg::Tensor(3)
        }
        Mask::Not(mask) => {
            operands.push(not(graph, mask, origin));
            Arg::Tensor(3)
        }
    };
    let args = [
        ("query", Arg::Tensor(0)),
        ("key", Arg::Tensor(1)),
        ("value", Arg::Tensor(2)),
        ("attn_mask", mask),
        ("dropout_p", Arg::Float(0.0)),
        ("is_causal", Arg::Bool(matches!(found.mask, Mask::Causal))),
        ("scale", Arg::Float(found.scale)),
        ("enable_gqa", Arg::Bool(false)),
    ];
    let call = AtenCall::new("aten::scaled_dot_product_attention", "", args);
    let types: Vec<TensorType> = operands.iter().map(|&v| graph.ty(v).clone()).collect();
    let mut ty = graph.ty(found.last.into()).clone();
    if let Some(strides) = facts.result_strides(&call, &types) {
        if strides.len() != ty.shape.len() {
            return false;
        }
        ty.strides = strides;
    }
    let origin = describe(graph, found);
    let node = graph.add(Op::Aten(Box::new(call)), &operands, [ty], origin);
    graph.replace_uses(found.last.into(), node.into());
    true
}

/// A new origin that names the operators from the first product to the last.
fn describe(graph: &mut Graph, found: &Found) -> Option<u32> {
    let text = format!("attention {} to {}", graph.origin(found.first)?, graph.origin(found.last)?);
    Some(graph.add_origin(text))
}

/// A value with its last two dimensions swapped.
fn transposed(graph: &mut Graph, value: ValueRef, origin: Option<u32>) -> ValueRef {
    let mut ty = graph.ty(value).clone();
    let rank = ty.rank();
    for (to, from) in swapped(-2, -1, rank).unwrap_or_default().into_iter().enumerate() {
        (ty.shape[to], ty.strides[to]) = (graph.ty(value).shape[from], graph.ty(value).strides[from]);
    }
    let args = [("self", Arg::Tensor(0)), ("dim0", Arg::Int(-2)), ("dim1", Arg::Int(-1))];
    let call = AtenCall::new("aten::transpose", "int", args);
    graph.add(Op::Aten(Box::new(call)), &[value], [ty], origin).into()
}

fn not(graph: &mut Graph, mask: ValueRef, origin: Option<u32>) -> ValueRef {
    let ty = graph.ty(mask);
    let ty = TensorType::contiguous(ty.dtype, &ty.shape, ty.device);
    let call = AtenCall::new("aten::logical_not", "", [("self", Arg::Tensor(0))]);
    graph.add(Op::Aten(Box::new(call)), &[mask], [ty], origin).into()
}

#[cfg(test)]
mod tests;
