//! All phases of some cells of a row: each tap is written out, and adds to the sums of the phase that it reaches.
//!
//! ```text
//! for some parts of rows that follow one another:
//!   for each channel, for each tap:  sum[its phase] += x[cells + ahead] w[tap]
//!   store sum[phase] at stride cells + phase
//! ```
//!
//! Taps that read the same pixels share them.

use tilefuse_block::{Builder, Literal, ScalarFn as F, TypeError, Value};

use super::Tile;
use super::lie::{Filters, Lie, Params, Row, inside};
use crate::block_kernel::Coordinates;
use crate::contract::conv::Conv;
use crate::contract::conv::block::digits;
use crate::contract::conv::make::{
    Made, PART, add, added, along, both, int, mask_along, multiply_add, plus, read, shift, split, times, wide,
};

/// Pixels that some taps read.
struct Pixels {
    /// How far they lie ahead of the cells, along each axis.
    ahead: Vec<i64>,
    /// The same in elements.
    distance: i64,
    /// Which of them there are, where that is not known.
    mask: Option<Value>,
}

/// A tap: the number of the phase that it reaches, where its weights lie, and which pixels it reads.
struct Tap {
    phase: usize,
    weights: i64,
    pixels: usize,
}

/// Some cells of a row.
struct Cells {
    n: Value,
    /// Along the outer axes.
    outer: Vec<Value>,
    /// Along the row, a tile.
    row: Value,
}

pub(super) fn body(
    b: &mut Builder,
    conv: &Conv,
    lie: &Lie,
    tile: &Tile,
    params: &Params,
) -> Made<Vec<Coordinates>> {
    let id = b.program_id(0)?;
    let all = tile.spots(conv);
    let (rest, first) = split(b, id, all.div_ceil(tile.spots))?;
    let (n, block) = split(b, rest, tile.blocks(conv))?;
    let filters = Filters::of(b, conv, lie, tile, block)?;
    let first = times(b, first, tile.spots)?;
    let mut end = plus(b, first, tile.spots as i64)?;
    if !all.is_multiple_of(tile.spots) {
        let most = int(b, all);
        end = b.map(F::Min, &[end, most])?;
    }
    let step = int(b, 1);
    let mut coordinates = Vec::new();
    b.for_loop((first, end, step), &[], |b, spot, _| {
        let (row, part) = split(b, spot, tile.parts(conv))?;
        let outer = digits(b, row, &tile.rows(conv))?;
        let range = b.range(0, tile.cells)?;
        let first = times(b, part, tile.cells.into())?;
        let cells = Cells { n, outer, row: shift(b, range, first)? };
        let start = start(b, lie, &cells)?;
        let (taps, pixels) = taps(b, conv, lie, tile, &cells)?;
        let reading = Reading { conv, lie, tile, params, filters: &filters, taps: &taps, pixels: &pixels };
        let sums = reading.channels(b, start)?;
        coordinates = stores(b, (conv, lie), tile, params, (&cells, &filters), sums)?;
        Ok::<_, TypeError>(Vec::new())
    })?;
    Ok(coordinates)
}

/// Where the cells' own pixels lie in the first channel of an image.
fn start(b: &mut Builder, lie: &Lie, cells: &Cells) -> Made<Value> {
    let image = times(b, cells.n, lie.image.batch.unsigned_abs())?;
    let mut start = plus(b, image, lie.image.offset)?;
    let Some((&row, outer)) = lie.image.axes.split_last() else { return wide(b, start) };
    for (&at, stride) in cells.outer.iter().zip(outer) {
        let at = times(b, at, stride.unsigned_abs())?;
        start = add(b, start, at)?;
    }
    let at = times(b, cells.row, row.unsigned_abs())?;
    let at = shift(b, at, start)?;
    wide(b, at)
}

/// The taps that reach a pixel, in their order, and the pixels that they read.
fn taps(
    b: &mut Builder,
    conv: &Conv,
    lie: &Lie,
    tile: &Tile,
    cells: &Cells,
) -> Made<(Vec<Tap>, Vec<Pixels>)> {
    let (mut taps, mut all): (Vec<Tap>, Vec<Pixels>) = (Vec::new(), Vec::new());
    for number in 0..conv.taps() {
        let (mut rest, mut pitch, mut phase) = (number, 1, 0);
        let (mut ahead, mut weights, mut is_read) = (Vec::new(), 0, true);
        for ((d, axis), stride) in conv.axes.iter().enumerate().zip(&lie.taps).rev() {
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
                all.push(pixels(b, conv, lie, tile, cells, ahead)?);
                all.len() - 1
            }
        };
        taps.push(Tap { phase: phase as usize, weights, pixels });
    }
    Ok((taps, all))
}

/// The pixels so far ahead of the cells.
fn pixels(
    b: &mut Builder,
    conv: &Conv,
    lie: &Lie,
    tile: &Tile,
    cells: &Cells,
    ahead: Vec<i64>,
) -> Made<Pixels> {
    let distance = ahead.iter().zip(&lie.image.axes).map(|(ahead, stride)| ahead * stride).sum();
    let mut condition = None;
    for ((axis, &at), &ahead) in conv.axes.iter().zip(&cells.outer).zip(&ahead) {
        let place = plus(b, at, ahead)?;
        let overhangs = (ahead < 0, axis.cells() as i64 + ahead > axis.image as i64);
        let inside = inside(b, place, (0, axis.image), overhangs, None)?;
        condition = both(b, condition, inside)?;
    }
    let (Some(axis), Some(&along_row)) = (conv.axes.last(), ahead.last()) else {
        return Ok(Pixels { ahead, distance, mask: None });
    };
    let end = (tile.parts(conv) * u64::from(tile.cells)) as i64;
    let place = plus(b, cells.row, along_row)?;
    let overhangs = (along_row < 0, end + along_row > axis.image as i64);
    let mask = inside(b, place, (0, axis.image), overhangs, condition)?;
    Ok(Pixels { ahead, distance, mask })
}

/// What the loop over channels reads.
struct Reading<'a> {
    conv: &'a Conv,
    lie: &'a Lie,
    tile: &'a Tile,
    params: &'a Params,
    filters: &'a Filters,
    taps: &'a [Tap],
    pixels: &'a [Pixels],
}

impl Reading<'_> {
    /// The sums of all phases over all channels.
    fn channels(&self, b: &mut Builder, start: Value) -> Made<Vec<Value>> {
        let none = b.constant(Literal::float(self.conv.sum(), 0.0), &self.tile.shape());
        let phases: u64 = self.conv.axes.iter().map(|a| a.stride).product();
        let sums = vec![none; phases as usize];
        let start = shift(b, start, self.filters.plane)?;
        if self.conv.depth() == 1 {
            return self.step(b, start, self.filters.weights, sums);
        }
        let (zero, end, one) = (int(b, 0), int(b, self.conv.depth()), int(b, 1));
        b.for_loop((zero, end, one), &sums, |b, channel, sums| {
            let channel = wide(b, channel)?;
            let plane = times(b, channel, self.lie.image.channel.unsigned_abs())?;
            let start = shift(b, start, plane)?;
            let row = times(b, channel, self.lie.channel.unsigned_abs())?;
            let weights = shift(b, self.filters.weights, row)?;
            if self.conv.taps() < phases * PART {
                return self.step(b, start, weights, sums.to_vec());
            }
            let parts = self.step(b, start, weights, vec![none; sums.len()])?;
            added(b, sums, &parts)
        })
    }

    /// The sums with a channel at all taps.
    fn step(&self, b: &mut Builder, start: Value, weights: Value, mut sums: Vec<Value>) -> Made<Vec<Value>> {
        let shape = self.tile.shape();
        let mut known = vec![None; self.pixels.len()];
        for tap in self.taps {
            let pixels = &self.pixels[tap.pixels];
            let x = match known[tap.pixels] {
                Some(x) => x,
                None => {
                    let at = plus(b, start, pixels.distance)?;
                    let x = read(b, self.params.images, at, pixels.mask, self.conv.sum())?;
                    *known[tap.pixels].insert(along(b, x, 1, &shape)?)
                }
            };
            let at = plus(b, weights, tap.weights)?;
            let w = read(b, self.params.filters, at, None, self.conv.sum())?;
            let w = along(b, w, 0, &shape)?;
            let mask = mask_along(b, pixels.mask, 1, &shape)?;
            sums[tap.phase] = multiply_add(b, x, w, sums[tap.phase], mask)?;
        }
        Ok(sums)
    }
}

/// Stores the phases that have pixels.
fn stores(
    b: &mut Builder,
    (conv, lie): (&Conv, &Lie),
    tile: &Tile,
    params: &Params,
    (cells, filters): (&Cells, &Filters),
    sums: Vec<Value>,
) -> Made<Vec<Coordinates>> {
    let mut coordinates = Vec::new();
    for (phase, sum) in (0u64..).zip(sums) {
        let mut rest = phase;
        let phases: Vec<u64> = conv.axes.iter().rev().map(|a| digit(&mut rest, a.stride)).collect();
        let phases: Vec<u64> = phases.into_iter().rev().collect();
        if conv.axes.iter().zip(&phases).any(|(a, &own)| own >= a.out) {
            continue;
        }
        let (mut number, mut is_row) = (int(b, 0), None);
        for ((axis, &own), &at) in conv.axes.iter().zip(&phases).zip(&cells.outer) {
            let place = times(b, at, axis.stride)?;
            let place = plus(b, place, own as i64)?;
            let overhangs = (axis.cells() - 1) * axis.stride + own >= axis.out;
            let inside = inside(b, place, (0, axis.out), (false, overhangs), None)?;
            is_row = both(b, is_row, inside)?;
            number = times(b, number, axis.out)?;
            number = add(b, number, place)?;
        }
        let (Some(axis), Some(&own)) = (conv.axes.last(), phases.last()) else { continue };
        let place = times(b, cells.row, axis.stride)?;
        let place = plus(b, place, own as i64)?;
        let end = tile.parts(conv) * u64::from(tile.cells);
        let row = Row {
            n: cells.n,
            number,
            inside: is_row,
            pixels: place,
            overhangs: (end - 1) * axis.stride + own >= axis.out,
        };
        coordinates.push(filters.store(b, (conv, lie), params, &row, sum)?);
    }
    Ok(coordinates)
}

/// The last digit of a number, which is taken off.
fn digit(rest: &mut u64, base: u64) -> u64 {
    let digit = *rest % base;
    *rest /= base;
    digit
}
