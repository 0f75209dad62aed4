//! Kernels to block programs: choice of tiles, then emission.

mod access;
mod accumulate;
mod address;
mod cascade;
mod emit;
mod logistic;
mod mix_order;
mod peel;
mod persistent;
mod reduction_loops;
mod swizzle;
mod tiling;
mod variants;

use tilefuse_block::{Program, TypeError};

use crate::kernel::Kernel;

pub use tiling::{Axis, Peel, Tiling, Walk, choose};
pub use variants::variants;

/// What a schedule is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// A processor with this many worker threads.
    Host {
        /// Threads that run program instances.
        threads: u32,
    },
    /// A CUDA device with this many multiprocessors.
    Gpu {
        /// Streaming multiprocessors.
        processors: u32,
        /// How often the largest tiles are halved, because larger ones did not fit in the registers.
        shrink: u32,
        /// Whether several blocks can hold a tile together.
        clusters: bool,
    },
}

impl Machine {
    /// Whether this is a CUDA device.
    pub fn is_gpu(self) -> bool {
        matches!(self, Machine::Gpu { .. })
    }

    /// Whether a kernel of this many instances had better start before its predecessor has ended; see
    /// [`Program::early`]. Measured on an H200, chains of small kernels gain and rows in 100,000 instances lose a fifth.
    pub(crate) fn starts_early(self, instances: u64) -> bool {
        matches!(self, Machine::Gpu { processors, .. } if instances <= 8 * u64::from(processors))
    }
}

/// A kernel that is ready for a target.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// The block program; its parameters are pointers to [`Kernel::buffers`] in order and, where [`Kernel::checks`], to an
    /// `i32` that becomes 1 when an index is out of range.
    pub program: Program,
    /// Number of program instances.
    pub grid: u64,
    /// The tiles that were chosen.
    pub tiling: Tiling,
}

/// Why a kernel could not be scheduled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// An operation was emitted with operands that it does not take: a defect of the schedule.
    #[error("internal: {0}")]
    Type(#[from] TypeError),
    /// More program instances than a grid can have.
    #[error("{0} program instances are more than a grid can have")]
    Grid(u64),
    /// A tile would be too large.
    #[error("internal: {0}")]
    Internal(&'static str),
}

/// Schedules a kernel for a machine; `align` is the alignment in bytes of each buffer.
pub fn schedule(
    name: &str,
    kernel: &Kernel,
    machine: Machine,
    align: &[u32],
) -> Result<Scheduled, ScheduleError> {
    let tiling = choose(kernel, machine);
    schedule_with(name, kernel, tiling, machine, align)
}

/// Schedules a kernel with given tiles.
pub fn schedule_with(
    name: &str,
    kernel: &Kernel,
    tiling: Tiling,
    machine: Machine,
    align: &[u32],
) -> Result<Scheduled, ScheduleError> {
    let grid = tiling.grid(kernel);
    if grid > i32::MAX as u64 {
        return Err(ScheduleError::Grid(grid));
    }
    let program = emit::emit(name, kernel, &tiling, machine, align)?;
    Ok(Scheduled { program, grid, tiling })
}
