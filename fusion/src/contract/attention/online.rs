//! Online softmax: what an instance carries through the keys, and what some of them make of it.
//!
//! The maximum, the sum of exponentials below it and the values that these weigh are a tuple, whose sums are corrected as those of
//! [`Combiner::MaxSumExp`] are.

use std::convert::Infallible;

use tilefuse_block::dynamic::{Carried, Number, Operand, Tile, both, fma, full, map, scalar, select, zeros};
use tilefuse_block::{Elem, Literal, ReduceFn, ScalarFn};

use super::call::Attention;
use crate::combiner::{Arithmetic, Combiner, Rebased};
use crate::library_form::MaskForm;

/// What an instance carries through the keys.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// The largest score so far, of each query.
    pub(super) most: Tile,
    /// The sum of exponentials below it.
    pub(super) sum: Tile,
    /// By part of the result: the weighted sum of values.
    pub(super) out: Vec<Tile>,
}

impl Carried for State {
    fn tiles(&self, out: &mut Vec<Tile>) {
        out.extend([self.most, self.sum]);
        out.extend(&self.out);
    }

    fn rebuilt(&self, next: &mut dyn Iterator<Item = Tile>) -> State {
        let (most, sum) = (self.most.rebuilt(next), self.sum.rebuilt(next));
        State { most, sum, out: self.out.rebuilt(next) }
    }
}

impl State {
    /// The state before any key, of queries and of parts of these shapes.
    pub(super) fn nothing<const R: usize>(
        elem: Elem,
        queries: &[u32],
        parts: impl Iterator<Item = [u32; R]>,
    ) -> State {
        let most = full(elem, queries, f64::NEG_INFINITY);
        let sum = zeros(elem, queries);
        State { most, sum, out: parts.map(|shape| zeros(elem, shape)).collect() }
    }

    /// What the results of attention are multiplied by in the end.
    pub(super) fn inverse(&self, attention: &Attention) -> Tile {
        inverse(self.sum, attention)
    }
}

/// One over a sum of exponentials. Where there are none, 0 in safe attention; else infinity, which makes NaN of the 0 that was summed.
pub(super) fn inverse(sum: Tile, attention: &Attention) -> Tile {
    let inverse = 1.0 / sum;
    if attention.safe { select(sum.eq(0.0), 0.0, inverse) } else { inverse }
}

/// What some keys make of a state.
pub(super) struct Step {
    /// The largest score with these.
    pub(super) most: Tile,
    /// The sum of exponentials below it.
    pub(super) sum: Tile,
    /// The exponentials of these keys.
    pub(super) weights: Tile,
    /// What was summed before is multiplied by this, if anything was.
    pub(super) factor: Option<Tile>,
}

impl Step {
    /// A step with scores whose keys lie along an axis. Those that are yet to be multiplied by a positive number, the scale, are
    /// exponents of two, with the largest one in units of `log2(e)`.
    pub(super) fn of(state: Option<&State>, scores: Tile, axis: usize, scale: Option<f64>) -> Step {
        let along = Along { axis, log2_scale: scale.map(|scale| scale * std::f64::consts::LOG2_E) };
        let Rebased { base: most, weights, factor } = rebased(state.map(|state| state.most), scores, along);
        let here = weights.sum(axis);
        let before = state.zip(factor);
        let sum = before.map_or(here, |(state, factor)| fma(state.sum, factor, here));
        Step { most, sum, weights, factor }
    }
}

/// What scores along an axis make of the largest so far, and by what the sums below each are multiplied.
fn rebased(so_far: Option<Tile>, scores: Tile, mut along: Along) -> Rebased<Tile> {
    let so_far = so_far.map(Operand::from);
    let Ok(Rebased { base, weights, factor }) =
        Combiner::MaxSumExp.rebased(&mut along, so_far.as_ref(), &scores.into());
    Rebased { base: tile(base), weights: tile(weights), factor: factor.map(tile) }
}

/// By what sums are multiplied, of parts whose largest scores lie along an axis.
pub(super) fn factors(most: Tile, axis: usize) -> Tile {
    rebased(None, most, Along { axis, log2_scale: None }).weights
}

fn tile(operand: Operand) -> Tile {
    match operand {
        Operand::Tile(tile) => tile,
        Operand::Number(number) => scalar(Elem::F32, number),
    }
}

/// Elements of tiles along an axis; what is the same for all of them lacks it.
struct Along {
    axis: usize,
    /// What elements are yet to be multiplied by, to be exponents of two: a multiplication and an addition for each.
    log2_scale: Option<f64>,
}

fn rank(operand: &Operand) -> usize {
    match operand {
        Operand::Tile(tile) => tile.shape().len(),
        Operand::Number(_) => 0,
    }
}

impl Arithmetic for Along {
    type Value = Operand;
    type Error = Infallible;

    fn map(&mut self, function: ScalarFn, args: &[&Operand]) -> Result<Operand, Infallible> {
        let most = args.iter().map(|arg| rank(arg)).max().unwrap_or(0);
        let beside = |arg: &Operand| match arg {
            Operand::Tile(tile) if (1..most).contains(&rank(arg)) => tile.expand_dims(self.axis).into(),
            _ => *arg,
        };
        Ok(Operand::Tile(match *args {
            [x] => map(function, [beside(x)]),
            [x, y] => map(function, [beside(x), beside(y)]),
            [condition, yes, no] => select(tile(beside(condition)), beside(yes), beside(no)),
            _ => map(function, []),
        }))
    }

    fn number(&mut self, literal: Literal) -> Operand {
        Operand::Number(Number::Float(literal.as_f64()))
    }

    fn known(&self, _: &Operand) -> Option<Literal> {
        None
    }

    fn elem(&self, operand: &Operand) -> Elem {
        match operand {
            Operand::Tile(tile) => tile.elem().unwrap_or(Elem::F32),
            Operand::Number(_) => Elem::F32,
        }
    }

    fn reduce(&mut self, function: ReduceFn, operand: &Operand) -> Result<Operand, Infallible> {
        let reduced = tile(*operand).reduce(function, self.axis, None);
        Ok(self.log2_scale.map_or(reduced, |scale| reduced * scale).into())
    }

    fn exp_below(&mut self, own: &Operand, base: &Operand) -> Result<Operand, Infallible> {
        let Some(scale) = self.log2_scale else {
            let below = self.map(ScalarFn::Sub, &[own, base])?;
            return self.map(ScalarFn::Exp, &[&below]);
        };
        let is_element = rank(own) > rank(base);
        let (own, base) = (tile(*own), tile(*base));
        let exponent = if is_element { fma(own, scale, -base.expand_dims(self.axis)) } else { own - base };
        Ok(map(ScalarFn::Exp2ApproxFtz, [exponent.into()]).into())
    }

    fn extent(&self) -> i64 {
        1
    }
}

/// Scores, -inf where they do not count, with the caller's mask where there is one. libtorch's operator adds -inf where a mask
/// of truth values is false: a score that is NaN or +inf makes NaN of its row there, too.
pub(super) fn masked(mut scores: Tile, mask: Option<(Tile, MaskForm)>, mut counted: Option<Tile>) -> Tile {
    let elem = scores.elem().unwrap_or(Elem::F32);
    match mask {
        None => {}
        Some((mask, MaskForm::Keeps)) => counted = both(counted, Some(mask)),
        Some((mask, MaskForm::Opens)) => {
            let shape = scores.shape();
            scores += select(mask, zeros(elem, shape), f64::NEG_INFINITY);
        }
        Some((mask, MaskForm::Added)) => scores += mask.cast(elem),
    }
    counted.map_or(scores, |counted| select(counted, scores, f64::NEG_INFINITY))
}
