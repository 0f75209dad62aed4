//! Growing groups: which nodes are computed by one kernel.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::built_block::BuiltBlock;
use super::cost::{Cost, price};
use super::early::Early;
use super::in_place;
use super::ir::{Plan, PlanError};
use super::liveness;
use super::memory::Memory;
use super::mix_order;
use super::reasons::{Decision, Verdict};
use super::tuner::Tuner;
use super::unit_order::Sequence;
use crate::graph::{Graph, NodeId, Op, ValueRef};
use crate::hints::Hints;
use crate::kernel::{BlockRefusal, Group, Kernel, Refusal, Space, collapse};
use crate::machine::Profile;
use crate::place::{Alignments, Strides};
use crate::rewrites::Rewrites;
use crate::schedule::{Tiling, Walk, choose};
use crate::types::TensorType;

/// A step to be: a group of nodes in one kernel, or one libtorch call.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) nodes: Vec<NodeId>,
    /// `None` for a libtorch call.
    pub(super) kernel: Option<UnitKernel>,
}

/// The kernel that computes a unit.
#[derive(Clone, Debug)]
pub(super) enum UnitKernel {
    /// Generated from the nodes' expressions.
    Generated(Box<Built>),
    /// A block kernel, with what was merged into it.
    Block(Box<BuiltBlock>),
}

impl UnitKernel {
    /// Predicted microseconds.
    fn us(&self) -> f64 {
        match self {
            UnitKernel::Generated(built) => built.cost.us,
            UnitKernel::Block(block) => block.cost.us,
        }
    }
}

impl Unit {
    fn generated(&self) -> Option<&Built> {
        match self.kernel.as_ref()? {
            UnitKernel::Generated(built) => Some(built),
            UnitKernel::Block(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Built {
    group: Group,
    pub(super) kernel: Kernel,
    pub(super) tiling: Tiling,
    pub(super) cost: Cost,
}

/// Instructions of a kernel above which nothing is merged into it. What a boundary costs, a store and a load of each element,
/// is then less than a fiftieth of what is computed, and compiling takes longer the more there is in one function: twice
/// the time for each operator at about four times the limit. The largest kernel of common models has a fifth of it.
const MAX_MERGED: usize = 2048;

/// Whether a merged kernel of this size pays.
fn within(size: usize) -> Result<(), Refusal> {
    if size <= MAX_MERGED { Ok(()) } else { Err(Refusal::TooLong { size, limit: MAX_MERGED }) }
}

impl Built {
    /// About the instructions of its code; loops over a row have what they need of the levels below once more each.
    fn size(&self) -> usize {
        let levels = self.kernel.reduces.iter().map(|r| r.level).max().unwrap_or(0) as usize;
        self.kernel.size * if self.tiling.walk == Walk::Loops { 1 + levels } else { 1 }
    }
}

/// Plans a graph whose long reductions are split already.
pub(super) fn plan(
    graph: Graph,
    profile: &Profile,
    alignments: &Alignments,
    early: &Early,
    tuner: &mut Tuner<'_>,
    rules: (&Rewrites, &Hints),
) -> Result<Plan, PlanError> {
    let order = graph.topological().ok_or(PlanError::Cycle)?;
    let mut planner = Planner::new(&graph, profile, alignments, order, rules);
    planner.early.clone_from(early);
    planner.demand();
    planner.start_units()?;
    planner.grow();
    planner.retry_block_kernels();
    planner.siblings();
    let start = Instant::now();
    let (steps, programs) = planner.steps(tuner)?;
    let scheduling = start.elapsed();
    let (outputs, updates) = planner.results();
    let decisions = std::mem::take(&mut planner.decisions);
    Ok(liveness::finish(Plan {
        graph,
        programs,
        steps,
        outputs,
        updates,
        copied: Vec::new(),
        memory: Memory::default(),
        outer_loops: Vec::new(),
        outer_loop_refusals: Vec::new(),
        decisions,
        scheduling,
    }))
}

pub(super) struct Planner<'a> {
    pub(super) graph: &'a Graph,
    pub(super) profile: &'a Profile,
    pub(super) alignments: &'a Alignments,
    pub(super) rewrites: &'a Rewrites,
    pub(super) hints: &'a Hints,
    pub(super) order: Vec<NodeId>,
    /// Calls with a block kernel, alone; they start units.
    pub(super) block_kernels: FxHashMap<NodeId, BuiltBlock>,
    /// Why a call that could have such a kernel has none.
    pub(super) refused: FxHashMap<NodeId, String>,
    /// Position of each node in `order`.
    pub(super) rank: FxHashMap<NodeId, usize>,
    /// Nodes that are computed where they are used: views, literals, iotas, cheap expressions of small operands.
    pub(super) transparent: Arc<FxHashSet<NodeId>>,
    /// Transparent nodes that are stored nevertheless, because something needs them in memory.
    pub(super) materialized: FxHashSet<NodeId>,
    /// What is done to hold less.
    pub(super) early: Early,
    /// Results of compute nodes that are needed in memory by a libtorch call, an output or a write-back.
    pub(super) demanded: FxHashSet<ValueRef>,
    pub(super) units: Vec<Option<Unit>>,
    pub(super) unit_of: FxHashMap<NodeId, usize>,
    pub(super) sequence: Sequence,
    /// The next call that draws random numbers, of each that does: they draw in the order of the capture.
    next_random: FxHashMap<NodeId, NodeId>,
    /// Nearest non-transparent users of each node, through transparent ones.
    pub(super) users: FxHashMap<NodeId, Vec<NodeId>>,
    /// Nearest non-transparent producers of each node.
    sources: FxHashMap<NodeId, Vec<NodeId>>,
    pub(super) decisions: Vec<Decision>,
}

impl<'a> Planner<'a> {
    fn new(
        graph: &'a Graph,
        profile: &'a Profile,
        alignments: &'a Alignments,
        order: Vec<NodeId>,
        (rewrites, hints): (&'a Rewrites, &'a Hints),
    ) -> Planner<'a> {
        let rank = order.iter().enumerate().map(|(i, &n)| (n, i)).collect();
        Planner {
            graph,
            profile,
            alignments,
            rewrites,
            hints,
            order,
            block_kernels: FxHashMap::default(),
            refused: FxHashMap::default(),
            rank,
            transparent: Arc::default(),
            materialized: FxHashSet::default(),
            early: Early::default(),
            demanded: FxHashSet::default(),
            units: Vec::new(),
            unit_of: FxHashMap::default(),
            sequence: Sequence::default(),
            next_random: FxHashMap::default(),
            users: FxHashMap::default(),
            sources: FxHashMap::default(),
            decisions: Vec::new(),
        }
    }

    fn start_units(&mut self) -> Result<(), PlanError> {
        self.connect();
        for id in self.order.clone() {
            if !self.is_compute(id) || self.is_hollow(id) {
                continue;
            }
            let kernel = match self.block_kernels.get(&id) {
                Some(block) => Some(UnitKernel::Block(Box::new(block.clone()))),
                None if self.is_extern(id) => None,
                None => {
                    let built = self.build(&[id], self.space_of(id));
                    let built = built.map_err(|refusal| self.alone(id, refusal))?;
                    Some(UnitKernel::Generated(Box::new(built)))
                }
            };
            self.unit_of.insert(id, self.units.len());
            self.units.push(Some(Unit { nodes: vec![id], kernel }));
        }
        self.sequence = Sequence::new(self.units.len());
        Ok(())
    }

    fn alone(&self, id: NodeId, refusal: Refusal) -> PlanError {
        PlanError::Alone { node: self.label(id), refusal }
    }

    pub(super) fn label(&self, id: NodeId) -> String {
        self.graph.origin(id).map_or_else(|| crate::kernel::name_of(id), String::from)
    }

    /// The reference shape of a node's own kernel and which of its dimensions are reduced.
    pub(super) fn space_of(&self, id: NodeId) -> Space {
        if let Op::Reduce { dims, .. } = &self.graph.node(id).op {
            let operand = self.graph.operands(id)[0];
            let shape = self.graph.ty(operand).shape.clone();
            let reduced = (0..shape.len()).map(|d| dims.contains(&(d as u8))).collect();
            return Space { shape, reduced, mix_order: None };
        }
        let shape = self.graph.ty(id.into()).shape.clone();
        let reduced = SmallVec::from_elem(false, shape.len());
        Space { shape, reduced, mix_order: None }
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

    /// Builds the kernel of some nodes over a domain, with the stores that the rest of the graph needs.
    fn build(&self, nodes: &[NodeId], space: Space) -> Result<Built, Refusal> {
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
            let results = (0..self.graph.node(id).outs.len() as u16).map(|out| ValueRef { node: id, out });
            roots.extend(results.filter(|&value| self.is_stored(value, &inside)));
        }
        let group = Group { nodes: inside, transparent: Arc::clone(&self.transparent), roots, space };
        let mut kernel = collapse(self.graph, &group, &Strides(self.graph))?;
        in_place::order_stores(self.graph, &mut kernel);
        let tiling = choose(&kernel, self.profile.machine);
        let cost = price(&kernel, &tiling, self.profile);
        Ok(Built { group, kernel, tiling, cost })
    }

    /// Merges along edges, operands before users; into each user first the operand of most bytes: what is merged into it decides
    /// what else can be.
    fn grow(&mut self) {
        for consumer in self.order.clone() {
            let Some(mut sources) = self.sources.get(&consumer).cloned() else { continue };
            sources.sort_by_key(|&producer| Reverse(self.bytes_made(producer)));
            for producer in sources {
                let verdict = self.try_edge(producer, consumer);
                self.decisions.push(Decision { producer, consumer, verdict });
            }
        }
    }

    /// Bytes of the largest result of a node.
    fn bytes_made(&self, id: NodeId) -> u64 {
        self.graph.node(id).outs.iter().map(TensorType::bytes).max().unwrap_or(0)
    }

    fn try_edge(&mut self, producer: NodeId, consumer: NodeId) -> Verdict {
        let (Some(&a), Some(&b)) = (self.unit_of.get(&producer), self.unit_of.get(&consumer)) else {
            // One without elements is computed by no kernel.
            return Verdict::Illegal(Refusal::Empty);
        };
        match self.kernels(a, b) {
            _ if a == b => Verdict::Fused,
            Err(verdict) => verdict,
            Ok(_) if self.early.nodes.contains(&producer) => Verdict::Memory,
            Ok(_) => self.try_merge(a, b),
        }
    }

    /// The kernels of two units, or why they have none that could be one.
    fn kernels(&self, a: usize, b: usize) -> Result<[&UnitKernel; 2], Verdict> {
        let kernel = |unit: usize| match &self.units[unit] {
            None => Err(Verdict::Cycle),
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

    /// Whether a unit runs as soon as it can.
    fn is_early(&self, unit: usize) -> bool {
        self.units[unit].iter().flat_map(|u| &u.nodes).any(|node| self.early.nodes.contains(node))
    }

    /// Merges unit `b` into unit `a`, which comes first, if that is legal and pays.
    fn try_merge(&mut self, a: usize, b: usize) -> Verdict {
        let [first, second] = match self.kernels(a, b) {
            Ok(kernels) => kernels,
            Err(verdict) => return verdict,
        };
        if !self.hints.is_empty() && !self.hinted(a, b, Hints::allow) {
            return Verdict::Hint;
        }
        if let (UnitKernel::Generated(x), UnitKernel::Generated(y)) = (first, second)
            && let Err(refusal) = within(x.size() + y.size())
        {
            return Verdict::Illegal(refusal);
        }
        let contraction = self.sequence.contraction(a, b, |unit| self.next_units(unit).collect());
        let Some(contraction) = contraction else { return Verdict::Cycle };
        let units = [a, b].into_iter().filter_map(|unit| self.units[unit].as_ref());
        let mut nodes: Vec<NodeId> = units.flat_map(|unit| &unit.nodes).copied().collect();
        nodes.sort_unstable_by_key(|n| self.rank[n]);
        let fused = match (first, second) {
            (UnitKernel::Block(_), _) => Verdict::Epilogue,
            (_, UnitKernel::Block(_)) => Verdict::Prologue,
            _ => Verdict::Fused,
        };
        let separate_us = first.us() + second.us();
        match self.build_merged(first, second, &nodes) {
            Ok(merged) if merged.us() <= separate_us || self.demanded_by_hints(a, b) => {
                if !self.rewrites.allow("group") {
                    return Verdict::Limit;
                }
                self.sequence.contract(&contraction);
                self.merge(a, b, nodes, merged);
                fused
            }
            Ok(merged) => Verdict::Slower { separate_us, merged_us: merged.us() },
            Err(refusal) => Verdict::Illegal(refusal),
        }
    }

    /// Whether something holds by the hints of all nodes of two units.
    fn hinted(&self, a: usize, b: usize, holds: fn(&Hints, Option<u32>, Option<u32>) -> bool) -> bool {
        let origins = |unit: usize| {
            let nodes = self.units[unit].iter().flat_map(|unit| &unit.nodes);
            nodes.map(|&node| self.graph.node(node).origin)
        };
        origins(a).all(|a| origins(b).all(|b| holds(self.hints, a, b)))
    }

    fn demanded_by_hints(&self, a: usize, b: usize) -> bool {
        !self.hints.is_empty() && self.hinted(a, b, Hints::demand)
    }

    /// The kernel of the nodes of two, of which the first comes first.
    fn build_merged(
        &self,
        first: &UnitKernel,
        second: &UnitKernel,
        nodes: &[NodeId],
    ) -> Result<UnitKernel, Refusal> {
        use UnitKernel::{Block, Generated};
        match (first, second) {
            (Generated(a), Generated(b)) => {
                let built = self.build_in_either(nodes, &a.group.space, &b.group.space)?;
                Ok(Generated(Box::new(built)))
            }
            (Generated(prologue), Block(_)) if !prologue.kernel.reduces.is_empty() => {
                Err(BlockRefusal::PrologueReduction.into())
            }
            (Generated(_), Block(block)) | (Block(block), Generated(_)) => {
                Ok(Block(Box::new(self.build_around(block, nodes)?)))
            }
            (Block(_), Block(_)) => Err(BlockRefusal::Both.into()),
        }
    }

    /// The merged kernel over the first of the candidate spaces that allows it.
    fn build_in_either(&self, nodes: &[NodeId], a: &Space, b: &Space) -> Result<Built, Refusal> {
        let mut refusal = Refusal::OtherReduction;
        for (position, space) in candidates(a, b).into_iter().enumerate() {
            match self.build(nodes, space).and_then(|built| within(built.size()).map(|()| built)) {
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
        self.units[a] = Some(Unit { nodes, kernel: Some(kernel) });
        self.units[b] = None;
    }

    /// The units that run after this one because they use its results or draw random numbers after it; some more
    /// than once, and itself where its nodes use each other.
    pub(super) fn next_units(&self, unit: usize) -> impl Iterator<Item = usize> {
        let nodes = self.units[unit].iter().flat_map(|u| &u.nodes);
        let next = nodes.flat_map(|n| self.users.get(n).into_iter().flatten().chain(self.next_random.get(n)));
        next.filter_map(|n| self.unit_of.get(n).copied())
    }

    /// Merges kernels that read the same large value and do not depend on each other.
    fn siblings(&mut self) {
        let mut readers: indexmap::IndexMap<ValueRef, Vec<usize>> = indexmap::IndexMap::new();
        for (position, unit) in self.units.iter().enumerate() {
            let Some(built) = unit.as_ref().and_then(Unit::generated) else { continue };
            for buffer in built.kernel.buffers.iter().filter(|b| !b.written) {
                readers.entry(buffer.value).or_default().push(position);
            }
        }
        for (value, units) in readers {
            let bytes = self.graph.ty(value).bytes();
            for pair in units.windows(2) {
                let early = pair.iter().any(|&unit| self.is_early(unit));
                if !early && self.worth_sharing(bytes, pair[0], pair[1]) {
                    self.try_merge(pair[0], pair[1]);
                }
            }
        }
    }

    /// Whether the shared bytes are a good part of what both kernels move, over domains of one size.
    fn worth_sharing(&self, bytes: u64, a: usize, b: usize) -> bool {
        let built = |u: usize| self.units[u].as_ref().and_then(Unit::generated);
        let (Some(x), Some(y)) = (built(a), built(b)) else { return false };
        let moved = |c: &Cost| c.bytes_read + c.bytes_written;
        let points = |k: &Kernel| (k.parallel_points(), k.reduced_points());
        let alike = points(&x.kernel) == points(&y.kernel)
            || points(&x.kernel).0 * points(&x.kernel).1 == points(&y.kernel).0 * points(&y.kernel).1;
        alike && bytes * 4 >= moved(&x.cost).max(moved(&y.cost))
    }

    /// Tries edges at block kernels once more: a producer may have had users that have joined the kernel since.
    fn retry_block_kernels(&mut self) {
        for at in 0..self.decisions.len() {
            let Decision { producer, consumer, ref verdict } = self.decisions[at];
            if !verdict.is_fused() && (self.is_in_block_kernel(producer) || self.is_in_block_kernel(consumer))
            {
                self.decisions[at].verdict = self.try_edge(producer, consumer);
            }
        }
    }

    fn is_in_block_kernel(&self, id: NodeId) -> bool {
        let unit = self.unit_of.get(&id).and_then(|&unit| self.units[unit].as_ref());
        unit.is_some_and(|unit| matches!(unit.kernel, Some(UnitKernel::Block(_))))
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
