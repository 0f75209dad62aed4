//! `tilefuse compare`: fused beside eager, judged for correctness and timed.

use std::time::{Duration, Instant};

use serde::Serialize;
use tch::{Device, Kind, Tensor};

use super::Failure;
use super::inputs::{Inputs, copies, kind_name};
use super::model::{Loaded, Which, quietly};
use super::reference::{self, seed};
use crate::judge::judge;
use crate::{CompileReport, Fused};

/// What is compared.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) which: Which,
    pub(crate) inputs: Option<Inputs>,
    pub(crate) device: Device,
    pub(crate) dtype: Option<Kind>,
    /// How the model is compiled.
    pub(crate) options: crate::Options,
    /// Seconds of measuring; 0 leaves the timing out.
    pub(crate) seconds: f64,
}

/// The result of a comparison.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) model: String,
    pub(crate) device: String,
    pub(crate) dtype: String,
    pub(crate) ops_captured: usize,
    pub(crate) kernels_eager: usize,
    pub(crate) kernels_fused: usize,
    pub(crate) extern_ops: usize,
    pub(crate) eager_us: f64,
    pub(crate) fused_us: f64,
    pub(crate) speedup: f64,
    pub(crate) peak_bytes_eager: u64,
    pub(crate) peak_bytes_fused: u64,
    /// Bytes of prepacked weights.
    pub(crate) prepacked_bytes: u64,
    pub(crate) compile_ms: f64,
    /// The time of each stage; absent where the model runs eager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compile: Option<CompileReport>,
    pub(crate) max_abs_err: f64,
    pub(crate) max_rel_err: f64,
    pub(crate) err_vs_f64_eager: f64,
    pub(crate) err_vs_f64_fused: f64,
    pub(crate) ok: bool,
    /// Why outputs are not equal; absent where they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) difference: Option<String>,
    /// Why the model runs eager; absent where it runs fused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) runs_eager: Option<String>,
}

/// Compares one case.
pub(crate) fn compare(case: &Case) -> Result<Outcome, Failure> {
    tch::manual_seed(0);
    let _no_grad = tch::no_grad_guard();
    let model = Loaded::load(&case.which, case.device, case.dtype)?;
    let kind = case.dtype.unwrap_or(Kind::Float);
    let default;
    let inputs = match &case.inputs {
        Some(inputs) => inputs,
        None => {
            default = case.which.default_inputs(kind, case.device.is_cuda())?;
            &default
        }
    };
    let capture_on = inputs.for_capture(case.device);
    case.which.check_inputs(capture_on.len())?;
    model.try_forward(&copies(&capture_on))?;
    let names = model.names.iter().map(|(n, t)| (n.clone(), t.shallow_clone())).collect();
    let double = model.in_f64(&case.which, case.device);
    let fused = crate::fuse_with(model, case.options.clone()).with_names(names);
    let forward = |m: &Loaded, x: &[Tensor]| m.forward(x);
    let start = Instant::now();
    quietly(|| Ok(fused.run_with(&capture_on, forward)?))?;
    let compile_ms = start.elapsed().as_secs_f64() * 1e3;

    let draw = inputs.for_judging(case.device);
    let (eager_in, fused_in) = (copies(&draw), copies(&draw));
    seed();
    let eager = fused.model().try_forward(&eager_in)?;
    seed();
    let ours = quietly(|| Ok(fused.run_with(&fused_in, forward)?))?;
    let exact = reference::exact(fused.model(), double.ok().as_ref(), &draw);
    let mut verdict = judge(&eager, &ours, exact.as_deref());
    let unchanged = judge(&eager_in, &fused_in, None);
    if let Some(difference) = unchanged.difference {
        verdict.difference.get_or_insert(format!("inputs after the call: {difference}"));
    }

    let explanation = fused.explain_with(&fused_in, forward);
    let (explanation, runs_eager) = match explanation {
        Ok(explanation) => (Some(explanation), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let (eager_us, fused_us) = time(case, &fused, &draw);
    let e = explanation.as_ref();
    Ok(Outcome {
        model: case.name.clone(),
        device: if case.device.is_cuda() { String::from("cuda") } else { String::from("cpu") },
        dtype: kind_name(kind),
        ops_captured: e.map_or(0, |e| e.ops_captured),
        kernels_eager: e.map_or(0, |e| e.kernels_eager),
        kernels_fused: e.map_or(0, |e| e.kernels_fused),
        extern_ops: e.map_or(0, |e| e.extern_ops),
        eager_us,
        fused_us,
        speedup: if fused_us > 0.0 { eager_us / fused_us } else { 0.0 },
        peak_bytes_eager: e.map_or(0, |e| e.peak_bytes_eager),
        peak_bytes_fused: e.map_or(0, |e| e.peak_bytes_fused),
        prepacked_bytes: e.map_or(0, |e| e.packed_bytes),
        compile_ms: e.map_or(compile_ms, |e| compile_ms - e.compile.capture_ms),
        compile: e.map(|e| e.compile),
        max_abs_err: verdict.max_abs,
        max_rel_err: verdict.max_rel,
        err_vs_f64_eager: verdict.eager_err,
        err_vs_f64_fused: verdict.fused_err,
        ok: verdict.difference.is_none(),
        difference: verdict.difference,
        runs_eager,
    })
}

/// Median microseconds of a call, eager and fused, measured in turns.
fn time(case: &Case, fused: &Fused<Loaded>, inputs: &[Tensor]) -> (f64, f64) {
    if case.seconds <= 0.0 {
        return (0.0, 0.0);
    }
    let sync = || {
        if let Device::Cuda(ordinal) = case.device {
            tch::Cuda::synchronize(ordinal as i64);
        }
    };
    let eager = || drop(fused.model().forward(inputs));
    let ours = || drop(fused.run_with(inputs, |m, x| m.forward(x)));
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..2 {
        eager();
        ours();
    }
    sync();
    let per_turn = turn_size(&eager, &sync);
    let end = Instant::now() + Duration::from_secs_f64(case.seconds);
    while Instant::now() < end || times[0].len() < 5 {
        for (list, f) in times.iter_mut().zip([&eager as &dyn Fn(), &ours]) {
            let start = Instant::now();
            (0..per_turn).for_each(|_| f());
            sync();
            list.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(per_turn));
        }
    }
    let [a, b] = times.map(median);
    (a, b)
}

/// Calls of one turn, so that it takes about 5 ms.
fn turn_size(f: &dyn Fn(), sync: &dyn Fn()) -> u32 {
    let start = Instant::now();
    f();
    sync();
    (0.005 / start.elapsed().as_secs_f64().max(1e-6)).clamp(1.0, 200.0) as u32
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
