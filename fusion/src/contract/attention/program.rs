//! Programs of attention.

use tilefuse_block::dynamic::{
    Axis, Block, BuildError, Ptr, Scope, Tile, axis, blocked, dot, offset, program, program_id, scalar,
    unravel, zeros,
};
use tilefuse_block::{Elem, Program};

use super::blocks::{QueryBlocks, Span, axes, fits, tail};
use super::call::Attention;
use super::kv_splits::{behind, left_by_split, written};
use super::online::{self, State, masked};
use super::walk::{KeyStep, Queries, Walk};
use crate::block_kernel::Coordinates;
use crate::contract::accesses::{Accesses, Matrix};
use crate::contract::product::Access;
use crate::contract::schedule::Splits;
use crate::library_form::MaskForm;
use crate::taken::taken;

/// The program of attention in these blocks. Its parameters are queries, keys, values, the mask if there is one, and the
/// result; instances are numbered by range of keys where there are several, by block of queries and by member of the batch.
///
/// # Errors
/// A defect of this module, where the operations do not fit each other.
pub(super) fn write(
    attention: &Attention,
    blocks: &QueryBlocks,
    splits: Option<Splits>,
) -> Result<(Program, Vec<Coordinates>), BuildError> {
    taken!("queries as lanes");
    let accesses = Accesses::default();
    let program = program("attention", |kernel| {
        let member = Member::of(kernel, attention, (blocks, splits), false, &accesses);
        let block = program_id(axes(splits)[0].into()).cast(member.index);
        let first = block * blocks.queries;
        let queries = blocked(block, blocks.queries, attention.queries);
        let mut writer = LaneWriter { attention, blocks, member, queries, first, q: Vec::new() };
        writer.q = writer.transposed_queries();
        let state = writer.through_keys();
        match splits {
            Some(_) => writer.leave(&state),
            None => writer.store(&state),
        }
    })?;
    Ok((program, accesses.take()))
}

/// The tensors of an instance's member of the batch.
pub(super) struct Member<'a> {
    /// The kind of offsets.
    pub(super) index: Elem,
    /// The kind of sums.
    pub(super) sum: Elem,
    pub(super) q: Matrix<'a>,
    pub(super) k: Matrix<'a>,
    pub(super) v: Matrix<'a>,
    pub(super) mask: Option<(Matrix<'a>, MaskForm)>,
    /// The result, or what begins where an instance leaves what a range of keys gave.
    pub(super) y: Matrix<'a>,
    /// The first key of an instance and the one behind its last, where it has not all keys.
    pub(super) range: Option<[Tile; 2]>,
}

impl<'a> Member<'a> {
    /// The parameters of a program, and the member by the second axis of the grid. Neighbours may compute operands where these are not
    /// `copied`, as to shared memory ahead of the products.
    pub(super) fn of(
        kernel: &Scope,
        attention: &Attention,
        (blocks, splits): (&QueryBlocks, Option<Splits>),
        copied: bool,
        accesses: &'a Accesses,
    ) -> Member<'a> {
        let index = if fits(attention, blocks, splits) { Elem::I32 } else { Elem::I64 };
        let pointer =
            |name: &str, elem: Elem, len: i64| kernel.ptr(name, elem, len.unsigned_abs()).indexed(index);
        let operand = |name: &str, access: &Access, elem: Elem| pointer(name, elem, access.source.span);
        let q = operand("q", &attention.q, attention.elem);
        let k = operand("k", &attention.k, attention.elem);
        let v = operand("v", &attention.v, attention.elem);
        let mask = attention.mask.as_ref();
        let mask = mask.map(|mask| (&mask.access, mask.form, operand("mask", &mask.access, mask.elem)));
        let sizes = [attention.members().unwrap_or(1), attention.queries, attention.depth];
        let y = match splits {
            Some(splits) => pointer("parts", attention.sum(), written(attention, splits)),
            None => pointer("y", attention.elem, sizes.iter().product()),
        };
        let member = program_id(axes(splits)[1].into()).cast(index);
        let members = unravel(member, &attention.batch);
        let mut range = None;
        let start = match splits {
            Some(splits) => {
                let number = program_id(0).cast(index);
                let first = number * splits.length;
                range = Some([first, first + splits.length]);
                Some((member * splits.count + number) * left_by_split(attention).unwrap_or(0))
            }
            None => offset(index, 0, &members, &attention.out_batch),
        };
        let Attention { batch, queries, keys, width, depth, .. } = attention;
        let own = |access: &Access, ptr: Ptr, rows: i64, columns: i64| {
            let ptr = ptr.skip(offset(index, access.source.offset, &members, &access.batch));
            let matrix = Matrix::new(ptr, access.matrix, [rows, columns]);
            if copied { matrix } else { matrix.of_batch(accesses, &members, batch, &access.batch) }
        };
        let y = Matrix::new(y.skip(start), attention.out, [*queries, *depth]);
        let y = y.of_batch(accesses, &members, batch, &attention.out_batch);
        Member {
            index,
            sum: attention.sum(),
            q: own(&attention.q, q, *queries, *width),
            k: own(&attention.k, k, *keys, *width),
            v: own(&attention.v, v, *keys, *depth),
            mask: mask.map(|(access, form, ptr)| (own(access, ptr, *queries, *keys), form)),
            y,
            range,
        }
    }

    /// A number as an offset or an index.
    pub(super) fn int(&self, value: i64) -> Tile {
        scalar(self.index, value)
    }

    /// Some columns of a row of a matrix.
    pub(super) fn row(&self, matrix: &Matrix<'_>, number: i64, columns: Axis) -> Block {
        let [down, _] = matrix.strides();
        matrix.row(self.int(number), self.int(number * down), columns)
    }

    /// Some keys from a first one on, of which those below `end` count where one is given.
    pub(super) fn keys(&self, first: Tile, extent: u32, end: Option<i64>) -> Axis {
        let keys = axis(first, extent);
        end.map_or(keys, |end| keys.below(end))
    }

    /// The elements of a span, of so many.
    pub(super) fn span(&self, span: Span, end: i64) -> Axis {
        let beyond = i64::from(span.first + span.extent) > end;
        self.keys(self.int(span.first.into()), span.extent, beyond.then_some(end))
    }
}

struct LaneWriter<'a> {
    attention: &'a Attention,
    blocks: &'a QueryBlocks,
    member: Member<'a>,
    queries: Axis,
    /// The first query.
    first: Tile,
    /// `[width, queries]`, by span: the queries, scaled.
    q: Vec<Tile>,
}

impl LaneWriter<'_> {
    fn transposed_queries(&self) -> Vec<Tile> {
        let tile = |&span: &Span| {
            let axis = self.member.span(span, self.attention.width);
            let tile = self.member.q.block_transposed(self.queries, axis).load();
            tile.cast(self.member.sum) * self.attention.scale
        };
        self.blocks.width.iter().map(tile).collect()
    }

    /// What all keys make of the state.
    fn through_keys(&self) -> State {
        let (queries, block) = (self.blocks.queries, self.blocks.keys);
        let own = || Queries {
            first: self.first,
            is_aligned: queries.is_multiple_of(block),
            count: queries.into(),
            all: self.attention.queries,
        };
        let keys = self.attention.keys;
        let walk = Walk {
            index: self.member.index,
            keys,
            block,
            rest: tail(keys % i64::from(block)),
            range: self.member.range,
            causal: self.attention.causal.then(own),
        };
        let shapes = || self.blocks.depth.iter().map(|span| [span.extent, queries]);
        let nothing = || State::nothing(self.member.sum, &[queries], shapes());
        walk.through(nothing, |state, step| self.step(state, step))
    }

    fn step(&self, state: Option<&State>, step: KeyStep) -> State {
        let end = step.ragged.then_some(self.attention.keys);
        let keys = self.member.keys(step.first, step.extent, end);
        let online = online::Step::of(state, self.scores(keys, step.diagonal), 0, None);
        let sum = |(at, &span): (usize, &Span)| {
            let before = match (state, online.factor) {
                (Some(state), Some(factor)) => state.out[at] * factor.row(),
                _ => zeros(self.member.sum, [span.extent, self.blocks.queries]),
            };
            let axis = self.member.span(span, self.attention.depth);
            let values = self.member.v.block_transposed(keys, axis).load();
            dot(values.cast(self.member.sum), online.weights, before)
        };
        let out = self.blocks.depth.iter().enumerate().map(sum).collect();
        State { most: online.most, sum: online.sum, out }
    }

    /// `[keys, queries]`: the scores, -inf where a key does not count.
    fn scores(&self, keys: Axis, diagonal: bool) -> Tile {
        let mut scores = zeros(self.member.sum, [keys.extent, self.blocks.queries]);
        for (&span, &q) in self.blocks.width.iter().zip(&self.q) {
            let axis = self.member.span(span, self.attention.width);
            let tile = self.member.k.block(keys, axis).load();
            scores = dot(tile.cast(self.member.sum), q, scores);
        }
        let mut counted = keys.mask.map(Tile::col);
        if diagonal {
            let seen = keys.index.col().le(self.queries.index.row());
            counted = Some(counted.map_or(seen, |inside| inside & seen));
        }
        let mask = self.member.mask.as_ref();
        let mask = mask.map(|(mask, form)| (mask.block_transposed(self.queries, keys).load(), *form));
        masked(scores, mask, counted)
    }

    /// Stores what a range of keys gave.
    fn leave(&self, state: &State) {
        let y = self.member.y.ptr;
        for (&span, &out) in self.blocks.depth.iter().zip(&state.out) {
            let out = out.trans();
            let axis = self.member.span(span, self.attention.depth);
            y.block(&[(self.queries, self.attention.depth), (axis, 1)]).store(out);
        }
        for (first, value) in behind(self.attention).into_iter().zip([state.most, state.sum]) {
            (y + first).block(&[(self.queries, 1)]).store(value);
        }
    }

    fn store(&self, state: &State) {
        let inverse = state.inverse(self.attention);
        for (&span, &out) in self.blocks.depth.iter().zip(&state.out) {
            let out = (out * inverse.row()).trans().cast(self.attention.elem);
            let axis = self.member.span(span, self.attention.depth);
            self.member.y.block(self.queries, axis).store(out);
        }
    }
}
