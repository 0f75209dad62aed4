//! The static memory plan: offsets in one arena for the values that kernels write and no one else keeps.

use indexmap::IndexMap;

use crate::graph::ValueRef;

/// Every offset is a multiple of this many bytes.
pub const ALIGNMENT: u64 = 512;

/// Offsets of intermediates in the arena.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Bytes of the arena.
    pub bytes: u64,
    /// Offset of each value, in bytes.
    pub offsets: IndexMap<ValueRef, u64>,
    /// Values that kernels write and that have memory of their own, because they are results or bases of results.
    pub own: Vec<ValueRef>,
}

/// A value's life: bytes, first and last step, inclusive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) value: ValueRef,
    pub(crate) bytes: u64,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// Places values largest first, each at the lowest offset that is free during its life.
pub(crate) fn place(lives: &[Life], own: Vec<ValueRef>) -> Memory {
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
    let offsets = lives.iter().zip(offsets).map(|(life, at)| (life.value, at)).collect();
    Memory { bytes, offsets, own }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::NodeId;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_that_live_together_do_not_overlap(
            raw in proptest::collection::vec((1u64..5000, 0usize..20, 0usize..6), 1..40)
        ) {
            let lives: Vec<Life> = raw.iter().enumerate().map(|(i, &(bytes, first, length))| Life {
                value: ValueRef::from(NodeId::new(i)), bytes, first, last: first + length,
            }).collect();
            let memory = place(&lives, Vec::new());
            for a in &lives {
                prop_assert!(memory.offsets[&a.value] + a.bytes <= memory.bytes);
                for b in &lives {
                    let together = a.first <= b.last && b.first <= a.last;
                    let (x, y) = (memory.offsets[&a.value], memory.offsets[&b.value]);
                    prop_assert!(a.value == b.value || !together || x + a.bytes <= y || y + b.bytes <= x);
                }
            }
        }
    }
}
