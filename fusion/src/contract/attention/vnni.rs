//! Attention of `bf16` where processors multiply pairs of numbers. Keys and values are packed first, as right operands of
//! products are: keys in panels of one step's, whose elements lie in pairs, values in panels of their elements with two
//! rows side by side.
//!
//! ```text
//! %k = tilefuse::pack(self=%1) : bf16[members,steps,blocks of width,width x KEYS]
//! %v = tilefuse::pack(self=%2) : bf16[members,panels,steps,KEYS x COLUMNS]
//! for %j in 0..KEYS step BLOCK with (%max = -inf, %sum = 0, %out = 0) {
//!   %s = dot %q, %k[j..], 0                  [QUERIES, BLOCK]
//!   %p = exp(scale %s - %new)
//!   yield %new, %sum * %factor + sum of %p, dot (cast %p : bf16), %v[j..], %out * %factor
//! }
//! ```
//!
//! Scores, maxima and sums are `f32`; what weighs values is rounded to `bf16`, as in libtorch's kernel.

use tilefuse_block::{
    Builder, CacheHint, DotPrecision, Elem, Literal, Program, ReduceFn, ScalarFn as F, TypeError, Value,
};

use super::blocks::{Blocks, Span, blocks_of};
use super::call::Attention;
use super::make::{Axis, Kinds, Made, Place, along, both};
use super::program::{Member, State};
use crate::contract::pack::{OperandKernel, Tiling};
use crate::contract::product::{Access, Product};
use crate::types::Device;

/// The fewest queries, keys, and elements of a key and a value together: packing takes as long as some queries, and
/// exponentials as long as products of fewer elements.
const LEAST_QUERIES: i64 = 64;
const LEAST_KEYS: i64 = 128;
const LEAST_ELEMENTS: i64 = 256;
/// The most queries of an instance: scores of a step stay in the first cache.
const MOST_QUERIES: u32 = 64;
/// Elements of queries and keys that are multiplied at a time, at least.
const STEP: u32 = 32;
/// Columns of the least panel of values.
const LANES: u32 = 16;
/// What an instance takes beside its queries, in queries.
const INSTANCE: f64 = 8.0;
/// What a step takes beside its keys, in keys, and a panel beside its columns, in columns.
const STARTING: f64 = 8.0;

/// Attention over keys and values that are packed.
pub(super) struct Paired {
    pub(super) program: Program,
    /// Instances by block of queries.
    pub(super) instances: u32,
    /// The attention whose keys and values are the further operands.
    pub(super) attention: Attention,
    /// What makes these.
    pub(super) operand_kernels: [OperandKernel; 2],
}

/// How attention is divided.
struct Pairs {
    queries: u32,
    keys: u32,
    /// Elements of queries and keys that are multiplied at a time.
    width: Vec<Span>,
    /// Those of all spans.
    filled: u32,
    /// Columns of a panel of values, and how many panels there are.
    columns: u32,
    panels: u32,
}

impl Pairs {
    /// Steps through keys follow from shapes alone, so that sums do not depend on `threads`.
    fn of(attention: &Attention, threads: u32) -> Option<Pairs> {
        let members = attention.members()? as f64;
        let time = |queries: u32| {
            let instances = blocks_of(attention.queries, queries) as f64 * members;
            (instances / f64::from(threads.max(1))).ceil() * (f64::from(queries) + INSTANCE)
        };
        let candidates = [MOST_QUERIES, 32, 16].into_iter().filter(|&n| i64::from(n) <= attention.queries);
        let queries = candidates.min_by(|&a, &b| time(a).total_cmp(&time(b)))?;
        let most = if attention.causal { 64 } else { 128 };
        let keys = cheapest([128, 64, 32].into_iter().filter(|&n| n <= most), attention.keys)?;
        let columns = cheapest([128, 64, 32, LANES].into_iter(), attention.depth)?;
        let panels = u32::try_from(blocks_of(attention.depth, columns)).ok()?;
        let filled =
            u32::try_from(attention.width).ok().filter(|&n| n <= MOST_ELEMENTS)?.next_multiple_of(STEP);
        if attention.depth > MOST_ELEMENTS.into() {
            return None;
        }
        let mut width = Vec::new();
        let mut first = 0;
        while first < filled {
            let extent = 1 << (filled - first).ilog2();
            width.push(Span { first, extent });
            first += extent;
        }
        Some(Pairs { queries, keys, width, filled, columns, panels })
    }

    /// The same in the form of other programs.
    fn blocks(&self, attention: &Attention) -> Option<Blocks> {
        Some(Blocks { queries: self.queries, keys: self.keys, ranges: None, ..Blocks::of(attention, 1)? })
    }
}

/// The most elements of a query or a value.
const MOST_ELEMENTS: u32 = 512;

/// The extent of blocks that cover so many elements in the least time.
fn cheapest(candidates: impl Iterator<Item = u32>, all: i64) -> Option<u32> {
    let time = |n: u32| blocks_of(all, n) as f64 * (f64::from(n) + STARTING);
    candidates.min_by(|&a, &b| time(a).total_cmp(&time(b)))
}

/// The program for attention of many queries, whose further operands come behind so many; `None` for other attention.
pub(super) fn of(attention: &Attention, operands: u16, device: Device, threads: u32) -> Option<Paired> {
    let pays = attention.queries >= LEAST_QUERIES
        && attention.keys >= LEAST_KEYS
        && attention.width.saturating_add(attention.depth) >= LEAST_ELEMENTS;
    if attention.elem != Elem::Bf16 || !pays {
        return None;
    }
    let pairs = Pairs::of(attention, threads)?;
    let [down, right] = attention.k.matrix;
    let keys = Access { matrix: [right, down], ..attention.k.clone() };
    let tall = if pairs.filled.is_multiple_of(64) { 64 } else { STEP };
    let pack = |access: &Access, extents: [i64; 2], tile: [u32; 2]| {
        let product = product(attention, access, extents);
        let tiling = Tiling { extents, tile, down: true, group: 2, elem: Elem::Bf16 };
        OperandKernel::of(&product, access, &tiling, device).map(|packed| (packed, product))
    };
    let (k, of_keys) = pack(&keys, [attention.width, attention.keys], [tall, pairs.keys])?;
    let (v, of_values) = pack(&attention.v, [attention.keys, attention.depth], [pairs.keys, pairs.columns])?;
    let own = Attention {
        k: k.access(operands, &attention.k, [pairs.filled.into(), 0], &of_keys),
        v: v.access(operands + 1, &attention.v, [i64::from(pairs.columns * pairs.panels), 0], &of_values),
        ..attention.clone()
    };
    let instances = u32::try_from(blocks_of(attention.queries, pairs.queries)).ok()?;
    let program = write(&own, &pairs).ok()?;
    Some(Paired { program, instances, attention: own, operand_kernels: [k, v] })
}

/// A product whose right operand is a matrix of attention.
fn product(attention: &Attention, right: &Access, [k, n]: [i64; 2]) -> Product {
    Product {
        batch: attention.batch.clone(),
        m: attention.queries,
        n,
        k,
        a: Access { matrix: [attention.q.matrix[0], 0], ..attention.q.clone() },
        b: right.clone(),
        c: None,
        alpha: 1.0,
        beta: 0.0,
        elem: attention.elem,
        out: attention.elem,
    }
}

/// The program, whose parameters and instances are those of [`super::program::write`].
fn write(attention: &Attention, pairs: &Pairs) -> Made<Program> {
    let mut builder = Builder::new("attention");
    let b = &mut builder;
    let too_large = || TypeError::Attribute { op: "load", message: "attention is too large".to_owned() };
    let blocks = pairs.blocks(attention).ok_or_else(too_large)?;
    let member = Member::of(b, attention, &blocks)?;
    let kinds = member.kinds;
    let block = b.program_id(0)?;
    let block = b.cast(block, kinds.index)?;
    let first = kinds.times(b, block, pairs.queries.into())?;
    let (count, all) = (i64::from(pairs.queries), attention.queries);
    // The last block begins earlier where blocks do not divide the queries, so that none of what it reads is masked.
    let ragged = all % count != 0;
    let mut start = first;
    if ragged {
        let most = kinds.int(b, all - count);
        start = b.map(F::Min, &[first, most])?;
    }
    let queries = kinds.axis(b, start, pairs.queries, None)?;
    let mut own = queries;
    if ragged {
        let first = b.splat(first, &[pairs.queries])?;
        own.inside = Some(b.map(F::Ge, &[queries.at, first])?);
    }
    let mut writer = Writer { attention, pairs, kinds, member, queries, own, first: start, q: Vec::new() };
    writer.q = writer.queries(b)?;
    let state = writer.through_keys(b)?;
    writer.store(b, &state)?;
    Ok(builder.finish())
}

/// A step through some keys.
#[derive(Clone, Copy)]
struct Step {
    /// Whether some lie beyond the last one.
    ragged: bool,
    /// Whether some come after a query.
    diagonal: bool,
}

struct Writer<'a> {
    attention: &'a Attention,
    pairs: &'a Pairs,
    kinds: Kinds,
    member: Member,
    /// The queries that are read, and of these the ones that are stored.
    queries: Axis,
    own: Axis,
    /// The first one that is read.
    first: Value,
    /// `[queries, width]`, by span.
    q: Vec<Value>,
}

impl Writer<'_> {
    fn queries(&self, b: &mut Builder) -> Made<Vec<Value>> {
        let [down, right] = self.attention.q.matrix;
        let mut tiles = Vec::new();
        for &span in &self.pairs.width {
            let beyond = i64::from(span.first + span.extent) > self.attention.width;
            let first = self.kinds.int(b, span.first.into());
            let axis = self.kinds.axis(b, first, span.extent, beyond.then_some(self.attention.width))?;
            let axes = [(self.queries, down), (axis, right)];
            let (offsets, mask) = self.kinds.offsets(b, axes, self.member.q.start)?;
            let shape = [self.pairs.queries, span.extent];
            let zero = mask.map(|_| b.constant(Literal::of(Elem::Bf16, 0.0), &shape));
            tiles.push(b.load(self.member.q.ptr, offsets, mask, zero, CacheHint::Default)?);
        }
        Ok(tiles)
    }

    /// The loops over blocks of keys.
    fn through_keys(&self, b: &mut Builder) -> Made<State> {
        let (keys, block) = (self.attention.keys, i64::from(self.pairs.keys));
        let whole = keys - keys % block;
        let zero = self.kinds.int(b, 0);
        let plain = Step { ragged: false, diagonal: false };
        let state = self.nothing(b)?;
        if !self.attention.causal {
            let end = self.kinds.int(b, whole);
            let state = if whole > 0 { self.steps(b, state, (zero, end), plain)? } else { state };
            return if whole == keys {
                Ok(state)
            } else {
                self.step(b, &state, end, Step { ragged: true, ..plain })
            };
        }
        // Whole blocks before the first query, and those on the diagonal.
        let size = self.kinds.int(b, block);
        let before = b.map(F::DivTrunc, &[self.first, size])?;
        let before = self.kinds.times(b, before, block)?;
        let most = self.kinds.int(b, whole);
        let before = b.map(F::Min, &[before, most])?;
        let state = self.steps(b, state, (zero, before), plain)?;
        let (count, all) = (self.kinds.int(b, self.pairs.queries.into()), self.kinds.int(b, keys));
        let behind = b.map(F::Add, &[self.first, count])?;
        let behind = b.map(F::Min, &[behind, all])?;
        self.steps(b, state, (before, behind), Step { ragged: whole != keys, diagonal: true })
    }

    /// The state before any key.
    fn nothing(&self, b: &mut Builder) -> Made<State> {
        let lanes = [self.pairs.queries];
        let shape = [self.pairs.queries, self.pairs.columns];
        let most = self.kinds.float(b, f64::NEG_INFINITY, &lanes);
        let sum = self.kinds.float(b, 0.0, &lanes);
        let out = (0..self.pairs.panels).map(|_| self.kinds.float(b, 0.0, &shape)).collect();
        Ok(State { most, sum, out })
    }

    fn steps(&self, b: &mut Builder, state: State, (start, end): (Value, Value), step: Step) -> Made<State> {
        let size = self.kinds.int(b, self.pairs.keys.into());
        let carried = b.for_loop((start, end, size), &state.list(), |b, first, carried| {
            let state = State::of(carried)?;
            Ok::<_, TypeError>(self.step(b, &state, first, step)?.list())
        })?;
        State::of(&carried)
    }

    fn step(&self, b: &mut Builder, state: &State, first: Value, step: Step) -> Made<State> {
        let shape = [self.pairs.queries, self.pairs.keys];
        let lanes = [self.pairs.queries];
        let scores = self.scores(b, first, step)?;
        let here = b.reduce(ReduceFn::Max, scores, 1, None)?;
        let most = b.map(F::Max, &[state.most, here])?;
        // Where no key has been seen, the difference from -inf would be NaN.
        let none = self.kinds.float(b, f64::NEG_INFINITY, &lanes);
        let zero = self.kinds.float(b, 0.0, &lanes);
        let closed = b.map(F::Eq, &[most, none])?;
        let below = b.map(F::Select, &[closed, zero, most])?;
        let spread = along(b, below, 0, &shape)?;
        let weights = b.map(F::Sub, &[scores, spread])?;
        let weights = b.map(F::Exp, &[weights])?;
        let here = b.reduce(ReduceFn::Sum, weights, 1, None)?;
        let factor = b.map(F::Sub, &[state.most, below])?;
        let factor = b.map(F::Exp, &[factor])?;
        let sum = b.map(F::Fma, &[state.sum, factor, here])?;
        let weights = b.cast(weights, Elem::Bf16)?;
        let columns = self.pairs.columns;
        let panel = blocks_of(self.attention.keys, self.pairs.keys) * i64::from(self.pairs.keys * columns);
        let mut out = Vec::new();
        for (number, &before) in (0..).zip(&state.out) {
            let factor = along(b, factor, 0, &[self.pairs.queries, columns])?;
            let before = b.map(F::Mul, &[before, factor])?;
            let from = self.from(b, self.member.v, (first, columns), number * panel)?;
            let values = self.grouped(b, from, [self.pairs.keys, columns])?;
            out.push(b.dot(weights, values, before, DotPrecision::Ieee)?);
        }
        Ok(State { most, sum, out })
    }

    /// `[queries, keys]`: the scores, -inf where a key does not count.
    fn scores(&self, b: &mut Builder, first: Value, step: Step) -> Made<Value> {
        let shape = [self.pairs.queries, self.pairs.keys];
        let end = step.ragged.then_some(self.attention.keys);
        let keys = self.kinds.axis(b, first, self.pairs.keys, end)?;
        let mut scores = self.kinds.float(b, 0.0, &shape);
        for (&span, &q) in self.pairs.width.iter().zip(&self.q) {
            let before = i64::from(span.first * self.pairs.keys);
            let from = self.from(b, self.member.k, (first, self.pairs.filled), before)?;
            let tile = self.grouped(b, from, [span.extent, self.pairs.keys])?;
            scores = b.dot(q, tile, scores, DotPrecision::Ieee)?;
        }
        let scale = self.kinds.float(b, self.attention.scale, &shape);
        scores = b.map(F::Mul, &[scores, scale])?;
        let mut kept = keys.inside.map(|inside| along(b, inside, 1, &shape)).transpose()?;
        if step.diagonal {
            let (query, key) = (along(b, self.queries.at, 0, &shape)?, along(b, keys.at, 1, &shape)?);
            let seen = b.map(F::Le, &[key, query])?;
            kept = both(b, kept, Some(seen))?;
        }
        if let Some((access, form)) = &self.attention.mask
            && let Some(place) = self.member.mask
        {
            let [down, right] = access.matrix;
            let mask = self.kinds.load(b, place, [(self.queries, down), (keys, right)])?;
            (scores, kept) = self.kinds.masked(b, scores, (mask, *form), kept)?;
        }
        let Some(kept) = kept else { return Ok(scores) };
        let none = b.constant(Literal::float(self.kinds.sum, f64::NEG_INFINITY), &shape);
        b.map(F::Select, &[kept, scores, none])
    }

    /// What lies so many elements behind that of a key, each of which has so many before the next.
    fn from(&self, b: &mut Builder, place: Place, (key, each): (Value, u32), behind: i64) -> Made<Place> {
        let part = self.kinds.times(b, key, each.into())?;
        let start = b.map(F::Add, &[place.start, part])?;
        let behind = self.kinds.int(b, behind);
        Ok(Place { start: b.map(F::Add, &[start, behind])?, ..place })
    }

    /// Rows of columns that lie in pairs of rows, from here on.
    fn grouped(&self, b: &mut Builder, from: Place, [rows, columns]: [u32; 2]) -> Made<Value> {
        let all = rows * columns;
        let lanes = b.range(0, all)?;
        let lanes = b.cast(lanes, self.kinds.index)?;
        let first = b.splat(from.start, &[all])?;
        let at = b.map(F::Add, &[first, lanes])?;
        let at = b.reshape(at, &[rows / 2, columns, 2])?;
        let at = b.permute(at, &[0, 2, 1])?;
        let at = b.reshape(at, &[rows, columns])?;
        b.load(from.ptr, at, None, None, CacheHint::Default)
    }

    fn store(&self, b: &mut Builder, state: &State) -> Made<()> {
        let lanes = [self.pairs.queries];
        let (zero, one) = (self.kinds.float(b, 0.0, &lanes), self.kinds.float(b, 1.0, &lanes));
        let inverse = b.map(F::Div, &[one, state.sum])?;
        let closed = b.map(F::Eq, &[state.sum, zero])?;
        let inverse = b.map(F::Select, &[closed, zero, inverse])?;
        let [down, right] = self.attention.out;
        let (columns, depth) = (self.pairs.columns, self.attention.depth);
        for (number, &out) in (0..).zip(&state.out) {
            let inverse = along(b, inverse, 0, &[self.pairs.queries, columns])?;
            let out = b.map(F::Mul, &[out, inverse])?;
            let out = b.cast(out, self.attention.elem)?;
            let beyond = i64::from((number + 1) * columns) > depth;
            let first = self.kinds.int(b, i64::from(number * columns));
            let axis = self.kinds.axis(b, first, columns, beyond.then_some(depth))?;
            let axes = [(self.own, down), (axis, right)];
            let (offsets, mask) = self.kinds.offsets(b, axes, self.member.y.start)?;
            b.store(self.member.y.ptr, offsets, out, mask, CacheHint::Default)?;
        }
        Ok(())
    }
}
