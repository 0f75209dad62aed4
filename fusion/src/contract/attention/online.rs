//! Online softmax: what an instance carries through the keys, and what some of them make of it.

use tilefuse_block::Elem;
use tilefuse_block::dynamic::{Carried, Tile, both, fma, full, select, zeros};

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

    /// What the results are multiplied by in the end: 0 of a query that saw no key, as in libtorch.
    pub(super) fn inverse(&self) -> Tile {
        inverse(self.sum)
    }
}

/// One over a sum of exponentials, 0 where there are none.
pub(super) fn inverse(sum: Tile) -> Tile {
    let inverse = 1.0 / sum;
    select(sum.eq(0.0), 0.0, inverse)
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
    /// A step with scores whose keys lie along an axis.
    pub(super) fn of(state: Option<&State>, scores: Tile, axis: usize) -> Step {
        let here = scores.max(axis);
        let most = state.map_or(here, |state| state.most.maximum(here));
        let below = below(most);
        let of_query = if scores.shape().len() == 1 { below } else { below.expand_dims(axis) };
        let weights = (scores - of_query).exp();
        let sum = weights.sum(axis);
        let Some(state) = state else { return Step { most, sum, weights, factor: None } };
        let factor = (state.most - below).exp();
        Step { most, sum: fma(state.sum, factor, sum), weights, factor: Some(factor) }
    }
}

/// What exponents are counted from: where no key has been seen, the difference from -inf would be NaN.
pub(super) fn below(most: Tile) -> Tile {
    select(most.eq(f64::NEG_INFINITY), 0.0, most)
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
