//! Windows that do not overlap as views: what a convolution of patches reads.
//!
//! ```text
//! %2 = view window[2,3] kernel[16,16]          %4 = view reshape(%0) : bf16[8,3,14,16,14,16]
//!        stride[16,16](%0)               ->    %5 = view permute[0,2,4,1,3,5](%4) : bf16[8,14,14,3,16,16]
//!        : bf16[8,3,14,14,16,16]               %6 = view reshape(%5) : bf16[8,14,14,768]
//! %3 = contract sum[1,4,5]x[1,2,3](%2, %1)     %7 = view reshape(%1) : bf16[512,768]
//!        : f32[8,14,14,512]                    %3 = contract sum[3]x[1](%6, %7) : f32[8,14,14,512]
//! ```
//!
//! The contraction is then a product over a copy of the patches, whose rows are aligned where patches have whole multiples of 16 bytes.

#[cfg(test)]
mod tests;

use smallvec::SmallVec;
use tilefuse_block::ScalarFn;

use super::Form;
use super::few_channels::FewChannels;
use crate::contract::price::{ComputedBy, FormWork};
use crate::contract::product::COPIED;
use crate::contraction::{Contraction, Window};
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::types::{DType, Dims, TensorType};

/// Windows of few channels that do not overlap, with filters `[F, C, kernel]`.
struct Patches {
    few: FewChannels,
    rounding: Option<Rounding>,
}

/// The form of a contraction, where it is legal.
pub(super) fn legal(graph: &Graph, contract: NodeId) -> Option<Box<dyn Form>> {
    let few = FewChannels::of(graph, contract)?;
    let fits = is_disjoint(&few.axes) && few.filter == 0;
    let rounding = Rounding::of(graph, contract).filter(|_| fits)?;
    Some(Box::new(Patches { few, rounding }))
}

impl Form for Patches {
    fn name(&self) -> &'static str {
        "space-to-depth"
    }

    fn work(&self, graph: &Graph) -> FormWork {
        let few = &self.few;
        let (out, filters) = (graph.ty(few.contract.into()), graph.ty(few.operands[1]));
        let depth = filters.numel() / few.filters(graph).max(1);
        let rows = out.numel() / few.filters(graph).max(1);
        let patches = TensorType::contiguous(filters.dtype, &[rows, depth], filters.device);
        let by = if depth % COPIED == 0 { ComputedBy::CallOrKernel } else { ComputedBy::UnalignedCall };
        let copies = vec![patches.bytes() as f64];
        FormWork { by, copies, ..FormWork::of_call(out, [&patches, filters], depth) }
    }

    fn apply(self: Box<Self>, graph: &mut Graph) {
        self.few.to_patches(graph);
        if let Some(rounding) = self.rounding {
            rounding.apply(graph);
        }
    }
}

impl FewChannels {
    /// Makes it a product of its patches.
    fn to_patches(&self, graph: &mut Graph) {
        let origin = graph.node(self.contract).origin;
        let add = |graph: &mut Graph, view: View, value: ValueRef, shape: &[i64]| -> ValueRef {
            let ty = graph.ty(value);
            let ty = TensorType::contiguous(ty.dtype, shape, ty.device);
            graph.add(Op::View(view), &[value], [ty], origin).into()
        };
        let patches = patches(graph, self.windows, &self.axes);
        // Sums in the order of the filters' dimensions.
        let mut sums = self.contraction.sum.clone();
        sums.sort_by_key(|&(_, right)| right);
        let others = self.contraction.others(0, graph.ty(patches).rank());
        let order: SmallVec<[u8; 6]> =
            others.iter().copied().chain(sums.iter().map(|&(left, _)| left)).collect();
        let from = graph.ty(patches).shape.clone();
        let permuted: Dims = order.iter().map(|&dim| from[usize::from(dim)]).collect();
        let depth: i64 = permuted[others.len()..].iter().product();
        let merged: Dims = permuted[..others.len()].iter().copied().chain([depth]).collect();
        let left = add(graph, View::Permute(order), patches, &permuted);
        let left = add(graph, View::Reshape, left, &merged);
        let filters = self.operands[1];
        let count = self.filters(graph);
        let right = add(graph, View::Reshape, filters, &[count, depth]);
        graph.set_operand(self.contract, 0, left);
        graph.set_operand(self.contract, 1, right);
        let node = graph.node_mut(self.contract);
        let sum = SmallVec::from_slice(&[(others.len() as u8, 1)]);
        node.op = Op::Contract(Contraction { batch: SmallVec::new(), sum });
        // The result of a convolution has strides of its own, that of a product is row-major.
        for ty in &mut node.outs {
            *ty = TensorType::contiguous(ty.dtype, &ty.shape, ty.device);
        }
    }
}

fn is_disjoint(windows: &[Window]) -> bool {
    let elements: i64 = windows.iter().map(|window| window.kernel).product();
    elements > 1 && windows.iter().all(|window| window.stride == window.kernel && window.dilation == 1)
}

/// What libtorch computes in the call of a convolution of short floats, behind the permutation that brings channels to their place: it
/// comes before it, as behind a product.
struct Rounding {
    product: NodeId,
    order: SmallVec<[u8; 6]>,
    /// A vector of the channels that is added.
    bias: Option<ValueRef>,
    /// The last node of it.
    root: NodeId,
}

impl Rounding {
    /// That of a contraction, none where it is not rounded; `None` where it is in another form.
    fn of(graph: &Graph, product: NodeId) -> Option<Option<Rounding>> {
        let operand = *graph.operands(product).first()?;
        if graph.ty(operand).dtype == graph.ty(product.into()).dtype {
            return Some(None);
        }
        let permutation = only_user(graph, product)?;
        let Op::View(View::Permute(order)) = &graph.node(permutation).op else { return None };
        let order = order.clone();
        let mut root = only_user(graph, permutation)?;
        let mut bias = None;
        if let (Op::Map(ScalarFn::Add), &[a, b]) = (&graph.node(root).op, graph.operands(root).as_slice()) {
            let channels = graph.ty(product.into()).rank() - 1;
            let axis = order.iter().position(|&dim| usize::from(dim) == channels)?;
            let added = if a.node == permutation { b } else { a };
            bias = Some(vector(graph, added, axis)?);
            root = only_user(graph, root)?;
        }
        let rounds =
            graph.node(root).op == Op::Cast && graph.ty(root.into()).dtype == graph.ty(operand).dtype;
        rounds.then_some(Some(Rounding { product, order, bias, root }))
    }

    fn apply(self, graph: &mut Graph) {
        let ty = graph.ty(self.product.into()).clone();
        let origin = graph.node(self.root).origin;
        let add =
            |graph: &mut Graph, op: Op, operands: &[ValueRef], dtype: DType, shape: &[i64]| -> ValueRef {
                graph.add(op, operands, [TensorType::contiguous(dtype, shape, ty.device)], origin).into()
            };
        let mut value = ValueRef::from(self.product);
        if let Some(bias) = self.bias {
            let mut shape = Dims::from_elem(1, ty.rank());
            shape[ty.rank() - 1] = graph.ty(bias).numel();
            let reshape = || Op::View(View::Reshape);
            let vector = add(graph, reshape(), &[bias], graph.ty(bias).dtype, &shape[ty.rank() - 1..]);
            let vector = add(graph, Op::Cast, &[vector], ty.dtype, &shape[ty.rank() - 1..]);
            let vector = add(graph, reshape(), &[vector], ty.dtype, &shape);
            let vector = add(graph, Op::View(View::Expand), &[vector], ty.dtype, &ty.shape);
            value = add(graph, Op::Map(ScalarFn::Add), &[value, vector], ty.dtype, &ty.shape);
        }
        let rounded = graph.ty(self.root.into()).clone();
        let value = add(graph, Op::Cast, &[value], rounded.dtype, &ty.shape);
        let value = graph.add(Op::View(View::Permute(self.order)), &[value], [rounded], origin);
        graph.replace_uses(self.root.into(), value.into());
    }
}

fn only_user(graph: &Graph, id: NodeId) -> Option<NodeId> {
    let read = graph.outputs.iter().any(|value| value.node == id)
        || graph.updates.iter().any(|update| update.value.node == id);
    match graph.users(id).as_slice() {
        &[(user, _)] if !read => Some(user),
        _ => None,
    }
}

/// The vector along `axis` that is widened and repeated along the other dimensions; `None` where that is something else.
fn vector(graph: &Graph, value: ValueRef, axis: usize) -> Option<ValueRef> {
    let (rank, elements) = (graph.ty(value).rank(), graph.ty(value).shape[axis]);
    let mut value = value;
    let mut is_cast = false;
    let mut is_along_axis = false;
    loop {
        let shape = &graph.ty(value).shape;
        is_along_axis |= shape.len() == rank
            && shape[axis] == elements
            && shape.iter().enumerate().all(|(dim, &size)| dim == axis || size == 1);
        match graph.node(value.node).op {
            Op::View(View::Expand) if !is_along_axis => {}
            Op::View(View::Reshape) if is_along_axis => {}
            Op::Cast if !std::mem::replace(&mut is_cast, true) => {}
            _ => break,
        }
        value = *graph.operands(value.node).first()?;
    }
    (is_cast && is_along_axis).then_some(value)
}

/// The windows as a view of the operand, without what lies behind the last of them.
fn patches(graph: &mut Graph, id: NodeId, windows: &[Window]) -> ValueRef {
    let node = graph.node(id).clone();
    let mut value = graph.operands(id)[0];
    let add = |graph: &mut Graph, view: View, value: ValueRef, shape: &[i64]| -> ValueRef {
        let ty = graph.ty(value);
        let ty = TensorType::contiguous(ty.dtype, shape, ty.device);
        graph.add(Op::View(view), &[value], [ty], node.origin).into()
    };
    let rank = graph.ty(value).rank();
    let mut split = Dims::new();
    let mut order: SmallVec<[u8; 6]> = SmallVec::new();
    let mut elements: SmallVec<[u8; 6]> = SmallVec::new();
    for dim in 0..rank {
        order.push(split.len() as u8);
        let mut shape = graph.ty(value).shape.clone();
        let Some(window) = windows.iter().find(|window| usize::from(window.dim) == dim) else {
            split.push(shape[dim]);
            continue;
        };
        let positions = shape[dim] / window.kernel;
        if shape[dim] != positions * window.kernel {
            shape[dim] = positions * window.kernel;
            value = add(graph, View::Slice { dim: dim as u8, start: 0, step: 1 }, value, &shape);
        }
        elements.push(split.len() as u8 + 1);
        split.extend([positions, window.kernel]);
    }
    order.extend(elements);
    let shape: Dims = order.iter().map(|&dim| split[usize::from(dim)]).collect();
    let value = add(graph, View::Reshape, value, &split);
    add(graph, View::Permute(order), value, &shape)
}
