//! How long the steps of a plan take, in runs of their own: times are taken between steps, which costs time that no timed run is
//! to pay.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

use tch::Tensor;
use tilefuse_codegen::cuda;
use tilefuse_fusion::plan::Plan;

use super::call_times::{WAIT_US, wait};
use super::compile::Compiled;
use super::exec::{Stop, Watch};
use super::kernels::{Stream, Target};
use super::measure::median;
use crate::Error;
use crate::torch::{self, GeneratorState};

/// Runs of which the median counts.
const ROUNDS: usize = 9;

/// Runs before these, which wake threads and fill caches, and of which the last tells how long the host queues a call.
const WARM_ROUNDS: usize = 2;

/// Points in time with nothing in between, of which the median is what one costs.
const EMPTY_STEPS: usize = 9;

/// Most kernels that a GPU waits in while the host queues a call: a tenth of a second.
const MAX_WAITS: usize = 1000;

/// Points in time of a run.
pub(super) enum Clock {
    /// Of the host, where a step is done when it returns.
    Host(Vec<Instant>),
    /// On a stream, where steps are queued.
    Cuda(Arc<cuda::Device>, Vec<cuda::Event>),
}

impl Clock {
    pub(super) fn new(target: Target) -> Result<Clock, Error> {
        Ok(match target {
            Target::Host => Clock::Host(Vec::new()),
            Target::Cuda(ordinal) => Clock::Cuda(cuda::Device::get(ordinal as usize)?, Vec::new()),
        })
    }

    /// Forgets the last point.
    pub(super) fn forget(&mut self) {
        match self {
            Clock::Host(points) => drop(points.pop()),
            Clock::Cuda(_, points) => drop(points.pop()),
        }
    }

    /// Microseconds between the points.
    pub(super) fn intervals(&self) -> Result<Vec<f64>, Error> {
        match self {
            Clock::Host(points) => {
                let us = |pair: &[Instant]| (pair[1] - pair[0]).as_secs_f64() * 1e6;
                Ok(points.windows(2).map(us).collect())
            }
            Clock::Cuda(device, points) => {
                tch::Cuda::synchronize(device.ordinal() as i64);
                points.windows(2).map(|pair| Ok(pair[1].micros_since(&pair[0])?)).collect()
            }
        }
    }
}

impl Watch for Clock {
    fn step(&mut self, stream: Stream) -> Result<(), Error> {
        match self {
            Clock::Host(points) => points.push(Instant::now()),
            Clock::Cuda(device, points) => {
                let event = cuda::Event::new(device)?;
                // SAFETY: the stream is libtorch's current one of this device, which lives as long as the process.
                unsafe { event.record_raw(stream.raw) }?;
                points.push(event);
            }
        }
        Ok(())
    }
}

/// The first step of each unit of steps that run together, in order.
pub(crate) fn units(plan: &Plan) -> Vec<usize> {
    let is_first = |&at: &usize| {
        let outer_loop = plan.outer_loops.iter().find(|outer_loop| outer_loop.steps.contains(&at));
        outer_loop.is_none_or(|outer_loop| outer_loop.steps.start == at)
    };
    (0..plan.steps.len()).filter(is_first).collect()
}

/// What a profile has measured of a plan, in microseconds.
pub(crate) struct StepTimes {
    /// Each step, or those that run together, by the position of the first of them, without what it takes to tell the time between
    /// steps.
    pub(crate) steps: Vec<(usize, f64)>,
    /// A call without times in between, with its guards and results, and its kernels launched one by one.
    pub(crate) call_us: f64,
}

impl Compiled {
    /// The medians of some runs, step by step and as a whole in turn, which write what a call writes and draw no further random
    /// numbers than there were.
    pub(crate) fn profile(
        &self,
        inputs: &[Tensor],
        data: &[*mut c_void],
        threads: usize,
    ) -> Result<StepTimes, Stop> {
        let units = units(&self.plan);
        let mut samples: Vec<Vec<f64>> = units.iter().map(|_| Vec::new()).collect();
        let mut calls = Vec::new();
        let (mut wait, mut waits) = (wait(self.target)?, 0);
        for round in 0..WARM_ROUNDS + ROUNDS {
            let stream = self.stream(threads)?;
            let intervals = self.guarded(inputs, data, |call| {
                let generators = self.generators()?;
                let mut clock = Clock::new(self.target)?;
                if let Some(wait) = &mut wait {
                    (0..waits).try_for_each(|_| wait())?;
                }
                let start = Instant::now();
                self.watch(call, stream, &mut clock)?;
                if round + 1 == WARM_ROUNDS {
                    let us = 1.5 * start.elapsed().as_secs_f64() * 1e6;
                    waits = ((us / WAIT_US).ceil() as usize).min(MAX_WAITS);
                }
                (0..EMPTY_STEPS).try_for_each(|_| clock.step(stream))?;
                generators.iter().try_for_each(GeneratorState::restore)?;
                clock.intervals()
            })?;
            if intervals.len() != units.len() + EMPTY_STEPS {
                return Err(Stop::Failed(Error::Internal(String::from("steps were not told one by one"))));
            }
            let (intervals, empty) = intervals.split_at(units.len());
            let empty = median(empty.to_vec());
            if round >= WARM_ROUNDS {
                samples.iter_mut().zip(intervals).for_each(|(list, us)| list.push((us - empty).max(0.0)));
            }
            let us = self.whole_call(inputs, data, threads, || {
                wait.as_mut().map_or(Ok(()), |wait| (0..waits).try_for_each(|_| wait()))
            })?;
            if round >= WARM_ROUNDS {
                calls.push(us);
            }
        }
        let steps = units.into_iter().zip(samples.into_iter().map(median)).collect();
        Ok(StepTimes { steps, call_us: median(calls) })
    }

    /// Microseconds of a call, before which something else is queued.
    fn whole_call(
        &self,
        inputs: &[Tensor],
        data: &[*mut c_void],
        threads: usize,
        before: impl FnOnce() -> Result<(), Error>,
    ) -> Result<f64, Stop> {
        let (generators, stream) = (self.generators()?, self.stream(threads)?);
        let mut clock = Clock::new(self.target)?;
        before()?;
        clock.step(stream)?;
        let results = self.guarded(inputs, data, |call| self.steps(call, stream))?;
        clock.step(stream)?;
        drop(results);
        generators.iter().try_for_each(GeneratorState::restore)?;
        Ok(clock.intervals()?.into_iter().sum())
    }

    fn generators(&self) -> Result<Vec<GeneratorState>, Error> {
        self.draws_on.iter().map(|&device| GeneratorState::of(device)).collect()
    }

    fn stream(&self, threads: usize) -> Result<Stream, Error> {
        let raw = match self.target {
            Target::Host => std::ptr::null_mut(),
            Target::Cuda(ordinal) => torch::cuda_stream(ordinal as i8)?,
        };
        Ok(Stream { raw, threads })
    }
}
