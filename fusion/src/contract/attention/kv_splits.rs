//! Splits of the keys that have instances of their own, and what these leave.
//!
//! On a host they follow from shapes alone: a result must not depend on how many threads there are. On a GPU several numbers of them are
//! priced.

use super::blocks::QueryMapping;
use super::call::Attention;
use crate::contract::blocks::blocks_of;
use crate::contract::schedule::Splits;
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

impl Splits {
    /// The keys of a member of the batch in so many ranges of whole steps, or fewer; `None` where they are not several, or keys are seen by some queries only.
    pub(in crate::contract) fn of_keys(attention: &Attention, count: i64, step: u32) -> Option<Splits> {
        let each = (attention.keys + count - 1) / count;
        let length = blocks_of(each, step) * i64::from(step);
        let count = u32::try_from((attention.keys + length - 1) / length).ok()?;
        (count > 1 && !attention.causal).then_some(Splits { length, count })
    }

    /// Those on a host of a call whose steps have so many keys; `None` where all keys of a query stay together.
    pub(in crate::contract) fn of_keys_on_host(
        attention: &Attention,
        mapping: QueryMapping,
        keys: u32,
    ) -> Option<Splits> {
        if attention.causal {
            return None;
        }
        let members = attention.members()?;
        let down = mapping.blocks_of(attention, QUERIES);
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
        if count < 2 { None } else { Splits::of_keys(attention, count, keys) }
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
pub(super) fn written(attention: &Attention, splits: Splits) -> i64 {
    let all =
        || left_by_split(attention)?.checked_mul(attention.members()?)?.checked_mul(splits.count.into());
    all().unwrap_or(i64::MAX)
}

/// Bytes of what all ranges leave.
pub(in crate::contract) fn written_bytes(attention: &Attention, splits: Splits) -> f64 {
    written(attention, splits) as f64 * f64::from(attention.sum().bytes())
}
