//! Transposed convolutions over filters that are read where they lie, with vectors of pixels: for groups of filters that
//! fill no vectors, above all filters of one channel each in images whose rows are contiguous, and for whatever else
//! `packed` refuses.
//!
//! Pixels of the result that are a stride apart are a *phase*: the same taps bring them neighbouring pixels of the image. A
//! *cell* is a pixel of each phase.
//!
//! ```text
//! stride 2, along a row      phases  0 1 0 1 0 1 0 1      cells  0 0 1 1 2 2 3 3
//! ```
//!
//! `together` computes all phases of some cells, with each tap written out; `apart` one after the other in loops, for
//! strides and kernels of any size. Images and filters lie at any strides; vectors are stored a stride apart.

mod apart;
mod extents;
mod lie;
#[cfg(test)]
mod tests;
mod together;

use tilefuse_block::dynamic::{BuildError, program_and};

use self::extents::Extents;
use self::lie::Lie;
use super::call;
use super::geometry::{Conv, ConvProgram, whole};
use super::make::Params;
use crate::block_kernel::{Layout, Tied};
use crate::contract::call_kernels::Template;
use crate::contract::operand::source;
use crate::graph::{Graph, NodeId};

/// The template of a transposed convolution.
pub(super) fn template(graph: &Graph, node: NodeId, read: &call::Read, threads: u32) -> Option<Template> {
    let conv = &read.conv;
    let out = graph.node(node).outs.first()?;
    let order = read.channels_last_layout(&out.shape)?;
    let last = !out.is_contiguous();
    if last && !order.is_order_of(&out.strides, &out.shape) {
        return None;
    }
    let operands = graph.operands(node);
    let mut layouts = Vec::new();
    let mut sources = Vec::new();
    for &position in &read.operands {
        let source = source(graph, *operands.get(usize::from(position))?, position);
        if layouts.iter().any(|(known, _)| *known == position) {
            return None;
        }
        layouts.push((position, source.layout.clone()));
        sources.push(source);
    }
    let (images, filters) = (sources.first()?, sources.get(1)?);
    if sources.get(2).is_some_and(|bias| bias.layout != Layout::Elements) {
        return None;
    }
    let (&[channel, filter], taps) = filters.strides.split_first_chunk::<2>()?;
    let lie = Lie {
        image: read.image(images)?,
        channel,
        filter,
        taps: taps.to_vec(),
        offset: filters.offset,
        span: filters.span,
        last,
    };
    let tile = Extents::of(conv, threads);
    lie.check(conv, &tile).ok()?;
    let made = program(conv, &lie, &tile).ok()?;
    let tied = read.operands.iter().map(|&at| Tied::Operand(at)).chain([Tied::Result(0)]).collect();
    Some(Template { result_layout: last.then_some(order), ..whole(conv, made, tied, layouts) })
}

/// The program, whose parameters are the images, the filters, the bias if there is one, and the result.
fn program(conv: &Conv, lie: &Lie, tile: &Extents) -> Result<ConvProgram, BuildError> {
    let name = if conv.depth() == 1 { "conv_transposed_depthwise" } else { "conv_transposed" };
    let (program, coordinates) = program_and(name, |kernel| {
        let lengths = [("images", lie.image.span.unsigned_abs()), ("filters", lie.span.unsigned_abs())];
        let params = Params::of(kernel, conv, lengths);
        match tile.together {
            true => together::body(conv, lie, tile, &params),
            false => apart::body(conv, lie, tile, &params),
        }
    })?;
    Ok(ConvProgram { program, instances: tile.instances(conv) as u32, coordinates })
}
