//! Windows of images along an axis: which pixel of an image a pixel of the result reads at a tap, and whether there is one.
//!
//! ```text
//! convolution      pixel o of the result reads pixel i = stride o + dilation k - padding of the image at tap k
//! transposed       tap k brings pixel i of the image to pixel o = stride i + dilation k - padding of the result
//! ```
//!
//! Seen from the result, a transposed convolution reads at taps with `o + padding - dilation k` divisible by the stride, as many
//! as every `stride / gcd(stride, dilation)`th:
//!
//! ```text
//! stride 2, kernel 4, padding 1      o = 0: k = 1, i = 0      o = 1: k = 0, i = 1 and k = 2, i = 0
//!                                    o = 2: k = 1, i = 1 and k = 3, i = 0      o = 3: k = 0, i = 2 and k = 2, i = 1
//! ```
//!
//! Pixels of the result that are a stride apart are a *phase*, which the same taps reach. Where an instance begins at a multiple of
//! the stride, which taps its pixels read is known when the program is written; else that depends on the instance, whose loop
//! goes through every so manieth tap.

use num_integer::gcd;
use tilefuse_block::Elem;
use tilefuse_block::dynamic::{Carried, Tile, both, div_rem, for_range, scalar, select};

/// An axis of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WindowAxis {
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
    /// Pixels of the result; what a tap reads past the image is zero.
    pub(super) out: u64,
    /// Whether pixels of the image are brought to the result by the taps, as a convolution's gradient is: stride, padding
    /// and dilation are of the result then.
    pub(super) transposed: bool,
}

impl WindowAxis {
    /// An axis of so many pixels, each of which is made of its own alone.
    pub(super) fn alone(pixels: u64) -> WindowAxis {
        let (stride, transposed) = (1, false);
        WindowAxis { image: pixels, kernel: 1, stride, padding: 0, dilation: 1, out: pixels, transposed }
    }

    /// An axis with as many zeros after the image as before it; `None` where the kernel does not fit.
    #[cfg(test)]
    pub(super) fn new(
        image: u64,
        kernel: u64,
        stride: u64,
        padding: u64,
        dilation: u64,
    ) -> Option<WindowAxis> {
        let padded = padding.checked_mul(2)?.checked_add(image)?;
        let span = kernel.checked_sub(1)?.checked_mul(dilation)?;
        let out = padded.checked_sub(span.checked_add(1)?)?.checked_div(stride)?.checked_add(1)?;
        Some(WindowAxis { image, kernel, stride, padding, dilation, out, transposed: false })
    }

    /// Whether a tap may read before or after the image.
    pub(super) fn overhangs(&self) -> (bool, bool) {
        let last = (self.out - 1) * self.stride + (self.kernel - 1) * self.dilation;
        (self.padding > 0, last >= self.padding + self.image)
    }

    /// Whether result and image have the same pixels.
    pub(super) fn is_same(&self) -> bool {
        self.stride == 1 && self.out == self.image
    }

    /// Whether there are as many pixels as a transposed convolution has: up to a stride or a dilation more than those that
    /// taps reach.
    pub(super) fn is_reached(&self) -> bool {
        let reach = || {
            let last = (self.image - 1).checked_mul(self.stride)?;
            last.checked_add((self.kernel - 1).checked_mul(self.dilation)?)?.checked_add(1)
        };
        let padded = self.padding.checked_mul(2).and_then(|n| n.checked_add(self.out));
        let more = reach().zip(padded).and_then(|(reach, padded)| padded.checked_sub(reach));
        more.is_some_and(|more| more < self.stride.max(self.dilation))
    }

    /// Pixels of the result for a pixel of the image, each of which other taps reach.
    pub(super) fn phases(&self) -> u64 {
        if self.transposed { self.stride } else { 1 }
    }

    /// Taps that follow each other and reach different pixels.
    pub(super) fn period(&self) -> u64 {
        if self.transposed { self.stride / gcd(self.stride, self.dilation) } else { 1 }
    }

    /// Pixels of the image between neighbours of the result that the same taps reach.
    pub(super) fn pitch(&self) -> u64 {
        if self.transposed { 1 } else { self.stride }
    }

    /// Which pixel of the image a pixel reads at a tap, `p` after one of the first phase and counted from the pixel of the image
    /// that this one stands for; `None` where the tap does not reach it.
    pub(super) fn ahead(&self, p: u64, k: u64) -> Option<i64> {
        let (stride, taps) = (self.stride as i64, (k * self.dilation) as i64);
        if !self.transposed {
            return Some(p as i64 * stride + taps - self.padding as i64);
        }
        let distance = (p + self.padding) as i64 - taps;
        (distance % stride == 0).then_some(distance / stride)
    }

    /// The phase that a tap reaches, and how far ahead of the image's own pixel it reads there.
    pub(super) fn phase(&self, k: u64) -> (u64, i64) {
        let distance = (k * self.dilation) as i64 - self.padding as i64;
        let stride = self.stride as i64;
        (distance.rem_euclid(stride) as u64, -distance.div_euclid(stride))
    }

    /// The window of pixel `o` of the result.
    pub(super) fn window(&self, o: Tile) -> Window<'_> {
        let place = if self.transposed { o } else { o * self.stride + -(self.padding as i64) };
        Window { axis: self, place }
    }

    /// The taps that reach phase `own` of the result, wherever they read.
    pub(super) fn taps_of_phase(&self, own: Tile) -> Taps {
        let (low, is_reached) = self.first(own + self.padding);
        Taps::Range { first: low, end: where_reached(is_reached, int(self.kernel)), step: self.period() }
    }

    /// The first tap of those that are a multiple of the stride away from a pixel, and whether there are such, where that is not
    /// known.
    fn first(&self, from: Tile) -> (Tile, Option<Tile>) {
        let period = self.period();
        let common = self.stride / period;
        let (quotient, rest) = div_rem(from, common);
        // The tap below the period for which the distance is divisible.
        let inverse = (0..period).find(|i| i * (self.dilation / common) % period == 1 % period).unwrap_or(0);
        let (_, remainder) = div_rem(quotient, period);
        let (_, low) = div_rem(remainder * inverse, period);
        (low, (common != 1).then(|| rest.eq(0)))
    }
}

/// What a pixel of the result reads along an axis.
pub(super) struct Window<'a> {
    axis: &'a WindowAxis,
    /// The pixel of the image under the first tap; of a transposed convolution, the pixel of the result.
    place: Tile,
}

impl Window<'_> {
    /// The taps that read from within the image.
    pub(super) fn taps(&self) -> Taps {
        if self.axis.transposed { self.taps_of_result() } else { self.taps_of_image() }
    }

    fn taps_of_image(&self) -> Taps {
        let WindowAxis { image, kernel, dilation, .. } = *self.axis;
        let (before, behind) = self.axis.overhangs();
        if kernel == 1 && !before && !behind {
            return Taps::One;
        }
        let up_to = |distance: Tile| (distance + (dilation - 1)) / dilation;
        let (mut first, mut end) = (int(0), int(kernel));
        if before {
            first = first.maximum(up_to(-self.place));
        }
        if behind {
            end = end.minimum(up_to(int(image) - self.place));
        }
        Taps::Range { first, end, step: 1 }
    }

    fn taps_of_result(&self) -> Taps {
        let axis = self.axis;
        let period = axis.period();
        let from = self.place + axis.padding;
        let (mut low, is_reached) = axis.first(from);
        let most = axis.out - 1 + axis.padding;
        let last = (axis.image - 1) * axis.stride;
        if most > last {
            // Earlier taps read past the image.
            let behind = (from + ((axis.dilation - 1) as i64 - last as i64)).maximum(0);
            let least = behind / axis.dilation;
            let missing = (least - low + (period - 1)).maximum(0);
            low += missing / period * period;
        }
        let mut high = int(axis.kernel);
        if axis.padding < (axis.kernel - 1) * axis.dilation {
            // Later taps read before it.
            high = high.minimum(from / axis.dilation + 1);
        }
        Taps::Range { first: low, end: where_reached(is_reached, high), step: period }
    }

    /// The pixel of the image that it reads at a tap.
    pub(super) fn pixel(&self, tap: Tile) -> Tile {
        let axis = self.axis;
        match axis.transposed {
            true => (self.place + axis.padding - tap * axis.dilation) / axis.stride,
            false if axis.kernel == 1 => self.place,
            false => self.place + tap * axis.dilation,
        }
    }

    /// Whether it reads from within the image at a tap, and a mask holds, where that is not known.
    fn inside(&self, tap: Tile, mask: Option<Tile>) -> Option<Tile> {
        match self.axis.overhangs() {
            (false, false) => mask,
            overhangs => both(mask, inside(self.pixel(tap), (0, self.axis.image), overhangs, None)),
        }
    }
}

/// Taps that a loop goes through.
pub(super) enum Taps {
    /// The only one.
    One,
    /// The first, where they end, and from one to the next.
    Range { first: Tile, end: Tile, step: u64 },
}

impl Taps {
    /// The loop.
    pub(super) fn each<S: Carried>(self, state: S, body: impl FnOnce(Tile, S) -> S) -> S {
        match self {
            Taps::One => body(int(0), state),
            Taps::Range { first, end, step } => for_range(first, end, step, state, body),
        }
    }
}

/// Windows of some pixels of the result along all axes of images, of a convolution that is not transposed.
pub(super) struct Corners<'a> {
    windows: Vec<Window<'a>>,
    /// Elements between neighbouring pixels of an image along each axis.
    steps: Vec<i64>,
}

impl<'a> Corners<'a> {
    /// Those of pixels at these places along the axes.
    pub(super) fn of(axes: &'a [WindowAxis], steps: Vec<i64>, places: &[Tile]) -> Corners<'a> {
        let windows = axes.iter().zip(places).map(|(axis, &place)| axis.window(place)).collect();
        Corners { windows, steps }
    }

    /// The elements under the first taps, from the first one of an image on.
    pub(super) fn first(&self) -> Option<Tile> {
        self.sum(|window, step| Some(window.place * step))
    }

    /// How far after those the elements under a tap lie, if at all.
    pub(super) fn shift(&self, tap: &[Tile]) -> Option<Tile> {
        let mut taps = tap.iter();
        self.sum(|window, step| {
            let tap = *taps.next().filter(|_| window.axis.kernel > 1)?;
            Some(tap * (window.axis.dilation as i64 * step))
        })
    }

    /// The elements under a tap, from the first one of an image on.
    pub(super) fn offset(&self, tap: &[Tile]) -> Option<Tile> {
        let mut taps = tap.iter();
        self.sum(|window, step| taps.next().map(|&tap| window.pixel(tap) * step))
    }

    fn sum(&self, mut part: impl FnMut(&Window<'a>, i64) -> Option<Tile>) -> Option<Tile> {
        let parts = self.windows.iter().zip(&self.steps).filter_map(|(window, &step)| part(window, step));
        parts.reduce(|sum, part| sum + part)
    }

    /// Which of the elements under a tap lie in the image, as far as a mask holds.
    pub(super) fn inside(&self, tap: &[Tile], mask: Option<Tile>) -> Option<Tile> {
        self.windows.iter().zip(tap).fold(mask, |mask, (window, &tap)| window.inside(tap, mask))
    }
}

/// Which of some places lie in `low..high`, as far as they may lie before and after that, and where a condition holds, if
/// there is one: as comparisons of places, since what is chosen by one condition becomes a branch.
pub(super) fn inside(
    places: Tile,
    (low, high): (u64, u64),
    (before, behind): (bool, bool),
    condition: Option<Tile>,
) -> Option<Tile> {
    let mask = before.then(|| places.ge(low));
    let end = condition.map(|condition| {
        let end = int(high);
        places.lt(select(condition, end, low))
    });
    both(mask, end.or_else(|| behind.then(|| places.lt(high))))
}

/// Where taps end, of none where they do not reach a pixel.
fn where_reached(is_reached: Option<Tile>, high: Tile) -> Tile {
    is_reached.map_or(high, |is_reached| select(is_reached, high, 0))
}

/// A number as an index.
fn int(value: u64) -> Tile {
    scalar(Elem::I32, value)
}
