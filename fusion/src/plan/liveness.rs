//! How long each value of a plan is needed, and in which memory it lies so long.

use rustc_hash::{FxHashMap, FxHashSet};

use super::ir::OuterLoop;
use super::ir::{KernelStep, Plan, Step, StepKind};
use super::memory::{Life, Memory, place};
use super::reinplace::direct;
use crate::graph::{Graph, Op, ValueRef};
use crate::place::Place;

/// A piece of memory, and the values that lie in it one after the other.
#[derive(Clone, Debug)]
struct Home {
    values: Vec<ValueRef>,
    bytes: u64,
    /// The step that writes the first value.
    first: usize,
    /// The last step that needs the last value; the number of steps if a call returns it.
    last: usize,
    /// Whether a libtorch call allocates it.
    library: bool,
    /// Whether it, or a part of it, is returned.
    kept: bool,
}

/// Gives every value of the plan memory, with as few tensors as possible.
pub(super) fn finish(mut plan: Plan) -> Plan {
    let homes = homes(&plan);
    assign(&mut plan, &homes, u64::MAX);
    plan
}

impl Plan {
    /// The most bytes that a call holds at a time: the arena, tensors of its own, and results of libtorch calls.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes_with_copies(0)
    }

    /// [`peak_bytes`](Self::peak_bytes) where the caller gets copies of results, of so many bytes, at the end.
    pub fn peak_bytes_with_copies(&self, bytes: u64) -> u64 {
        let (held, left) = held_bytes(self);
        held.into_iter().fold(self.memory.bytes + left + bytes, u64::max)
    }

    /// The bytes that a call holds while each step runs: the arena, results, and results of libtorch calls.
    pub fn held_bytes(&self) -> Vec<u64> {
        held_bytes(self).0
    }

    /// Keeps [`peak_bytes`](Self::peak_bytes) down to `most`, if that is possible, or as near to it as is: moves
    /// intermediates from the arena, which a call holds from end to end, to tensors that it allocates and frees, the
    /// largest first and no more of them than necessary.
    pub fn limit_memory(&mut self, most: u64) {
        if self.peak_bytes() <= most {
            return;
        }
        let homes = homes(self);
        assign(self, &homes, u64::MAX);
        let mut best = (self.peak_bytes(), u64::MAX);
        let mut sizes: Vec<u64> = homes.iter().filter(|h| !h.library && !h.kept).map(|h| h.bytes).collect();
        sizes.sort_unstable_by_key(|&bytes| std::cmp::Reverse(bytes));
        sizes.dedup();
        for largest in sizes {
            assign(self, &homes, largest);
            let peak = self.peak_bytes();
            if peak < best.0 {
                best = (peak, largest);
            }
            if peak <= most {
                return;
            }
        }
        assign(self, &homes, best.1);
    }

    /// Whether [`peak_bytes`](Self::peak_bytes) is at most this, where it is kept down to it.
    pub(super) fn holds_at_most(mut self, bytes: u64) -> bool {
        self.limit_memory(bytes);
        self.peak_bytes() <= bytes
    }
}

/// See [`Plan::held_bytes`]; and what is left outside of the arena at the end.
fn held_bytes(plan: &Plan) -> (Vec<u64>, u64) {
    let graph = &plan.graph;
    let bytes = |values: &[ValueRef]| values.iter().map(|&v| graph.ty(v).bytes()).sum::<u64>();
    let mut now = 0;
    let held = plan.steps.iter().map(|step| {
        now += bytes(&step.takes);
        if let StepKind::Extern(call) = &step.kind {
            now += graph.node(call.node).outs.iter().map(|t| t.bytes()).sum::<u64>();
        }
        let held = plan.memory.bytes + now;
        now -= bytes(&step.frees);
        held
    });
    let held = held.collect();
    (held, now)
}

/// The last step that reads or writes each value; the number of steps for what the results are made of.
pub(super) fn last_uses(plan: &Plan, kept: &FxHashSet<ValueRef>) -> FxHashMap<ValueRef, usize> {
    let mut last: FxHashMap<ValueRef, usize> = FxHashMap::default();
    for (at, step) in plan.steps.iter().enumerate() {
        match &step.kind {
            StepKind::Kernel(k) => last.extend(k.buffers.iter().map(|&(v, _)| (v, at))),
            StepKind::Extern(e) => last.extend(e.operands.iter().map(|p| (p.base(), at))),
        }
    }
    let written_back = plan.updates.iter().map(|(_, place)| place.base());
    last.extend(kept.iter().copied().chain(written_back).map(|value| (value, plan.steps.len())));
    last
}

/// The steps that run together with one, block by block, and need all their memory at the same time.
fn together(plan: &Plan, at: usize) -> (usize, usize) {
    let outer_loop = plan.outer_loops.iter().find(|outer_loop| outer_loop.steps.contains(&at));
    outer_loop.map_or((at, at), |outer_loop| (outer_loop.steps.start, outer_loop.steps.end - 1))
}

fn homes(plan: &Plan) -> Vec<Home> {
    let kept: FxHashSet<ValueRef> = plan.outputs.iter().map(Place::base).collect();
    let last = last_uses(plan, &kept);
    let in_blocks: FxHashSet<ValueRef> = plan
        .outer_loops
        .iter()
        .flat_map(|outer_loop| &outer_loop.local_buffers)
        .map(|own| own.value)
        .collect();
    let written_back: FxHashSet<ValueRef> = direct(plan).map(|(value, _)| value).collect();
    let mut homes: Vec<Home> = Vec::new();
    let mut home_of: FxHashMap<ValueRef, usize> = FxHashMap::default();
    for (at, step) in plan.steps.iter().enumerate() {
        for value in written(&plan.graph, &step.kind) {
            if written_back.contains(&value) || in_blocks.contains(&value) {
                continue;
            }
            let until = together(plan, last.get(&value).copied().unwrap_or(at)).1;
            let kernel = match &step.kind {
                StepKind::Kernel(kernel) => Some(kernel),
                StepKind::Extern(_) => None,
            };
            let reused = kernel.and_then(|k| dying(k, value, at, &homes, &home_of));
            let home = reused.unwrap_or(homes.len());
            if reused.is_none() {
                let (bytes, library) = (plan.graph.ty(value).bytes(), kernel.is_none());
                let first = together(plan, at).0;
                homes.push(Home { values: Vec::new(), bytes, first, last: until, library, kept: false });
            }
            let place = &mut homes[home];
            place.values.push(value);
            place.last = until;
            place.kept |= kept.contains(&value);
            home_of.insert(value, home);
        }
    }
    homes
}

pub(super) fn written(graph: &Graph, kind: &StepKind) -> Vec<ValueRef> {
    match kind {
        StepKind::Kernel(k) => k.buffers.iter().filter(|b| b.1).map(|b| b.0).collect(),
        StepKind::Extern(e) => graph.results(e.node).collect(),
    }
}

/// The memory of a value that this kernel is the last to need, and in place of which it may write another; a result
/// of libtorch first, which does not lie in the arena.
fn dying(
    kernel: &KernelStep,
    written: ValueRef,
    at: usize,
    homes: &[Home],
    home_of: &FxHashMap<ValueRef, usize>,
) -> Option<usize> {
    let free = |&(read, target): &(ValueRef, ValueRef)| {
        let home = *home_of.get(&read).filter(|_| target == written)?;
        let ends = homes[home].last == at && homes[home].values.last() == Some(&read);
        ends.then_some(home)
    };
    kernel.in_place.iter().filter_map(free).max_by_key(|&home| homes[home].library)
}

/// Places everything: intermediates of at least `large` bytes get tensors of their own, others lie in the arena.
fn assign(plan: &mut Plan, homes: &[Home], large: u64) {
    let end = plan.steps.len();
    let first_direct = first_direct(plan);
    let mut memory = Memory::default();
    let mut arena: Vec<&Home> = Vec::new();
    for step in &mut plan.steps {
        step.takes.clear();
        step.frees.clear();
    }
    for home in homes {
        let Some((&root, others)) = home.values.split_first() else { continue };
        if !home.library && !home.kept && home.bytes < large {
            arena.push(home);
            continue;
        }
        memory.over.extend(others.iter().map(|&value| (value, root)));
        if !home.library {
            memory.own.push(root);
            plan.steps[home.first.min(first_direct)].takes.push(root);
        }
        if !home.kept && home.last < end {
            plan.steps[home.last].frees.push(root);
        }
    }
    let life = |home: &&Home| Life { bytes: home.bytes, first: home.first, last: home.last };
    let blocks =
        |c: &OuterLoop| Life { bytes: c.bytes(), first: c.steps.start, last: c.steps.end.saturating_sub(1) };
    let lives: Vec<Life> = arena.iter().map(life).chain(plan.outer_loops.iter().map(blocks)).collect();
    let (bytes, offsets) = place(&lives);
    memory.bytes = bytes;
    for (outer_loop, &offset) in plan.outer_loops.iter_mut().zip(offsets.iter().skip(arena.len())) {
        outer_loop.at = offset;
    }
    for (home, offset) in arena.iter().zip(offsets) {
        memory.offsets.extend(home.values.iter().map(|&value| (value, offset)));
    }
    memory.own.extend(hollow_values(plan));
    memory.over.extend(direct(plan));
    plan.memory = memory;
}

/// The first step that writes over a tensor of the caller's: what is allocated is allocated by then, so that no
/// failure comes after it.
fn first_direct(plan: &Plan) -> usize {
    let values: FxHashSet<ValueRef> = direct(plan).map(|(value, _)| value).collect();
    let writes = |step: &Step| written(&plan.graph, &step.kind).iter().any(|value| values.contains(value));
    plan.steps.iter().position(writes).map_or(plan.steps.len(), |at| together(plan, at).0)
}

/// The values without elements that no step makes.
fn hollow_values(plan: &Plan) -> Vec<ValueRef> {
    let graph = &plan.graph;
    let made =
        |op: &Op| matches!(op, Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::Aten(_) | Op::Kernel(_));
    let named = plan.steps.iter().flat_map(|step| match &step.kind {
        StepKind::Kernel(k) => k.buffers.iter().map(|b| b.0).collect::<Vec<_>>(),
        StepKind::Extern(e) => e.operands.iter().map(Place::base).collect(),
    });
    let results = plan.outputs.iter().chain(plan.updates.iter().map(|u| &u.1)).map(Place::base);
    let mut found: Vec<ValueRef> =
        named.chain(results).filter(|&v| graph.ty(v).numel() == 0 && !made(&graph.node(v.node).op)).collect();
    found.sort_unstable();
    found.dedup();
    found
}
