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
//! Transposed convolutions are computed so too: `phase` says which taps reach a pixel of the result. `packed_filter` makes panels of
//! their filters before each call where these are no weights. `transposed` computes those whose filters fill no vectors, by
//! vectors of pixels.
//!
//! Sums are in `f32`, of `f64` in `f64`, in an order that depends on nothing but the shapes.

mod block;
mod call;
mod dense;
mod depthwise;
mod implicit_gemm;
mod make;
mod packed;
mod packed_filter;
#[cfg(test)]
mod packed_tests;
mod phase;
mod rows;
#[cfg(test)]
mod tests;
mod tile;
mod transposed;
#[cfg(test)]
mod transposed_tests;

use tilefuse_block::Elem;
use tilefuse_block::dynamic::BuildError;

use super::call_kernels::Template;
use super::host::Vectors;
use super::operand::{Source, in_memory, source};
use super::prepack::{Panels, unwritten_param};
use crate::block_kernel::{BlockKernel, BlockKernelKind, Coordinates, Layout, Tied};
use crate::channels_last::{self, ResultLayout};
use crate::graph::{Graph, NodeId};
use crate::library_form::ContractionForm;

use block::Block;
pub(super) use call::declined;
pub(super) use implicit_gemm::as_product;
use packed::Image;
pub(super) use rows::Rows;
use tile::Extents;

/// The most pixels of an instance.
const MAX_PIXELS: u64 = 1024;

/// The template of a call of a convolution on so many threads.
pub(super) fn template(
    graph: &Graph,
    node: NodeId,
    form: &ContractionForm,
    threads: u32,
) -> Option<Template> {
    let read = call::read(graph, node, form)?;
    if read.conv.transposed {
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
    let result_layout = channels_last_layout(&read, &out.shape)?;
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
    let (conv, image) = packed::flat(&read.conv, &image_of(&read, &lie)?);
    let tile = Extents::of(&conv, vectors);
    packed::check(&conv, &image, &tile).ok()?;
    if packed::is_depthwise(&conv) && !last && !conv.transposed {
        return None;
    }
    let value = *operands.get(usize::from(weights))?;
    let panels = match unwritten_param(graph, value) {
        Some(_) => Ok(panels(graph, node, &read, &tile)?),
        None if conv.transposed => {
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

/// Where the images of a call lie.
fn image_of(read: &call::Read, lie: &Source) -> Option<Image> {
    let skip = usize::from(read.batched);
    Some(Image {
        batch: if read.batched { *lie.strides.first()? } else { 0 },
        channel: *lie.strides.get(skip)?,
        axes: lie.strides.get(skip + 1..)?.to_vec(),
        offset: lie.offset,
        span: lie.span,
    })
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
    if conv.transposed {
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

/// The order of a result with the filters innermost.
fn channels_last_layout(read: &call::Read, shape: &[i64]) -> Option<ResultLayout> {
    ResultLayout::channels_last(shape, read.batched)
}

/// Whether all that read a node's result take it with its filters innermost: convolutions whose templates read images at any
/// strides among them.
pub(super) fn may_be_channels_last(graph: &Graph, node: NodeId, vectors: Vectors) -> bool {
    channels_last::may_be_channels_last(graph, node, &|user, form, position| {
        takes_any_strides(graph, user, form, position, vectors)
    })
}

/// A template of a program.
fn whole(conv: &Conv, made: ConvProgram, tied: Vec<Tied>, layouts: Vec<(u16, Layout)>) -> Template {
    let kernel = BlockKernel {
        kind: BlockKernelKind::Convolution,
        program: made.program,
        grid: [made.instances, 1, 1],
        tied,
        checks: false,
        alone: None,
        coordinates: made.coordinates,
        layouts,
        note: None,
        expected_us: 0.0,
    };
    let bytes = conv.lengths().iter().sum::<u64>() as f64 * f64::from(conv.elem.bytes());
    Template {
        kernel,
        flops: 2.0 * conv.products() as f64,
        bytes,
        shares: [1.0; 2],
        panels: None,
        operand_kernels: Vec::new(),
        result_layout: None,
        repeated_heads: None,
    }
}

/// A convolution with zeros around the image.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Conv {
    /// What images, weights, bias and result are made of: a float.
    pub(super) elem: Elem,
    /// Images.
    pub(super) batch: u64,
    /// Channels of an image.
    pub(super) channels: u64,
    /// Channels of the result.
    pub(super) filters: u64,
    /// Channels and filters are divided into so many; a filter reads the channels of its group.
    pub(super) groups: u64,
    /// The axes of an image, outermost first; 1 to 3.
    pub(super) axes: Vec<Axis>,
    /// Whether a number is added for each filter.
    pub(super) bias: bool,
    /// Whether pixels of the image are brought to the result by the taps, as a convolution's gradient is: strides, padding
    /// and dilation are of the result then.
    pub(super) transposed: bool,
}

/// An axis of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    /// Pixels of the image.
    pub(super) image: u64,
    /// Taps of the kernel.
    pub(super) kernel: u64,
    /// Pixels of the image between neighbours of the result.
    pub(super) stride: u64,
    /// Zeros before the image.
    pub(super) padding: u64,
    /// Pixels of the image between neighbouring taps.
    pub(super) dilation: u64,
    /// Pixels of the result; what a tap reads behind the image is zero.
    pub(super) out: u64,
}

/// The program of a convolution.
struct ConvProgram {
    /// Its parameters are the images, the weights, the bias if there is one, and the result.
    program: tilefuse_block::Program,
    /// How many instances it has, along the first axis of the grid.
    instances: u32,
    /// Image, filter and pixel of the elements that it stores.
    coordinates: Vec<Coordinates>,
}

impl Axis {
    /// An axis with as many zeros behind the image as before it; `None` where the kernel does not fit.
    #[cfg(test)]
    fn new(image: u64, kernel: u64, stride: u64, padding: u64, dilation: u64) -> Option<Axis> {
        let padded = padding.checked_mul(2)?.checked_add(image)?;
        let span = kernel.checked_sub(1)?.checked_mul(dilation)?;
        let out = padded.checked_sub(span.checked_add(1)?)?.checked_div(stride)?.checked_add(1)?;
        Some(Axis { image, kernel, stride, padding, dilation, out })
    }

    /// Whether a tap may read before or behind the image.
    fn overhangs(&self) -> (bool, bool) {
        let last = (self.out - 1) * self.stride + (self.kernel - 1) * self.dilation;
        (self.padding > 0, last >= self.padding + self.image)
    }

    /// Whether result and image have the same pixels.
    fn is_same(&self) -> bool {
        self.stride == 1 && self.out == self.image
    }
}

impl Conv {
    /// Channels that a filter reads.
    fn depth(&self) -> u64 {
        self.channels / self.groups
    }

    /// Filters of a group.
    fn filters_of_group(&self) -> u64 {
        self.filters / self.groups
    }

    /// Taps of a kernel.
    fn taps(&self) -> u64 {
        self.axes.iter().map(|a| a.kernel).product()
    }

    /// Pixels of an image.
    fn image(&self) -> u64 {
        self.axes.iter().map(|a| a.image).product()
    }

    /// Pixels of an image of the result.
    fn pixels(&self) -> u64 {
        self.axes.iter().map(|a| a.out).product()
    }

    /// Multiplications.
    fn products(&self) -> u64 {
        let pixels = if self.transposed { self.image() } else { self.pixels() };
        self.batch * self.filters * pixels * self.depth() * self.taps()
    }

    /// Elements of the images, the weights, the bias and the result.
    fn lengths(&self) -> [u64; 4] {
        [
            self.batch * self.channels * self.image(),
            self.filters * self.depth() * self.taps(),
            if self.bias { self.filters } else { 0 },
            self.batch * self.filters * self.pixels(),
        ]
    }

    /// What sums are made of.
    fn sum(&self) -> Elem {
        if self.elem == Elem::F64 { Elem::F64 } else { Elem::F32 }
    }

    /// Why there is no program for it, if there is none.
    ///
    /// # Errors
    /// A sentence.
    fn check(&self) -> Result<(), String> {
        let refuse = |why: &str| Err(why.to_owned());
        let positive = |a: &Axis| a.image > 0 && a.kernel > 0 && a.stride > 0 && a.dilation > 0 && a.out > 0;
        match () {
            () if !matches!(self.elem, Elem::F32 | Elem::F64 | Elem::F16 | Elem::Bf16) => {
                refuse("its elements are no floats of 16, 32 or 64 bits")
            }
            () if !(1..=3).contains(&self.axes.len()) => refuse("its images have no 1 to 3 axes"),
            () if !self.axes.iter().all(positive) || self.batch == 0 || self.groups == 0 => {
                refuse("it is empty")
            }
            () if self.channels == 0 || self.filters == 0 => refuse("it is empty"),
            () if !self.channels.is_multiple_of(self.groups) || !self.filters.is_multiple_of(self.groups) => {
                refuse("its groups do not divide its channels")
            }
            // Taps are found by products of two numbers below a stride.
            () if self.transposed && self.axes.iter().any(|a| a.stride > 1 << 15) => {
                refuse("its stride is too large")
            }
            () if !self.fits() => refuse("its tensors have too many elements"),
            () => Ok(()),
        }
    }

    /// Whether all offsets that are computed fit into 32 bits, those of pixels that are masked off too.
    fn fits(&self) -> bool {
        let most = self.reach().is_some_and(|n| n < 1 << 31);
        let filters = self.filters.checked_add(64);
        let weights = filters.and_then(|n| n.checked_mul(self.depth())?.checked_mul(self.taps()));
        let result = filters
            .and_then(|n| n.checked_mul(self.batch)?.checked_mul(self.pixels().checked_add(MAX_PIXELS)?));
        most && [weights, result].into_iter().all(|n| n.is_some_and(|n| n < 1 << 31))
    }

    /// A bound of the offsets in the images.
    fn reach(&self) -> Option<u64> {
        let mut pitch = 1u64;
        let mut reach = 0u64;
        for axis in self.axes.iter().rev() {
            let place = axis.out.checked_add(MAX_PIXELS)?.checked_mul(axis.stride)?;
            let place =
                place.checked_add(axis.kernel.checked_mul(axis.dilation)?)?.checked_add(axis.padding)?;
            reach = reach.checked_add(place.checked_mul(pitch)?)?;
            pitch = pitch.checked_mul(axis.image)?;
        }
        let images = self.batch.checked_mul(self.channels)?.checked_mul(pitch)?;
        images.checked_add(reach.checked_mul(2)?)
    }

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
