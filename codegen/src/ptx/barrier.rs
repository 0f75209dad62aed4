//! Barrier insertion: where the threads of a block must wait for each other, and why.
//!
//! The threads of a block run apart, so an access sees another one of the same instance for certain only where one
//! thread does both or a barrier lies between. Distinct pointers of a program may be the same memory in one way: an
//! element may be read and written in place, at the same position of tiles of one shape.
//!
//! Shared memory that threads read after others wrote it needs a barrier in between, and another one before it is
//! written again.
//!
//! ```text
//! kernel @swap(%x: ptr<f32> align(16), %y: ptr<f32> align(16)) warps(4) {
//!   %at = range 0 256
//!   %last = const 255 : tile<256xi32>
//!   %back = map sub %last, %at
//!   %v = load %x, %at
//!   %s = reduce sum %v axis 0
//!   store %x, %at, %v
//!   %w = load %x, %back
//!   store %y, %at, %w
//!   %zero = range 0 1
//!   %t = reshape %s [1]
//!   store %y, %zero, %t
//! }
//! ```
//!
//! ```text
//! // sm_80: 4 warps, about 18 registers a thread
//! kernel @swap(%x: ptr<f32> align(16), %y: ptr<f32> align(16)) warps(4) {
//!   %at = range 0 256
//!   %last = const 255 : tile<256xi32>
//!   %back = map sub %last, %at
//!   %v = load %x, %at
//!   %s = reduce sum %v axis 0  // barriers: other threads read what is put into shared memory
//!   store %x, %at, %v
//!   %w = load %x, %back        // barriers: other threads may have written %x
//!   store %y, %at, %w
//!   %zero = const 0 : tile<1xi32>
//!   %t = reshape %s [1]
//!   store %y, %zero, %t        // barriers: other threads may have written %y
//! }
//! ```

use tilefuse_block::{Op, OpKind, Region, Value};

use super::assign::Assignment;
use super::decisions::counted;
use super::passes::Seen;
use crate::disjoint::{Accessed, Iterations};
use crate::layout::Layout;

/// Why threads wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierReason {
    /// Another thread may have written what this pointer points to.
    Written(Value),
    /// Another thread may yet have to read what this pointer points to.
    Read(Value),
    /// Other threads read what was put into shared memory.
    Filled,
    /// Other threads may yet have to read what the shared memory held before.
    Reused,
    /// Other threads read the operands that were loaded ahead.
    Arrived,
    /// An atomic operation orders what is around it.
    Order,
    /// Iterations of a loop meet in memory.
    Iterations,
    /// All threads must take the same way.
    Condition,
}

#[derive(Clone)]
struct Access {
    ptr: Value,
    accessed: Accessed,
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

    /// Why a read must wait for the block, if it must.
    pub(crate) fn before_read(&self, plan: &Assignment, op: &Op, layout: &Layout) -> Option<BarrierReason> {
        let is_own = |w: &Access| w.is_own(plan, op.args[1], layout);
        let written = self.writes.iter().find(|w| w.ptr == op.args[0] && !is_own(w));
        written.map(|write| BarrierReason::Written(write.ptr))
    }

    /// Why a write must wait for the block, if it must.
    pub(crate) fn before_write(&self, plan: &Assignment, op: &Op, layout: &Layout) -> Option<BarrierReason> {
        let program = plan.program;
        let shape = &program.ty(op.args[1]).shape;
        let overlaps = |a: &Access| {
            let in_place =
                program.ty(a.accessed.offsets).shape == *shape && (a.layout != *layout || a.is_replicated());
            if a.ptr == op.args[0] { !a.is_own(plan, op.args[1], layout) } else { in_place }
        };
        let own = Accessed::by(op);
        let apart =
            |a: &Access| own.is_some_and(|own| plan.origins.are_disjoint(a.accessed, own, Iterations::Same));
        let rewrites = |a: &Access| a.ptr == op.args[0] && !a.is_own(plan, op.args[1], layout) && !apart(a);
        let read = self.reads.iter().find(|a| overlaps(a)).map(|a| BarrierReason::Read(a.ptr));
        read.or_else(|| self.writes.iter().find(|a| rewrites(a)).map(|a| BarrierReason::Written(a.ptr)))
    }

    pub(crate) fn read(&mut self, op: &Op, layout: &Layout) {
        self.reads.extend(Access::by(op, layout));
    }

    pub(crate) fn write(&mut self, op: &Op, layout: &Layout) {
        self.writes.extend(Access::by(op, layout));
    }

    /// Whether the body of a loop reads what an earlier iteration may have written, or the other way round, or two
    /// of its stores meet. Which value is left where one store's iterations meet is not defined.
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
    fn by(op: &Op, layout: &Layout) -> Option<Access> {
        Some(Access { ptr: *op.args.first()?, accessed: Accessed::by(op)?, layout: layout.clone() })
    }

    fn is_replicated(&self) -> bool {
        self.layout.replicated_threads() != 0
    }

    /// Whether the thread that did this access does the other one, of the same addresses.
    fn is_own(&self, plan: &Assignment, offsets: Value, layout: &Layout) -> bool {
        let same = self.accessed.offsets == offsets && self.layout == *layout && !self.is_replicated();
        same && plan.origins.are_distinct(offsets)
    }
}

/// The barriers in the code of an operation.
pub(super) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let why = |why: &BarrierReason| match why {
        BarrierReason::Written(ptr) => format!("other threads may have written %{}", seen.name(*ptr)),
        BarrierReason::Read(ptr) => format!("other threads may yet read %{}", seen.name(*ptr)),
        BarrierReason::Filled => "other threads read what is put into shared memory".to_owned(),
        BarrierReason::Reused => "other threads may yet read that shared memory".to_owned(),
        BarrierReason::Arrived => "other threads read operands that were loaded ahead".to_owned(),
        BarrierReason::Order => "the memory order asks for it".to_owned(),
        BarrierReason::Iterations => "iterations meet in memory".to_owned(),
        BarrierReason::Condition => "all threads take the same way".to_owned(),
    };
    let barriers = seen.decisions().into_iter().flat_map(|decisions| decisions.barriers.of(op));
    counted(barriers.map(why))
}
