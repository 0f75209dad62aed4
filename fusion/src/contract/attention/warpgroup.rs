//! The blocks of attention on a GPU whose multiprocessors multiply by warpgroups (`wgmma`).
//!
//! An instance holds the scores of a step and the sums of its queries in the registers of its warps. Keys and values are copied to
//! shared memory some steps ahead, queries once.

use tilefuse_block::Elem;

use super::blocks::{Blocks, Span};
use super::call::Attention;
use crate::contract::blocks::blocks_of;
use crate::contract::declined::Declined;
use crate::contract::warpgroup::is_copied;

/// Blocks that are tried.
const SHAPES: [Shape; 4] = [
    Shape { queries: 128, keys: 128, warps: 8 },
    Shape { queries: 128, keys: 64, warps: 8 },
    Shape { queries: 64, keys: 64, warps: 4 },
    Shape { queries: 64, keys: 32, warps: 4 },
];

/// A block, and who computes it.
#[derive(Clone, Copy)]
struct Shape {
    queries: u32,
    keys: u32,
    warps: u32,
}

/// The most registers of a thread for scores, their exponentials and sums.
const REGISTERS: u32 = 180;

/// The most bytes of shared memory that queries and two steps' keys and values may take.
const SHARED_BYTES: u32 = 200 << 10;

/// The most elements of a query or a value.
const MAX_ELEMENTS: i64 = 128;

/// The least extent of what is multiplied at a time: the step of an instruction.
const MIN_EXTENT: u32 = 16;

/// Warps that a multiprocessor has at a time, about.
const WARPS: u32 = 16;

/// Shares of the rate of large products that this reaches with all multiprocessors at work, and libtorch's call without and
/// with a mask, whose instances have so many queries. Measured on an H100.
const RATE: f64 = 0.55;
const LIBRARY_RATE: f64 = 0.6;
const MASKED_RATE: f64 = 0.25;
const LIBRARY_QUERIES: u32 = 128;

/// The fewest queries: of fewer, libtorch's kernel divides the keys among instances.
const MIN_QUERIES: i64 = 8;

/// What an instance takes where it has a multiprocessor for itself, in the time of several that share one.
const ALONE: f64 = 1.5;

/// What an instance takes beside its keys, in keys.
const INSTANCE: f64 = 96.0;

/// What a step takes beside its keys, in keys.
const STEP: f64 = 32.0;

/// The most that are tried.
const MAX_CANDIDATES: usize = 2;

/// Blocks that are expected to take this much longer than the best may be the quickest.
const MAX_PREDICTED_SLOWDOWN: f64 = 1.3;

/// Blocks for a GPU.
pub(super) struct OfGpu {
    pub(super) blocks: Blocks,
    pub(super) warps: u32,
    /// Shares of the rate of large products that the kernel and libtorch's call reach.
    pub(super) shares: [f64; 2],
}

/// The blocks of attention on so many multiprocessors, the likeliest first.
pub(super) fn blocks(attention: &Attention, processors: u32) -> Result<Vec<OfGpu>, Declined> {
    if !matches!(attention.elem, Elem::F16 | Elem::Bf16) {
        return Err(Declined::ElementTypes);
    }
    if attention.width.max(attention.depth) > MAX_ELEMENTS || attention.queries < MIN_QUERIES {
        return Err(Declined::Sizes);
    }
    if ![&attention.q, &attention.k, &attention.v].into_iter().all(|access| is_copied(access, None)) {
        return Err(Declined::Strides);
    }
    let (width, depth) = (spans(attention.width), spans(attention.depth));
    let elements = |spans: &[Span]| spans.iter().map(|span| span.extent).sum::<u32>();
    let (wide, deep) = (elements(&width), elements(&depth));
    let members = attention.members().ok_or(Declined::Sizes)?;
    let fits = |shape: &&Shape| {
        let registers = shape.queries * (shape.keys * 3 / 2 + deep) / (32 * shape.warps);
        let shared = 2 * (shape.queries * wide + 2 * shape.keys * (wide + deep));
        registers <= REGISTERS && shared <= SHARED_BYTES
    };
    // What a multiprocessor takes, in pairs of a query and a key. One instance alone leaves it idle at times.
    let time = |queries: u32, most: u32, keys: f64| {
        let instances = blocks_of(attention.queries, queries).saturating_mul(members);
        let together = blocks_of(instances, processors.max(1)).clamp(1, most.into());
        let rounds = blocks_of(instances, processors.max(1).saturating_mul(together as u32));
        rounds as f64 * f64::from(queries) * (together as f64).max(ALONE) * (keys + INSTANCE)
    };
    let cost = |shape: &Shape| {
        let steps = blocks_of(attention.keys, shape.keys) as f64;
        time(shape.queries, WARPS / shape.warps, steps * (f64::from(shape.keys) + STEP))
    };
    let library = time(LIBRARY_QUERIES, 1, attention.keys as f64);
    let work =
        members as f64 * attention.queries as f64 * attention.keys as f64 / f64::from(processors.max(1));
    let theirs = if attention.mask.is_some() { MASKED_RATE } else { LIBRARY_RATE };
    let mut all: Vec<(f64, &Shape)> = SHAPES.iter().filter(fits).map(|shape| (cost(shape), shape)).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let least = all.first().ok_or(Declined::Sizes)?.0;
    let near =
        all.into_iter().take_while(|(cost, _)| *cost <= MAX_PREDICTED_SLOWDOWN * least).take(MAX_CANDIDATES);
    let of = |(cost, shape): (f64, &Shape)| OfGpu {
        blocks: Blocks {
            queries: shape.queries,
            alone: false,
            keys: shape.keys,
            width: width.clone(),
            depth: depth.clone(),
            ranges: None,
        },
        warps: shape.warps,
        shares: [RATE * work / cost, theirs * work / library],
    };
    Ok(near.map(of).collect())
}

/// An extent as powers of two, the largest first; the last span may reach beyond the end.
fn spans(extent: i64) -> Vec<Span> {
    let mut spans = Vec::new();
    let (mut first, mut rest) = (0, u32::try_from(extent).unwrap_or(0).next_multiple_of(MIN_EXTENT));
    while rest > 0 {
        let extent = 1 << rest.ilog2();
        spans.push(Span { first, extent });
        (first, rest) = (first + extent, rest - extent);
    }
    spans
}
