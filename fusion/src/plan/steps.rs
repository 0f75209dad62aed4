//! From groups to the steps of a plan: their order, their programs and names.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::Program;

use super::built_block::BuiltBlock;
use super::groups::{Built, Groups, Rules, Unit, UnitKernel};
use super::in_place;
use super::ir::{ExternStep, KernelKind, KernelStep, Plan, PlanError, Step, StepKind};
use super::liveness;
use super::memory::Memory;
use crate::graph::{NodeId, Op, ValueRef};
use crate::kernel::{KNode, Kernel};
use crate::lower::not_lowered;
use crate::place::{Alignments, Place};
use crate::schedule::{Scheduled, Tiling, schedule_with};

/// The pass `schedule`: a step for each group, with its block program, and memory for what they write.
pub(crate) fn schedule(groups: Groups, rules: Rules<'_>) -> Result<Plan, PlanError> {
    let start = Instant::now();
    let (steps, programs) = groups.steps(rules)?;
    let scheduling = groups.scheduling + start.elapsed();
    let (outputs, updates) = groups.results();
    Ok(liveness::finish(Plan {
        graph: groups.graph,
        programs,
        steps,
        outputs,
        updates,
        copied: Vec::new(),
        memory: Memory::default(),
        outer_loops: Vec::new(),
        outer_loop_refusals: Vec::new(),
        decisions: groups.decisions,
        scheduling,
    }))
}

/// The numbers of programs: of block kernels before any pass, with the grid for which passes make a program of them, and of others as they
/// run.
type Known = FxHashMap<(Option<[u32; 3]>, Program), usize>;

impl Groups {
    fn steps(&self, rules: Rules<'_>) -> Result<(Vec<Step>, Vec<Program>), PlanError> {
        let mut programs = Vec::new();
        let mut known = Known::default();
        let mut steps = Vec::new();
        for unit in self.unit_order()? {
            let Some(unit) = &self.units[unit] else { continue };
            steps.push(Step::from(match &unit.kernel {
                None => StepKind::Extern(self.extern_step(unit.nodes[0])),
                Some(UnitKernel::Block(block)) => {
                    StepKind::Kernel(self.block_step(unit, block, rules, &mut programs, &mut known)?)
                }
                Some(UnitKernel::Generated(built)) => {
                    StepKind::Kernel(self.kernel_step(unit, built, rules, &mut programs, &mut known)?)
                }
            }));
        }
        Ok((steps, programs))
    }

    /// Units in an order that respects dependencies and otherwise follows the graph's, or the recording's.
    pub(super) fn unit_order(&self) -> Result<Vec<usize>, PlanError> {
        let alive: Vec<usize> = (0..self.units.len()).filter(|&u| self.units[u].is_some()).collect();
        let next =
            |unit: usize| -> FxHashSet<usize> { self.next_units(unit).filter(|&n| n != unit).collect() };
        let mut missing = vec![0; self.units.len()];
        for &unit in &alive {
            next(unit).into_iter().for_each(|user| missing[user] += 1);
        }
        let key = |unit: usize| {
            let recorded = |n: NodeId| self.graph.node(n).origin.filter(|_| self.early.as_recorded);
            let nodes = self.units[unit].iter().flat_map(|u| &u.nodes);
            let last = nodes.map(|&n| (recorded(n).unwrap_or(0), self.rank[&n])).max();
            Reverse((last.unwrap_or((0, 0)), unit))
        };
        let mut ready: BinaryHeap<_> = alive.iter().filter(|&&u| missing[u] == 0).map(|&u| key(u)).collect();
        let mut order = Vec::with_capacity(alive.len());
        while let Some(Reverse((_, unit))) = ready.pop() {
            order.push(unit);
            for user in next(unit) {
                missing[user] -= 1;
                if missing[user] == 0 {
                    ready.push(key(user));
                }
            }
        }
        if order.len() == alive.len() { Ok(order) } else { Err(PlanError::Cycle) }
    }

    fn extern_step(&self, node: NodeId) -> ExternStep {
        let Op::Aten(call) = &self.graph.node(node).op else {
            return ExternStep { node, operands: Vec::new(), reason: None };
        };
        // After those of the call are what a kernel in its place would take.
        let operands = self.graph.operands(node).into_iter().take(call.operand_count());
        let operands: Vec<Place> = operands.map(|v| self.place_or_self(v)).collect();
        let types = self.graph.operands(node);
        let types = types.iter().map(|&v| self.graph.ty(v));
        // Library selection makes the other calls, of contractions and attention.
        let outs = &self.graph.node(node).outs;
        let declined =
            call.form.is_none().then(|| not_lowered(call, types, outs, self.graph.kernel_device()));
        let reason = self
            .refused
            .get(&node)
            .map(|why| why.reason.clone())
            .or_else(|| declined.map(|why| why.to_string()));
        ExternStep { node, operands, reason }
    }

    fn block_step(
        &self,
        unit: &Unit,
        block: &BuiltBlock,
        rules: Rules<'_>,
        programs: &mut Vec<Program>,
        known: &mut Known,
    ) -> Result<KernelStep, PlanError> {
        let program = self.block_program(block, self.kernel_name(&unit.nodes), rules.alignments)?;
        // Layers that are alike have one program, which passes see once.
        let key = (Some(block.grid()), program);
        let program = match known.get(&key) {
            Some(&program) => program,
            None => {
                programs.push(block.optimized(key.1.clone())?);
                known.insert(key, programs.len() - 1);
                programs.len() - 1
            }
        };
        Ok(block.step(program, &unit.nodes))
    }

    fn kernel_step(
        &self,
        unit: &Unit,
        built: &Built,
        rules: Rules<'_>,
        programs: &mut Vec<Program>,
        known: &mut Known,
    ) -> Result<KernelStep, PlanError> {
        let scheduled = match &built.scheduled {
            Some(scheduled) => scheduled.clone(),
            None => self.scheduled(unit, built, rules)?,
        };
        let program = *known.entry((None, scheduled.program)).or_insert_with_key(|(_, program)| {
            programs.push(program.clone());
            programs.len() - 1
        });
        Ok(KernelStep {
            program,
            grid: [scheduled.grid, 1, 1],
            buffers: built.buffers(),
            checks: built.kernel.checks(),
            in_place: in_place::pairs(&self.graph, &built.kernel, &scheduled.tiling),
            nodes: unit.nodes.clone(),
            kind: kind_of(&built.kernel, &scheduled.tiling),
            tiling: Some(scheduled.tiling),
            schedule: String::new(),
            tuned: built.tuned.clone(),
            bytes_read: built.cost.bytes_read,
            bytes_written: built.cost.bytes_written,
            flops: built.cost.flops,
            predicted_us: built.cost.us,
            note: None,
            parts: Vec::new(),
            horizontal_refusal: None,
        })
    }

    /// The program of a kernel with its tiles.
    fn scheduled(&self, unit: &Unit, built: &Built, rules: Rules<'_>) -> Result<Scheduled, PlanError> {
        let align = self.alignments_of(built, rules.alignments);
        let name = self.kernel_name(&unit.nodes);
        schedule_with(&name, &built.kernel, built.tiling.clone(), rules.profile.machine, &align)
            .map_err(|error| PlanError::Schedule { node: self.label(unit.nodes[0]), error })
    }

    /// The alignment in bytes of each buffer of a kernel.
    pub(super) fn alignments_of(&self, built: &Built, alignments: &Alignments) -> Vec<u32> {
        let of = |value: ValueRef| alignments.of(&self.graph.node(value.node).op);
        built.kernel.buffers.iter().map(|buffer| of(buffer.value)).collect()
    }

    /// `fused_add_layer_norm` from the operators that the nodes come from.
    pub(super) fn kernel_name(&self, nodes: &[NodeId]) -> String {
        let mut parts: Vec<String> = Vec::new();
        for &id in nodes {
            let label = self.label(id);
            let name =
                label.split_once("::").filter(|(space, _)| !space.contains(' ')).map_or(&*label, |l| l.1);
            let short: String = name.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let short = if short.is_empty() { String::from("copy") } else { short };
            if !parts.contains(&short) {
                parts.push(short);
            }
        }
        if parts.len() > 5 {
            let rest = parts.len() - 4;
            parts.truncate(4);
            parts.push(format!("and_{rest}_more"));
        }
        format!("fused_{}", parts.join("_"))
    }

    fn results(&self) -> (Vec<Place>, Vec<(NodeId, Place)>) {
        let outputs = self.graph.outputs.iter().map(|&v| self.place_or_self(v)).collect();
        let updates = self.graph.updates.iter().map(|u| (u.target, self.place_or_self(u.value))).collect();
        (outputs, updates)
    }

    pub(super) fn place_or_self(&self, value: ValueRef) -> Place {
        self.place(value).unwrap_or(Place::Value(value))
    }
}

fn kind_of(kernel: &Kernel, tiling: &Tiling) -> KernelKind {
    let last_is_reduced = tiling.axes.last().is_some_and(|a| kernel.reduced[a.var.0 as usize]);
    let reduces = kernel.exprs.iter().any(|e| matches!(e, KNode::Reduce(_)));
    match (reduces, last_is_reduced) {
        (false, _) => KernelKind::Pointwise,
        (true, true) => KernelKind::RowReduction,
        (true, false) => KernelKind::ColumnReduction,
    }
}
