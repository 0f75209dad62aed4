//! Reductions.
//!
//! A reduction over `f16` or `bf16` whose result is read as it is stays in that type (it accumulates in `f32`);
//! one that goes on computing with the result does so in `f32`.

use tilefuse_block::{Elem, Literal, ReduceFn, ScalarFn};

use super::arith::{maximum, minimum};
use super::cx::{Call, Cx, wide};
use super::registry::Registry;
use crate::args::{Args, wrap, wrap_all};
use crate::graph::ValueRef;
use crate::recording::Arg;
use crate::types::{Device, index_elem};

pub(super) fn register(r: &mut Registry) {
    r.one(&["sum"], |cx, call| plain(cx, call, ReduceFn::Sum));
    r.one(&["prod"], |cx, call| plain(cx, call, ReduceFn::Prod));
    r.one(&["nansum"], nansum);
    r.one(&["mean"], mean);
    r.one(&["adaptive_avg_pool1d", "adaptive_avg_pool2d"], global_average);
    r.many(&["max"], |cx, call| extreme(cx, call, true));
    r.many(&["min"], |cx, call| extreme(cx, call, false));
    r.one(&["amax"], |cx, call| amax(cx, call, true));
    r.one(&["amin"], |cx, call| amax(cx, call, false));
    r.many(&["aminmax"], aminmax);
    r.one(&["argmax"], |cx, call| arg_extreme(cx, call, true));
    r.one(&["argmin"], |cx, call| arg_extreme(cx, call, false));
    r.one(&["any"], |cx, call| truth(cx, call, ReduceFn::Or));
    r.one(&["all"], |cx, call| truth(cx, call, ReduceFn::And));
    r.one(&["var"], |cx, call| Some(moments(cx, call, false)?.0));
    r.one(&["std"], |cx, call| Some(moments(cx, call, true)?.0));
    r.many(&["var_mean"], |cx, call| moments(cx, call, false).map(|(var, mean)| vec![var, mean]));
    r.many(&["std_mean"], |cx, call| moments(cx, call, true).map(|(std, mean)| vec![std, mean]));
    r.one(&["norm", "linalg_vector_norm", "frobenius_norm"], norm);
    r.one(&["logsumexp", "special_logsumexp"], logsumexp);
    r.one(&["count_nonzero"], count_nonzero);
}

/// Dimensions of the operand that the call reduces: all where `dim` is absent or empty.
pub(super) fn reduced(args: Args<'_, u16>, name: &str, rank: usize) -> Option<Vec<usize>> {
    match args.get(name) {
        None => Some((0..rank).collect()),
        Some(_) => {
            let dims = args.ints(name)?;
            if dims.is_empty() || rank == 0 { Some((0..rank).collect()) } else { wrap_all(&dims, rank) }
        }
    }
}

/// The operand, the dimensions that disappear, and whether they are kept with size 1.
fn target(cx: &Cx, call: &Call<'_>) -> Option<(ValueRef, Vec<usize>, bool)> {
    let x = call.tensor("self")?;
    let dims = reduced(call.args, "dim", cx.rank(x))?;
    Some((x, dims, call.args.bool("keepdim").unwrap_or(false)))
}

/// Number of elements that one result is made of.
pub(super) fn count(cx: &Cx, x: ValueRef, dims: &[usize]) -> f64 {
    let shape = cx.shape(x);
    dims.iter().map(|&d| shape[d] as f64).product()
}

fn plain(cx: &mut Cx, call: &Call<'_>, combine: ReduceFn) -> Option<ValueRef> {
    let (x, dims, keep) = target(cx, call)?;
    let elem = call.elem()?;
    if elem == Elem::Bool {
        let x = cx.cast(x, elem)?;
        let combine = if combine == ReduceFn::Sum { ReduceFn::Or } else { ReduceFn::And };
        return cx.reduce(combine, x, &dims, keep);
    }
    let x = cx.cast(x, elem)?;
    cx.reduce(combine, x, &dims, keep)
}

fn nansum(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (x, dims, keep) = target(cx, call)?;
    let mut x = cx.cast(x, call.elem()?)?;
    if call.elem()?.is_float() {
        let zero = cx.number(call.elem()?, 0.0);
        let is_nan = cx.map(ScalarFn::IsNan, &[x])?;
        x = cx.select(is_nan, zero, x)?;
    }
    cx.reduce(ReduceFn::Sum, x, &dims, keep)
}

/// Mean over dimensions that stay with size 1, in the operand's type.
pub(super) fn mean_of(cx: &mut Cx, x: ValueRef, dims: &[usize], keep: bool) -> Option<ValueRef> {
    let n = count(cx, x, dims);
    let sum = cx.reduce(ReduceFn::Sum, x, dims, keep)?;
    cx.map_number(ScalarFn::Div, sum, n)
}

fn mean(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (x, dims, keep) = target(cx, call)?;
    let elem = call.elem()?;
    if !elem.is_float() {
        return None;
    }
    let x = cx.cast(x, elem)?;
    let x = cx.cast(x, wide(elem))?;
    let value = mean_of(cx, x, &dims, keep)?;
    cx.cast(value, elem)
}

/// Pooling to one position is a mean.
fn global_average(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let pooled = if call.name == "adaptive_avg_pool1d" { 1 } else { 2 };
    let rank = cx.rank(x);
    if call.out().shape[rank - pooled..].iter().any(|&n| n != 1) || !call.elem()?.is_float() {
        return None;
    }
    let x = cx.widen(x)?;
    let dims: Vec<usize> = (rank - pooled..rank).collect();
    let value = mean_of(cx, x, &dims, true)?;
    cx.cast(value, call.elem()?)
}

/// Maximum or minimum along dimensions; of booleans too.
fn combine_extreme(cx: &mut Cx, x: ValueRef, dims: &[usize], keep: bool, max: bool) -> Option<ValueRef> {
    let combine = match (cx.elem(x)? == Elem::Bool, max) {
        (true, true) => ReduceFn::Or,
        (true, false) => ReduceFn::And,
        (false, true) => ReduceFn::Max,
        (false, false) => ReduceFn::Min,
    };
    cx.reduce(combine, x, dims, keep)
}

fn extreme(cx: &mut Cx, call: &Call<'_>, max: bool) -> Option<Vec<ValueRef>> {
    if call.args.get("other").is_some() {
        let value = if max { maximum(cx, call)? } else { minimum(cx, call)? };
        return Some(vec![value]);
    }
    let (x, dims, keep) = target(cx, call)?;
    let value = combine_extreme(cx, x, &dims, keep, max)?;
    match (call.args.get("dim"), call.outs.len()) {
        (None, 1) => Some(vec![value]),
        (Some(Arg::Int(_)), 2) => Some(vec![value, position(cx, x, &dims, keep, max)?]),
        _ => None,
    }
}

fn amax(cx: &mut Cx, call: &Call<'_>, max: bool) -> Option<ValueRef> {
    let (x, dims, keep) = target(cx, call)?;
    combine_extreme(cx, x, &dims, keep, max)
}

fn aminmax(cx: &mut Cx, call: &Call<'_>) -> Option<Vec<ValueRef>> {
    let (x, dims, keep) = target(cx, call)?;
    Some(vec![combine_extreme(cx, x, &dims, keep, false)?, combine_extreme(cx, x, &dims, keep, true)?])
}

fn arg_extreme(cx: &mut Cx, call: &Call<'_>, max: bool) -> Option<ValueRef> {
    let mut x = call.tensor("self")?;
    let keep = call.args.bool("keepdim").unwrap_or(false);
    if call.args.absent("dim") {
        let n = cx.graph.ty(x).numel();
        x = cx.reshape(x, &[n])?;
        let value = position(cx, x, &[0], false, max)?;
        return cx.reshape(value, &call.out().shape);
    }
    let dim = wrap(call.args.int("dim")?, cx.rank(x))?;
    let dims = if cx.rank(x) == 0 { Vec::new() } else { vec![dim] };
    position(cx, x, &dims, keep, max)
}

/// Position of the first largest (or smallest) element along one dimension; the first NaN where there is one.
fn position(cx: &mut Cx, x: ValueRef, dims: &[usize], keep: bool, max: bool) -> Option<ValueRef> {
    let shape = cx.shape(x);
    let &[dim] = dims else {
        return cx.full(Literal::int(Elem::I64, 0), &shape).filter(|_| dims.is_empty());
    };
    let index = index_elem(shape[dim]);
    let best = combine_extreme(cx, x, dims, true, max)?;
    let mut found = cx.map(ScalarFn::Eq, &[x, best])?;
    if cx.elem(x)?.is_float() {
        let is_nan = cx.map(ScalarFn::IsNan, &[x])?;
        found = cx.map(ScalarFn::Or, &[found, is_nan])?;
    }
    let positions = cx.iota(index, &shape, dim);
    let none = cx.number(index, (shape[dim] - 1).max(0) as f64);
    let candidates = cx.select(found, positions, none)?;
    let first = cx.reduce(ReduceFn::Min, candidates, dims, keep)?;
    cx.cast(first, Elem::I64)
}

fn truth(cx: &mut Cx, call: &Call<'_>, combine: ReduceFn) -> Option<ValueRef> {
    let (x, dims, keep) = target(cx, call)?;
    let x = cx.cast(x, Elem::Bool)?;
    let value = cx.reduce(combine, x, &dims, keep)?;
    cx.cast(value, call.elem()?)
}

/// What the sum of squared deviations is divided by, less the number of elements.
fn correction(call: &Call<'_>) -> Option<f64> {
    if let Some(unbiased) = call.args.get("unbiased") {
        return match unbiased {
            Arg::Bool(b) => Some(f64::from(u8::from(*b))),
            _ => None,
        };
    }
    if call.args.absent("correction") { Some(1.0) } else { call.args.float("correction") }
}

/// Statistics over dimensions that stay with size 1, in the operand's type.
pub(super) struct Moments {
    pub(super) mean: ValueRef,
    pub(super) variance: ValueRef,
    /// Of each element, from the mean.
    pub(super) deviation: ValueRef,
}

/// Mean and variance over dimensions, and deviations from the mean.
///
/// The quotient of a sum may miss the mean by some units in its last place, which counts where the elements are all but
/// equal: mean and variance are corrected by the mean of the deviations, whose sum goes with that of their squares. In
/// results of a narrower type nobody could see that.
pub(super) fn mean_and_variance(
    cx: &mut Cx,
    call: &Call<'_>,
    x: ValueRef,
    dims: &[usize],
    correction: f64,
) -> Option<Moments> {
    let n = count(cx, x, dims);
    let rough = mean_of(cx, x, dims, true)?;
    let deviation = cx.map(ScalarFn::Sub, &[x, rough])?;
    let square = cx.map(ScalarFn::Mul, &[deviation, deviation])?;
    let squares = cx.reduce(ReduceFn::Sum, square, dims, true)?;
    let divisor = (n - correction).max(0.0);
    if call.elem()?.bits() < cx.elem(x)?.bits() {
        let variance = cx.map_number(ScalarFn::Div, squares, divisor)?;
        return Some(Moments { mean: rough, variance, deviation });
    }
    let missed = mean_of(cx, deviation, dims, true)?;
    let finite = cx.map_number(ScalarFn::Lt, squares, f64::INFINITY)?;
    let nothing = cx.number(cx.elem(missed)?, 0.0);
    let missed = cx.select(finite, missed, nothing)?;
    let mean = cx.map(ScalarFn::Add, &[rough, missed])?;
    // Not those from the corrected mean, for which each element would be needed again.
    let deviation = cx.map(ScalarFn::Sub, &[deviation, missed])?;
    let excess = cx.map(ScalarFn::Mul, &[missed, missed])?;
    let excess = cx.map_number(ScalarFn::Mul, excess, n)?;
    let sum = cx.map(ScalarFn::Sub, &[squares, excess])?;
    let sum = cx.map_number(ScalarFn::Max, sum, 0.0)?;
    let variance = cx.map_number(ScalarFn::Div, sum, divisor)?;
    Some(Moments { mean, variance, deviation })
}

/// Of `f32` on the host the `f64` in which eager sums deviations there, whose squares may leave `f32`.
pub(super) fn widest(cx: &mut Cx, x: ValueRef) -> Option<ValueRef> {
    let narrow = cx.graph.ty(x).dtype.elem()? == Elem::F32 && cx.device == Device::Cpu;
    if narrow { cx.cast(x, Elem::F64) } else { Some(x) }
}

fn moments(cx: &mut Cx, call: &Call<'_>, root: bool) -> Option<(ValueRef, ValueRef)> {
    let (x, dims, _) = target(cx, call)?;
    let elem = call.elem()?;
    let x = cx.widen(x)?;
    if !elem.is_float() || cx.elem(x)? != wide(elem) {
        return None;
    }
    let x = widest(cx, x)?;
    let Moments { mean, mut variance, .. } = mean_and_variance(cx, call, x, &dims, correction(call)?)?;
    if root {
        variance = cx.map(ScalarFn::Sqrt, &[variance])?;
    }
    let shape = &call.out().shape;
    let (variance, mean) = (cx.reshape(variance, shape)?, cx.reshape(mean, shape)?);
    Some((cx.cast(variance, elem)?, cx.cast(mean, elem)?))
}

fn norm(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (x, dims, keep) = target(cx, call)?;
    let elem = call.elem()?;
    if !elem.is_float() || !cx.elem(x)?.is_float() {
        return None;
    }
    let order = ["p", "ord"].iter().find_map(|name| call.args.float(name)).unwrap_or(2.0);
    let x = cx.cast(x, elem)?;
    let x = cx.cast(x, wide(elem))?;
    let value = norm_of(cx, x, &dims, keep, order)?;
    cx.cast(value, elem)
}

/// The norm of one number is its magnitude, without the overflow of a power.
fn norm_of(cx: &mut Cx, x: ValueRef, dims: &[usize], keep: bool, order: f64) -> Option<ValueRef> {
    if order != 0.0 && count(cx, x, dims) == 1.0 {
        let magnitude = cx.map(ScalarFn::Abs, &[x])?;
        return cx.reduce(ReduceFn::Max, magnitude, dims, keep);
    }
    if order == 2.0 {
        let square = cx.map(ScalarFn::Mul, &[x, x])?;
        let sum = cx.reduce(ReduceFn::Sum, square, dims, keep)?;
        return cx.map(ScalarFn::Sqrt, &[sum]);
    }
    let magnitude = cx.map(ScalarFn::Abs, &[x])?;
    if order.is_infinite() {
        let combine = if order > 0.0 { ReduceFn::Max } else { ReduceFn::Min };
        return cx.reduce(combine, magnitude, dims, keep);
    }
    if order == 0.0 {
        let some = cx.map_number(ScalarFn::Ne, x, 0.0)?;
        let one = cx.cast(some, cx.elem(x)?)?;
        return cx.reduce(ReduceFn::Sum, one, dims, keep);
    }
    if order == 1.0 {
        return cx.reduce(ReduceFn::Sum, magnitude, dims, keep);
    }
    let power = cx.map_number(ScalarFn::Pow, magnitude, order)?;
    let sum = cx.reduce(ReduceFn::Sum, power, dims, keep)?;
    cx.map_number(ScalarFn::Pow, sum, 1.0 / order)
}

/// `log(sum(exp(x - m))) + m`, with `m` the maximum, or 0 where that is infinite.
fn logsumexp(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (x, dims, keep) = target(cx, call)?;
    let elem = call.elem()?;
    let x = cx.cast(x, elem)?;
    let x = cx.cast(x, wide(elem))?;
    let largest = cx.reduce(ReduceFn::Max, x, &dims, true)?;
    let infinite = cx.map(ScalarFn::IsInf, &[largest])?;
    let zero = cx.number(wide(elem), 0.0);
    let shift = cx.select(infinite, zero, largest)?;
    let difference = cx.map(ScalarFn::Sub, &[x, shift])?;
    let exponential = cx.map(ScalarFn::Exp, &[difference])?;
    let sum = cx.reduce(ReduceFn::Sum, exponential, &dims, true)?;
    let logarithm = cx.map(ScalarFn::Log, &[sum])?;
    let value = cx.map(ScalarFn::Add, &[logarithm, shift])?;
    let value = if keep { value } else { cx.reshape(value, &call.out().shape)? };
    cx.cast(value, elem)
}

fn count_nonzero(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let dims = reduced(call.args, "dim", cx.rank(x))?;
    let some = cx.cast(x, Elem::Bool)?;
    let one = cx.cast(some, Elem::I64)?;
    cx.reduce(ReduceFn::Sum, one, &dims, false)
}
