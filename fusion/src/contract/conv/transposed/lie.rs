//! Where the tensors of a transposed convolution lie, and how blocks of filters are read and written there.

use tilefuse_block::{Builder, ScalarFn as F, Value};

use super::Tile;
use crate::block_kernel::{Coordinate, Coordinates};
use crate::contract::conv::Conv;
use crate::contract::conv::make::{
    Made, add, along, below, both, int, like, mask_along, read, shift, split, times, wide, write,
};
use crate::contract::conv::packed::Image;

/// Where images and filters lie, and the order of the result.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lie {
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

/// The pointers of a program.
pub(super) struct Params {
    pub(super) images: Value,
    pub(super) filters: Value,
    bias: Option<Value>,
    result: Value,
}

/// Some filters of a group.
pub(super) struct Filters {
    /// Their numbers; those beyond the last of the group are the last.
    number: Value,
    mask: Option<Value>,
    /// Where their weights begin.
    pub(super) weights: Value,
    /// Where the group's first channel begins in an image.
    pub(super) plane: Value,
}

/// Pixels of a row of the result.
pub(super) struct Row {
    pub(super) n: Value,
    /// The number of the row in its image.
    pub(super) number: Value,
    /// Whether there is such a row, where that is not known.
    pub(super) inside: Option<Value>,
    /// Pixels of the row, a tile, and whether some may lie behind it.
    pub(super) pixels: Value,
    pub(super) overhangs: bool,
}

impl Lie {
    /// Why there is no program, if there is none.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn check(&self, conv: &Conv, tile: &Tile) -> Result<(), &'static str> {
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
    fn fits(&self, conv: &Conv, tile: &Tile) -> Option<bool> {
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
            natural(axis.out)?.checked_add(behind)?.checked_add(taps).filter(|&n| n < 1 << 31)?;
            pitch = pitch.checked_mul(natural(axis.out)?)?;
        }
        let images = self.image.span.checked_add(before.checked_mul(2)?)?;
        let filters = i64::try_from(conv.filters).ok()?;
        let planes = i64::try_from(conv.batch).ok()?.checked_mul(filters)?;
        let beyond = if self.last { beyond.checked_mul(filters)? } else { beyond };
        let result = planes.checked_mul(pitch)?.checked_add(beyond)?;
        let instances = i64::try_from(tile.instances(conv)).ok()?;
        Some([images, self.span, result, instances].into_iter().all(|n| n < 1 << 31))
    }
}

impl Params {
    pub(super) fn of(b: &mut Builder, conv: &Conv, lie: &Lie) -> Params {
        let align = conv.elem.bytes();
        let lengths = conv.lengths();
        let mut pointer = |name: &str, len: u64| b.ptr_param(name, conv.elem, align, Some(len));
        Params {
            images: pointer("images", lie.image.span.unsigned_abs()),
            filters: pointer("filters", lie.span.unsigned_abs()),
            bias: conv.bias.then(|| pointer("bias", lengths[2])),
            result: pointer("result", lengths[3]),
        }
    }
}

impl Filters {
    /// The filters of a block.
    pub(super) fn of(b: &mut Builder, conv: &Conv, lie: &Lie, tile: &Tile, block: Value) -> Made<Filters> {
        let (group, strip) = split(b, block, tile.strips(conv))?;
        let range = b.range(0, tile.filters)?;
        let first = times(b, strip, tile.filters.into())?;
        let mut within = shift(b, range, first)?;
        let count = conv.filters_of_group();
        let mut mask = None;
        if !count.is_multiple_of(tile.filters.into()) {
            mask = Some(below(b, within, count)?);
            let last = like(b, within, count as i64 - 1);
            within = b.map(F::Min, &[within, last])?;
        }
        let first = times(b, group, count)?;
        let number = shift(b, within, first)?;
        let channel = times(b, group, conv.depth())?;
        let start = times(b, channel, lie.channel.unsigned_abs())?;
        let offset = int(b, lie.offset.unsigned_abs());
        let start = add(b, start, offset)?;
        let weights = times(b, within, lie.filter.unsigned_abs())?;
        let weights = shift(b, weights, start)?;
        let plane = times(b, channel, lie.image.channel.unsigned_abs())?;
        Ok(Filters { number, mask, weights: wide(b, weights)?, plane: wide(b, plane)? })
    }

    /// Adds the bias, if there is one, and stores sums of pixels of a row; says which elements these are.
    pub(super) fn store(
        &self,
        b: &mut Builder,
        (conv, lie): (&Conv, &Lie),
        params: &Params,
        row: &Row,
        mut sum: Value,
    ) -> Made<Coordinates> {
        let shape: Vec<u32> = b.ty(sum).shape.to_vec();
        if let Some(bias) = params.bias {
            let bias = read(b, bias, self.number, None, conv.sum())?;
            let bias = along(b, bias, 0, &shape)?;
            sum = add(b, sum, bias)?;
        }
        let width = conv.axes.last().map_or(1, |a| a.out);
        let mask = inside(b, row.pixels, (0, width), (false, row.overhangs), row.inside)?;
        let is_whole = mask.is_none();
        let columns = mask_along(b, mask, 1, &shape)?;
        let rows = mask_along(b, self.mask, 0, &shape)?;
        let mask = both(b, rows, columns)?;
        let start = times(b, row.number, width)?;
        let pixel = shift(b, row.pixels, start)?;
        let filter = along(b, self.number, 0, &shape)?;
        let filters = Coordinate { index: filter, extent: conv.filters, inside: true };
        let (offsets, axes) = if lie.last {
            let image = times(b, row.n, conv.pixels())?;
            let pixel = shift(b, pixel, image)?;
            let extent = conv.batch * conv.pixels();
            let index = along(b, pixel, 1, &shape)?;
            let start = times(b, pixel, conv.filters)?;
            let start = along(b, start, 1, &shape)?;
            let pixels = Coordinate { index, extent, inside: is_whole };
            (add(b, start, filter)?, vec![pixels, filters])
        } else {
            let image = times(b, row.n, conv.filters)?;
            let plane = shift(b, self.number, image)?;
            let plane = times(b, plane, conv.pixels())?;
            let plane = along(b, plane, 0, &shape)?;
            let index = along(b, pixel, 1, &shape)?;
            let images = Coordinate { index: b.splat(row.n, &shape)?, extent: conv.batch, inside: true };
            let pixels = Coordinate { index, extent: conv.pixels(), inside: is_whole };
            (add(b, plane, index)?, vec![images, filters, pixels])
        };
        write(b, params.result, offsets, sum, mask, conv.elem)?;
        Ok(Coordinates { offsets, axes })
    }
}

/// Which of some places lie in `low..high`, as far as they may lie before and behind that, and where a condition holds, if
/// there is one: as comparisons of places, since what is chosen by one condition becomes a branch.
pub(super) fn inside(
    b: &mut Builder,
    places: Value,
    (low, high): (u64, u64),
    (before, behind): (bool, bool),
    condition: Option<Value>,
) -> Made<Option<Value>> {
    let mut mask = None;
    if before {
        let low = like(b, places, low as i64);
        mask = Some(b.map(F::Ge, &[places, low])?);
    }
    if let Some(condition) = condition {
        let (end, none) = (int(b, high), int(b, low));
        let end = b.map(F::Select, &[condition, end, none])?;
        let shape = b.ty(places).shape.clone();
        let end = b.splat(end, &shape)?;
        let is_below = b.map(F::Lt, &[places, end])?;
        mask = both(b, mask, Some(is_below))?;
    } else if behind {
        let is_below = below(b, places, high)?;
        mask = both(b, mask, Some(is_below))?;
    }
    Ok(mask)
}
