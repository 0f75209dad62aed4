//! Where the tensors of a transposed convolution lie, and how blocks of filters are read and written there.

use tilefuse_block::dynamic::{Tile, axis, both, div_rem};

use super::block::PhaseBlock;
use crate::block_kernel::Coordinates;
use crate::contract::conv::geometry::Conv;
use crate::contract::conv::geometry::Image;
use crate::contract::conv::ops::{Params, read, wide, write};
use crate::contract::window_axis::inside;
use crate::types::fits_i32;

/// Where images and filters lie, and the order of the result.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PhaseOperands {
    pub(super) image: Image,
    /// Elements between the filters of channels, and between those of a channel.
    pub(super) channel: i64,
    pub(super) filter: i64,
    /// Elements between taps along each axis.
    pub(super) taps: Vec<i64>,
    /// The first element of the filters, and those that the pointer reaches.
    pub(super) offset: i64,
    pub(super) span: i64,
    /// Whether the result has the filters innermost; else it is row-major.
    pub(super) last: bool,
}

/// Some filters of a group.
pub(super) struct Filters {
    /// Their numbers; those beyond the last of the group are the last.
    number: Tile,
    mask: Option<Tile>,
    /// Where their weights begin.
    pub(super) weights: Tile,
    /// Where the group's first channel begins in an image.
    pub(super) plane: Tile,
}

/// Pixels of a row of the result.
pub(super) struct Row {
    pub(super) n: Tile,
    /// The number of the row in its image.
    pub(super) number: Tile,
    /// Whether there is such a row, where that is not known.
    pub(super) inside: Option<Tile>,
    /// Pixels of the row, a tile, and whether some may lie past it.
    pub(super) pixels: Tile,
    pub(super) overhangs: bool,
}

impl PhaseOperands {
    /// Why there is no program, if there is none.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn check(&self, conv: &Conv, tile: &PhaseBlock) -> Result<(), &'static str> {
        let image = &self.image;
        let images = [image.batch, image.channel, image.offset, self.channel, self.filter, self.offset];
        let mut strides = images.iter().chain(&image.axes).chain(&self.taps);
        match () {
            () if strides.any(|&s| s < 0) => Err("its tensors lie backwards"),
            () if image.axes.len() != conv.axes.len() || self.taps.len() != conv.axes.len() => {
                Err("its tensors have other axes")
            }
            () if !self.fits(conv, tile).unwrap_or(false) => Err("its tensors have too many elements"),
            () => Ok(()),
        }
    }

    /// Whether all offsets that are computed fit into 32 bits, those of pixels that are masked off too.
    fn fits(&self, conv: &Conv, tile: &PhaseBlock) -> Option<bool> {
        let cells = i64::from(tile.cells);
        let (mut before, mut beyond, mut pitch) = (0i64, 0i64, 1i64);
        for (axis, &stride) in conv.axes.iter().zip(&self.image.axes).rev() {
            let natural = |n: u64| i64::try_from(n).ok();
            let taps = natural(axis.kernel.checked_mul(axis.dilation)?.checked_add(axis.padding)?)?;
            let ahead = taps / natural(axis.stride)? + 1;
            let ahead = ahead.checked_add(natural(axis.cells())?)?.checked_add(cells)?;
            before = before.checked_add(ahead.checked_mul(stride)?)?;
            let behind = natural(axis.stride)?.checked_mul(cells + 1)?;
            beyond = beyond.checked_add(behind.checked_mul(pitch)?)?;
            // The numbers of pixels and taps themselves.
            natural(axis.out)?.checked_add(behind)?.checked_add(taps).filter(|&n| fits_i32(n))?;
            pitch = pitch.checked_mul(natural(axis.out)?)?;
        }
        let images = self.image.span.checked_add(before.checked_mul(2)?)?;
        let filters = i64::try_from(conv.filters).ok()?;
        let planes = i64::try_from(conv.batch).ok()?.checked_mul(filters)?;
        let beyond = if self.last { beyond.checked_mul(filters)? } else { beyond };
        let result = planes.checked_mul(pitch)?.checked_add(beyond)?;
        let instances = i64::try_from(tile.instances(conv)).ok()?;
        Some([images, self.span, result, instances].into_iter().all(fits_i32))
    }
}

impl Filters {
    /// The filters of a block.
    pub(super) fn of(conv: &Conv, operands: &PhaseOperands, tile: &PhaseBlock, block: Tile) -> Filters {
        let (group, filter_block) = div_rem(block, tile.filter_blocks(conv));
        let mut within = axis(filter_block * tile.filters, tile.filters).index;
        let count = conv.filters_of_group();
        let mut mask = None;
        if !count.is_multiple_of(tile.filters.into()) {
            mask = Some(within.lt(count));
            within = within.minimum(count - 1);
        }
        let number = group * count + within;
        let channel = group * conv.depth();
        let weights = (channel * operands.channel + operands.offset) + within * operands.filter;
        let plane = channel * operands.image.channel;
        Filters { number, mask, weights: wide(weights), plane: wide(plane) }
    }

    /// Adds the bias, if there is one, and stores sums of pixels of a row; says which elements these are.
    pub(super) fn store(
        &self,
        (conv, operands): (&Conv, &PhaseOperands),
        params: &Params,
        row: &Row,
        mut sum: Tile,
    ) -> Coordinates {
        let shape = sum.shape();
        if let Some(bias) = params.bias {
            sum += read(bias, self.number, None, conv.sum()).col();
        }
        let width = conv.axes.last().map_or(1, |a| a.out);
        let mask = inside(row.pixels, (0, width), (false, row.overhangs), row.inside);
        let is_whole = mask.is_none();
        let mask = both(self.mask.map(Tile::col), mask.map(Tile::row));
        let pixel = row.number * width + row.pixels;
        let filter = self.number.along(0, &shape);
        let filters = (filter.value(), conv.filters, true);
        let (offsets, axes) = if operands.last {
            let pixel = row.n * conv.pixels() + pixel;
            let index = pixel.along(1, &shape).value();
            let pixels = (index, conv.batch * conv.pixels(), is_whole);
            ((pixel * conv.filters).row() + filter, vec![pixels, filters])
        } else {
            let plane = (row.n * conv.filters + self.number) * conv.pixels();
            let index = pixel.along(1, &shape);
            let image = row.n.broadcast_to(&shape).value();
            let images = (image, conv.batch, true);
            let pixels = (index.value(), conv.pixels(), is_whole);
            (plane.col() + index, vec![images, filters, pixels])
        };
        write(params.result, offsets, sum, mask);
        Coordinates::of_result(offsets.value(), &axes)
    }
}
