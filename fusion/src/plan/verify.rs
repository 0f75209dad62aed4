//! The invariants of plans:
//! - what a step reads, and what is returned or written back, is a tensor of the caller's, or a kernel or a libtorch
//!   call before it has stored it, and nothing has taken its place or freed it since;
//! - every value that a kernel writes has a place, in the arena, of its own or of another value;
//! - a kernel writes where it reads only where it may do so in place;
//! - once one has written over a tensor of the caller's, nothing can fail: neither a call, a kernel of a user's operator,
//!   nor an allocation; and no kernel of such a plan checks indices;
//! - kernels that share a launch do not need each other: one writes nothing that another has;
//! - blocks of an outer loop reach nothing of each other's, and what is held a block at a time is needed nowhere else;
//! - every kernel's program has a parameter for each buffer, and one for the status word where it checks indices.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::horizontal::parts_are_independent;
use super::ir::OuterLoop;
use super::ir::{KernelStep, Plan, PlanError, StepKind};
use super::outer_loop;
use super::reinplace::{direct, may_fail, returned};
use crate::graph::{Op, ValueRef};

/// Checks a plan; linear in its steps.
///
/// # Errors
/// [`PlanError::Invalid`] with the first invariant that does not hold.
pub fn verify(plan: &Plan) -> Result<(), PlanError> {
    let mut memory = Stored::at_start(plan);
    let own: FxHashSet<ValueRef> = plan.memory.own.iter().copied().collect();
    nothing_fails_late(plan)?;
    for (at, step) in plan.steps.iter().enumerate() {
        let step_name = || format!("step {at}");
        for outer_loop in plan.outer_loops.iter().filter(|outer_loop| outer_loop.steps.start == at) {
            memory.begin(outer_loop).map_err(|what| invalid(step_name(), what))?;
        }
        memory.taken.extend(step.takes.iter().filter(|value| own.contains(value)));
        match &step.kind {
            StepKind::Kernel(kernel) => memory.kernel(kernel).map_err(|what| invalid(step_name(), what))?,
            StepKind::Extern(call) => {
                for operand in &call.operands {
                    memory.read(operand.base()).map_err(|what| invalid(step_name(), what))?;
                }
                for value in plan.graph.results(call.node) {
                    memory.settle(value, value);
                }
            }
        }
        plan.outer_loops
            .iter()
            .filter(|outer_loop| outer_loop.steps.end == at + 1)
            .for_each(|outer_loop| memory.end(outer_loop));
        step.frees.iter().for_each(|&root| memory.free(root));
    }
    for place in returned(plan).chain(plan.updates.iter().map(|(_, place)| place)) {
        memory.read(place.base()).map_err(|what| invalid(String::from("the results"), what))?;
    }
    Ok(())
}

fn invalid(place: String, what: String) -> PlanError {
    PlanError::Invalid { place, what }
}

/// From the first kernel on that writes over a tensor of the caller's, no step fails.
fn nothing_fails_late(plan: &Plan) -> Result<(), PlanError> {
    let direct: FxHashSet<ValueRef> = direct(plan).map(|(value, _)| value).collect();
    let mut written = false;
    for (at, step) in plan.steps.iter().enumerate() {
        let late = written && !step.takes.is_empty();
        let mut checks = false;
        if let StepKind::Kernel(kernel) = &step.kind {
            written |= kernel.buffers.iter().any(|b| b.1 && direct.contains(&b.0));
            checks = kernel.checks && !direct.is_empty();
        }
        if late || checks || (written && may_fail(step)) {
            let what = String::from("may fail after something of the caller's is written");
            return Err(invalid(format!("step {at}"), what));
        }
    }
    Ok(())
}

/// What is in memory between two steps.
struct Stored<'a> {
    plan: &'a Plan,
    /// Values with a tensor of their own, which is allocated.
    taken: FxHashSet<ValueRef>,
    present: FxHashSet<ValueRef>,
    /// Values in the arena by offset, with their ends.
    arena: BTreeMap<u64, (u64, ValueRef)>,
    /// Values of which an outer loop holds blocks, while it runs.
    in_blocks: FxHashSet<ValueRef>,
    /// Values outside of it, by the value that was the first to be there.
    outside: FxHashMap<ValueRef, ValueRef>,
}

impl Stored<'_> {
    fn at_start(plan: &Plan) -> Stored<'_> {
        let given = |op: &Op| matches!(op, Op::Input(_) | Op::Param(_) | Op::Const(_));
        let graph = &plan.graph;
        let empty = plan.memory.own.iter().copied().filter(|&value| graph.ty(value).numel() == 0);
        let given = graph.ids().filter(|&id| given(&graph.node(id).op)).map(ValueRef::from);
        Stored {
            plan,
            taken: FxHashSet::default(),
            present: given.chain(empty).collect(),
            arena: BTreeMap::new(),
            in_blocks: FxHashSet::default(),
            outside: direct(plan).map(|(_, target)| (target, target)).collect(),
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
        if !kernel.parts.is_empty() {
            parts_are_independent(self.plan, kernel)?;
        }
        let reads = || kernel.buffers.iter().filter(|(_, written)| !written).map(|&(value, _)| value);
        reads().try_for_each(|value| self.read(value))?;
        let mut overwritten = Vec::new();
        for &(value, _) in kernel.buffers.iter().filter(|(_, written)| *written) {
            let replaced = self.write(value)?;
            overwritten.extend(replaced.filter(|&read| kernel.in_place.contains(&(read, value))));
        }
        // Nothing else that it reads may lie where it writes.
        reads().filter(|value| !overwritten.contains(value)).try_for_each(|value| self.read(value))
    }

    /// Begins an outer loop, whose threads hold blocks in the arena.
    fn begin(&mut self, outer_loop: &OuterLoop) -> Result<(), String> {
        let late = self
            .plan
            .steps
            .get(outer_loop.steps.start + 1..outer_loop.steps.end)
            .ok_or("has no such outer loop")?;
        if late.iter().any(|step| !step.takes.is_empty()) || !outer_loop::is_legal(self.plan, outer_loop) {
            return Err(String::from("begins an outer loop whose blocks need each other"));
        }
        let end = outer_loop.at + outer_loop.bytes();
        if end > self.plan.memory.bytes {
            return Err(String::from("begins an outer loop that holds blocks beyond the arena"));
        }
        self.take(outer_loop.at, end);
        self.in_blocks = outer_loop.local_buffers.iter().map(|own| own.value).collect();
        Ok(())
    }

    /// Ends an outer loop: what it held in blocks is gone, and nothing that it wrote lies there.
    fn end(&mut self, outer_loop: &OuterLoop) {
        self.take(outer_loop.at, outer_loop.at + outer_loop.bytes());
        for value in self.in_blocks.drain() {
            self.present.remove(&value);
        }
    }

    /// Writes a value; the one whose memory it takes exactly, if there is one.
    fn write(&mut self, value: ValueRef) -> Result<Option<ValueRef>, String> {
        if self.in_blocks.contains(&value) {
            self.present.insert(value);
            return Ok(None);
        }
        let memory = &self.plan.memory;
        let bytes = self.plan.graph.ty(value).bytes();
        if let Some(&start) = memory.offsets.get(&value) {
            let end = start + bytes;
            if end > memory.bytes {
                return Err(format!("writes %{} beyond the arena", value.node.index()));
            }
            let replaced = self.arena.get(&start).filter(|there| there.0 == end).map(|there| there.1);
            self.take(start, end);
            self.arena.insert(start, (end, value));
            self.present.insert(value);
            return Ok(replaced);
        }
        let root = memory.root(value);
        let fits = self.plan.graph.ty(root).bytes() == bytes;
        let there = if root == value { self.taken.contains(&root) } else { self.outside.contains_key(&root) };
        if !there || !fits {
            return Err(format!("writes %{}, which has no place", value.node.index()));
        }
        Ok(self.settle(root, value))
    }

    /// Puts a value into the memory outside of the arena of which `root` was the first.
    fn settle(&mut self, root: ValueRef, value: ValueRef) -> Option<ValueRef> {
        let replaced = self.outside.insert(root, value);
        replaced.iter().for_each(|old| {
            self.present.remove(old);
        });
        self.present.insert(value);
        replaced
    }

    fn free(&mut self, root: ValueRef) {
        self.taken.remove(&root);
        if let Some(value) = self.outside.remove(&root) {
            self.present.remove(&value);
        }
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
