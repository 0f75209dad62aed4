//! Growing groups, and from groups to steps.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::block_kernels::BuiltBlock;
use super::cost::{Cost, price};
use super::early::Early;
use super::in_place;
use super::liveness;
use super::memory::Memory;
use super::mix_order;
use super::place::{Place, strided};
use super::unit_order::Sequence;
use super::{
    Alignments, Decision, ExternStep, KernelKind, KernelStep, Plan, PlanError, Profile, Step, StepKind,
    Tuner, Verdict, machine, tuned, written_strides,
};
use crate::graph::{Graph, NodeId, Op, ValueRef};
use crate::kernel::{BlockRefusal, Group, KNode, Kernel, Layouts, Refusal, Space, coalesce};
use crate::rewrites::Rewrites;
use crate::schedule::{Tiling, Walk, choose, schedule_with};
use crate::types::{Dims, TensorType};

/// A step to be: a group of nodes in one kernel, or one libtorch call.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    nodes: Vec<NodeId>,
    /// `None` for a libtorch call.
    kernel: Option<UnitKernel>,
}

/// The kernel that computes a unit.
#[derive(Clone, Debug)]
enum UnitKernel {
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
    rewrites: &Rewrites,
) -> Result<Plan, PlanError> {
    let order = graph.topological().ok_or(PlanError::Cycle)?;
    let mut planner = Planner::new(&graph, profile, alignments, order, rewrites);
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
    early: Early,
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

/// How values lie in memory.
pub(super) struct Strides<'a>(pub(super) &'a Graph);

impl Layouts for Strides<'_> {
    fn strides(&self, value: ValueRef) -> (Dims, i64) {
        let ty = self.0.ty(value);
        let strides = match self.0.node(value.node).op {
            Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::Aten(_) => ty.strides.clone(),
            _ => written_strides(self.0, value),
        };
        let span = 1 + ty.shape.iter().zip(&strides).map(|(&n, &s)| (n - 1).max(0) * s).sum::<i64>();
        (strides, span)
    }
}

impl<'a> Planner<'a> {
    fn new(
        graph: &'a Graph,
        profile: &'a Profile,
        alignments: &'a Alignments,
        order: Vec<NodeId>,
        rewrites: &'a Rewrites,
    ) -> Planner<'a> {
        let rank = order.iter().enumerate().map(|(i, &n)| (n, i)).collect();
        Planner {
            graph,
            profile,
            alignments,
            rewrites,
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

    /// Finds what must be in memory.
    fn demand(&mut self) {
        self.find_transparent();
        self.find_block_kernels();
        let mut values: Vec<ValueRef> = Vec::new();
        for &id in &self.order {
            if self.is_extern(id) {
                values.extend(self.graph.operands(id));
            }
            values.extend(self.block_kernels.get(&id).into_iter().flat_map(BuiltBlock::strided));
        }
        values.extend(self.graph.outputs.iter().copied());
        values.extend(self.graph.updates.iter().map(|u| u.value));
        // What is in memory ends the views of others, which then may lie there at other strides than are recorded for them.
        let mut more = true;
        while more {
            let before = self.materialized.len();
            for &value in &values {
                self.demand_of(value);
            }
            more = self.materialized.len() > before;
        }
    }

    /// Finds what must be in memory for a value.
    fn demand_of(&mut self, value: ValueRef) {
        let base = match self.place(value) {
            Some(place) => place.base(),
            None => value,
        };
        match self.graph.node(base.node).op {
            Op::Input(_) | Op::Param(_) | Op::Const(_) => {}
            Op::Aten(_) if self.is_extern(base.node) => {}
            _ if self.transparent.contains(&base.node) => {
                self.materialized.insert(base.node);
            }
            _ => {
                self.demanded.insert(base);
            }
        }
    }

    /// Whether a node runs through libtorch.
    fn is_extern(&self, id: NodeId) -> bool {
        matches!(self.graph.node(id).op, Op::Aten(_)) && !self.block_kernels.contains_key(&id)
    }

    fn place(&self, value: ValueRef) -> Option<Place> {
        strided(self.graph, value, &self.materialized, &|base| Strides(self.graph).strides(base).0)
    }

    fn find_transparent(&mut self) {
        let gathered = super::gather::bases(self.graph);
        for &id in &self.order {
            let transparent = match &self.graph.node(id).op {
                Op::View(_) | Op::Scalar(_) | Op::Iota { .. } => true,
                Op::Map(_) | Op::Cast => !gathered.contains(&id) && self.is_cheap(id),
                _ => false,
            };
            if transparent {
                Arc::make_mut(&mut self.transparent).insert(id);
            }
        }
    }

    /// A few operations on operands that are much smaller than the result, or than what it is spread to; none of the
    /// operands computed by a kernel.
    fn is_cheap(&self, id: NodeId) -> bool {
        let mut stack = vec![id];
        let (mut bytes, mut cost) = (0, 0);
        let mut seen = FxHashSet::default();
        while let Some(at) = stack.pop() {
            if !seen.insert(at) {
                continue;
            }
            let node = self.graph.node(at);
            match &node.op {
                Op::Map(function) => cost += function.cost(),
                Op::Cast => cost += 1,
                Op::View(_) => {}
                Op::Scalar(_) | Op::Iota { .. } => continue,
                Op::Input(_) | Op::Param(_) | Op::Const(_) => {
                    bytes += node.outs.first().map_or(0, |t| t.bytes());
                    continue;
                }
                _ => return false,
            }
            if at != id && matches!(node.op, Op::Map(_) | Op::Cast) && !self.transparent.contains(&at) {
                return false;
            }
            stack.extend(self.graph.operands(at).iter().map(|v| v.node));
        }
        let own = self.graph.node(id).outs.first().map_or(0, |t| t.bytes());
        let small = cost <= 24 && bytes * 2 <= own.max(256);
        small || (cost <= 96 && self.spread(id) >= 16 * self.numel(id))
    }

    fn numel(&self, id: NodeId) -> i64 {
        self.graph.node(id).outs.first().map_or(0, TensorType::numel)
    }

    /// The least number of elements of what an element-by-element value is spread to before anything else uses it:
    /// a kernel computes it once for all elements that share it. Its own number where it is not spread.
    fn spread(&self, id: NodeId) -> i64 {
        let own = self.numel(id);
        let mut least = i64::MAX;
        let mut stack = vec![id];
        let mut seen = FxHashSet::from_iter([id]);
        while let Some(at) = stack.pop() {
            let named = |v: &ValueRef| v.node == at;
            if self.graph.outputs.iter().any(named) || self.graph.updates.iter().any(|u| named(&u.value)) {
                return own;
            }
            for (user, _) in self.graph.users(at) {
                match self.graph.node(user).op {
                    Op::View(_) => {}
                    Op::Map(_) | Op::Cast if self.numel(user) <= own => {}
                    Op::Map(_) | Op::Cast => {
                        least = least.min(self.numel(user));
                        continue;
                    }
                    _ => return own,
                }
                if seen.insert(user) {
                    stack.push(user);
                }
            }
        }
        if least == i64::MAX { own } else { least }
    }

    fn is_compute(&self, id: NodeId) -> bool {
        match self.graph.node(id).op {
            Op::Input(_) | Op::Param(_) | Op::Const(_) => false,
            _ => !self.transparent.contains(&id) || self.materialized.contains(&id),
        }
    }

    /// Has no elements and is no libtorch call: it needs an address, but no step.
    fn is_hollow(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        !matches!(node.op, Op::Aten(_)) && node.outs.iter().all(|t| t.numel() == 0)
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
            return Space { shape, reduced, crossed: None };
        }
        let shape = self.graph.ty(id.into()).shape.clone();
        let reduced = SmallVec::from_elem(false, shape.len());
        Space { shape, reduced, crossed: None }
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
        let mut kernel = coalesce(self.graph, &group, &Strides(self.graph))?;
        in_place::order_stores(self.graph, &mut kernel);
        let tiling = choose(&kernel, machine(self.profile));
        let cost = price(&kernel, &tiling, self.profile);
        Ok(Built { group, kernel, tiling, cost })
    }

    /// Whether a result of a unit's node must be in memory.
    pub(super) fn is_stored(&self, value: ValueRef, inside: &FxHashSet<NodeId>) -> bool {
        let ValueRef { node, .. } = value;
        let used = match self.graph.node(node).outs.len() {
            1 => self.users.get(&node).is_some_and(|u| u.iter().any(|n| !inside.contains(n))),
            _ => self.readers(value).any(|reader| !inside.contains(&reader)),
        };
        used || self.demanded.contains(&value) || self.materialized.contains(&node)
    }

    /// What reads a value, itself or through what is computed where it is used.
    pub(super) fn readers(&self, value: ValueRef) -> impl Iterator<Item = NodeId> {
        let direct = self.graph.users(value.node).into_iter().filter(move |(_, edge)| edge.out == value.out);
        let mut stack: Vec<NodeId> = direct.map(|(user, _)| user).collect();
        std::iter::from_fn(move || {
            while let Some(at) = stack.pop() {
                if !self.transparent.contains(&at) || self.materialized.contains(&at) {
                    return Some(at);
                }
                stack.extend(self.graph.users(at).iter().map(|(user, _)| *user));
            }
            None
        })
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
        let apart_us = first.us() + second.us();
        match self.build_merged(first, second, &nodes) {
            Ok(merged) if merged.us() <= apart_us => {
                if !self.rewrites.allow("group") {
                    return Verdict::Limit;
                }
                self.sequence.contract(&contraction);
                self.merge(a, b, nodes, merged);
                Verdict::Fused
            }
            Ok(merged) => Verdict::Slower { apart_us, merged_us: merged.us() },
            Err(refusal) => Verdict::Illegal(refusal),
        }
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
    fn next_units(&self, unit: usize) -> impl Iterator<Item = usize> {
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
            if *verdict != Verdict::Fused
                && (self.is_in_block_kernel(producer) || self.is_in_block_kernel(consumer))
            {
                self.decisions[at].verdict = self.try_edge(producer, consumer);
            }
        }
    }

    fn is_in_block_kernel(&self, id: NodeId) -> bool {
        let unit = self.unit_of.get(&id).and_then(|&unit| self.units[unit].as_ref());
        unit.is_some_and(|unit| matches!(unit.kernel, Some(UnitKernel::Block(_))))
    }

    /// Units in an order that respects dependencies and otherwise follows the graph's, or the recording's.
    fn unit_order(&self) -> Result<Vec<usize>, PlanError> {
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

    fn steps(&self, tuner: &mut Tuner<'_>) -> Result<(Vec<Step>, Vec<tilefuse_block::Program>), PlanError> {
        let mut programs = Vec::new();
        let mut known: FxHashMap<String, usize> = FxHashMap::default();
        let mut steps = Vec::new();
        for unit in self.unit_order()? {
            let Some(unit) = &self.units[unit] else { continue };
            steps.push(Step::from(match &unit.kernel {
                None => StepKind::Extern(self.extern_step(unit.nodes[0])),
                Some(UnitKernel::Block(block)) => {
                    StepKind::Kernel(self.block_step(unit, block, &mut programs, &mut known)?)
                }
                Some(UnitKernel::Generated(built)) => {
                    StepKind::Kernel(self.kernel_step(unit, built, &mut programs, &mut known, tuner)?)
                }
            }));
        }
        Ok((steps, programs))
    }

    fn extern_step(&self, node: NodeId) -> ExternStep {
        // Behind those of the call are what a kernel in its place would take.
        let own = match &self.graph.node(node).op {
            Op::Aten(call) => call.operand_count(),
            _ => usize::MAX,
        };
        let operands = self.graph.operands(node).into_iter().take(own);
        let operands = operands.map(|v| self.place_or_self(v)).collect();
        ExternStep { node, operands, reason: self.refused.get(&node).cloned() }
    }

    fn place_or_self(&self, value: ValueRef) -> Place {
        self.place(value).unwrap_or(Place::Value(value))
    }

    fn results(&self) -> (Vec<Place>, Vec<(NodeId, Place)>) {
        let outputs = self.graph.outputs.iter().map(|&v| self.place_or_self(v)).collect();
        let updates = self.graph.updates.iter().map(|u| (u.target, self.place_or_self(u.value))).collect();
        (outputs, updates)
    }

    fn block_step(
        &self,
        unit: &Unit,
        block: &BuiltBlock,
        programs: &mut Vec<tilefuse_block::Program>,
        known: &mut FxHashMap<String, usize>,
    ) -> Result<KernelStep, PlanError> {
        let program = block.program(self.kernel_name(&unit.nodes));
        // Layers that are alike have one program, which passes see once.
        let key = format!("{:?} {program:?}", block.grid());
        let program = match known.get(&key) {
            Some(&program) => program,
            None => {
                programs.push(block.optimized(program)?);
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
        programs: &mut Vec<tilefuse_block::Program>,
        known: &mut FxHashMap<String, usize>,
        tuner: &mut Tuner<'_>,
    ) -> Result<KernelStep, PlanError> {
        let align = |v: ValueRef| self.alignments.of(&self.graph.node(v.node).op);
        let align: Vec<u32> = built.kernel.buffers.iter().map(|b| align(b.value)).collect();
        let name = self.kernel_name(&unit.nodes);
        let machine = machine(self.profile);
        let scheduled = schedule_with(&name, &built.kernel, built.tiling.clone(), machine, &align)
            .map_err(|error| PlanError::Schedule { node: self.label(unit.nodes[0]), error })?;
        let chosen = tuned::choose(&name, built, scheduled, &align, self.profile, tuner);
        let (scheduled, tuned) = (chosen.scheduled, chosen.tuned);
        let program = *known.entry(format!("{:?}", scheduled.program)).or_insert_with(|| {
            programs.push(scheduled.program);
            programs.len() - 1
        });
        Ok(KernelStep {
            program,
            grid: [scheduled.grid, 1, 1],
            buffers: built.kernel.buffers.iter().map(|b| (b.value, b.written)).collect(),
            checks: built.kernel.checks(),
            in_place: in_place::pairs(self.graph, &built.kernel, &scheduled.tiling),
            nodes: unit.nodes.clone(),
            kind: kind_of(&built.kernel, &scheduled.tiling),
            tiling: Some(scheduled.tiling),
            tuned,
            bytes_read: built.cost.bytes_read,
            bytes_written: built.cost.bytes_written,
            flops: built.cost.flops,
            predicted_us: built.cost.us,
            note: None,
            parts: Vec::new(),
            horizontal_refusal: None,
        })
    }

    /// `fused_add_layer_norm` from the operators that the nodes come from.
    fn kernel_name(&self, nodes: &[NodeId]) -> String {
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
    found.extend(mix_order::crossed(a, b).into_iter().chain(mix_order::crossed(b, a)));
    found
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
