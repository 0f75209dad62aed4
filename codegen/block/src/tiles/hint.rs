//! What the author knows of a value, and what a kernel says while it runs.

use super::{Carried, Extent, Int, Mask, Tile, typed};
use crate::dynamic;
use crate::program::Assumption;

#[track_caller]
fn assume<T: Int>(x: Tile<T>, assumption: Assumption) -> Tile<T> {
    typed(x.tile.assume(assumption))
}

/// `x`, whose first element of each row along the last axis is divisible by `by`. A launch that checks accesses relies on
/// it where the arguments prove it, one that does not relies on it as it is; the interpreter checks it.
#[track_caller]
pub fn multiple_of<T: Int>(x: Tile<T>, by: impl Extent) -> Tile<T> {
    assume(x, Assumption::MultipleOf(u32::try_from(by.get()).unwrap_or(1)))
}

/// `x`, of which along the last axis each aligned group of `count` elements counts up by one; relied on as
/// [`multiple_of`] is.
#[track_caller]
pub fn max_contiguous<T: Int>(x: Tile<T>, count: impl Extent) -> Tile<T> {
    assume(x, Assumption::Contiguous(u32::try_from(count.get()).unwrap_or(1)))
}

/// `x`, whose elements lie between two numbers, both included; relied on as [`multiple_of`] is. What Triton's `assume` of
/// comparisons is mostly used for.
#[track_caller]
pub fn assume_between<T: Int>(x: Tile<T>, low: impl Extent, high: impl Extent) -> Tile<T> {
    assume(x, Assumption::Between(low.get(), high.get()))
}

/// Prints the elements of a tile, or of a tuple of tiles, with the instance and a prefix, for debugging.
#[track_caller]
pub fn device_print(prefix: &str, tiles: impl Carried) {
    print(prefix, &tiles, false);
}

/// [`device_print`] with integers in hexadecimal.
#[track_caller]
pub fn device_print_hex(prefix: &str, tiles: impl Carried) {
    print(prefix, &tiles, true);
}

#[track_caller]
fn print(prefix: &str, carried: &impl Carried, hex: bool) {
    let mut tiles = Vec::new();
    carried.tiles(&mut tiles);
    dynamic::device_print(prefix, &tiles, hex);
}

/// Ends the launch with an error where an element of a condition is false and the mask is true.
#[track_caller]
pub fn device_assert(condition: Tile<bool>, message: &str, mask: impl Mask) {
    dynamic::device_assert(condition.tile, message, mask.mask().map(|mask| mask.tile));
}
