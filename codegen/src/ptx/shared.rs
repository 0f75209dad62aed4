//! Shared-memory allocation: which bytes of a block's shared memory an operation uses.
//!
//! The stages of loops that load ahead come first, those of one loop in the place of those of the one before. Scratch memory,
//! which changes of layout, operands of products, scans and the like use one after another, lies in the place of the stages as
//! well, but within such a loop, whose stages are in use: there it lies behind them.
//! Reductions have memory of their own, each some that no other one uses, so that one barrier serves them outside loops.
//!
//! ```text
//! kernel @sums(%x: ptr<f32> align(16), %y: ptr<f32> align(16), %z: ptr<f32> align(16)) warps(4) {
//!   %r = range 0 64
//!   %rows = expand_dims %r axis 1
//!   %cols = expand_dims %r axis 0
//!   %wide = const 64 : tile<64x1xi32>
//!   %down = map mul %rows, %wide
//!   %a = broadcast %down [64, 64]
//!   %b = broadcast %cols [64, 64]
//!   %at = map add %a, %b
//!   %v = load %x, %at
//!   %s = reduce sum %v axis 0
//!   %t = reduce max %v axis 0
//!   %st = map add %s, %t
//!   store %y, %r, %st
//!   %u = scan %v axis 0 (%p, %q) { %o = map max %p, %q yield %o }
//!   store %z, %at, %u
//! }
//! ```
//!
//! ```text
//! // sm_80: 4 warps, about 52 registers a thread
//! // shared memory: 4096 bytes of scratch at 0, 5 uses one after another; 2048 bytes of reductions
//! kernel @sums(%x: ptr<f32> align(16), %y: ptr<f32> align(16), %z: ptr<f32> align(16)) warps(4) {
//!   %r = range 0 64
//!   %cols = expand_dims %r axis 0
//!   %0 = const 64 : tile<64xi32>
//!   %1 = map mul %r, %0
//!   %down = expand_dims %1 axis 1
//!   %a = broadcast %down [64, 64]
//!   %b = broadcast %cols [64, 64]
//!   %at = map add %a, %b
//!   %v = load %x, %at
//!   %s = reduce sum %v axis 0       // shared: 1024 bytes at 0 of reductions
//!   %t = reduce max %v axis 0       // shared: 1024 bytes at 1024 of reductions
//!   %st = map add %s, %t
//!   store %y, %r, %st
//!   %u = scan %v axis 0 (%p, %q) {  // shared: 4096 bytes of scratch at most, 5 times
//!     %o = map max %p, %q
//!     yield %o
//!   }
//!   store %z, %at, %u
//! }
//! ```

use tilefuse_block::Op;

use super::decisions::counted;
use super::dot::Staged;
use super::passes::Seen;

/// Part of a block's shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// For the parts of a reduction's results.
    Reductions,
    /// For whatever moves elements between threads.
    Scratch,
}

/// Shared memory of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) part: Part,
    /// From the beginning of the memory of reductions, or of the other, in bytes.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Whether it may still be in use, so that a barrier must come before it is written.
    pub(crate) waits: bool,
}

/// The shared memory that a program needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    /// Bytes for reductions.
    pub(crate) reduce: u64,
    /// Bytes of scratch memory where no loop loads ahead.
    pub(crate) scratch: u64,
    /// Bytes of scratch memory behind the stages.
    pub(crate) behind: u64,
    /// Bytes for operands of loops that are loaded ahead.
    pub(crate) stages: u64,
    /// Bytes of barriers that count copies of boxes.
    pub(crate) barriers: u64,
    /// Groups of the block's threads that compute instances of their own, and have reductions and scratch memory of their own.
    pub(crate) groups: u64,
    /// Whether the code is within a loop that loads ahead.
    loads_ahead: bool,
    used: bool,
    in_loop: bool,
}

impl Shared {
    /// Nothing yet but so many bytes for stages, in a block of so many groups of threads.
    pub(crate) fn with_stages(stages: u64, groups: u64) -> Shared {
        Shared { stages, groups, ..Shared::default() }
    }

    /// From here on, code may run more than once.
    pub(crate) fn enter_loop(&mut self) {
        self.in_loop = true;
    }

    /// Memory for a reduction.
    pub(crate) fn for_reduce(&mut self, bytes: u64) -> Allocation {
        let offset = self.reduce.next_multiple_of(16);
        self.reduce = offset + bytes;
        Allocation { part: Part::Reductions, offset, bytes, waits: self.in_loop }
    }

    /// Barriers that count copies, one for each stage: where they begin.
    pub(crate) fn for_barriers(&mut self, stages: u64) -> u64 {
        self.barriers += 8 * stages;
        self.barriers - 8 * stages
    }

    /// From here on, a loop loads ahead.
    pub(crate) fn enter_stages(&mut self) {
        self.loads_ahead = true;
    }

    /// The loop that loads ahead has ended, and threads may yet read its stages.
    pub(crate) fn leave_stages(&mut self) {
        self.loads_ahead = false;
        self.used = true;
    }

    /// The first byte of the scratch memory.
    pub(crate) fn scratch_start(&self) -> u64 {
        if self.loads_ahead { self.stages } else { 0 }
    }

    /// The scratch memory, made large enough.
    pub(crate) fn for_scratch(&mut self, bytes: u64) -> Allocation {
        let size = if self.loads_ahead { &mut self.behind } else { &mut self.scratch };
        *size = bytes.next_multiple_of(16).max(*size);
        let waits = std::mem::replace(&mut self.used, true) || self.in_loop;
        Allocation { part: Part::Scratch, offset: self.scratch_start(), bytes, waits }
    }

    /// Bytes from a group's memory for reductions to the next one's.
    pub(crate) fn reduce_of_group(&self) -> u64 {
        self.reduce.next_multiple_of(16)
    }

    /// Bytes from a group's scratch memory behind the stages to the next one's.
    pub(crate) fn behind_of_group(&self) -> u64 {
        if self.groups > 1 { self.behind.next_multiple_of(Staged::PANEL_ALIGN) } else { self.behind }
    }

    /// Memory that is laid out at compile time, in bytes.
    pub(crate) fn fixed(&self) -> u64 {
        self.groups * self.reduce_of_group() + self.barriers.next_multiple_of(16)
    }

    /// What may be passed at the launch, in bytes.
    pub(crate) fn dynamic(&self) -> u64 {
        (self.stages + self.groups * self.behind_of_group()).max(self.scratch)
    }

    /// All of it, in bytes.
    pub(crate) fn total(&self) -> u64 {
        self.fixed() + self.dynamic()
    }
}

/// The shared memory of an operation.
pub(super) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let Some(decisions) = seen.decisions() else { return Vec::new() };
    let (scratch, own): (Vec<&Allocation>, Vec<&Allocation>) =
        decisions.allocations.of(op).partition(|allocation| allocation.part == Part::Scratch);
    let mut out = counted(own.iter().map(|a| format!("{} bytes at {} of reductions", a.bytes, a.offset)));
    if let Some(most) = scratch.iter().map(|allocation| allocation.bytes).max() {
        let times =
            if scratch.len() > 1 { format!(" at most, {} times", scratch.len()) } else { String::new() };
        out.push(format!("{most} bytes of scratch{times}"));
    }
    out
}

/// The shared memory of the whole program.
pub(super) fn about(seen: &Seen<'_>) -> Option<String> {
    let lowered = seen.lowered.as_ref()?;
    let Shared { stages, scratch, behind, reduce, barriers, groups, .. } = lowered.shared;
    let each = if groups > 1 { format!(", for each of {groups} groups") } else { String::new() };
    let users = |start: u64| {
        let here = |a: &Allocation| a.part == Part::Scratch && a.offset == start;
        match lowered.decisions.allocations.count(here) {
            1 => format!("of scratch at {start}"),
            uses => format!("of scratch at {start}, {uses} uses one after another"),
        }
    };
    let parts = [
        (stages, "of stages at 0".to_owned()),
        (behind, users(stages) + &each),
        (scratch, users(0)),
        (reduce, format!("of reductions{each}")),
        (barriers, "of mbarriers".to_owned()),
    ];
    let used = parts.into_iter().filter(|(bytes, _)| *bytes > 0);
    let texts: Vec<String> = used.map(|(bytes, what)| format!("{bytes} bytes {what}")).collect();
    Some(format!("shared memory: {}", if texts.is_empty() { "none".to_owned() } else { texts.join("; ") }))
}
