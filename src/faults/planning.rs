//! Faults of planning: the order of steps, and where values lie in memory.

use std::collections::HashMap;

use tilefuse_fusion::plan::{Plan, StepKind};
use tilefuse_fusion::{Place as At, ValueRef};

use super::Fault;

/// Where a fault can be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// Memory of the first value, into which the second one goes.
    Values(ValueRef, ValueRef),
    /// Two results.
    Results(usize, usize),
    /// A step, and what it frees.
    Freed(usize, ValueRef),
    /// A step and the one before it.
    Steps(usize),
}

/// Where a fault spoils what a step reads.
pub(super) fn places(fault: Fault, plan: &Plan) -> Vec<Place> {
    match fault {
        Fault::ArenaOverlap | Fault::ArenaOverlaps => overlaps(fault, plan),
        Fault::FreedEarly => freed(plan),
        Fault::OutputsSwapped => results(plan),
        Fault::StepsSwapped => {
            let reads = |&at: &usize| time(plan, at) != time(plan, at - 1) && feeds(plan, at);
            (1..plan.steps.len()).filter(reads).map(Place::Steps).collect()
        }
        _ => Vec::new(),
    }
}

/// Plants a fault at a place.
pub(super) fn plant(fault: Fault, plan: &mut Plan, place: Place) {
    match place {
        Place::Values(first, second) => {
            let bytes = |v: &ValueRef| plan.graph.ty(*v).bytes();
            let Some(&offset) = plan.memory.offsets.get(&first) else { return };
            let as_large = |v: &ValueRef| fault == Fault::ArenaOverlaps && bytes(v) == bytes(&first);
            let moved: Vec<_> =
                plan.memory.offsets.keys().copied().filter(|v| *v == second || as_large(v)).collect();
            plan.memory.offsets.extend(moved.into_iter().map(|v| (v, offset)));
        }
        Place::Results(a, b) => plan.outputs.swap(a, b),
        Place::Freed(at, value) => {
            plan.steps[at].frees.retain(|v| *v != value);
            plan.steps[at - 1].frees.push(value);
        }
        Place::Steps(at) => {
            let (before, after) = plan.steps.split_at_mut(at);
            if let (Some(before), Some(after)) = (before.last_mut(), after.first_mut()) {
                std::mem::swap(&mut before.kind, &mut after.kind);
            }
        }
    }
}

/// When a step runs: those of an outer loop run together, block by block.
fn time(plan: &Plan, at: usize) -> usize {
    let outer_loop = plan.outer_loops.iter().find(|outer_loop| outer_loop.steps.contains(&at));
    outer_loop.map_or(at, |outer_loop| outer_loop.steps.start)
}

fn reads(kind: &StepKind) -> Vec<ValueRef> {
    match kind {
        StepKind::Kernel(k) => k.buffers.iter().filter(|b| !b.1).map(|b| b.0).collect(),
        StepKind::Extern(e) => e.operands.iter().map(At::base).collect(),
    }
}

fn writes(kind: &StepKind) -> Vec<ValueRef> {
    match kind {
        StepKind::Kernel(k) => k.buffers.iter().filter(|b| b.1).map(|b| b.0).collect(),
        StepKind::Extern(_) => Vec::new(),
    }
}

/// Whether a step is a kernel that reads what the kernel before it writes.
fn feeds(plan: &Plan, at: usize) -> bool {
    let (before, after) = (&plan.steps[at - 1].kind, &plan.steps[at].kind);
    let kernels = matches!((before, after), (StepKind::Kernel(_), StepKind::Kernel(_)));
    let written = writes(before);
    kernels && reads(after).iter().any(|v| written.contains(v) && plan.graph.ty(*v).bytes() > 0)
}

/// Pairs of values of the arena, of which the second is written while the first, which is no larger, is still needed.
fn overlaps(fault: Fault, plan: &Plan) -> Vec<Place> {
    let (mut made, mut last) = (HashMap::new(), HashMap::new());
    for (at, step) in plan.steps.iter().enumerate() {
        let now = time(plan, at);
        for value in writes(&step.kind) {
            made.entry(value).or_insert(now);
        }
        last.extend(reads(&step.kind).into_iter().map(|value| (value, now)));
    }
    let bytes = |v: ValueRef| plan.graph.ty(v).bytes();
    let offsets = &plan.memory.offsets;
    let spoils = |a: ValueRef, b: ValueRef| {
        let (Some(from), Some(until), Some(then)) = (made.get(&a), last.get(&a), made.get(&b)) else {
            return false;
        };
        let fits = bytes(b) == bytes(a) || (fault == Fault::ArenaOverlap && bytes(b) > bytes(a));
        let inside = offsets[&a] + bytes(b) <= plan.memory.bytes;
        bytes(a) > 0 && fits && inside && from < then && then < until && offsets[&a] != offsets[&b]
    };
    let pairs = offsets.keys().flat_map(|&a| offsets.keys().map(move |&b| (a, b)));
    pairs.filter(|&(a, b)| spoils(a, b)).map(|(a, b)| Place::Values(a, b)).collect()
}

/// What a step reads and frees, after the step before it.
fn freed(plan: &Plan) -> Vec<Place> {
    let made_before = |at: usize, value: ValueRef| {
        let alone = time(plan, at) != time(plan, at - 1) && !plan.steps[at].takes.contains(&value);
        let read = reads(&plan.steps[at].kind).iter().any(|&v| plan.memory.root(v) == value);
        alone && read && plan.graph.ty(value).bytes() > 0
    };
    let frees = |at: usize| plan.steps[at].frees.iter().map(move |&value| (at, value));
    let all = (1..plan.steps.len()).flat_map(frees);
    all.filter(|&(at, value)| made_before(at, value)).map(|(at, value)| Place::Freed(at, value)).collect()
}

/// Pairs of results of one type that lie at different places, of which one at least is no alias of another result.
fn results(plan: &Plan) -> Vec<Place> {
    let n = plan.outputs.len();
    let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
    let ty = |at: usize| plan.graph.ty(plan.graph.outputs[at]);
    let aliased = |at: usize| plan.graph.aliases.get(at).is_some_and(Option::is_some);
    let differ = |&(a, b): &(usize, usize)| {
        let one_kept = !aliased(a) || !aliased(b);
        plan.outputs[a] != plan.outputs[b] && ty(a) == ty(b) && ty(a).bytes() > 0 && one_kept
    };
    pairs.filter(differ).map(|(a, b)| Place::Results(a, b)).collect()
}
