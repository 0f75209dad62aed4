//! Programs of attention with few queries, whose time is that of reading keys and values. An instance has all of them, and
//! takes a block of keys for one query after the other, so that it is read from memory once:
//!
//! ```text
//! %s = sum of %k[j..] * %q along elements        [BLOCK]
//! %p = exp(%s - %new)
//! %out * %scale + sum of %p * %v[j..] along keys [DEPTH]
//! ```

use tilefuse_block::Program;
use tilefuse_block::dynamic::{Axis, BuildError, Tile, fma, program};

use super::blocks::{QueryBlocks, Span, tail};
use super::call::Attention;
use super::kv_splits::behind;
use super::online::{self, State, masked};
use super::program::Member;
use super::walk::Walk;
use crate::block_kernel::Coordinates;
use crate::contract::accesses::Accesses;
use crate::contract::schedule::Splits;
use crate::taken::taken;

/// The program of attention with few queries. Its parameters are those of [`super::program::write`]; instances are
/// numbered as there, with one block of queries.
///
/// # Errors
/// A defect of this module, where the operations do not fit each other.
pub(super) fn write(
    attention: &Attention,
    blocks: &QueryBlocks,
    splits: Option<Splits>,
) -> Result<(Program, Vec<Coordinates>), BuildError> {
    taken!("each query by itself");
    let accesses = Accesses::default();
    let program = program("attention", |kernel| {
        let member = Member::of(kernel, attention, (blocks, splits), false, &accesses);
        let elements = |n: i64| {
            let extent = n.unsigned_abs().next_power_of_two() as u32;
            member.span(Span { first: 0, extent }, n)
        };
        let (width, depth) = (elements(attention.width), elements(attention.depth));
        let query = |number: i64| {
            let q = member.row(&member.q, number, width).load();
            q.cast(member.sum) * attention.scale
        };
        let queries = (0..i64::from(blocks.queries)).map(query).collect();
        let writer = DecodeWriter { attention, blocks, member, width, depth, queries };
        for (number, state) in (0..).zip(&writer.through_keys()) {
            match splits {
                Some(_) => writer.leave(number, state),
                None => writer.store(number, state),
            }
        }
    })?;
    Ok((program, accesses.take()))
}

struct DecodeWriter<'a> {
    attention: &'a Attention,
    blocks: &'a QueryBlocks,
    member: Member<'a>,
    /// The elements of the query.
    width: Axis,
    /// The elements of a value.
    depth: Axis,
    /// `[width]` each: the queries, scaled.
    queries: Vec<Tile>,
}

impl DecodeWriter<'_> {
    /// What all keys make of each query's state.
    fn through_keys(&self) -> Vec<State> {
        let (keys, block) = (self.attention.keys, self.blocks.keys);
        let walk = Walk {
            index: self.member.index,
            keys,
            block,
            rest: tail(keys % i64::from(block)),
            range: self.member.range,
            causal: None,
        };
        let elements = || std::iter::once([self.depth.extent]);
        let nothing = || vec![State::nothing(self.member.sum, &[], elements()); self.queries.len()];
        walk.through(nothing, |states: Option<&Vec<State>>, step| {
            let end = step.ragged.then_some(keys);
            let keys = self.member.keys(step.first, step.extent, end);
            let state = |number: usize| states.and_then(|states| states.get(number));
            (0..self.queries.len()).map(|number| self.step(number, state(number), keys)).collect()
        })
    }

    fn step(&self, number: usize, state: Option<&State>, keys: Axis) -> State {
        let online = online::Step::of(state, self.scores(number, keys), 0, None);
        let values = self.member.v.block(keys, self.depth).load();
        let here = (online.weights.col() * values.cast(self.member.sum)).sum(0);
        let out = match state.zip(online.factor) {
            Some((state, factor)) => state.out.iter().map(|&before| fma(before, factor, here)).collect(),
            None => vec![here],
        };
        State { most: online.most, sum: online.sum, out }
    }

    /// `[keys]`: the scores, -inf where a key does not count.
    fn scores(&self, number: usize, keys: Axis) -> Tile {
        let tile = self.member.k.block(keys, self.width).load();
        let scores = (tile.cast(self.member.sum) * self.queries[number].row()).sum(1);
        let mask = self.member.mask.as_ref();
        let mask = mask.map(|(mask, form)| (self.member.row(mask, number as i64, keys).load(), *form));
        masked(scores, mask, keys.mask)
    }

    /// Stores what a range of keys gave.
    fn leave(&self, number: i64, state: &State) {
        let y = self.member.y.ptr;
        for &out in &state.out {
            (y + number * self.attention.depth).block(&[(self.depth, 1)]).store(out);
        }
        for (first, value) in behind(self.attention).into_iter().zip([state.most, state.sum]) {
            (y + (first + number)).store(value);
        }
    }

    fn store(&self, number: i64, state: &State) {
        let inverse = state.inverse(self.attention);
        let y = self.member.row(&self.member.y, number, self.depth);
        for &out in &state.out {
            y.store((out * inverse).cast(self.attention.elem));
        }
    }
}
