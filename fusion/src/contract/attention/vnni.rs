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

use tilefuse_block::dynamic::{Axis, BuildError, Ptr, Tile, axis, dot, program, program_id, zeros};
use tilefuse_block::{Elem, Program};

use super::blocks::{Blocks, Span, blocks_of};
use super::call::Attention;
use super::online::{self, State, masked};
use super::program::{Mask, Member};
use super::walk::{Queries, Step, Walk};
use crate::contract::pack::{OperandKernel, Tiling};
use crate::contract::product::{Access, Product};
use crate::contract::template::load_groups;
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
    let program = write(&own, &pairs, &pairs.blocks(&own)?).ok()?;
    Some(Paired { program, instances, attention: own, operand_kernels: [k, v] })
}

/// A product whose right operand is a matrix of attention.
fn product(attention: &Attention, right: &Access, [k, n]: [i64; 2]) -> Product {
    Product {
        windows: None,
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
fn write(attention: &Attention, pairs: &Pairs, blocks: &Blocks) -> Result<Program, BuildError> {
    program("attention", |kernel| {
        let member = Member::of(kernel, attention, blocks);
        let first = program_id(0).cast(member.index) * pairs.queries;
        let (count, all) = (i64::from(pairs.queries), attention.queries);
        // The last block begins earlier where blocks do not divide the queries, so that none of what it reads is masked.
        let ragged = all % count != 0;
        let start = if ragged { first.minimum(all - count) } else { first };
        let queries = axis(start, pairs.queries);
        let own = if ragged { queries.from(first) } else { queries };
        let mut writer = Writer { attention, pairs, member, queries, own, first: start, q: Vec::new() };
        writer.q = writer.queries();
        let state = writer.through_keys();
        writer.store(&state);
    })
}

struct Writer<'a> {
    attention: &'a Attention,
    pairs: &'a Pairs,
    member: Member,
    /// The queries that are read, and of these the ones that are stored.
    queries: Axis,
    own: Axis,
    /// The first one that is read.
    first: Tile,
    /// `[queries, width]`, by span.
    q: Vec<Tile>,
}

impl Writer<'_> {
    fn queries(&self) -> Vec<Tile> {
        let [down, right] = self.attention.q.matrix;
        let tile = |&span: &Span| {
            let axis = self.member.span(span, self.attention.width);
            self.member.q.block(&[(self.queries, down), (axis, right)]).load_or(0)
        };
        self.pairs.width.iter().map(tile).collect()
    }

    /// What all keys make of the state.
    fn through_keys(&self) -> State {
        let queries = self.pairs.queries;
        // The last block begins anywhere where blocks do not divide the queries.
        let own = || Queries {
            first: self.first,
            is_aligned: false,
            count: queries.into(),
            all: self.attention.queries,
        };
        let walk = Walk {
            index: self.member.index,
            keys: self.attention.keys,
            block: self.pairs.keys,
            // Panels are filled up to whole ones.
            rest: self.pairs.keys,
            range: None,
            causal: self.attention.causal.then(own),
        };
        let shapes = || (0..self.pairs.panels).map(|_| [queries, self.pairs.columns]);
        let nothing = || State::nothing(self.member.sum, &[queries], shapes());
        walk.through(nothing, |state, step| self.step(state, step))
    }

    fn step(&self, state: Option<&State>, step: Step) -> State {
        let online = online::Step::of(state, self.scores(step), 1);
        let weights = online.weights.cast(Elem::Bf16);
        let (keys, columns) = (self.pairs.keys, self.pairs.columns);
        let panel = blocks_of(self.attention.keys, keys) * i64::from(keys * columns);
        let sum = |(number, at): (i64, usize)| {
            let before = match state.zip(online.factor) {
                Some((state, factor)) => state.out[at] * factor.col(),
                None => zeros(self.member.sum, [self.pairs.queries, columns]),
            };
            let values = self.from(self.member.v, (step.first, columns), number * panel);
            dot(weights, load_groups(values, [keys, columns], 2), before)
        };
        let out = (0..).zip(0..self.pairs.panels as usize).map(sum).collect();
        State { most: online.most, sum: online.sum, out }
    }

    /// `[queries, keys]`: the scores, -inf where a key does not count.
    fn scores(&self, step: Step) -> Tile {
        let (first, extent) = (step.first, self.pairs.keys);
        let keys = self.member.keys(first, extent, step.ragged.then_some(self.attention.keys));
        let mut scores = zeros(self.member.sum, [self.pairs.queries, extent]);
        for (&span, &q) in self.pairs.width.iter().zip(&self.q) {
            let before = i64::from(span.first * extent);
            let from = self.from(self.member.k, (first, self.pairs.filled), before);
            scores = dot(q, load_groups(from, [span.extent, extent], 2), scores);
        }
        scores *= self.attention.scale;
        let mut counted = keys.mask.map(Tile::row);
        if step.diagonal {
            let seen = keys.index.row().le(self.queries.index.col());
            counted = Some(counted.map_or(seen, |inside| inside & seen));
        }
        let mask = self.member.mask.map(|Mask { ptr, form, strides: [down, right] }| {
            (ptr.block(&[(self.queries, down), (keys, right)]).load(), form)
        });
        masked(scores, mask, counted)
    }

    /// What lies so many elements behind that of a key, each of which has so many before the next.
    fn from(&self, ptr: Ptr, (key, each): (Tile, u32), behind: i64) -> Ptr {
        ptr + key * each + behind
    }

    fn store(&self, state: &State) {
        let inverse = state.inverse();
        let [down, right] = self.attention.out;
        let columns = self.pairs.columns;
        for (number, &out) in (0..).zip(&state.out) {
            let out = (out * inverse.col()).cast(self.attention.elem);
            let span = Span { first: number * columns, extent: columns };
            let axis = self.member.span(span, self.attention.depth);
            self.member.y.block(&[(self.own, down), (axis, right)]).store(out);
        }
    }
}
