//! Attention of `bf16` where processors multiply pairs of numbers. Keys and values are packed first, as right operands of
//! products are: keys in panels of one step's, whose elements lie in pairs, values in panels of their elements with two
//! rows interleaved.
//!
//! ```text
//! %k = tilefuse::pack(self=%1) : bf16[members,steps,blocks of width,width x KEYS]
//! %v = tilefuse::pack(self=%2) : bf16[members,panels,steps,KEYS x COLUMNS]
//! ```

use tilefuse_block::{Elem, Program};

use super::blocks::{Blocks, Span};
use super::call::Attention;
use super::rows;
use crate::contract::blocks::blocks_of;
use crate::contract::call_kernels::OperandKernel;
use crate::contract::pack::Tiling;
use crate::contract::product::{Access, Product};
use crate::types::Device;

/// The fewest queries, keys, and elements of a key and a value together: packing takes as long as some queries, and
/// exponentials as long as products of fewer elements.
const MIN_QUERIES: i64 = 64;
const MIN_KEYS: i64 = 128;
const MIN_ELEMENTS: i64 = 256;
/// The most queries of an instance: scores of a step stay in the first cache.
const MAX_QUERIES: u32 = 64;
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
        let candidates = [MAX_QUERIES, 32, 16].into_iter().filter(|&n| i64::from(n) <= attention.queries);
        let queries = candidates.min_by(|&a, &b| time(a).total_cmp(&time(b)))?;
        let most = if attention.causal { 64 } else { 128 };
        let keys = cheapest([128, 64, 32].into_iter().filter(|&n| n <= most), attention.keys)?;
        let columns = cheapest([128, 64, 32, LANES].into_iter(), attention.depth)?;
        let panels = u32::try_from(blocks_of(attention.depth, columns)).ok()?;
        let filled =
            u32::try_from(attention.width).ok().filter(|&n| n <= MAX_ELEMENTS)?.next_multiple_of(STEP);
        if attention.depth > MAX_ELEMENTS.into() {
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
    fn blocks(&self) -> Blocks {
        let panel = |number: u32| Span { first: number * self.columns, extent: self.columns };
        Blocks {
            queries: self.queries,
            alone: false,
            keys: self.keys,
            width: self.width.clone(),
            depth: (0..self.panels).map(panel).collect(),
            ranges: None,
        }
    }
}

/// The most elements of a query or a value.
const MAX_ELEMENTS: u32 = 512;

/// The extent of blocks that cover so many elements in the least time.
fn cheapest(candidates: impl Iterator<Item = u32>, all: i64) -> Option<u32> {
    let time = |n: u32| blocks_of(all, n) as f64 * (f64::from(n) + STARTING);
    candidates.min_by(|&a, &b| time(a).total_cmp(&time(b)))
}

/// The program for attention of many queries, whose further operands come behind so many; `None` for other attention.
pub(super) fn of(attention: &Attention, operands: u16, device: Device, threads: u32) -> Option<Paired> {
    let pays = attention.queries >= MIN_QUERIES
        && attention.keys >= MIN_KEYS
        && attention.width.saturating_add(attention.depth) >= MIN_ELEMENTS;
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
    let program = rows::write(&own, &pairs.blocks(), Some(pairs.filled)).ok()?;
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
