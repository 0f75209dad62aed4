//! Transposed convolutions: which taps reach a pixel of the result, and from which pixel of the image.
//!
//! A tap `k` brings pixel `i` of the image to pixel `o = stride i + dilation k - padding` of the result. Seen from the
//! result, taps with `o + padding - dilation k` divisible by the stride are read, as many as every `stride / gcd(stride,
//! dilation)`th:
//!
//! ```text
//! stride 2, kernel 4, padding 1      o = 0: k = 1, i = 0      o = 1: k = 0, i = 1 and k = 2, i = 0
//!                                    o = 2: k = 1, i = 1 and k = 3, i = 0      o = 3: k = 0, i = 2 and k = 2, i = 1
//! ```
//!
//! Along a row, an instance begins at a multiple of the stride, so that which taps its pixels read is known when the
//! program is written. Along the other axes that depends on the instance, whose loop goes through every so manieth tap.

use tilefuse_block::dynamic::{Tile, div_rem, select};

use super::geometry::{Axis, Conv};
use super::make::int;

impl Axis {
    /// From one tap that reaches a pixel to the next one.
    fn period(&self) -> u64 {
        self.stride / gcd(self.stride, self.dilation)
    }

    /// Where a pixel of the result, `p` behind a multiple of the stride, is read from at a tap, counted from the image's
    /// pixel that this multiple stands for; `None` where the tap does not reach it.
    pub(super) fn reached(&self, p: u64, k: u64) -> Option<i64> {
        let distance = (p + self.padding) as i64 - (k * self.dilation) as i64;
        let stride = self.stride as i64;
        (distance % stride == 0).then_some(distance / stride)
    }

    /// The phase that a tap reaches, and how far ahead of a cell's own pixel it reads.
    pub(super) fn phase(&self, k: u64) -> (u64, i64) {
        let distance = (k * self.dilation) as i64 - self.padding as i64;
        let stride = self.stride as i64;
        (distance.rem_euclid(stride) as u64, -distance.div_euclid(stride))
    }

    /// Whether there are as many pixels as a transposed convolution has: up to a stride or a dilation more than those that
    /// taps reach.
    pub(super) fn is_transposed(&self) -> bool {
        let reach = || {
            let last = (self.image - 1).checked_mul(self.stride)?;
            last.checked_add((self.kernel - 1).checked_mul(self.dilation)?)?.checked_add(1)
        };
        let padded = self.padding.checked_mul(2).and_then(|n| n.checked_add(self.out));
        let more = reach().zip(padded).and_then(|(reach, padded)| padded.checked_sub(reach));
        more.is_some_and(|more| more < self.stride.max(self.dilation))
    }
}

impl Conv {
    /// Pixels of a row of the result for a pixel of the image, each of which other taps reach.
    pub(super) fn phases(&self) -> u64 {
        if self.transposed { self.axes.last().map_or(1, |a| a.stride) } else { 1 }
    }

    /// Taps along a row that follow each other and reach different pixels.
    pub(super) fn taps_at_once(&self) -> u64 {
        if self.transposed { self.axes.last().map_or(1, Axis::period) } else { 1 }
    }
}

/// Taps of a loop: the first, where they end, and from one to the next.
pub(super) struct Taps {
    pub(super) first: Tile,
    pub(super) end: Tile,
    pub(super) step: u64,
}

/// The taps that reach pixel `o` of the result from within the image.
pub(super) fn taps(axis: &Axis, o: Tile) -> Taps {
    let period = axis.period();
    let from = o + axis.padding;
    let (mut low, is_reached) = first(axis, from);
    let most = axis.out - 1 + axis.padding;
    let last = (axis.image - 1) * axis.stride;
    if most > last {
        // Earlier taps read behind the image.
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
    Taps { first: low, end: where_reached(is_reached, high), step: period }
}

/// The taps that reach phase `own` of the result, wherever they read.
pub(super) fn taps_of_phase(axis: &Axis, own: Tile) -> Taps {
    let (low, is_reached) = first(axis, own + axis.padding);
    Taps { first: low, end: where_reached(is_reached, int(axis.kernel)), step: axis.period() }
}

/// The first tap of those that are a multiple of the stride away from a pixel, and whether there are such, where that is not
/// known.
fn first(axis: &Axis, from: Tile) -> (Tile, Option<Tile>) {
    let period = axis.period();
    let common = axis.stride / period;
    let (quotient, rest) = div_rem(from, common);
    // The tap below the period for which the distance is divisible.
    let inverse = (0..period).find(|i| i * (axis.dilation / common) % period == 1 % period).unwrap_or(0);
    let (_, remainder) = div_rem(quotient, period);
    let (_, low) = div_rem(remainder * inverse, period);
    (low, (common != 1).then(|| rest.eq(0)))
}

/// Where taps end, of none where they do not reach a pixel.
fn where_reached(is_reached: Option<Tile>, high: Tile) -> Tile {
    is_reached.map_or(high, |is_reached| select(is_reached, high, 0))
}

/// The pixel of the image that a tap brings to pixel `o` of the result.
pub(super) fn origin(axis: &Axis, o: Tile, tap: Tile) -> Tile {
    (o + axis.padding - tap * axis.dilation) / axis.stride
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
