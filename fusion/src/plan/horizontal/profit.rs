//! What a launch of several kernels costs, by the cost model.
//!
//! A part that cannot fill the machine leaves room for others, and all parts together cannot be faster than the machine
//! with everything busy:
//!
//! ```text
//! joined = launch + max(longest part, sum of work / share of the machine that all instances fill)
//! ```
//! where a part's work is its time with everything busy. On a GPU every block gets the registers that the largest part
//! needs, so that fewer of other parts' run at a time.
//!
//! On the host a launch of little work runs on the thread that calls, at next to no cost, and a launch of more is handed
//! to all threads and waited for. Joining saves the latter: parts are handed over at once that each were alone. Twenty
//! updates of 20,000 elements took 651 us so, on two threads, instead of 881 us; twenty that would each have run on the
//! calling thread took twice as long joined as apart, and parts without other threads as long as apart.

use super::super::ir::KernelStep;
use super::super::reasons::HorizontalRefusal;
use crate::machine::{Machine, Profile};

/// Kernels of a GPU that take more than so many launches are large.
const MAX_LAUNCHES: f64 = 2.5;

/// Microseconds of one thread below which a launch on the host runs on the thread that calls.
const MAX_INLINE_US: f64 = 12.0;

/// Microseconds beyond which handing a launch to threads is a small part of its time.
const MAX_THREADED_US: f64 = 60.0;

/// What is lost where parts have different programs, on a GPU.
const MIXED_PROGRAMS_COST: f64 = 1.1;

/// The parts of a launch, as the cost model sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Together {
    /// The longest time of a part without its launch, in microseconds.
    longest: f64,
    /// The time of all with the machine full, in microseconds.
    work: f64,
    /// Instances of all.
    pub(super) instances: u64,
    /// Whether the programs differ.
    mixed: bool,
}

/// The predicted time of a kernel without its launch, in microseconds.
fn alone_us(kernel: &KernelStep, profile: &Profile) -> f64 {
    (kernel.predicted_us - profile.launch_us).max(0.0)
}

/// The share of the machine that so many instances fill.
fn busy(instances: u64, profile: &Profile) -> f64 {
    (instances as f64 / profile.workers as f64).clamp(f64::MIN_POSITIVE, 1.0)
}

impl Together {
    pub(super) fn of(kernel: &KernelStep, profile: &Profile) -> Together {
        let (us, instances) = (alone_us(kernel, profile), kernel.grid[0]);
        Together { longest: us, work: us * busy(instances, profile), instances, mixed: false }
    }

    /// With the parts of another launch.
    pub(super) fn with(self, other: Together, same_program: bool) -> Together {
        Together {
            longest: self.longest.max(other.longest),
            work: self.work + other.work,
            instances: self.instances + other.instances,
            mixed: self.mixed || other.mixed || !same_program,
        }
    }

    /// Predicted microseconds of one launch of all.
    pub(super) fn us(self, profile: &Profile) -> f64 {
        let us = self.longest.max(self.work / busy(self.instances, profile));
        let lost = if self.mixed && profile.machine.is_gpu() { MIXED_PROGRAMS_COST } else { 1.0 };
        profile.launch_us + us * lost
    }
}

/// The launch is a good part of a kernel's time, or on a GPU its instances do not fill the machine; on the host it is
/// handed to threads.
pub(super) fn small(kernel: &KernelStep, profile: &Profile) -> Result<(), HorizontalRefusal> {
    let us = alone_us(kernel, profile);
    let (most_us, leaves_room) = match profile.machine {
        Machine::Gpu { .. } => (MAX_LAUNCHES * profile.launch_us, kernel.grid[0] < profile.workers),
        Machine::Host { threads } => {
            handed_to_threads(us, kernel.grid[0], threads)?;
            (MAX_THREADED_US, false)
        }
    };
    if us <= most_us || leaves_room { Ok(()) } else { Err(HorizontalRefusal::Large { us, most_us }) }
}

/// A launch on the host of so many microseconds, with its instances on all threads that they can keep busy, is not run
/// on one thread.
fn handed_to_threads(us: f64, instances: u64, threads: u32) -> Result<(), HorizontalRefusal> {
    let one_thread_us = us * instances.min(threads.into()) as f64;
    let one = threads < 2 || instances < 2 || one_thread_us < MAX_INLINE_US;
    if one { Err(HorizontalRefusal::Inline { us: one_thread_us }) } else { Ok(()) }
}

/// One launch is predicted to be faster than two.
pub(super) fn pays(
    a: Together,
    b: Together,
    same_program: bool,
    profile: &Profile,
) -> Result<Together, HorizontalRefusal> {
    let both = a.with(b, same_program);
    let (separate_us, fused_us) = (a.us(profile) + b.us(profile), both.us(profile));
    if fused_us < separate_us { Ok(both) } else { Err(HorizontalRefusal::Slower { separate_us, fused_us }) }
}
