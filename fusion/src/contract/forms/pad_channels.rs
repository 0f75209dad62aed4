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
//! The pixels under the taps of a row of a window are then one run of elements in channels-last memory, which a kernel of ours for matrix
//! units reads as one, and zeros around images are in that memory, too. libtorch's calls read no such runs.

#[cfg(test)]
mod tests;

use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal};

use super::Form;
use super::few_channels::FewChannels;
use crate::contract::blocks::LINE_DEPTH;
use crate::contract::price::{ComputedBy, FormWork};
use crate::contract::product::COPIED;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::types::{Dims, TensorType, row_major};

/// The least filters: a kernel for matrix units computes no fewer at a time.
const MIN_FILTERS: i64 = 16;

/// Windows of few channels, which are to be filled up.
struct PaddedChannels {
    few: FewChannels,
    /// The dimension of the channels in the images and in the filters.
    channels: [usize; 2],
}

/// The form of a contraction, where it is legal.
pub(super) fn legal(graph: &Graph, contract: NodeId) -> Option<Box<dyn Form>> {
    let few = FewChannels::of(graph, contract)?;
    let &[(left, right)] = few.channels.as_slice() else { return None };
    let last = few.axes.last()?;
    let fits = few.filters(graph) >= MIN_FILTERS
        // A run of several pixels, and no longer than a step of a kernel.
        && (2..=i64::from(LINE_DEPTH) / COPIED).contains(&last.kernel)
        && last.dilation == 1
        && matches!(graph.ty(few.operands[0]).dtype.elem(), Some(Elem::F16 | Elem::Bf16));
    let channels = [usize::from(left), usize::from(right)];
    fits.then(|| -> Box<dyn Form> { Box::new(PaddedChannels { few, channels }) })
}

impl Form for PaddedChannels {
    fn name(&self) -> &'static str {
        "pad-channels"
    }

    fn work(&self, graph: &Graph) -> FormWork {
        // A step of the sum for each row of taps.
        let rows = self.few.axes.iter().rev().skip(1).map(|window| window.kernel).product::<i64>();
        self.few.filled_up(graph, ComputedBy::Kernel, rows * i64::from(LINE_DEPTH))
    }

    fn apply(self: Box<Self>, graph: &mut Graph) {
        let [images, filters] = self.few.operands;
        let images = filled_up(graph, images, self.channels[0]);
        let filters = filled_up(graph, filters, self.channels[1]);
        let node = graph.node(self.few.windows).clone();
        let mut outs = node.outs.clone();
        for ty in &mut outs {
            let mut shape = ty.shape.clone();
            shape[self.channels[0]] = COPIED;
            *ty = TensorType::contiguous(ty.dtype, &shape, ty.device);
        }
        let windows = graph.add(node.op, &[images], outs, node.origin);
        graph.set_operand(self.few.contract, 0, windows.into());
        graph.set_operand(self.few.contract, 1, filters);
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
    shape[rank - 1] = COPIED;
    let none = Dims::from_elem(0, rank);
    let pad = View::Pad { low: none.clone(), interior: none, fill: Literal::float(elem, 0.0) };
    let filled = add(graph, pad, last, &shape);
    let strides = row_major(&shape);
    let of = |dims: &[i64]| back.iter().map(|&dim| dims[usize::from(dim)]).collect();
    let ty = TensorType { shape: of(&shape), strides: of(&strides), ..ty };
    graph.add(Op::View(View::Permute(back)), &[filled], [ty], origin).into()
}
