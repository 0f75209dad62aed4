//! How calls are timed on each kind of device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tch::{Device, Kind, Tensor};
use tilefuse_codegen::cuda;

use crate::cli::Failure;
use crate::cli::times::Time;

/// Bytes that are written before a call on a GPU, so that it finds nothing of its data in the cache.
const COLD_BYTES: i64 = 256 << 20;
/// Seconds of one sample on a host at least: what is shorter is called several times.
const SAMPLE: f64 = 2e-4;
/// How long everyone rests before a turn on a host: threads of whoever came before spin for a while before they sleep.
/// OpenMP's do so for up to 40 ms. `benches/peers/bench.py` does the same for the peers.
const REST: Duration = Duration::from_millis(60);
/// Calls of a turn on a host that are not timed: they wake threads and fill caches again.
const WARM_CALLS: usize = 3;
/// Seconds after which there are no more of them.
const WARM: f64 = 0.02;

/// Takes samples of a call's time.
#[derive(Debug)]
pub(super) enum Clock {
    /// The host's clock around calls whose data may be in the cache.
    Host,
    /// Events around each call, the cache emptied before it.
    Cuda { device: Arc<cuda::Device>, ordinal: usize, cold: Tensor },
}

impl Clock {
    pub(super) fn new(device: Device) -> Result<Clock, Failure> {
        let Device::Cuda(ordinal) = device else { return Ok(Clock::Host) };
        let cold = Tensor::f_empty([COLD_BYTES], (Kind::Uint8, device)).map_err(failed)?;
        Ok(Clock::Cuda { device: cuda::Device::get(ordinal).map_err(failed)?, ordinal, cold })
    }

    pub(super) fn describe(&self) -> String {
        String::from(match self {
            Clock::Host => {
                "the host's clock, after a rest and warm-up calls, data in the cache where it fits"
            }
            Clock::Cuda { .. } => "events around each call, the cache emptied before it",
        })
    }

    /// Microseconds of some calls, one after the other.
    pub(super) fn turn(&self, call: &mut dyn FnMut() -> Result<(), Failure>) -> Result<Vec<f64>, Failure> {
        match self {
            Clock::Host => host_turn(call),
            Clock::Cuda { device, ordinal, cold } => cuda_turn(device, *ordinal, cold, call),
        }
    }

    /// Microseconds of the host's in a call on a GPU that has nothing else to do; `None` on a host.
    pub(super) fn launch_overhead(
        &self,
        call: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<Option<f64>, Failure> {
        let Clock::Cuda { ordinal, .. } = self else { return Ok(None) };
        let mut samples = Vec::new();
        for _ in 0..25 {
            tch::Cuda::synchronize(*ordinal as i64);
            let start = Instant::now();
            call()?;
            samples.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(Some(Time::of(samples).us))
    }

    /// Bytes per nanosecond that a copy of one large tensor reads and writes together.
    pub(super) fn copy_bandwidth(&self, device: Device) -> Result<f64, Failure> {
        let bytes: i64 = if device.is_cuda() { 1 << 30 } else { 1 << 26 };
        let options = (Kind::Uint8, device);
        let source = Tensor::f_zeros([bytes], options).map_err(failed)?;
        let mut target = source.f_empty_like().map_err(failed)?;
        let mut copy = || target.f_copy_(&source).map_err(failed);
        copy()?;
        let mut samples = Vec::new();
        for _ in 0..5 {
            samples.extend(self.turn(&mut copy)?);
        }
        Ok(2.0 * bytes as f64 / (Time::of(samples).us * 1e3))
    }

    /// Microseconds of a kernel that does nothing; `None` on a host.
    pub(super) fn empty_launch(&self) -> Result<Option<f64>, Failure> {
        let Clock::Cuda { ordinal, .. } = self else { return Ok(None) };
        let mut nothing = crate::engine::nothing(*ordinal)?;
        let mut call = || nothing().map_err(Failure::from);
        call()?;
        let mut samples = Vec::new();
        for _ in 0..20 {
            samples.extend(self.turn(&mut call)?);
        }
        Ok(Some(Time::of(samples).us))
    }
}

fn host_turn(call: &mut dyn FnMut() -> Result<(), Failure>) -> Result<Vec<f64>, Failure> {
    std::thread::sleep(REST);
    let warming = Instant::now();
    for _ in 0..WARM_CALLS {
        call()?;
        if warming.elapsed().as_secs_f64() > WARM {
            break;
        }
    }
    let mut samples = Vec::new();
    let mut calls = 1;
    while samples.len() < 4 {
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        let seconds = start.elapsed().as_secs_f64();
        if seconds < SAMPLE && calls < 1024 {
            calls *= 2;
        } else {
            samples.push(seconds * 1e6 / f64::from(calls));
        }
        if seconds > 0.05 && samples.len() > 1 {
            break;
        }
    }
    Ok(samples)
}

fn cuda_turn(
    device: &Arc<cuda::Device>,
    ordinal: usize,
    cold: &Tensor,
    call: &mut dyn FnMut() -> Result<(), Failure>,
) -> Result<Vec<f64>, Failure> {
    let stream = crate::torch::cuda_stream(ordinal as i8)?;
    let mut cold = cold.shallow_clone();
    let mut pairs = Vec::new();
    for _ in 0..10 {
        let _ = cold.f_zero_().map_err(failed)?;
        let (before, after) =
            (cuda::Event::new(device).map_err(failed)?, cuda::Event::new(device).map_err(failed)?);
        // SAFETY: the stream is libtorch's current one on this device, which lives as long as the process.
        unsafe { before.record_raw(stream) }.map_err(failed)?;
        call()?;
        // SAFETY: as above.
        unsafe { after.record_raw(stream) }.map_err(failed)?;
        pairs.push((before, after));
    }
    tch::Cuda::synchronize(ordinal as i64);
    pairs.iter().map(|(before, after)| after.micros_since(before).map_err(failed)).collect()
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::usage(crate::cli::one_line(&error.to_string()))
}
