//! Times the schedules of a plan's kernels between which the cost model cannot decide, on scratch tensors.
//!
//! A schedule whose results are not those of the predicted one is not taken.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use rayon::prelude::*;
use tch::Tensor;
use tilefuse_codegen::cache::Key;
use tilefuse_fusion::DType;
use tilefuse_fusion::plan::{Tunable, TunableBuffer, Tuned};

use super::benchmark::filled;
use super::kernels::{Kernel, Target, device_name, kernel};
use super::measure::{Progress, Remembered, Timer, calls_in, in_turns};
use crate::Error;
use crate::judge::judge;
use crate::torch::{DeviceId, address_of};

/// The most time that the measurements of one plan take, about; compiling what is measured is part of it.
const MAX_PLAN_TIME: Duration = Duration::from_secs(5);
/// The most time that the rounds of one kernel take, about.
const MAX_KERNEL_TIME: Duration = Duration::from_millis(200);
/// The most rounds, in which every schedule is timed in turn.
const MAX_ROUNDS: usize = 15;
/// The fewest from which something is concluded.
const MIN_ROUNDS: usize = 5;
/// Microseconds of launches that are timed as one.
const SPAN_US: f64 = 200.0;
/// The part of its time by which a schedule must be faster than the predicted one.
const MIN_GAIN: f64 = 0.03;
/// The most bytes of scratch tensors.
const MAX_SCRATCH_BYTES: i64 = 1 << 30;

/// Measures the kernels of one plan.
pub(crate) struct Schedules {
    target: Target,
    device: tch::Device,
    left: Duration,
    spent: Duration,
    measured: usize,
    progress: ProgressBar,
}

impl Schedules {
    pub(crate) fn new(target: Target) -> Schedules {
        let device = match target {
            Target::Host => tch::Device::Cpu,
            Target::Cuda(ordinal) => tch::Device::Cuda(ordinal as usize),
        };
        let shown = std::io::stderr().is_terminal() && !crate::explain::Style::wants_plain_text();
        let progress = if shown { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        Schedules { target, device, left: MAX_PLAN_TIME, spent: Duration::ZERO, measured: 0, progress }
    }

    /// What the measurements have taken.
    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// The schedule to take, where it was measured or there is time for it.
    pub(crate) fn choose(&mut self, tunable: &Tunable<'_>) -> Option<Tuned> {
        let key = self.describe(tunable).ok()?;
        if let Some(tuned) = known(&key).filter(|tuned| tuned.us.len() == tunable.schedules.len()) {
            return Some(tuned);
        }
        let rounds = MIN_ROUNDS * tunable.schedules.len();
        let least = Duration::from_secs_f64(tunable.predicted_us.max(SPAN_US) * 1e-6 * rounds as f64);
        let bytes: i64 = tunable.buffers.iter().map(|b| b.span * i64::from(b.elem.bytes())).sum();
        if least > self.left || bytes > MAX_SCRATCH_BYTES {
            return None;
        }
        let start = Instant::now();
        self.measured += 1;
        let name = tunable.schedules.first().map_or("", |s| &s.program.name);
        self.progress.set_message(format!("tuning kernel {}: {name}", self.measured));
        self.progress.tick();
        let found = tracing::info_span!("tune", kernel = name, schedules = tunable.schedules.len())
            .in_scope(|| self.measure(tunable));
        self.spent += start.elapsed();
        self.left = self.left.saturating_sub(start.elapsed());
        match found {
            Ok(tuned) => {
                KNOWN.put(key, &tuned);
                Some(tuned)
            }
            Err(error) => {
                tracing::warn!("the schedules of {name} were not measured: {error}");
                None
            }
        }
    }

    /// All that the times depend on.
    fn describe(&self, tunable: &Tunable<'_>) -> Result<String, Error> {
        let threads = if self.target == Target::Host { tch::get_num_threads() } else { 0 };
        let mut text = format!("{} threads {threads}\n", device_name(self.device)?);
        for schedule in tunable.schedules {
            text.push_str(&format!("{} instances of {}\n", schedule.grid, schedule.program));
        }
        Ok(text)
    }

    fn measure(&self, tunable: &Tunable<'_>) -> Result<Tuned, Error> {
        let _no_grad = tch::no_grad_guard();
        let kernels: Vec<Option<Kernel>> = tunable
            .schedules
            .par_iter()
            .map(|schedule| kernel(&schedule.program, self.target).ok().map(|(kernel, _)| kernel))
            .collect();
        let buffers = tunable.buffers.iter().map(|b| Scratch::new(b, self.device));
        let bench = Bench { buffers: buffers.collect::<Result<_, _>>()?, timer: Timer::new(self.target)? };
        let grids = tunable.schedules.iter().map(|schedule| schedule.grid);
        let mut sides: Vec<Option<Side>> =
            kernels.into_iter().zip(grids).map(|(kernel, grid)| Some(Side::new(kernel?, grid))).collect();
        bench.keep_those_that_agree(&mut sides)?;
        bench.rounds(&mut sides)?;
        let us: Vec<Option<Sample>> = sides.iter().map(|side| side.as_ref().and_then(Side::sample)).collect();
        let choice =
            fastest(&us).ok_or_else(|| Error::Internal(String::from("the predicted one has no time")))?;
        Ok(Tuned { choice, us: us.iter().map(|s| s.map(|s| s.median)).collect(), remembered: false })
    }
}

impl Drop for Schedules {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}

/// Times of a schedule in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    lower: f64,
    median: f64,
    upper: f64,
}

/// The fastest schedule where it beats the first by more than the noise: by a few percent, and in most rounds against most
/// of the first one's. The first where none does; `None` where that has no times.
fn fastest(samples: &[Option<Sample>]) -> Option<usize> {
    let first = samples.first().copied().flatten()?;
    let wins = |s: &Sample| s.median < first.median * (1.0 - MIN_GAIN) && s.upper < first.lower;
    let timed = samples.iter().enumerate().filter_map(|(at, s)| Some((at, s.as_ref().filter(|s| wins(s))?)));
    Some(timed.min_by(|a, b| a.1.median.total_cmp(&b.1.median)).map_or(0, |(at, _)| at))
}

/// A kernel with its times so far.
struct Side {
    kernel: Kernel,
    grid: u64,
    /// Launches that are timed as one, known from the first.
    calls: Option<u32>,
    times: Vec<f64>,
}

impl Side {
    fn new(kernel: Kernel, grid: u64) -> Side {
        Side { kernel, grid, calls: None, times: Vec::new() }
    }

    fn sample(&self) -> Option<Sample> {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        let at = |part: usize| times.get((times.len() * part / 4).min(times.len().checked_sub(1)?)).copied();
        let round = |us: f64| (us * 1e3).round() / 1e3;
        (times.len() >= MIN_ROUNDS).then_some(())?;
        Some(Sample { lower: round(at(1)?), median: round(at(2)?), upper: round(at(3)?) })
    }
}

/// A buffer, at an address that is aligned as a plan's is.
struct Scratch {
    tensor: Tensor,
    written: bool,
}

impl Scratch {
    fn new(buffer: &TunableBuffer, device: tch::Device) -> Result<Scratch, Error> {
        let kind = DType::Elem(buffer.elem);
        let bytes = i64::from(buffer.elem.bytes());
        let ahead = if buffer.align < 16 { i64::from(buffer.align) / bytes } else { 0 };
        let id = match device {
            tch::Device::Cuda(ordinal) => DeviceId::cuda(ordinal as i8),
            _ => DeviceId::CPU,
        };
        let memory = filled(ahead + buffer.span, kind, id)?;
        Ok(Scratch { tensor: memory.narrow(0, ahead, buffer.span), written: buffer.written })
    }
}

/// Tensors to run the schedules of one kernel on.
struct Bench {
    buffers: Vec<Scratch>,
    timer: Timer,
}

impl Bench {
    fn launch(&self, side: &Side) -> Result<(), Error> {
        let address = |b: &Scratch| address_of(&b.tensor).map(|address| address as u64);
        let args = self.buffers.iter().map(address).collect::<Result<Vec<u64>, Error>>()?;
        // SAFETY: the tensors have as many elements, at addresses as aligned, as the planner says that the program
        // addresses, and nobody else has them.
        unsafe { side.kernel.launch(&args, [side.grid, 1, 1], self.timer.stream()) }
    }

    /// What a schedule writes over ones.
    fn results(&self, side: &Side) -> Result<Vec<Tensor>, Error> {
        let written = || self.buffers.iter().filter(|b| b.written).map(|b| b.tensor.shallow_clone());
        written().for_each(|mut tensor| drop(tensor.fill_(1.0)));
        self.launch(side)?;
        Ok(written().map(|tensor| tensor.copy()).collect())
    }

    /// Leaves out schedules that compute something else than the first by more than rounding, or cannot run.
    fn keep_those_that_agree(&self, sides: &mut [Option<Side>]) -> Result<(), Error> {
        let Some((Some(first), others)) = sides.split_first_mut() else { return Ok(()) };
        let expected = self.results(first)?;
        for side in others {
            let Some(other) = side else { continue };
            let agrees = self.results(other).map(|found| judge(&expected, &found, None).difference);
            match agrees {
                Ok(None) => {}
                Ok(Some(how)) => {
                    tracing::warn!("a schedule is not used, for it computes something else: {how}");
                    *side = None;
                }
                Err(_) => *side = None,
            }
        }
        Ok(())
    }

    fn rounds(&self, sides: &mut [Option<Side>]) -> Result<(), Error> {
        let mut sides: Vec<&mut Side> = sides.iter_mut().flatten().collect();
        let candidates = sides.len();
        let time = |at: usize| {
            let side = &mut sides[at];
            let Some(calls) = side.calls else {
                let once = self.time(side, 1)?;
                side.calls = Some(calls_in(SPAN_US, once));
                return Ok(once);
            };
            self.time(side, calls)
        };
        let more = |progress: &Progress| {
            progress.rounds < MIN_ROUNDS
                || (progress.rounds < MAX_ROUNDS && progress.elapsed <= MAX_KERNEL_TIME)
        };
        let times = in_turns(candidates, time, more)?;
        sides.into_iter().zip(times).for_each(|(side, times)| side.times = times);
        Ok(())
    }

    /// Microseconds of a launch, of so many that are timed as one.
    fn time(&self, side: &Side, calls: u32) -> Result<f64, Error> {
        let launches = || (0..calls).try_for_each(|_| self.launch(side));
        let us = self.timer.time(launches)?.as_secs_f64() * 1e6;
        Ok(us / f64::from(calls))
    }
}

static KNOWN: Remembered<Tuned> = Remembered::new(
    |what| Key::new(what, "schedules", "1"),
    |tuned| tuned.us.get(tuned.choice).is_some_and(Option::is_some),
);

fn known(what: &str) -> Option<Tuned> {
    KNOWN.get(what).map(|tuned| Tuned { remembered: true, ..tuned })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(lower: f64, median: f64, upper: f64) -> Option<Sample> {
        Some(Sample { lower, median, upper })
    }

    #[test]
    fn a_schedule_wins_by_more_than_the_noise() {
        let first = sample(9.9, 10.0, 10.1);
        assert_eq!(fastest(&[first, sample(7.9, 8.0, 8.1), sample(6.0, 7.0, 7.5)]), Some(2));
        assert_eq!(fastest(&[first, None, sample(7.9, 8.0, 8.1)]), Some(2));
        // By little, and where rounds differ by as much as the schedules.
        assert_eq!(fastest(&[first, sample(9.7, 9.75, 9.8)]), Some(0));
        assert_eq!(fastest(&[sample(7.5, 10.0, 12.0), sample(7.0, 8.0, 9.0)]), Some(0));
        assert_eq!(fastest(&[first, sample(11.0, 12.0, 13.0)]), Some(0));
        assert_eq!(fastest(&[None, sample(1.0, 1.0, 1.0)]), None);
    }
}
