//! Groups to begin with: one kernel or one libtorch call for each node that is not computed where it is used.
//!
//! ```text
//! %2 = aten::mm(self=%0, mat2=%1) : f32[8,4]          0: libtorch: %2
//! %3 = map tanh(%2) : f32[8,4]                  ->    1: kernel over [8, 4], tile 32, warps 1: %3; stores %3
//! %4 = view reshape(%3) : f32[32]                     where used: %4
//! ```

use rustc_hash::FxHashSet;

use super::built_block::BuiltBlock;
use super::early::Early;
use super::groups::{Groups, Rules, Unit, UnitKernel};
use super::ir::PlanError;
use super::unit_order::Sequence;
use crate::graph::{Graph, NodeId};
use crate::kernel::Refusal;

/// The pass `group`: the groups of a graph whose long reductions are split already, one for each node.
pub(crate) fn group(graph: Graph, early: Early, rules: Rules<'_>) -> Result<Groups, PlanError> {
    let order = graph.topological().ok_or(PlanError::Cycle)?;
    let mut groups = Groups::ungrouped(graph, order, early);
    groups.demand(rules);
    groups.connect();
    groups.start_units(rules)?;
    Ok(groups)
}

impl Groups {
    fn start_units(&mut self, rules: Rules<'_>) -> Result<(), PlanError> {
        for id in self.order.clone() {
            if !self.is_compute(id) || self.is_hollow(id) {
                continue;
            }
            let kernel = match self.block_kernels.get(&id) {
                Some(block) => Some(UnitKernel::Block(Box::new(block.clone()))),
                None if self.is_extern(id) => None,
                None => {
                    let built = self.build(&[id], self.space_of(id), rules);
                    let built = built.map_err(|refusal| self.alone(id, refusal))?;
                    Some(UnitKernel::Generated(Box::new(built)))
                }
            };
            self.unit_of.insert(id, self.units.len());
            self.units.push(Some(Unit { nodes: vec![id], kernel, version: 0 }));
        }
        self.sequence = Sequence::new(self.units.len());
        Ok(())
    }

    pub(super) fn alone(&self, id: NodeId, refusal: Refusal) -> PlanError {
        PlanError::Alone { node: self.label(id), refusal }
    }

    /// Fills `users` and `sources`.
    fn connect(&mut self) {
        for &id in &self.order {
            if !self.is_compute(id) {
                continue;
            }
            let bases: Vec<NodeId> = self
                .block_kernels
                .get(&id)
                .into_iter()
                .flat_map(BuiltBlock::strided)
                .map(|v| v.node)
                .collect();
            let mut found: Vec<NodeId> = bases.into_iter().filter(|&base| self.is_compute(base)).collect();
            let mut stack: Vec<NodeId> = self.graph.operands(id).iter().map(|v| v.node).collect();
            let is_extern = self.is_extern(id);
            let mut seen: FxHashSet<NodeId> = found.iter().copied().collect();
            while let Some(at) = stack.pop() {
                if !seen.insert(at) {
                    continue;
                }
                // A library call reads what is stored; kernels look through what is stored for others.
                let stop = self.is_compute(at) && (is_extern || !self.transparent.contains(&at));
                if stop {
                    found.push(at);
                } else {
                    stack.extend(self.graph.operands(at).iter().map(|v| v.node));
                }
            }
            found.sort_unstable_by_key(|n| self.rank[n]);
            for &source in &found {
                self.users.entry(source).or_default().push(id);
            }
            self.sources.insert(id, found);
        }
        let random: Vec<NodeId> = self.order.iter().copied().filter(|&id| self.graph.is_random(id)).collect();
        self.next_random = random.windows(2).map(|pair| (pair[0], pair[1])).collect();
    }
}
