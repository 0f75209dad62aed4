//! The blocks of attention on a GPU whose multiprocessors multiply by warpgroups (`wgmma`).
//!
//! An instance holds the scores of a step and the sums of its queries in the registers of its warps. Keys and values are copied to
//! shared memory some steps ahead, queries once.

use tilefuse_block::Elem;

use super::blocks::{Blocks, Span, spans};
use super::call::Attention;
use super::schedule::{Form, Schedule};
use crate::contract::blocks::blocks_of;
use crate::contract::declined::Declined;
use crate::contract::likeliest::Priced;
use crate::contract::price::Work;
use crate::contract::warpgroup::is_copied;
use crate::machine::Profile;

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

/// The most instances along the second axis of a GPU's grid.
const MAX_INSTANCES: i64 = 65_535;

/// What an instance takes where it has a multiprocessor for itself, in the time of several that share one.
const ALONE: f64 = 1.5;

/// What an instance takes beside its keys, in keys.
const INSTANCE: f64 = 96.0;

/// What a step takes beside its keys, in keys.
const STEP: f64 = 32.0;

/// Blocks that are expected to take this much longer than the best may be the quickest.
const MAX_PREDICTED_SLOWDOWN: f64 = 1.3;

/// The schedules of attention on a GPU of so many multiprocessors.
pub(super) fn schedules(
    attention: &Attention,
    (profile, processors): (&Profile, u32),
) -> Result<Vec<Priced<Schedule>>, Declined> {
    if !matches!(attention.elem, Elem::F16 | Elem::Bf16) {
        return Err(Declined::ElementTypes);
    }
    let members = attention.members().filter(|&members| members <= MAX_INSTANCES).ok_or(Declined::Sizes)?;
    if attention.width.max(attention.depth) > MAX_ELEMENTS || attention.queries < MIN_QUERIES {
        return Err(Declined::Sizes);
    }
    if ![&attention.q, &attention.k, &attention.v].into_iter().all(|access| is_copied(access, None)) {
        return Err(Declined::Strides);
    }
    let of = |extent: i64| spans(extent, [MIN_EXTENT, 128]).ok_or(Declined::Sizes);
    let (width, depth) = (of(attention.width)?, of(attention.depth)?);
    let model = Model { attention, members, processors: processors.max(1) };
    let library = model.library();
    let shapes = SHAPES.iter().filter(|shape| shape.fits(&width, &depth));
    let priced = |shape: &Shape| {
        let Shape { queries, keys, warps } = *shape;
        let blocks = Blocks { queries, keys, width: width.clone(), depth: depth.clone(), ranges: None };
        let shares = [RATE * model.work() / model.ours(shape), model.library_rate() * model.work() / library];
        let work = Work { shares, ..Work::of_attention(attention) };
        let schedule = Schedule { form: Form::Rows { warps }, blocks, shares };
        schedule.priced(attention, (work, profile), MAX_PREDICTED_SLOWDOWN)
    };
    Ok(shapes.map(priced).collect())
}

impl Shape {
    /// Whether registers and shared memory hold a block of queries and keys, and of values, of these elements.
    fn fits(&self, width: &[Span], depth: &[Span]) -> bool {
        let elements = |spans: &[Span]| spans.iter().map(|span| span.extent).sum::<u32>();
        let (wide, deep) = (elements(width), elements(depth));
        let registers = self.queries * (self.keys * 3 / 2 + deep) / (32 * self.warps);
        let shared = 2 * (self.queries * wide + 2 * self.keys * (wide + deep));
        registers <= REGISTERS && shared <= SHARED_BYTES
    }
}

/// What multiprocessors take for attention, in pairs of a query and a key.
struct Model<'a> {
    attention: &'a Attention,
    members: i64,
    processors: u32,
}

impl Model<'_> {
    /// The pairs of each multiprocessor.
    fn work(&self) -> f64 {
        let Attention { queries, keys, .. } = *self.attention;
        self.members as f64 * queries as f64 * keys as f64 / f64::from(self.processors)
    }

    /// What blocks of so many queries take, of which a multiprocessor has at `most` so many at a time. One instance alone leaves it
    /// idle at times.
    fn time(&self, queries: u32, most: u32, keys: f64) -> f64 {
        let instances = blocks_of(self.attention.queries, queries).saturating_mul(self.members);
        let together = blocks_of(instances, self.processors).clamp(1, most.into());
        let rounds = blocks_of(instances, self.processors.saturating_mul(together as u32));
        rounds as f64 * f64::from(queries) * (together as f64).max(ALONE) * (keys + INSTANCE)
    }

    /// What blocks of ours take.
    fn ours(&self, shape: &Shape) -> f64 {
        let steps = blocks_of(self.attention.keys, shape.keys) as f64;
        self.time(shape.queries, WARPS / shape.warps, steps * (f64::from(shape.keys) + STEP))
    }

    /// What libtorch's call takes.
    fn library(&self) -> f64 {
        self.time(LIBRARY_QUERIES, 1, self.attention.keys as f64)
    }

    /// The share of the rate of large products that libtorch's call reaches.
    fn library_rate(&self) -> f64 {
        if self.attention.mask.is_some() { MASKED_RATE } else { LIBRARY_RATE }
    }
}
