//! Losses, of values as they are and behind a linear map or a convolution.

use tch::Kind;

use super::conv::convolution_of;
use super::pooling::image;
use super::reduce::positive;
use super::statistics::linear;
use super::{Fact, Generator, t};
use crate::random::program::Values;
use crate::torch::Arg;

/// A loss of classes or of elements, of all of them, their mean or their sum.
pub(super) fn loss(g: &mut Generator) -> Option<()> {
    let x = if g.rng.chance(0.2) {
        let image = image(g)?;
        g.made(|g| convolution_of(g, image)).unwrap_or(image)
    } else {
        let x = g.value(|g, id| {
            g.is_float(id) && g.rank(id) > 0 && (1..g.traits.most_operand).contains(&g.tensor(id).numel())
        })?;
        if g.rng.chance(0.7) { linear(g, x)? } else { x }
    };
    match g.rng.below(8) {
        0..=1 => cross_entropy(g, x),
        2..=3 => negative_likelihood(g, x),
        4 => binary_cross_entropy(g, x),
        _ => of_difference(g, x),
    }
}

/// None, the mean or the sum.
fn reduction(g: &mut Generator) -> Arg<u32> {
    Arg::Int(g.rng.range(0, 3))
}

/// Factors of this shape, or none.
fn weights(g: &mut Generator, shape: &[i64], kind: Kind) -> Option<Arg<u32>> {
    if g.rng.chance(0.7) { Some(Arg::None) } else { positive(g, shape, kind).map(t) }
}

/// The dimension of the classes.
fn class_dim(g: &Generator, x: u32) -> usize {
    usize::from(g.rank(x) > 1)
}

/// Targets that are classes, and the class that counts for nothing: none of them, a number of its own, or one of them.
fn classes(g: &mut Generator, x: u32) -> Option<[Arg<u32>; 2]> {
    let mut shape = g.size(x);
    let count = shape.remove(class_dim(g, x));
    let (low, ignored) = match g.rng.below(4) {
        0 => (-1, -1),
        1 => (0, g.rng.range(0, count)),
        _ => (0, -100),
    };
    let target = g.input_of(&shape, Kind::Int64, Values::Ints(low, count))?;
    Some([t(target), Arg::Int(ignored)])
}

/// Cross entropy of scores and classes or their probabilities.
fn cross_entropy(g: &mut Generator, x: u32) -> Option<()> {
    let (size, kind, dim) = (g.size(x), g.kind(x), class_dim(g, x));
    let probabilities = g.rng.chance(0.2);
    let [target, ignored] = match probabilities {
        true => {
            let scores = g.plain_operand(&size, kind)?;
            let target = g.emit("softmax.int", vec![t(scores), Arg::Int(dim as i64)], Fact::ROUNDED)?;
            [t(target), Arg::Int(-100)]
        }
        false => classes(g, x)?,
    };
    let weight = weights(g, &size[dim..=dim], kind)?;
    let smoothing = Arg::Float(if g.rng.chance(0.2) { 0.1 } else { 0.0 });
    let args = vec![t(x), target, weight, reduction(g), ignored, smoothing];
    g.emit("cross_entropy_loss", args, Fact::ROUNDED).map(drop)
}

/// The loss of classes by logarithms of their probabilities.
fn negative_likelihood(g: &mut Generator, x: u32) -> Option<()> {
    let dim = class_dim(g, x);
    let log = vec![t(x), Arg::Int(dim as i64)];
    let x = if g.rng.chance(0.7) { g.emit("log_softmax.int", log, Fact::ROUNDED)? } else { x };
    let [target, ignored] = classes(g, x)?;
    let size = g.size(x);
    let weight = weights(g, &size[dim..=dim], g.kind(x))?;
    let name = match size.len() {
        1 | 2 if g.rng.chance(0.5) => "nll_loss",
        4 if g.rng.chance(0.5) => "nll_loss2d",
        _ => "nll_loss_nd",
    };
    let args = vec![t(x), target, weight, reduction(g), ignored];
    g.emit(name, args, Fact::ROUNDED).map(drop)
}

/// Binary cross entropy of scores, with factors of positions and of positive targets.
fn binary_cross_entropy(g: &mut Generator, x: u32) -> Option<()> {
    let (size, kind) = (g.size(x), g.kind(x));
    let target = match g.rng.chance(0.5) {
        true => {
            let scores = g.plain_operand(&size, kind)?;
            g.emit("sigmoid", vec![t(scores)], Fact::ROUNDED)?
        }
        false => g.input_of(&size, kind, Values::Ints(0, 2))?,
    };
    let weight = weights(g, &size, kind)?;
    let of_positive = weights(g, size.last_chunk::<1>()?, kind)?;
    let args = vec![t(x), t(target), weight, of_positive, reduction(g)];
    g.emit("binary_cross_entropy_with_logits", args, Fact::ROUNDED).map(drop)
}

/// A loss of the difference of a value and a target, perhaps of another type.
fn of_difference(g: &mut Generator, x: u32) -> Option<()> {
    let kind = if g.traits.mixed { g.some_kind() } else { g.kind(x) };
    let target = g.operand(&g.size(x), kind)?;
    let args = vec![t(x), t(target), reduction(g)];
    let (name, more) = match g.rng.below(4) {
        0 => ("mse_loss", None),
        1 => ("l1_loss", None),
        2 => ("smooth_l1_loss", Some(*g.rng.pick(&[1.0, 0.5, 0.0, 2.0]))),
        _ => ("huber_loss", Some(*g.rng.pick(&[1.0, 0.5, 2.0]))),
    };
    g.emit(name, args.into_iter().chain(more.map(Arg::Float)).collect(), Fact::ROUNDED).map(drop)
}
