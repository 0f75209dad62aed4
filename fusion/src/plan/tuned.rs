//! Schedules that somebody chooses by measuring them.

use serde::{Deserialize, Serialize};
use tilefuse_block::Elem;

use super::cost::price;
use super::group::Built;
use crate::machine::Profile;
use crate::schedule::{Scheduled, Tiling, schedule_with, variants};

/// Kernels that take less than so many launches are left as they are: what they take is mostly the launch, and they may
/// be put into one with others.
const MIN_LAUNCHES: f64 = 2.0;

/// How much slower than the chosen schedule another may be predicted to be.
const MAX_SLOWDOWN: f64 = 1.2;

/// The most schedules of a kernel, the chosen one among them.
const MAX_SCHEDULES: usize = 6;

/// A buffer of a kernel whose schedules are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
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
    pub buffers: Vec<Buffer>,
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

/// The schedule of a kernel and why it was chosen, with the cost of its tiles.
pub(super) struct Chosen {
    pub(super) scheduled: Scheduled,
    pub(super) tuned: Option<Tuned>,
}

/// Has one of several schedules chosen, if there are some that the cost model does not tell apart.
pub(super) fn choose(
    name: &str,
    built: &Built,
    scheduled: Scheduled,
    align: &[u32],
    profile: &Profile,
    tuner: &mut Tuner<'_>,
) -> Chosen {
    if built.cost.us < MIN_LAUNCHES * profile.launch_us || built.kernel.checks() {
        return Chosen { scheduled, tuned: None };
    }
    let mut schedules = vec![scheduled];
    let alike = |tiling: &Tiling| price(&built.kernel, tiling, profile).us <= MAX_SLOWDOWN * built.cost.us;
    for tiling in variants(&built.kernel, &built.tiling, profile.machine).into_iter().filter(alike) {
        if schedules.len() < MAX_SCHEDULES
            && let Ok(other) = schedule_with(name, &built.kernel, tiling, profile.machine, align)
            && tilefuse_block::verify(&other.program).is_ok()
        {
            schedules.push(other);
        }
    }
    let buffer = |(buffer, &align): (&crate::kernel::Buffer, &u32)| Buffer {
        elem: buffer.elem,
        span: buffer.span,
        align,
        written: buffer.written,
    };
    let buffers = built.kernel.buffers.iter().zip(align).map(buffer).collect();
    let tunable = Tunable { buffers, schedules: &schedules, predicted_us: built.cost.us };
    let tuned = if schedules.len() > 1 { tuner(&tunable) } else { None };
    let choice = tuned.as_ref().map_or(0, |tuned| tuned.choice).min(schedules.len() - 1);
    Chosen { scheduled: schedules.swap_remove(choice), tuned }
}
