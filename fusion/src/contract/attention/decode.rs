//! Programs of attention with few queries, whose time is that of reading keys and values. An instance has all of them, and
//! takes a block of keys for one query after the other, so that it is read from memory once:
//!
//! ```text
//! %s = sum of %k[j..] * %q along elements        [BLOCK]
//! %p = exp(%s - %new)
//! %out * %scale + sum of %p * %v[j..] along keys [DEPTH]
//! ```

use tilefuse_block::{Builder, CacheHint, Literal, Program, ReduceFn, ScalarFn as F, TypeError, Value};

use super::blocks::{Blocks, tail};
use super::call::Attention;
use super::make::{Axis, Kinds, Made, along};
use super::program::{Member, State};
use super::split_kv::behind;

/// The program of attention with few queries. Its parameters are those of [`super::program::write`]; instances are
/// numbered as there, with one block of queries.
///
/// # Errors
/// A defect of this module, where the operations do not fit each other.
pub(super) fn write(attention: &Attention, blocks: &Blocks) -> Made<Program> {
    let mut builder = Builder::new("attention");
    let b = &mut builder;
    let member = Member::of(b, attention, blocks)?;
    let elements = |b: &mut Builder, n: i64| -> Made<Axis> {
        let extent = n.unsigned_abs().next_power_of_two();
        let start = member.kinds.int(b, 0);
        member.kinds.axis(b, start, extent as u32, (extent != n.unsigned_abs()).then_some(n))
    };
    let (width, depth) = (elements(b, attention.width)?, elements(b, attention.depth)?);
    let mut queries = Vec::new();
    let [down, right] = attention.q.matrix;
    for number in 0..i64::from(blocks.queries) {
        let start = ahead(b, member.kinds, member.q.start, number * down)?;
        let offsets = member.kinds.row(b, width, right, start)?;
        let q = b.load(member.q.ptr, offsets, width.inside, None, CacheHint::Default)?;
        let q = member.kinds.wide(b, q)?;
        let scale = member.kinds.float(b, attention.scale, &[width.extent]);
        queries.push(b.map(F::Mul, &[q, scale])?);
    }
    let writer = Writer { attention, blocks, member, width, depth, queries };
    let states = writer.through_keys(b)?;
    for (number, state) in (0..).zip(&states) {
        match blocks.ranges {
            Some(_) => writer.leave(b, number, state)?,
            None => writer.store(b, number, state)?,
        }
    }
    Ok(builder.finish())
}

/// An offset so many elements ahead.
fn ahead(b: &mut Builder, kinds: Kinds, start: Value, elements: i64) -> Made<Value> {
    let elements = kinds.int(b, elements);
    b.map(F::Add, &[start, elements])
}

struct Writer<'a> {
    attention: &'a Attention,
    blocks: &'a Blocks,
    member: Member,
    /// The elements of the query.
    width: Axis,
    /// The elements of a value.
    depth: Axis,
    /// `[width]` each: the queries, scaled.
    queries: Vec<Value>,
}

impl Writer<'_> {
    /// What each query carries through all keys.
    fn through_keys(&self, b: &mut Builder) -> Made<Vec<State>> {
        let kinds = self.member.kinds;
        let (keys, block) = (self.attention.keys, i64::from(self.blocks.keys));
        let whole = keys - keys % block;
        let most = kinds.float(b, f64::NEG_INFINITY, &[]);
        let sum = kinds.float(b, 0.0, &[]);
        let out = kinds.float(b, 0.0, &[self.depth.extent]);
        let start = || State { most, sum, out: vec![out] };
        let mut states: Vec<State> = self.queries.iter().map(|_| start()).collect();
        if let Some(range) = self.member.range {
            let [before, behind] = self.member.halves(b, range, (whole, keys))?;
            let steps = [(before, (self.blocks.keys, None)), (behind, (tail(keys - whole), Some(keys)))];
            for ((start, end), (extent, last)) in steps.into_iter().take(1 + usize::from(whole < keys)) {
                let size = kinds.int(b, extent.into());
                let carried = b.for_loop((start, end, size), &list(&states), |b, first, carried| {
                    let keys = kinds.axis(b, first, extent, last)?;
                    Ok::<_, TypeError>(list(&self.steps(b, &self.states(carried)?, keys)?))
                })?;
                states = self.states(&carried)?;
            }
            return Ok(states);
        }
        if whole > 0 {
            let (start, end, size) = (kinds.int(b, 0), kinds.int(b, whole), kinds.int(b, block));
            let carried = b.for_loop((start, end, size), &list(&states), |b, first, carried| {
                let keys = kinds.axis(b, first, self.blocks.keys, None)?;
                Ok::<_, TypeError>(list(&self.steps(b, &self.states(carried)?, keys)?))
            })?;
            states = self.states(&carried)?;
        }
        if whole == keys {
            return Ok(states);
        }
        let first = kinds.int(b, whole);
        let keys = kinds.axis(b, first, tail(keys - whole), Some(keys))?;
        self.steps(b, &states, keys)
    }

    /// The states of all queries of a list of values.
    fn states(&self, list: &[Value]) -> Made<Vec<State>> {
        list.chunks(list.len().div_ceil(self.queries.len()).max(1)).map(State::of).collect()
    }

    /// Takes all queries through some keys.
    fn steps(&self, b: &mut Builder, states: &[State], keys: Axis) -> Made<Vec<State>> {
        (0..).zip(states).map(|(number, state)| self.step(b, number, state, keys)).collect()
    }

    fn step(&self, b: &mut Builder, number: usize, state: &State, keys: Axis) -> Made<State> {
        let kinds = self.member.kinds;
        let scores = self.scores(b, number, keys)?;
        let here = b.reduce(ReduceFn::Max, scores, 0, None)?;
        let most = b.map(F::Max, &[state.most, here])?;
        // Where no key has been seen, the difference from -inf would be NaN.
        let (none, zero) = (kinds.float(b, f64::NEG_INFINITY, &[]), kinds.float(b, 0.0, &[]));
        let closed = b.map(F::Eq, &[most, none])?;
        let below = b.map(F::Select, &[closed, zero, most])?;
        let spread = b.splat(below, &[keys.extent])?;
        let weights = b.map(F::Sub, &[scores, spread])?;
        let weights = b.map(F::Exp, &[weights])?;
        let here = b.reduce(ReduceFn::Sum, weights, 0, None)?;
        let factor = b.map(F::Sub, &[state.most, below])?;
        let factor = b.map(F::Exp, &[factor])?;
        let sum = b.map(F::Fma, &[state.sum, factor, here])?;
        let shape = [keys.extent, self.depth.extent];
        let [down, right] = self.attention.v.matrix;
        let values = kinds.read(b, self.member.v, [(keys, down), (self.depth, right)])?;
        let weights = along(b, weights, 0, &shape)?;
        let weighted = b.map(F::Mul, &[weights, values])?;
        let here = b.reduce(ReduceFn::Sum, weighted, 0, None)?;
        let factor = b.splat(factor, &[self.depth.extent])?;
        let mut out = Vec::new();
        for &before in &state.out {
            out.push(b.map(F::Fma, &[before, factor, here])?);
        }
        Ok(State { most, sum, out })
    }

    /// `[keys]`: the scores, -inf where a key does not count.
    fn scores(&self, b: &mut Builder, number: usize, keys: Axis) -> Made<Value> {
        let kinds = self.member.kinds;
        let shape = [keys.extent, self.width.extent];
        let [down, right] = self.attention.k.matrix;
        let tile = kinds.read(b, self.member.k, [(keys, down), (self.width, right)])?;
        let q = along(b, self.queries[number], 1, &shape)?;
        let products = b.map(F::Mul, &[tile, q])?;
        let mut scores = b.reduce(ReduceFn::Sum, products, 1, None)?;
        let mut kept = keys.inside;
        if let Some((access, form)) = &self.attention.mask
            && let Some(place) = self.member.mask
        {
            let start = ahead(b, kinds, place.start, number as i64 * access.matrix[0])?;
            let offsets = kinds.row(b, keys, access.matrix[1], start)?;
            let mask = b.load(place.ptr, offsets, keys.inside, None, CacheHint::Default)?;
            (scores, kept) = kinds.masked(b, scores, (mask, *form), kept)?;
        }
        let Some(kept) = kept else { return Ok(scores) };
        let none = b.constant(Literal::float(kinds.sum, f64::NEG_INFINITY), &[keys.extent]);
        b.map(F::Select, &[kept, scores, none])
    }

    /// Stores what a range of keys gave.
    fn leave(&self, b: &mut Builder, number: i64, state: &State) -> Made<()> {
        let (kinds, place) = (self.member.kinds, self.member.y);
        let start = ahead(b, kinds, place.start, number * self.attention.depth)?;
        let offsets = kinds.row(b, self.depth, 1, start)?;
        for &out in &state.out {
            b.store(place.ptr, offsets, out, self.depth.inside, CacheHint::Default)?;
        }
        for (first, value) in behind(self.attention).into_iter().zip([state.most, state.sum]) {
            let at = ahead(b, kinds, place.start, first + number)?;
            b.store(place.ptr, at, value, None, CacheHint::Default)?;
        }
        Ok(())
    }

    fn store(&self, b: &mut Builder, number: i64, state: &State) -> Made<()> {
        let kinds = self.member.kinds;
        let (zero, one) = (kinds.float(b, 0.0, &[]), kinds.float(b, 1.0, &[]));
        let inverse = b.map(F::Div, &[one, state.sum])?;
        let closed = b.map(F::Eq, &[state.sum, zero])?;
        let inverse = b.map(F::Select, &[closed, zero, inverse])?;
        let inverse = b.splat(inverse, &[self.depth.extent])?;
        let place = self.member.y;
        let [down, right] = self.attention.out;
        let start = ahead(b, kinds, place.start, number * down)?;
        let offsets = kinds.row(b, self.depth, right, start)?;
        for &out in &state.out {
            let out = b.map(F::Mul, &[out, inverse])?;
            let out = b.cast(out, self.attention.elem)?;
            b.store(place.ptr, offsets, out, self.depth.inside, CacheHint::Default)?;
        }
        Ok(())
    }
}

/// The values of some states.
fn list(states: &[State]) -> Vec<Value> {
    states.iter().flat_map(State::list).collect()
}
