//! Which updates kernels write straight over the tensors of the caller that they update.
//!
//! ```text
//! %2 = map sub(%0, %1)                   kernel: %0, %1 -> %2           kernel: %0, %1 -> %2, in the memory of %0
//! update %0 <- %2                        copy %2 to %0            ->
//! ```
//!
//! Once the first of them is written the call can no longer fail: libtorch's calls, kernels of users' operators
//! (they may assert) and allocations all come before, and no kernel of the plan checks indices.

use rustc_hash::{FxHashMap, FxHashSet};

use super::ir::{KernelKind, KernelStep, Plan, Step, StepKind};
use super::liveness;
use super::reasons::Copied;
use crate::block_kernel::BlockKernelKind;
use crate::graph::{NodeId, Op, ValueRef};
use crate::place::{Alignments, Place, is_dense, written_strides};
use crate::rewrite_limit::Rewrites;
use crate::types::Device;

/// Alignment in bytes that kernels assume of what they write.
const WRITTEN_ALIGN: u32 = 16;

/// The pass `reinplace`: decides which updates their kernels write over their targets, and places what remains.
pub(crate) fn reinplace(mut plan: Plan, alignments: &Alignments, rewrites: &Rewrites) -> Plan {
    plan.copied = find(&plan, alignments, rewrites);
    if direct(&plan).next().is_some() { liveness::finish(plan) } else { plan }
}

/// For each update of the plan, why it is copied; `None` where its kernel writes over the target.
fn find(plan: &Plan, alignments: &Alignments, rewrites: &Rewrites) -> Vec<Option<Copied>> {
    let writers = writers(plan);
    let certain = plan.steps.iter().rposition(may_fail).map_or(0, |at| at + 1);
    let mut taken: FxHashSet<ValueRef> = FxHashSet::default();
    let mut decide = |target: NodeId, place: &Place| -> Result<(), Copied> {
        let &Place::Value(value) = place else { return Err(Copied::View) };
        let (at, kernel) = *writers.get(&value).ok_or(Copied::NotGenerated)?;
        no_checks(plan)?;
        lies_alike(plan, target, value, alignments)?;
        if at < certain {
            return Err(Copied::MayFail);
        }
        if returned(plan).any(|place| place.base() == value) {
            return Err(Copied::Returned);
        }
        read_in_place(kernel, target.into(), value)?;
        not_needed(plan, target.into(), at)?;
        if !taken.insert(value) {
            return Err(Copied::Taken);
        }
        if rewrites.allow("reinplace") { Ok(()) } else { Err(Copied::Limit) }
    };
    plan.updates.iter().map(|(target, place)| decide(*target, place).err()).collect()
}

/// The values that are written over their targets, and these.
pub(super) fn direct(plan: &Plan) -> impl Iterator<Item = (ValueRef, ValueRef)> + '_ {
    let updates = plan.updates.iter().zip(&plan.copied).filter(|(_, copied)| copied.is_none());
    updates.map(|((target, place), _)| (place.base(), (*target).into()))
}

/// The outputs that have memory of their own.
pub(super) fn returned(plan: &Plan) -> impl Iterator<Item = &Place> {
    let alias = |at: usize| plan.graph.aliases.get(at).is_some_and(Option::is_some);
    plan.outputs.iter().enumerate().filter(move |&(at, _)| !alias(at)).map(|(_, place)| place)
}

/// Whether a step can end the call with an error.
pub(super) fn may_fail(step: &Step) -> bool {
    match &step.kind {
        StepKind::Extern(_) => true,
        StepKind::Kernel(kernel) => {
            kernel.kind == KernelKind::Block(BlockKernelKind::Custom) || kernel.checks
        }
    }
}

/// The steps that write values, with their kernels.
fn writers(plan: &Plan) -> FxHashMap<ValueRef, (usize, &KernelStep)> {
    let mut writers = FxHashMap::default();
    for (at, step) in plan.steps.iter().enumerate() {
        if let StepKind::Kernel(kernel) = &step.kind
            && !kernel.kind.has_own_blocks()
        {
            writers.extend(kernel.buffers.iter().filter(|b| b.1).map(|b| (b.0, (at, kernel))));
        }
    }
    writers
}

/// A kernel that checks indices says at the end of the call that one was out of range.
fn no_checks(plan: &Plan) -> Result<(), Copied> {
    let checks = |step: &Step| matches!(&step.kind, StepKind::Kernel(kernel) if kernel.checks);
    if plan.steps.iter().any(checks) { Err(Copied::Checks) } else { Ok(()) }
}

/// The target's memory is such as the kernel writes.
fn lies_alike(plan: &Plan, target: NodeId, value: ValueRef, alignments: &Alignments) -> Result<(), Copied> {
    let graph = &plan.graph;
    let (op, to, from) = (&graph.node(target).op, graph.ty(target.into()), graph.ty(value));
    match (op, to.device) {
        (Op::Param(_), Device::Cpu | Device::Cuda(_)) | (Op::Input(_), Device::Cpu) => {}
        (Op::Input(_), Device::Cuda(_)) => return Err(Copied::Input),
        _ => return Err(Copied::Layout),
    }
    let same_type = to.dtype == from.dtype && to.shape == from.shape && to.device == from.device;
    let same_strides = is_dense(&to.shape, &to.strides) && to.strides == written_strides(graph, value);
    if !same_type || !same_strides || to.numel() == 0 {
        return Err(Copied::Layout);
    }
    if alignments.of(op) < WRITTEN_ALIGN { Err(Copied::Unaligned) } else { Ok(()) }
}

/// The kernel reads the target where it writes, or not at all.
fn read_in_place(kernel: &KernelStep, target: ValueRef, value: ValueRef) -> Result<(), Copied> {
    let reads = kernel.buffers.iter().any(|b| b.0 == target);
    if reads && !kernel.in_place.contains(&(target, value)) { Err(Copied::Across) } else { Ok(()) }
}

/// Nothing after step `at` needs the target's old value, nor what a libtorch call made of it: its result may be the
/// tensor itself.
fn not_needed(plan: &Plan, target: ValueRef, at: usize) -> Result<(), Copied> {
    let mut old: FxHashSet<ValueRef> = FxHashSet::from_iter([target]);
    for (position, step) in plan.steps.iter().enumerate() {
        match &step.kind {
            StepKind::Extern(call) => {
                if call.operands.iter().any(|place| old.contains(&place.base())) {
                    old.extend(plan.graph.results(call.node));
                }
            }
            StepKind::Kernel(kernel) => {
                // The kernel itself may read the target, in place.
                let read = |b: &(ValueRef, bool)| old.contains(&b.0) && (position > at || b.0 != target);
                if position >= at && kernel.buffers.iter().any(read) {
                    return Err(Copied::Needed);
                }
            }
        }
    }
    let mut results = returned(plan).chain(plan.updates.iter().map(|(_, place)| place));
    if results.any(|place| old.contains(&place.base())) { Err(Copied::Needed) } else { Ok(()) }
}
