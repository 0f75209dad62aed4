//! Sinking: steps that run as late as they can. What a kernel makes of nothing but inputs and parameters, such as a weight that is
//! packed for a product, is held only from its first use on. No input or parameter is held any longer for it.

use rustc_hash::FxHashMap;

use super::ir::{Plan, Step, StepKind};
use super::liveness;
use super::memory_limit::{PARTIAL_SUMS_BYTES, held_within};
use crate::graph::{Op, ValueRef};
use crate::place::Place;
use crate::rewrite_limit::Rewrites;

/// The pass `sink`: puts each such step right before the first that reads its result, where a plan holds more than it may, and
/// less then.
pub(crate) fn sink(plan: Plan, most_bytes: u64, rewrites: &Rewrites) -> Plan {
    let held = held_within(&plan, most_bytes);
    if held <= most_bytes.saturating_add(PARTIAL_SUMS_BYTES) {
        return plan;
    }
    let sunk = sunk(plan.clone());
    if held_within(&sunk, most_bytes) < held && rewrites.allow("sink") { sunk } else { plan }
}

/// The plan with each such step right before the first that reads its result.
pub(super) fn sunk(mut plan: Plan) -> Plan {
    let maker: FxHashMap<ValueRef, usize> = plan
        .steps
        .iter()
        .enumerate()
        .flat_map(|(at, step)| liveness::written(&plan.graph, &step.kind).into_iter().map(move |v| (v, at)))
        .collect();
    let mut waits = vec![false; plan.steps.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        let StepKind::Kernel(kernel) = &step.kind else { continue };
        let given = |value: ValueRef| {
            let op = &plan.graph.node(value.node).op;
            matches!(op, Op::Input(_) | Op::Param(_) | Op::Const(_))
                || maker.get(&value).is_some_and(|&made| made < at && waits[made])
        };
        waits[at] = kernel.buffers.iter().filter(|buffer| !buffer.1).all(|&(value, _)| given(value));
    }
    let mut order = Vec::with_capacity(plan.steps.len());
    let mut placed = vec![false; plan.steps.len()];
    for at in (0..plan.steps.len()).filter(|&at| !waits[at]) {
        append(at, &plan.steps, &maker, &mut placed, &mut order);
    }
    // What only results are made of.
    for at in 0..plan.steps.len() {
        append(at, &plan.steps, &maker, &mut placed, &mut order);
    }
    let mut steps: Vec<Option<Step>> = std::mem::take(&mut plan.steps).into_iter().map(Some).collect();
    plan.steps = order.into_iter().filter_map(|at| steps[at].take()).collect();
    liveness::finish(plan)
}

/// Appends a step after those that make what it reads.
fn append(
    at: usize,
    steps: &[Step],
    maker: &FxHashMap<ValueRef, usize>,
    placed: &mut [bool],
    order: &mut Vec<usize>,
) {
    if std::mem::replace(&mut placed[at], true) {
        return;
    }
    let mut needed: Vec<usize> = read(&steps[at]).filter_map(|value| maker.get(&value).copied()).collect();
    needed.sort_unstable();
    for step in needed {
        append(step, steps, maker, placed, order);
    }
    order.push(at);
}

fn read(step: &Step) -> impl Iterator<Item = ValueRef> + '_ {
    let (kernel, call) = match &step.kind {
        StepKind::Kernel(kernel) => (Some(kernel), None),
        StepKind::Extern(call) => (None, Some(call)),
    };
    let buffers = kernel.into_iter().flat_map(|k| k.buffers.iter().filter(|b| !b.1).map(|b| b.0));
    buffers.chain(call.into_iter().flat_map(|c| c.operands.iter().map(Place::base)))
}
