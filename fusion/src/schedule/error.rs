//! Why a kernel has no program.

use tilefuse_block::TypeError;

/// What emits a program may fail with.
pub(super) type Result<T> = std::result::Result<T, ScheduleError>;

/// Why a kernel could not be scheduled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// An operation was emitted with operands that it does not take: a defect of the schedule.
    #[error("internal: {0}")]
    Type(#[from] TypeError),
    /// More program instances than a grid can have.
    #[error("{0} program instances are more than a grid can have")]
    Grid(u64),
    /// A loop over more points than its variable counts.
    #[error("a loop over {0} points is longer than 32 bits count")]
    Loop(i64),
    /// A tile would be too large.
    #[error("internal: {0}")]
    Internal(&'static str),
}
