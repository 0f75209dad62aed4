//! Convolutions in which a filter reads one channel.

use tilefuse_block::{Builder, Literal, ScalarFn as F, TypeError, Value};

use super::block::{Block, Pixels};
use super::make::{Made, add, int, plus, read, shift, split, times, write};
use super::{Conv, ConvProgram};
use crate::block_kernel::{Coordinate, Coordinates};

pub(super) fn program(conv: &Conv, block: &Block) -> Made<ConvProgram> {
    let mut b = Builder::new("conv_depthwise");
    let lengths = conv.lengths();
    let align = conv.elem.bytes();
    let images = b.ptr_param("images", conv.elem, align, Some(lengths[0]));
    let weights = b.ptr_param("weights", conv.elem, align, Some(lengths[1]));
    let bias = conv.bias.then(|| b.ptr_param("bias", conv.elem, align, Some(lengths[2])));
    let result = b.ptr_param("result", conv.elem, align, Some(lengths[3]));
    let wanted = u64::from(block.filters).clamp(1, conv.filters);
    let each = (1..=wanted).rev().find(|n| conv.filters.is_multiple_of(*n)).unwrap_or(1);
    let strips = conv.filters / each;
    let parts = block.parts(conv);
    let instance = b.program_id(0)?;
    let (rest, part) = split(&mut b, instance, parts)?;
    let (n, strip) = split(&mut b, rest, strips)?;
    let pixels = Pixels::of(&mut b, conv, block, part)?;
    let taps = taps(&mut b, conv, &pixels)?;
    let low = times(&mut b, strip, each)?;
    let (zero, end, step) = (int(&mut b, 0), int(&mut b, each), int(&mut b, 1));
    let mut place = None;
    let (first, start) = (times(&mut b, n, conv.channels)?, times(&mut b, n, conv.filters)?);
    b.for_loop((zero, end, step), &[], |b, number, _| {
        let filter = add(b, low, number)?;
        let (channel, _) = split(b, filter, conv.filters_of_group())?;
        let channel = add(b, first, channel)?;
        let image = times(b, channel, conv.image())?;
        let mut sum = b.constant(Literal::float(conv.sum(), 0.0), &[block.area()]);
        let row = times(b, filter, conv.taps())?;
        for (k, &(at, mask)) in taps.iter().enumerate() {
            let at = shift(b, at, image)?;
            let x = read(b, images, at, mask, conv.sum())?;
            let place = plus(b, row, k as i64)?;
            let w = read(b, weights, place, None, conv.sum())?;
            let w = b.splat(w, &[block.area()])?;
            sum = b.map(F::Fma, &[w, x, sum])?;
        }
        if let Some(bias) = bias {
            let bias = read(b, bias, filter, None, conv.sum())?;
            sum = shift(b, sum, bias)?;
        }
        let plane = add(b, start, filter)?;
        let plane = times(b, plane, conv.pixels())?;
        let offsets = shift(b, pixels.number, plane)?;
        let (image, filter) = (b.splat(n, &[block.area()])?, b.splat(filter, &[block.area()])?);
        place = Some((image, filter, offsets));
        write(b, result, offsets, sum, pixels.mask, conv.elem)?;
        Ok::<_, TypeError>(Vec::new())
    })?;
    let missing = || TypeError::Attribute { op: "for", message: "has no body".to_owned() };
    let (image, filter, offsets) = place.ok_or_else(missing)?;
    let axes = vec![
        Coordinate { index: image, extent: conv.batch, inside: true },
        Coordinate { index: filter, extent: conv.filters, inside: true },
        Coordinate { index: pixels.number, extent: conv.pixels(), inside: pixels.mask.is_none() },
    ];
    let instances = (parts * strips * conv.batch) as u32;
    Ok(ConvProgram { program: b.finish(), instances, coordinates: vec![Coordinates { offsets, axes }] })
}

/// Every tap's offsets in a channel and its mask.
fn taps(b: &mut Builder, conv: &Conv, pixels: &Pixels) -> Made<Vec<(Value, Option<Value>)>> {
    let mut out = Vec::new();
    for number in 0..conv.taps() {
        let mut rest = number;
        let mut tap = Vec::new();
        for axis in conv.axes.iter().rev() {
            tap.push(int(b, rest % axis.kernel));
            rest /= axis.kernel;
        }
        tap.reverse();
        out.push(pixels.tap(b, conv, &tap)?);
    }
    Ok(out)
}
