//! The blocks of attention: what one instance computes, and what it goes through at a time.

use tilefuse_block::Elem;

use super::call::Attention;
use super::kv_splits::written;
use super::vnni;
use crate::contract::blocks::blocks_of;
use crate::contract::product::Access;
use crate::contract::schedule::Splits;
use crate::types::fits_i32;

/// How attention is divided among instances. Extents of tiles are powers of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::contract) struct QueryBlocks {
    /// What queries are to an instance.
    pub(in crate::contract) mapping: QueryMapping,
    /// Queries of an instance: all where each is taken by itself, a power of two else.
    pub(in crate::contract) queries: u32,
    /// Keys of a step.
    pub(in crate::contract) keys: u32,
    /// Elements of queries and keys that are multiplied at a time.
    pub(in crate::contract) width: Vec<Span>,
    /// Elements of values that are summed at a time.
    pub(in crate::contract) depth: Vec<Span>,
    /// Warps of an instance on a GPU.
    pub(in crate::contract) warps: Option<u32>,
}

/// What queries are to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::contract) enum QueryMapping {
    /// Each is multiplied by keys as rows (`decode.rs`).
    Each,
    /// The lanes of vectors (`program.rs`).
    Lanes,
    /// The rows of products (`rows.rs`): on a host over keys and values that are packed in pairs (`vnni.rs`).
    Rows,
}

/// Some elements of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::contract) struct Span {
    /// The first one.
    pub(super) first: u32,
    /// How many a tile has.
    pub(in crate::contract) extent: u32,
}

/// Steps through all keys where a query sees those up to its own, at least: some of a step count for no query.
const CAUSAL_STEPS: u32 = 4;

/// Elements of a step's keys, which stay in the first cache for all queries.
const STEP_ELEMENTS: u32 = 8192;

/// The most elements of a query or a value.
const MAX_ELEMENTS: u32 = 512;

impl QueryMapping {
    /// Queries that an instance on a host may have.
    pub(in crate::contract) fn queries(self, attention: &Attention) -> Vec<u32> {
        let narrow = if attention.elem == Elem::F64 { 2 } else { 1 };
        let least = match self {
            QueryMapping::Each => return u32::try_from(attention.queries).ok().into_iter().collect(),
            QueryMapping::Rows => 16,
            QueryMapping::Lanes => 2,
        };
        let most = covering(attention.queries).unwrap_or(0);
        // Scores of a step stay in the first cache.
        let all = [64 / narrow, 32, 16, 8, 4, 2].into_iter();
        all.filter(|queries| (least..=most).contains(queries)).collect()
    }

    /// Keys that a step on a host may have.
    pub(in crate::contract) fn keys(self, attention: &Attention) -> Vec<u32> {
        let narrow = if attention.elem == Elem::F64 { 2 } else { 1 };
        let elements = covering(attention.width.max(attention.depth)).unwrap_or(u32::MAX);
        let (least, most, causal) = match self {
            QueryMapping::Rows => (32, 128, 64),
            // Not by the queries of an instance: sums of other steps are rounded otherwise.
            QueryMapping::Each | QueryMapping::Lanes => {
                let causal = covering(attention.queries).map_or(16, |all| (all / CAUSAL_STEPS).clamp(16, 64));
                (8, (STEP_ELEMENTS / narrow / elements).clamp(16, 128), causal)
            }
        };
        let most = if attention.causal { causal.min(most) } else { most };
        [128, 64, 32, 16, 8].into_iter().filter(|n| (least..=most).contains(n)).collect()
    }

    /// The elements of queries and keys that are multiplied at a time on a host, and those of values that are summed.
    pub(in crate::contract) fn spans(self, attention: &Attention) -> Option<[Vec<Span>; 2]> {
        if self == QueryMapping::Rows {
            return vnni::spans(attention);
        }
        let of = |extent: i64| spans(extent, [1, 128]);
        Some([of(attention.width)?, of(attention.depth)?])
    }

    /// Blocks of so many queries of a member of the batch.
    pub(in crate::contract) fn blocks_of(self, attention: &Attention, queries: u32) -> i64 {
        if self == QueryMapping::Each { 1 } else { blocks_of(attention.queries, queries) }
    }
}

impl QueryBlocks {
    /// Steps of an instance where a query sees only keys up to its own number: of all instances the mean.
    pub(in crate::contract) fn causal_steps(&self, attention: &Attention) -> f64 {
        let (queries, keys) = (i64::from(self.queries), i64::from(self.keys));
        let all = blocks_of(attention.queries, self.queries);
        // The blocks of queries that do not see the last key.
        let before = blocks_of(attention.keys, self.queries) - 1;
        let steps = match queries / keys {
            0 => {
                let alike = keys / queries;
                let (whole, rest) = (before / alike, before % alike);
                alike * whole * (whole + 1) / 2 + rest * (whole + 1)
            }
            each => each * before * (before + 1) / 2,
        };
        let last = blocks_of(attention.keys, self.keys);
        (steps + (all - before) * last) as f64 / all as f64
    }
}

/// The extent of the last step, of fewer keys than the others.
pub(in crate::contract) fn tail(keys: i64) -> u32 {
    covering(keys).unwrap_or(1 << 16).max(8)
}

/// The axes of the grid along which instances are numbered by block of queries and by member of the batch. Parts of the keys come first,
/// since they follow each other in memory.
pub(super) fn axes(splits: Option<Splits>) -> [u8; 2] {
    if splits.is_some() { [1, 2] } else { [0, 1] }
}

/// Whether every offset that is computed fits 32 bits.
pub(super) fn fits(attention: &Attention, blocks: &QueryBlocks, splits: Option<Splits>) -> bool {
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
    let parts = splits.is_none_or(|splits| fits_i32(written(attention, splits)));
    parts && all().is_some_and(|reached| reached.into_iter().all(fits_i32))
}

/// The least power of two that is not less.
fn covering(n: i64) -> Option<u32> {
    u32::try_from(n).ok()?.checked_next_power_of_two()
}

/// An extent, filled up to a multiple of the `least`, as powers of two of at most the `most`, the largest first; the last span may
/// reach beyond the end. `None` of too many elements.
pub(in crate::contract) fn spans(extent: i64, [least, most]: [u32; 2]) -> Option<Vec<Span>> {
    let filled = u32::try_from(extent).ok().filter(|&n| n <= MAX_ELEMENTS)?.next_multiple_of(least);
    let (mut first, mut rest) = (0, filled);
    let mut spans = Vec::new();
    while rest > 0 {
        let extent = if rest < 8 { rest.next_power_of_two() } else { 1 << rest.ilog2() }.min(most);
        spans.push(Span { first, extent });
        (first, rest) = (first + extent, rest.saturating_sub(extent));
    }
    Some(spans)
}

#[cfg(test)]
mod tests {
    use super::spans;

    #[test]
    fn an_extent_is_covered_by_powers_of_two() {
        let of =
            |n: i64, bounds: [u32; 2]| spans(n, bounds).unwrap().iter().map(|s| s.extent).collect::<Vec<_>>();
        let extents = |n: i64| of(n, [1, 128]);
        assert_eq!(extents(64), [64]);
        assert_eq!(extents(80), [64, 16]);
        assert_eq!(extents(33), [32, 1]);
        assert_eq!(extents(45), [32, 8, 8]);
        assert_eq!(extents(3), [4]);
        assert_eq!(extents(256), [128, 128]);
        assert_eq!(extents(8), [8]);
        assert_eq!(extents(15), [8, 8]);
        assert_eq!(of(80, [16, 128]), [64, 16]);
        assert_eq!(of(33, [16, 128]), [32, 16]);
        assert_eq!(of(300, [32, 512]), [256, 64]);
        assert!(spans(1000, [1, 128]).is_none());
    }
}
