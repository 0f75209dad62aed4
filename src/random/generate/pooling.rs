//! Pooling over windows, and enlargement, of images as they are and around convolutions.

use super::conv::{convolution_of, fits};
use super::{Fact, Generator, t};
use crate::random::program::Values;
use crate::torch::Arg;

/// Pools or enlarges an image, in front of a convolution, behind one, or both.
pub(super) fn pooling(g: &mut Generator) -> Option<()> {
    let x = if g.rng.chance(0.4) { image(g)? } else { g.value(fits)? };
    let behind = if g.rng.chance(0.4) { g.made(|g| convolution_of(g, x)) } else { None };
    let x = behind.unwrap_or(x);
    let pooled = match g.rng.below(10) {
        0..=3 => max_pool(g, x)?,
        4..=6 => average_pool(g, x)?,
        7 => adaptive_pool(g, x)?,
        _ => enlarged(g, x)?,
    };
    if g.rng.chance(0.3) {
        convolution_of(g, pooled);
    }
    Some(())
}

/// A new image of one to three axes, of integers, many of them alike, or with NaN and infinities now and then.
pub(super) fn image(g: &mut Generator) -> Option<u32> {
    let axes = 1 + g.rng.weighted(&[2, 5, 2]);
    let mut shape = vec![g.rng.range(1, 4), if g.traits.blocks { g.extent() } else { g.rng.range(1, 7) }];
    let most = [65, 17, 7][axes - 1];
    shape.extend((0..axes).map(|_| g.rng.range(1, most)));
    let values = match g.rng.below(10) {
        0 => Values::Special,
        1..=2 => Values::Ints(-2, 3),
        _ => Values::Normal,
    };
    g.traits.special |= values == Values::Special;
    g.input_of(&shape, g.traits.kind, values)
}

/// How many axes of a value are those of its images: all behind the channels, which are first or behind the batch.
fn axes(g: &mut Generator, x: u32) -> Option<usize> {
    let rank = g.rank(x);
    let batched = rank == 5 || (rank > 2 && g.rng.chance(0.8));
    rank.checked_sub(1 + usize::from(batched)).filter(|axes| (1..=3).contains(axes))
}

/// Arguments of windows.
struct Windows {
    kernel: Vec<i64>,
    stride: Arg<u32>,
    padding: Arg<u32>,
}

impl Windows {
    /// Windows along so many axes; libtorch takes a padding of at most half a window.
    fn draw(g: &mut Generator, axes: usize) -> Windows {
        // One number is that of all axes.
        let count = if g.rng.chance(0.3) { 1 } else { axes };
        let kernel: Vec<i64> = (0..count).map(|_| g.rng.range(1, 5)).collect();
        let stride = (0..count).map(|_| g.rng.range(1, 4)).collect();
        let stride = if g.rng.chance(0.3) { Vec::new() } else { stride };
        let padding = kernel.iter().map(|n| g.rng.range(0, n / 2 + 1)).collect();
        Windows { kernel, stride: Arg::Ints(stride), padding: Arg::Ints(padding) }
    }
}

fn max_pool(g: &mut Generator, x: u32) -> Option<u32> {
    let axes = axes(g, x)?;
    let Windows { kernel, stride, padding } = Windows::draw(g, axes);
    let dilation = Arg::Ints(kernel.iter().map(|_| if g.rng.chance(0.2) { 2 } else { 1 }).collect());
    let args = vec![t(x), Arg::Ints(kernel), stride, padding, dilation, Arg::Bool(g.rng.chance(0.3))];
    let fact = g.fact(x);
    // Where numbers are rounded, positions of the largest are not the same everywhere.
    if axes > 1 && fact.exact && g.rng.chance(0.2) {
        let name = format!("max_pool{axes}d_with_indices");
        return g.emit_all(&name, args, &[fact, Fact::EXACT])?.first().copied();
    }
    g.emit(&format!("max_pool{axes}d"), args, fact)
}

fn average_pool(g: &mut Generator, x: u32) -> Option<u32> {
    let axes = axes(g, x)?;
    let Windows { kernel, stride, padding } = Windows::draw(g, axes);
    let [rounds_up, counts_padding] = [0.3, 0.5].map(|often| Arg::Bool(g.rng.chance(often)));
    let mut args = vec![t(x), Arg::Ints(kernel), stride, padding, rounds_up, counts_padding];
    if axes > 1 && g.rng.chance(0.2) {
        args.push(Arg::Int(*g.rng.pick(&[1, 3, 4, -2])));
    }
    g.emit(&format!("avg_pool{axes}d"), args, Fact::ROUNDED)
}

/// Pooling to images of a given size, most often of one pixel.
fn adaptive_pool(g: &mut Generator, x: u32) -> Option<u32> {
    let axes = axes(g, x)?;
    let size = g.size(x);
    let one = g.rng.chance(0.7);
    let of = size[size.len() - axes..].iter().map(|&n| if one { 1 } else { g.rng.range(1, n.max(1) + 2) });
    let args = vec![t(x), Arg::Ints(of.collect())];
    let fact = g.fact(x);
    if fact.exact && g.rng.chance(0.2) {
        let name = format!("adaptive_max_pool{axes}d");
        return g.emit_all(&name, args, &[fact, Fact::EXACT])?.first().copied();
    }
    g.emit(&format!("adaptive_avg_pool{axes}d"), args, Fact::ROUNDED)
}

/// Enlargement to the nearest pixels, by its factors or its size.
fn enlarged(g: &mut Generator, x: u32) -> Option<u32> {
    let size = g.size(x);
    let axes = size.len().checked_sub(2).filter(|axes| (1..=3).contains(axes))?;
    let alike = g.rng.chance(0.7);
    let first = *g.rng.pick(&[1, 2, 2, 2, 4, 3]);
    let factors: Vec<i64> = (0..axes).map(|_| if alike { first } else { g.rng.range(1, 5) }).collect();
    let floats: Vec<f64> = factors.iter().map(|&factor| factor as f64).collect();
    let output: Vec<i64> = size[2..].iter().zip(&factors).map(|(n, factor)| n * factor).collect();
    let name = format!("upsample_nearest{axes}d");
    let fact = g.fact(x);
    match g.rng.below(4) {
        0 => g.emit(&format!("{name}.vec"), vec![t(x), Arg::None, Arg::Floats(floats)], fact),
        1 => g.emit(&format!("{name}.vec"), vec![t(x), Arg::Ints(output), Arg::None], fact),
        2 => {
            let scales = floats.into_iter().map(Arg::Float);
            g.emit(&name, [t(x), Arg::Ints(output)].into_iter().chain(scales).collect(), fact)
        }
        _ => g.emit(&name, vec![t(x), Arg::Ints(output)], fact),
    }
}
