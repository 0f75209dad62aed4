//! All phases of some cells of a row: each tap is written out, and adds to the sums of the phase that it reaches.
//!
//! ```text
//! for some parts of rows that follow one another:
//!   for each channel, for each tap:  sum[its phase] += x[cells + ahead] w[tap]
//!   store sum[phase] at stride cells + phase
//! ```
//!
//! Taps that read the same pixels share them.

use tilefuse_block::dynamic::{Tile, axis, both, div_rem, for_range, program_id, unravel, zeros};

use super::block::PhaseBlock;
use super::operands::{Filters, PhaseOperands, Row};
use crate::block_kernel::Coordinates;
use crate::contract::conv::geometry::Conv;
use crate::contract::conv::ops::{PART, Params, int, multiply_add, read, wide};
use crate::contract::partial_sums::added;
use crate::contract::window_axis::inside;

/// Pixels that some taps read.
struct TapPixels {
    /// How far they lie ahead of the cells, along each axis.
    ahead: Vec<i64>,
    /// The same in elements.
    distance: i64,
    /// Which of them there are, where that is not known.
    mask: Option<Tile>,
}

/// A tap: the number of the phase that it reaches, where its weights lie, and which pixels it reads.
struct Tap {
    phase: usize,
    weights: i64,
    pixels: usize,
}

/// Some cells of a row.
struct Cells {
    n: Tile,
    /// Along the outer axes.
    outer: Vec<Tile>,
    /// Along the row, a tile.
    row: Tile,
}

pub(super) fn body(
    conv: &Conv,
    operands: &PhaseOperands,
    tile: &PhaseBlock,
    params: &Params,
) -> Vec<Coordinates> {
    let all = tile.spots(conv);
    let (rest, first) = div_rem(program_id(0), all.div_ceil(tile.spots));
    let (n, block) = div_rem(rest, tile.blocks(conv));
    let filters = Filters::of(conv, operands, tile, block);
    let first = first * tile.spots;
    let mut end = first + tile.spots;
    if !all.is_multiple_of(tile.spots) {
        end = end.minimum(all);
    }
    let mut coordinates = Vec::new();
    for_range(first, end, 1, (), |spot, ()| {
        let (row, part) = div_rem(spot, tile.parts(conv));
        let outer = unravel(row, &tile.rows(conv));
        let cells = Cells { n, outer, row: axis(part * tile.cells, tile.cells).index };
        let start = start(operands, &cells);
        let (taps, pixels) = taps(conv, operands, tile, &cells);
        let reading =
            ChannelLoop { conv, operands, tile, params, filters: &filters, taps: &taps, pixels: &pixels };
        let sums = reading.channels(start);
        coordinates = stores((conv, operands), tile, params, (&cells, &filters), sums);
    });
    coordinates
}

/// Where the cells' own pixels lie in the first channel of an image.
fn start(operands: &PhaseOperands, cells: &Cells) -> Tile {
    let start = cells.n * operands.image.batch + operands.image.offset;
    let Some((&row, outer)) = operands.image.axes.split_last() else { return wide(start) };
    let start = cells.outer.iter().zip(outer).fold(start, |start, (&at, &stride)| start + at * stride);
    wide(start + cells.row * row)
}

/// The taps that reach a pixel, in their order, and the pixels that they read.
fn taps(
    conv: &Conv,
    operands: &PhaseOperands,
    tile: &PhaseBlock,
    cells: &Cells,
) -> (Vec<Tap>, Vec<TapPixels>) {
    let (mut taps, mut all): (Vec<Tap>, Vec<TapPixels>) = (Vec::new(), Vec::new());
    for number in 0..conv.taps() {
        let (mut rest, mut pitch, mut phase) = (number, 1, 0);
        let (mut ahead, mut weights, mut is_read) = (Vec::new(), 0, true);
        for ((d, axis), stride) in conv.axes.iter().enumerate().zip(&operands.taps).rev() {
            let k = rest % axis.kernel;
            rest /= axis.kernel;
            let (own, distance) = axis.phase(k);
            phase += own * pitch;
            pitch *= axis.stride;
            weights += k as i64 * stride;
            let last = if d + 1 == conv.axes.len() {
                tile.parts(conv) * u64::from(tile.cells)
            } else {
                axis.cells()
            };
            is_read &= own < axis.out && distance < axis.image as i64 && distance + last as i64 > 0;
            ahead.insert(0, distance);
        }
        if !is_read {
            continue;
        }
        let known = all.iter().position(|pixels| pixels.ahead == ahead);
        let pixels = match known {
            Some(known) => known,
            None => {
                all.push(pixels(conv, operands, tile, cells, ahead));
                all.len() - 1
            }
        };
        taps.push(Tap { phase: phase as usize, weights, pixels });
    }
    (taps, all)
}

/// The pixels so far ahead of the cells.
fn pixels(
    conv: &Conv,
    operands: &PhaseOperands,
    tile: &PhaseBlock,
    cells: &Cells,
    ahead: Vec<i64>,
) -> TapPixels {
    let distance = ahead.iter().zip(&operands.image.axes).map(|(ahead, stride)| ahead * stride).sum();
    let mut condition = None;
    for ((axis, &at), &ahead) in conv.axes.iter().zip(&cells.outer).zip(&ahead) {
        let overhangs = (ahead < 0, axis.cells() as i64 + ahead > axis.image as i64);
        condition = both(condition, inside(at + ahead, (0, axis.image), overhangs, None));
    }
    let (Some(axis), Some(&along_row)) = (conv.axes.last(), ahead.last()) else {
        return TapPixels { ahead, distance, mask: None };
    };
    let end = (tile.parts(conv) * u64::from(tile.cells)) as i64;
    let overhangs = (along_row < 0, end + along_row > axis.image as i64);
    let mask = inside(cells.row + along_row, (0, axis.image), overhangs, condition);
    TapPixels { ahead, distance, mask }
}

/// What the loop over channels reads.
struct ChannelLoop<'a> {
    conv: &'a Conv,
    operands: &'a PhaseOperands,
    tile: &'a PhaseBlock,
    params: &'a Params,
    filters: &'a Filters,
    taps: &'a [Tap],
    pixels: &'a [TapPixels],
}

impl ChannelLoop<'_> {
    /// The sums of all phases over all channels.
    fn channels(&self, start: Tile) -> Vec<Tile> {
        let none = zeros(self.conv.sum(), self.tile.shape());
        let phases: u64 = self.conv.axes.iter().map(|a| a.stride).product();
        let sums = vec![none; phases as usize];
        let start = self.filters.plane + start;
        if self.conv.depth() == 1 {
            return self.step(start, self.filters.weights, sums);
        }
        for_range(0, self.conv.depth(), 1, sums, |channel, sums| {
            let channel = wide(channel);
            let start = channel * self.operands.image.channel + start;
            let weights = channel * self.operands.channel + self.filters.weights;
            if self.conv.taps() < phases * PART {
                return self.step(start, weights, sums);
            }
            let parts = self.step(start, weights, vec![none; sums.len()]);
            added(&sums, &parts)
        })
    }

    /// The sums with a channel at all taps.
    fn step(&self, start: Tile, weights: Tile, mut sums: Vec<Tile>) -> Vec<Tile> {
        let mut known = vec![None; self.pixels.len()];
        for tap in self.taps {
            let pixels = &self.pixels[tap.pixels];
            let x = *known[tap.pixels].get_or_insert_with(|| {
                let at = start + pixels.distance;
                read(self.params.images, at, pixels.mask, self.conv.sum()).row()
            });
            let w = read(self.params.weights, weights + tap.weights, None, self.conv.sum()).col();
            sums[tap.phase] = multiply_add(x, w, sums[tap.phase], pixels.mask.map(Tile::row));
        }
        sums
    }
}

/// Stores the phases that have pixels.
fn stores(
    (conv, operands): (&Conv, &PhaseOperands),
    tile: &PhaseBlock,
    params: &Params,
    (cells, filters): (&Cells, &Filters),
    sums: Vec<Tile>,
) -> Vec<Coordinates> {
    let mut coordinates = Vec::new();
    for (phase, sum) in (0u64..).zip(sums) {
        let mut rest = phase;
        let phases: Vec<u64> = conv.axes.iter().rev().map(|a| digit(&mut rest, a.stride)).collect();
        let phases: Vec<u64> = phases.into_iter().rev().collect();
        if conv.axes.iter().zip(&phases).any(|(a, &own)| own >= a.out) {
            continue;
        }
        let (mut number, mut is_row) = (int(0), None);
        for ((axis, &own), &at) in conv.axes.iter().zip(&phases).zip(&cells.outer) {
            let place = at * axis.stride + own;
            let overhangs = (axis.cells() - 1) * axis.stride + own >= axis.out;
            is_row = both(is_row, inside(place, (0, axis.out), (false, overhangs), None));
            number = number * axis.out + place;
        }
        let (Some(axis), Some(&own)) = (conv.axes.last(), phases.last()) else { continue };
        let end = tile.parts(conv) * u64::from(tile.cells);
        let row = Row {
            n: cells.n,
            number,
            inside: is_row,
            pixels: cells.row * axis.stride + own,
            overhangs: (end - 1) * axis.stride + own >= axis.out,
        };
        coordinates.push(filters.store((conv, operands), params, &row, sum));
    }
    coordinates
}

/// The last digit of a number, which is taken off.
fn digit(rest: &mut u64, base: u64) -> u64 {
    let digit = *rest % base;
    *rest /= base;
    digit
}
