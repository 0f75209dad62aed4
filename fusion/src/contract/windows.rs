//! Rows of a product that are windows of images (implicit GEMM): a row is a pixel of the result, and what is summed over are
//! the channels under each tap of the filter. The matrix is nowhere in memory.
//!
//! ```text
//! row r, element k     image n, pixel (y, x) = unravel r, tap (i, j) and channel c = unravel k
//!                      images[n, y stride - padding + i dilation, x stride - padding + j dilation, c], 0 outside of the image
//! ```
//!
//! Channels are contiguous, and a step of the sum is within one tap: which pixel of an image a row reads then depends on the
//! step, and all of a row's elements of a step are contiguous.

use tilefuse_block::dynamic::{Axis, Ptr, Tile, axis, both, div_rem, load, unravel};

/// How windows lie in images.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Windows {
    /// Images.
    pub(super) images: i64,
    /// Elements between neighbouring images.
    pub(super) stride: i64,
    /// Channels, which are contiguous.
    pub(super) channels: i64,
    /// Axes of an image, outermost first.
    pub(super) axes: Vec<WindowAxis>,
    /// Elements of the sum that a member of the batch has, where members are parts of it; otherwise there is no batch.
    pub(super) part: i64,
}

/// An axis of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WindowAxis {
    /// Pixels of the image.
    pub(super) image: i64,
    /// Pixels of the result.
    pub(super) out: i64,
    /// Taps of the filter.
    pub(super) taps: i64,
    /// Pixels of the image between neighbours of the result.
    pub(super) stride: i64,
    /// Zeros before the image.
    pub(super) padding: i64,
    /// Pixels of the image between neighbouring taps.
    pub(super) dilation: i64,
    /// Elements between neighbouring pixels of the image.
    pub(super) step: i64,
}

impl WindowAxis {
    /// Whether a tap may read before the image, and behind it.
    fn overhangs(&self) -> [bool; 2] {
        let last = (self.out - 1) * self.stride + (self.taps - 1) * self.dilation - self.padding;
        [self.padding > 0, last >= self.image]
    }
}

impl Windows {
    /// Elements that offsets go through before the first one of an image and behind its last one.
    pub(super) fn overhang(&self) -> Option<i64> {
        self.axes.iter().try_fold(0i64, |sum, axis| {
            let pixels = axis.taps.checked_mul(axis.dilation)?.checked_add(axis.padding)?;
            sum.checked_add(pixels.checked_mul(axis.step)?)
        })
    }

    /// Whether all strides are multiples of so many elements.
    pub(super) fn is_multiple_of(&self, elements: i64) -> bool {
        self.axes.iter().map(|axis| axis.step).chain([self.stride]).all(|stride| stride % elements == 0)
    }

    /// The windows of some rows, in images that begin at a pointer.
    pub(super) fn of_rows(&self, images: Ptr, rows: Axis) -> Rows<'_> {
        let sizes: Vec<i64> = [self.images].into_iter().chain(self.axes.iter().map(|a| a.out)).collect();
        let indices = unravel(rows.index, &sizes);
        let mut first: Option<Tile> = None;
        let mut add = |part: Tile| first = Some(first.map_or(part, |sum| sum + part));
        let mut corners = Vec::new();
        for (at, &index) in indices.iter().enumerate() {
            match at.checked_sub(1).and_then(|at| self.axes.get(at)) {
                None if self.images > 1 => add(index * self.stride),
                None => {}
                Some(axis) => {
                    let corner = index * axis.stride - axis.padding;
                    add(corner * axis.step);
                    corners.push(corner);
                }
            }
        }
        let images = images.skip(first.map(Tile::col));
        Rows { windows: self, images, corners, rows }
    }
}

/// The windows of some rows.
pub(super) struct Rows<'w> {
    windows: &'w Windows,
    /// The first pixel of each window, as a column.
    images: Ptr,
    /// Its place along each axis, from the image's first pixel on.
    corners: Vec<Tile>,
    rows: Axis,
}

impl Rows<'_> {
    /// The elements from `k` on, within one tap.
    pub(super) fn block(&self, k: Tile, depth: u32) -> Tile {
        let axes = &self.windows.axes;
        let (tap, channel) = div_rem(k, self.windows.channels);
        let taps = unravel(tap, &axes.iter().map(|axis| axis.taps).collect::<Vec<i64>>());
        let mut at = channel;
        let mut inside = self.rows.mask;
        for ((axis, &tap), &corner) in axes.iter().zip(&taps).zip(&self.corners) {
            let mut pixel = corner;
            if axis.taps > 1 {
                at += tap * (axis.dilation * axis.step);
                pixel = corner + tap * axis.dilation;
            }
            let [before, behind] = axis.overhangs();
            inside = both(inside, before.then(|| pixel.ge(0)));
            inside = both(inside, behind.then(|| pixel.lt(axis.image)));
        }
        let ptr = self.images.skip(axis(at, depth).index.row());
        let shape = [self.rows.extent, depth];
        load(ptr, inside.map(|inside| inside.along(0, shape)), None)
    }
}
