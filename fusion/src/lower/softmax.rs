//! Softmax and its logarithm.

use tilefuse_block::{ReduceFn, ScalarFn};

use super::cx::{Call, Cx, wide};
use super::registry::Registry;
use crate::args::wrap;
use crate::graph::ValueRef;

pub(super) fn register(r: &mut Registry) {
    r.one(&["softmax", "_softmax", "special_softmax"], softmax);
    r.one(&["log_softmax", "_log_softmax", "special_log_softmax"], log_softmax);
}

/// The operand in the type to compute in, and the dimensions to reduce (none for rank 0).
fn operand(cx: &mut Cx, call: &Call<'_>) -> Option<(ValueRef, Vec<usize>)> {
    let x = call.tensor("self")?;
    let rank = cx.rank(x);
    let dim = wrap(call.args.int("dim")?, rank)?;
    let elem = call.elem()?;
    if !elem.is_float() {
        return None;
    }
    let half_to_float = call.args.bool("half_to_float") == Some(true);
    let x = if half_to_float { x } else { cx.cast(x, elem)? };
    let x = cx.cast(x, wide(elem))?;
    Some((x, if rank == 0 { Vec::new() } else { vec![dim] }))
}

/// `x - max(x)` and the sum of its exponentials, along dimensions that stay with size 1.
pub(super) fn shifted(cx: &mut Cx, x: ValueRef, dims: &[usize]) -> Option<(ValueRef, ValueRef, ValueRef)> {
    let largest = cx.reduce(ReduceFn::Max, x, dims, true)?;
    let difference = cx.map(ScalarFn::Sub, &[x, largest])?;
    let exponential = cx.map(ScalarFn::Exp, &[difference])?;
    let sum = cx.reduce(ReduceFn::Sum, exponential, dims, true)?;
    Some((difference, exponential, sum))
}

fn softmax(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (x, dims) = operand(cx, call)?;
    let value = softmax_of(cx, x, &dims)?;
    cx.cast(value, call.elem()?)
}

/// The softmax, in the operand's type.
fn softmax_of(cx: &mut Cx, x: ValueRef, dims: &[usize]) -> Option<ValueRef> {
    let (_, exponential, sum) = shifted(cx, x, dims)?;
    // The largest exponential is 1, so the sum is at least 1 and its inverse never overflows: one division per row.
    let one = cx.number(cx.elem(x)?, 1.0);
    let inverse = cx.map(ScalarFn::Div, &[one, sum])?;
    cx.map(ScalarFn::Mul, &[exponential, inverse])
}

/// Softmax along a dimension of a value in the type to compute in, 0 in rows that are -inf throughout.
pub(super) fn safe_softmax(cx: &mut Cx, x: ValueRef, dim: usize) -> Option<ValueRef> {
    let weights = softmax_of(cx, x, &[dim])?;
    let largest = cx.reduce(ReduceFn::Max, x, &[dim], true)?;
    let closed = cx.map_number(ScalarFn::Eq, largest, f64::NEG_INFINITY)?;
    let zero = cx.number(cx.elem(x)?, 0.0);
    cx.select(closed, zero, weights)
}

fn log_softmax(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (x, dims) = operand(cx, call)?;
    let value = log_softmax_of(cx, x, &dims)?;
    cx.cast(value, call.elem()?)
}

/// The logarithm of the softmax, in the operand's type.
pub(super) fn log_softmax_of(cx: &mut Cx, x: ValueRef, dims: &[usize]) -> Option<ValueRef> {
    let (difference, _, sum) = shifted(cx, x, dims)?;
    let logarithm = cx.map(ScalarFn::Log, &[sum])?;
    cx.map(ScalarFn::Sub, &[difference, logarithm])
}
