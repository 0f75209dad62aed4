//! What the author knows of a value, and what a kernel says while it runs.

use super::ops::missing;
use super::{Carried, Extent, Handle, Int, Mask, Tile, make, record};
use crate::program::Assumption;

#[track_caller]
fn assume<T: Int>(x: Tile<T>, assumption: Assumption) -> Tile<T> {
    make(&[x.handle], |b, args| match args {
        &[x] => b.assume(x, assumption),
        _ => Err(missing("assume")),
    })
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
    print(prefix, &super::control::parts(&tiles), false);
}

/// [`device_print`] with integers in hexadecimal.
#[track_caller]
pub fn device_print_hex(prefix: &str, tiles: impl Carried) {
    print(prefix, &super::control::parts(&tiles), true);
}

#[track_caller]
fn print(prefix: &str, tiles: &[Handle], hex: bool) {
    record(tiles, |b, args| {
        b.print(prefix, args, hex)?;
        args.first().copied().ok_or_else(|| missing("print"))
    });
}

/// Ends the launch with an error where an element of a condition is false and the mask is true.
#[track_caller]
pub fn device_assert(condition: Tile<bool>, message: &str, mask: impl Mask) {
    let shape = condition.shape();
    let mask = mask.mask().map(|m| m.broadcast_to(shape).handle);
    let args: Vec<Handle> = std::iter::once(condition.handle).chain(mask).collect();
    record(&args, |b, args| {
        let condition = args.first().copied().ok_or_else(|| missing("assert"))?;
        b.assert(condition, message, args.get(1).copied())?;
        Ok(condition)
    });
}
