//! The invariants of plans:
//! - what a step reads, and what is returned or written back, is a tensor of the caller's, or a kernel or a libtorch
//!   call before it has stored it, and nothing has taken its place in the arena or freed it since;
//! - every value that a kernel writes has a place, in the arena or of its own;
//! - every kernel's program has a parameter for each buffer, and one for the status word where it checks indices.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use super::{KernelStep, Plan, PlanError, StepKind};
use crate::graph::{Op, ValueRef};

/// Checks a plan; linear in its steps.
///
/// # Errors
/// [`PlanError::Invalid`] with the first invariant that does not hold.
pub fn verify(plan: &Plan) -> Result<(), PlanError> {
    let mut memory = Stored::at_start(plan);
    for (at, step) in plan.steps.iter().enumerate() {
        let step_name = || format!("step {at}");
        match &step.kind {
            StepKind::Kernel(kernel) => memory.kernel(kernel).map_err(|what| invalid(step_name(), what))?,
            StepKind::Extern(call) => {
                for operand in &call.operands {
                    memory.read(operand.base()).map_err(|what| invalid(step_name(), what))?;
                }
                let results = 0..plan.graph.node(call.node).outs.len();
                memory.present.extend(results.map(|out| ValueRef { node: call.node, out: out as u16 }));
            }
        }
        step.frees.iter().for_each(|value| {
            memory.present.remove(value);
        });
    }
    for place in plan.outputs.iter().chain(plan.updates.iter().map(|(_, place)| place)) {
        memory.read(place.base()).map_err(|what| invalid(String::from("the results"), what))?;
    }
    Ok(())
}

fn invalid(place: String, what: String) -> PlanError {
    PlanError::Invalid { place, what }
}

/// What is in memory between two steps.
struct Stored<'a> {
    plan: &'a Plan,
    own: FxHashSet<ValueRef>,
    present: FxHashSet<ValueRef>,
    /// Values in the arena by offset, with their ends.
    arena: BTreeMap<u64, (u64, ValueRef)>,
}

impl Stored<'_> {
    fn at_start(plan: &Plan) -> Stored<'_> {
        let given = |op: &Op| matches!(op, Op::Input(_) | Op::Param(_) | Op::Const(_));
        let graph = &plan.graph;
        let empty = plan.memory.own.iter().copied().filter(|&value| graph.ty(value).numel() == 0);
        let given = graph.ids().filter(|&id| given(&graph.node(id).op)).map(ValueRef::from);
        Stored {
            plan,
            own: plan.memory.own.iter().copied().collect(),
            present: given.chain(empty).collect(),
            arena: BTreeMap::new(),
        }
    }

    fn read(&self, value: ValueRef) -> Result<(), String> {
        let name = || format!("reads %{}.{}, which is not in memory", value.node.index(), value.out);
        if self.present.contains(&value) { Ok(()) } else { Err(name()) }
    }

    fn kernel(&mut self, kernel: &KernelStep) -> Result<(), String> {
        let program = self.plan.programs.get(kernel.program).ok_or("has no program")?;
        if program.params.len() != kernel.buffers.len() + usize::from(kernel.checks) {
            return Err(format!("has {} parameters", program.params.len()));
        }
        let reads = || kernel.buffers.iter().filter(|(_, written)| !written).map(|&(value, _)| value);
        reads().try_for_each(|value| self.read(value))?;
        for &(value, _) in kernel.buffers.iter().filter(|(_, written)| *written) {
            self.write(value)?;
        }
        // Nothing that it reads may lie where it writes.
        reads().try_for_each(|value| self.read(value))
    }

    fn write(&mut self, value: ValueRef) -> Result<(), String> {
        let memory = &self.plan.memory;
        if let Some(&start) = memory.offsets.get(&value) {
            let end = start + self.plan.graph.ty(value).bytes();
            if end > memory.bytes {
                return Err(format!("writes %{} beyond the arena", value.node.index()));
            }
            self.take(start, end);
            self.arena.insert(start, (end, value));
        } else if !self.own.contains(&value) {
            return Err(format!("writes %{}, which has no place", value.node.index()));
        }
        self.present.insert(value);
        Ok(())
    }

    /// Forgets what lies in a part of the arena.
    fn take(&mut self, start: u64, end: u64) {
        // Values in the map do not overlap, so that their ends ascend as their starts do.
        while let Some((&at, &(until, value))) = self.arena.range(..end).next_back() {
            if until <= start {
                break;
            }
            self.arena.remove(&at);
            self.present.remove(&value);
        }
    }
}
