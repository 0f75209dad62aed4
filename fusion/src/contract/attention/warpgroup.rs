//! The blocks of attention on a GPU whose multiprocessors multiply by warpgroups (`wgmma`).
//!
//! An instance holds the scores of a step and the sums of its queries in the registers of its warps. Keys and values are copied to
//! shared memory some steps ahead, queries once.

use super::blocks::{Blocks, Span, spans};
use super::call::Attention;
use super::kv_splits::KvSplits;
use super::schedule::{Form, Schedule, bytes};
use crate::contract::blocks::blocks_of;
use crate::contract::match_failure::MatchFailure;
use crate::contract::price::Work;
use crate::contract::pruning::Priced;
use crate::contract::warpgroup::{Gpu, is_copied};
use crate::machine::{AttentionShape, Profile, Warpgroups};

/// The most elements of a query or a value.
const MAX_ELEMENTS: i64 = 128;

/// The least extent of what is multiplied at a time: the step of an instruction.
const MIN_EXTENT: u32 = 16;

/// Shares of the rate of large products that libtorch's call reaches without and with a mask, whose instances have so many queries,
/// and so many where it divides the keys. Measured on an H100.
const LIBRARY_RATE: f64 = 0.6;
const MASKED_RATE: f64 = 0.25;
const LIBRARY_QUERIES: u32 = 128;
const LIBRARY_QUERIES_IN_PARTS: u32 = 64;

/// The most parts of the keys: the kernel that combines them reads all in one go.
const MAX_PARTS: u32 = 64;

/// The most instances along the second and third axis of a GPU's grid.
const MAX_INSTANCES: i64 = 65_535;

/// What an instance takes where it has a multiprocessor for itself, in the time of several that share one.
const ALONE: f64 = 1.5;

/// What an instance takes beside its keys, in keys.
const INSTANCE: f64 = 96.0;

/// What a step takes beside its keys, in keys.
const STEP: f64 = 32.0;

/// Blocks that are expected to take this much longer than the best may be the quickest.
const MAX_PREDICTED_SLOWDOWN: f64 = 1.3;

/// The schedules of attention over halves on a GPU of so many multiprocessors, with parts of the keys that leave at most so many bytes.
pub(super) fn schedules(
    attention: &Attention,
    (profile, processors, units): Gpu<'_>,
    most_bytes: u64,
) -> Result<Vec<Priced<Schedule>>, MatchFailure> {
    let members =
        attention.members().filter(|&members| members <= MAX_INSTANCES).ok_or(MatchFailure::Sizes)?;
    if attention.width.max(attention.depth) > MAX_ELEMENTS {
        return Err(MatchFailure::Sizes);
    }
    if ![&attention.q, &attention.k, &attention.v].into_iter().all(|access| is_copied(access, None)) {
        return Err(MatchFailure::Strides);
    }
    let of = |extent: i64| spans(extent, [MIN_EXTENT, 128]).ok_or(MatchFailure::Sizes);
    let (width, depth) = (of(attention.width)?, of(attention.depth)?);
    let model = Model { attention, profile, units, members, processors: processors.max(1) };
    let library = model.library();
    let shapes = units.attention.iter().filter(|shape| fits(shape, units, [&width, &depth]));
    let all = shapes
        .flat_map(|shape| model.parts(shape, most_bytes).into_iter().map(move |splits| (shape, splits)));
    let priced = |(shape, splits): (&AttentionShape, Option<KvSplits>)| {
        let AttentionShape { queries, keys, warps } = *shape;
        let blocks = Blocks { queries, keys, width: width.clone(), depth: depth.clone(), splits };
        let shares = [
            units.attention_rate * model.work() / model.ours(shape, splits),
            model.library_rate() * model.work() / library,
        ];
        let left = splits.map_or(0.0, |splits| bytes(attention, splits));
        let work = Work { shares, left, ..Work::of_attention(attention) };
        let schedule = Schedule { form: Form::Rows { warps }, blocks, shares };
        // Where the model expects nothing of parts, a second kernel is not tried.
        let slowdown = if splits.is_some() { 1.0 } else { MAX_PREDICTED_SLOWDOWN };
        schedule.priced(attention, (work, profile), slowdown)
    };
    let (whole, divided): (Vec<_>, Vec<_>) = all.partition(|(_, splits)| splits.is_none());
    // One divided schedule: those in other numbers of parts take about as long.
    let divided = divided.into_iter().map(priced).min_by(|a, b| a.us.total_cmp(&b.us));
    Ok(whole.into_iter().map(priced).chain(divided).collect())
}

/// Whether registers and shared memory hold a block of queries and keys, and of values, of these elements.
fn fits(shape: &AttentionShape, units: &Warpgroups, [width, depth]: [&[Span]; 2]) -> bool {
    let elements = |spans: &[Span]| spans.iter().map(|span| span.extent).sum::<u32>();
    let (wide, deep) = (elements(width), elements(depth));
    let registers = shape.queries * (shape.keys * 3 / 2 + deep) / (32 * shape.warps);
    let shared = 2 * (shape.queries * wide + 2 * shape.keys * (wide + deep));
    registers <= units.attention_registers && shared <= units.shared_bytes
}

/// What multiprocessors take for attention, in pairs of a query and a key.
struct Model<'a> {
    attention: &'a Attention,
    profile: &'a Profile,
    units: &'static Warpgroups,
    members: i64,
    processors: u32,
}

impl Model<'_> {
    /// The pairs of each multiprocessor.
    fn work(&self) -> f64 {
        let Attention { queries, keys, .. } = *self.attention;
        self.members as f64 * queries as f64 * keys as f64 / f64::from(self.processors)
    }

    /// How the keys may be divided.
    fn parts(&self, shape: &AttentionShape, most_bytes: u64) -> Vec<Option<KvSplits>> {
        let all =
            (1..=MAX_PARTS.ilog2()).filter_map(|log| KvSplits::of(self.attention, 1 << log, shape.keys));
        let mut all: Vec<KvSplits> = all.collect();
        all.dedup();
        all.retain(|&splits| bytes(self.attention, splits) <= most_bytes as f64);
        // Blocks of queries are numbered along the second axis then.
        if blocks_of(self.attention.queries, shape.queries) > MAX_INSTANCES {
            all.clear();
        }
        [None].into_iter().chain(all.into_iter().map(Some)).collect()
    }

    /// What blocks of so many queries take, of which a multiprocessor has at `most` so many at a time, each with its keys in so many
    /// parts. One instance alone leaves it idle at times.
    fn time(&self, queries: u32, (most, parts): (u32, u32), keys: f64) -> f64 {
        let instances = blocks_of(self.attention.queries, queries).saturating_mul(self.members);
        let instances = instances.saturating_mul(parts.into());
        let together = blocks_of(instances, self.processors).clamp(1, most.into());
        let rounds = blocks_of(instances, self.processors.saturating_mul(together as u32));
        rounds as f64 * f64::from(queries) * (together as f64).max(ALONE) * (keys + INSTANCE)
    }

    /// What blocks of ours take.
    fn ours(&self, shape: &AttentionShape, splits: Option<KvSplits>) -> f64 {
        let (parts, keys) = splits.map_or((1, self.attention.keys), |splits| (splits.count, splits.length));
        let steps = blocks_of(keys, shape.keys) as f64;
        self.time(
            shape.queries,
            (self.units.warps / shape.warps, parts),
            steps * (f64::from(shape.keys) + STEP),
        )
    }

    /// What libtorch's call takes, which divides the keys among instances where there are few and no mask.
    fn library(&self) -> f64 {
        let keys = self.attention.keys as f64;
        let whole = self.time(LIBRARY_QUERIES, (1, 1), keys);
        if self.attention.mask.is_some() || self.attention.causal {
            return whole;
        }
        let elements = self.attention.width as f64 + self.attention.depth as f64;
        let rate = self.library_rate() * self.profile.products.aligned / f64::from(self.processors);
        let launch = self.profile.launch_us * 1000.0 * rate / (2.0 * elements);
        let in_parts = |log: u32| {
            let parts = 1 << log;
            self.time(LIBRARY_QUERIES_IN_PARTS, (1, parts), keys / f64::from(parts)) + launch
        };
        (1..=MAX_PARTS.ilog2()).map(in_parts).fold(whole, f64::min)
    }

    /// The share of the rate of large products that libtorch's call reaches.
    fn library_rate(&self) -> f64 {
        if self.attention.mask.is_some() { MASKED_RATE } else { LIBRARY_RATE }
    }
}
