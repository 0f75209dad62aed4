//! Who chooses among the schedules of a kernel.

use serde::{Deserialize, Serialize};
use tilefuse_block::Elem;

use crate::schedule::Scheduled;

/// A buffer of a kernel whose schedules are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunableBuffer {
    /// Its elements.
    pub elem: Elem,
    /// How many there are.
    pub span: i64,
    /// The largest power of two, up to 16, that its address is known to be a multiple of.
    pub align: u32,
    /// Whether the kernel writes it.
    pub written: bool,
}

/// A kernel with several schedules, of which the first is the one that was chosen by prediction.
#[derive(Debug)]
pub struct Tunable<'a> {
    /// Its parameters in order.
    pub buffers: Vec<TunableBuffer>,
    /// Programs that compute the same, and their grids.
    pub schedules: &'a [Scheduled],
    /// Predicted time in microseconds.
    pub predicted_us: f64,
}

/// What was chosen for a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    /// The position of the schedule.
    pub choice: usize,
    /// Measured microseconds of each schedule; none of one that could not be compiled or differed from the first.
    pub us: Vec<Option<f64>>,
    /// Whether the times are from an earlier measurement.
    pub remembered: bool,
}

/// Says which schedule of a kernel to take, or nothing where the predicted one stands.
pub type Tuner<'t> = dyn FnMut(&Tunable<'_>) -> Option<Tuned> + 't;
