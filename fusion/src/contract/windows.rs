//! Rows of a product that are windows of images (implicit GEMM): a row is a pixel of the result, and what is summed over are
//! the channels under each tap of the filter. The matrix is nowhere in memory.
//!
//! ```text
//! row r, element k     image n, pixel (y, x) = unravel r, tap (i, j) and channel c = unravel k
//!                      images[n, y stride - padding + i dilation, x stride - padding + j dilation, c], 0 outside of the image
//! ```
//!
//! Channels are contiguous, and a step of the sum is within one tap: which pixel of an image a row reads then depends on the
//! step, and all of a row's elements of a step are contiguous. Where channels are no multiple of a step, the last one of a tap reads
//! zeros behind them.

use tilefuse_block::dynamic::{Axis, Ptr, Tile, axis, div_rem, load, unravel};

use super::window_axis::{Corners, WindowAxis};

/// How windows lie in images.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Windows {
    /// Images.
    pub(super) images: i64,
    /// Elements between neighbouring images.
    pub(super) stride: i64,
    /// Channels, which are contiguous.
    pub(super) channels: i64,
    /// Elements of the sum that belong to a tap: the channels, and none behind them.
    pub(super) filled: i64,
    /// Axes of an image, outermost first.
    pub(super) axes: Vec<WindowAxis>,
    /// Elements between neighbouring pixels of an image along each axis.
    pub(super) steps: Vec<i64>,
    /// Elements of the sum that a member of the batch has, where members are parts of it; otherwise there is no batch.
    pub(super) part: i64,
}

impl Windows {
    /// The same windows, in which pixels under the taps of the innermost axis that lie one behind another are one pixel with the channels
    /// of all, and each tap takes whole steps of the sum.
    pub(super) fn in_steps(mut self, depth: i64) -> Option<Windows> {
        if let (Some(axis), Some(&step)) = (self.axes.last_mut(), self.steps.last())
            && let Ok(taps) = i64::try_from(axis.kernel)
            && self.channels % depth != 0
            && !axis.transposed
            && (axis.padding, axis.dilation) == (0, 1)
            && step == self.channels
            && axis.out.saturating_sub(1) * axis.stride + axis.kernel <= axis.image
        {
            self.channels = self.channels.checked_mul(taps)?;
            axis.kernel = 1;
        }
        let steps = self.channels.checked_sub(1)? / depth + 1;
        Some(Windows { filled: steps.checked_mul(depth)?, ..self })
    }

    /// Elements of the sum.
    pub(super) fn depth(&self) -> Option<i64> {
        let taps = self.axes.iter().map(|axis| i64::try_from(axis.kernel).ok());
        taps.into_iter().try_fold(self.filled, |product, taps| product.checked_mul(taps?))
    }

    /// The elements of a filter for those of the sum from `k` on, within one tap.
    pub(super) fn of_filter(&self, k: Tile, depth: u32) -> Axis {
        if self.channels == self.filled {
            return axis(k, depth);
        }
        let (tap, channel) = div_rem(k, self.filled);
        let mask = self.inside(channel, depth);
        Axis { mask, ..axis(tap * self.channels + channel, depth) }
    }

    /// Which elements from a channel on are channels, where not all are.
    fn inside(&self, channel: Tile, depth: u32) -> Option<Tile> {
        let is_whole = self.channels == self.filled;
        if is_whole { None } else { axis(channel, depth).below(self.channels).mask }
    }
    /// Elements that offsets go through before the first one of an image and behind its last one.
    pub(super) fn overhang(&self) -> Option<i64> {
        self.axes.iter().zip(&self.steps).try_fold(0i64, |sum, (axis, &step)| {
            let pixels = axis.kernel.checked_mul(axis.dilation)?.checked_add(axis.padding)?;
            sum.checked_add(i64::try_from(pixels).ok()?.checked_mul(step)?)
        })
    }

    /// Whether all strides are multiples of so many elements.
    pub(super) fn is_multiple_of(&self, elements: i64) -> bool {
        self.steps.iter().chain([&self.stride]).all(|stride| stride % elements == 0)
    }

    /// The windows of some rows, in images that begin at a pointer.
    pub(super) fn of_rows(&self, images: Ptr, rows: Axis) -> Rows<'_> {
        let sizes: Vec<u64> =
            [self.images as u64].into_iter().chain(self.axes.iter().map(|a| a.out)).collect();
        let indices = unravel(rows.index, &sizes);
        let (image, places) = indices.split_at(1);
        let corners = Corners::of(&self.axes, self.steps.clone(), places);
        let image = image.iter().filter(|_| self.images > 1).map(|&image| image * self.stride);
        let first = image.chain(corners.first()).reduce(|sum, part| sum + part);
        Rows { windows: self, images: images.skip(first.map(Tile::col)), corners, rows }
    }
}

/// The windows of some rows.
pub(super) struct Rows<'w> {
    windows: &'w Windows,
    /// The first pixel of each window, as a column.
    images: Ptr,
    corners: Corners<'w>,
    rows: Axis,
}

impl Rows<'_> {
    /// The elements from `k` on, within one tap.
    pub(super) fn block(&self, k: Tile, depth: u32) -> Tile {
        let Windows { filled, axes, part, .. } = self.windows;
        let (tap, channel) = div_rem(k, *filled);
        // What a part of the sum begins with is not known to be below the last tap.
        let all = axes.iter().map(|axis| axis.kernel).product::<u64>();
        let tap = if *part > 0 { tap % all } else { tap };
        let taps = unravel(tap, &axes.iter().map(|axis| axis.kernel).collect::<Vec<u64>>());
        let inside = self.corners.inside(&taps, self.rows.mask);
        let at = self.corners.shift(&taps).map_or(channel, |shift| channel + shift);
        let ptr = self.images.skip(axis(at, depth).index.row());
        let shape = [self.rows.extent, depth];
        let inside = inside.map(|inside| inside.along(0, shape));
        let channels = self.windows.inside(channel, depth).map(|inside| inside.along(1, shape));
        load(ptr, inside.into_iter().chain(channels).reduce(|a, b| a & b), None)
    }
}
