//! The blocks of attention: what one instance computes, and what it goes through at a time.

use tilefuse_block::Elem;

use super::call::Attention;
use super::ranges::{Ranges, written};
use crate::contract::blocks::blocks_of;
use crate::contract::product::Access;
use crate::machine::HOST_PARTS;
use crate::types::fits_i32;

/// How attention is divided. Extents of tiles are powers of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    /// Queries of an instance.
    pub(super) queries: u32,
    /// Whether an instance has all queries, and takes each by itself; `queries` is a power of two else.
    pub(super) alone: bool,
    /// Keys of a step.
    pub(super) keys: u32,
    /// Elements of queries and keys that are multiplied at a time.
    pub(super) width: Vec<Span>,
    /// Elements of values that are summed at a time.
    pub(super) depth: Vec<Span>,
    /// The ranges of keys that have instances of their own; `None` where an instance goes through all keys.
    pub(super) ranges: Option<Ranges>,
}

/// Some elements of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The first one.
    pub(super) first: u32,
    /// How many a tile has.
    pub(super) extent: u32,
}

/// The most queries that are taken each by itself: fewer fill less than a part of a vector's lanes.
const MAX_QUERIES_ALONE: i64 = 4;

/// What an instance takes beside its queries, in queries: bringing them into place and storing the result.
const INSTANCE: f64 = 6.0;

/// What a step takes beside its keys, in keys: rescaling what was summed.
const STEP: f64 = 8.0;

/// Steps through all keys where a query sees those up to its own, at least: some of a step count for no query.
const CAUSAL_STEPS: u32 = 4;

/// Elements of a step's keys, which stay in the first cache for all queries.
const STEP_ELEMENTS: u32 = 8192;

impl Blocks {
    /// The blocks on so many threads; `None` where the tensors are too large for any.
    pub(super) fn of(attention: &Attention, threads: u32) -> Option<Blocks> {
        let narrow = if attention.elem == Elem::F64 { 2 } else { 1 };
        let alone = attention.queries == 1 || (attention.queries <= MAX_QUERIES_ALONE && !attention.causal);
        let (width, depth) = (spans(attention.width)?, spans(attention.depth)?);
        let elements = covering(attention.width.max(attention.depth))?;
        let most_keys = (STEP_ELEMENTS / narrow / elements).clamp(16, 128);
        let ranges = Ranges::of(attention, alone, keys_of_step(attention.keys, most_keys)?);
        // Sums of ranges that fewer threads compute are not rounded otherwise.
        let threads = ranges.map_or(threads, |_| HOST_PARTS as u32);
        let members = attention.members()? as f64 * ranges.map_or(1.0, |ranges| f64::from(ranges.count));
        let time = |queries: u32| {
            let instances = blocks_of(attention.queries, queries) as f64 * members;
            let rounds = (instances / f64::from(threads.max(1))).ceil();
            // A vector of sums for each row fills no registers.
            let alone = if queries < 32 / narrow { 1.25 } else { 1.0 };
            rounds * (f64::from(queries.max(16 / narrow)) * alone + INSTANCE)
        };
        let candidates = [64 / narrow, 32, 16, 8, 4, 2].into_iter();
        let most = covering(attention.queries)?;
        let queries = candidates.filter(|&n| n <= most).min_by(|&a, &b| time(a).total_cmp(&time(b)));
        let queries = if alone { u32::try_from(attention.queries).ok() } else { queries }?;
        // Not by the queries of an instance: sums of other steps are rounded otherwise.
        let causal = (most / CAUSAL_STEPS).clamp(16, 64);
        let most_keys = if attention.causal { most_keys.min(causal) } else { most_keys };
        let keys = keys_of_step(attention.keys, most_keys)?;
        Some(Blocks { queries, alone, keys, width, depth, ranges })
    }
}

impl Blocks {
    /// How they are computed.
    pub(super) fn schedule(&self, attention: &Attention) -> String {
        let queries = if self.alone { 1 } else { self.queries };
        let mut text = format!("online softmax, blocks of {queries} x {} keys", self.keys);
        if let Some(heads) = &attention.repeated {
            text.push_str(&format!(", {} heads share keys and values (GQA)", heads.shared));
        }
        text
    }

    /// The axes of the grid along which instances are numbered by block of queries and by member of the batch. Ranges of
    /// keys come first, since they follow each other in memory.
    pub(super) fn axes(&self) -> [u8; 2] {
        if self.ranges.is_some() { [1, 2] } else { [0, 1] }
    }
}

/// Keys of a step through so many, at most as many as this.
fn keys_of_step(keys: i64, most: u32) -> Option<u32> {
    let time = |step: u32| {
        let (whole, rest) = (keys / i64::from(step), keys % i64::from(step));
        let rest = if rest == 0 { 0.0 } else { f64::from(tail(rest)) + 2.0 * STEP };
        whole as f64 * (f64::from(step) + STEP) + rest
    };
    let candidates = [128, 64, 32, 16, 8].into_iter().filter(|&n| n <= most);
    candidates.min_by(|&a, &b| time(a).total_cmp(&time(b)))
}

/// The extent of the last step, of fewer keys than the others.
pub(super) fn tail(keys: i64) -> u32 {
    covering(keys).unwrap_or(1 << 16).max(8)
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
            Some(mask) => of(&mask.access, queries, keys)?,
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
    let parts = blocks.ranges.is_none_or(|ranges| fits_i32(written(attention, ranges)));
    parts && all().is_some_and(|reached| reached.into_iter().all(fits_i32))
}

/// The least power of two that is not less.
fn covering(n: i64) -> Option<u32> {
    u32::try_from(n).ok()?.checked_next_power_of_two()
}

/// An extent as powers of two, the largest first; the last span may reach beyond the end.
fn spans(extent: i64) -> Option<Vec<Span>> {
    let mut rest = u32::try_from(extent).ok().filter(|&n| n <= MAX_ELEMENTS)?;
    let mut first = 0;
    let mut spans = Vec::new();
    while rest > 0 {
        let extent = if rest < 8 { rest.next_power_of_two() } else { (rest / 2 + 1).next_power_of_two() };
        let extent = extent.min(128);
        spans.push(Span { first, extent });
        (first, rest) = (first + extent, rest.saturating_sub(extent));
    }
    Some(spans)
}

/// The most elements of a query or a value.
const MAX_ELEMENTS: u32 = 512;

#[cfg(test)]
mod tests {
    use super::spans;

    #[test]
    fn an_extent_is_covered_by_powers_of_two() {
        let extents = |n: i64| spans(n).unwrap().iter().map(|s| s.extent).collect::<Vec<_>>();
        assert_eq!(extents(64), [64]);
        assert_eq!(extents(80), [64, 16]);
        assert_eq!(extents(33), [32, 1]);
        assert_eq!(extents(45), [32, 8, 8]);
        assert_eq!(extents(3), [4]);
        assert_eq!(extents(256), [128, 128]);
        assert_eq!(extents(8), [8]);
        assert_eq!(extents(15), [8, 8]);
        assert!(spans(1000).is_none());
    }
}
