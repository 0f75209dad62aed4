//! Which accesses to global memory need a barrier between them.
//!
//! The threads of a block run apart, so an access sees another one of the same instance for certain only where one
//! thread does both or a barrier lies between. Distinct pointers of a program may be the same memory in one way: an
//! element may be read and written in place, at the same position of tiles of one shape.

use tilefuse_block::{Op, OpKind, Program, Region, Value};

use crate::layout::Layout;

#[derive(Clone)]
struct Access {
    ptr: Value,
    offsets: Value,
    layout: Layout,
}

/// Accesses since the last barrier.
#[derive(Clone, Default)]
pub(crate) struct Hazards {
    reads: Vec<Access>,
    writes: Vec<Access>,
}

impl Hazards {
    /// Forgets everything: all threads have passed a barrier.
    pub(crate) fn clear(&mut self) {
        self.reads.clear();
        self.writes.clear();
    }

    /// Adds the accesses since the last barrier on another way to where the code is.
    pub(crate) fn join(&mut self, other: Hazards) {
        self.reads.extend(other.reads);
        self.writes.extend(other.writes);
    }

    /// Whether a read must wait for the block.
    pub(crate) fn read_needs_barrier(&self, op: &Op, layout: &Layout) -> bool {
        self.writes.iter().any(|w| w.ptr == op.args[0] && !w.is_own(op.args[1], layout))
    }

    /// Whether a write must wait for the block.
    pub(crate) fn write_needs_barrier(&self, program: &Program, op: &Op, layout: &Layout) -> bool {
        let shape = &program.ty(op.args[1]).shape;
        let overlaps = |a: &Access| {
            let in_place =
                program.ty(a.offsets).shape == *shape && (a.layout != *layout || a.is_replicated());
            if a.ptr == op.args[0] { !a.is_own(op.args[1], layout) } else { in_place }
        };
        let rewrites = |a: &Access| a.ptr == op.args[0] && !a.is_own(op.args[1], layout);
        self.reads.iter().any(overlaps) || self.writes.iter().any(rewrites)
    }

    pub(crate) fn read(&mut self, op: &Op, layout: &Layout) {
        self.reads.push(Access { ptr: op.args[0], offsets: op.args[1], layout: layout.clone() });
    }

    pub(crate) fn write(&mut self, op: &Op, layout: &Layout) {
        self.writes.push(Access { ptr: op.args[0], offsets: op.args[1], layout: layout.clone() });
    }

    /// Whether the body of a loop reads what an earlier iteration may have written, or the other way round, or two
    /// of its stores meet. One store's iterations are taken to write different elements.
    pub(crate) fn loop_needs_barrier(&self, regions: &[Region]) -> bool {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        regions.iter().for_each(|region| accesses(region, &mut reads, &mut writes));
        let repeated = writes.iter().enumerate().any(|(i, w)| writes[..i].contains(w));
        repeated || writes.iter().any(|w| reads.contains(w))
    }
}

fn accesses(region: &Region, reads: &mut Vec<Value>, writes: &mut Vec<Value>) {
    for op in &region.ops {
        match op.kind {
            OpKind::Load { .. } => reads.push(op.args[0]),
            OpKind::Store { .. } | OpKind::Atomic { .. } | OpKind::AtomicCas { .. } => {
                writes.push(op.args[0])
            }
            _ => {}
        }
        for inner in &op.regions {
            accesses(inner, reads, writes);
        }
    }
}

impl Access {
    fn is_replicated(&self) -> bool {
        self.layout.replicated_threads() != 0
    }

    /// Whether the thread that did this access does the other one, of the same addresses.
    fn is_own(&self, offsets: Value, layout: &Layout) -> bool {
        self.offsets == offsets && self.layout == *layout && !self.is_replicated()
    }
}
