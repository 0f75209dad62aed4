//! Vectorisation: how many elements one instruction moves.
//!
//! As many as lie beside one another in a thread's registers and in memory, up to 16 bytes, as far as the alignment of
//! the address is known. A mask that is the same for all of them predicates the instruction; else a load selects
//! afterwards, and a store writes single elements, behind a branch, where only some are wanted. A load of neighbours at
//! an unknown alignment, beside wider accesses, reads the two aligned groups that they lie in and shifts.
//!
//! ```text
//! kernel @add(%x: ptr<f16> align(16), %y: ptr<f16> align(16), %n: i32) warps(1) {
//!   %at = range 0 256
//!   %end = const 200 : tile<256xi32>
//!   %in = map lt %at, %end
//!   %v = load %x, %at, mask %in
//!   %last = splat %n [256]
//!   %is_there = map lt %at, %last
//!   %w = load %y, %at, mask %is_there
//!   %s = map add %v, %w
//!   store %y, %at, %s
//! }
//! ```
//!
//! ```text
//! // sm_80: 1 warp, about 20 registers a thread
//! kernel @add(%x: ptr<f16> align(16), %y: ptr<f16> align(16), %n: i32) warps(1) {
//!   %at = range 0 256
//!   %end = const 200 : tile<256xi32>
//!   %in = map lt %at, %end
//!   %v = load %x, %at, mask %in        // vectorize: 8 x f16 an instruction, 16 bytes, mask uniform
//!   %last = splat %n [256]
//!   %is_there = map lt %at, %last
//!   %w = load %y, %at, mask %is_there  // vectorize: 8 x f16 an instruction, 16 bytes, mask by element
//!   %s = map add %v, %w
//!   store %y, %at, %s                  // vectorize: 8 x f16 an instruction, 16 bytes, no mask
//! }
//! ```

use tilefuse_block::{Op, OpKind, Program};

use super::assign::{Assignment, align, mask_of};
use super::axis::Axis;
use super::passes::Seen;
use crate::layout::Layout;

/// How an access moves its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    /// Elements that one instruction moves.
    pub(crate) group: usize,
    /// Whether the mask is the same for all of them.
    pub(crate) uniform: bool,
    /// Whether a load takes them from the two aligned groups that they lie in.
    pub(crate) shifted: bool,
}

impl<'a> Assignment<'a> {
    /// Decides about every load and store.
    pub(crate) fn vectorize(&mut self, ops: &[&'a Op]) {
        for &op in ops {
            if let OpKind::Load { .. } | OpKind::Store { .. } = op.kind {
                let how = self.grouped(op, &self.access(op));
                self.moves.insert(std::ptr::from_ref(op), how);
            }
        }
    }

    /// How a load or store moves its elements.
    pub(crate) fn moves(&self, op: &Op) -> Move {
        self.moves.get(&std::ptr::from_ref(op)).copied().unwrap_or(Move {
            group: 1,
            uniform: true,
            shifted: false,
        })
    }

    fn grouped(&self, op: &Op, layout: &Layout) -> Move {
        let width = |a: usize| self.shifted_width(op, a).unwrap_or_else(|| self.width(op, a));
        let along = |a: usize| layout.vector(a).min(width(a));
        let Some(axis) = (0..layout.shape().len()).max_by_key(|&a| along(a)) else {
            return Move { group: 1, uniform: true, shifted: false };
        };
        let shifted = along(axis) >= self.width(op, axis) + MIN_SHIFTED_LOG;
        let group = 1usize << if shifted { along(axis) } else { along(axis).min(self.width(op, axis)) };
        let same = mask_of(op).map_or(u64::MAX, |mask| self.facts[mask.index()].same[axis]);
        Move { group, uniform: group as u64 <= same, shifted }
    }

    /// [`width`] of an access.
    pub(crate) fn width(&self, op: &Op, axis: usize) -> u32 {
        width(self.program, &self.facts, op, axis)
    }

    /// [`Assignment::width`] of an access to neighbours, if they are not aligned for wider instructions.
    pub(crate) fn unaligned_width(&self, op: &Op, axis: usize) -> Option<u32> {
        let width = self.width(op, axis);
        (width < self.neighbours(op, axis)).then_some(width)
    }

    /// How many elements a load along an axis may take out of two aligned groups, as a power of two, where one
    /// instruction for each that is aligned would be many.
    pub(crate) fn shifted_width(&self, op: &Op, axis: usize) -> Option<u32> {
        let (width, all) = (self.width(op, axis), self.neighbours(op, axis));
        (matches!(op.kind, OpKind::Load { .. }) && all >= width + MIN_SHIFTED_LOG).then_some(all)
    }

    /// How many neighbours an access has along an axis, as a power of two, 16 bytes at most.
    fn neighbours(&self, op: &Op, axis: usize) -> u32 {
        let elem = self.program.ty(op.args[0]).pointee().map_or(1, |e| u64::from(e.bytes()));
        self.facts[op.args[1].index()].run[axis].min(16 / elem).trailing_zeros()
    }
}

/// How many elements one instruction of an access may move along an axis, as a power of two. Where a mask keeps
/// only some of them, a load reads all: they share aligned bytes of memory that is there.
pub(super) fn width(program: &Program, facts: &[Axis], op: &Op, axis: usize) -> u32 {
    let elem = program.ty(op.args[0]).pointee().map_or(1, |e| u64::from(e.bytes()));
    let offsets = &facts[op.args[1].index()];
    let mut group = offsets.run[axis].min(16 / elem);
    while group > 1 {
        let mut starts = vec![1; offsets.run.len()];
        starts[axis] = group;
        if (offsets.div_at(&starts) * elem).min(align(program, op.args[0])) >= group * elem {
            break;
        }
        group /= 2;
    }
    group.trailing_zeros()
}

/// Two instructions and the shifts between them replace at least so many, as a power of two.
const MIN_SHIFTED_LOG: u32 = 2;

/// How an access moves its elements.
pub(super) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let plan = seen.plan;
    let Some(how) = plan.moves.get(&std::ptr::from_ref(op)) else { return Vec::new() };
    let Some(elem) = plan.program.ty(op.args[0]).pointee() else { return Vec::new() };
    let bytes = how.group as u64 * u64::from(elem.bytes());
    let always = |mask: tilefuse_block::Value| plan.facts[mask.index()].constant == Some(1);
    let mask = match mask_of(op) {
        None => "no mask",
        Some(mask) if always(mask) => "mask always true",
        Some(_) if how.uniform => "mask uniform",
        Some(_) => "mask by element",
    };
    let s = if bytes == 1 { "" } else { "s" };
    let instructions = if how.shifted { "two instructions" } else { "an instruction" };
    vec![format!("{} x {elem} {instructions}, {bytes} byte{s}, {mask}", how.group)]
}
