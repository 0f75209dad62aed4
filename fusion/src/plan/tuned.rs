//! Schedules that somebody chooses by measuring them.

use super::cost::price;
use super::group::Built;
use super::tuner::{Tunable, TunableBuffer, Tuned, Tuner};
use crate::machine::Profile;
use crate::schedule::{Scheduled, Tiling, schedule_with, variants};

/// Kernels that take less than so many launches are left as they are: what they take is mostly the launch, and they may
/// be put into one with others.
const MIN_LAUNCHES: f64 = 2.0;

/// How much slower than the chosen schedule another may be predicted to be.
const MAX_SLOWDOWN: f64 = 1.2;

/// The most schedules of a kernel, the chosen one among them.
const MAX_SCHEDULES: usize = 6;

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
    let buffer = |(buffer, &align): (&crate::kernel::Buffer, &u32)| TunableBuffer {
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
