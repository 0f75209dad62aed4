//! Reductions and scans with a combiner of one's own, and what is made of them.

use super::shape::indices;
use super::{Number, Tile, select};
use crate::dynamic::{self, Carried};
use crate::types::Elem;

/// Combines elements along an axis, which disappears, of a tile or of a tuple of tiles of one shape. `combine` takes the
/// elements of two positions as scalars, and must be associative and commutative; it uses no other tile. Triton's
/// `reduce`.
///
/// ```
/// # use tilefuse_block::tiles::*;
/// # program("f", |k| {
/// # let x = k.ptr::<f32>("x") + range(0, 8);
/// let v = x.load();
/// let (sum, squares) = reduce_with((v, v * v), 0, |a, b| (a.0 + b.0, a.1 + b.1));
/// # let _ = (sum, squares);
/// # }).unwrap();
/// ```
#[track_caller]
pub fn reduce_with<C: Carried>(tiles: C, axis: usize, combine: impl FnOnce(C, C) -> C) -> C {
    dynamic::reduce_with(tiles, axis, combine)
}

/// For every position along an axis, all elements up to and with it combined, as [`reduce_with`] combines them; from the
/// last element to the first where `reverse` is set. The combiner need not be commutative.
#[track_caller]
pub fn associative_scan<C: Carried>(
    tiles: C,
    axis: usize,
    reverse: bool,
    combine: impl FnOnce(C, C) -> C,
) -> C {
    dynamic::associative_scan(tiles, axis, reverse, combine)
}

/// Sums along an axis of all elements up to and with each.
#[track_caller]
pub fn cumsum<T: Number>(x: Tile<T>, axis: usize) -> Tile<T> {
    match T::ELEM {
        Elem::F16 | Elem::Bf16 => associative_scan(x.cast::<f32>(), axis, false, |a, b| a + b).cast(),
        _ => associative_scan(x, axis, false, |a, b| a + b),
    }
}

/// Products along an axis of all elements up to and with each.
#[track_caller]
pub fn cumprod<T: Number>(x: Tile<T>, axis: usize) -> Tile<T> {
    match T::ELEM {
        Elem::F16 | Elem::Bf16 => associative_scan(x.cast::<f32>(), axis, false, |a, b| a * b).cast(),
        _ => associative_scan(x, axis, false, |a, b| a * b),
    }
}

/// The largest element along an axis and its index. Of several the first; a NaN counts as larger than all else.
/// Triton's `max` with `return_indices`.
#[track_caller]
pub fn max_with_indices<T: Number>(x: Tile<T>, axis: usize) -> (Tile<T>, Tile<i32>) {
    best(x, axis, |a, b| a.gt(b))
}

/// The smallest element along an axis and its index. Of several the first; a NaN counts as smaller than all else.
/// Triton's `min` with `return_indices`.
#[track_caller]
pub fn min_with_indices<T: Number>(x: Tile<T>, axis: usize) -> (Tile<T>, Tile<i32>) {
    best(x, axis, |a, b| a.lt(b))
}

/// The index of the largest element along an axis, as [`max_with_indices`] has it.
#[track_caller]
pub fn argmax<T: Number>(x: Tile<T>, axis: usize) -> Tile<i32> {
    max_with_indices(x, axis).1
}

/// The index of the smallest element along an axis, as [`min_with_indices`] has it.
#[track_caller]
pub fn argmin<T: Number>(x: Tile<T>, axis: usize) -> Tile<i32> {
    min_with_indices(x, axis).1
}

#[track_caller]
fn best<T: Number>(
    x: Tile<T>,
    axis: usize,
    better: impl Fn(Tile<T>, Tile<T>) -> Tile<bool>,
) -> (Tile<T>, Tile<i32>) {
    let index = indices(x, axis);
    reduce_with((x, index), axis, |(a, i), (b, j)| {
        let (a_nan, b_nan) = (a.ne(a), b.ne(b));
        let first = better(a, b) | (a_nan & !b_nan);
        let same = a.eq(b) | (a_nan & b_nan);
        let take = first | (same & i.lt(j));
        (select(take, a, b), select(take, i, j))
    })
}
