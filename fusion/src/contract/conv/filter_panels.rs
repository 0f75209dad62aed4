//! Convolutions by vectors of filters: what their programs need beside the convolution, and where panels of the filters come from.

use super::call::ConvCall;
use super::geometry::{Conv, Image, whole};
use super::tile::Extents;
use super::{packed, packed_filter};
use crate::block_kernel::{Layout, Tied};
use crate::contract::call_kernels::Template;
use crate::contract::operand::{Source, in_memory, source};
use crate::contract::prepack::{Panels, unwritten_param};
use crate::contract::schedule::Reading;
use crate::contract::target::Vectors;
use crate::graph::{Graph, NodeId};

/// A convolution by vectors of filters, which lie in panels.
#[derive(Debug)]
pub(in crate::contract) struct FilterVectors {
    conv: Conv,
    image: Image,
    tile: Extents,
    /// Whether the result has the filters innermost.
    pub(in crate::contract) last: bool,
}

impl FilterVectors {
    /// That of a call, and how it reads filters: weights are prepacked, others packed in each call. Its result has the filters innermost where the call's has, or where that is row-major and `turn` says so.
    pub(in crate::contract) fn of(
        graph: &Graph,
        node: NodeId,
        read: &ConvCall,
        turn: bool,
        vectors: Vectors,
    ) -> Option<(Reading, FilterVectors)> {
        let out = graph.node(node).outs.first()?;
        let is_channels_last = read.channels_last_layout(&out.shape)?.is_order_of(&out.strides, &out.shape);
        if !is_channels_last && !out.is_contiguous() {
            return None;
        }
        let last = turn || is_channels_last;
        let operands = graph.operands(node);
        if let Some(&bias) = read.operands.get(2) {
            let bias = source(graph, *operands.get(usize::from(bias))?, bias);
            if bias.layout != Layout::Elements {
                return None;
            }
        }
        let (conv, image) = packed::flat(&read.conv, &read.image(&located(graph, node, read, 0)?.1)?);
        let tile = Extents::of(&conv, vectors);
        packed::check(&conv, &image, &tile).ok()?;
        // Vectors of channels that are stored a plane apart: what such stores take is not in the model.
        if conv.is_depthwise() && !last && !conv.is_transposed() {
            return None;
        }
        let &position = read.operands.get(1)?;
        let value = *operands.get(usize::from(position))?;
        let reading = match unwritten_param(graph, value) {
            Some(_) => Reading::Prepacked(panels(graph, node, read, &tile)?),
            None if conv.is_transposed() => {
                Reading::Packed(matrix(&source(graph, value, position), &read.conv, &tile)?)
            }
            None => return None,
        };
        Some((reading, FilterVectors { conv, image, tile, last }))
    }

    /// The share of what is computed that is in the result.
    pub(in crate::contract) fn useful(&self) -> f64 {
        let Extents { pixels, .. } = self.tile;
        let row = self.conv.axes.last().map_or(1, |axis| axis.out);
        let filters = match self.conv.is_depthwise() {
            true => self.conv.filters,
            false => self.conv.filters_of_group(),
        };
        let computed =
            self.tile.parts(&self.conv) * u64::from(pixels) * filters.next_multiple_of(self.tile.width());
        (row * filters) as f64 / computed as f64
    }

    /// Whether the filters of a group fill a vector.
    pub(in crate::contract) fn fills_vectors(&self) -> bool {
        self.conv.filters_of_group() >= u64::from(self.tile.lanes)
    }

    /// The template, which takes the panels as an operand behind those of the call.
    pub(in crate::contract) fn template(
        self,
        graph: &Graph,
        node: NodeId,
        read: &ConvCall,
        reading: Reading,
    ) -> Option<Template> {
        let ((images, located_images), (weights, filters)) =
            (located(graph, node, read, 0)?, located(graph, node, read, 1)?);
        let out = graph.node(node).outs.first()?;
        let order = read.channels_last_layout(&out.shape)?;
        let made = packed::program(&self.conv, &self.image, &self.tile, self.last).ok()?;
        let position = u16::try_from(graph.operands(node).len()).ok()?;
        let bias = read.operands.get(2).map(|&at| Tied::Operand(at));
        let tied = [Tied::Operand(images), Tied::Operand(position)].into_iter();
        let tied = tied.chain(bias).chain([Tied::Result(0)]).collect();
        // The kernel does not read the weights themselves: they stay where they lie.
        let layouts = vec![(images, located_images.layout), (weights, filters.layout)];
        let mut schedule = self.conv.schedule([self.tile.pixels.into(), self.tile.width()]);
        schedule.push_str(", filters in panels");
        let (panels, operand_kernels) = match reading {
            Reading::Prepacked(panels) => {
                schedule.push_str(", prepacked");
                (Some(panels), Vec::new())
            }
            Reading::Packed(panels) => {
                let value = *graph.operands(node).get(usize::from(weights))?;
                let filters = source(graph, value, weights);
                let (elem, lanes) = (self.conv.elem, self.tile.lanes);
                (None, vec![packed_filter::of(&filters, &panels, elem, lanes, out.device)?])
            }
            Reading::InPlace | Reading::PackedKv => return None,
        };
        let template = whole(&read.conv, made, tied, layouts, schedule);
        Some(Template { panels, operand_kernels, result_layout: self.last.then_some(order), ..template })
    }
}

/// Whether a call reads the operand at a position as images at whatever strides.
pub(super) fn takes_any_strides(
    graph: &Graph,
    node: NodeId,
    read: &ConvCall,
    position: u16,
    vectors: Vectors,
) -> bool {
    let takes = || {
        let others = read.operands.iter().skip(1);
        if read.operands.first() != Some(&position) || others.into_iter().any(|&at| at == position) {
            return None;
        }
        let tile = Extents::of(&read.conv, vectors);
        panels(graph, node, read, &tile)?;
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

/// The position of an operand, and where it lies in memory.
fn located(graph: &Graph, node: NodeId, read: &ConvCall, at: usize) -> Option<(u16, Source)> {
    let position = *read.operands.get(at)?;
    let value = *graph.operands(node).get(usize::from(position))?;
    Some((position, in_memory(graph, value, position)))
}

/// The panels of a call's filters, which are weights.
fn panels(graph: &Graph, node: NodeId, read: &ConvCall, tile: &Extents) -> Option<Panels> {
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
