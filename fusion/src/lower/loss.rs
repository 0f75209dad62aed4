//! Losses.

use tilefuse_block::{Elem, ReduceFn, ScalarFn};

use super::activation::log_sigmoid;
use super::cx::{Call, Cx, wide};
use super::reduce::mean_of;
use super::registry::Registry;
use super::softmax::log_softmax_of;
use crate::graph::ValueRef;

pub(super) fn register(r: &mut Registry) {
    r.one(&["nll_loss", "nll_loss_nd", "nll_loss2d"], nll_loss);
    r.one(&["cross_entropy_loss"], cross_entropy);
    r.one(&["mse_loss"], |cx, call| pair(cx, call, squared));
    r.one(&["l1_loss"], |cx, call| pair(cx, call, |cx, _, difference| cx.map(ScalarFn::Abs, &[difference])));
    r.one(&["smooth_l1_loss"], |cx, call| pair(cx, call, smooth_l1));
    r.one(&["huber_loss"], |cx, call| pair(cx, call, huber));
    r.one(&["binary_cross_entropy_with_logits"], bce_with_logits);
}

/// The `reduction` argument: 0 none, 1 mean, 2 sum.
fn reduce(cx: &mut Cx, call: &Call<'_>, value: ValueRef) -> Option<ValueRef> {
    let dims: Vec<usize> = (0..cx.rank(value)).collect();
    let value = match call.args.int("reduction").unwrap_or(1) {
        0 => value,
        1 => mean_of(cx, value, &dims, false)?,
        2 => cx.reduce(ReduceFn::Sum, value, &dims, false)?,
        _ => return None,
    };
    cx.cast(value, call.elem()?)
}

/// A loss of the difference of `self` and `target`.
fn pair(
    cx: &mut Cx,
    call: &Call<'_>,
    body: fn(&mut Cx, &Call<'_>, ValueRef) -> Option<ValueRef>,
) -> Option<ValueRef> {
    let elem = wide(call.elem()?);
    if !elem.is_float() {
        return None;
    }
    let (x, target) = (cx.operand(call, "self", elem)?, cx.operand(call, "target", elem)?);
    let difference = cx.map(ScalarFn::Sub, &[x, target])?;
    let value = body(cx, call, difference)?;
    reduce(cx, call, value)
}

fn squared(cx: &mut Cx, _: &Call<'_>, difference: ValueRef) -> Option<ValueRef> {
    cx.map(ScalarFn::Mul, &[difference, difference])
}

/// `0.5 * d² / beta` below `beta`, else `|d| - 0.5 * beta`.
fn smooth_l1(cx: &mut Cx, call: &Call<'_>, difference: ValueRef) -> Option<ValueRef> {
    let beta = call.args.float("beta").unwrap_or(1.0);
    let magnitude = cx.map(ScalarFn::Abs, &[difference])?;
    if beta == 0.0 {
        return Some(magnitude);
    }
    let half = cx.map_number(ScalarFn::Mul, magnitude, 0.5)?;
    let square = cx.map(ScalarFn::Mul, &[half, magnitude])?;
    let low = cx.map_number(ScalarFn::Div, square, beta)?;
    let high = cx.map_number(ScalarFn::Sub, magnitude, 0.5 * beta)?;
    let near = cx.map_number(ScalarFn::Lt, magnitude, beta)?;
    cx.select(near, low, high)
}

/// `0.5 * d²` up to `delta`, else `delta * (|d| - 0.5 * delta)`.
fn huber(cx: &mut Cx, call: &Call<'_>, difference: ValueRef) -> Option<ValueRef> {
    let delta = call.args.float("delta").unwrap_or(1.0);
    let magnitude = cx.map(ScalarFn::Abs, &[difference])?;
    let half = cx.map_number(ScalarFn::Mul, magnitude, 0.5)?;
    let low = cx.map(ScalarFn::Mul, &[half, magnitude])?;
    let beyond = cx.map_number(ScalarFn::Sub, magnitude, 0.5 * delta)?;
    let high = cx.map_number(ScalarFn::Mul, beyond, delta)?;
    let near = cx.map_number(ScalarFn::Lt, magnitude, delta)?;
    cx.select(near, low, high)
}

/// `(1 - target) * x - log_sigmoid(x)`, with factors per position where they are given.
fn bce_with_logits(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = wide(call.elem()?);
    let (x, target) = (cx.operand(call, "self", elem)?, cx.operand(call, "target", elem)?);
    let one = cx.number(elem, 1.0);
    let rest = cx.map(ScalarFn::Sub, &[one, target])?;
    let linear = cx.map(ScalarFn::Mul, &[rest, x])?;
    let mut logarithm = log_sigmoid(cx, x)?;
    if let Some(positive) = call.optional("pos_weight")? {
        let positive = cx.cast(positive, elem)?;
        let above = cx.map(ScalarFn::Sub, &[positive, one])?;
        let scaled = cx.map(ScalarFn::Mul, &[above, target])?;
        let factor = cx.map_number(ScalarFn::Add, scaled, 1.0)?;
        logarithm = cx.map(ScalarFn::Mul, &[factor, logarithm])?;
    }
    let mut value = cx.map(ScalarFn::Sub, &[linear, logarithm])?;
    if let Some(weight) = call.optional("weight")? {
        let weight = cx.cast(weight, elem)?;
        value = cx.map(ScalarFn::Mul, &[value, weight])?;
    }
    reduce(cx, call, value)
}

fn nll_loss(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = cx.operand(call, "self", wide(call.elem()?))?;
    negative_likelihood(cx, call, x)
}

/// Class indices only; `label_smoothing` and class weights decline.
fn cross_entropy(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    if !call.is_default("label_smoothing", 0.0) {
        return None;
    }
    let x = cx.operand(call, "self", wide(call.elem()?))?;
    let class = if cx.rank(x) == 1 { 0 } else { 1 };
    let x = log_softmax_of(cx, x, &[class])?;
    negative_likelihood(cx, call, x)
}

/// Minus the value at each target's class; a target equal to `ignore_index` counts for nothing.
fn negative_likelihood(cx: &mut Cx, call: &Call<'_>, x: ValueRef) -> Option<ValueRef> {
    let target = call.tensor("target")?;
    if !call.args.absent("weight") || cx.elem(target)? != Elem::I64 {
        return None;
    }
    let (shape, class) = (cx.shape(x), if cx.rank(x) == 1 { 0 } else { 1 });
    let mut index_shape = shape.clone();
    *index_shape.get_mut(class)? = 1;
    let target = cx.reshape(target, &index_shape)?;
    let ignored = call.args.int("ignore_index").unwrap_or(-100);
    let ignored = cx.literal(tilefuse_block::Literal::int(Elem::I64, ignored));
    let counts = cx.map(ScalarFn::Ne, &[target, ignored])?;
    let zero = cx.number(Elem::I64, 0.0);
    let safe = cx.select(counts, target, zero)?;
    let found = cx.gather(x, class, safe)?;
    let negative = cx.map(ScalarFn::Neg, &[found])?;
    let nothing = cx.elem(x).map(|elem| cx.number(elem, 0.0))?;
    let loss = cx.select(counts, negative, nothing)?;
    let dims: Vec<usize> = (0..shape.len()).collect();
    let value = match call.args.int("reduction").unwrap_or(1) {
        0 => cx.reshape(loss, &call.out().shape)?,
        2 => cx.reduce(ReduceFn::Sum, loss, &dims, false)?,
        1 => {
            let sum = cx.reduce(ReduceFn::Sum, loss, &dims, false)?;
            let ones = cx.cast(counts, cx.elem(x)?)?;
            let count = cx.reduce(ReduceFn::Sum, ones, &dims, false)?;
            cx.map(ScalarFn::Div, &[sum, count])?
        }
        _ => return None,
    };
    cx.cast(value, call.elem()?)
}
