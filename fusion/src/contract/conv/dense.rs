//! Convolutions in which a filter reads several channels.

use tilefuse_block::Elem;
use tilefuse_block::dynamic::{
    BuildError, Tile, axis, both, div_rem, fma, for_range, program_and, program_id, zeros,
};

use super::block::{Block, Pixels};
use super::geometry::{Conv, ConvProgram};
use super::ops::{Params, int, read, wide, write};
use crate::block_kernel::Coordinates;
use crate::contract::partial_sums::{LONGEST_PART, LONGEST_SUM, SHORTEST_PART, in_parts, part_of};
use crate::taken::taken;

/// The filters of an instance.
struct FilterBlock {
    /// Their numbers; those beyond the last of the group are the last.
    filter: Tile,
    mask: Option<Tile>,
    /// Where their weights begin.
    weights: Tile,
}

/// What the loops of an instance need.
struct DenseWriter<'a> {
    conv: &'a Conv,
    block: &'a Block,
    params: Params,
    rows: FilterBlock,
    pixels: Pixels<'a>,
    /// Where the first channel of the group begins.
    image: Tile,
}

pub(super) fn program(conv: &Conv, block: &Block) -> Result<ConvProgram, BuildError> {
    let filter_blocks = conv.filters_of_group().div_ceil(block.filters.into());
    let parts = block.parts(conv);
    taken!("vectors of pixels");
    let (program, coordinates) = program_and("conv", |kernel| {
        let [images, weights, ..] = conv.lengths();
        let params = Params::of(kernel, conv, [("images", images), ("weights", weights)]);
        let instance = program_id(0);
        let (filter_block, part, rest) = if block.filters_first {
            let (rest, filter_block) = div_rem(instance, filter_blocks);
            let (rest, part) = div_rem(rest, parts);
            (filter_block, part, rest)
        } else {
            let (rest, part) = div_rem(instance, parts);
            let (rest, filter_block) = div_rem(rest, filter_blocks);
            (filter_block, part, rest)
        };
        let (n, group) = div_rem(rest, conv.groups);
        let rows = FilterBlock::of(conv, block, filter_block, group);
        let pixels = Pixels::of(conv, block, part);
        let image = (n * conv.channels + group * conv.depth()) * conv.image();
        let body = DenseWriter { conv, block, params, rows, pixels, image };
        let mut sum = body.channels(zeros(conv.sum(), [block.filters, block.area()]));
        if let Some(bias) = params.bias {
            sum += read(bias, body.rows.filter, None, conv.sum()).col();
        }
        vec![body.store(n, sum)]
    })?;
    let instances = filter_blocks * parts * conv.groups * conv.batch;
    Ok(ConvProgram { program, instances: instances as u32, coordinates })
}

impl FilterBlock {
    fn of(conv: &Conv, block: &Block, filter_block: Tile, group: Tile) -> FilterBlock {
        let mut filter = axis(filter_block * block.filters, block.filters).index;
        let count = conv.filters_of_group();
        let mut mask = None;
        if !count.is_multiple_of(block.filters.into()) {
            mask = Some(filter.lt(count));
            filter = filter.minimum(count - 1);
        }
        let filter = group * count + filter;
        FilterBlock { filter, mask, weights: filter * (conv.depth() * conv.taps()) }
    }
}

impl DenseWriter<'_> {
    /// Stores the sums, and says which elements these are.
    fn store(&self, n: Tile, sum: Tile) -> Coordinates {
        let (conv, shape) = (self.conv, [self.block.filters, self.block.area()]);
        let start = (n * conv.filters + self.rows.filter) * conv.pixels();
        let number = self.pixels.number.along(1, shape);
        let offsets = start.col() + number;
        let mask = both(self.rows.mask.map(Tile::col), self.pixels.mask.map(Tile::row));
        let image = n.broadcast_to(shape).value();
        let filter = self.rows.filter.along(0, shape).value();
        let inside = self.pixels.mask.is_none();
        let axes = [
            (image, conv.batch, true),
            (filter, conv.filters, true),
            (number.value(), conv.pixels(), inside),
        ];
        write(self.params.result, offsets, sum, mask);
        Coordinates::of_result(offsets.value(), &axes)
    }

    /// The loop over blocks of channels.
    fn channels(&self, sum: Tile) -> Tile {
        let (depth, each) = (self.conv.depth(), self.block.channels.into());
        if each >= depth || !depth.is_multiple_of(each) || self.conv.taps() == 1 {
            return self.taps(sum, int(0), depth, &mut Vec::new());
        }
        for_range(0, depth, each, sum, |low, sum| {
            self.part(sum, (each, 0), |sum| self.taps(sum, low, each, &mut Vec::new()))
        })
    }

    /// The loops over taps of the kernel.
    fn taps(&self, sum: Tile, low: Tile, count: u64, tap: &mut Vec<Tile>) -> Tile {
        let Some(axis) = self.conv.axes.get(tap.len()) else { return self.steps(sum, low, count, tap) };
        let mut at = |k: Tile, sum: Tile| {
            tap.push(k);
            let sum = self.part(sum, (count, tap.len()), |sum| self.taps(sum, low, count, tap));
            tap.pop();
            sum
        };
        if axis.kernel == 1 { at(int(0), sum) } else { for_range(0, axis.kernel, 1, sum, at) }
    }

    /// The sum with what `add` adds to one: so many channels at all taps along the axes from this one on. It is summed by itself where it
    /// is the shortest part that pays.
    fn part(&self, sum: Tile, (count, axis): (u64, usize), add: impl FnOnce(Tile) -> Tile) -> Tile {
        let products =
            |axis: usize| count * self.conv.axes.iter().skip(axis).map(|axis| axis.kernel).product::<u64>();
        let is_shortest = products(axis) >= SHORTEST_PART && products(axis + 1) < SHORTEST_PART;
        if self.is_long() && is_shortest { sum + add(self.nothing()) } else { add(sum) }
    }

    /// Whether the sum is one of parts.
    fn is_long(&self) -> bool {
        self.conv.depth() * self.conv.taps() > LONGEST_SUM
    }

    /// A sum of no products.
    fn nothing(&self) -> Tile {
        zeros(self.conv.sum(), [self.block.filters, self.block.area()])
    }

    /// The loop over the `count` channels of a block from `low` on.
    fn steps(&self, sum: Tile, low: Tile, count: u64, tap: &[Tile]) -> Tile {
        let conv = self.conv;
        let (at, mask) = self.pixels.tap(tap);
        let at = wide((low * conv.image() + self.image) + at);
        let number = conv.axes.iter().zip(tap).fold(int(0), |number, (axis, &k)| number * axis.kernel + k);
        let weights = wide((low * conv.taps() + number) + self.rows.weights);
        let unroll = count.min(self.block.unroll.into());
        let unroll = if count.is_multiple_of(unroll) { unroll } else { 1 };
        let steps = |first: Tile, sum: Tile| {
            (0..unroll).fold(sum, |sum, c| self.step(sum, first + c, (at, mask), weights))
        };
        if count == unroll {
            return steps(int(0), sum);
        }
        if !self.is_long() || count < SHORTEST_PART {
            return for_range(0, count, unroll, sum, steps);
        }
        let parts =
            in_parts(Elem::I32, (count, part_of(count, unroll, LONGEST_PART)), vec![sum], |first, count| {
                vec![for_range(0, count, unroll, self.nothing(), |c, sum| steps(first + c, sum))]
            });
        parts.first().copied().unwrap_or(sum)
    }

    /// A channel at a tap.
    fn step(&self, sum: Tile, channel: Tile, (at, mask): (Tile, Option<Tile>), weights: Tile) -> Tile {
        let conv = self.conv;
        let channel = wide(channel);
        let x = read(self.params.images, channel * conv.image() + at, mask, conv.sum());
        let w = read(self.params.weights, channel * conv.taps() + weights, None, conv.sum());
        fma(w.col(), x.row(), sum)
    }
}
