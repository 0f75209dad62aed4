//! Ping-pong: two groups of a block's threads compute an instance each, and take turns for its loop.
//!
//! While one warpgroup computes what follows from its sums and stores that, the other one multiplies. The program is that of one group,
//! with its layouts and numbers of threads; each group has a named barrier, scratch memory and memory for reductions of its own.
//!
//! ```text
//! kernel @matmul(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %z: ptr<f32> align(16)) warps(4) {
//!   %none = const 0 : i32
//!   %end = const 2048 : i32
//!   %step = const 64 : i32
//!   %height = const 128 : i32
//!   %id = program_id 0
//!   %first = map mul %id, %height
//!   %r = range 0 128
//!   %firsts = splat %first [128]
//!   %row = map add %firsts, %r
//!   %rows = expand_dims %row axis 1
//!   %pitch = const 2048 : tile<128x1xi32>
//!   %down = map mul %rows, %pitch
//!   %a = broadcast %down [128, 64]
//!   %cols = expand_dims %r axis 0
//!   %pitch2 = const 2048 : tile<1x128xi32>
//!   %across = map mul %cols, %pitch2
//!   %b = broadcast %across [64, 128]
//!   %d = range 0 64
//!   %zero = const 0.0 : tile<128x128xf32>
//!   %sum = for %k in %none..%end step %step with (%acc = %zero) {
//!     %ks = splat %k [64]
//!     %depth = map add %ks, %d
//!     %left = expand_dims %depth axis 0
//!     %l = broadcast %left [128, 64]
//!     %at_x = map add %a, %l
//!     %u = load %x, %at_x
//!     %right = expand_dims %depth axis 1
//!     %m = broadcast %right [64, 128]
//!     %at_y = map add %b, %m
//!     %v = load %y, %at_y
//!     %next = dot %u, %v, %acc
//!     yield %next
//!   }
//!   %largest = reduce max %sum axis 0
//!   %at = map add %firsts, %r
//!   store %z, %at, %largest
//! }
//! ```
//!
//! ```text
//! // sm_90a: 4 warps, about 144 registers a thread
//! // shared memory: 196608 bytes of stages at 0; 2048 bytes of reductions, for each of 2 groups; 112 bytes of mbarriers
//! kernel @matmul(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %z: ptr<f32> align(16)) warps(4) {
//!   %none = const 0 : i32
//!   %end = const 2048 : i32
//!   %step = const 64 : i32
//!   %height = const 128 : i32
//!   %id = program_id 0
//!   %first = map mul %id, %height
//!   %r = range 0 128
//!   %firsts = splat %first [128]
//!   %row = map add %firsts, %r
//!   %0 = const 2048 : tile<128xi32>
//!   %1 = map mul %row, %0
//!   %down = expand_dims %1 axis 1
//!   %a = broadcast %down [128, 64]
//!   %2 = map mul %r, %0
//!   %across = expand_dims %2 axis 0
//!   %b = broadcast %across [64, 128]
//!   %d = range 0 64
//!   %zero = const 0.0 : tile<128x128xf32>
//!   %sum = for %k in %none..%end step %step with (%acc = %zero) {  // pipeline: 6 stages of 32768 bytes: %u 16384 bytes at 0, %v 16384 bytes at 16384, copied by the tensor memory accelerator
//!                                                                  // pipeline: %next runs on into the next iteration
//!                                                                  // pipeline: a producer warpgroup starts the copies for 2 groups that take turns, an instance each
//!     %ks = splat %k [64]
//!     %depth = map add %ks, %d
//!     %left = expand_dims %depth axis 0
//!     %l = broadcast %left [128, 64]
//!     %at_x = map add %a, %l
//!     %u = load %x, %at_x                                          // pipeline: runs ahead, to shared memory
//!     %right = expand_dims %depth axis 1
//!     %m = broadcast %right [64, 128]
//!     %at_y = map add %b, %m
//!     %v = load %y, %at_y                                          // pipeline: runs ahead, to shared memory
//!     %next = dot %u, %v, %acc
//!     yield %next
//!   }
//!   %largest = reduce max %sum axis 0                              // shared: 2048 bytes at 0 of reductions
//!   store %z, %row, %largest
//! }
//! ```
//!
//! The producer fills the stages for one instance after another, and a group skips those of the other one:
//!
//! ```txt
//! thread 256      threads 0 to 127                       threads 128 to 255
//!
//! copies for 0    multiply for 0
//! copies for 1    %largest of 0, store                   multiply for 1
//! copies for 2    multiply for 2                         %largest of 1, store
//! copies for 3    %largest of 2, store                   multiply for 3
//! ```

use super::roles::BARRIER;
use crate::ptx::ir::Val;
use crate::ptx::lower::Lower;

/// Where the group's scratch memory begins.
pub(in crate::ptx) const SCRATCH: &str = "%scratch";
/// Where its memory for reductions begins.
pub(in crate::ptx) const REDUCTIONS: &str = "%reductions";

/// What two groups take turns by.
pub(in crate::ptx) struct Turns {
    /// Where their mbarriers begin: of each, a phase ends where the other group has multiplied.
    barriers: u64,
    /// The number of the thread's group, which the compiler is told is the same in all of a warp's lanes.
    pub(super) group: Val,
}

impl Lower<'_> {
    /// Tells to which group a thread belongs.
    pub(super) fn divide(&mut self, barriers: u64, thread: &Val) -> Turns {
        let own = self.ir.def(format_args!("lshr i32 {thread}, {}", self.plan.block_bits()));
        self.ir.declare("i32 @llvm.nvvm.shfl.sync.idx.i32(i32, i32, i32, i32) convergent nounwind");
        let group = self
            .ir
            .def(format_args!("call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 {own}, i32 0, i32 31)"));
        Turns { barriers, group }
    }

    /// Defines where the group's memory is, once all is known that it needs, at a mark before all code that uses it.
    pub(super) fn place_memory_of_group(&mut self, mark: usize) {
        let Some(group) = self.group() else { return };
        let mut code = Vec::new();
        let mut place = |name: &str, start: String, bytes: u64| {
            if bytes > 0 {
                code.push(format!("{name}_byte = mul i32 {group}, {bytes}"));
                code.push(format!("{name} = getelementptr i8, ptr addrspace(3) {start}, i32 {name}_byte"));
            }
        };
        let behind = self.shared.stages;
        let stages = format!("getelementptr (i8, ptr addrspace(3) @tilefuse_convert, i64 {behind})");
        place(SCRATCH, stages, self.shared.behind_of_group());
        place(REDUCTIONS, "@tilefuse_reduce".to_owned(), self.shared.reduce_of_group());
        self.ir.insert(mark, &code);
    }

    /// The named barrier of the threads that compute an instance.
    pub(super) fn barrier_of_group(&mut self) -> Val {
        match self.group() {
            Some(group) => self.ir.def(format_args!("add i32 {group}, {BARRIER}")),
            None => BARRIER.to_string().into(),
        }
    }

    /// Waits until the other group has multiplied for the block's instance before.
    pub(in crate::ptx) fn await_turn(&mut self) {
        let Some((barriers, group)) = self.turns() else { return };
        let Some(before) = self.roles.as_ref().map(|roles| roles.before.clone()) else { return };
        let barrier = self.turn_barrier(barriers, &group);
        // Each group has a phase for each two instances. The first one waits for nothing: what has not begun counts as the end of the
        // phase before.
        let last = self.ir.def(format_args!("sub i32 {before}, 1"));
        let phase = self.ir.def(format_args!("lshr i32 {last}, 1"));
        let parity = self.ir.def(format_args!("and i32 {phase}, 1"));
        self.wait_for_phase(&barrier, &parity);
    }

    /// Tells the other group that this one's last product has begun.
    pub(in crate::ptx) fn pass_turn(&mut self) {
        let Some((barriers, group)) = self.turns() else { return };
        let other = self.ir.def(format_args!("xor i32 {group}, 1"));
        let barrier = self.turn_barrier(barriers, &other);
        // Each thread by itself: a loop that does not run brings those of a warp together nowhere.
        self.arrive(&barrier, &"true".into());
    }

    fn turn_barrier(&mut self, barriers: u64, group: &Val) -> Val {
        let byte = self.ir.def(format_args!("mul i32 {group}, 8"));
        self.ir.def(format_args!("add i32 {byte}, {barriers}"))
    }

    fn turns(&self) -> Option<(u64, Val)> {
        let turns = self.roles.as_ref()?.turns.as_ref()?;
        Some((turns.barriers, turns.group.clone()))
    }

    fn group(&self) -> Option<Val> {
        self.turns().map(|(_, group)| group)
    }
}
