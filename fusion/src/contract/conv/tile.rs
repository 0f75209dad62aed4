//! What an instance of a convolution over packed filters computes: some pixels of a row, at some vectors of filters.

use std::ops::RangeInclusive;

use super::geometry::Conv;
use crate::contract::target::Vectors;

/// How a convolution is divided into instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Extents {
    /// Filters of a vector, a power of two.
    pub(super) lanes: u32,
    /// Vectors of filters.
    pub(super) vectors: u32,
    /// Pixels that follow each other in a row, no more than a row has; of transposed convolutions a multiple of the stride.
    pub(super) pixels: u32,
    /// Channels of a step of the innermost loop, a divisor of those that a filter reads.
    pub(super) unroll: u32,
    /// Whether instances that follow each other have the same pixels and other filters.
    pub(super) filters_first: bool,
}

impl Vectors {
    /// What a load takes, in cycles.
    fn load(self) -> f64 {
        if self.bits >= 512 { LOAD } else { LOAD_SHORT }
    }

    /// Sums of one.
    pub(super) fn lanes(self, conv: &Conv) -> u32 {
        (self.bits / 8 / conv.sum().bytes()).max(1)
    }
}

/// Vectors of sums that a step needs at least to keep the units for products busy.
const BUSY: f64 = 8.0;

/// What a step of a loop takes besides products, in cycles.
const STEP: f64 = 1.5;

/// What a load takes, in cycles: most of them are hidden behind products.
const LOAD: f64 = 0.13;

/// The same where no product reads a pixel from memory for all its lanes.
const LOAD_SHORT: f64 = 0.3;

/// What a vector of weights takes besides where there are several taps, whose panels are longer.
const TAPS: f64 = 0.25;

/// What a step takes besides where one register is left for pixels, and where there is none.
const TIGHT: f64 = 0.4;
const SPILLED: f64 = 3.0;

/// What a step takes besides where so many pixels lie in one place of the first cache: their addresses differ by multiples
/// of these elements.
const ALIASED: f64 = 2.0;
const WAYS: u32 = 8;
const WAY: u64 = 1024;

/// What starting an instance takes, and storing a vector of sums, in cycles.
const START: f64 = 40.0;
const STORE: f64 = 3.0;

/// Products that make up a step of the innermost loop at least, where registers are left: LLVM mixes the loads of channels
/// that are written out one after the other.
const PRODUCTS: u32 = 48;

/// Registers that this takes.
const MIXING: u32 = 3;

impl Extents {
    /// The tile that takes the least time.
    pub(super) fn of(conv: &Conv, processor: Vectors) -> Extents {
        match conv.is_depthwise() {
            true => Extents::depthwise(conv, processor),
            false => Extents::among(conv, 1..=4, processor),
        }
    }

    /// The tile of some numbers of vectors that takes the least time.
    pub(super) fn among(conv: &Conv, vectors: RangeInclusive<u32>, processor: Vectors) -> Extents {
        let (lanes, registers, load) = (processor.lanes(conv), processor.registers, processor.load());
        let width = conv.axes.last().map_or(1, |a| a.out);
        let phases = conv.phases() as u32;
        let width = width.next_multiple_of(phases.into());
        let filters = conv.filters_of_group();
        let steps = (conv.depth() * conv.taps().div_ceil(conv.taps_at_once())) as f64;
        let single = conv.taps() == 1;
        // Where channels are innermost.
        let pitch = conv.channels * conv.axes.last().map_or(1, |a| a.stride);
        let time = |vectors: u32, pixels: u32| {
            let tiles = filters.div_ceil(u64::from(vectors * lanes)) * width.div_ceil(pixels.into());
            let (v, p) = (f64::from(vectors), f64::from(pixels));
            let crowded = match registers.saturating_sub(vectors * pixels + vectors) {
                0 => SPILLED,
                1 | 2 => TIGHT,
                _ => 0.0,
            };
            let aliased = if pitch.is_multiple_of(WAY) && pixels > WAYS { ALIASED } else { 0.0 };
            let taps = if single { 0.0 } else { TAPS * v };
            // Two products in a cycle.
            let products = (v * p / 2.0).max(BUSY / 2.0) + load * (v * f64::from(phases) + p);
            tiles as f64 * (steps * (products + STEP + taps + crowded + aliased) + START + STORE * v * p)
        };
        let fits = |vectors: u32| conv.groups == 1 || filters.is_multiple_of(u64::from(vectors * lanes));
        let all = vectors.filter(|&v| fits(v)).flat_map(|v| {
            let most = u64::from((registers - 4) / v).max(1).min(width) as u32;
            (1..=most / phases).map(move |p| (v, p * phases))
        });
        let best = all.min_by(|&a, &b| time(a.0, a.1).total_cmp(&time(b.0, b.1)));
        let (vectors, pixels) = best.unwrap_or((1, 1));
        let unroll = unroll(conv, vectors, pixels, registers);
        Extents { lanes, vectors, pixels, unroll, filters_first: few(conv) }
    }

    /// The tile of a convolution in which a filter reads one channel: a vector of channels.
    fn depthwise(conv: &Conv, processor: Vectors) -> Extents {
        let lanes = processor.lanes(conv);
        let width = conv.axes.last().map_or(1, |a| a.out);
        let phases = conv.phases() as u32;
        let most = width.next_multiple_of(phases.into()).min(16) as u32;
        let time = |pixels: u32| width.div_ceil(pixels.into()) as f64 * (f64::from(pixels) + 4.0);
        let all = (1..=most / phases).map(|p| p * phases);
        let best = all.min_by(|&a, &b| time(a).total_cmp(&time(b)));
        Extents { lanes, vectors: 1, pixels: best.unwrap_or(1), unroll: 1, filters_first: true }
    }

    /// Where the last instance of a row begins: its pixels are the last ones, from a multiple of the phases on.
    pub(super) fn last_start(&self, conv: &Conv) -> u64 {
        let width = conv.axes.last().map_or(1, |a| a.out);
        width.saturating_sub(self.pixels.into()).next_multiple_of(conv.phases())
    }

    /// Filters of an instance.
    pub(super) fn width(&self) -> u64 {
        u64::from(self.lanes * self.vectors)
    }

    /// Instances along the filters of a group.
    pub(super) fn filter_blocks(&self, conv: &Conv) -> u64 {
        conv.filters_of_group().div_ceil(self.width())
    }

    /// Instances along a row of pixels.
    pub(super) fn parts(&self, conv: &Conv) -> u64 {
        conv.axes.last().map_or(1, |a| a.out).div_ceil(self.pixels.into())
    }
}

/// Channels of a step.
fn unroll(conv: &Conv, vectors: u32, pixels: u32, registers: u32) -> u32 {
    let depth = conv.depth();
    // Taps without a loop between them share what they read, and keep it in registers.
    if depth <= 4 && conv.axes.last().is_none_or(|a| a.kernel == 1) {
        return depth as u32;
    }
    let products = (vectors * pixels).max(1);
    let wanted = if products + vectors + MIXING < registers { PRODUCTS.div_ceil(products).min(8) } else { 1 };
    (1..=wanted).rev().find(|&n| depth.is_multiple_of(n.into())).unwrap_or(1)
}

/// Whether all filters take less memory than the images, so that rather they are read again.
fn few(conv: &Conv) -> bool {
    let [images, weights, ..] = conv.lengths();
    weights <= images
}
