//! `tilefuse compare`: fused beside eager, judged for correctness and timed.

mod accuracy;
mod bisect;
mod kernels;
mod page;
mod repro;
mod script;
mod timing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use tch::{Device, Kind, Tensor};

use super::Failure;
use super::inputs::{Inputs, copies, kind_name};
use super::model::{Loaded, Which, quietly, with_fuser};
use super::peers::{Asked, Python};
use super::reference::{self, seed};
use super::times::Time;
use crate::explain::hinted;
use crate::judge::judge;
use crate::{CompileReport, Explanation};

use accuracy::{Accuracy, accuracy};
pub(crate) use bisect::{Bisection, bisect, steps as bisection_steps};
pub(crate) use page::page;
pub(crate) use timing::Throughput;
use timing::in_turns;

/// What is compared.
#[derive(Clone, Debug)]
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
    /// Where the case is written to.
    pub(crate) repro: Option<PathBuf>,
}

/// The result of a comparison.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) model: String,
    pub(crate) device: String,
    pub(crate) dtype: String,
    pub(crate) ops_captured: usize,
    /// Rewrites that the passes made.
    pub(crate) rewrites: u64,
    /// The pass that made the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_rewrite: Option<String>,
    pub(crate) kernels_eager: usize,
    pub(crate) kernels_fused: usize,
    /// What the host starts in a call: operators that compute something, of which each counts once.
    pub(crate) launches_eager: usize,
    /// The same of the plan, see [`Explanation::launches_fused`].
    pub(crate) launches_fused: usize,
    pub(crate) extern_ops: usize,
    /// Of eager's calls, the median; 0 where nothing was timed, as all times.
    pub(crate) eager_us: f64,
    /// The quartiles around it.
    pub(crate) eager_quartiles_us: [f64; 2],
    pub(crate) fused_us: f64,
    pub(crate) fused_quartiles_us: [f64; 2],
    pub(crate) speedup: f64,
    /// Of the peers' calls.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) peers: BTreeMap<String, Time>,
    /// Why peers have no times.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) peers_failed: BTreeMap<String, String>,
    /// In the model's own unit; absent where nothing was timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) throughput: Option<Throughput>,
    /// The first dimension of the inputs, in a sweep over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<i64>,
    pub(crate) peak_bytes_eager: u64,
    pub(crate) peak_bytes_fused: u64,
    /// What is held over a call.
    pub(crate) memory: crate::explain::MemoryReport,
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
    /// Each output.
    pub(crate) outputs: Vec<Accuracy>,
    pub(crate) ok: bool,
    /// Why outputs are not equal; absent where they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) difference: Option<String>,
    /// Why the model runs eager; absent where it runs fused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) runs_eager: Option<String>,
    /// What became of hints, a line each, as plans say it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) hints: Vec<String>,
    /// What makes results differ, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bisection: Option<Bisection>,
}

/// Compares one case, with inputs whose first dimension is `batch` where that is given, beside TorchScript and the peers that a Python has.
/// With the plan that was compared; none where the model runs eager.
pub(crate) fn compare(
    case: &Case,
    batch: Option<i64>,
    python: &mut Python,
) -> Result<(Outcome, Option<Explanation>), Failure> {
    tch::manual_seed(0);
    let _no_grad = tch::no_grad_guard();
    let load = || Loaded::load(&case.which, case.device, case.dtype);
    let model = tracing::info_span!("load").in_scope(load)?;
    let kind = case.dtype.unwrap_or(Kind::Float);
    let default;
    let mut inputs = match &case.inputs {
        Some(inputs) => inputs,
        None => {
            default = case.which.default_inputs(kind, case.device.is_cuda())?;
            &default
        }
    };
    let resized;
    if let Some(batch) = batch {
        resized = inputs.with_batch(batch)?;
        inputs = &resized;
    }
    let capture_on = inputs.for_capture(case.device);
    case.which.check_inputs(capture_on.len())?;
    model.try_forward(&copies(&capture_on))?;
    let names = model.names.iter().map(|(n, t)| (n.clone(), t.shallow_clone())).collect();
    let double = model.in_f64(&case.which, case.device);
    let mut peers_failed = BTreeMap::new();
    let script = (case.seconds > 0.0).then(|| script::optimised(&model, case, &capture_on)).transpose();
    let script = script.unwrap_or_else(|failure| {
        peers_failed.insert(String::from(script::NAME), failure.message);
        None
    });
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
    let exact = tracing::info_span!("judge")
        .in_scope(|| reference::exact(fused.model(), double.ok().as_ref(), &draw));
    let mut verdict = judge(&eager, &ours, exact.as_deref());
    let unchanged = judge(&eager_in, &fused_in, None);
    if let Some(difference) = unchanged.difference {
        verdict.difference.get_or_insert(format!("inputs after the call: {difference}"));
    }

    let eager_call = || drop(fused.model().forward(&draw));
    let fused_call = || drop(fused.run_with(&draw, forward));
    let script_call = || with_fuser(|| script.iter().for_each(|script| drop(script.forward(&draw))));
    let ways: [&dyn Fn(); 3] = [&eager_call, &fused_call, &script_call];
    let ways = &ways[..2 + usize::from(script.is_some())];
    let times = tracing::info_span!("time").in_scope(|| in_turns(case.device, case.seconds, ways));
    let [eager_time, fused_time] = [0, 1].map(|way| times.get(way).copied().unwrap_or_default());
    let (eager_us, fused_us) = (eager_time.us, fused_time.us);
    // Behind the calls that are timed: a CUDA graph is captured after some.
    let explanation = fused.explain_with(&fused_in, forward);
    let (explanation, runs_eager) = match explanation {
        Ok(explanation) => (Some(explanation), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let mut peers = times_in_python(case, inputs, python, &mut peers_failed);
    peers.extend(times.get(2).map(|&time| (String::from(script::NAME), time)));
    let e = explanation.as_ref();
    let outcome = Outcome {
        model: case.name.clone(),
        device: if case.device.is_cuda() { String::from("cuda") } else { String::from("cpu") },
        dtype: kind_name(kind),
        ops_captured: e.map_or(0, |e| e.ops_captured),
        rewrites: e.map_or(0, |e| e.rewrites),
        last_rewrite: e.and_then(|e| e.last_rewrite.clone()),
        kernels_eager: e.map_or(0, |e| e.kernels_eager),
        kernels_fused: e.map_or(0, |e| e.kernels_fused),
        launches_eager: e.map_or(0, |e| e.kernels_eager),
        launches_fused: e.map_or(0, |e| e.launches_fused),
        extern_ops: e.map_or(0, |e| e.extern_ops),
        eager_us,
        eager_quartiles_us: [eager_time.low, eager_time.high],
        fused_us,
        fused_quartiles_us: [fused_time.low, fused_time.high],
        peers,
        peers_failed,
        throughput: Throughput::of(&draw, eager_time, fused_time),
        batch,
        outputs: accuracy(&eager, &ours, exact.as_deref()),
        speedup: if fused_us > 0.0 { eager_us / fused_us } else { 0.0 },
        peak_bytes_eager: e.map_or(0, |e| e.peak_bytes_eager),
        peak_bytes_fused: e.map_or(0, |e| e.peak_bytes_fused),
        memory: e.map_or_else(Default::default, |e| e.memory.clone()),
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
        hints: e.map_or_else(Vec::new, hinted),
        bisection: None,
    };
    if let Some(folder) = &case.repro {
        repro::save(folder, case, &draw, &outcome)?;
    }
    Ok((outcome, explanation))
}

/// Times of the peers that a Python has, where anything is timed.
fn times_in_python(
    case: &Case,
    inputs: &Inputs,
    python: &mut Python,
    failed: &mut BTreeMap<String, String>,
) -> BTreeMap<String, Time> {
    let asked = match &case.which {
        Which::Zoo(entry) => Asked::Zoo(entry.name),
        Which::File(path) => Asked::File(path, case.dtype),
    };
    match inputs {
        _ if case.seconds <= 0.0 => BTreeMap::new(),
        Inputs::Drawn(specs) => python.times(&asked, specs, case.seconds, failed),
        Inputs::Given(_) => {
            let why = "it draws inputs, which --input describes, and takes none of a file";
            failed.extend(python.peers_for(&asked).map(|peer| (peer.clone(), String::from(why))));
            BTreeMap::new()
        }
    }
}
