//! Warp specialisation: a producer warpgroup starts the copies of a loop, in persistent blocks, which loop over instances.
//!
//! Where one instance fills a multiprocessor, nothing multiplies while it stores its results and the next one fills its
//! stages. So a launch takes as many blocks as run at the same time, each computes one instance after another, and
//! one thread of four further warps, the producer, runs ahead of those that compute, into the next instance: that one's operands are
//! copied while the results of this one are stored.
//!
//! The operands of each of an iteration's products arrive by themselves, and are overwritten as soon as that product has read them.
//! Several loops have their stages in the same memory. Where the number of iterations follows from the instance's, as below the diagonal
//! of attention, each block computes one instance, so that they are spread evenly.
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
//!                                                                  // pipeline: a producer warpgroup starts the copies, and those of the block's next instance
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
//!
//! Where four warps compute an instance, two groups of them do, in turn (`ping_pong.rs`).

pub(super) mod ping_pong;
mod roles;
#[cfg(test)]
mod tests;

use std::fmt;

use rustc_hash::FxHashSet;
use tilefuse_block::{Op, OpKind, Value};

use super::Target;
use super::assign::Assignment;
use super::lower::Loading;
use super::passes::Seen;
use super::pressure;
use super::software_pipeline::{MAX_STAGES, Pipeline};
pub(super) use roles::Roles;

/// Threads of the warpgroup that starts copies; one of them does.
pub(super) const PRODUCERS: u32 = 128;
/// With fewer stages the copies are hardly ahead; where several products of an iteration free their operands one after another, two
/// are enough.
const MIN_STAGES: u64 = 3;
const MIN_STAGES_OF_SEVERAL: u64 = 2;
/// So many registers a thread that computes may hold at a time, with vectors that are loaded before the loop.
const MAX_HELD: u64 = 200;
/// So many registers the threads of eight warps may need for tiles beside a producer: of the 240 that they get, without those of
/// addresses.
const MAX_COMPUTING: u64 = 224;
/// Groups of four warps that compute: two that take turns, or one.
const GROUPS: [u32; 2] = [2, 1];
/// Registers of a multiprocessor, and those of a thread that tiles do not take.
const REGISTERS: u64 = 65536;
const OTHER_REGISTERS: u64 = 16;
/// The parameters that say how many instances there are along each axis, behind all others.
pub(super) const INSTANCES: [&str; 3] = ["%instances", "%instances_y", "%instances_z"];

/// Why the threads of a program that compute start the copies of its loop themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declined {
    Effects,
    Loops,
    Branch,
    Written,
    Scalars,
    Uneven,
    Condition,
    Warps,
    Registers,
    Shared,
    Room,
}

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Declined::Effects => "instances meet in memory, or print",
            Declined::Loops => "another loop loads other operands ahead",
            Declined::Branch => "the loop runs in some instances alone",
            Declined::Written => "memory is written before the loop",
            Declined::Scalars => "what is loaded follows from memory",
            Declined::Uneven => "some instances take longer than others, and are spread evenly as they come",
            Declined::Condition => "a condition follows from memory",
            Declined::Warps => "neither four nor eight warps compute",
            Declined::Registers => {
                "the threads that compute need more registers than are left beside a producer"
            }
            Declined::Shared => "a multiprocessor has room for several instances",
            Declined::Room => "too few stages fit beside scratch memory",
        })
    }
}

/// A program whose loops' copies a producer warpgroup starts.
pub(super) struct Specialized<'a> {
    /// One after another, with stages in the same memory.
    loops: Vec<(&'a Op, Pipeline<'a>)>,
    /// Scalars before the loops that the producer needs, in order.
    scalars: Vec<&'a Op>,
    /// Operations behind the last loop that come before it, in order: loads of vectors, and what they need.
    ahead: Vec<&'a Op>,
    /// How many groups of threads may compute an instance each, the best number first.
    pub(super) groups: &'static [u32],
    /// Bytes of a stage, and of the operands that stay behind the stages.
    stage: u64,
    resident: u64,
    /// Products of an iteration.
    products: u64,
    /// The fewest stages, and the most of an instance.
    least: u64,
    most: u64,
    /// Whether a block computes one instance after another.
    pub(super) persistent: bool,
}

/// How a block of a specialised program is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    pub(super) stages: u64,
    /// Groups of threads that compute an instance each.
    pub(super) groups: u32,
}

impl<'a> Specialized<'a> {
    /// How the program is specialised, or why it is not; `None` where no loop copies boxes.
    pub(super) fn of(plan: &Assignment<'a>) -> Option<std::result::Result<Specialized<'a>, Declined>> {
        let mut loops = Vec::new();
        plan.program.walk(&mut |op| loops.extend(Pipeline::of(plan, op).map(|pipeline| (op, pipeline))));
        let (_, first) = loops.iter().find(|(_, pipeline)| !pipeline.boxes.is_empty())?;
        let alike = loops.iter().all(|(_, pipeline)| pipeline.shares_stages(first));
        Some(if alike { Specialized::of_loops(plan, loops) } else { Err(Declined::Loops) })
    }

    fn of_loops(
        plan: &Assignment<'a>,
        loops: Vec<(&'a Op, Pipeline<'a>)>,
    ) -> std::result::Result<Specialized<'a>, Declined> {
        let program = plan.program;
        let Some((op, pipeline)) = loops.last() else { return Err(Declined::Loops) };
        let (op, several) = (*op, pipeline.products.len() > 1);
        if !matches!(plan.block_bits(), 7 | 8) || plan.cluster > 0 {
            return Err(Declined::Warps);
        }
        let mut found = None;
        program.walk(&mut |op| found = found.or_else(|| declined(plan, op)));
        found.map_or(Ok(()), Err)?;
        if !loops.iter().all(|(op, _)| program.body.ops.iter().any(|other| std::ptr::eq(other, *op))) {
            return Err(Declined::Branch);
        }
        let before: Vec<&Op> =
            program.body.ops.iter().take_while(|other| !std::ptr::eq(*other, op)).collect();
        if before.iter().any(|op| writes(op)) {
            return Err(Declined::Written);
        }
        let scalars = scalars(plan, &loops, &before).ok_or(Declined::Scalars)?;
        // Blocks of an instance each are spread evenly as they come; there the producer saves the threads that compute waiting for each
        // other, as one product that runs into the next iteration hardly needs.
        let persistent = !loops.iter().any(|(op, _)| op.args[..3].iter().any(|&bound| varies(plan, bound)));
        if !persistent && !several {
            return Err(Declined::Uneven);
        }
        let groups = groups(plan, &loops, pipeline)?;
        let most = pipeline.wanted.map_or(MAX_STAGES, u64::from);
        let least = if several { MIN_STAGES_OF_SEVERAL } else { MIN_STAGES };
        if most < least {
            return Err(Declined::Room);
        }
        let ahead = if loops.len() == 1 { loaded_ahead(plan, op) } else { Vec::new() };
        let (stage, products) = (pipeline.stage, pipeline.products.len() as u64);
        let resident = loops.iter().map(|(_, pipeline)| pipeline.resident()).max().unwrap_or(0);
        Ok(Specialized { loops, scalars, ahead, groups, stage, resident, products, least, most, persistent })
    }

    /// The division among so many groups beside so much other shared memory, if that leaves enough stages.
    pub(super) fn division(&self, target: Target, groups: u32, other: u64) -> Option<Division> {
        let fitting = target.max_shared().saturating_sub(other + self.resident) / self.stage;
        let stages = fitting.min(self.most * u64::from(groups));
        (stages >= self.least).then_some(Division { stages, groups })
    }

    /// Bytes of so many stages, and of the operands behind them.
    pub(super) fn room(&self, stages: u64) -> u64 {
        stages * self.stage + self.resident
    }
}

/// How many groups of threads may compute an instance each.
///
/// Two of four warps take the place of two blocks, where a multiprocessor has no room for a third one. They take turns for a loop that only
/// adds to sums; loops of several products, and several loops, have other threads to compute beside.
fn groups(
    plan: &Assignment,
    loops: &[(&Op, Pipeline)],
    pipeline: &Pipeline,
) -> std::result::Result<&'static [u32], Declined> {
    let shared = pipeline.stages(plan.target) * pipeline.stage + pipeline.resident();
    let registers = (pressure::registers(plan) + OTHER_REGISTERS) << plan.block_bits();
    let room = (plan.target.max_shared() / shared).min(REGISTERS / registers);
    let fits = pressure::registers(plan) <= MAX_COMPUTING;
    let in_turn = fits && loops.len() == 1 && pipeline.overlapping.is_some();
    match (plan.block_bits(), room) {
        (7, 2) if in_turn => Ok(&GROUPS[..1]),
        (_, 2..) => Err(Declined::Shared),
        (7, _) if in_turn => Ok(&GROUPS),
        (7, _) => Ok(&GROUPS[1..]),
        _ if fits => Ok(&GROUPS[1..]),
        _ => Err(Declined::Registers),
    }
}

/// Why an operation does not let its program be specialised.
fn declined(plan: &Assignment, op: &Op) -> Option<Declined> {
    use OpKind::*;
    let varies = |value: Value| plan.loaded[value.index()];
    match op.kind {
        Atomic { .. } | AtomicCas { .. } | Print { .. } | Assert { .. } => Some(Declined::Effects),
        If if varies(op.args[0]) => Some(Declined::Condition),
        While => Some(Declined::Condition),
        _ => None,
    }
}

/// Whether a scalar follows from the number of the instance.
fn varies(plan: &Assignment, value: Value) -> bool {
    let (mut open, mut seen) = (vec![value], FxHashSet::default());
    while let Some(value) = open.pop() {
        let Some(def) = plan.defs[value.index()].filter(|_| seen.insert(value)) else { continue };
        if matches!(def.kind, OpKind::ProgramId(_)) {
            return true;
        }
        open.extend(def.args.iter().copied());
    }
    false
}

fn writes(op: &Op) -> bool {
    op.kind.writes() || op.regions.iter().any(|region| region.ops.iter().any(writes))
}

/// The operations before loops that their bounds and the coordinates of their boxes follow from, if nothing but the instance's number
/// and the program's arguments do.
fn scalars<'a>(
    plan: &Assignment<'a>,
    loops: &[(&'a Op, Pipeline<'a>)],
    before: &[&'a Op],
) -> Option<Vec<&'a Op>> {
    let mut within: FxHashSet<Value> = FxHashSet::default();
    let mut open: Vec<Value> = Vec::new();
    for (op, pipeline) in loops {
        within.extend(pipeline.scalars.iter().flat_map(|op| op.results.iter().copied()));
        open.extend(&op.args[..3]);
        open.extend(pipeline.scalars.iter().flat_map(|op| op.args.iter().copied()));
        open.extend(pipeline.boxes.iter().flat_map(|boxes| boxes.scalars()));
    }
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

/// Of a loop of boxes, who starts their copies, or why those do that compute; of a load, that it comes before the loop.
pub(super) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let Some(specialized) = Specialized::of(seen.plan) else { return Vec::new() };
    let of_loop = Pipeline::of(seen.plan, op).is_some_and(|pipeline| !pipeline.boxes.is_empty());
    let loading = seen.lowered.as_ref().map(|lowered| lowered.loading);
    let runs = matches!(loading, Some(Loading::Specialized(_)));
    let groups = loading.map_or(1, Loading::groups);
    let is_ahead =
        |specialized: &Specialized<'_>| specialized.ahead.iter().any(|other| std::ptr::eq(*other, op));
    if matches!(op.kind, OpKind::Load { .. }) && runs && specialized.as_ref().is_ok_and(is_ahead) {
        return vec!["is loaded before the loop".to_owned()];
    }
    let note = match specialized {
        Err(why) => format!("no producer warpgroup starts the copies: {why}"),
        Ok(_) if !runs => format!("no producer warpgroup starts the copies: {}", Declined::Room),
        Ok(_) if groups > 1 => {
            format!(
                "a producer warpgroup starts the copies for {groups} groups that take turns, an instance each"
            )
        }
        Ok(of) if of.persistent => {
            "a producer warpgroup starts the copies, and those of the block's next instance".to_owned()
        }
        Ok(_) => "a producer warpgroup starts the copies".to_owned(),
    };
    if of_loop { vec![note] } else { Vec::new() }
}
