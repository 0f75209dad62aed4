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
use crate::machine::Machine;

pub use tiling::{Axis, Peel, Tiling, Walk, choose};
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
