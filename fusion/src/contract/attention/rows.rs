//! Programs whose queries are rows, for processors with instructions for products of blocks. Scores are what these leave, and
//! what weighs values is rounded to the elements' type, as in libtorch's kernels.
//!
//! ```text
//! for %j in 0..KEYS step BLOCK with (%max = -inf, %sum = 0, %out = 0) {
//!   %s = dot %q, %k[j..]ᵀ, 0                 [QUERIES, BLOCK]
//!   %p = exp(scale %s - %new)
//!   yield %new, %sum * %factor + sum of %p, dot (cast %p), %v[j..], %out * %factor
//! }
//! ```

use tilefuse_block::Program;
use tilefuse_block::dynamic::{Axis, BuildError, Ptr, Tile, axis, blocked, dot, program, program_id, zeros};

use super::blocks::{QueryBlocks, Span, axes, tail};
use super::call::Attention;
use super::kv_splits::behind;
use super::online::{self, State, masked};
use super::program::Member;
use super::walk::{KeyStep, Queries, Walk};
use crate::block_kernel::Coordinates;
use crate::contract::accesses::Accesses;
use crate::contract::blocks::blocks_of;
use crate::contract::schedule::Splits;
use crate::contract::template::load_groups;
use crate::library_form::MaskForm;
use crate::taken::taken;

/// The fewest keys of a tile that is a right operand of such instructions.
const MIN_KEYS: u32 = 16;

/// The program, whose parameters and instances are those of [`super::program::write`]. Where keys and values are packed in pairs
/// (`vnni.rs`), a key takes so many elements.
///
/// # Errors
/// A defect of this module, where the operations do not fit each other.
pub(super) fn write(
    attention: &Attention,
    (blocks, splits): (&QueryBlocks, Option<Splits>),
    packed: Option<u32>,
) -> Result<(Program, Vec<Coordinates>), BuildError> {
    taken!("queries as rows");
    let accesses = Accesses::default();
    let program = program("attention", |kernel| {
        let member = Member::of(kernel, attention, (blocks, splits), packed.is_none(), &accesses);
        let block = || program_id(axes(splits)[0].into()).cast(member.index);
        let first = block() * blocks.queries;
        let (count, all) = (i64::from(blocks.queries), attention.queries);
        // The last block begins earlier where blocks do not divide the queries, so that none of what it reads is masked.
        let overlaps = all > count && all % count != 0;
        let start = if overlaps { first.minimum(all - count) } else { first };
        let queries =
            if overlaps { axis(start, blocks.queries) } else { blocked(block(), blocks.queries, all) };
        let own = if overlaps { queries.from(first) } else { queries };
        let mut writer =
            RowWriter { attention, blocks, packed, member, queries, own, first: start, q: Vec::new() };
        writer.q = writer.queries();
        let state = writer.through_keys();
        match splits {
            Some(_) => writer.leave(&state),
            None => writer.store(&state),
        }
    })?;
    Ok((program, accesses.take()))
}

struct RowWriter<'a> {
    attention: &'a Attention,
    blocks: &'a QueryBlocks,
    packed: Option<u32>,
    member: Member<'a>,
    /// The queries that are read, and of these the ones that are stored.
    queries: Axis,
    own: Axis,
    /// The first one that is read.
    first: Tile,
    /// `[queries, width]`, by span.
    q: Vec<Tile>,
}

impl RowWriter<'_> {
    fn queries(&self) -> Vec<Tile> {
        let tile = |&span: &Span| {
            let axis = self.member.span(span, self.attention.width);
            self.member.q.block(self.queries, axis).load_or(0)
        };
        self.blocks.width.iter().map(tile).collect()
    }

    /// What all keys make of the state.
    fn through_keys(&self) -> State {
        let (queries, block) = (self.blocks.queries, self.blocks.keys);
        let all = self.attention.queries;
        // The last block begins anywhere where blocks do not divide the queries.
        let is_aligned =
            queries.is_multiple_of(block) && (all % i64::from(queries) == 0 || all < i64::from(queries));
        let own = || Queries { first: self.first, is_aligned, count: queries.into(), all };
        let keys = self.attention.keys;
        // Panels are filled up to whole ones.
        let rest = self.packed.map_or_else(|| tail(keys % i64::from(block)).max(MIN_KEYS), |_| block);
        let walk = Walk {
            index: self.member.index,
            keys,
            block,
            rest,
            range: self.member.range,
            causal: self.attention.causal.then(own),
        };
        let shapes = || self.blocks.depth.iter().map(|span| [queries, span.extent]);
        let nothing = || State::nothing(self.member.sum, &[queries], shapes());
        walk.through(nothing, |state, step| self.step(state, step))
    }

    fn step(&self, state: Option<&State>, step: KeyStep) -> State {
        let keys = self.member.keys(step.first, step.extent, step.ragged.then_some(self.attention.keys));
        let scores = self.scores(keys, step);
        let online = online::Step::of(state, scores, 1, self.scale_of_powers());
        let weights = online.weights.cast(self.attention.elem);
        let sum = |(at, &span): (usize, &Span)| {
            let before = match state.zip(online.factor) {
                Some((state, factor)) => state.out[at] * factor.col(),
                None => zeros(self.member.sum, [self.blocks.queries, span.extent]),
            };
            dot(weights, self.values(keys, step, span), before)
        };
        let out = self.blocks.depth.iter().enumerate().map(sum).collect();
        State { most: online.most, sum: online.sum, out }
    }

    /// By what scores are multiplied as the exponents of powers of two, which a GPU has an instruction for: not beside a mask that is
    /// added to them.
    fn scale_of_powers(&self) -> Option<f64> {
        let adds = self.member.mask.as_ref().is_some_and(|(_, form)| *form != MaskForm::Keeps);
        let scale = self.attention.scale;
        Some(scale).filter(|scale| self.packed.is_none() && !adds && *scale > 0.0 && scale.is_finite())
    }

    /// `[queries, keys]`: the scores, -inf where a key does not count.
    fn scores(&self, keys: Axis, step: KeyStep) -> Tile {
        let mut scores = zeros(self.member.sum, [self.blocks.queries, step.extent]);
        for (&span, &q) in self.blocks.width.iter().zip(&self.q) {
            scores = dot(q, self.keys(keys, step, span), scores);
        }
        if self.scale_of_powers().is_none() {
            scores *= self.attention.scale;
        }
        let mut counted = keys.mask.map(Tile::row);
        if step.diagonal {
            let seen = keys.index.row().le(self.queries.index.col());
            counted = Some(counted.map_or(seen, |inside| inside & seen));
        }
        let mask = self.member.mask.as_ref();
        let mask = mask.map(|(mask, form)| (mask.block(self.queries, keys).load(), *form));
        masked(scores, mask, counted)
    }

    /// `[span, keys]`: a step's keys.
    fn keys(&self, keys: Axis, step: KeyStep, span: Span) -> Tile {
        let k = &self.member.k;
        if let Some(filled) = self.packed {
            let from = from(k.ptr, (step.first, filled), i64::from(span.first * step.extent));
            return load_groups(from, [span.extent, step.extent], 2);
        }
        let axis = self.member.span(span, self.attention.width);
        k.block(keys, axis).load().trans()
    }

    /// `[keys, span]`: a step's values.
    fn values(&self, keys: Axis, step: KeyStep, span: Span) -> Tile {
        let v = &self.member.v;
        if self.packed.is_some() {
            let filled = blocks_of(self.attention.keys, step.extent) * i64::from(step.extent);
            let from = from(v.ptr, (step.first, span.extent), i64::from(span.first) * filled);
            return load_groups(from, [step.extent, span.extent], 2);
        }
        let axis = self.member.span(span, self.attention.depth);
        v.block(keys, axis).load()
    }

    /// Stores what a range of keys gave.
    fn leave(&self, state: &State) {
        let y = self.member.y.ptr;
        for (&span, &out) in self.blocks.depth.iter().zip(&state.out) {
            let axis = self.member.span(span, self.attention.depth);
            y.block(&[(self.own, self.attention.depth), (axis, 1)]).store(out);
        }
        let most = match self.scale_of_powers() {
            Some(_) => state.most * std::f64::consts::LN_2,
            None => state.most,
        };
        for (first, value) in behind(self.attention).into_iter().zip([most, state.sum]) {
            (y + first).block(&[(self.own, 1)]).store(value);
        }
    }

    fn store(&self, state: &State) {
        let inverse = state.inverse(self.attention);
        for (&span, &out) in self.blocks.depth.iter().zip(&state.out) {
            let out = (out * inverse.col()).cast(self.attention.elem);
            let axis = self.member.span(span, self.attention.depth);
            self.member.y.block(self.own, axis).store(out);
        }
    }
}

/// What lies so many elements behind that of a key, each of which has so many before the next.
fn from(ptr: Ptr, (key, each): (Tile, u32), behind: i64) -> Ptr {
    ptr + key * each + behind
}
