//! Several reductions of one value along one dimension, as models write them out: what compilers compute in one pass. The value
//! is often a product, whose epilogue they may be.

use super::reduce;
use super::{Fact, Generator, is_float, t};
use crate::torch::Arg;

/// Softmax, log-sum-exp, moments and norms of a value or of a linear map of it.
pub(super) fn statistics(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| is_float(g.kind(id)) && g.rank(id) > 0)?;
    let x = if g.rng.chance(0.5) { linear(g, x)? } else { x };
    let last = g.rank(x) as i64 - 1;
    let dim = if g.rng.chance(0.7) { last } else { g.dim(x)? };
    match g.rng.below(6) {
        0 => softmax(g, x, dim),
        1 => log_sum_exp(g, x, dim),
        2 => moments(g, x, dim),
        3 => spread_and_mean(g, x, dim),
        4 => reduce::softmax_of(g, x, dim),
        _ => reduce::layer_norm(g, x),
    }
}

/// A linear map of the last dimension, perhaps with a residual.
pub(super) fn linear(g: &mut Generator, x: u32) -> Option<u32> {
    let (size, kind) = (g.size(x), g.kind(x));
    let (&depth, outer) = size.split_last()?;
    let width = if g.rng.chance(0.3) { depth } else { g.rng.range(1, 80) };
    if depth == 0 || depth > 512 || outer.iter().product::<i64>() * depth * width > 1 << 22 {
        return None;
    }
    let weight = g.plain_input(&[width, depth], kind)?;
    let bias = if g.rng.chance(0.5) { t(g.plain_input(&[width], kind)?) } else { Arg::None };
    let y = g.emit("linear", vec![t(x), t(weight), bias], Fact::ROUNDED)?;
    if width == depth && g.rng.chance(0.7) {
        return g.emit("add.Tensor", vec![t(y), t(x), Arg::Int(1)], Fact::ROUNDED);
    }
    Some(y)
}

/// `exp(x - max x)`, and the maximum and the sum, which keep the dimension.
fn exponentials(g: &mut Generator, x: u32, dim: i64) -> Option<[u32; 3]> {
    let along = || vec![Arg::Ints(vec![dim]), Arg::Bool(true)];
    let list = |x: u32| std::iter::once(t(x)).chain(along()).collect::<Vec<_>>();
    let most = g.emit("amax", list(x), g.fact(x))?;
    let below = g.emit("sub.Tensor", vec![t(x), t(most), Arg::Int(1)], Fact::ROUNDED)?;
    let powers = g.emit("exp", vec![t(below)], Fact::ROUNDED)?;
    let sum = g.emit("sum.dim_IntList", list(powers), Fact::ROUNDED)?;
    Some([powers, most, sum])
}

fn softmax(g: &mut Generator, x: u32, dim: i64) -> Option<()> {
    let [powers, _, sum] = exponentials(g, x, dim)?;
    g.emit("div.Tensor", vec![t(powers), t(sum)], Fact::ROUNDED).map(drop)
}

fn log_sum_exp(g: &mut Generator, x: u32, dim: i64) -> Option<()> {
    let [_, most, sum] = exponentials(g, x, dim)?;
    let log = g.emit("log", vec![t(sum)], Fact::ROUNDED)?;
    let all = g.emit("add.Tensor", vec![t(log), t(most), Arg::Int(1)], Fact::ROUNDED)?;
    // Cross-entropy, but for the class.
    g.emit("sub.Tensor", vec![t(x), t(all), Arg::Int(1)], Fact::ROUNDED).map(drop)
}

/// Mean and variance in two steps, and what they normalize.
fn moments(g: &mut Generator, x: u32, dim: i64) -> Option<()> {
    let list = |x: u32| vec![t(x), Arg::Ints(vec![dim]), Arg::Bool(true)];
    let mean = g.emit("mean.dim", list(x), Fact::ROUNDED)?;
    let centred = g.emit("sub.Tensor", vec![t(x), t(mean), Arg::Int(1)], Fact::ROUNDED)?;
    let square = g.emit("mul.Tensor", vec![t(centred), t(centred)], Fact::ROUNDED)?;
    let variance = g.emit("mean.dim", list(square), Fact::ROUNDED)?;
    let variance = g.emit("add.Scalar", vec![t(variance), Arg::Float(1e-2), Arg::Int(1)], Fact::ROUNDED)?;
    let scale = g.emit("rsqrt", vec![t(variance)], Fact::ROUNDED)?;
    g.emit("mul.Tensor", vec![t(centred), t(scale)], Fact::ROUNDED).map(drop)
}

/// Variance and mean by one operator, perhaps of nothing. libtorch's mean of infinities beside other elements depends on where
/// these are.
fn spread_and_mean(g: &mut Generator, x: u32, dim: i64) -> Option<()> {
    if g.tensor(x).numel() > 0 && !g.magnitude(x).is_finite() {
        return None;
    }
    let name = *g.rng.pick(&["var_mean.correction", "std_mean.correction"]);
    let correction = Arg::Int(g.rng.range(0, 2));
    let keep = Arg::Bool(g.rng.chance(0.5));
    let args = vec![t(x), Arg::Ints(vec![dim]), correction, keep];
    g.emit_all(name, args, &[Fact::ROUNDED, Fact::ROUNDED]).map(drop)
}
