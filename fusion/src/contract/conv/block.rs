//! What an instance computes: how many filters at how many pixels, and how pixels become vectors.

use tilefuse_block::Elem;
use tilefuse_block::dynamic::{Tile, axis, both, div_rem, unravel};

use super::geometry::Conv;
use crate::contract::window_axis::{Corners, WindowAxis};

/// How a convolution is divided into instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::contract) struct Block {
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
    pub(in crate::contract) fn of(conv: &Conv, threads: u32) -> Block {
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

    /// The share of what is computed that is in the result.
    pub(in crate::contract) fn useful(&self, conv: &Conv) -> f64 {
        let each = if conv.depth() == 1 { 1 } else { self.filters };
        let filters = conv.filters_of_group();
        let computed = self.parts(conv) * u64::from(self.area()) * filters.next_multiple_of(each.into());
        (conv.pixels() * filters) as f64 / computed as f64
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
pub(super) struct Pixels<'a> {
    /// Their numbers in an image of the result.
    pub(super) number: Tile,
    /// Which of them there are; all where there is no mask.
    pub(super) mask: Option<Tile>,
    corners: Corners<'a>,
    /// What lies under the first tap in a channel of the image, where the numbers are those of the image as well.
    first: Option<Tile>,
}

impl<'a> Pixels<'a> {
    /// The pixels of part `part`.
    pub(super) fn of(conv: &'a Conv, block: &Block, part: Tile) -> Pixels<'a> {
        if block.rows == 0 { Pixels::through(conv, block, part) } else { Pixels::rows(conv, block, part) }
    }

    fn through(conv: &'a Conv, block: &Block, part: Tile) -> Pixels<'a> {
        let number = axis(part * block.pixels, block.pixels).index;
        let whole = conv.pixels().is_multiple_of(block.pixels.into());
        let mask = (!whole).then(|| number.lt(conv.pixels()));
        let outs: Vec<u64> = conv.axes.iter().map(|a| a.out).collect();
        Pixels::at(conv, number, &unravel(number, &outs), mask)
    }

    fn rows(conv: &'a Conv, block: &Block, part: Tile) -> Pixels<'a> {
        let (rows, columns) = (block.rows, block.pixels);
        let (width, outer) = match conv.axes.split_last() {
            Some((last, outer)) => (last.out, outer),
            None => (1, &conv.axes[..]),
        };
        let height: u64 = outer.iter().map(|a| a.out).product();
        let (down, right) = div_rem(part, width.div_ceil(columns.into()));
        let row = axis(down * rows, rows).index;
        let column = axis(right * columns, columns).index;
        let flat = |tile: Tile, axis: usize| tile.along(axis, [rows, columns]).reshape([rows * columns]);
        let mask = both(
            (!height.is_multiple_of(rows.into())).then(|| flat(row.lt(height), 0)),
            (!width.is_multiple_of(columns.into())).then(|| flat(column.lt(width), 1)),
        );
        let outs: Vec<u64> = outer.iter().map(|a| a.out).collect();
        let mut place: Vec<Tile> = unravel(row, &outs).into_iter().map(|digit| flat(digit, 0)).collect();
        let (row, column) = (flat(row, 0), flat(column, 1));
        place.push(column);
        Pixels::at(conv, row * width + column, &place, mask)
    }

    /// The pixels of these numbers at these places along the axes.
    fn at(conv: &'a Conv, number: Tile, places: &[Tile], mask: Option<Tile>) -> Pixels<'a> {
        let mut pitch = 1;
        let mut steps: Vec<i64> = Vec::new();
        for axis in conv.axes.iter().rev() {
            steps.insert(0, pitch);
            pitch *= axis.image as i64;
        }
        let first = conv.axes.iter().all(WindowAxis::is_same).then(|| {
            let before = conv.axes.iter().zip(&steps).map(|(axis, step)| axis.padding as i64 * step);
            number + -before.sum::<i64>()
        });
        let corners = Corners::of(&conv.axes, steps, places);
        Pixels { number, mask, corners, first }
    }

    /// Where a tap reads in a channel of the image, and which of the pixels have something there.
    pub(super) fn tap(&self, tap: &[Tile]) -> (Tile, Option<Tile>) {
        let at = match self.first {
            Some(first) => self.corners.shift(tap).map_or(first, |shift| shift + first),
            None => self.corners.offset(tap).unwrap_or(self.number),
        };
        (at, self.corners.inside(tap, self.mask))
    }
}

/// The least power of two that is not less.
fn power(n: u64) -> u32 {
    u32::try_from(n).ok().and_then(u32::checked_next_power_of_two).unwrap_or(1 << 31)
}

/// Whether pixels are numbered through, and how many of a row are computed at a time if not.
fn shape(conv: &Conv, lanes: u32) -> (bool, u32) {
    let width = conv.axes.last().map_or(1, |a| a.out);
    let same = conv.axes.iter().all(WindowAxis::is_same) || conv.axes.len() == 1;
    (same, power(width).clamp(lanes.min(8), lanes * 4))
}

/// Channels whose pixels stay in the first cache while all taps are applied to them: a divisor of their number.
fn channels(conv: &Conv) -> u32 {
    let depth = conv.depth();
    let fits = |n: &u64| depth.is_multiple_of(*n);
    (8..=64).rev().find(fits).unwrap_or(depth) as u32
}
