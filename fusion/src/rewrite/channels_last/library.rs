//! Convolutions of libtorch's on a GPU in channels-last.
//!
//! ```text
//! %3 = aten::conv2d(input=%0, weight=%1, ...) : bf16[N,F,H,W]
//! ->
//! %2 = view permute[0,1,2,3](%0) : bf16[N,C,H,W]{HWC,1,WC,C}     stored in this order, unless it lies so already
//! %3 = aten::conv2d(input=%2, weight=%1, ...) : bf16[N,F,H,W]{HWF,1,WF,F}
//! %4 = view permute[0,2,3,1](%3) : bf16[N,H,W,F]                 what pointwise operators read
//! ```
//!
//! cuDNN has tensor cores multiply halves in channels-last alone: images and results in another order are copied in each call. Where
//! several convolutions follow each other, with pointwise operators, pooling and concatenations between them, everything stays
//! in channels-last, and what is copied are the first images and the last results. Where eager's result lies in channels-last because the
//! images do, cuDNN copies the filters in each call; a kernel in its place reads them only in that order.

use super::{ResultLayout, apply_to_call, lies_in, may_be_channels_last};
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::library_form::ContractionForm;
use crate::machine::Profile;
use crate::rewrite_limit::Rewrites;
use crate::types::{Device, TensorType};
use tilefuse_block::Elem;

/// Brings libtorch's convolutions into channels-last where less is copied so.
pub(crate) fn channels_last(graph: &mut Graph, profile: &Profile, rewrites: &Rewrites) {
    if !profile.machine.is_gpu() {
        return;
    }
    for node in graph.topological().unwrap_or_default() {
        // Operators behind a convolution that was changed are other nodes now.
        let conv = Some(node).filter(|&node| graph.contains(node));
        let Some(conv) = conv.and_then(|node| Convolution::of(graph, node)) else { continue };
        if conv.pays(graph) && rewrites.allow("channels-last") {
            conv.apply(graph);
        }
    }
}

/// A call of a convolution of halves over a batch of images with two axes.
struct Convolution {
    node: NodeId,
    /// Positions of images and weight.
    operands: [u16; 2],
    kind: Kind,
}

/// How cuDNN computes a convolution. Measured on an H100 at 64 images, microseconds as the tensors lie and in channels-last:
/// 38 and 33 for 64 filters of one tap at 56 x 56, 125 and 67 for those of 3 x 3, 273 and 64 for 144 depthwise ones of 3 x 3.
enum Kind {
    Pointwise,
    Dense,
    Depthwise,
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
        (alike && out.rank() == 4 && distinct == 1).then_some(Convolution {
            node,
            operands: [form.lhs, form.rhs],
            kind,
        })
    }

    fn operand(&self, graph: &Graph, which: usize) -> ValueRef {
        graph.operands(self.node)[usize::from(self.operands[which])]
    }

    /// Whether fewer bytes are copied in channels-last than as the tensors lie, or the result lies so and as many are.
    fn pays(&self, graph: &Graph) -> bool {
        let [images, weight] = [0, 1].map(|which| self.operand(graph, which));
        let bytes = |value: ValueRef| graph.ty(value).bytes();
        let (read, written) = (bytes(images), bytes(self.node.into()));
        let filters = if lies_last(graph, weight) { 0 } else { bytes(weight) };
        let lies = lies_last(graph, images);
        if !graph.ty(self.node.into()).is_contiguous() {
            return !lies || filters > 0;
        }
        let inside = match self.kind {
            // A product of matrices, in either order.
            Kind::Pointwise => 0,
            Kind::Dense => read + written + filters,
            // libtorch has kernels for images as they lie, which take up to four times as long as cuDNN's.
            Kind::Depthwise => 2 * (read + written),
        };
        let as_it_lies = inside + if lies { read } else { 0 };
        let takes = |user: NodeId, _: &ContractionForm, position: u16| {
            Convolution::of(graph, user).is_some_and(|conv| conv.operands[0] == position)
        };
        let stays = may_be_channels_last(graph, self.node, &takes);
        // A kernel that computes the images stores them in either order.
        let stored = matches!(graph.node(images.node).op, Op::Map(_) | Op::Cast | Op::Concat { .. });
        let last = if lies || stored { 0 } else { read } + if stays { 0 } else { written } + filters;
        last < as_it_lies
    }

    fn apply(&self, graph: &mut Graph) {
        for which in [0, 1] {
            let value = self.operand(graph, which);
            if let Some(last) = in_channels_last(graph, value) {
                graph.set_operand(self.node, self.operands[which], last);
            }
        }
        if let Some(layout) = ResultLayout::channels_last(&graph.ty(self.node.into()).shape, true) {
            apply_to_call(graph, self.node, &layout);
        }
    }
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
