//! The tensor graph: operators as nodes, operand positions as edges.
//!
//! One graph type serves two levels. *Functional*: [`Op::Aten`] calls that neither write nor alias. *Primitive*:
//! the small set of operators that kernels are generated from; calls that have no lowering stay [`Op::Aten`] and run
//! through libtorch (*extern*).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use indexmap::IndexMap;
use petgraph::Direction;
use petgraph::stable_graph::{EdgeReference, NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;
use smallvec::SmallVec;
use tilefuse_block::{Literal, Loc, ScalarFn};

use crate::block_kernel::{BlockKernelKind, Compared, Declined, MaybeKernel};
use crate::combiner::Combiner;
use crate::contraction::{Contraction, Window};
use crate::library_form::{ContractionForm, LibraryForm};
use crate::recording::Arg;
use crate::types::{DType, Device, Dims, TensorType};

/// A node of a [`Graph`].
pub type NodeId = NodeIndex<u32>;

/// A value of a graph: a result of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueRef {
    /// The node.
    pub node: NodeId,
    /// Which of its results.
    pub out: u16,
}

impl From<NodeId> for ValueRef {
    fn from(node: NodeId) -> ValueRef {
        ValueRef { node, out: 0 }
    }
}

/// How a view's element follows from its operand's. Sizes are those of the operand and the result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum View {
    /// The same elements in row-major order in another shape.
    Reshape,
    /// Result dimension `i` is operand dimension `perm[i]`.
    Permute(SmallVec<[u8; 6]>),
    /// Dimensions of size 1 repeated; operand and result have one rank.
    Expand,
    /// Element `i` along `dim` is the operand's `start + i * step`, `step >= 1`.
    Slice {
        /// The dimension.
        dim: u8,
        /// First element.
        start: i64,
        /// Distance between elements.
        step: i64,
    },
    /// Dimensions reversed.
    Flip(SmallVec<[u8; 6]>),
    /// The operand placed at an offset per dimension (0 or more), its elements apart, the rest filled with a literal.
    Pad {
        /// Elements before the operand, per dimension.
        low: Dims,
        /// Elements between two neighbours of the operand, per dimension.
        interior: Dims,
        /// What fills the rest, of the operand's element type.
        fill: Literal,
    },
    /// Windows over some dimensions, ascending: each of these becomes the position of the window, and a dimension of the
    /// elements of a window comes behind all others, in order. Windows may overlap.
    Window(SmallVec<[Window; 3]>),
}

/// Elements up to the last one of a dimension that [`View::Pad`] places; `None` where it cannot.
pub(crate) fn padded_size(low: i64, size: i64, interior: i64) -> Option<i64> {
    let apart = interior.checked_add(1)?.checked_mul((size - 1).max(0))?;
    let end = low.checked_add(apart)?.checked_add(size.min(1))?;
    (low >= 0 && interior >= 0).then_some(end)
}

/// A call of a libtorch operator.
#[derive(Clone, Debug, PartialEq)]
pub struct AtenCall {
    /// Operator with namespace, `aten::linear`.
    pub op: String,
    /// Overload; empty for the default one.
    pub overload: String,
    /// Arguments in schema order with their schema names; tensors are positions among the node's operands.
    pub args: Vec<(String, Arg<u16>)>,
    /// The recorder's handle for running it, where it came from a recording.
    pub replay: Option<u32>,
    /// Arguments (schema positions) that the operator writes: they are copied before the call, and the copies are
    /// further results of the node, after the operator's own.
    pub writes: SmallVec<[u16; 1]>,
    /// Draws random numbers: never removed, reordered against other such calls, or run twice.
    pub random: bool,
    /// What the call computes, for kernels that compute it instead.
    pub(crate) form: Option<LibraryForm>,
}

impl AtenCall {
    /// A call that no recording has, writes nothing and draws no random numbers.
    pub fn new<N: Into<String>>(
        op: &str,
        overload: &str,
        args: impl IntoIterator<Item = (N, Arg<u16>)>,
    ) -> AtenCall {
        AtenCall {
            op: op.into(),
            overload: overload.into(),
            args: args.into_iter().map(|(name, arg)| (name.into(), arg)).collect(),
            replay: None,
            writes: SmallVec::new(),
            random: false,
            form: None,
        }
    }

    /// The call of what it computes.
    pub(crate) fn of(self, form: LibraryForm) -> AtenCall {
        AtenCall { form: Some(form), ..self }
    }

    /// The contraction that it computes, where that is one.
    pub(crate) fn contraction(&self) -> Option<&ContractionForm> {
        match &self.form {
            Some(LibraryForm::Contraction(form)) => Some(form),
            _ => None,
        }
    }

    /// The argument of this schema name.
    pub fn arg(&self, name: &str) -> Option<&Arg<u16>> {
        self.args.iter().find(|(n, _)| n == name).map(|(_, a)| a)
    }

    /// How many operands the arguments name: those of the node's that a call in libtorch takes.
    pub fn operand_count(&self) -> usize {
        let tensors = self.args.iter().flat_map(|(_, arg)| arg.tensors());
        tensors.map(|position| usize::from(position) + 1).max().unwrap_or(0)
    }

    /// Operator and overload, `aten::add.Tensor`.
    pub fn full_name(&self) -> String {
        if self.overload.is_empty() { self.op.clone() } else { format!("{}.{}", self.op, self.overload) }
    }
}

/// The operator of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// The call's input of this index.
    Input(u32),
    /// A live tensor of the model: slot in the owner's list.
    Param(u32),
    /// A tensor held by value: slot in the owner's pool of constants.
    Const(u32),
    /// A literal of rank 0, or of any shape without elements.
    Scalar(Literal),
    /// A libtorch operator.
    Aten(Box<AtenCall>),
    /// What a block kernel computes that is no operator: an operand that is packed, the parts of a result. The node has the kernel.
    Kernel(BlockKernelKind),
    /// A scalar function on corresponding elements; operands have the result's shape. `f16` and `bf16` are computed
    /// in `f32` and rounded where the value is stored or cast.
    Map(ScalarFn),
    /// Conversion to the result's element type; never elided where it rounds.
    Cast,
    /// Position along `dim` of the result's shape, of the result's (integer) type. No operands.
    Iota {
        /// The dimension.
        dim: u8,
    },
    /// The operand's elements in another arrangement.
    View(View),
    /// Operands joined along a dimension.
    Concat {
        /// The dimension.
        dim: u8,
    },
    /// Elements combined along dimensions, which disappear from the shape: one value, or a tuple of them, which has as many
    /// results as operands, of the same element types. `f16` and `bf16` accumulate in `f32`.
    Reduce {
        /// The combiner.
        combine: Combiner,
        /// Dimensions, ascending.
        dims: SmallVec<[u8; 6]>,
    },
    /// Products of the elements of two operands that agree along pairs of dimensions, added along some of these: what XLA
    /// calls `dot_general`. Dimensions of the result: those of the batch, the others of the left operand, the others of the
    /// right one, in order. The result's type is the one that sums are held in: [`accumulator`](crate::accumulator) of the operands'.
    Contract(Contraction),
    /// `out[i...] = source[i... with i[dim] replaced by index[i...]]`. Operands: source, index (`i64` or `i32`, of
    /// the result's shape). An index out of range reads nothing; the runtime checks indices where eager would raise.
    Gather {
        /// The dimension.
        dim: u8,
    },
}

/// A node: operator, types of its results, and the captured operator that it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The operator.
    pub op: Op,
    /// One type per result.
    pub outs: SmallVec<[TensorType; 1]>,
    /// Index into [`Graph::origins`], for explanations.
    pub origin: Option<u32>,
    /// The kernel that computes it, or why it has none though it might; no part of the text form.
    pub kernel: Option<MaybeKernel>,
    /// The kernels that might compute it and libtorch's call, where they were compared; no part of the text form.
    pub compared: Vec<Compared>,
}

/// An edge: which result of the source is which operand of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Operand position at the target.
    pub operand: u16,
    /// Result of the source.
    pub out: u16,
}

/// A write-back: at the end of the call, the tensor of `target` takes the value `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// An [`Op::Input`] or [`Op::Param`] node.
    pub target: NodeId,
    /// Its new value, of the same type.
    pub value: ValueRef,
}

/// What an output shares memory with, where eager would return a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputAlias {
    /// Whose memory.
    pub target: AliasTarget,
    /// Sizes and strides of the output over that memory.
    pub ty: TensorType,
    /// Elements from the target's first element to the output's.
    pub offset: i64,
}

/// The owner of memory that an output shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AliasTarget {
    /// An [`Op::Input`] or [`Op::Param`] node, after the write-backs.
    Node(NodeId),
    /// Another output.
    Output(u32),
}

/// A tensor graph.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: StableDiGraph<Node, Edge>,
    /// Results in order, and behind them [`Graph::buffers`].
    pub outputs: Vec<ValueRef>,
    /// Write-backs in order.
    pub updates: Vec<Update>,
    /// Captured operators, as `aten::gelu #17`; nodes refer to them by index.
    pub origins: Vec<String>,
    /// Per output the memory that it shares with an input, a parameter or another output; empty, or as long as
    /// [`Graph::outputs`].
    pub aliases: Vec<Option<OutputAlias>>,
    /// Types of the last outputs, which the model does not return: memory that several returned outputs share and none
    /// of them covers.
    pub buffers: Vec<TensorType>,
    /// Inputs and parameters that a call views at an offset from the beginning of their storage: the graph stands for
    /// tensors at the same offsets in theirs.
    pub offsets: Vec<NodeId>,
    /// Values of [`Op::Const`] nodes of rank 0 by slot, where they are known.
    pub literals: IndexMap<u32, Literal>,
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Adds a node with operands; the caller gives the types of its results.
    pub fn add(
        &mut self,
        op: Op,
        operands: &[ValueRef],
        outs: impl IntoIterator<Item = TensorType>,
        origin: Option<u32>,
    ) -> NodeId {
        let outs = outs.into_iter().collect();
        let id = self.nodes.add_node(Node { op, outs, origin, kernel: None, compared: Vec::new() });
        for (position, value) in operands.iter().enumerate() {
            self.nodes.add_edge(value.node, id, Edge { operand: position as u16, out: value.out });
        }
        id
    }

    /// Where kernels of the graph run: the CUDA device on which it has tensors, else the host.
    pub fn kernel_device(&self) -> Device {
        let devices = self.ids().flat_map(|id| self.node(id).outs.iter().map(|ty| ty.device));
        devices.into_iter().find(|device| matches!(device, Device::Cuda(_))).unwrap_or(Device::Cpu)
    }

    /// Keeps a call in libtorch, for this reason: no pass replaces it.
    pub fn keep_call(&mut self, id: NodeId, why: Declined) {
        self.node_mut(id).kernel = Some(Err(why));
    }

    /// A literal of a type's element type in every element of its shape.
    pub(crate) fn add_filled(&mut self, literal: Literal, ty: &TensorType, origin: Option<u32>) -> ValueRef {
        let typed = |shape: &[i64]| TensorType::contiguous(DType::Elem(literal.elem), shape, ty.device);
        let mut value: ValueRef = self.add(Op::Scalar(literal), &[], [typed(&[])], origin).into();
        if ty.rank() > 0 {
            let ones = Dims::from_elem(1, ty.rank());
            let all_ones = ones == ty.shape;
            let ones = if all_ones { ty.clone() } else { typed(&ones) };
            value = self.add(Op::View(View::Reshape), &[value], [ones], origin).into();
            if !all_ones {
                value = self.add(Op::View(View::Expand), &[value], [ty.clone()], origin).into();
            }
        }
        value
    }

    /// Adds an operand behind those of a node.
    pub(crate) fn add_operand(&mut self, id: NodeId, value: ValueRef) {
        let operand = self.operand_positions(id).len() as u16;
        self.nodes.add_edge(value.node, id, Edge { operand, out: value.out });
    }

    /// The node.
    ///
    /// # Panics
    /// If `id` is not of this graph.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// What the node comes from, where that is known.
    pub fn origin(&self, id: NodeId) -> Option<&str> {
        self.origins.get(self.node(id).origin? as usize).map(String::as_str)
    }

    /// What the node comes from, as a location in block programs.
    pub fn loc(&self, id: NodeId) -> Loc {
        self.node(id).origin.map_or(Loc::UNKNOWN, Loc::new)
    }

    /// What operations of block programs at a location come from, where that is known.
    pub fn located(&self, loc: Loc) -> Option<&str> {
        self.origins.get(loc.number()? as usize).map(String::as_str)
    }

    /// A new origin of this text, for nodes to come.
    pub fn add_origin(&mut self, text: String) -> u32 {
        self.origins.push(text);
        self.origins.len() as u32 - 1
    }

    /// The node, to change.
    ///
    /// # Panics
    /// If `id` is not of this graph.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id]
    }

    /// The type of a value.
    ///
    /// # Panics
    /// If `value` is not of this graph.
    pub fn ty(&self, value: ValueRef) -> &TensorType {
        &self.nodes[value.node].outs[usize::from(value.out)]
    }

    /// Results in order.
    pub fn results(&self, node: NodeId) -> impl Iterator<Item = ValueRef> + use<> {
        (0..self.node(node).outs.len() as u16).map(move |out| ValueRef { node, out })
    }

    /// Operands in order.
    pub fn operands(&self, id: NodeId) -> SmallVec<[ValueRef; 4]> {
        let edges = self.nodes.edges_directed(id, Direction::Incoming);
        let of = |e: EdgeReference<'_, Edge>| {
            (e.weight().operand, ValueRef { node: e.source(), out: e.weight().out })
        };
        let mut found: SmallVec<[(u16, ValueRef); 4]> = edges.map(of).collect();
        // The last edge comes first, as a rule of the last operand.
        found.reverse();
        if !found.is_sorted_by_key(|&(position, _)| position) {
            found.sort_unstable_by_key(|&(position, _)| position);
        }
        found.into_iter().map(|(_, value)| value).collect()
    }

    /// Makes another value the operand at a position.
    pub(crate) fn set_operand(&mut self, id: NodeId, position: u16, value: ValueRef) {
        let edges = self.nodes.edges_directed(id, Direction::Incoming);
        let old: Vec<_> = edges.filter(|e| e.weight().operand == position).map(|e| e.id()).collect();
        for edge in old {
            self.nodes.remove_edge(edge);
        }
        self.nodes.add_edge(value.node, id, Edge { operand: position, out: value.out });
    }

    /// The positions that edges into a node name, in no order.
    pub(crate) fn operand_positions(&self, id: NodeId) -> Vec<u16> {
        self.nodes.edges_directed(id, Direction::Incoming).map(|e| e.weight().operand).collect()
    }

    /// Puts all tensors on a device, as if the model had run there.
    pub fn move_to(&mut self, device: Device) {
        for node in self.nodes.node_weights_mut() {
            node.outs.iter_mut().for_each(|ty| ty.device = device);
        }
    }

    /// Uses of any result of a node: user, operand position there, result used; in a deterministic order.
    pub fn users(&self, id: NodeId) -> SmallVec<[(NodeId, Edge); 4]> {
        let mut found: SmallVec<[(NodeId, Edge); 4]> =
            self.nodes.edges_directed(id, Direction::Outgoing).map(|e| (e.target(), *e.weight())).collect();
        found.sort_unstable_by_key(|&(user, edge)| (user, edge.operand));
        found
    }

    /// Whether the node is of this graph.
    pub fn contains(&self, id: NodeId) -> bool {
        self.nodes.contains_node(id)
    }

    /// Nodes in order of their index, which is an order of creation.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.node_indices()
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.node_count()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.node_count() == 0
    }

    /// Whether the node is a call that draws random numbers.
    pub(crate) fn is_random(&self, id: NodeId) -> bool {
        matches!(&self.node(id).op, Op::Aten(call) if call.random)
    }

    /// Nodes with operands before users and random calls in order of creation; among ready nodes the lowest index
    /// first. `None` if there is a cycle.
    pub fn topological(&self) -> Option<Vec<NodeId>> {
        let bound = self.nodes.node_indices().map(|n| n.index() + 1).max().unwrap_or(0);
        let mut missing: Vec<usize> = vec![0; bound];
        let mut next_random: Vec<Option<NodeId>> = vec![None; bound];
        let mut last_random: Option<NodeId> = None;
        for id in self.ids() {
            missing[id.index()] += self.nodes.edges_directed(id, Direction::Incoming).count();
            if self.is_random(id)
                && let Some(last) = last_random.replace(id)
            {
                next_random[last.index()] = Some(id);
                missing[id.index()] += 1;
            }
        }
        let ready = self.ids().filter(|id| missing[id.index()] == 0).map(Reverse);
        let mut ready: BinaryHeap<_> = ready.collect();
        let mut order = Vec::with_capacity(self.len());
        while let Some(Reverse(id)) = ready.pop() {
            order.push(id);
            let users = self.nodes.edges_directed(id, Direction::Outgoing).map(|edge| edge.target());
            for next in users.chain(next_random[id.index()]) {
                let left = &mut missing[next.index()];
                *left -= 1;
                if *left == 0 {
                    ready.push(Reverse(next));
                }
            }
        }
        (order.len() == self.len()).then_some(order)
    }

    /// Makes every use of `from`, outputs and write-backs included, a use of `to`.
    pub fn replace_uses(&mut self, from: ValueRef, to: ValueRef) {
        let edges: Vec<_> = self
            .nodes
            .edges_directed(from.node, Direction::Outgoing)
            .filter(|e| e.weight().out == from.out)
            .map(|e| (e.id(), e.target(), e.weight().operand))
            .collect();
        for (edge, user, operand) in edges {
            self.nodes.remove_edge(edge);
            self.nodes.add_edge(to.node, user, Edge { operand, out: to.out });
        }
        for output in self.outputs.iter_mut().filter(|o| **o == from) {
            *output = to;
        }
        for update in self.updates.iter_mut().filter(|u| u.value == from) {
            update.value = to;
        }
    }

    /// Removes a node and its edges.
    pub fn remove(&mut self, id: NodeId) {
        self.nodes.remove_node(id);
    }

    /// Removes nodes that no output, write-back or random call needs; inputs stay.
    pub fn remove_unused(&mut self) {
        let mut needed = fixed_set(self);
        let mut stack: Vec<NodeId> = self.outputs.iter().map(|v| v.node).collect();
        stack.extend(self.updates.iter().flat_map(|u| [u.target, u.value.node]));
        stack.extend(self.aliases.iter().flatten().filter_map(|alias| match alias.target {
            AliasTarget::Node(node) => Some(node),
            AliasTarget::Output(_) => None,
        }));
        stack.extend(&self.offsets);
        stack.extend(self.ids().filter(|&id| match &self.nodes[id].op {
            Op::Input(_) => true,
            Op::Aten(call) => call.random,
            _ => false,
        }));
        while let Some(id) = stack.pop() {
            if !std::mem::replace(&mut needed[id.index()], true) {
                stack.extend(self.nodes.neighbors_directed(id, Direction::Incoming));
            }
        }
        self.nodes.retain_nodes(|_, id| needed[id.index()]);
    }
}

fn fixed_set(graph: &Graph) -> Vec<bool> {
    vec![false; graph.nodes.node_indices().map(|n| n.index() + 1).max().unwrap_or(0)]
}
