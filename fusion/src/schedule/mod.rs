//! Kernels to block programs: choice of tiles, then emission.

mod access;
mod accumulate;
mod cascade;
mod emit;
mod error;
mod logistic;
mod mix_order;
mod peel;
mod persistent;
mod reduction_loops;
mod swizzle;
mod tiles;
mod tiling;
mod variants;

use tilefuse_block::Program;

use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::types::{MAX_POINTS, fits_i32};

pub use error::ScheduleError;
pub use tiles::{Axis, Peel, Tiling, Walk};
pub use tiling::choose;
pub use variants::variants;

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
    if let Some(&points) = kernel.indices.extents().iter().find(|&&points| points > MAX_POINTS) {
        return Err(ScheduleError::Loop(points));
    }
    let grid = tiling.grid(kernel);
    if !fits_i32(grid) {
        return Err(ScheduleError::Grid(grid));
    }
    let program = emit::emit(name, kernel, &tiling, machine, align)?;
    Ok(Scheduled { program, grid, tiling })
}
