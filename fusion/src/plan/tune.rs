//! Schedules that somebody chooses by measuring them.

use std::time::Instant;

use super::cost::price;
use super::groups::{Built, Groups, Rules, Unit, UnitKernel};
use super::ir::PlanError;
use super::tuner::{Tunable, TunableBuffer, Tuned, Tuner};
use crate::schedule::{Scheduled, Tiling, schedule_with, variants};

/// Kernels that take less than so many launches are left as they are: what they take is mostly the launch, and they may
/// be put into one with others.
const MIN_LAUNCHES: f64 = 2.0;

/// How much slower than the chosen schedule another may be predicted to be.
const MAX_SLOWDOWN: f64 = 1.2;

/// The most schedules of a kernel, the chosen one among them.
const MAX_SCHEDULES: usize = 6;

/// The pass `tune`: gives kernels the tiles that are chosen of several that the cost model does not tell apart.
pub(crate) fn tune(groups: &mut Groups, rules: Rules<'_>, tuner: &mut Tuner<'_>) -> Result<(), PlanError> {
    let start = Instant::now();
    for unit in groups.unit_order()? {
        let Some(alive) = &groups.units[unit] else { continue };
        let Some((scheduled, tuned)) = choose(groups, alive, rules, tuner) else { continue };
        if let Some(Unit { kernel: Some(UnitKernel::Generated(built)), .. }) = &mut groups.units[unit] {
            built.tiling = scheduled.tiling.clone();
            (built.scheduled, built.tuned) = (Some(scheduled), Some(tuned));
        }
    }
    groups.scheduling += start.elapsed();
    Ok(())
}

/// The schedule that is chosen for the kernel of a unit, where there are several.
fn choose(
    groups: &Groups,
    unit: &Unit,
    rules: Rules<'_>,
    tuner: &mut Tuner<'_>,
) -> Option<(Scheduled, Tuned)> {
    let built = unit.generated()?;
    let profile = rules.profile;
    if built.cost.us < MIN_LAUNCHES * profile.launch_us || built.kernel.checks() {
        return None;
    }
    let align = groups.alignments_of(built, rules.alignments);
    let mut schedules = schedules(&groups.kernel_name(&unit.nodes), built, rules, &align)?;
    let buffer = |(buffer, &align): (&crate::kernel::Buffer, &u32)| TunableBuffer {
        elem: buffer.elem,
        span: buffer.span,
        align,
        written: buffer.written,
    };
    let buffers = built.kernel.buffers.iter().zip(&align).map(buffer).collect();
    let tunable = Tunable { buffers, schedules: &schedules, predicted_us: built.cost.us };
    let tuned = tuner(&tunable)?;
    let choice = tuned.choice.min(schedules.len() - 1);
    let allowed = choice == 0 || rules.rewrites.allow("tune");
    allowed.then(|| (schedules.swap_remove(choice), tuned))
}

/// The schedules of a kernel, of which the first is the one that was chosen by prediction; none where that is the only one.
fn schedules(name: &str, built: &Built, rules: Rules<'_>, align: &[u32]) -> Option<Vec<Scheduled>> {
    let (profile, machine) = (rules.profile, rules.profile.machine);
    let of = |tiling: Tiling| schedule_with(name, &built.kernel, tiling, machine, align);
    // What cannot be scheduled at all is an error of the pass `schedule`.
    let mut schedules = vec![of(built.tiling.clone()).ok()?];
    let alike = |tiling: &Tiling| price(&built.kernel, tiling, profile).us <= MAX_SLOWDOWN * built.cost.us;
    for tiling in variants(&built.kernel, &built.tiling, machine).into_iter().filter(alike) {
        if schedules.len() < MAX_SCHEDULES
            && let Ok(other) = of(tiling)
            && tilefuse_block::verify(&other.program).is_ok()
        {
            schedules.push(other);
        }
    }
    (schedules.len() > 1).then_some(schedules)
}
