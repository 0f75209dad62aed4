//! What is composed of the other functions, and products.

use super::shape::indices;
use super::{
    DotPrecision, Float, Number, Operand, Tile, f8e4m3, f8e5m2, gather, join, maximum, minimum, range,
    select, typed,
};
use crate::data::Element;
use crate::dynamic;
use half::{bf16, f16};

/// Kinds that a matrix product takes.
#[diagnostic::on_unimplemented(message = "there is no matrix product of tiles of `{Self}`")]
pub trait Factor: Element {
    /// The kind of the sums.
    type Sum: Number;
}

macro_rules! factors {
    ($($t:ty: $sum:ty;)*) => { $(impl Factor for $t { type Sum = $sum; })* };
}

factors! {
    f8e4m3: f32; f8e5m2: f32; f16: f32; bf16: f32; f32: f32; f64: f64; i8: i32; u8: i32;
}

/// Floats of at most 32 bits, whose products add up in `f32`.
pub trait Short: Float + Factor<Sum = f32> {}

impl Short for f16 {}
impl Short for bf16 {}
impl Short for f32 {}

/// The matrix product of `a: [M, K]` and `b: [K, N]`, or of batches of them, added to `sum: [M, N]`, or to a number.
/// `f32` is rounded to TF32 where the target's matrix unit takes that; [`dot_with`] has the choice.
#[track_caller]
pub fn dot<T: Factor>(a: Tile<T>, b: Tile<T>, sum: impl Operand<T::Sum, Out = T::Sum>) -> Tile<T::Sum> {
    dot_with(a, b, sum, DotPrecision::default())
}

/// [`dot`] in a precision of one's own, which matters for `f32`. Triton's `input_precision`.
#[track_caller]
pub fn dot_with<T: Factor>(
    a: Tile<T>,
    b: Tile<T>,
    sum: impl Operand<T::Sum, Out = T::Sum>,
    precision: DotPrecision,
) -> Tile<T::Sum> {
    typed(dynamic::dot_with(a.tile, b.tile, sum.tile::<T::Sum>().tile, precision))
}

/// `exp(x)` along an axis, divided by its sum; exact in the presence of large values.
#[track_caller]
pub fn softmax<T: Float>(x: Tile<T>, axis: usize) -> Tile<T> {
    let e = (x - x.max(axis).expand_dims(axis)).exp();
    e / e.sum(axis).expand_dims(axis)
}

/// Two tiles one behind the other along the last axis. Triton's `cat`, which may reorder; this does not.
#[track_caller]
pub fn cat<T: Element>(first: Tile<T>, second: Tile<T>) -> Tile<T> {
    let mut shape = first.shape();
    match shape.last_mut() {
        Some(last) => *last *= 2,
        None => return join(first, second),
    }
    join(first, second).trans().reshape(shape)
}

/// The elements of two tiles by turns along the last axis.
#[track_caller]
pub fn interleave<T: Element>(first: Tile<T>, second: Tile<T>) -> Tile<T> {
    let mut shape = first.shape();
    match shape.last_mut() {
        Some(last) => *last *= 2,
        None => return join(first, second),
    }
    join(first, second).reshape(shape)
}

/// The elements along an axis from the last to the first.
#[track_caller]
pub fn flip<T: Element>(x: Tile<T>, axis: usize) -> Tile<T> {
    let last = x.shape().get(axis).map_or(0, |&n| n.saturating_sub(1));
    gather(x, last - indices(x, axis), axis)
}

/// The elements along the last axis from the smallest to the largest, or the other way round. NaN counts as largest.
#[track_caller]
pub fn sort<T: Number>(x: Tile<T>, descending: bool) -> Tile<T> {
    sort_with_indices(x, descending).0
}

/// [`sort`], and where each element was before. Of equal ones the earlier comes first.
#[track_caller]
pub fn sort_with_indices<T: Number>(x: Tile<T>, descending: bool) -> (Tile<T>, Tile<i32>) {
    let shape = x.shape();
    let (Some(axis), Some(&extent)) = (shape.len().checked_sub(1), shape.last()) else {
        return (x.refuse("sort", String::from("a scalar has no axis")), super::zeros(shape));
    };
    let at = indices(x, axis);
    let (mut x, mut index) = (x, at);
    let mut run = 2;
    while run <= extent {
        let upward = (at & run).eq(0);
        let mut distance = run / 2;
        while distance > 0 {
            let partner = at ^ distance;
            let (other, theirs) = (gather(x, partner, axis), gather(index, partner, axis));
            let keeps_smaller = (at & distance).eq(0).eq(upward);
            let before = precedes(other, theirs, x, index, descending);
            let swap = before.eq(keeps_smaller);
            (x, index) = (select(swap, other, x), select(swap, theirs, index));
            distance /= 2;
        }
        run *= 2;
    }
    (x, index)
}

/// Whether element `a`, once at `i`, comes before `b`, once at `j`.
#[track_caller]
fn precedes<T: Number>(a: Tile<T>, i: Tile<i32>, b: Tile<T>, j: Tile<i32>, descending: bool) -> Tile<bool> {
    let (a_nan, b_nan) = (a.ne(a), b.ne(b));
    let first = if descending { a.gt(b) | (a_nan & !b_nan) } else { a.lt(b) | (b_nan & !a_nan) };
    first | ((a.eq(b) | (a_nan & b_nan)) & i.lt(j))
}

/// The `k` largest elements along the last axis, the largest first; `k` is a power of two.
#[track_caller]
pub fn topk<T: Number>(x: Tile<T>, k: usize) -> Tile<T> {
    topk_with_indices(x, k).0
}

/// [`topk`], and where each element is.
#[track_caller]
pub fn topk_with_indices<T: Number>(x: Tile<T>, k: usize) -> (Tile<T>, Tile<i32>) {
    let mut shape = x.shape();
    let Some(axis) = shape.len().checked_sub(1) else {
        return (x.refuse("topk", String::from("a scalar has no axis")), super::zeros(shape));
    };
    match shape.last_mut() {
        Some(last) if k <= *last => *last = k,
        _ => return (x.refuse("topk", format!("there are fewer than {k} elements")), super::zeros(shape)),
    }
    let (values, index) = sort_with_indices(x, true);
    let first = range(0, k).broadcast_to(shape);
    (gather(values, first, axis), gather(index, first, axis))
}

/// The place of instance `(i, j)` of `rows x cols` where instances run down groups of `group` rows instead of along
/// rows, so that neighbours in time share operands in cache.
#[track_caller]
pub fn swizzle2d(
    i: Tile<i32>,
    j: Tile<i32>,
    rows: impl Operand<i32, Out = i32>,
    cols: impl Operand<i32, Out = i32>,
    group: usize,
) -> (Tile<i32>, Tile<i32>) {
    let (rows, cols): (Tile<i32>, Tile<i32>) = (rows.tile(), cols.tile());
    let flat = i * cols + j;
    let in_group = cols * group;
    let first = flat / in_group * group;
    let height = minimum(rows - first, group);
    let rest = flat % in_group;
    (first + rest % height, rest / height)
}

/// `x` where it is positive, else 0; NaN stays NaN.
#[track_caller]
pub fn relu<T: Number>(x: Tile<T>) -> Tile<T> {
    maximum(x, super::zeros_like(x))
}
