//! Convolutions in which a filter reads several channels.

use tilefuse_block::{Builder, Literal, ScalarFn as F, TypeError, Value};

use super::block::{Block, Pixels};
use super::make::{
    Made, add, along, below, both, int, like, mask_along, one, plus, read, shift, split, times, wide, write,
};
use super::{Conv, ConvProgram};
use crate::block_kernel::{Coordinate, Coordinates};

/// The filters of an instance.
struct Rows {
    /// Their numbers; those beyond the last of the group are the last.
    filter: Value,
    mask: Option<Value>,
    /// Where their weights begin.
    weights: Value,
}

/// What the loops of an instance need.
struct Body<'a> {
    conv: &'a Conv,
    block: &'a Block,
    images: Value,
    weights: Value,
    rows: Rows,
    pixels: Pixels,
    /// Where the first channel of the group begins.
    image: Value,
}

pub(super) fn program(conv: &Conv, block: &Block) -> Made<ConvProgram> {
    let mut b = Builder::new("conv");
    let lengths = conv.lengths();
    let align = conv.elem.bytes();
    let images = b.ptr_param("images", conv.elem, align, Some(lengths[0]));
    let weights = b.ptr_param("weights", conv.elem, align, Some(lengths[1]));
    let bias = conv.bias.then(|| b.ptr_param("bias", conv.elem, align, Some(lengths[2])));
    let result = b.ptr_param("result", conv.elem, align, Some(lengths[3]));
    let strips = conv.filters_of_group().div_ceil(block.filters.into());
    let parts = block.parts(conv);
    let instance = b.program_id(0)?;
    let (strip, part, rest) = if block.filters_first {
        let (rest, strip) = split(&mut b, instance, strips)?;
        let (rest, part) = split(&mut b, rest, parts)?;
        (strip, part, rest)
    } else {
        let (rest, part) = split(&mut b, instance, parts)?;
        let (rest, strip) = split(&mut b, rest, strips)?;
        (strip, part, rest)
    };
    let (n, group) = split(&mut b, rest, conv.groups)?;
    let rows = rows(&mut b, conv, block, strip, group)?;
    let pixels = Pixels::of(&mut b, conv, block, part)?;
    let first = times(&mut b, n, conv.channels)?;
    let channel = times(&mut b, group, conv.depth())?;
    let first = add(&mut b, first, channel)?;
    let image = times(&mut b, first, conv.image())?;
    let body = Body { conv, block, images, weights, rows, pixels, image };
    let shape = [block.filters, block.area()];
    let zero = b.constant(Literal::float(conv.sum(), 0.0), &shape);
    let mut sum = body.channels(&mut b, zero)?;
    if let Some(bias) = bias {
        let bias = read(&mut b, bias, body.rows.filter, None, conv.sum())?;
        let bias = along(&mut b, bias, 0, &shape)?;
        sum = add(&mut b, sum, bias)?;
    }
    let first = times(&mut b, n, conv.filters)?;
    let start = shift(&mut b, body.rows.filter, first)?;
    let start = times(&mut b, start, conv.pixels())?;
    let (start, number) = (along(&mut b, start, 0, &shape)?, along(&mut b, body.pixels.number, 1, &shape)?);
    let offsets = add(&mut b, start, number)?;
    let (row_mask, pixel_mask) =
        (mask_along(&mut b, body.rows.mask, 0, &shape)?, mask_along(&mut b, body.pixels.mask, 1, &shape)?);
    let mask = both(&mut b, row_mask, pixel_mask)?;
    let (image, filter) = (b.splat(n, &shape)?, along(&mut b, body.rows.filter, 0, &shape)?);
    let axes = vec![
        Coordinate { index: image, extent: conv.batch, inside: true },
        Coordinate { index: filter, extent: conv.filters, inside: true },
        Coordinate { index: number, extent: conv.pixels(), inside: body.pixels.mask.is_none() },
    ];
    write(&mut b, result, offsets, sum, mask, conv.elem)?;
    let instances = strips * parts * conv.groups * conv.batch;
    Ok(ConvProgram {
        program: b.finish(),
        instances: instances as u32,
        coordinates: vec![Coordinates { offsets, axes }],
    })
}

fn rows(b: &mut Builder, conv: &Conv, block: &Block, strip: Value, group: Value) -> Made<Rows> {
    let range = b.range(0, block.filters)?;
    let first = times(b, strip, block.filters.into())?;
    let mut filter = shift(b, range, first)?;
    let count = conv.filters_of_group();
    let mut mask = None;
    if !count.is_multiple_of(block.filters.into()) {
        mask = Some(below(b, filter, count)?);
        let last = like(b, filter, count as i64 - 1);
        filter = b.map(F::Min, &[filter, last])?;
    }
    let before = times(b, group, count)?;
    let filter = shift(b, filter, before)?;
    let weights = times(b, filter, conv.depth() * conv.taps())?;
    Ok(Rows { filter, mask, weights })
}

impl Body<'_> {
    /// The loop over blocks of channels.
    fn channels(&self, b: &mut Builder, sum: Value) -> Made<Value> {
        let (depth, each) = (self.conv.depth(), self.block.channels.into());
        let zero = int(b, 0);
        if each >= depth || !depth.is_multiple_of(each) || self.conv.taps() == 1 {
            return self.taps(b, sum, zero, depth, &mut Vec::new());
        }
        let (end, step) = (int(b, depth), int(b, each));
        one(&b.for_loop((zero, end, step), &[sum], |b, low, sum| {
            Ok::<_, TypeError>(vec![self.taps(b, sum[0], low, each, &mut Vec::new())?])
        })?)
    }

    /// The loops over taps of the kernel.
    fn taps(&self, b: &mut Builder, sum: Value, low: Value, count: u64, tap: &mut Vec<Value>) -> Made<Value> {
        let Some(axis) = self.conv.axes.get(tap.len()) else { return self.steps(b, sum, low, count, tap) };
        let zero = int(b, 0);
        if axis.kernel == 1 {
            tap.push(zero);
            let sum = self.taps(b, sum, low, count, tap)?;
            tap.pop();
            return Ok(sum);
        }
        let (end, one_more) = (int(b, axis.kernel), int(b, 1));
        one(&b.for_loop((zero, end, one_more), &[sum], |b, k, sum| {
            tap.push(k);
            let sum = self.taps(b, sum[0], low, count, tap)?;
            tap.pop();
            Ok::<_, TypeError>(vec![sum])
        })?)
    }

    /// The loop over the `count` channels of a block from `low` on.
    fn steps(&self, b: &mut Builder, sum: Value, low: Value, count: u64, tap: &[Value]) -> Made<Value> {
        let conv = self.conv;
        let (at, mask) = self.pixels.tap(b, conv, tap)?;
        let first = times(b, low, conv.image())?;
        let first = add(b, first, self.image)?;
        let at = shift(b, at, first)?;
        let at = wide(b, at)?;
        let mut number = times(b, low, conv.taps())?;
        let mut tap_number = int(b, 0);
        for (axis, &k) in conv.axes.iter().zip(tap) {
            tap_number = times(b, tap_number, axis.kernel)?;
            tap_number = add(b, tap_number, k)?;
        }
        number = add(b, number, tap_number)?;
        let weights = shift(b, self.rows.weights, number)?;
        let weights = wide(b, weights)?;
        let unroll = count.min(self.block.unroll.into());
        let unroll = if count.is_multiple_of(unroll) { unroll } else { 1 };
        self.unrolled(b, sum, count, unroll, (at, mask, weights))
    }

    /// A loop over channels, `unroll` of them in a step.
    fn unrolled(
        &self,
        b: &mut Builder,
        sum: Value,
        count: u64,
        unroll: u64,
        (at, mask, weights): (Value, Option<Value>, Value),
    ) -> Made<Value> {
        let steps = |b: &mut Builder, first: Value, mut sum: Value| -> Made<Value> {
            for c in 0..unroll {
                let channel = plus(b, first, c as i64)?;
                sum = self.step(b, sum, channel, at, mask, weights)?;
            }
            Ok(sum)
        };
        let zero = int(b, 0);
        if count == unroll {
            return steps(b, zero, sum);
        }
        let (end, step) = (int(b, count), int(b, unroll));
        one(&b.for_loop((zero, end, step), &[sum], |b, channel, sum| {
            Ok::<_, TypeError>(vec![steps(b, channel, sum[0])?])
        })?)
    }

    /// A channel at a tap.
    fn step(
        &self,
        b: &mut Builder,
        sum: Value,
        channel: Value,
        at: Value,
        mask: Option<Value>,
        weights: Value,
    ) -> Made<Value> {
        let conv = self.conv;
        let shape = [self.block.filters, self.block.area()];
        let channel = wide(b, channel)?;
        let plane = times(b, channel, conv.image())?;
        let at = shift(b, at, plane)?;
        let x = read(b, self.images, at, mask, conv.sum())?;
        let place = times(b, channel, conv.taps())?;
        let place = shift(b, weights, place)?;
        let w = read(b, self.weights, place, None, conv.sum())?;
        let (w, x) = (along(b, w, 0, &shape)?, along(b, x, 1, &shape)?);
        b.map(F::Fma, &[w, x, sum])
    }
}
