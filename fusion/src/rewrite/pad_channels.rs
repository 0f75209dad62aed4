//! Few channels of convolutions on a GPU, filled up with zeros to as many as an instruction copies at a time.
//!
//! ```text
//! %2 = view pad[0,0,3,3]=0.0(%0) : bf16[64,3,230,230]       ->   %5 = view permute[0,2,3,1](%2) : bf16[64,230,230,3]
//!                                                                %6 = view pad[0,0,0,0]=0.0(%5) : bf16[64,230,230,8]
//!                                                                %7 = view permute[0,3,1,2](%6) : bf16[64,8,230,230]
//! %3 = view window[2,3] kernel[7,7] ...(%2)                      %3 = view window[2,3] kernel[7,7] ...(%7)
//! %4 = contract sum[1,4,5]x[1,2,3](%3, %1)                       %4 = contract sum[1,4,5]x[1,2,3](%3, %10)
//! ```
//!
//! The pixels under the taps of a row of a window are then one run of elements in channels-last memory, which a kernel for matrix units
//! reads as one. Zeros around images are in that memory, too. Of 64 images of 3 x 224 x 224 and filters of 7 x 7, cuDNN's call takes 440 us
//! of an H200 in bf16, where writing the result takes 12.

#[cfg(test)]
mod tests;

use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal};

use crate::contraction::Contraction;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::rewrite_limit::Rewrites;
use crate::types::{Dims, TensorType, row_major};

/// Channels of 16 bits that are copied at a time.
const CHANNELS: i64 = 8;

/// The most taps along the innermost axis: a run of more is longer than a step of a kernel.
const MAX_TAPS: i64 = 8;

/// The least filters: a kernel for matrix units computes no fewer at a time.
const MIN_FILTERS: i64 = 16;

/// Fills up the channels of convolutions; returns of how many.
pub(crate) fn pad_channels(graph: &mut Graph, rewrites: &Rewrites) -> usize {
    let nodes: Vec<NodeId> = graph.ids().collect();
    let mut made = 0;
    for id in nodes {
        if let Some(few) = FewChannels::of(graph, id)
            && rewrites.allow("pad-channels")
        {
            few.apply(graph);
            made += 1;
        }
    }
    made
}

/// A contraction of windows of few channels with filters.
struct FewChannels {
    product: NodeId,
    windows: NodeId,
    /// The dimension of the channels in the images and in the filters.
    channels: [usize; 2],
}

impl FewChannels {
    fn of(graph: &Graph, product: NodeId) -> Option<FewChannels> {
        let Op::Contract(contraction) = &graph.node(product).op else { return None };
        let Contraction { batch, sum } = contraction;
        let &[windows, filters] = graph.operands(product).as_slice() else { return None };
        let Op::View(View::Window(axes)) = &graph.node(windows.node).op else { return None };
        let ty = graph.ty(windows);
        let within = ty.shape.len() - axes.len();
        let (of_channels, of_taps): (Vec<_>, Vec<_>) =
            sum.iter().partition(|pair| usize::from(pair.0) < within);
        let &[&(left, right)] = of_channels.as_slice() else { return None };
        let last = axes.last()?;
        let all = &graph.ty(filters).shape;
        let &[count] = contraction.others(1, all.len()).as_slice() else { return None };
        let fits = batch.is_empty()
            && of_taps.len() == axes.len()
            && all[usize::from(count)] >= MIN_FILTERS
            && axes.iter().all(|window| window.dim != left)
            && ty.shape[usize::from(left)] < CHANNELS
            && (2..=MAX_TAPS).contains(&last.kernel)
            && last.dilation == 1
            && matches!(ty.dtype.elem(), Some(Elem::F16 | Elem::Bf16));
        let channels = [usize::from(left), usize::from(right)];
        fits.then_some(FewChannels { product, windows: windows.node, channels })
    }

    fn apply(self, graph: &mut Graph) {
        let images = graph.operands(self.windows).first().copied();
        let filters = graph.operands(self.product).get(1).copied();
        let (Some(images), Some(filters)) = (images, filters) else { return };
        let images = filled_up(graph, images, self.channels[0]);
        let filters = filled_up(graph, filters, self.channels[1]);
        let node = graph.node(self.windows).clone();
        let mut outs = node.outs.clone();
        for ty in &mut outs {
            let mut shape = ty.shape.clone();
            shape[self.channels[0]] = CHANNELS;
            *ty = TensorType::contiguous(ty.dtype, &shape, ty.device);
        }
        let windows = graph.add(node.op, &[images], outs, node.origin);
        graph.set_operand(self.product, 0, windows.into());
        graph.set_operand(self.product, 1, filters);
    }
}

/// A value with zeros behind its channels, which are adjacent in memory.
fn filled_up(graph: &mut Graph, value: ValueRef, channels: usize) -> ValueRef {
    let ty = graph.ty(value).clone();
    let Some(elem) = ty.dtype.elem() else { return value };
    let origin = graph.node(value.node).origin;
    let add = |graph: &mut Graph, view: View, value: ValueRef, shape: &[i64]| -> ValueRef {
        let ty = TensorType::contiguous(ty.dtype, shape, ty.device);
        graph.add(Op::View(view), &[value], [ty], origin).into()
    };
    let rank = ty.rank();
    let order: SmallVec<[u8; 6]> =
        (0..rank).filter(|&dim| dim != channels).chain([channels]).map(|dim| dim as u8).collect();
    let back = (0..rank).map(|dim| match dim.cmp(&channels) {
        std::cmp::Ordering::Less => dim as u8,
        std::cmp::Ordering::Equal => rank as u8 - 1,
        std::cmp::Ordering::Greater => dim as u8 - 1,
    });
    let back: SmallVec<[u8; 6]> = back.collect();
    let mut shape: Dims = order.iter().map(|&dim| ty.shape[usize::from(dim)]).collect();
    let last = add(graph, View::Permute(order), value, &shape);
    shape[rank - 1] = CHANNELS;
    let none = Dims::from_elem(0, rank);
    let pad = View::Pad { low: none.clone(), interior: none, fill: Literal::float(elem, 0.0) };
    let filled = add(graph, pad, last, &shape);
    let strides = row_major(&shape);
    let of = |dims: &[i64]| back.iter().map(|&dim| dims[usize::from(dim)]).collect();
    let ty = TensorType { shape: of(&shape), strides: of(&strides), ..ty };
    graph.add(Op::View(View::Permute(back)), &[filled], [ty], origin).into()
}
