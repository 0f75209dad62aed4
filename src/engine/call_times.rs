//! How long the operators of a model take in eager, in runs of their own: on the host by its clock, on a GPU by events around each.

use super::exec::Watch;
use super::kernels::{Stream, Target};
use super::profile::one_instance;
use super::step_times::Clock;
use crate::Error;
use crate::torch::{self, CallClock};

/// A kernel that takes some [`WAIT_US`] and uses next to nothing of a GPU.
const WAIT: &str = "kernel @wait(%out: ptr<f32>) warps(4) {
  %first = const 0:i32
  %last = const 16000:i32
  %one = const 1:i32
  %factor = const 0.999:f32
  %start = load %out, %first
  %end = for %i in %first..%last step %one with (%value = %start) {
    %next = map mul %value, %factor
    yield %next
  }
  store %out, %first, %end
}
";

/// Microseconds of [`WAIT`].
pub(super) const WAIT_US: f64 = 100.0;

/// A queue of a kernel, each time it is called.
pub(super) type Launch = Box<dyn FnMut() -> Result<(), Error>>;

/// Of a GPU: what it does while the host queues what is to be timed. Else the time of a kernel would be that which the host needs for
/// launching it.
pub(super) fn wait(target: Target) -> Result<Option<Launch>, Error> {
    match target {
        Target::Host => Ok(None),
        Target::Cuda(ordinal) => Ok(Some(Box::new(one_instance(ordinal as usize, WAIT)?))),
    }
}

/// The times of one run.
pub(crate) struct CallTimes {
    clock: Clock,
    target: Target,
    /// What is queued before each operator.
    wait: Option<Launch>,
}

impl CallTimes {
    pub(crate) fn new(target: Target) -> Result<CallTimes, Error> {
        Ok(CallTimes { clock: Clock::new(target)?, target, wait: wait(target)? })
    }

    /// Microseconds of each operator, once the run is over.
    pub(crate) fn us(&self) -> Result<Vec<f64>, Error> {
        // Between the end of one and the begin of the next is what nobody asks for.
        Ok(self.clock.intervals()?.into_iter().step_by(2).collect())
    }

    fn point(&mut self) -> Result<(), Error> {
        let raw = match self.target {
            Target::Host => std::ptr::null_mut(),
            Target::Cuda(ordinal) => torch::cuda_stream(ordinal as i8)?,
        };
        self.clock.step(Stream { raw, threads: 1 })
    }
}

impl CallClock for CallTimes {
    fn begin(&mut self) -> Result<(), Error> {
        self.wait.as_mut().map_or(Ok(()), |wait| wait())?;
        self.point()
    }

    fn end(&mut self) -> Result<(), Error> {
        self.point()
    }

    fn forget(&mut self) {
        self.clock.forget();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tilefuse_codegen::ptx::{PtxOptions, Target as PtxTarget, compile_ptx};

    use super::*;

    #[test]
    fn each_call_that_does_not_fail_has_a_time() {
        let mut times = CallTimes::new(Target::Host).unwrap();
        for fails in [false, true, false] {
            times.begin().unwrap();
            if fails {
                times.forget();
            } else {
                std::thread::sleep(Duration::from_millis(2));
                times.end().unwrap();
            }
        }
        let us = times.us().unwrap();
        assert!(us.len() == 2 && us.iter().all(|&us| us >= 2000.0), "{us:?}");
    }

    #[test]
    fn a_gpu_waits_in_a_loop() {
        let program = tilefuse_block::parse_valid(WAIT).unwrap();
        let text = compile_ptx(&program, PtxTarget::Sm80, &PtxOptions::default()).unwrap().text;
        assert!(text.contains("mul.rn.f32") && text.contains("bra") && text.contains("st.global"), "{text}");
    }
}
