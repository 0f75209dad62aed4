//! Warp specialisation: a warpgroup of its own starts the copies of a loop, in blocks that loop over instances.
//!
//! Where one instance fills a multiprocessor, nothing multiplies while it stores its results and the next one fills its
//! stages. So a launch takes as many blocks as run at the same time, each computes one instance after another, and
//! one thread of four further warps, the producer, runs ahead of those that compute, into the next instance: that one's operands are
//! copied while the results of this one are stored.
//!
//! ```text
//! kernel @matmul(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %z: ptr<bf16> align(16)) warps(8) {
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
//!   %c = range 0 256
//!   %cols = expand_dims %c axis 0
//!   %pitch2 = const 2048 : tile<1x256xi32>
//!   %across = map mul %cols, %pitch2
//!   %b = broadcast %across [64, 256]
//!   %d = range 0 64
//!   %zero = const 0.0 : tile<128x256xf32>
//!   %sum = for %k in %none..%end step %step with (%acc = %zero) {
//!     %ks = splat %k [64]
//!     %depth = map add %ks, %d
//!     %left = expand_dims %depth axis 0
//!     %l = broadcast %left [128, 64]
//!     %at_x = map add %a, %l
//!     %u = load %x, %at_x
//!     %right = expand_dims %depth axis 1
//!     %m = broadcast %right [64, 256]
//!     %at_y = map add %b, %m
//!     %v = load %y, %at_y
//!     %next = dot %u, %v, %acc
//!     yield %next
//!   }
//!   %wide = const 256 : tile<128x1xi32>
//!   %start = map mul %rows, %wide
//!   %e = broadcast %start [128, 256]
//!   %f = broadcast %cols [128, 256]
//!   %at = map add %e, %f
//!   %out = cast %sum bf16
//!   store %z, %at, %out
//! }
//! ```
//!
//! ```text
//! // sm_90a: 8 warps, about 144 registers a thread
//! kernel @matmul(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %z: ptr<bf16> align(16)) warps(8) {
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
//!   %c = range 0 256
//!   %cols = expand_dims %c axis 0
//!   %2 = const 2048 : tile<256xi32>
//!   %3 = map mul %c, %2
//!   %across = expand_dims %3 axis 0
//!   %b = broadcast %across [64, 256]
//!   %d = range 0 64
//!   %zero = const 0.0 : tile<128x256xf32>
//!   %sum = for %k in %none..%end step %step with (%acc = %zero) {  // pipeline: 4 stages of 49152 bytes: %u 16384 bytes at 0, %v 32768 bytes at 16384, copied by the tensor memory accelerator
//!                                                                  // pipeline: %next runs on into the next iteration
//!                                                                  // pipeline: a warpgroup of its own starts the copies, and those of the block's next instance
//!     %ks = splat %k [64]
//!     %depth = map add %ks, %d
//!     %left = expand_dims %depth axis 0
//!     %l = broadcast %left [128, 64]
//!     %at_x = map add %a, %l
//!     %u = load %x, %at_x                                          // pipeline: runs ahead, to shared memory
//!     %right = expand_dims %depth axis 1
//!     %m = broadcast %right [64, 256]
//!     %at_y = map add %b, %m
//!     %v = load %y, %at_y                                          // pipeline: runs ahead, to shared memory
//!     %next = dot %u, %v, %acc
//!     yield %next
//!   }
//!   %4 = const 256 : tile<128xi32>
//!   %5 = map mul %row, %4
//!   %start = expand_dims %5 axis 1
//!   %e = broadcast %start [128, 256]
//!   %f = broadcast %cols [128, 256]
//!   %at = map add %e, %f
//!   %out = cast %sum bf16
//!   store %z, %at, %out
//! }
//! ```
//!
//! Threads 0 to 255 are those of the layouts. Stages and phases of mbarriers run on from one instance to the next:
//!
//! ```txt
//! thread 256                                    threads 0 to 255
//!
//! for each instance of the block:               for each instance of the block:
//!   %first = ...                                  %first = ...
//!   for %k in %none..%end step %step:             for %k in %none..%end step %step:
//!     wait until the stage is empty                 wait until the stage is full
//!     start the copies of %u, %v                    multiply
//!     next stage                                    the stage before is empty; next stage
//!                                                 store %z, %at, %out
//! ```

use std::fmt;

use rustc_hash::FxHashSet;
use tilefuse_block::{Op, OpKind, Value};

use super::Target;
use super::assign::Assignment;
use super::ir::Val;
use super::lower::{Loading, Lower};
use super::passes::Seen;
use super::pressure;
use super::software_pipeline::{MAX_STAGES, Pipeline};
use crate::error::Result;
use crate::layout::Layout;

/// Threads of the warpgroup that starts copies; one of them does.
pub(super) const PRODUCERS: u32 = 128;
/// With fewer stages the copies are hardly ahead.
const MIN_STAGES: u64 = 3;
/// Registers of a thread: of the producer's, and of each of 256 others.
const REGISTERS: [u32; 2] = [24, 240];
/// So many registers a thread that computes may hold at a time, with vectors that are loaded before the loop.
const MAX_HELD: u64 = 200;
/// The named barrier of those that compute.
const BARRIER: u32 = 1;
/// The parameter that says how many instances there are, behind all others.
pub(super) const INSTANCES: &str = "%instances";

/// Why the threads of a program that compute start the copies of its loop themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declined {
    Early,
    Axes,
    Effects,
    Loops,
    Written,
    Residents,
    Scalars,
    Condition,
    Warps,
    Shared,
    Room,
}

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Declined::Early => "the program may start before the work before it has ended",
            Declined::Axes => "instances are numbered along several axes",
            Declined::Effects => "instances meet in memory, or print",
            Declined::Loops => "another loop loads ahead as well",
            Declined::Written => "memory is written before the loop",
            Declined::Residents => "operands stay in shared memory",
            Declined::Scalars => "what is loaded follows from memory",
            Declined::Condition => "a condition follows from memory",
            Declined::Warps => "neither four nor eight warps compute",
            Declined::Shared => "a multiprocessor has room for two instances",
            Declined::Room => "fewer than three stages fit beside scratch memory",
        })
    }
}

/// A program whose loop's copies a warpgroup of its own starts.
pub(super) struct Split<'a> {
    op: &'a Op,
    pipeline: Pipeline<'a>,
    /// Scalars before the loop that the producer needs, in order.
    scalars: Vec<&'a Op>,
    /// Operations behind the loop that come before it, in order: loads of vectors, and what they need.
    ahead: Vec<&'a Op>,
    /// The most stages.
    most: u64,
}

impl<'a> Split<'a> {
    /// How the program is split, or why it is not; `None` where no loop copies boxes.
    pub(super) fn of(plan: &Assignment<'a>) -> Option<std::result::Result<Split<'a>, Declined>> {
        let mut loops = Vec::new();
        plan.program.walk(&mut |op| loops.extend(Pipeline::of(plan, op).map(|pipeline| (op, pipeline))));
        let alone = loops.len() == 1;
        let (op, pipeline) = loops.into_iter().find(|(_, pipeline)| !pipeline.boxes.is_empty())?;
        Some(if alone { Split::of_loop(plan, op, pipeline) } else { Err(Declined::Loops) })
    }

    fn of_loop(
        plan: &Assignment<'a>,
        op: &'a Op,
        pipeline: Pipeline<'a>,
    ) -> std::result::Result<Split<'a>, Declined> {
        let program = plan.program;
        if program.early {
            return Err(Declined::Early);
        }
        if !matches!(plan.block_bits(), 7 | 8) || plan.cluster > 0 {
            return Err(Declined::Warps);
        }
        let mut found = None;
        program.walk(&mut |op| found = found.or_else(|| declined(plan, op)));
        found.map_or(Ok(()), Err)?;
        // Loops of boxes are operations of the program's body.
        let before: Vec<&Op> =
            program.body.ops.iter().take_while(|other| !std::ptr::eq(*other, op)).collect();
        if before.iter().any(|op| writes(op)) {
            return Err(Declined::Written);
        }
        if pipeline.resident() > 0 {
            return Err(Declined::Residents);
        }
        if 2 * pipeline.stages(plan.target) * pipeline.stage <= plan.target.max_shared() {
            return Err(Declined::Shared);
        }
        let scalars = scalars(plan, op, &pipeline, &before).ok_or(Declined::Scalars)?;
        let most = pipeline.wanted.map_or(MAX_STAGES, u64::from);
        if most < MIN_STAGES {
            return Err(Declined::Room);
        }
        let ahead = loaded_ahead(plan, op);
        Ok(Split { op, pipeline, scalars, ahead, most })
    }

    /// Stages beside so much other shared memory, if there are enough.
    pub(super) fn stages(&self, target: Target, other: u64) -> Option<u64> {
        let fitting = target.max_shared().saturating_sub(other) / self.pipeline.stage;
        let stages = fitting.min(self.most);
        (stages >= MIN_STAGES).then_some(stages)
    }

    /// Bytes of so many stages.
    pub(super) fn room(&self, stages: u64) -> u64 {
        stages * self.pipeline.stage
    }
}

/// Why an operation does not let its program be split.
fn declined(plan: &Assignment, op: &Op) -> Option<Declined> {
    use OpKind::*;
    let varies = |value: Value| plan.loaded[value.index()];
    match op.kind {
        ProgramId(axis) | NumPrograms(axis) if axis > 0 => Some(Declined::Axes),
        Atomic { .. } | AtomicCas { .. } | Print { .. } | Assert { .. } => Some(Declined::Effects),
        If if varies(op.args[0]) => Some(Declined::Condition),
        While => Some(Declined::Condition),
        _ => None,
    }
}

fn writes(op: &Op) -> bool {
    op.kind.writes() || op.regions.iter().any(|region| region.ops.iter().any(writes))
}

/// The operations before a loop that its bounds and the coordinates of its boxes follow from, if nothing but the instance's number and
/// the program's arguments do.
fn scalars<'a>(
    plan: &Assignment<'a>,
    op: &'a Op,
    pipeline: &Pipeline<'a>,
    before: &[&'a Op],
) -> Option<Vec<&'a Op>> {
    let within: FxHashSet<Value> =
        pipeline.scalars.iter().flat_map(|op| op.results.iter().copied()).collect();
    let of_body = pipeline.scalars.iter().flat_map(|op| op.args.iter().copied());
    let of_boxes = pipeline.boxes.iter().flat_map(|boxes| boxes.scalars());
    let mut open: Vec<Value> = op.args[..3].iter().copied().chain(of_body).chain(of_boxes).collect();
    let mut needed: FxHashSet<Value> = FxHashSet::default();
    while let Some(value) = open.pop() {
        // The induction variable and arguments of the program are there.
        let Some(def) = plan.defs[value.index()] else { continue };
        if within.contains(&value) || !needed.insert(value) {
            continue;
        }
        let known = matches!(
            def.kind,
            OpKind::ProgramId(_)
                | OpKind::NumPrograms(_)
                | OpKind::Const(_)
                | OpKind::Map(_)
                | OpKind::Cast(_)
                | OpKind::Bitcast(_)
                | OpKind::Assume(_)
        );
        if !known || plan.program.ty(value).rank() > 0 || !before.iter().any(|op| std::ptr::eq(*op, def)) {
            return None;
        }
        open.extend(def.args.iter().copied());
    }
    Some(before.iter().filter(|op| op.results.iter().any(|r| needed.contains(r))).copied().collect())
}

/// Loads of vectors behind a loop that do not depend on it, so that they can come before it, with the operations that they need: as many
/// as registers have room for. Pointers that the program writes are left out.
fn loaded_ahead<'a>(plan: &Assignment<'a>, op: &'a Op) -> Vec<&'a Op> {
    let program = plan.program;
    let behind: Vec<&Op> =
        program.body.ops.iter().skip_while(|other| !std::ptr::eq(*other, op)).skip(1).collect();
    let mut written: FxHashSet<Value> = FxHashSet::default();
    program.walk(&mut |op| written.extend(op.args.first().filter(|_| op.kind.writes())));
    let vector = |op: &Op| {
        let load = matches!(op.kind, OpKind::Load { .. }) && !written.contains(&op.args[0]);
        load && program.ty(op.results[0]).rank() == 1
    };
    let mut held = pressure::registers(plan);
    let mut chosen: FxHashSet<*const Op> = FxHashSet::default();
    for load in behind.iter().filter(|op| vector(op)) {
        let bytes = program.ty(load.results[0]).elem().map_or(8, |elem| u64::from(elem.bytes()));
        let registers = (plan.access(load).num_regs() as u64 * bytes).div_ceil(4);
        let Some(needed) = needed(plan, &behind, load) else { continue };
        if held + registers <= MAX_HELD {
            held += registers;
            chosen.extend(needed);
        }
    }
    behind.into_iter().filter(|op| chosen.contains(&std::ptr::from_ref(*op))).collect()
}

/// An operation and those behind the loop that it needs, if they need nothing of the loop.
fn needed(plan: &Assignment, behind: &[&Op], load: &Op) -> Option<Vec<*const Op>> {
    let mut open: Vec<&Op> = vec![load];
    let mut needed = Vec::new();
    while let Some(op) = open.pop() {
        if needed.contains(&std::ptr::from_ref(op)) {
            continue;
        }
        needed.push(std::ptr::from_ref(op));
        for def in op.args.iter().filter_map(|arg| plan.defs[arg.index()]) {
            if def.kind == OpKind::For || !def.regions.is_empty() {
                return None;
            }
            if behind.iter().any(|other| std::ptr::eq(*other, def)) {
                if !def.kind.is_pure() {
                    return None;
                }
                open.push(def);
            }
        }
    }
    Some(needed)
}

/// What the threads of a split program share while it is lowered.
pub(crate) struct Roles {
    pub(super) stages: u64,
    /// Where the mbarriers of stages begin that have been filled, and of those that have been read.
    pub(super) full: u64,
    empty: u64,
    /// The number of the instance.
    pub(super) instance: Val,
    /// The stage that comes next, and the parity of its phase.
    pub(super) stage: Val,
    pub(super) parity: Val,
}

impl<'a> Lower<'a> {
    /// The code of a program that is split.
    pub(super) fn split_program(&mut self, split: &Split<'a>, stages: u64) -> Result<()> {
        let threads = 1u32 << self.plan.block_bits();
        let [full, empty] = [(); 2].map(|()| self.shared.for_barriers(stages));
        self.shared.enter_stages();
        self.shared.enter_loop();
        self.ir.declare("i32 @llvm.nvvm.read.ptx.sreg.tid.x()");
        let thread = self.ir.def(thread_index(threads + PRODUCERS));
        let first = self.ir.def(format_args!("icmp eq i32 {thread}, 0"));
        self.init_mbarriers(&first, &[(full, stages, 1), (empty, stages, threads / 32)]);
        self.fence_async_proxy();
        self.block_barrier();
        let blocks = self.ir.intrinsic("llvm.nvvm.read.ptx.sreg.nctaid.x", "i32", &[]);
        let block = self.ir.intrinsic("llvm.nvvm.read.ptx.sreg.ctaid.x", "i32", &[]);
        let produces = self.ir.def(format_args!("icmp uge i32 {thread}, {threads}"));
        self.ir.raw(format_args!("br i1 {produces}, label %producer, label %consumer"));

        self.ir.begin("producer");
        self.set_registers("dec", REGISTERS[0]);
        let one = self.ir.def(format_args!("icmp eq i32 {thread}, {threads}"));
        self.ir.raw(format_args!("br i1 {one}, label %copies, label %idle"));
        self.ir.begin("idle");
        self.ir.raw("ret void");
        self.ir.begin("copies");
        let zero: Val = "0".into();
        let roles =
            Roles { stages, full, empty, instance: zero.clone(), stage: zero.clone(), parity: zero.clone() };
        self.roles = Some(roles);
        self.apart(|lower| lower.over_instances("copied", (&block, &blocks), |lower| lower.produce(split)))?;

        self.ir.begin("consumer");
        self.set_registers("inc", REGISTERS[1]);
        if let Some(roles) = &mut self.roles {
            (roles.stage, roles.parity) = (zero.clone(), zero);
        }
        self.over_instances("computed", (&block, &blocks), |lower| {
            lower.ir.raw(format_args!("%tid = {}", thread_index(threads)));
            lower.ir.enter();
            lower.compute_instance(split)
        })
    }

    /// Computes an instance.
    fn compute_instance(&mut self, split: &Split<'a>) -> Result<()> {
        let is_ahead = |op: &Op| split.ahead.iter().any(|other| std::ptr::eq(*other, op));
        for op in &self.plan.program.body.ops {
            if std::ptr::eq(op, split.op) {
                split.ahead.iter().try_for_each(|op| self.op(op))?;
            }
            if !is_ahead(op) {
                self.op(op)?;
            }
        }
        Ok(())
    }

    /// Changes the number of registers of the threads of a warpgroup, where those of a block could not all have as many as code may use.
    fn set_registers(&mut self, how: &str, count: u32) {
        if self.plan.block_bits() < 8 {
            return;
        }
        self.ir
            .declare(&format!("void @llvm.nvvm.setmaxnreg.{how}.sync.aligned.u32(i32) convergent nounwind"));
        self.ir.raw(format_args!("call void @llvm.nvvm.setmaxnreg.{how}.sync.aligned.u32(i32 {count})"));
    }

    /// Code for each instance of the block, one after another; then the thread ends.
    fn over_instances(
        &mut self,
        label: &str,
        (block, blocks): (&Val, &Val),
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let before = self.ir.block().to_owned();
        let [instance, stage, parity] = [(); 3].map(|()| self.ir.fresh());
        self.ir.raw(format_args!("br label %all_{label}"));
        self.ir.begin(&format!("all_{label}"));
        let marker = self.ir.mark();
        let more = self.ir.def(format_args!("icmp ult i32 {instance}, {INSTANCES}"));
        self.ir.raw(format_args!("br i1 {more}, label %one_{label}, label %end_{label}"));
        self.ir.begin(&format!("one_{label}"));
        if let Some(roles) = &mut self.roles {
            (roles.instance, roles.stage, roles.parity) = (instance.clone(), stage.clone(), parity.clone());
        }
        body(self)?;
        let next = self.ir.def(format_args!("add i32 {instance}, {blocks}"));
        let last = self.ir.block().to_owned();
        self.ir.raw(format_args!("br label %all_{label}, !llvm.loop !0"));
        let roles = self.roles.as_ref().map(|roles| (roles.stage.clone(), roles.parity.clone()));
        let (next_stage, next_parity) = roles.unwrap_or_default();
        let phi = |name: &Val, from: &str, next: &Val| {
            format!("{name} = phi i32 [ {from}, %{before} ], [ {next}, %{last} ]")
        };
        let phis =
            [phi(&instance, block, &next), phi(&stage, "0", &next_stage), phi(&parity, "0", &next_parity)];
        self.ir.insert(marker, &phis);
        self.ir.begin(&format!("end_{label}"));
        self.ir.raw("ret void");
        Ok(())
    }

    /// Starts the copies of an instance's loop, each iteration's where its stage is free.
    fn produce(&mut self, split: &Split<'a>) -> Result<()> {
        let Split { op, pipeline, scalars, .. } = split;
        scalars.iter().try_for_each(|op| self.op(op))?;
        let [lo, hi, step] = [self.scalar(op.args[0])?, self.scalar(op.args[1])?, self.scalar(op.args[2])?];
        let [lo, hi, step] = [lo, hi, step].map(|v| self.ir.def(format_args!("sext i32 {v} to i64")));
        let [index, stage, parity, next_stage, next_parity] = [(); 5].map(|()| self.ir.fresh());
        let Some(&Roles { stages, full, empty, .. }) = self.roles.as_ref() else { return Ok(()) };
        let before = self.ir.block().to_owned();
        self.ir.raw("br label %head_of_copies");
        self.ir.begin("head_of_copies");
        let marker = self.ir.mark();
        let runs = self.ir.def(format_args!("icmp slt i64 {index}, {hi}"));
        self.ir.raw(format_args!("br i1 {runs}, label %copy, label %all_started"));
        self.ir.begin("copy");
        let narrow = self.ir.def(format_args!("trunc i64 {index} to i32"));
        self.hold(op.regions[0].args[0], Layout::scalar(self.plan.warps), vec![narrow]);
        pipeline.scalars.iter().try_for_each(|op| self.op(op))?;
        let barrier = self.stage_barrier(pipeline, empty, &stage);
        // The first round finds every stage free: what has not begun counts as the end of the phase before.
        let ended = self.ir.def(format_args!("xor i32 {parity}, 1"));
        self.wait_for_phase(&barrier, &ended);
        let barrier = self.stage_barrier(pipeline, full, &stage);
        let loads = pipeline.placed(self, &stage);
        self.copy_boxes(&loads, &barrier)?;
        let wraps = self.next_stage((pipeline.stage, stages), &stage, &next_stage);
        self.next_parity(&wraps, &parity, &next_parity);
        let next = self.ir.def(format_args!("add nsw i64 {index}, {step}"));
        let last = self.ir.block().to_owned();
        self.ir.raw("br label %head_of_copies, !llvm.loop !0");
        let Some(roles) = &mut self.roles else { return Ok(()) };
        let phi = |name: &Val, ty: &str, from: &Val, next: &Val| {
            format!("{name} = phi {ty} [ {from}, %{before} ], [ {next}, %{last} ]")
        };
        let phis = [
            phi(&index, "i64", &lo, &next),
            phi(&stage, "i32", &roles.stage, &next_stage),
            phi(&parity, "i32", &roles.parity, &next_parity),
        ];
        (roles.stage, roles.parity) = (stage, parity);
        self.ir.insert(marker, &phis);
        self.ir.begin("all_started");
        Ok(())
    }

    /// Tells the producer that the warps of this thread have read a stage, where a condition holds.
    pub(super) fn release_stage(&mut self, pipeline: &Pipeline<'_>, stage: &Val, condition: Option<&Val>) {
        let Some(&Roles { empty, .. }) = self.roles.as_ref() else { return };
        let lane = self.threads_zero(31);
        let arrives = match condition {
            Some(condition) => self.ir.def(format_args!("and i1 {lane}, {condition}")),
            None => lane,
        };
        let barrier = self.stage_barrier(pipeline, empty, stage);
        self.arrive(&barrier, &arrives);
    }

    /// Waits for all threads that compute.
    pub(super) fn consumer_barrier(&mut self) {
        let threads = 1u32 << self.plan.block_bits();
        self.ir.declare("void @llvm.nvvm.barrier.cta.sync.aligned.count(i32, i32) convergent nounwind");
        self.ir.raw(format_args!(
            "call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 {BARRIER}, i32 {threads})"
        ));
    }
}

/// The thread's number in its block, of so many.
fn thread_index(threads: u32) -> String {
    format!("call range(i32 0, {threads}) i32 @llvm.nvvm.read.ptx.sreg.tid.x()")
}

/// Of a loop of boxes, who starts their copies, or why those do that compute; of a load, that it comes before the loop.
pub(super) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let Some(split) = Split::of(seen.plan) else { return Vec::new() };
    let of_loop = Pipeline::of(seen.plan, op).is_some_and(|pipeline| !pipeline.boxes.is_empty());
    let apart = seen.lowered.as_ref().is_some_and(|lowered| matches!(lowered.loading, Loading::Apart(_)));
    let is_ahead = |split: &Split<'_>| split.ahead.iter().any(|other| std::ptr::eq(*other, op));
    if matches!(op.kind, OpKind::Load { .. }) && apart && split.as_ref().is_ok_and(is_ahead) {
        return vec!["is loaded before the loop".to_owned()];
    }
    let note = match split {
        Err(why) => format!("no warpgroup of its own starts the copies: {why}"),
        Ok(_) if !apart => format!("no warpgroup of its own starts the copies: {}", Declined::Room),
        Ok(_) => {
            "a warpgroup of its own starts the copies, and those of the block's next instance".to_owned()
        }
    };
    if of_loop { vec![note] } else { Vec::new() }
}

#[cfg(test)]
mod tests;
