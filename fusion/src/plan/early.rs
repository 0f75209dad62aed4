//! Values that are computed early although they could be part of a later kernel: so that what they are computed from, and is
//! larger, need not be kept until then.
//!
//! ```text
//! %3 = aten::mm ...  64 x 1024               %3 = aten::mm ...
//! %5 = aten::mm ...  64 x 1024               kernel: %4 = gather %3   64 x 64
//! kernel: gather %3 + gather %5      ->      %5 = aten::mm ...
//!                                            kernel: %4 + gather %5
//! ```

use rustc_hash::{FxHashMap, FxHashSet};

use super::ir::{KernelStep, Plan, Step, StepKind};
use super::liveness::last_uses;
use crate::graph::{Graph, NodeId, Op, ValueRef};
use crate::place::Place;

/// What a plan does to hold less.
#[derive(Clone, Debug, Default)]
pub(crate) struct Early {
    /// Nodes that end their kernels.
    pub(super) nodes: FxHashSet<NodeId>,
    /// Whether steps follow the order of the recording where they can, not that of the graph, at whose end are the nodes that
    /// took others' places: a call that need not wait for these would run long before its result is needed.
    pub(super) as_recorded: bool,
}

/// Plans that are tried.
pub(super) const MAX_ROUNDS: usize = 8;

/// The next nodes that are to end their kernels, so that a plan holds less: those that make less of what is kept at the time when
/// the plan holds most, but is not needed then. Empty where there are none.
pub(super) fn next(plan: &Plan, early: &FxHashSet<NodeId>) -> Vec<NodeId> {
    let kept: FxHashSet<ValueRef> = plan.outputs.iter().map(Place::base).collect();
    let last = last_uses(plan, &kept);
    let made = made(plan);
    let Some(peak) = peak(plan, &made, &last) else { return Vec::new() };
    let mut found = Vec::new();
    for (&value, &first) in &made {
        let until = last.get(&value).copied().unwrap_or(first);
        // What the peak's own step makes is not kept until then.
        if first >= peak || until < peak || until >= plan.steps.len() {
            continue;
        }
        let StepKind::Kernel(kernel) = &plan.steps[until].kind else { continue };
        found.extend(
            readers(plan, kernel, value, first, &made).into_iter().filter(|node| !early.contains(node)),
        );
    }
    for (at, step) in plan.steps.iter().enumerate().skip(peak + 1) {
        if let StepKind::Kernel(kernel) = &step.kind {
            let ends = frontier(plan, kernel, (peak, at), &made, &last);
            found.extend(ends.into_iter().filter(|node| !early.contains(node)));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The results of what a later kernel could compute before the peak, where they are smaller than what only that reads.
fn frontier(
    plan: &Plan,
    kernel: &KernelStep,
    (peak, at): (usize, usize),
    made: &FxHashMap<ValueRef, usize>,
    last: &FxHashMap<ValueRef, usize>,
) -> Vec<NodeId> {
    let graph = &plan.graph;
    let inside: FxHashSet<NodeId> = kernel.nodes.iter().copied().collect();
    let reads: Vec<(NodeId, Vec<ValueRef>)> =
        kernel.nodes.iter().map(|&node| (node, sources(graph, node, &inside, made))).collect();
    let mut ready: FxHashSet<NodeId> = FxHashSet::default();
    let before = |value: &ValueRef| made.get(value).is_none_or(|&step| step < peak);
    let mut more = true;
    while more {
        let can = |(node, sources): &&(NodeId, Vec<ValueRef>)| {
            let known =
                |v: &ValueRef| if inside.contains(&v.node) { ready.contains(&v.node) } else { before(v) };
            !ready.contains(node) && sources.iter().all(known)
        };
        let next: Vec<NodeId> = reads.iter().filter(can).map(|(node, _)| *node).collect();
        more = !next.is_empty();
        ready.extend(next);
    }
    let (early, late): (Vec<_>, Vec<_>) = reads.iter().partition(|(node, _)| ready.contains(node));
    let read = |of: &[&(NodeId, Vec<ValueRef>)]| -> FxHashSet<ValueRef> {
        of.iter().flat_map(|(_, sources)| sources.iter().copied()).collect()
    };
    let (by_early, by_late) = (read(&early), read(&late));
    let ends: Vec<NodeId> = by_late.iter().map(|v| v.node).filter(|node| ready.contains(node)).collect();
    let freed =
        by_early.iter().filter(|v| made.contains_key(v) && !by_late.contains(v) && last.get(v) == Some(&at));
    let bytes = |values: &mut dyn Iterator<Item = ValueRef>| values.map(|v| graph.ty(v).bytes()).sum::<u64>();
    let (freed, kept) = (bytes(&mut freed.copied()), bytes(&mut ends.iter().map(|&node| node.into())));
    if kept < freed { ends } else { Vec::new() }
}

/// The step that makes each value.
fn made(plan: &Plan) -> FxHashMap<ValueRef, usize> {
    let mut made = FxHashMap::default();
    for (at, Step { kind, .. }) in plan.steps.iter().enumerate() {
        match kind {
            StepKind::Kernel(k) => {
                made.extend(k.buffers.iter().filter(|b| b.1).map(|&(value, _)| (value, at)))
            }
            StepKind::Extern(e) => {
                let outs = 0..plan.graph.node(e.node).outs.len();
                made.extend(outs.map(|out| (ValueRef { node: e.node, out: out as u16 }, at)));
            }
        }
    }
    made
}

/// The step during which the most bytes are needed.
fn peak(plan: &Plan, made: &FxHashMap<ValueRef, usize>, last: &FxHashMap<ValueRef, usize>) -> Option<usize> {
    let mut change = vec![0i64; plan.steps.len() + 2];
    for (value, &first) in made {
        let bytes = plan.graph.ty(*value).bytes() as i64;
        change[first] += bytes;
        change[last.get(value).copied().unwrap_or(first) + 1] -= bytes;
    }
    let mut now = 0;
    let held = change.iter().take(plan.steps.len()).map(|by| {
        now += by;
        now
    });
    // The first of several.
    held.enumerate().max_by_key(|&(at, held)| (held, std::cmp::Reverse(at))).map(|(at, _)| at)
}

/// The nodes of a kernel that read a value, are smaller together, and could be computed right after it.
fn readers(
    plan: &Plan,
    kernel: &KernelStep,
    value: ValueRef,
    first: usize,
    made: &FxHashMap<ValueRef, usize>,
) -> Vec<NodeId> {
    let graph = &plan.graph;
    let inside: FxHashSet<NodeId> = kernel.nodes.iter().copied().collect();
    let reads: Vec<(NodeId, Vec<ValueRef>)> =
        inside.iter().map(|&node| (node, sources(graph, node, &inside, made))).collect();
    let nodes: Vec<&(NodeId, Vec<ValueRef>)> =
        reads.iter().filter(|(_, sources)| sources.contains(&value)).collect();
    let ready = |source: &ValueRef| {
        !inside.contains(&source.node) && made.get(source).is_none_or(|&step| step <= first)
    };
    let bytes: u64 = nodes.iter().map(|(node, _)| graph.ty((*node).into()).bytes()).sum();
    let can = nodes.iter().all(|(_, sources)| sources.iter().all(ready));
    if can && bytes < graph.ty(value).bytes() {
        nodes.iter().map(|(node, _)| *node).collect()
    } else {
        Vec::new()
    }
}

/// What a node reads: nodes of its kernel and what is in memory, through what is computed where it is used.
fn sources(
    graph: &Graph,
    node: NodeId,
    inside: &FxHashSet<NodeId>,
    made: &FxHashMap<ValueRef, usize>,
) -> Vec<ValueRef> {
    let mut found = Vec::new();
    let mut seen = FxHashSet::default();
    let mut stack: Vec<ValueRef> = graph.operands(node).to_vec();
    while let Some(value) = stack.pop() {
        if !seen.insert(value) {
            continue;
        }
        let stored = inside.contains(&value.node) || made.contains_key(&value);
        if stored || matches!(graph.node(value.node).op, Op::Input(_) | Op::Param(_) | Op::Const(_)) {
            found.push(value);
        } else {
            stack.extend(graph.operands(value.node));
        }
    }
    found
}
