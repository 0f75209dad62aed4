//! One phase of some cells of a row after the other, in loops over the taps that reach it.
//!
//! ```text
//! for each phase along the row:
//!   for each tap of each axis that reaches it, for each channel:  sum += x[cells + ahead] w[tap]
//!   store sum at stride cells + phase
//! ```

use tilefuse_block::Elem;
use tilefuse_block::dynamic::{Tile, axis as range, div_rem, for_range, program_id, unravel, zeros};

use super::block::PhaseBlock;
use super::operands::{Filters, PhaseOperands, Row};
use crate::block_kernel::Coordinates;
use crate::contract::conv::geometry::Conv;
use crate::contract::conv::ops::{PART, Params, int, multiply_add, read, wide};
use crate::contract::partial_sums::{LONGEST_PART, in_parts};
use crate::contract::window_axis::{WindowAxis, inside};

/// What the loops of an instance need.
struct Loops<'a> {
    conv: &'a Conv,
    operands: &'a PhaseOperands,
    tile: &'a PhaseBlock,
    params: &'a Params,
    filters: &'a Filters,
    /// The pixel along the outer axes, and the cells along the row, a tile.
    outer: Vec<Tile>,
    cells: Tile,
}

pub(super) fn body(
    conv: &Conv,
    operands: &PhaseOperands,
    tile: &PhaseBlock,
    params: &Params,
) -> Vec<Coordinates> {
    let Some(axis) = conv.axes.last() else { return Vec::new() };
    let rows = tile.rows(conv);
    let (rest, part) = div_rem(program_id(0), tile.parts(conv));
    let (rest, number) = div_rem(rest, rows.iter().product::<u64>());
    let (n, block) = div_rem(rest, tile.blocks(conv));
    let outer = unravel(number, &rows);
    let cells = range(part * tile.cells, tile.cells).index;
    let filters = Filters::of(conv, operands, tile, block);
    let loops = Loops { conv, operands, tile, params, filters: &filters, outer, cells };
    let image = n * operands.image.batch + operands.image.offset;
    let mut coordinates = Vec::new();
    for_range(0, axis.stride.min(axis.out), 1, (), |own, ()| {
        let sum = loops.taps(0, own, (image, int(0)), zeros(conv.sum(), tile.shape()));
        let pixels = own + cells * axis.stride;
        let row = Row { n, number, inside: None, pixels, overhangs: true };
        coordinates.push(filters.store((conv, operands), params, &row, sum));
    });
    coordinates
}

impl Loops<'_> {
    /// The loops over the taps of the axes from `d` on that reach phase `own` of the row; images and weights are read from
    /// these offsets on.
    fn taps(&self, d: usize, own: Tile, (image, weights): (Tile, Tile), sum: Tile) -> Tile {
        let (Some(axis), Some(&pitch)) = (self.conv.axes.get(d), self.operands.taps.get(d)) else {
            return sum;
        };
        if let (Some(&o), Some(&stride)) = (self.outer.get(d), self.operands.image.axes.get(d)) {
            let window = axis.window(o);
            return window.taps().each(sum, |k, sum| {
                let image = image + window.pixel(k) * stride;
                self.taps(d + 1, own, (image, weights + k * pitch), sum)
            });
        }
        let window = axis.window(own);
        axis.taps_of_phase(own).each(sum, |k, sum| {
            let ahead = window.pixel(k);
            self.channels(axis, ahead, (image, weights + k * pitch), sum)
        })
    }

    /// The loop over channels at a tap that reads so far ahead of the cells.
    fn channels(&self, axis: &WindowAxis, ahead: Tile, (image, weights): (Tile, Tile), sum: Tile) -> Tile {
        let place = ahead + self.cells;
        let mask = inside(place, (0, axis.image), (true, true), None);
        let stride = self.operands.image.axes.last().copied().unwrap_or(0);
        let at = self.filters.plane + wide(image + place * stride);
        let weights = wide(weights) + self.filters.weights;
        let step = |at: Tile, weights: Tile, sum: Tile| {
            let x = read(self.params.images, at, mask, self.conv.sum());
            let w = read(self.params.weights, weights, None, self.conv.sum());
            multiply_add(x.row(), w.col(), sum, mask.map(Tile::row))
        };
        let depth = self.conv.depth();
        if depth == 1 {
            return step(at, weights, sum);
        }
        let channels = |first: Tile, count: Tile, sum: Tile| {
            for_range(0, count, 1, sum, |channel, sum| {
                let channel = wide(first + channel);
                let at = channel * self.operands.image.channel + at;
                step(at, channel * self.operands.channel + weights, sum)
            })
        };
        if depth < PART {
            return channels(int(0), int(depth), sum);
        }
        let part = |first, count| vec![channels(first, count, zeros(self.conv.sum(), self.tile.shape()))];
        let sums = in_parts(Elem::I32, (depth, LONGEST_PART), vec![sum], part);
        sums.first().copied().unwrap_or(sum)
    }
}
