//! The static memory plan: offsets in one arena for the values that kernels write and no one else keeps.

use indexmap::IndexMap;

use crate::graph::ValueRef;

/// Every offset is a multiple of this many bytes.
pub const ALIGNMENT: u64 = 512;

/// Where the values of a plan's kernels lie.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Bytes of the arena.
    pub bytes: u64,
    /// Offset of each value in the arena, in bytes.
    pub offsets: IndexMap<ValueRef, u64>,
    /// Values with a tensor of their own: results, bases of results, and what is too large for too short to be held
    /// in the arena.
    pub own: Vec<ValueRef>,
    /// Values that are written in place of others, in the memory of this result of a libtorch call, this one of
    /// [`own`](Self::own) or this input or parameter, which was the first to be there.
    pub over: IndexMap<ValueRef, ValueRef>,
}

impl Memory {
    /// The value that was the first to be where this one is.
    pub fn root(&self, value: ValueRef) -> ValueRef {
        self.over.get(&value).copied().unwrap_or(value)
    }
}

/// The life of a piece of memory: bytes, first and last step, inclusive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) bytes: u64,
    pub(super) first: usize,
    pub(super) last: usize,
}

/// Places lives largest first, each at the lowest offset that is free during it; the bytes in all, and the offsets.
pub(super) fn place(lives: &[Life]) -> (u64, Vec<u64>) {
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lives[i].bytes), lives[i].first, i));
    let mut placed: Vec<(u64, u64, usize)> = Vec::new();
    let mut offsets = vec![0; lives.len()];
    let mut bytes = 0;
    for i in order {
        let life = lives[i];
        let size = life.bytes.div_ceil(ALIGNMENT) * ALIGNMENT;
        let mut at = 0;
        for &(start, end, other) in &placed {
            let together = lives[other].first <= life.last && life.first <= lives[other].last;
            if together && at < end && start < at + size {
                at = end;
            } else if together && start >= at + size {
                break;
            }
        }
        offsets[i] = at;
        bytes = bytes.max(at + size);
        let position = placed.partition_point(|p| (p.0, p.1) < (at, at + size));
        placed.insert(position, (at, at + size, i));
    }
    (bytes, offsets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_lives_together_does_not_overlap(
            raw in proptest::collection::vec((1u64..5000, 0usize..20, 0usize..6), 1..40)
        ) {
            let lives: Vec<Life> =
                raw.iter().map(|&(bytes, first, length)| Life { bytes, first, last: first + length }).collect();
            let (bytes, offsets) = place(&lives);
            for (i, a) in lives.iter().enumerate() {
                prop_assert!(offsets[i] + a.bytes <= bytes);
                for (j, b) in lives.iter().enumerate().filter(|&(j, _)| j != i) {
                    let together = a.first <= b.last && b.first <= a.last;
                    let (x, y) = (offsets[i], offsets[j]);
                    prop_assert!(!together || x + a.bytes <= y || y + b.bytes <= x);
                }
            }
        }
    }
}
