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
mod lie;
#[cfg(test)]
mod tests;
mod together;

use tilefuse_block::Elem;
use tilefuse_block::dynamic::{BuildError, program_and};

use self::lie::Lie;
use super::make::Params;
use super::{Axis, Conv, ConvProgram, call, channels_last_layout, image_of, whole};
use crate::block_kernel::{Layout, Tied};
use crate::contract::call_kernels::Template;
use crate::contract::operand::source;
use crate::graph::{Graph, NodeId};

/// The most phases and taps that are written out together.
const MAX_PHASES: u64 = 16;
const MAX_TAPS: u64 = 64;

/// Vectors of sums of an instance.
const SUMS: u64 = 16;

/// The most vectors of pixels of a phase, and the most where they are read for several filters.
const VECTORS: u64 = 4;
const VECTORS_SHARED: u64 = 2;

/// The most parts of rows that an instance goes through.
const MAX_SPOTS: u64 = 32;

/// How a transposed convolution is divided into instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extents {
    /// Filters of a group that are computed at once, a power of two.
    filters: u32,
    /// Cells of a row, a power of two.
    cells: u32,
    /// Parts of rows that follow one another in a loop.
    spots: u64,
    /// Whether all phases are computed together.
    together: bool,
}

/// The template of a transposed convolution.
pub(super) fn template(graph: &Graph, node: NodeId, read: &call::Read, threads: u32) -> Option<Template> {
    let conv = &read.conv;
    let out = graph.node(node).outs.first()?;
    let order = channels_last_layout(read, &out.shape)?;
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
        image: image_of(read, images)?,
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

impl Extents {
    /// The tile for so many threads.
    fn of(conv: &Conv, threads: u32) -> Extents {
        // Of vectors of 512 bits; with shorter ones a tile is computed in parts.
        let lanes = if conv.sum() == Elem::F64 { 8 } else { 16 };
        let phases = conv.axes.iter().try_fold(1u64, |all, a| all.checked_mul(a.stride));
        let phases = phases.filter(|&n| n <= MAX_PHASES && conv.taps() <= MAX_TAPS);
        let room = SUMS / phases.unwrap_or(1);
        let most = match conv.filters_of_group() {
            1 => room.min(VECTORS),
            _ => (room / 4).clamp(1, VECTORS_SHARED),
        };
        let cells = power(conv.row_cells()).min(lanes * power_below(most));
        let filters = filters(conv.filters_of_group(), room / cells.div_ceil(lanes));
        let narrow = |n: u64| u32::try_from(n).unwrap_or(1);
        let tile =
            Extents { filters: narrow(filters), cells: narrow(cells), spots: 1, together: phases.is_some() };
        let least = u64::from(threads.max(1)) * 8;
        let spots = if tile.together { tile.instances(conv) / least } else { 1 };
        Extents { spots: spots.clamp(1, MAX_SPOTS.min(tile.spots(conv))), ..tile }
    }

    /// Elements of the filters and cells.
    fn shape(&self) -> [u32; 2] {
        [self.filters, self.cells]
    }

    /// Blocks of a group's filters.
    fn strips(&self, conv: &Conv) -> u64 {
        conv.filters_of_group().div_ceil(self.filters.into())
    }

    /// Blocks of the filters of all groups.
    fn blocks(&self, conv: &Conv) -> u64 {
        conv.groups * self.strips(conv)
    }

    /// Parts of a row.
    fn parts(&self, conv: &Conv) -> u64 {
        conv.row_cells().div_ceil(self.cells.into())
    }

    /// What the rows of an image are: cells along the outer axes where phases are computed together, or pixels.
    fn rows(&self, conv: &Conv) -> Vec<u64> {
        let outer = conv.axes.split_last().map_or(&[][..], |(_, outer)| outer);
        outer.iter().map(|a| if self.together { a.cells() } else { a.out }).collect()
    }

    /// Parts of all rows of an image.
    fn spots(&self, conv: &Conv) -> u64 {
        self.rows(conv).iter().product::<u64>() * self.parts(conv)
    }

    fn instances(&self, conv: &Conv) -> u64 {
        conv.batch * self.blocks(conv) * self.spots(conv).div_ceil(self.spots)
    }
}

impl Axis {
    /// Pixels of the first phase, which has the most.
    fn cells(&self) -> u64 {
        self.out.div_ceil(self.stride)
    }
}

impl Conv {
    /// Cells of a row.
    fn row_cells(&self) -> u64 {
        self.axes.last().map_or(1, Axis::cells)
    }
}

/// How many of a group's filters are computed at once, no more than `most`: what is read for each of them counts as two
/// more.
fn filters(count: u64, most: u64) -> u64 {
    let all = (0..=most.max(1).ilog2()).rev().map(|bits| 1 << bits);
    all.min_by_key(|each| count.div_ceil(*each) * (each + 2)).unwrap_or(1)
}

/// The least power of two that is not less, of what is no more than a vector holds many times.
fn power(n: u64) -> u64 {
    n.clamp(1, 1 << 16).next_power_of_two()
}

/// The greatest power of two that is not more.
fn power_below(n: u64) -> u64 {
    1 << n.max(1).ilog2()
}
