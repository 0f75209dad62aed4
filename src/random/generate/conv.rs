//! Convolutions of one to three axes, plain and transposed.

use tch::Kind;

use super::pooling::image;
use super::{Fact, Generator, t};
use crate::torch::Arg;

/// A convolution of a value, with or without a batch, and a weight. Some of libtorch's kernels multiply the zeros of a padding
/// by a weight and others do not, so that weights are finite.
pub(super) fn convolution(g: &mut Generator) -> Option<()> {
    let x = if g.rng.chance(0.3) { image(g)? } else { g.value(fits)? };
    convolution_of(g, x)
}

/// Whether a value may be images.
pub(super) fn fits(g: &Generator, id: u32) -> bool {
    g.is_float(id) && (2..=5).contains(&g.rank(id)) && g.tensor(id).numel() < g.traits.most_operand
}

/// The same of this value.
pub(super) fn convolution_of(g: &mut Generator, x: u32) -> Option<()> {
    let (size, kind) = (g.size(x), g.kind(x));
    if !fits(g, x) || size.contains(&0) || g.traits.special {
        return None;
    }
    let batched = size.len() == 5 || (size.len() > 2 && g.rng.chance(0.7));
    let (channels, image) = size.get(usize::from(batched)..)?.split_first()?;
    let axes = Some(image.len()).filter(|axes| (1..=3).contains(axes))?;
    let divisors: Vec<i64> = (1..=*channels).filter(|n| channels % n == 0).collect();
    let blocks = g.traits.blocks;
    let groups = if g.rng.chance(if blocks { 0.9 } else { 0.5 }) { 1 } else { *g.rng.pick(&divisors) };
    let of_group = if blocks && groups == 1 { g.extent() } else { g.rng.range(1, 4) };
    let transposed = g.rng.chance(if blocks { 0.1 } else { 0.3 });
    let mut list = |low: i64, high: i64| -> Vec<i64> { (0..axes).map(|_| g.rng.range(low, high)).collect() };
    let (kernel, stride, mut dilation, mut padding) = (list(1, 4), list(1, 4), list(1, 3), list(0, 3));
    // oneDNN's kernels end the process where a window has padding alone in it.
    if matches!(kind, Kind::Half | Kind::BFloat16) {
        dilation.fill(1);
        padding.iter_mut().zip(&kernel).for_each(|(padding, kernel)| *padding = (kernel - 1).min(*padding));
    }
    for axis in 0..axes {
        let image = image[axis];
        if !transposed && is_padding_alone(image, kernel[axis], stride[axis], padding[axis], dilation[axis]) {
            padding[axis] = 0;
        }
    }
    // Of an even number of taps some are neighbours of the pixel alone.
    let centred = kernel.iter().zip(&dilation).all(|(taps, &step)| taps % 2 == 1 || step == 1);
    let further: Vec<i64> = stride.iter().map(|s| s - 1).collect();
    let mut shape = match transposed {
        true => vec![*channels, of_group],
        false => vec![of_group * groups, channels / groups],
    };
    shape.extend(&kernel);
    let weight = g.operand(&shape, kind)?;
    let bias = if g.rng.chance(0.5) { t(g.operand(&[of_group * groups], kind)?) } else { Arg::None };
    let [stride, dilation, padding, further] = [stride, dilation, padding, further].map(Arg::Ints);
    let mut args = vec![t(x), t(weight), bias];
    let name = match (transposed, g.rng.below(3)) {
        (true, _) => {
            args.extend([stride, padding, further, Arg::Int(groups), dilation]);
            format!("conv_transpose{axes}d{}", if axes == 1 { "" } else { ".input" })
        }
        (false, 0) if centred => {
            let ones = Arg::Ints(vec![1; axes]);
            args.extend([ones, Arg::Str("same".into()), dilation, Arg::Int(groups)]);
            format!("conv{axes}d.padding")
        }
        (false, _) => {
            args.extend([stride, padding, dilation, Arg::Int(groups)]);
            format!("conv{axes}d")
        }
    };
    g.emit(&name, args, Fact::ROUNDED)?;
    Some(())
}

/// Whether a window along an axis has no pixel of the image.
fn is_padding_alone(image: i64, taps: i64, stride: i64, padding: i64, dilation: i64) -> bool {
    let out = (image + 2 * padding - (taps - 1) * dilation - 1) / stride + 1;
    let pixels = |window: i64| (0..taps).map(move |tap| window * stride - padding + tap * dilation);
    (0..out).any(|window| !pixels(window).any(|pixel| (0..image).contains(&pixel)))
}
