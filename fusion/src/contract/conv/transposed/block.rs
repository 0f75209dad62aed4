//! What an instance of a transposed convolution computes: cells of rows, of some filters.

use tilefuse_block::Elem;

use crate::contract::conv::geometry::Conv;
use crate::contract::window_axis::WindowAxis;

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
pub(super) struct PhaseBlock {
    /// Filters of a group that are computed at once, a power of two.
    pub(super) filters: u32,
    /// Cells of a row, a power of two.
    pub(super) cells: u32,
    /// Parts of rows that follow one another in a loop.
    pub(super) spots: u64,
    /// Whether all phases are computed together.
    pub(super) unrolled: bool,
}

impl PhaseBlock {
    /// The tile for so many threads.
    pub(super) fn of(conv: &Conv, threads: u32) -> PhaseBlock {
        let lanes = lanes(conv);
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
        let tile = PhaseBlock {
            filters: narrow(filters),
            cells: narrow(cells),
            spots: 1,
            unrolled: phases.is_some(),
        };
        let least = u64::from(threads.max(1)) * 8;
        let spots = if tile.unrolled { tile.instances(conv) / least } else { 1 };
        PhaseBlock { spots: spots.clamp(1, MAX_SPOTS.min(tile.spots(conv))), ..tile }
    }

    /// Elements of the filters and cells.
    pub(super) fn shape(&self) -> [u32; 2] {
        [self.filters, self.cells]
    }

    /// Blocks of a group's filters.
    pub(super) fn filter_blocks(&self, conv: &Conv) -> u64 {
        conv.filters_of_group().div_ceil(self.filters.into())
    }

    /// Blocks of the filters of all groups.
    pub(super) fn blocks(&self, conv: &Conv) -> u64 {
        conv.groups * self.filter_blocks(conv)
    }

    /// Parts of a row.
    pub(super) fn parts(&self, conv: &Conv) -> u64 {
        conv.row_cells().div_ceil(self.cells.into())
    }

    /// What the rows of an image are: cells along the outer axes where phases are computed together, or pixels.
    pub(super) fn rows(&self, conv: &Conv) -> Vec<u64> {
        let outer = conv.axes.split_last().map_or(&[][..], |(_, outer)| outer);
        outer.iter().map(|a| if self.unrolled { a.cells() } else { a.out }).collect()
    }

    /// Parts of all rows of an image.
    pub(super) fn spots(&self, conv: &Conv) -> u64 {
        self.rows(conv).iter().product::<u64>() * self.parts(conv)
    }

    pub(super) fn instances(&self, conv: &Conv) -> u64 {
        conv.batch * self.blocks(conv) * self.spots(conv).div_ceil(self.spots)
    }
}

impl WindowAxis {
    /// Pixels of the first phase, which has the most.
    pub(super) fn cells(&self) -> u64 {
        self.out.div_ceil(self.stride)
    }
}

impl Conv {
    /// Cells of a row.
    pub(super) fn row_cells(&self) -> u64 {
        self.axes.last().map_or(1, WindowAxis::cells)
    }
}

/// Sums of a vector of 512 bits; with shorter ones a tile is computed in parts.
pub(super) fn lanes(conv: &Conv) -> u64 {
    if conv.sum() == Elem::F64 { 8 } else { 16 }
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
