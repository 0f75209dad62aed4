//! Convolutions of halves in channels-last.
//!
//! ```text
//! %3 = aten::conv2d(input=%0, weight=%1, ...) : bf16[N,F,H,W]
//! ->
//! %2 = view permute[0,1,2,3](%0) : bf16[N,C,H,W]{HWC,1,WC,C}     stored in this order, unless it lies so already
//! %3 = aten::conv2d(input=%2, weight=%1, ...) : bf16[N,F,H,W]{HWF,1,WF,F}
//! %4 = view permute[0,2,3,1](%3) : bf16[N,H,W,F]                 what pointwise operators read
//! ```
//!
//! cuDNN has tensor cores multiply halves in channels-last alone: images, filters and results in another order are copied in each call.
//! Where several convolutions follow each other, with pointwise operators, pooling and concatenations between them, everything stays
//! in channels-last, and what is copied are the first images and the last results. Kernels of ours read and write this order alone.

#[cfg(test)]
mod tests;

use tilefuse_block::Elem;

use super::Form;
use crate::contract::prepack::unwritten_param;
use crate::contract::price::{ComputedBy, FormWork};
use crate::contract::product::COPIED;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::library_form::ContractionForm;
use crate::rewrite::channels_last::{ResultLayout, apply_to_call, lies_in, may_be_channels_last};
use crate::types::{Device, TensorType};

/// A call of a convolution of halves over a batch of images with two axes.
struct Convolution {
    node: NodeId,
    /// Positions of images and weight.
    operands: [u16; 2],
    kind: Kind,
    transposed: bool,
    /// Whether kernels of ours compute it in channels-last.
    has_kernel: bool,
}

/// How cuDNN computes a convolution. Measured on an H100 at 64 images, microseconds as the tensors lie and in channels-last:
/// 38 and 33 for 64 filters of one tap at 56 x 56, 125 and 67 for those of 3 x 3, 273 and 64 for 144 depthwise ones of 3 x 3.
enum Kind {
    /// A product of matrices, in either order.
    Pointwise,
    /// Products of windows.
    Dense,
    /// In channels-last. For images as they lie libtorch has kernels.
    Depthwise,
}

/// The form of a call, where it is legal.
pub(super) fn legal(graph: &Graph, node: NodeId) -> Option<Box<dyn Form>> {
    let conv = Convolution::of(graph, node)?;
    let out = graph.ty(node.into());
    let has_order = ResultLayout::channels_last(&out.shape, true)?.strides() == out.strides;
    let stay = conv.operands(graph).into_iter().all(|value| is_declared_last(graph.ty(value)));
    if has_order && stay { None } else { Some(Box::new(conv)) }
}

/// What a call computes and copies that is in no channels-last order.
pub(super) fn as_it_is(graph: &Graph, node: NodeId) -> Option<FormWork> {
    Some(Convolution::of(graph, node)?.as_it_is(graph))
}

impl Kind {
    /// A depthwise convolution with a filter of these extents; `None` where cuDNN has no kernel of its own for it in channels-last, and
    /// takes several times as long as libtorch does for images as they lie: five times for 9 x 9, in ConvMixer.
    fn depthwise(filter: &[i64]) -> Option<Kind> {
        matches!(filter, [3, 3] | [5, 5]).then_some(Kind::Depthwise)
    }
}

impl Convolution {
    fn of(graph: &Graph, node: NodeId) -> Option<Convolution> {
        let Op::Aten(call) = &graph.node(node).op else { return None };
        let form = call.contraction()?;
        let window = form.window.as_ref()?;
        let [out] = &graph.node(node).outs[..] else { return None };
        let half = matches!(out.dtype.elem(), Some(Elem::F16 | Elem::Bf16));
        let on_gpu = matches!(out.device, Device::Cuda(_));
        let lies = out.is_contiguous() || lies_last(graph, node.into());
        if !half || !on_gpu || !lies || out.numel() == 0 || !call.writes.is_empty() {
            return None;
        }
        let operands = graph.operands(node);
        let operand = |position: u16| operands.get(usize::from(position)).map(|&value| graph.ty(value));
        let (images, weight) = (operand(form.lhs)?, operand(form.rhs)?);
        let alike = [images, weight]
            .into_iter()
            .all(|ty| (ty.rank(), ty.dtype, ty.device) == (4, out.dtype, out.device) && ty.numel() > 0);
        let distinct = operands.iter().filter(|v| Some(*v) == operands.get(usize::from(form.lhs))).count();
        let kind = match window.groups {
            groups if groups > 1 && groups == images.shape[1] => Kind::depthwise(&weight.shape[2..])?,
            _ if weight.shape[2..].iter().all(|&n| n == 1) => Kind::Pointwise,
            _ => Kind::Dense,
        };
        let has_kernel = window.groups == 1
            && !window.transposed
            && images.shape[1] % COPIED == 0
            && weight.shape[0] >= COPIED;
        (alike && out.rank() == 4 && distinct == 1).then_some(Convolution {
            node,
            operands: [form.lhs, form.rhs],
            kind,
            transposed: window.transposed,
            has_kernel,
        })
    }

    /// Images and filters.
    fn operands(&self, graph: &Graph) -> [ValueRef; 2] {
        let all = graph.operands(self.node);
        self.operands.map(|position| all[usize::from(position)])
    }

    /// What it computes and moves, without copies.
    fn computed(&self, graph: &Graph, by: ComputedBy) -> FormWork {
        let [images, weight] = self.operands(graph).map(|value| graph.ty(value));
        let out = graph.ty(self.node.into());
        // Each filter multiplies the window of a pixel, and a transposed one adds to it.
        let pixels = if self.transposed { images } else { out };
        let depth = weight.numel() / weight.shape[0];
        FormWork {
            by,
            flops: 2.0 * pixels.numel() as f64 * depth as f64,
            bytes: (images.bytes() + weight.bytes() + out.bytes()) as f64,
            copies: Vec::new(),
            prepackable: Vec::new(),
        }
    }

    /// The call over tensors as they lie.
    fn as_it_is(&self, graph: &Graph) -> FormWork {
        let [images, weight] = self.operands(graph);
        let result = ValueRef::from(self.node);
        let follows = !graph.ty(result).is_contiguous();
        let (by, within) = match self.kind {
            // Where eager's result lies in channels-last, operands are brought into that order.
            _ if follows => (ComputedBy::Call, vec![images, weight]),
            Kind::Pointwise => (ComputedBy::Call, Vec::new()),
            Kind::Dense => (ComputedBy::Call, vec![images, result, weight]),
            Kind::Depthwise => (ComputedBy::NativeDepthwise, Vec::new()),
        };
        let is_last = |value: ValueRef| lies_last(graph, value);
        let stays = |value: &ValueRef| is_last(*value) && (follows || *value == weight);
        // Images in channels-last are brought out of it for a result in the order of its dimensions; those of one pixel are in both orders.
        let in_both = is_declared_last(graph.ty(images)) && graph.ty(images).is_contiguous();
        let before = Some(images).filter(|&images| !follows && is_last(images) && !in_both);
        let copied = within.into_iter().filter(|value| !stays(value)).chain(before);
        let copies = copied.map(|value| graph.ty(value).bytes() as f64).collect();
        FormWork { copies, ..self.computed(graph, by) }
    }
}

impl Form for Convolution {
    fn name(&self) -> &'static str {
        "channels-last"
    }

    fn work(&self, graph: &Graph) -> FormWork {
        let [images, weight] = self.operands(graph);
        let result = ValueRef::from(self.node);
        // A kernel that computes the images stores them in either order.
        let stored = matches!(graph.node(images.node).op, Op::Map(_) | Op::Cast | Op::Concat { .. });
        let takes = |user: NodeId, _: &ContractionForm, position: u16| {
            Convolution::of(graph, user).is_some_and(|conv| conv.operands[0] == position)
        };
        let stays = || may_be_channels_last(graph, self.node, &takes);
        let is_copied = |value: ValueRef| !lies_last(graph, value);
        let bytes = |value: ValueRef| graph.ty(value).bytes() as f64;
        let images = Some(images).filter(|&images| !stored && is_copied(images));
        let result = Some(result).filter(|&result| is_copied(result) && !stays());
        let weight = Some(weight).filter(|&weight| is_copied(weight));
        let (prepackable, in_each_call): (Vec<ValueRef>, Vec<ValueRef>) =
            weight.into_iter().partition(|&weight| unwritten_param(graph, weight).is_some());
        let by = if self.has_kernel { ComputedBy::CallOrKernel } else { ComputedBy::Call };
        FormWork {
            copies: images.into_iter().chain(result).chain(in_each_call).map(bytes).collect(),
            prepackable: prepackable.into_iter().map(bytes).collect(),
            ..self.computed(graph, by)
        }
    }

    fn apply(self: Box<Self>, graph: &mut Graph) {
        for (position, value) in self.operands.into_iter().zip(self.operands(graph)) {
            if let Some(last) = in_channels_last(graph, value) {
                graph.set_operand(self.node, position, last);
            }
        }
        if let Some(layout) = ResultLayout::channels_last(&graph.ty(self.node.into()).shape, true) {
            apply_to_call(graph, self.node, &layout);
        }
    }
}

/// Whether a type's strides are those of channels-last.
fn is_declared_last(ty: &TensorType) -> bool {
    let layout = ResultLayout::channels_last(&ty.shape, true);
    layout.is_some_and(|layout| layout.is_order_of(&ty.strides, &ty.shape))
}

/// Whether a value lies in channels-last.
fn lies_last(graph: &Graph, value: ValueRef) -> bool {
    let layout = ResultLayout::channels_last(&graph.ty(value).shape, true);
    layout.is_some_and(|layout| lies_in(graph, value, &layout))
}

/// A value as libtorch is to get it in channels-last; `None` where its type says so already.
fn in_channels_last(graph: &mut Graph, value: ValueRef) -> Option<ValueRef> {
    let ty = graph.ty(value).clone();
    let layout = ResultLayout::channels_last(&ty.shape, true)?;
    if layout.is_order_of(&ty.strides, &ty.shape) {
        return None;
    }
    let (source, permutation) = match &graph.node(value.node).op {
        Op::View(View::Permute(order)) if *order == layout.permutation && lies_in(graph, value, &layout) => {
            (graph.operands(value.node).first().copied()?, order.clone())
        }
        _ => (value, (0..ty.rank() as u8).collect()),
    };
    let origin = graph.node(value.node).origin;
    let ty = TensorType { strides: layout.strides(), ..ty };
    Some(graph.add(Op::View(View::Permute(permutation)), &[source], [ty], origin).into())
}
