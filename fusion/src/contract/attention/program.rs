//! Programs of attention.

use tilefuse_block::{
    Builder, CacheHint, DotPrecision, Elem, Literal, Program, ReduceFn, ScalarFn as F, TypeError, Value,
};

use super::blocks::{Blocks, Span, tail};
use super::call::Attention;
use super::make::{Axis, Kinds, Made, Place, along, both};
use super::split_kv::{behind, left_by_range, written};
use crate::contract::product::Access;

/// The program of attention in these blocks. Its parameters are queries, keys, values, the mask if there is one, and the
/// result; instances are numbered by range of keys where there are several, by block of queries and by member of the batch.
///
/// # Errors
/// A defect of this module, where the operations do not fit each other.
pub(super) fn write(attention: &Attention, blocks: &Blocks) -> Made<Program> {
    let mut builder = Builder::new("attention");
    let b = &mut builder;
    let member = Member::of(b, attention, blocks)?;
    let kinds = member.kinds;
    let block = b.program_id(blocks.axes()[0])?;
    let block = b.cast(block, kinds.index)?;
    let first = kinds.times(b, block, blocks.queries.into())?;
    let end = (attention.queries % i64::from(blocks.queries) != 0).then_some(attention.queries);
    let queries = kinds.axis(b, first, blocks.queries, end)?;
    let mut writer = Writer { attention, blocks, kinds, member, queries, first, q: Vec::new() };
    writer.q = writer.transposed_queries(b)?;
    let state = writer.through_keys(b)?;
    match blocks.ranges {
        Some(_) => writer.leave(b, &state)?,
        None => writer.store(b, &state)?,
    }
    Ok(builder.finish())
}

/// Where the tensors of an instance's member of the batch begin.
pub(super) struct Member {
    pub(super) kinds: Kinds,
    pub(super) q: Place,
    pub(super) k: Place,
    pub(super) v: Place,
    pub(super) mask: Option<Place>,
    /// The result, or where an instance leaves what a range of keys gave.
    pub(super) y: Place,
    /// The first key of an instance and the one behind its last, where it has not all keys.
    pub(super) range: Option<[Value; 2]>,
}

impl Member {
    /// The parameters of a program, and the member by the second axis of the grid.
    pub(super) fn of(b: &mut Builder, attention: &Attention, blocks: &Blocks) -> Made<Member> {
        let index = if fits(attention, blocks) { Elem::I32 } else { Elem::I64 };
        let kinds = Kinds { index, sum: attention.sum() };
        let mut pointer = |name: &str, elem: Elem, len: i64| {
            b.ptr_param(name, elem, elem.bytes(), Some(len.unsigned_abs()))
        };
        let mut operand = |name: &str, access: &Access, elem: Elem| pointer(name, elem, access.source.span);
        let q = operand("q", &attention.q, attention.elem);
        let k = operand("k", &attention.k, attention.elem);
        let v = operand("v", &attention.v, attention.elem);
        let mask =
            attention.mask.as_ref().map(|(access, form)| (access, operand("mask", access, form.elem())));
        let sizes = [attention.members().unwrap_or(1), attention.queries, attention.depth];
        let y = match blocks.ranges {
            Some(ranges) => pointer("parts", attention.sum(), written(attention, ranges)),
            None => pointer("y", attention.elem, sizes.iter().product()),
        };
        let member = b.program_id(blocks.axes()[1])?;
        let members = kinds.members(b, member, &attention.batch)?;
        let mut range = None;
        let start = match blocks.ranges {
            Some(ranges) => {
                let number = b.program_id(0)?;
                let number = b.cast(number, index)?;
                let first = kinds.times(b, number, ranges.length)?;
                let length = kinds.int(b, ranges.length);
                range = Some([first, b.map(F::Add, &[first, length])?]);
                let member = b.cast(member, index)?;
                let before = kinds.times(b, member, ranges.count.into())?;
                let number = b.map(F::Add, &[before, number])?;
                kinds.times(b, number, left_by_range(attention).unwrap_or(0))?
            }
            None => kinds.base(b, 0, &members, &attention.out_batch)?,
        };
        let mut place = |access: &Access, ptr: Value| -> Made<Place> {
            let start = kinds.base(b, access.source.offset, &members, &access.batch)?;
            Ok(Place { ptr, start })
        };
        Ok(Member {
            kinds,
            q: place(&attention.q, q)?,
            k: place(&attention.k, k)?,
            v: place(&attention.v, v)?,
            mask: mask.map(|(access, ptr)| place(access, ptr)).transpose()?,
            y: Place { ptr: y, start },
            range,
        })
    }

    /// Of an instance's range the keys in whole steps, which end at `whole`, and those behind, which end at `keys`.
    pub(super) fn halves(
        &self,
        b: &mut Builder,
        [first, end]: [Value; 2],
        (whole, keys): (i64, i64),
    ) -> Made<[(Value, Value); 2]> {
        let (whole, keys) = (self.kinds.int(b, whole), self.kinds.int(b, keys));
        let before = (first, b.map(F::Min, &[end, whole])?);
        let behind = (b.map(F::Max, &[first, whole])?, b.map(F::Min, &[end, keys])?);
        Ok([before, behind])
    }
}

/// What an instance carries through the keys.
pub(super) struct State {
    /// `[queries]`: the largest score so far.
    pub(super) most: Value,
    /// `[queries]`: the sum of exponentials below it.
    pub(super) sum: Value,
    /// `[depth, queries]`, by span: the weighted sum of values.
    pub(super) out: Vec<Value>,
}

impl State {
    pub(super) fn list(&self) -> Vec<Value> {
        [self.most, self.sum].into_iter().chain(self.out.iter().copied()).collect()
    }

    pub(super) fn of(list: &[Value]) -> Made<State> {
        let [most, sum, out @ ..] = list else {
            return Err(TypeError::Attribute { op: "for", message: "carries too little".to_owned() });
        };
        Ok(State { most: *most, sum: *sum, out: out.to_vec() })
    }
}

/// A step through some keys.
#[derive(Clone, Copy)]
struct Step {
    /// The first key.
    first: Value,
    /// How many keys a tile has.
    extent: u32,
    /// Whether some lie beyond the last one.
    ragged: bool,
    /// Whether some come after a query.
    diagonal: bool,
}

struct Writer<'a> {
    attention: &'a Attention,
    blocks: &'a Blocks,
    kinds: Kinds,
    member: Member,
    queries: Axis,
    /// The first query.
    first: Value,
    /// `[width, queries]`, by span: the queries, scaled.
    q: Vec<Value>,
}

impl Writer<'_> {
    fn lanes(&self) -> [u32; 1] {
        [self.blocks.queries]
    }

    /// The elements of a span, of so many.
    fn span(&self, b: &mut Builder, span: Span, end: i64) -> Made<Axis> {
        let beyond = i64::from(span.first + span.extent) > end;
        let first = self.kinds.int(b, span.first.into());
        self.kinds.axis(b, first, span.extent, beyond.then_some(end))
    }

    fn transposed_queries(&self, b: &mut Builder) -> Made<Vec<Value>> {
        let [down, right] = self.attention.q.matrix;
        let mut tiles = Vec::new();
        for &span in &self.blocks.width {
            let axis = self.span(b, span, self.attention.width)?;
            let tile = self.kinds.read(b, self.member.q, [(axis, right), (self.queries, down)])?;
            let scale = self.kinds.float(b, self.attention.scale, &[span.extent, self.blocks.queries]);
            tiles.push(b.map(F::Mul, &[tile, scale])?);
        }
        Ok(tiles)
    }

    /// The loops over blocks of keys.
    fn through_keys(&self, b: &mut Builder) -> Made<State> {
        let block = i64::from(self.blocks.keys);
        let keys = self.attention.keys;
        let whole = keys - keys % block;
        let start = self.kinds.int(b, 0);
        let first = Step { first: start, extent: self.blocks.keys, ragged: false, diagonal: false };
        if let Some(range) = self.member.range {
            let [before, behind] = self.member.halves(b, range, (whole, keys))?;
            let state = self.steps(b, None, before, first)?;
            let rest = Step { extent: tail(keys - whole), ragged: true, ..first };
            return if whole == keys { Ok(state) } else { self.steps(b, Some(state), behind, rest) };
        }
        if !self.attention.causal {
            let mut state = None;
            if whole == block {
                state = Some(self.step(b, None, first)?);
            } else if whole > 0 {
                let end = self.kinds.int(b, whole);
                state = Some(self.steps(b, None, (start, end), first)?);
            }
            if whole == keys {
                return state.map_or_else(|| self.nothing(b), Ok);
            }
            let rest = self.kinds.int(b, whole);
            return self.step(
                b,
                state,
                Step { first: rest, extent: tail(keys - whole), ragged: true, ..first },
            );
        }
        let masked = Step { diagonal: true, ragged: whole != keys, ..first };
        let queries = i64::from(self.blocks.queries);
        let all = self.kinds.int(b, keys);
        if self.attention.queries <= queries {
            // One block of queries, on the diagonal.
            let seen = self.kinds.int(b, keys.min(self.attention.queries));
            return self.steps(b, None, (start, seen), masked);
        }
        let mut before = self.first;
        if queries % block != 0 {
            let size = self.kinds.int(b, block);
            before = b.map(F::DivTrunc, &[before, size])?;
            before = self.kinds.times(b, before, block)?;
        }
        let whole = self.kinds.int(b, whole);
        before = b.map(F::Min, &[before, whole])?;
        let state = self.steps(b, None, (start, before), first)?;
        let count = self.kinds.int(b, queries);
        let behind = b.map(F::Add, &[self.first, count])?;
        let behind = b.map(F::Min, &[behind, all])?;
        self.steps(b, Some(state), (before, behind), masked)
    }

    /// The state before any key.
    fn nothing(&self, b: &mut Builder) -> Made<State> {
        let queries = self.blocks.queries;
        let most = self.kinds.float(b, f64::NEG_INFINITY, &self.lanes());
        let sum = self.kinds.float(b, 0.0, &self.lanes());
        let out = self.blocks.depth.iter().map(|span| self.kinds.float(b, 0.0, &[span.extent, queries]));
        Ok(State { most, sum, out: out.collect() })
    }

    fn steps(
        &self,
        b: &mut Builder,
        state: Option<State>,
        (start, end): (Value, Value),
        step: Step,
    ) -> Made<State> {
        let state = state.map_or_else(|| self.nothing(b), Ok)?;
        let size = self.kinds.int(b, step.extent.into());
        let carried = b.for_loop((start, end, size), &state.list(), |b, first, carried| {
            let state = State::of(carried)?;
            Ok::<_, TypeError>(self.step(b, Some(state), Step { first, ..step })?.list())
        })?;
        State::of(&carried)
    }

    fn step(&self, b: &mut Builder, state: Option<State>, step: Step) -> Made<State> {
        let queries = self.blocks.queries;
        let end = step.ragged.then_some(self.attention.keys);
        let keys = self.kinds.axis(b, step.first, step.extent, end)?;
        let scores = self.scores(b, keys, step.diagonal)?;
        let shape = [step.extent, queries];
        let here = b.reduce(ReduceFn::Max, scores, 0, None)?;
        let most = match &state {
            Some(state) => b.map(F::Max, &[state.most, here])?,
            None => here,
        };
        // Where no key has been seen, the difference from -inf would be NaN.
        let none = self.kinds.float(b, f64::NEG_INFINITY, &self.lanes());
        let zero = self.kinds.float(b, 0.0, &self.lanes());
        let closed = b.map(F::Eq, &[most, none])?;
        let below = b.map(F::Select, &[closed, zero, most])?;
        let spread = along(b, below, 1, &shape)?;
        let weights = b.map(F::Sub, &[scores, spread])?;
        let weights = b.map(F::Exp, &[weights])?;
        let mut sum = b.reduce(ReduceFn::Sum, weights, 0, None)?;
        let mut factor = None;
        if let Some(state) = &state {
            let shrunk = b.map(F::Sub, &[state.most, below])?;
            let shrunk = b.map(F::Exp, &[shrunk])?;
            sum = b.map(F::Fma, &[state.sum, shrunk, sum])?;
            factor = Some(shrunk);
        }
        let mut out = Vec::new();
        for (at, &span) in self.blocks.depth.iter().enumerate() {
            let shape = [span.extent, queries];
            let before = match (&state, factor) {
                (Some(state), Some(factor)) => {
                    let factor = along(b, factor, 1, &shape)?;
                    b.map(F::Mul, &[state.out[at], factor])?
                }
                _ => self.kinds.float(b, 0.0, &shape),
            };
            let [down, right] = self.attention.v.matrix;
            let axis = self.span(b, span, self.attention.depth)?;
            let axes = [(axis, right), (keys, down)];
            let values = self.kinds.read(b, self.member.v, axes)?;
            out.push(b.dot(values, weights, before, DotPrecision::Ieee)?);
        }
        Ok(State { most, sum, out })
    }

    /// `[keys, queries]`: the scores, -inf where a key does not count.
    fn scores(&self, b: &mut Builder, keys: Axis, diagonal: bool) -> Made<Value> {
        let shape = [keys.extent, self.blocks.queries];
        let mut scores = self.kinds.float(b, 0.0, &shape);
        for (&span, &q) in self.blocks.width.iter().zip(&self.q) {
            let [down, right] = self.attention.k.matrix;
            let axis = self.span(b, span, self.attention.width)?;
            let tile = self.kinds.read(b, self.member.k, [(keys, down), (axis, right)])?;
            scores = b.dot(tile, q, scores, DotPrecision::Ieee)?;
        }
        let mut kept = keys.inside.map(|inside| along(b, inside, 0, &shape)).transpose()?;
        if diagonal {
            let (key, query) = (along(b, keys.at, 0, &shape)?, along(b, self.queries.at, 1, &shape)?);
            let seen = b.map(F::Le, &[key, query])?;
            kept = both(b, kept, Some(seen))?;
        }
        if let Some((access, form)) = &self.attention.mask
            && let Some(place) = self.member.mask
        {
            let [down, right] = access.matrix;
            let mask = self.kinds.load(b, place, [(keys, right), (self.queries, down)])?;
            (scores, kept) = self.kinds.masked(b, scores, (mask, *form), kept)?;
        }
        let Some(kept) = kept else { return Ok(scores) };
        let none = b.constant(Literal::float(self.kinds.sum, f64::NEG_INFINITY), &shape);
        b.map(F::Select, &[kept, scores, none])
    }

    /// Stores what a range of keys gave.
    fn leave(&self, b: &mut Builder, state: &State) -> Made<()> {
        let Place { ptr, start } = self.member.y;
        for (&span, &out) in self.blocks.depth.iter().zip(&state.out) {
            let out = b.permute(out, &[1, 0])?;
            let axis = self.span(b, span, self.attention.depth)?;
            let axes = [(self.queries, self.attention.depth), (axis, 1)];
            let (offsets, mask) = self.kinds.offsets(b, axes, start)?;
            b.store(ptr, offsets, out, mask, CacheHint::Default)?;
        }
        for (first, value) in behind(self.attention).into_iter().zip([state.most, state.sum]) {
            let first = self.kinds.int(b, first);
            let first = b.map(F::Add, &[start, first])?;
            let offsets = self.kinds.row(b, self.queries, 1, first)?;
            b.store(ptr, offsets, value, self.queries.inside, CacheHint::Default)?;
        }
        Ok(())
    }

    fn store(&self, b: &mut Builder, state: &State) -> Made<()> {
        let queries = self.blocks.queries;
        let (zero, one) = (self.kinds.float(b, 0.0, &self.lanes()), self.kinds.float(b, 1.0, &self.lanes()));
        let inverse = b.map(F::Div, &[one, state.sum])?;
        let closed = b.map(F::Eq, &[state.sum, zero])?;
        let inverse = b.map(F::Select, &[closed, zero, inverse])?;
        let [down, right] = self.attention.out;
        for (&span, &out) in self.blocks.depth.iter().zip(&state.out) {
            let inverse = along(b, inverse, 1, &[span.extent, queries])?;
            let out = b.map(F::Mul, &[out, inverse])?;
            let out = b.permute(out, &[1, 0])?;
            let out = b.cast(out, self.attention.elem)?;
            let axis = self.span(b, span, self.attention.depth)?;
            let axes = [(self.queries, down), (axis, right)];
            let (offsets, mask) = self.kinds.offsets(b, axes, self.member.y.start)?;
            b.store(self.member.y.ptr, offsets, out, mask, CacheHint::Default)?;
        }
        Ok(())
    }
}

/// Whether every offset that is computed fits 32 bits.
pub(super) fn fits(attention: &Attention, blocks: &Blocks) -> bool {
    let padded = |n: i64, block: u32| n.checked_add(i64::from(block));
    let reach = |offset: i64, batch: &[i64], rows: (i64, i64), columns: (i64, i64)| {
        let batch = attention.batch.iter().copied().zip(batch.iter().copied());
        let mut parts = batch.chain([rows, columns]);
        parts.try_fold(offset, |sum, (n, stride)| sum.checked_add(n.checked_mul(stride)?))
    };
    let all = || {
        let queries = padded(attention.queries, blocks.queries)?;
        let keys = padded(attention.keys, blocks.keys)?;
        let (width, depth) = (padded(attention.width, 8)?, padded(attention.depth, 8)?);
        let of = |access: &Access, rows: i64, columns: i64| {
            let [down, right] = access.matrix;
            reach(access.source.offset, &access.batch, (rows, down), (columns, right))
        };
        let mask = match &attention.mask {
            Some((access, _)) => of(access, queries, keys)?,
            None => 0,
        };
        let [down, right] = attention.out;
        let y = reach(0, &attention.out_batch, (queries, down), (depth, right))?;
        Some([
            of(&attention.q, queries, width)?,
            of(&attention.k, keys, width)?,
            of(&attention.v, keys, depth)?,
            mask,
            y,
        ])
    };
    let parts = blocks.ranges.is_none_or(|ranges| written(attention, ranges) <= i64::from(i32::MAX));
    parts && all().is_some_and(|reached| reached.into_iter().all(|n| n <= i64::from(i32::MAX)))
}
