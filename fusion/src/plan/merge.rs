//! Merging units: which kernel two make together, and whether that is legal and pays.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::cost::price;
use super::groups::{Built, Groups, Priced, Rules, Unit, UnitKernel};
use super::reasons::Verdict;
use super::unit_order::UnitMerge;
use super::{in_place, mix_order};
use crate::graph::{NodeId, Op};
use crate::hints::Hints;
use crate::kernel::{Group, Refusal, Space, collapse};
use crate::place::Strides;
use crate::schedule::choose;

/// Instructions of a kernel above which nothing is merged into it. What a boundary costs, a store and a load of each element,
/// is then less than a fiftieth of what is computed, and compiling takes longer the more there is in one function: twice
/// the time for each operator at about four times the limit. The largest kernel of common models has a fifth of it.
const MAX_MERGED: usize = 2048;

/// Whether a merged kernel of this size pays.
fn within(size: usize) -> Result<(), Refusal> {
    if size <= MAX_MERGED { Ok(()) } else { Err(Refusal::TooLong { size, limit: MAX_MERGED }) }
}

impl Groups {
    /// The kernels of two units, or why they have none that could be one.
    pub(super) fn kernels(&self, a: usize, b: usize) -> Result<[&UnitKernel; 2], Verdict> {
        let kernel = |unit: usize| match &self.units[unit] {
            None => Err(Verdict::Illegal(Refusal::Empty)),
            Some(Unit { kernel: Some(kernel), .. }) => Ok(kernel),
            Some(unit) => Err(self.runs_through_libtorch(unit.nodes[0])),
        };
        Ok([kernel(a)?, kernel(b)?])
    }

    fn runs_through_libtorch(&self, id: NodeId) -> Verdict {
        let name = match &self.graph.node(id).op {
            Op::Aten(call) => call.full_name(),
            _ => self.label(id),
        };
        match self.refused.get(&id) {
            Some(reason) => Verdict::Operator(name, reason.clone()),
            None => Verdict::Library(name),
        }
    }

    /// Merges unit `b` into unit `a`, which comes first, if that is legal and pays.
    pub(super) fn try_merge(&mut self, a: usize, b: usize, rules: Rules<'_>) -> Verdict {
        let [first, second] = match self.kernels(a, b) {
            Ok(kernels) => kernels,
            Err(verdict) => return verdict,
        };
        if let Some(of) = self.separating(a, b, rules.hints) {
            return Verdict::Hint(of);
        }
        if let (UnitKernel::Generated(x), UnitKernel::Generated(y)) = (first, second)
            && let Err(refusal) = within(x.size() + y.size())
        {
            return Verdict::Illegal(refusal);
        }
        let merge = match self.sequence.merge_of(a, b, |unit| self.next_units(unit).collect()) {
            Ok(merge) => merge,
            Err(between) => return Verdict::Cycle(self.unit_label(between)),
        };
        let versions = [a, b].map(|unit| (unit, self.units[unit].as_ref().map_or(0, |unit| unit.version)));
        if let Some(verdict) = self.unmerged.get(&versions) {
            return verdict.clone();
        }
        let verdict = self.try_build(a, b, &merge, rules);
        if !verdict.is_fused() && verdict != Verdict::Limit {
            self.unmerged.insert(versions, verdict.clone());
        }
        verdict
    }

    /// As [`Groups::try_merge`], of units that no third one is between.
    fn try_build(&mut self, a: usize, b: usize, merge: &UnitMerge, rules: Rules<'_>) -> Verdict {
        let [first, second] = match self.kernels(a, b) {
            Ok(kernels) => kernels,
            Err(verdict) => return verdict,
        };
        let demanded = self.is_demanded(a, b, rules.hints);
        if let (UnitKernel::Generated(norm), UnitKernel::Block(block)) = (first, second)
            && !norm.kernel.reduces.is_empty()
        {
            let separate_us = norm.cost.us + block.cost.us;
            let divided = self.divided((a, b), (norm, block), rules);
            return self.merge_behind_reductions((a, b), divided, (separate_us, demanded), rules);
        }
        let units = [a, b].into_iter().filter_map(|unit| self.units[unit].as_ref());
        let mut nodes: Vec<NodeId> = units.flat_map(|unit| &unit.nodes).copied().collect();
        // The nodes of each are in order.
        nodes.sort_by_key(|n| self.rank[n]);
        let (fused, rewrite) = match (first, second) {
            (UnitKernel::Block(_), _) => (Verdict::Epilogue, "epilogue"),
            (_, UnitKernel::Block(_)) => (Verdict::Prologue, "prologue"),
            _ => (Verdict::Fused, "merge"),
        };
        let separate_us = first.us() + second.us();
        match self.build_merged(first, second, &nodes, rules) {
            Ok(merged) if merged.us() <= separate_us || demanded => {
                let merged_us = merged.us();
                let made_mix_order = merged.is_mix_order() && !first.is_mix_order() && !second.is_mix_order();
                let rewrite = if made_mix_order { "mix-order" } else { rewrite };
                if !rules.rewrites.allow(rewrite) {
                    return Verdict::Limit;
                }
                self.sequence.merge(merge);
                self.merge(a, b, nodes, merged);
                if merged_us <= separate_us {
                    return fused;
                }
                Verdict::Together { fused: Box::new(fused), separate_us, merged_us }
            }
            Ok(merged) => Verdict::Slower { separate_us, merged_us: merged.us() },
            Err(refusal) => Verdict::Illegal(refusal),
        }
    }

    /// The captured calls that the nodes of a unit come from.
    fn origins(&self, unit: usize) -> impl Iterator<Item = Option<u32>> + '_ {
        let nodes = self.units[unit].iter().flat_map(|unit| &unit.nodes);
        nodes.map(|&node| self.graph.node(node).origin)
    }

    /// The pattern of a hint that keeps two units separate.
    fn separating(&self, a: usize, b: usize, hints: &Hints) -> Option<String> {
        if hints.is_empty() {
            return None;
        }
        self.origins(a).find_map(|a| self.origins(b).find_map(|b| hints.separating(a, b)))
    }

    /// Whether hints ask that all of two units be in one kernel.
    fn is_demanded(&self, a: usize, b: usize, hints: &Hints) -> bool {
        !hints.is_empty() && self.origins(a).all(|a| self.origins(b).all(|b| hints.demand(a, b)))
    }

    /// The kernel of the nodes of two, of which the first comes first.
    fn build_merged(
        &self,
        first: &UnitKernel,
        second: &UnitKernel,
        nodes: &[NodeId],
        rules: Rules<'_>,
    ) -> Result<UnitKernel, Refusal> {
        use UnitKernel::{Block, Generated};
        match (first, second) {
            (Generated(a), Generated(b)) => {
                let built = self.build_in_either(nodes, [&a.group.space, &b.group.space], rules)?;
                Ok(Generated(Box::new(built)))
            }
            (Generated(_), Block(block)) | (Block(block), Generated(_)) => {
                Ok(Block(Box::new(self.build_around(block, nodes, rules)?)))
            }
            (Block(a), Block(b)) => Ok(Block(Box::new(self.build_siblings([a, b], nodes, rules)?))),
        }
    }

    /// The merged kernel over the first of the candidate spaces that allows it.
    fn build_in_either(
        &self,
        nodes: &[NodeId],
        [a, b]: [&Space; 2],
        rules: Rules<'_>,
    ) -> Result<Built, Refusal> {
        let mut refusal = Refusal::OtherReduction;
        for (position, space) in candidates(a, b).into_iter().enumerate() {
            match self.build(nodes, space, rules).and_then(|built| within(built.size()).map(|()| built)) {
                Ok(built) => return Ok(built),
                Err(error) if position == 0 => refusal = error,
                Err(_) => {}
            }
        }
        Err(refusal)
    }

    fn merge(&mut self, a: usize, b: usize, nodes: Vec<NodeId>, kernel: UnitKernel) {
        for id in &nodes {
            self.unit_of.insert(*id, a);
        }
        self.merges += 1;
        self.units[a] = Some(Unit { nodes, kernel: Some(kernel), version: self.merges });
        self.units[b] = None;
    }

    /// Builds the kernel of some nodes over a domain, with the stores that the rest of the graph needs.
    pub(super) fn build(&self, nodes: &[NodeId], space: Space, rules: Rules<'_>) -> Result<Built, Refusal> {
        let inside: FxHashSet<NodeId> = nodes.iter().copied().collect();
        let mut roots = Vec::new();
        let mut device = None;
        for &id in nodes {
            let ty = self.graph.ty(id.into());
            if ty.numel() == 0 || space.shape.contains(&0) {
                return Err(Refusal::Empty);
            }
            if *device.get_or_insert(ty.device) != ty.device {
                return Err(Refusal::Devices);
            }
            roots.extend(self.graph.results(id).filter(|&value| self.is_stored(value, &inside)));
        }
        let group = Group {
            nodes: inside,
            transparent: Arc::clone(&self.transparent),
            stored: roots.iter().copied().collect(),
            materialized: Arc::clone(&self.materialized),
            roots,
            space,
        };
        let make = || {
            let mut kernel = collapse(&self.graph, &group, &Strides(&self.graph))?;
            in_place::order_stores(&self.graph, &mut kernel);
            let tiling = choose(&kernel, rules.profile.machine);
            let cost = price(&kernel, &tiling, rules.profile);
            Ok(Priced { kernel, tiling, cost })
        };
        let Priced { kernel, tiling, cost } =
            self.built.get((&self.classes, &self.graph), &group, None, make)?;
        Ok(Built { group, kernel, tiling, tuned: None, scheduled: None, cost })
    }
}

/// Spaces for a merged kernel, best first.
fn candidates(a: &Space, b: &Space) -> SmallVec<[Space; 3]> {
    let reduces = |space: &Space| space.reduced.contains(&true);
    let one = match (reduces(a), reduces(b)) {
        (true, false) => [a, b],
        _ => [b, a],
    };
    let mut found: SmallVec<[Space; 3]> = one.into_iter().cloned().collect();
    found.dedup();
    found.extend(mix_order::space(a, b).into_iter().chain(mix_order::space(b, a)));
    found
}
