//! Groups: which nodes are computed by one kernel. The form between a graph and its plan.
//!
//! ```text
//! groups {
//!   0: libtorch: %3
//!   1: kernel over [8, 4], reduced [1], tile 4, warps 1: %4, %5; stores %5
//!   where used: %6
//! }
//! ```

use std::sync::Arc;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};

use super::built_block::BuiltBlock;
use super::cost::Cost;
use super::early::Early;
use super::ir::KernelKind;
use super::reasons::{Decision, Verdict};
use super::tuner::Tuned;
use super::unit_order::Sequence;
use crate::block_kernel::Declined;
use crate::graph::{Graph, NodeId, Op, ValueRef};
use crate::hints::Hints;
use crate::kernel::{Classes, Group, Kernel, Memo, Named, Space};
use crate::machine::Profile;
use crate::place::Alignments;
use crate::rewrite_limit::Rewrites;
use crate::schedule::{Scheduled, Tiling, Walk};

/// What planning goes by, beside the graph.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    /// The machine.
    pub(crate) profile: &'a Profile,
    /// Where tensors of the model and the caller lie.
    pub(crate) alignments: &'a Alignments,
    /// How many rewrites may be made.
    pub(crate) rewrites: &'a Rewrites,
    /// What the user asks for.
    pub(crate) hints: &'a Hints,
}

/// A step to be: a group of nodes in one kernel, or one libtorch call.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) nodes: Vec<NodeId>,
    /// `None` for a libtorch call.
    pub(super) kernel: Option<UnitKernel>,
    /// How many merges there had been when it came to be this.
    pub(super) version: usize,
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
    pub(super) fn us(&self) -> f64 {
        match self {
            UnitKernel::Generated(built) => built.cost.us,
            UnitKernel::Block(block) => block.cost.us,
        }
    }

    /// Whether it reduces rows and columns of one tensor.
    pub(super) fn is_mix_order(&self) -> bool {
        matches!(self, UnitKernel::Generated(built) if built.group.space.mix_order.is_some())
    }

    /// The buffers in parameter order, and whether each is written.
    pub(super) fn buffers(&self) -> Vec<(ValueRef, bool)> {
        match self {
            UnitKernel::Generated(built) => built.buffers(),
            UnitKernel::Block(block) => block.buffers.clone(),
        }
    }
}

impl Unit {
    pub(super) fn generated(&self) -> Option<&Built> {
        match self.kernel.as_ref()? {
            UnitKernel::Generated(built) => Some(built),
            UnitKernel::Block(_) => None,
        }
    }
}

/// A generated kernel.
#[derive(Clone, Debug)]
pub(super) struct Built {
    pub(super) group: Group,
    pub(super) kernel: Kernel,
    pub(super) tiling: Tiling,
    /// How the tiling was chosen, where by measuring several.
    pub(super) tuned: Option<Tuned>,
    /// Its program, where one was emitted to choose among schedules.
    pub(super) scheduled: Option<Scheduled>,
    /// With the tiling that was predicted to be the best one.
    pub(super) cost: Cost,
}

/// A kernel with the tiles and the cost that the machine gives it.
#[derive(Clone, Debug)]
pub(super) struct Priced {
    pub(super) kernel: Kernel,
    pub(super) tiling: Tiling,
    pub(super) cost: Cost,
}

impl Named for Priced {
    fn kernel(&mut self) -> &mut Kernel {
        &mut self.kernel
    }
}

impl Built {
    /// About the instructions of its code; loops over a row have what they need of the levels below once more each.
    pub(super) fn size(&self) -> usize {
        let levels = self.kernel.reduces.iter().map(|r| r.level).max().unwrap_or(0) as usize;
        self.kernel.size * if self.tiling.walk == Walk::Loops { 1 + levels } else { 1 }
    }

    /// The buffers in parameter order, and whether each is written.
    pub(super) fn buffers(&self) -> Vec<(ValueRef, bool)> {
        self.kernel.buffers.iter().map(|buffer| (buffer.value, buffer.written)).collect()
    }
}

/// A graph whose nodes are divided into groups, each a kernel or a libtorch call.
#[derive(Clone, Debug)]
pub struct Groups {
    pub(super) graph: Graph,
    pub(super) order: Vec<NodeId>,
    /// Calls with a block kernel, alone; they start units.
    pub(super) block_kernels: FxHashMap<NodeId, BuiltBlock>,
    /// Why a call that could have such a kernel has none.
    pub(super) refused: FxHashMap<NodeId, Declined>,
    /// Position of each node in `order`.
    pub(super) rank: FxHashMap<NodeId, usize>,
    /// Nodes that are computed where they are used: views, literals, iotas, cheap expressions of small operands.
    pub(super) transparent: Arc<FxHashSet<NodeId>>,
    /// Transparent nodes that are stored nevertheless, because something needs them in memory.
    pub(super) materialized: Arc<FxHashSet<NodeId>>,
    /// What is done to hold less.
    pub(super) early: Early,
    /// Results of compute nodes that are needed in memory by a libtorch call, an output or a write-back.
    pub(super) demanded: FxHashSet<ValueRef>,
    pub(super) units: Vec<Option<Unit>>,
    pub(super) unit_of: FxHashMap<NodeId, usize>,
    pub(super) sequence: Sequence,
    /// How many merges there have been.
    pub(super) merges: usize,
    /// Why two units, each of a version, do not merge, if no third one is in the way.
    pub(super) unmerged: FxHashMap<[(usize, usize); 2], Verdict>,
    /// The next call that draws random numbers, of each that does: they draw in the order of the capture.
    pub(super) next_random: FxHashMap<NodeId, NodeId>,
    /// Nearest non-transparent users of each node, through transparent ones.
    pub(super) users: FxHashMap<NodeId, Vec<NodeId>>,
    /// Nearest non-transparent producers of each node.
    pub(super) sources: FxHashMap<NodeId, Vec<NodeId>>,
    pub(super) decisions: Vec<Decision>,
    /// What kernels depend on of the graph's nodes.
    pub(super) classes: Classes,
    /// The kernels that were built so far, with tiles.
    pub(super) built: Memo<Priced>,
    /// What was built of the neighbours of block kernels.
    pub(super) neighbours: Memo<Kernel>,
    /// The time that scheduling has taken so far.
    pub(super) scheduling: Duration,
}

impl Groups {
    /// Nodes in an order in which they can be computed, none of them in a unit.
    pub(super) fn ungrouped(graph: Graph, order: Vec<NodeId>, early: Early) -> Groups {
        Groups {
            classes: Classes::of(&graph),
            built: Memo::default(),
            neighbours: Memo::default(),
            graph,
            rank: order.iter().enumerate().map(|(i, &n)| (n, i)).collect(),
            order,
            block_kernels: FxHashMap::default(),
            refused: FxHashMap::default(),
            transparent: Arc::default(),
            materialized: Arc::default(),
            early,
            demanded: FxHashSet::default(),
            units: Vec::new(),
            unit_of: FxHashMap::default(),
            sequence: Sequence::default(),
            merges: 0,
            unmerged: FxHashMap::default(),
            next_random: FxHashMap::default(),
            users: FxHashMap::default(),
            sources: FxHashMap::default(),
            decisions: Vec::new(),
            scheduling: Duration::ZERO,
        }
    }

    pub(super) fn label(&self, id: NodeId) -> String {
        self.graph.origin(id).map_or_else(|| crate::kernel::name_of(id), String::from)
    }

    /// A unit, by the operators that it computes.
    pub(super) fn unit_label(&self, unit: usize) -> String {
        let nodes = self.units[unit].iter().flat_map(|unit| &unit.nodes);
        let mut labels: Vec<String> = nodes.map(|&node| self.label(node)).collect();
        labels.dedup();
        labels.join(", ")
    }

    /// The reference shape of a node's own kernel and which of its dimensions are reduced.
    pub(super) fn space_of(&self, id: NodeId) -> Space {
        if let Op::Reduce { dims, .. } = &self.graph.node(id).op {
            let operand = self.graph.operands(id)[0];
            let shape = self.graph.ty(operand).shape.clone();
            let reduced = (0..shape.len()).map(|d| dims.contains(&(d as u8))).collect();
            return Space { shape, reduced, mix_order: None };
        }
        Space::parallel(self.graph.ty(id.into()).shape.clone())
    }

    /// The units that run after this one because they use its results or draw random numbers after it; some more
    /// than once, and itself where its nodes use each other.
    pub(super) fn next_units(&self, unit: usize) -> impl Iterator<Item = usize> {
        let nodes = self.units[unit].iter().flat_map(|u| &u.nodes);
        let next = nodes.flat_map(|n| self.users.get(n).into_iter().flatten().chain(self.next_random.get(n)));
        next.filter_map(|n| self.unit_of.get(n).copied())
    }

    /// The units that there are, each after those that it needs.
    pub(super) fn in_sequence(&self) -> impl Iterator<Item = (usize, &Unit)> {
        self.sequence.iter().filter_map(|unit| Some((unit, self.units[unit].as_ref()?)))
    }
}

impl std::fmt::Display for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "groups {{")?;
        for (at, (_, unit)) in self.in_sequence().enumerate() {
            let nodes = names(unit.nodes.iter().copied());
            match &unit.kernel {
                None => write!(f, "  {at}: libtorch: {nodes}")?,
                Some(UnitKernel::Block(block)) => {
                    write!(f, "  {at}: {} kernel: {nodes}", KernelKind::Block(block.kernel().kind))?
                }
                Some(UnitKernel::Generated(built)) => {
                    write!(f, "  {at}: {}: {nodes}", described(built))?;
                }
            }
            let buffers = unit.kernel.as_ref().map_or_else(Vec::new, UnitKernel::buffers);
            let stored = buffers.iter().filter(|buffer| buffer.1).map(|&(value, _)| match value.out {
                0 => format!("%{}", value.node.index()),
                out => format!("%{}.{out}", value.node.index()),
            });
            match stored.collect::<Vec<String>>() {
                stored if stored.is_empty() => writeln!(f)?,
                stored => writeln!(f, "; stores {}", stored.join(", "))?,
            }
        }
        let inlined = |id: &NodeId| self.transparent.contains(id) && !self.materialized.contains(id);
        let inlined = names(self.order.iter().copied().filter(inlined));
        if !inlined.is_empty() {
            writeln!(f, "  where used: {inlined}")?;
        }
        writeln!(f, "}}\n{}", self.graph)
    }
}

fn names(nodes: impl Iterator<Item = NodeId>) -> String {
    nodes.map(|id| format!("%{}", id.index())).collect::<Vec<String>>().join(", ")
}

/// What a generated kernel runs over, and its tile.
fn described(built: &Built) -> String {
    let space = &built.group.space;
    let reduced: Vec<usize> = (0..space.shape.len()).filter(|&d| space.reduced[d]).collect();
    let reduced = if reduced.is_empty() { String::new() } else { format!(", reduced {reduced:?}") };
    let mix_order = if space.mix_order.is_some() { "mix-order " } else { "" };
    let tuned = if built.tuned.is_some() { " (measured)" } else { "" };
    format!("{mix_order}kernel over {:?}{reduced}, tile {}{tuned}", &space.shape[..], built.tiling)
}
