//! The rows of a run, and measuring one of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tch::{Device, Kind, Tensor};
use tilefuse_models::{Workload, ZooEntry, find, workloads, zoo};

use super::clock::Clock;
use super::{Outcome, args};
use crate::Fused;
use crate::cli::Failure;
use crate::cli::inputs::{Spec, kind_name};
use crate::cli::model::{Loaded, Which, with_fuser};
use crate::cli::peers::{Asked, Python};
use crate::cli::times::Time;

/// What one row measures.
#[derive(Debug)]
pub(super) struct Row {
    entry: &'static ZooEntry,
    shape: String,
    size: i64,
    kind: Kind,
    inputs: Vec<Spec>,
}

impl Row {
    /// Its name for people.
    pub(super) fn label(&self) -> String {
        format!("{} {} {}", self.name(), self.shape, kind_name(self.kind))
    }

    /// Its name: that of the model, or of the kernel without its prefix.
    pub(super) fn name(&self) -> &'static str {
        self.entry.name.strip_prefix("kernel:").unwrap_or(self.entry.name)
    }
}

/// The rows of a suite whose names start with `only`, in one element type if one is given.
pub(super) fn select(kernels: bool, gpu: bool, kind: Option<Kind>, only: &str) -> Vec<Row> {
    let mut rows = if kernels {
        let each = |w: &Workload| w.kinds.iter().filter_map(|&k| kernel_row(w, k)).collect::<Vec<_>>();
        workloads(gpu).iter().flat_map(each).collect()
    } else {
        model_rows(gpu, kind)
    };
    rows.retain(|row: &Row| row.name().starts_with(only) && kind.is_none_or(|k| k == row.kind));
    rows
}

fn kernel_row(workload: &Workload, kind: Kind) -> Option<Row> {
    let spec = |(shape, range): &(Vec<i64>, Option<(i64, i64)>)| Spec {
        kind: if range.is_some() { Kind::Int64 } else { kind },
        shape: shape.clone(),
        strides: None,
        range: *range,
    };
    Some(Row {
        entry: find(workload.kernel)?,
        shape: workload.shape.clone(),
        size: workload.size,
        kind,
        inputs: workload.inputs.iter().map(spec).collect(),
    })
}

/// Every model of the zoo that is neither a kernel, nor a tiny one, nor one of `tch`'s own.
fn model_rows(gpu: bool, kind: Option<Kind>) -> Vec<Row> {
    let counts = |e: &&ZooEntry| !e.name.contains(':') && !e.name.ends_with("-tiny");
    let mut rows = Vec::new();
    for entry in zoo().iter().filter(counts) {
        let cases = if gpu && !entry.gpu.is_empty() { entry.gpu } else { entry.cpu };
        for case in cases {
            let kind = if entry.f32_only { case.dtype } else { kind.unwrap_or(case.dtype) };
            let spec = |s: &tilefuse_models::InputSpec| Spec {
                kind: if s.int_range.is_some() { s.kind } else { kind },
                shape: s.shape.to_vec(),
                strides: None,
                range: s.int_range,
            };
            let size = case.inputs.first().map_or(0, |i| i.shape.iter().product());
            let inputs = case.inputs.iter().map(spec).collect();
            rows.push(Row { entry, shape: case.name.to_owned(), size, kind, inputs });
        }
    }
    rows
}

type Call<'a> = Box<dyn FnMut() -> Result<(), Failure> + 'a>;

/// Measures a row: everyone in turns, until the time is over.
pub(super) fn measure(
    row: &Row,
    device: Device,
    clock: &Clock,
    python: &mut Python,
    how: &super::Args,
) -> Result<Outcome, Failure> {
    let model = Loaded::load(&Which::Zoo(row.entry), device, Some(row.kind))?;
    let inputs: Vec<Tensor> = row.inputs.iter().map(|spec| spec.draw(device)).collect();
    let weights: Vec<Tensor> = model.names.iter().map(|(_, t)| t.shallow_clone()).collect();
    let eager = model.try_forward(&inputs)?;
    let mut failed = BTreeMap::new();
    let traced =
        model.traced(&inputs).map_err(|e| failed.insert(String::from("torchscript"), e.message)).ok();
    let fused = crate::fuse_with(model, args::options(how.tune));
    let forward = |m: &Loaded, x: &[Tensor]| m.forward(x);
    let start = Instant::now();
    fused.run_with(&inputs, forward)?;
    let compile_ms = start.elapsed().as_secs_f64() * 1e3;
    let difference = difference(&eager, &fused.run_with(&inputs, forward)?);
    let bytes = bytes(&inputs) + bytes(&weights) + bytes(&eager);
    drop(eager);
    let plan = fused.explain_with(&inputs, forward);
    let plan = plan.map_err(|e| failed.insert(String::from("tilefuse"), format!("runs eager: {e}"))).ok();
    let peer_compile_ms = python.prepare(&Asked::Zoo(row.entry.name), &row.inputs, &mut failed);
    let peers: Vec<String> = peer_compile_ms.keys().cloned().collect();
    let mut calls = contenders(&fused, traced.as_ref(), &inputs);
    let (copied, copy) = copy_of(bytes, device)?;
    calls.push(("copy", copy));
    let samples = in_turns(&mut calls, clock, python, &peers, how.seconds, &mut failed);
    let mut launch_overhead_us = BTreeMap::new();
    for (name, call) in &mut calls {
        if let Some(us) = clock.launch_overhead(call.as_mut())? {
            launch_overhead_us.insert(name.to_string(), us);
        }
    }
    drop(calls);
    let cuda_graph = fused.explain_with(&inputs, forward).ok().and_then(|e| e.cuda_graph);
    let mut times: BTreeMap<String, Time> =
        samples.into_iter().map(|(name, list)| (name, Time::of(list))).collect();
    if let Some(copy) = times.get_mut("copy") {
        *copy = copy.scaled(bytes as f64 / copied as f64);
    }
    let limit = times.get("copy").map_or(0.0, |copy| copy.us);
    let of_copy = |(name, time): (&String, &Time)| (name.clone(), limit / time.us);
    Ok(Outcome {
        name: row.name().to_owned(),
        shape: row.shape.clone(),
        dtype: kind_name(row.kind),
        size: row.size,
        bytes,
        of_copy: times.iter().filter(|(name, _)| *name != "copy").map(of_copy).collect(),
        times,
        failed,
        launch_overhead_us,
        cuda_graph,
        kernels_fused: plan.as_ref().map_or(0, |p| p.kernels_fused),
        extern_ops: plan.as_ref().map_or(0, |p| p.extern_ops),
        peer_compile_ms,
        compile_ms: plan.as_ref().map_or(compile_ms, |p| compile_ms - p.compile.capture_ms),
        difference,
        ok: difference <= if row.kind == Kind::Float { 1e-3 } else { 5e-2 },
    })
}

fn contenders<'a>(
    fused: &'a Fused<Loaded>,
    traced: Option<&'a Loaded>,
    inputs: &'a [Tensor],
) -> Vec<(&'static str, Call<'a>)> {
    let mut calls: Vec<(&'static str, Call)> = vec![
        (
            "tilefuse",
            Box::new(|| fused.run_with(inputs, |m, x| m.forward(x)).map(drop).map_err(Failure::from)),
        ),
        ("eager", Box::new(|| fused.model().try_forward(inputs).map(drop))),
    ];
    if let Some(traced) = traced {
        calls.push(("torchscript", Box::new(|| with_fuser(|| traced.try_forward(inputs).map(drop)))));
    }
    calls
}

/// Most bytes that a copy reads; the time of a larger one is in proportion.
const COPIED: u64 = 1 << 30;

/// A copy that reads and writes that many bytes together, or fewer; and how many it does.
fn copy_of(bytes: u64, device: Device) -> Result<(u64, Call<'static>), Failure> {
    let half = (bytes / 2).clamp(1, COPIED);
    let failed = |e: tch::TchError| Failure::usage(e.to_string());
    let source = Tensor::f_zeros([half as i64], (Kind::Uint8, device)).map_err(failed)?;
    let mut target = source.f_empty_like().map_err(failed)?;
    Ok((2 * half, Box::new(move || target.f_copy_(&source).map_err(failed))))
}

/// Samples of everyone by name. Whoever fails is left out from then on, with the reason in `failed`.
fn in_turns(
    calls: &mut Vec<(&'static str, Call)>,
    clock: &Clock,
    python: &mut Python,
    peers: &[String],
    seconds: f64,
    failed: &mut BTreeMap<String, String>,
) -> BTreeMap<String, Vec<f64>> {
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    // TorchScript profiles its first calls, then optimises.
    for _ in 0..4 {
        calls.retain_mut(|(name, call)| keep(name, call().map(|()| Vec::new()), &mut samples, failed));
    }
    let mut peers = peers.to_vec();
    let end = Instant::now() + Duration::from_secs_f64(seconds.max(0.0));
    let mut rounds = 0;
    while rounds < 5 || Instant::now() < end {
        calls.retain_mut(|(name, call)| keep(name, clock.turn(call), &mut samples, failed));
        peers.retain(|peer| keep(peer, python.turn(peer), &mut samples, failed));
        rounds += 1;
    }
    samples.retain(|name, list| !list.is_empty() && !failed.contains_key(name));
    samples
}

fn keep(
    name: &str,
    turn: Result<Vec<f64>, Failure>,
    samples: &mut BTreeMap<String, Vec<f64>>,
    failed: &mut BTreeMap<String, String>,
) -> bool {
    match turn {
        Ok(turn) => {
            samples.entry(name.to_owned()).or_default().extend(turn);
            true
        }
        Err(failure) => {
            failed.insert(name.to_owned(), failure.message);
            false
        }
    }
}

fn bytes(tensors: &[Tensor]) -> u64 {
    tensors.iter().map(|t| t.numel() as u64 * t.kind().elt_size_in_bytes() as u64).sum()
}

/// The largest difference relative to the largest value; infinite where results cannot be compared.
fn difference(eager: &[Tensor], ours: &[Tensor]) -> f64 {
    let one = |(a, b): (&Tensor, &Tensor)| {
        if a.size() != b.size() || a.kind() != b.kind() {
            return f64::INFINITY;
        }
        let largest = a.abs().max().to_kind(Kind::Double).double_value(&[]);
        let apart = (a - b).abs().max().to_kind(Kind::Double).double_value(&[]);
        let relative = apart / largest.max(f64::MIN_POSITIVE);
        if relative.is_nan() { f64::INFINITY } else { relative }
    };
    if eager.len() != ours.len() {
        return f64::INFINITY;
    }
    eager.iter().zip(ours).filter(|(a, _)| a.numel() > 0).map(one).fold(0.0, f64::max)
}
