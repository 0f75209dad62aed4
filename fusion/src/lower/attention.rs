//! Attention: a contraction, its factor and mask, softmax, and a second contraction.
//!
//! ```text
//! %3 = aten::scaled_dot_product_attention(   ->   %3 = contract batch[0,1]x[0,1] sum[3]x[3](%q, %k) : f32[2,3,5,7]
//!        query=%q, key=%k, value=%v, ..)          %4 = map mul(%3, scale)
//!      : bf16[2,3,5,8]                            %5 = map add(%4, mask)
//!                                                 %6 = softmax of %5 along keys, 0 in rows that are -inf throughout
//!                                                 %7 = cast(%6) : bf16[2,3,5,7]
//!                                                 %8 = contract batch[0,1]x[0,1] sum[3]x[2](%7, %v) : f32[2,3,5,8]
//!                                                 %9 = cast(%8) : bf16[2,3,5,8]
//! ```
//!
//! Heads of queries that share keys and values (`enable_gqa`) are a dimension that queries alone have. Batches that are broadcast
//! are views that repeat them.

use tilefuse_block::{Elem, Literal, ScalarFn};

use super::cx::{Call, Cx};
use super::registry::Registry;
use super::softmax::safe_softmax;
use crate::graph::ValueRef;
use crate::library_form::is_factor;
use crate::types::Dims;

pub(super) fn register(r: &mut Registry) {
    r.one(&["scaled_dot_product_attention"], attention);
}

fn attention(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (query, key, value) = (call.tensor("query")?, call.tensor("key")?, call.tensor("value")?);
    let elem = call.elem().filter(|elem| elem.is_float())?;
    if call.out().numel() == 0 {
        // libtorch divides by the number of heads, which may be 0.
        return cx.full(Literal::of(elem, 0.0), &call.out().shape);
    }
    let usable = |&v: &ValueRef| cx.elem(v) == Some(elem) && cx.graph.ty(v).numel() > 0;
    if !call.is_default("dropout_p", 0.0) || ![query, key, value].iter().all(usable) {
        return None;
    }
    let ([query, key, value], grouped) = match call.args.bool("enable_gqa") {
        Some(true) => ([query, key, value], grouped(cx, [query, key, value])?),
        _ => broadcast(cx, call, [query, key, value])?,
    };
    let query = cx.reshape(query, &grouped)?;
    let (rank, batch) = (grouped.len(), cx.rank(key) - 2);
    let pairs: Vec<(usize, usize)> = (0..batch).map(|d| (d, d)).collect();
    let scores = cx.contract(query, key, &pairs, &[(rank - 1, batch + 1)])?;
    let grouped = cx.shape(scores);
    let shape: Dims = [&call.out().shape[..call.out().rank() - 1], &grouped[rank - 1..]].concat().into();
    let scores = cx.reshape(scores, &shape)?;
    let scores = scaled(cx, call, scores, cx.shape(query)[rank - 1])?;
    let scores = masked(cx, call, scores).filter(|&v| cx.shape(v) == shape)?;
    let weights = safe_softmax(cx, scores, shape.len() - 1)?;
    let weights = cx.cast(weights, elem)?;
    let weights = cx.reshape(weights, &grouped)?;
    let value = cx.contract(weights, value, &pairs, &[(rank - 1, batch)])?;
    let value = cx.cast(value, elem)?;
    cx.reshape(value, &call.out().shape)
}

/// The shape of queries in which heads that share keys and values are a dimension behind the batch of these. `None` where further
/// dimensions of batches are broadcast.
fn grouped(cx: &Cx, operands: [ValueRef; 3]) -> Option<Dims> {
    let [query, key, value] = operands.map(|v| cx.shape(v));
    let batch = query.len().checked_sub(2).filter(|&batch| batch > 0)?;
    let mut grouped = query.clone();
    let (&many, &few) = (query.get(batch - 1)?, key.get(batch - 1)?);
    grouped[batch - 1] = few;
    grouped.insert(batch, many / few);
    let same = [key, value].iter().all(|own| own.len() == batch + 2 && own[..batch] == grouped[..batch]);
    (same && many % few == 0).then_some(grouped)
}

/// Operands whose batch is that of the result, and the shape of queries.
fn broadcast(cx: &mut Cx, call: &Call<'_>, operands: [ValueRef; 3]) -> Option<([ValueRef; 3], Dims)> {
    let (batch, _) = call.out().shape.split_last_chunk::<2>()?;
    let mut whole = operands;
    for value in &mut whole {
        let shape = cx.shape(*value);
        let (_, matrix) = shape.split_last_chunk::<2>()?;
        *value = cx.broadcast(*value, &[batch, matrix].concat())?;
    }
    let shape = cx.shape(whole[0]);
    Some((whole, shape))
}

fn scaled(cx: &mut Cx, call: &Call<'_>, scores: ValueRef, width: i64) -> Option<ValueRef> {
    let scale = match call.args.get("scale") {
        None => 1.0 / (width as f64).sqrt(),
        Some(_) => call.args.float("scale")?,
    };
    let scale = Literal::float(cx.elem(scores)?, scale);
    let hides = call.args.bool("is_causal") == Some(true) || !call.args.absent("attn_mask");
    if !is_factor(scale.as_f64(), hides) {
        return None;
    }
    let scale = cx.literal(scale);
    cx.map(ScalarFn::Mul, &[scores, scale])
}

/// Scores with -inf where a key does not count. libtorch adds -inf where a mask of truth values is false, and puts it in the
/// place of scores of keys behind the query's own.
fn masked(cx: &mut Cx, call: &Call<'_>, scores: ValueRef) -> Option<ValueRef> {
    let elem = cx.elem(scores)?;
    let hidden = cx.number(elem, f64::NEG_INFINITY);
    let causal = call.args.bool("is_causal") == Some(true);
    if call.args.absent("attn_mask") {
        return if causal { cx.causal(scores, hidden) } else { Some(scores) };
    }
    let mask = call.tensor("attn_mask").filter(|_| !causal)?;
    let added = match cx.elem(mask)? {
        Elem::Bool => {
            let zero = cx.number(elem, 0.0);
            cx.select(mask, zero, hidden)?
        }
        kind if kind.is_float() => cx.cast(mask, elem)?,
        _ => return None,
    };
    cx.map(ScalarFn::Add, &[scores, added])
}

impl Cx {
    /// Scores, and `hidden` where a key comes after the query.
    fn causal(&mut self, scores: ValueRef, hidden: ValueRef) -> Option<ValueRef> {
        let shape = self.shape(scores);
        let (_, matrix) = shape.split_last_chunk::<2>()?;
        let [queries, keys] = [0, 1].map(|dim| self.iota(Elem::I64, matrix, dim));
        let seen = self.map(ScalarFn::Ge, &[queries, keys])?;
        self.select(seen, scores, hidden)
    }
}
