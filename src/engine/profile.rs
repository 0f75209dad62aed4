//! What a machine can do, measured: `tilefuse doctor --profile` keeps it on disk, and plans are priced with it from then on.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};
use tilefuse_codegen::cache::Key;
use tilefuse_fusion::Profile;

use super::kernels::{Kernel, Stream, Target, device_name, kernel};
use super::measure::{Remembered, in_turns, median, per_call};
use crate::Error;
use crate::torch::{TorchPool, address_of, cuda_stream};

/// Rounds of which the median counts.
const ROUNDS: usize = 9;

/// A kernel that does nothing, but has a buffer.
const NOTHING: &str = "kernel @nothing(%out: ptr<f32>) warps(4) {
  %at = const 0:i32
  %zero = const 0:f32
  %no = const false:bool
  store %out, %at, %zero, mask %no
}
";

/// Figures of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Of a copy of one large tensor, in GB/s, read and written bytes together.
    pub(crate) bandwidth: f64,
    /// Of starting a kernel that does nothing, in microseconds: on the host, of entering a parallel region.
    pub(crate) launch_us: f64,
    /// Operations per nanosecond of libtorch's product of square matrices, of bf16 on CUDA and f32 on the host.
    pub(crate) aligned: f64,
    /// The same, where rows of one do not begin at multiples of 16 bytes.
    pub(crate) unaligned: f64,
}

impl Measured {
    /// Whether no figure is beyond all machines, as after a measurement that was disturbed.
    fn is_plausible(&self) -> bool {
        (1.0..1e5).contains(&self.bandwidth)
            && (0.01..100.0).contains(&self.launch_us)
            && (0.1..1e7).contains(&self.aligned)
            && (0.1..1e7).contains(&self.unaligned)
    }

    /// The profile with these figures.
    pub(crate) fn in_profile(&self, mut profile: Profile) -> Profile {
        profile.bandwidth = self.bandwidth;
        profile.launch_us = self.launch_us;
        if profile.machine.is_gpu() {
            // Kernels of ours keep their share of the rate.
            profile.products.generated *= self.aligned / profile.products.aligned;
        }
        (profile.products.aligned, profile.products.unaligned) = (self.aligned, self.unaligned);
        profile
    }
}

/// What a device's figures are kept under: its name, and the threads that share it.
fn place(device: Device) -> Result<String, Error> {
    let name = device_name(device)?;
    let threads = if device.is_cuda() { 0 } else { tch::get_num_threads() };
    Ok(format!("{name} {threads}"))
}

static KNOWN: Remembered<Measured> = Remembered::new(
    |place| Key::new("profile of a machine", place, "bandwidth launch products"),
    Measured::is_plausible,
);

/// What was measured of a device, if anything was. Read from disk once.
pub(crate) fn kept(device: Device) -> Option<Measured> {
    KNOWN.get_first(&place(device).ok()?)
}

/// Measures a device and keeps what was found, for processes that start from now on.
pub(crate) fn measure(device: Device) -> Result<Measured, Error> {
    let place = place(device)?;
    let _no_grad = tch::no_grad_guard();
    let (n, kind) = if device.is_cuda() { (4096, Kind::BFloat16) } else { (1024, Kind::Float) };
    let measured = Measured {
        bandwidth: bandwidth(device)?,
        launch_us: launch(device)?,
        aligned: product(device, kind, n, n)?,
        unaligned: product(device, kind, n, n + 1)?,
    };
    if !measured.is_plausible() {
        return Err(Error::Internal(format!("figures beyond all machines: {measured:?}")));
    }
    KNOWN.put_on_disk(&place, &measured);
    Ok(measured)
}

fn bandwidth(device: Device) -> Result<f64, Error> {
    let bytes: i64 = if device.is_cuda() { 1 << 30 } else { 1 << 26 };
    let source = Tensor::f_zeros([bytes], (Kind::Uint8, device)).map_err(failed)?;
    let mut target = source.f_empty_like().map_err(failed)?;
    let us = call_us(device, 1, || target.f_copy_(&source).map_err(failed))?;
    Ok(2.0 * bytes as f64 / (us * 1e3))
}

fn product(device: Device, kind: Kind, n: i64, depth: i64) -> Result<f64, Error> {
    // Not drawn: the generators are the user's, and a first call may leave them no further on than eager does.
    let operand = || {
        let values = Tensor::f_linspace(-1.0, 1.0, n * depth, (Kind::Float, device)).map_err(failed)?;
        values.f_reshape([n, depth]).and_then(|t| t.f_to_kind(kind)).map_err(failed)
    };
    let (a, b) = (operand()?, operand()?);
    let us = call_us(device, 1, || a.f_linear::<Tensor>(&b, None).map(drop).map_err(failed))?;
    Ok(2.0 * (n * n) as f64 * depth as f64 / (us * 1e3))
}

fn launch(device: Device) -> Result<f64, Error> {
    let Device::Cuda(ordinal) = device else {
        let threads = tch::get_num_threads().max(1) as usize;
        let enter = || {
            TorchPool::get().run(threads, &|_, _| {});
            Ok(())
        };
        return call_us(device, 200, enter);
    };
    call_us(device, 200, nothing(ordinal)?)
}

/// Queues a kernel of one instance that does nothing on libtorch's current stream of a GPU, each time it is called.
pub(crate) fn nothing(ordinal: usize) -> Result<impl FnMut() -> Result<(), Error>, Error> {
    one_instance(ordinal, NOTHING)
}

/// The same with a kernel of a text, which has one buffer of one element.
pub(super) fn one_instance(
    ordinal: usize,
    text: &str,
) -> Result<impl FnMut() -> Result<(), Error> + use<>, Error> {
    let program = tilefuse_block::parse_valid(text).map_err(|e| Error::Internal(e.to_string()))?;
    let (kernel, _): (Kernel, bool) = kernel(&program, Target::Cuda(ordinal as u32))?;
    let stream = Stream { raw: cuda_stream(ordinal as i8)?, threads: 1 };
    let out = Tensor::f_zeros([1], (Kind::Float, Device::Cuda(ordinal))).map_err(failed)?;
    let address = address_of(&out)?;
    Ok(move || {
        let _lives = &out;
        // SAFETY: the program has one buffer, of one element, which lives in this closure; what is in it is nobody's.
        unsafe { kernel.launch_grid(&[address as u64], [1, 1, 1], stream) }
    })
}

/// Median microseconds of a call, of `calls` queued one after the other.
fn call_us(device: Device, calls: u32, mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let time = |_: usize| per_call(device, calls, &mut call);
    let samples = in_turns(1, time, |progress| progress.rounds < ROUNDS)?.remove(0);
    Ok(median(samples))
}

fn failed(error: tch::TchError) -> Error {
    Error::Torch(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_measured_and_the_figures_price_plans() {
        let found = Measured {
            bandwidth: bandwidth(Device::Cpu).unwrap(),
            // Threads that wait for a processor take any time.
            launch_us: launch(Device::Cpu).unwrap().min(50.0),
            aligned: product(Device::Cpu, Kind::Float, 256, 256).unwrap(),
            unaligned: product(Device::Cpu, Kind::Float, 256, 257).unwrap(),
        };
        assert!(found.is_plausible(), "{found:?}");
        let profile = found.in_profile(Profile::host(2));
        assert_eq!((profile.bandwidth, profile.launch_us), (found.bandwidth, found.launch_us));
        assert_eq!(profile.products.unaligned, found.unaligned);
        assert!(tilefuse_block::parse_valid(NOTHING).is_ok());
        let wrong = Measured { bandwidth: f64::NAN, ..found };
        assert!(!wrong.is_plausible());
    }
}
