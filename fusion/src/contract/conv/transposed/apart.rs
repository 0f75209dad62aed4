//! One phase of some cells of a row after the other, in loops over the taps that reach it.
//!
//! ```text
//! for each phase along the row:
//!   for each tap of each axis that reaches it, for each channel:  sum += x[cells + ahead] w[tap]
//!   store sum at stride cells + phase
//! ```

use tilefuse_block::{Builder, Literal, TypeError, Value};

use super::Tile;
use super::lie::{Filters, Lie, Params, Row, inside};
use crate::block_kernel::Coordinates;
use crate::contract::conv::block::digits;
use crate::contract::conv::make::{
    LONGEST_PART, Made, PART, add, along, in_parts, int, mask_along, multiply_add, one, read, shift, split,
    times, wide,
};
use crate::contract::conv::{Axis, Conv, phase};

/// What the loops of an instance need.
struct Loops<'a> {
    conv: &'a Conv,
    lie: &'a Lie,
    tile: &'a Tile,
    params: &'a Params,
    filters: &'a Filters,
    /// The pixel along the outer axes, and the cells along the row, a tile.
    outer: Vec<Value>,
    cells: Value,
}

pub(super) fn body(
    b: &mut Builder,
    conv: &Conv,
    lie: &Lie,
    tile: &Tile,
    params: &Params,
) -> Made<Vec<Coordinates>> {
    let Some(axis) = conv.axes.last() else { return Ok(Vec::new()) };
    let id = b.program_id(0)?;
    let rows = tile.rows(conv);
    let (rest, part) = split(b, id, tile.parts(conv))?;
    let (rest, number) = split(b, rest, rows.iter().product())?;
    let (n, block) = split(b, rest, tile.blocks(conv))?;
    let outer = digits(b, number, &rows)?;
    let range = b.range(0, tile.cells)?;
    let first = times(b, part, tile.cells.into())?;
    let cells = shift(b, range, first)?;
    let filters = Filters::of(b, conv, lie, tile, block)?;
    let loops = Loops { conv, lie, tile, params, filters: &filters, outer, cells };
    let image = times(b, n, lie.image.batch.unsigned_abs())?;
    let offset = int(b, lie.image.offset.unsigned_abs());
    let image = add(b, image, offset)?;
    let (zero, end, step) = (int(b, 0), int(b, axis.stride.min(axis.out)), int(b, 1));
    let mut coordinates = Vec::new();
    b.for_loop((zero, end, step), &[], |b, own, _| {
        let sum = b.constant(Literal::float(conv.sum(), 0.0), &tile.shape());
        let none = int(b, 0);
        let sum = loops.taps(b, 0, own, (image, none), sum)?;
        let place = times(b, cells, axis.stride)?;
        let pixels = shift(b, place, own)?;
        let row = Row { n, number, inside: None, pixels, overhangs: true };
        coordinates.push(filters.store(b, (conv, lie), params, &row, sum)?);
        Ok::<_, TypeError>(Vec::new())
    })?;
    Ok(coordinates)
}

impl Loops<'_> {
    /// The loops over the taps of the axes from `d` on that reach phase `own` of the row; images and weights are read from
    /// these offsets on.
    fn taps(
        &self,
        b: &mut Builder,
        d: usize,
        own: Value,
        (image, weights): (Value, Value),
        sum: Value,
    ) -> Made<Value> {
        let (Some(axis), Some(&pitch)) = (self.conv.axes.get(d), self.lie.taps.get(d)) else {
            return Ok(sum);
        };
        let step = |b: &mut Builder, k: Value| -> Made<Value> {
            let weight = times(b, k, pitch.unsigned_abs())?;
            add(b, weights, weight)
        };
        let carried = if let (Some(&o), Some(&stride)) = (self.outer.get(d), self.lie.image.axes.get(d)) {
            let taps = phase::taps(b, axis, o)?;
            b.for_loop(taps, &[sum], |b, k, sum| {
                let at = phase::origin(b, axis, o, k)?;
                let at = times(b, at, stride.unsigned_abs())?;
                let (image, weights) = (add(b, image, at)?, step(b, k)?);
                Ok::<_, TypeError>(vec![self.taps(b, d + 1, own, (image, weights), one(sum)?)?])
            })?
        } else {
            let taps = phase::taps_of_phase(b, axis, own)?;
            b.for_loop(taps, &[sum], |b, k, sum| {
                let ahead = phase::origin(b, axis, own, k)?;
                let weights = step(b, k)?;
                Ok::<_, TypeError>(vec![self.channels(b, axis, ahead, (image, weights), one(sum)?)?])
            })?
        };
        one(&carried)
    }

    /// The loop over channels at a tap that reads so far ahead of the cells.
    fn channels(
        &self,
        b: &mut Builder,
        axis: &Axis,
        ahead: Value,
        (image, weights): (Value, Value),
        sum: Value,
    ) -> Made<Value> {
        let shape = self.tile.shape();
        let place = shift(b, self.cells, ahead)?;
        let mask = inside(b, place, (0, axis.image), (true, true), None)?;
        let stride = self.lie.image.axes.last().map_or(0, |s| s.unsigned_abs());
        let at = times(b, place, stride)?;
        let at = shift(b, at, image)?;
        let at = wide(b, at)?;
        let at = shift(b, at, self.filters.plane)?;
        let weights = wide(b, weights)?;
        let weights = shift(b, self.filters.weights, weights)?;
        let lanes = mask_along(b, mask, 1, &shape)?;
        let step = |b: &mut Builder, at: Value, weights: Value, sum: Value| -> Made<Value> {
            let x = read(b, self.params.images, at, mask, self.conv.sum())?;
            let w = read(b, self.params.filters, weights, None, self.conv.sum())?;
            let (x, w) = (along(b, x, 1, &shape)?, along(b, w, 0, &shape)?);
            multiply_add(b, x, w, sum, lanes)
        };
        if self.conv.depth() == 1 {
            return step(b, at, weights, sum);
        }
        let by = int(b, 1);
        let channels = |b: &mut Builder, (first, end): (Value, Value), sum: Value| {
            b.for_loop((first, end, by), &[sum], |b, channel, sum| {
                let channel = wide(b, channel)?;
                let plane = times(b, channel, self.lie.image.channel.unsigned_abs())?;
                let at = shift(b, at, plane)?;
                let row = times(b, channel, self.lie.channel.unsigned_abs())?;
                let weights = shift(b, weights, row)?;
                Ok::<_, TypeError>(vec![step(b, at, weights, one(sum)?)?])
            })
        };
        let depth = self.conv.depth();
        let carried = if depth < PART {
            let all = (int(b, 0), int(b, depth));
            channels(b, all, sum)?
        } else {
            in_parts(b, (depth, LONGEST_PART), &[sum], |b, range| {
                let none = b.constant(Literal::float(self.conv.sum(), 0.0), &shape);
                channels(b, range, none)
            })?
        };
        one(&carried)
    }
}
