//! What an instance computes: how many filters at how many pixels, and how pixels become vectors.

use tilefuse_block::{Builder, Elem, ScalarFn as F, Value};

use super::Conv;
use super::make::{Made, add, below, both, int, like, plus, shift, split, times};

/// How a convolution is divided into instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Block {
    /// Filters of an instance, a power of two. Of a depthwise convolution those that follow one another in a loop, any
    /// number.
    pub(super) filters: u32,
    /// Rows of pixels of an instance, a power of two; 0 where pixels are numbered through whole images, which lets
    /// vectors go on from one row to the next.
    pub(super) rows: u32,
    /// Pixels of a row, or of an image that is numbered through; a power of two.
    pub(super) pixels: u32,
    /// Channels that all taps are applied to before the next ones are.
    pub(super) channels: u32,
    /// Channels of a step of the innermost loop.
    pub(super) unroll: u32,
    /// Whether instances that follow each other have the same pixels and other filters.
    pub(super) filters_first: bool,
}

/// Vectors of sums in a block.
const SUMS: u32 = 16;

impl Block {
    /// The block of a convolution for so many threads.
    pub(super) fn of(conv: &Conv, threads: u32) -> Block {
        // Of vectors of 512 bits; with shorter ones a block is computed in parts.
        let lanes = if conv.sum() == Elem::F64 { 8 } else { 16 };
        if conv.depth() == 1 { Block::depthwise(conv, threads, lanes) } else { Block::dense(conv, lanes) }
    }

    /// The sums of a block take half of the registers. Strided pixels are two loads and a shuffle each, so that a block has
    /// few of them and more filters; else the fewest pixels are computed in vain.
    fn dense(conv: &Conv, lanes: u32) -> Block {
        let (same, columns) = shape(conv, lanes);
        let single = conv.taps() == 1;
        let block = |vectors: u32| {
            let area = vectors * lanes;
            let pixels = if same { area } else { columns.min(area) };
            let rows = if same { 0 } else { area / pixels };
            let unroll = if single { 2 } else { 1 };
            let filters = SUMS / vectors;
            Block { filters, rows, pixels, channels: channels(conv), unroll, filters_first: single }
        };
        let strided = conv.axes.last().is_some_and(|a| a.stride > 1);
        let order: &[u32] = match (strided, single) {
            (true, false) => &[1, 2],
            // A whole image in one block reads each weight once.
            (false, true) if conv.pixels() <= u64::from(4 * lanes) => &[4, 2],
            _ => &[2, 4],
        };
        let filters = |b: &Block| conv.filters_of_group().div_ceil(b.filters.into()) * u64::from(b.filters);
        let computed = |v: u32| block(v).parts(conv) * u64::from(block(v).area()) * filters(&block(v));
        let least = order.iter().map(|&v| computed(v)).min().unwrap_or(0);
        let vectors = order.iter().copied().find(|&v| computed(v) * 50 <= least * 51);
        block(vectors.unwrap_or(2))
    }

    /// Some vectors of an image, whose masks are the same for all filters of an instance.
    fn depthwise(conv: &Conv, threads: u32, lanes: u32) -> Block {
        let (same, columns) = shape(conv, lanes);
        let (rows, pixels) = match same {
            true => (0, power(conv.pixels()).clamp(lanes, lanes * 16)),
            false => ((lanes * 2 / columns).max(1), columns),
        };
        let block = Block { filters: 1, rows, pixels, channels: 1, unroll: 1, filters_first: true };
        let least = u64::from(threads.max(1)) * 8;
        let filters = (conv.batch * conv.filters * block.parts(conv) / least).clamp(1, 32);
        Block { filters: filters as u32, ..block }
    }

    /// Pixels of an instance.
    pub(super) fn area(&self) -> u32 {
        self.rows.max(1) * self.pixels
    }

    /// Instances along the pixels of an image.
    pub(super) fn parts(&self, conv: &Conv) -> u64 {
        match self.rows {
            0 => conv.pixels().div_ceil(self.pixels.into()),
            rows => {
                let width = conv.axes.last().map_or(1, |a| a.out);
                (conv.pixels() / width).div_ceil(rows.into()) * width.div_ceil(self.pixels.into())
            }
        }
    }
}

/// The pixels of an instance.
pub(super) struct Pixels {
    /// Their numbers in an image of the result.
    pub(super) number: Value,
    /// Their positions along the axes.
    place: Vec<Value>,
    /// Which of them there are; all where there is no mask.
    pub(super) mask: Option<Value>,
    /// Whether the numbers are those of the image as well.
    same: bool,
}

impl Pixels {
    /// The pixels of part `part`.
    pub(super) fn of(b: &mut Builder, conv: &Conv, block: &Block, part: Value) -> Made<Pixels> {
        if block.rows == 0 {
            Pixels::through(b, conv, block, part)
        } else {
            Pixels::rows(b, conv, block, part)
        }
    }

    fn through(b: &mut Builder, conv: &Conv, block: &Block, part: Value) -> Made<Pixels> {
        let range = b.range(0, block.pixels)?;
        let first = times(b, part, block.pixels.into())?;
        let number = shift(b, range, first)?;
        let mut mask = None;
        if !conv.pixels().is_multiple_of(block.pixels.into()) {
            mask = Some(below(b, number, conv.pixels())?);
        }
        let outs: Vec<u64> = conv.axes.iter().map(|a| a.out).collect();
        let place = digits(b, number, &outs)?;
        Ok(Pixels { number, place, mask, same: conv.axes.iter().all(super::Axis::is_same) })
    }

    fn rows(b: &mut Builder, conv: &Conv, block: &Block, part: Value) -> Made<Pixels> {
        let (rows, columns) = (block.rows, block.pixels);
        let (width, outer) = match conv.axes.split_last() {
            Some((last, outer)) => (last.out, outer),
            None => (1, &conv.axes[..]),
        };
        let height: u64 = outer.iter().map(|a| a.out).product();
        let (down, right) = split(b, part, width.div_ceil(columns.into()))?;
        let (down, right) = (times(b, down, rows.into())?, times(b, right, columns.into())?);
        let (row, column) = (b.range(0, rows)?, b.range(0, columns)?);
        let (row, column) = (shift(b, row, down)?, shift(b, column, right)?);
        let flat = |b: &mut Builder, tile: Value, axis: u8| -> Made<Value> {
            let tile = super::make::along(b, tile, axis, &[rows, columns])?;
            b.reshape(tile, &[rows * columns])
        };
        let mut masks = [None, None];
        if !height.is_multiple_of(rows.into()) {
            let mask = below(b, row, height)?;
            masks[0] = Some(flat(b, mask, 0)?);
        }
        if !width.is_multiple_of(columns.into()) {
            let mask = below(b, column, width)?;
            masks[1] = Some(flat(b, mask, 1)?);
        }
        let mask = both(b, masks[0], masks[1])?;
        let outs: Vec<u64> = outer.iter().map(|a| a.out).collect();
        let mut place = Vec::new();
        for digit in digits(b, row, &outs)? {
            place.push(flat(b, digit, 0)?);
        }
        let (row, column) = (flat(b, row, 0)?, flat(b, column, 1)?);
        place.push(column);
        let start = times(b, row, width)?;
        let number = add(b, start, column)?;
        Ok(Pixels { number, place, mask, same: false })
    }

    /// Where a tap reads in a channel of the image, and which of the pixels have something there.
    pub(super) fn tap(&self, b: &mut Builder, conv: &Conv, tap: &[Value]) -> Made<(Value, Option<Value>)> {
        let mut mask = self.mask;
        let mut shifts: Option<Value> = None;
        let mut offsets: Option<Value> = None;
        let mut pitch = 1;
        for ((axis, &place), &tap) in conv.axes.iter().zip(&self.place).zip(tap).rev() {
            let from = times(b, tap, axis.dilation)?;
            let from = plus(b, from, -(axis.padding as i64))?;
            let at = times(b, place, axis.stride)?;
            let at = shift(b, at, from)?;
            let (before, behind) = axis.overhangs();
            if before {
                let zero = like(b, at, 0);
                let inside = b.map(F::Ge, &[at, zero])?;
                mask = both(b, mask, Some(inside))?;
            }
            if behind {
                let inside = below(b, at, axis.image)?;
                mask = both(b, mask, Some(inside))?;
            }
            let (step, offset) = (times(b, from, pitch)?, times(b, at, pitch)?);
            shifts = Some(match shifts {
                Some(sum) => add(b, sum, step)?,
                None => step,
            });
            offsets = Some(match offsets {
                Some(sum) => add(b, sum, offset)?,
                None => offset,
            });
            pitch *= axis.image;
        }
        let none = int(b, 0);
        let at = match (self.same, shifts, offsets) {
            (true, Some(shifts), _) => shift(b, self.number, shifts)?,
            (_, _, offsets) => offsets.unwrap_or(none),
        };
        Ok((at, mask))
    }
}

/// The digits of natural numbers, row-major; the first is not cut off.
pub(super) fn digits(b: &mut Builder, number: Value, extents: &[u64]) -> Made<Vec<Value>> {
    let mut out = Vec::new();
    let mut rest = number;
    for (at, &extent) in extents.iter().enumerate().rev() {
        if at == 0 {
            out.push(rest);
        } else {
            let (high, low) = split(b, rest, extent)?;
            out.push(low);
            rest = high;
        }
    }
    out.reverse();
    Ok(out)
}

/// The least power of two that is not less.
fn power(n: u64) -> u32 {
    u32::try_from(n).ok().and_then(u32::checked_next_power_of_two).unwrap_or(1 << 31)
}

/// Whether pixels are numbered through, and how many of a row are computed at a time if not.
fn shape(conv: &Conv, lanes: u32) -> (bool, u32) {
    let width = conv.axes.last().map_or(1, |a| a.out);
    let same = conv.axes.iter().all(super::Axis::is_same) || conv.axes.len() == 1;
    (same, power(width).clamp(lanes.min(8), lanes * 4))
}

/// Channels whose pixels stay in the first cache while all taps are applied to them: a divisor of their number.
fn channels(conv: &Conv) -> u32 {
    let depth = conv.depth();
    let fits = |n: &u64| depth.is_multiple_of(*n);
    (8..=64).rev().find(fits).unwrap_or(depth) as u32
}
