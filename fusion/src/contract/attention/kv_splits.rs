//! Splits of the keys that have instances of their own, and what these leave.
//!
//! On a host they follow from shapes alone: a result must not depend on how many threads there are. On a GPU `warpgroup.rs` prices
//! several numbers of them on its multiprocessors.

use super::call::Attention;
use super::schedule::Form;
use crate::contract::blocks::blocks_of;
use crate::machine::HOST_PARTS;

/// Queries of an instance that is large enough.
const QUERIES: u32 = 32;

/// The fewest keys of a range.
const MIN_KEYS: i64 = 512;

/// The fewest multiplications where there is one instance, and where there are several, which keep few threads busy as they
/// are: a second kernel takes about ten microseconds.
const MIN_WORK: i64 = 1 << 17;
const MIN_WORK_OF_SEVERAL: i64 = 1 << 22;

/// How many times larger keys and values are than what ranges leave, at least.
const SHARE: i64 = 16;

/// The ranges of keys of one member of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KvSplits {
    /// Keys of a range; the last one may have fewer.
    pub(super) length: i64,
    /// How many there are.
    pub(super) count: u32,
}

impl KvSplits {
    /// So many ranges of whole steps, or fewer; `None` where they are not several, or keys are seen by some queries only.
    pub(super) fn of(attention: &Attention, count: i64, step: u32) -> Option<KvSplits> {
        let each = (attention.keys + count - 1) / count;
        let length = blocks_of(each, step) * i64::from(step);
        let count = u32::try_from((attention.keys + length - 1) / length).ok()?;
        (count > 1 && !attention.causal).then_some(KvSplits { length, count })
    }

    /// The ranges on a host of a call whose steps have so many keys; `None` where all keys of a query stay together.
    pub(super) fn on_host(attention: &Attention, form: Form, keys: u32) -> Option<KvSplits> {
        if attention.causal {
            return None;
        }
        let members = attention.members()?;
        let down = form.down(attention, QUERIES);
        let instances = members.checked_mul(down)?;
        let elements = attention.keys.checked_mul(attention.width.checked_add(attention.depth)?)?;
        let work = members.checked_mul(elements)?.checked_mul(attention.queries)?;
        let least = if instances == 1 { MIN_WORK } else { MIN_WORK_OF_SEVERAL };
        if instances >= HOST_PARTS || work < least {
            return None;
        }
        let wanted = (HOST_PARTS + instances - 1) / instances;
        let left = left_by_split(attention)?.checked_mul(attention.sum().bytes().into())?;
        let small = elements.checked_mul(attention.elem.bytes().into())? / left.checked_mul(SHARE)?;
        let count = wanted.min(attention.keys / MIN_KEYS).min(small);
        if count < 2 { None } else { KvSplits::of(attention, count, keys) }
    }
}

/// Elements that a range leaves of one member: for each query its weighted sum, then of all queries the maxima, then the
/// sums of exponentials.
pub(super) fn left_by_split(attention: &Attention) -> Option<i64> {
    attention.queries.checked_mul(attention.depth.checked_add(2)?)
}

/// The first of a member's maxima and of its sums of exponentials, behind what a range begins with.
pub(super) fn behind(attention: &Attention) -> [i64; 2] {
    let sums = attention.queries * attention.depth;
    [sums, sums + attention.queries]
}

/// Elements that all ranges leave; `i64::MAX` where these are too many.
pub(super) fn written(attention: &Attention, splits: KvSplits) -> i64 {
    let all =
        || left_by_split(attention)?.checked_mul(attention.members()?)?.checked_mul(splits.count.into());
    all().unwrap_or(i64::MAX)
}
