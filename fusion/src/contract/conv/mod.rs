//! Convolutions as block programs.
//!
//! A convolution reads images as they lie, `[batch, channels, ..image]`, and weights `[filters, channels / groups,
//! ..kernel]`; nothing is copied to another order first, so that its pointwise neighbours fuse by element.
//!
//! An instance computes a *block* of some filters at some pixels in registers. It goes through the taps of the kernel
//! and the channels; at each, pixels of the image, which are vectors, are multiplied by weights, which are scalars.
//! What lies outside of the image is masked off and counts as an exact zero. Where each filter reads one channel
//! (`depthwise`), an instance computes some pixels of several filters, one filter after the other.
//!
//! Where the filters are weights that may be packed, `packed` is used instead, in which vectors are of filters: it reads
//! images at any strides, and writes results with the filters innermost where all that read them can take that. `rows`
//! computes products of matrices in the same way.
//!
//! Transposed convolutions are computed so too: a `WindowAxis` says which taps reach a pixel of the result. `packed_filter` makes
//! panels of their filters before each call where these are no weights. `transposed` computes those whose filters fill no vectors,
//! by vectors of pixels.
//!
//! Sums are in `f32`, of `f64` in `f64`, in an order that depends on nothing but the shapes.

mod block;
mod call;
mod dense;
mod depthwise;
mod geometry;
mod implicit_gemm;
mod make;
mod packed;
mod packed_filter;
#[cfg(test)]
mod packed_tests;
mod rows;
#[cfg(test)]
mod schedule_tests;
#[cfg(test)]
mod tests;
mod tile;
mod transposed;
#[cfg(test)]
mod transposed_tests;

use tilefuse_block::dynamic::BuildError;

use super::call_kernels::Template;
use super::host::Vectors;
use super::operand::{Source, in_memory, source};
use super::prepack::{Panels, unwritten_param};
use crate::block_kernel::{Layout, Tied};
use crate::channels_last;
use crate::graph::{Graph, NodeId};
use crate::library_form::ContractionForm;

use block::Block;
pub(super) use call::declined;
use geometry::{Conv, ConvProgram, Image, whole};
pub(super) use implicit_gemm::as_product;
pub(super) use rows::Rows;
use tile::Extents;

/// The template of a call of a convolution on so many threads.
pub(super) fn template(
    graph: &Graph,
    node: NodeId,
    form: &ContractionForm,
    threads: u32,
) -> Option<Template> {
    let read = call::read(graph, node, form)?;
    if read.conv.is_transposed() {
        return transposed::template(graph, node, &read, threads);
    }
    let read = Some(read).filter(|read| read.row_major)?;
    let conv = &read.conv;
    let made = conv.program(&Block::of(conv, threads)).ok()?;
    let tied = read.operands.iter().map(|&at| Tied::Operand(at)).chain([Tied::Result(0)]).collect();
    Some(whole(conv, made, tied, Vec::new()))
}

/// The template of a call whose filters are prepacked, or packed before it. Its result has the filters innermost where the call's has, or where
/// that is row-major and `turn` says so.
pub(super) fn packed(
    graph: &Graph,
    node: NodeId,
    form: &ContractionForm,
    turn: bool,
    vectors: Vectors,
) -> Option<Template> {
    let read = call::read(graph, node, form)?;
    let out = graph.node(node).outs.first()?;
    let result_layout = read.channels_last_layout(&out.shape)?;
    let is_channels_last = result_layout.is_order_of(&out.strides, &out.shape);
    if !is_channels_last && !out.is_contiguous() {
        return None;
    }
    let last = turn || is_channels_last;
    let operands = graph.operands(node);
    let place = |at: usize| -> Option<(u16, _)> {
        let position = *read.operands.get(at)?;
        Some((position, in_memory(graph, *operands.get(usize::from(position))?, position)))
    };
    let ((images, lie), (weights, filters)) = (place(0)?, place(1)?);
    if let Some(&bias) = read.operands.get(2) {
        let bias = source(graph, *operands.get(usize::from(bias))?, bias);
        if bias.layout != Layout::Elements {
            return None;
        }
    }
    let (conv, image) = packed::flat(&read.conv, &read.image(&lie)?);
    let tile = Extents::of(&conv, vectors);
    packed::check(&conv, &image, &tile).ok()?;
    if conv.is_depthwise() && !last && !conv.is_transposed() {
        return None;
    }
    let value = *operands.get(usize::from(weights))?;
    let panels = match unwritten_param(graph, value) {
        Some(_) => Ok(panels(graph, node, &read, &tile)?),
        None if conv.is_transposed() => {
            let filters = source(graph, value, weights);
            let panels = matrix(&filters, &read.conv, &tile)?;
            Err(packed_filter::of(&filters, &panels, conv.elem, tile.lanes, out.device)?)
        }
        None => return None,
    };
    let made = packed::program(&conv, &image, &tile, last).ok()?;
    let position = u16::try_from(operands.len()).ok()?;
    let bias = read.operands.get(2).map(|&at| Tied::Operand(at));
    let tied = [Tied::Operand(images), Tied::Operand(position)].into_iter();
    let tied = tied.chain(bias).chain([Tied::Result(0)]).collect();
    // The kernel does not read the weights themselves: they stay where they lie.
    let layouts = vec![(images, lie.layout), (weights, filters.layout)];
    let template = whole(&read.conv, made, tied, layouts);
    let (panels, operand_kernels) = match panels {
        Ok(panels) => (Some(panels), Vec::new()),
        Err(packed) => (None, vec![packed]),
    };
    Some(Template { panels, operand_kernels, result_layout: last.then_some(result_layout), ..template })
}

/// Whether a call reads the operand at a position as images at whatever strides.
fn takes_any_strides(
    graph: &Graph,
    node: NodeId,
    form: &ContractionForm,
    position: u16,
    vectors: Vectors,
) -> bool {
    let takes = || {
        let read = call::read(graph, node, form)?;
        let others = read.operands.iter().skip(1);
        if read.operands.first() != Some(&position) || others.into_iter().any(|&at| at == position) {
            return None;
        }
        let tile = Extents::of(&read.conv, vectors);
        panels(graph, node, &read, &tile)?;
        let [images, ..] = read.conv.lengths();
        let axes = read.conv.axes.iter().rev().scan(read.conv.channels, |pitch, axis| {
            let own = *pitch;
            *pitch *= axis.image;
            Some(own as i64)
        });
        let mut axes: Vec<i64> = axes.collect();
        axes.reverse();
        let batch = (images / read.conv.batch) as i64;
        let image = Image { batch, channel: 1, axes, offset: 0, span: images as i64 };
        packed::check(&read.conv, &image, &tile).ok()
    };
    takes().is_some()
}

/// The panels of a call's filters, which are weights.
fn panels(graph: &Graph, node: NodeId, read: &call::Read, tile: &Extents) -> Option<Panels> {
    let position = *read.operands.get(1)?;
    let value = *graph.operands(node).get(usize::from(position))?;
    let (param, offset) = unwritten_param(graph, value)?;
    let panels = matrix(&in_memory(graph, value, position), &read.conv, tile)?;
    Some(Panels { param, offset, ..panels })
}

/// Filters as a matrix in panels: columns are filters, rows are taps and channels.
fn matrix(filters: &Source, conv: &Conv, tile: &Extents) -> Option<Panels> {
    let (&[across, down], taps) = filters.strides.split_first_chunk::<2>()?;
    let kernel: Vec<i64> = conv.axes.iter().map(|a| a.kernel as i64).collect();
    // Taps are numbered row-major: they must lie at one distance from each other.
    let mut step = 0;
    let mut count = 1;
    for (&extent, &stride) in kernel.iter().zip(taps).rev().filter(|(extent, _)| **extent != 1) {
        if count == 1 {
            step = stride;
        } else if stride != step * count {
            return None;
        }
        count *= extent;
    }
    let [rows, columns] = packed::matrix(conv).map(|n| n as i64);
    let width = tile.width() as i64;
    let run = conv.depth() as i64;
    let (mut block, mut strides) = (columns, [step, down, across, 0]);
    if conv.is_transposed() {
        // Weights are `[channels, filters / groups, ..kernel]`.
        (block, strides) = (conv.filters_of_group() as i64, [step, across, down, across * run]);
        if block == 1 {
            (block, strides) = (columns, [step, across, across * run, 0]);
        }
    }
    let whole = block == columns || block % width == 0;
    whole.then_some(Panels {
        param: 0,
        rows,
        run,
        columns,
        block,
        width,
        group: 1,
        filled: rows,
        strides,
        offset: filters.offset,
    })
}

/// Whether all that read a node's result take it with its filters innermost: convolutions whose templates read images at any
/// strides among them.
pub(super) fn may_be_channels_last(graph: &Graph, node: NodeId, vectors: Vectors) -> bool {
    channels_last::may_be_channels_last(graph, node, &|user, form, position| {
        takes_any_strides(graph, user, form, position, vectors)
    })
}

impl Conv {
    /// The program.
    ///
    /// # Errors
    /// A defect of this module, where the operations do not fit each other.
    fn program(&self, block: &Block) -> Result<ConvProgram, BuildError> {
        match self.depth() {
            1 => depthwise::program(self, block),
            _ => dense::program(self, block),
        }
    }
}
