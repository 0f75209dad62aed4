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
//! `unrolled_phases` computes all phases of some cells, with each tap written out; `phase_loop` one after the other in loops, for
//! strides and kernels of any size. Images and filters lie at any strides; vectors are stored a stride apart.

mod block;
mod operands;
mod phase_loop;
#[cfg(test)]
mod tests;
mod unrolled_phases;

use tilefuse_block::dynamic::{BuildError, program_and};

use self::block::{PhaseBlock, lanes};
use self::operands::PhaseOperands;
use super::call::ConvCall;
use super::geometry::{Conv, ConvProgram, whole};
use super::ops::Params;
use crate::block_kernel::{Layout, Tied};
use crate::contract::call_kernels::Template;
use crate::contract::operand::source;
use crate::graph::{Graph, NodeId};
use crate::rewrite::channels_last::ResultLayout;
use crate::taken::taken;

/// A transposed convolution by vectors of pixels.
#[derive(Debug)]
pub(in crate::contract) struct Phases {
    operands: PhaseOperands,
    tile: PhaseBlock,
    /// How operands are read.
    layouts: Vec<(u16, Layout)>,
    /// The order of the result.
    order: ResultLayout,
}

impl Phases {
    /// That of a call on so many threads.
    pub(in crate::contract) fn of(
        graph: &Graph,
        node: NodeId,
        read: &ConvCall,
        threads: u32,
    ) -> Option<Phases> {
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
        let operands = PhaseOperands {
            image: read.image(images)?,
            channel,
            filter,
            taps: taps.to_vec(),
            offset: filters.offset,
            span: filters.span,
            last,
        };
        let tile = PhaseBlock::of(conv, threads);
        operands.check(conv, &tile).ok()?;
        Some(Phases { operands, tile, layouts, order })
    }

    /// Elements between pixels of a row.
    pub(in crate::contract) fn stride(&self) -> u64 {
        self.operands.image.axes.last().map_or(1, |stride| stride.unsigned_abs())
    }

    /// The share of what is computed that is in the result.
    pub(in crate::contract) fn useful(&self, conv: &Conv) -> f64 {
        let (filters, cells) = (conv.filters_of_group(), u64::from(self.tile.cells));
        let row = self.tile.parts(conv) * cells.max(lanes(conv));
        let computed = row * filters.next_multiple_of(self.tile.filters.into());
        (conv.row_cells() * filters) as f64 / computed as f64
    }

    /// The template.
    pub(in crate::contract) fn template(self, conv: &Conv) -> Option<Template> {
        let made = program(conv, &self.operands, &self.tile).ok()?;
        let operands = self.layouts.iter().map(|(position, _)| Tied::Operand(*position));
        let tied = operands.chain([Tied::Result(0)]).collect();
        let result_layout = self.operands.last.then_some(self.order);
        let schedule = conv.schedule([self.tile.cells.into(), self.tile.filters.into()]);
        let schedule = format!("{schedule}, by phases of the stride");
        Some(Template { result_layout, ..whole(conv, made, tied, self.layouts, schedule) })
    }
}

/// The program, whose parameters are the images, the filters, the bias if there is one, and the result.
fn program(conv: &Conv, operands: &PhaseOperands, tile: &PhaseBlock) -> Result<ConvProgram, BuildError> {
    let name = if conv.depth() == 1 { "conv_transposed_depthwise" } else { "conv_transposed" };
    let (program, coordinates) = program_and(name, |kernel| {
        let lengths =
            [("images", operands.image.span.unsigned_abs()), ("filters", operands.span.unsigned_abs())];
        let params = Params::of(kernel, conv, lengths);
        match tile.unrolled {
            true => {
                taken!("all phases of a transposed convolution together");
                unrolled_phases::body(conv, operands, tile, &params)
            }
            false => {
                taken!("phases of a transposed convolution one by one");
                phase_loop::body(conv, operands, tile, &params)
            }
        }
    })?;
    Ok(ConvProgram { program, instances: tile.instances(conv) as u32, coordinates })
}
