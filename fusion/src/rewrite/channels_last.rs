//! Results of kernels that lie in another order than eager's.
//!
//! ```text
//! %2 = conv2d %0, %1 : [N, F, H, W]        %2 = conv2d %0, %1 : [N, H, W, F]
//! %3 = map relu %2                         %3 = map relu %2   : [N, H, W, F]
//! %4 = conv2d %3, ...                      %4 = conv2d (permute %3), ...
//! ```
//!
//! The node's type becomes that of the memory, and a permutation gives those who read it what they know. Pointwise
//! operators and windows go before the permutation, so that what they compute lies in that order too; convolutions
//! behind it read the memory at its strides. This is done only where nobody else reads the result.

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::library_form::ContractionForm;
use crate::types::{Device, Dims, TensorType, row_major};

/// A result that is row-major with its dimensions in another order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultLayout {
    /// Sizes in the order in memory.
    pub shape: Dims,
    /// By dimension of the result: which dimension in memory it is.
    pub permutation: SmallVec<[u8; 6]>,
    /// By dimension in memory: which dimension of the result it is.
    pub inverse: SmallVec<[u8; 6]>,
}

impl ResultLayout {
    /// The order with the second dimension innermost, or without a batch the first one: `None` for a vector.
    pub(crate) fn channels_last(shape: &[i64], batched: bool) -> Option<ResultLayout> {
        let rank = u8::try_from(shape.len()).ok()?;
        let skip = u8::from(batched);
        let last = rank.checked_sub(1).filter(|&last| last > skip)?;
        let inverse: SmallVec<[u8; 6]> = (0..skip).chain(skip + 1..rank).chain([skip]).collect();
        let permutation: SmallVec<[u8; 6]> = (0..skip).chain([last]).chain(skip..last).collect();
        let shape = inverse.iter().map(|&d| shape[usize::from(d)]).collect();
        Some(ResultLayout { shape, permutation, inverse })
    }

    /// Strides of the result.
    pub fn strides(&self) -> Dims {
        let strides = row_major(&self.shape);
        self.permutation.iter().map(|&d| strides[usize::from(d)]).collect()
    }

    /// Whether a tensor of these strides and sizes lies in this order.
    pub(crate) fn is_order_of(&self, strides: &[i64], shape: &[i64]) -> bool {
        let own = self.strides();
        strides.len() == own.len() && (0..own.len()).all(|d| shape[d] == 1 || strides[d] == own[d])
    }
}

/// Whether all that read a node's result take it in any order: convolutions as their images, reductions of pixels, and
/// pointwise operators and windows whose results are read by such alone. `takes_any_strides` says of an operand of a call's whether
/// it is images that are read at whatever strides.
pub(crate) fn may_be_channels_last(
    graph: &Graph,
    node: NodeId,
    takes_any_strides: &dyn Fn(NodeId, &ContractionForm, u16) -> bool,
) -> bool {
    let mut seen = FxHashSet::default();
    let mut stack = vec![node];
    while let Some(at) = stack.pop() {
        if !seen.insert(at) {
            continue;
        }
        let kept =
            graph.outputs.iter().any(|v| v.node == at) || graph.updates.iter().any(|u| u.value.node == at);
        if kept {
            return false;
        }
        for (user, edge) in graph.users(at) {
            match &graph.node(user).op {
                _ if goes_before(graph, user) => stack.push(user),
                // One of its readers lies in that order already.
                Op::View(View::Permute(order)) if is_filters_last(order) => {}
                Op::Reduce { dims, .. } if dims.iter().all(|&d| d >= 2) => {}
                Op::View(View::Reshape) if is_read_by_kernels(graph, user) => {}
                Op::Aten(call)
                    if call.contraction().is_some_and(|form| takes_any_strides(user, form, edge.operand)) => {
                }
                _ => return false,
            }
        }
    }
    true
}

/// Whether kernels alone read another shape of a value, and do so at strides as quickly: on a GPU the statistics of a group norm walk
/// positions and a group's channels in whichever order these lie.
fn is_read_by_kernels(graph: &Graph, view: NodeId) -> bool {
    let kept = graph.outputs.iter().any(|output| output.node == view)
        || graph.updates.iter().any(|update| update.value.node == view);
    let computes = |user: NodeId| matches!(graph.node(user).op, Op::Map(_) | Op::Cast | Op::Reduce { .. });
    let on_gpu = matches!(graph.ty(view.into()).device, Device::Cuda(_));
    on_gpu && !kept && graph.users(view).iter().all(|&(user, _)| computes(user))
}

/// Whether a permutation brings the filters behind the pixels, with a batch before them or without.
fn is_filters_last(order: &[u8]) -> bool {
    let rank = order.len() as u8;
    let (with, without) = ([0].into_iter().chain(2..rank).chain([1]), (1..rank).chain([0]));
    order.iter().copied().eq(with) || order.iter().copied().eq(without)
}

/// Whether an operator computes the same of a permutation, permuted. Concatenations do so, too, but on a processor the loads of
/// a convolution choose between their operands, and a U-Net took 1.25 times as long with what was stored in channels-last.
fn goes_before(graph: &Graph, node: NodeId) -> bool {
    match graph.node(node).op {
        Op::Map(_) | Op::Cast | Op::View(View::Slice { .. } | View::Pad { .. }) => true,
        Op::Concat { .. } => matches!(graph.ty(node.into()).device, Device::Cuda(_)),
        _ => false,
    }
}

/// Makes a node's result lie in an order, and what pointwise operators compute of it.
pub(crate) fn apply(graph: &mut Graph, node: NodeId, layout: &ResultLayout) {
    let logical = graph.ty(node.into()).clone();
    let origin = graph.node(node).origin;
    if let Some(out) = graph.node_mut(node).outs.first_mut() {
        *out = TensorType::contiguous(logical.dtype, &layout.shape, logical.device);
    }
    let view = viewed(graph, node, layout, logical, origin);
    push_down(graph, view, layout);
}

/// The same of a call of libtorch's, whose result has the strides of an order.
pub(crate) fn apply_to_call(graph: &mut Graph, node: NodeId, layout: &ResultLayout) {
    let logical = graph.ty(node.into()).clone();
    let origin = graph.node(node).origin;
    let ty = TensorType::contiguous(logical.dtype, &layout.shape, logical.device);
    let memory = graph.add(Op::View(View::Permute(layout.inverse.clone())), &[], [ty], origin);
    let view = Op::View(View::Permute(layout.permutation.clone()));
    let view = graph.add(view, &[memory.into()], [logical], origin);
    graph.replace_uses(node.into(), view.into());
    graph.set_operand(memory, 0, node.into());
    if let Some(out) = graph.node_mut(node).outs.first_mut() {
        out.strides = layout.strides();
    }
    push_down(graph, view, layout);
}

/// Moves a permutation that gives a value in an order its own shape behind what computes the same before it.
fn push_down(graph: &mut Graph, view: NodeId, layout: &ResultLayout) {
    let mut views = vec![view];
    while let Some(view) = views.pop() {
        let Some(&memory) = graph.operands(view).first() else { continue };
        for (user, _) in graph.users(view) {
            if !graph.contains(user) {
                continue;
            }
            match &graph.node(user).op {
                _ if goes_before(graph, user) => views.push(before(graph, user, layout)),
                // What was brought into the order before it was the value's own.
                Op::View(View::Permute(back)) if *back == layout.inverse => {
                    graph.replace_uses(user.into(), memory);
                    graph.remove(user);
                }
                _ => {}
            }
        }
    }
}

/// Makes all uses of a node whose result lies in an order uses of a permutation that has a type, and returns that.
fn viewed(
    graph: &mut Graph,
    node: NodeId,
    layout: &ResultLayout,
    ty: TensorType,
    origin: Option<u32>,
) -> NodeId {
    let view = graph.add(Op::View(View::Permute(layout.permutation.clone())), &[], [ty], origin);
    graph.replace_uses(node.into(), view.into());
    graph.set_operand(view, 0, node.into());
    view
}

/// An operator that goes before a permutation, with its operands and its result in an order; returns the permutation of
/// the result.
fn before(graph: &mut Graph, node: NodeId, layout: &ResultLayout) -> NodeId {
    let operands: SmallVec<[ValueRef; 4]> =
        graph.operands(node).into_iter().map(|value| in_order(graph, value, layout)).collect();
    let mut old = graph.node(node).clone();
    let ty = graph.ty(node.into()).clone();
    let result = TensorType::contiguous(ty.dtype, &in_memory(&ty.shape, layout), ty.device);
    match &mut old.op {
        Op::Concat { dim } | Op::View(View::Slice { dim, .. }) => {
            *dim = layout.permutation[usize::from(*dim)]
        }
        Op::View(View::Pad { low, interior, .. }) => {
            (*low, *interior) = (in_memory(low, layout), in_memory(interior, layout));
        }
        _ => {}
    }
    let own = graph.add(old.op, &operands, [result], old.origin);
    let view =
        graph.add(Op::View(View::Permute(layout.permutation.clone())), &[own.into()], [ty], old.origin);
    graph.replace_uses(node.into(), view.into());
    graph.remove(node);
    view
}

/// A value's elements in an order.
fn in_order(graph: &mut Graph, value: ValueRef, layout: &ResultLayout) -> ValueRef {
    if let Op::View(View::Permute(permutation)) = &graph.node(value.node).op
        && *permutation == layout.permutation
        && let Some(&operand) = graph.operands(value.node).first()
    {
        return operand;
    }
    let ty = graph.ty(value).clone();
    let (shape, strides) = (in_memory(&ty.shape, layout), in_memory(&ty.strides, layout));
    let ty = TensorType { shape, strides, ..ty };
    graph.add(Op::View(View::Permute(layout.inverse.clone())), &[value], [ty], None).into()
}

/// Numbers by dimension, in the order in memory.
fn in_memory(dims: &[i64], layout: &ResultLayout) -> Dims {
    layout.inverse.iter().map(|&d| dims[usize::from(d)]).collect()
}

/// Why a convolution is libtorch's, with the order of its result where that is another than the dimensions'.
pub(crate) fn described(graph: &Graph, node: NodeId, reason: String) -> String {
    let Op::Aten(call) = &graph.node(node).op else { return reason };
    let ty = graph.ty(node.into());
    let is_conv = call.contraction().is_some_and(|form| form.window.is_some());
    let layout = ResultLayout::channels_last(&ty.shape, true).filter(|_| is_conv && !ty.is_contiguous());
    match layout.is_some_and(|layout| layout.is_order_of(&ty.strides, &ty.shape)) {
        true => format!("in channels-last: {reason}"),
        false => reason,
    }
}

/// Whether a value lies in an order: at its strides, or as a permutation of what is row-major in memory.
pub(crate) fn lies_in(graph: &Graph, value: ValueRef, layout: &ResultLayout) -> bool {
    let ty = graph.ty(value);
    let memory = || {
        let operand = *graph.operands(value.node).first()?;
        let Op::View(View::Permute(order)) = &graph.node(value.node).op else { return None };
        Some(*order == layout.permutation && graph.ty(operand).is_contiguous())
    };
    layout.is_order_of(&ty.strides, &ty.shape) || memory() == Some(true)
}

/// A convolution's images that are read as they lie.
pub(crate) struct StridedImages {
    node: NodeId,
    position: u16,
    before: ValueRef,
    view: NodeId,
}

/// Lets a convolution read images that are a permutation of what lies in memory at the strides that they have there.
pub(crate) fn read_at_strides(graph: &mut Graph, node: NodeId) -> Option<StridedImages> {
    let Op::Aten(call) = &graph.node(node).op else { return None };
    let position = call.contraction().filter(|form| form.window.is_some())?.lhs;
    let before = *graph.operands(node).get(usize::from(position))?;
    let Op::View(View::Permute(permutation)) = graph.node(before.node).op.clone() else { return None };
    let &memory = graph.operands(before.node).first()?;
    let strides = &graph.ty(memory).strides;
    let strides: Dims = permutation.iter().map(|&d| strides[usize::from(d)]).collect();
    let ty = graph.ty(before).clone();
    if strides == ty.strides || !graph.ty(memory).is_contiguous() {
        return None;
    }
    let origin = graph.node(before.node).origin;
    let op = Op::View(View::Permute(permutation));
    let view = graph.add(op, &[memory], [TensorType { strides, ..ty }], origin);
    graph.set_operand(node, position, view.into());
    Some(StridedImages { node, position, before, view })
}

/// Whether a value is a permutation that is read at the strides that it has in memory.
pub(crate) fn is_read_at_strides(graph: &Graph, value: ValueRef) -> bool {
    let permuted = matches!(graph.node(value.node).op, Op::View(View::Permute(_)));
    permuted && !graph.ty(value).is_contiguous()
}

impl StridedImages {
    /// Makes it undone.
    pub(crate) fn undo(self, graph: &mut Graph) {
        graph.set_operand(self.node, self.position, self.before);
        graph.remove(self.view);
    }
}
