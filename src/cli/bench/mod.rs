//! `tilefuse bench`: fused beside eager, TorchScript's fuser and the peers in Python, in one run.

mod clock;
mod html;
mod rows;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::model::quietly;
use super::peers::Python;
use super::times::Time;
use super::{Failure, args, report};
use clap::ValueEnum;
use clock::Clock;
use serde::Serialize;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Single operators and short chains, at several sizes and in several types.
    Kernels,
    /// The models of the zoo.
    Models,
}

/// Arguments of `tilefuse bench`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// What is measured.
    #[arg(value_enum)]
    suite: Suite,
    /// cpu, cuda or cuda:N.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Only this element type: f32, bf16, f16. Models take f32 on a CPU and bf16 on a GPU where nothing is given.
    #[arg(long)]
    dtype: Option<String>,
    /// Only names that start with this, such as softmax or gpt2.
    #[arg(long, default_value = "", value_name = "PREFIX")]
    only: String,
    /// Seconds of measuring a row.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Write the rows as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with the rows and plots of bandwidth against size.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The Python that runs Inductor, XLA, ONNX Runtime and OpenVINO, where it has them.
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// Measure only these peers, such as inductor,xla; all others that this Python has are left out.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", conflicts_with = "no_python")]
    peers: Vec<String>,
    /// Measure schedules of kernels where the cost model cannot decide between them.
    #[arg(long)]
    tune: bool,
    /// Measure no peers in Python.
    #[arg(long)]
    no_python: bool,
}

/// One row: a kernel or a model at one size, and everyone's time.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Outcome {
    name: String,
    shape: String,
    dtype: String,
    size: i64,
    /// Bytes that must be moved: inputs, weights and results, each once.
    bytes: u64,
    /// Times by contender: `tilefuse`, `eager`, `torchscript`, peers, and `copy` for a copy that moves as many bytes.
    times: BTreeMap<String, Time>,
    /// What fraction of the copy's bandwidth each reaches.
    of_copy: BTreeMap<String, f64>,
    /// Why a contender has no time.
    failed: BTreeMap<String, String>,
    /// Microseconds that the host is busy with a call on an idle GPU, by contender.
    launch_overhead_us: BTreeMap<String, f64>,
    /// Whether calls launch CUDA graphs, or why not.
    cuda_graph: Option<String>,
    kernels_fused: usize,
    extern_ops: usize,
    compile_ms: f64,
    /// Milliseconds that a peer took to compile or load, and for its first call.
    peer_compile_ms: BTreeMap<String, f64>,
    /// The largest difference from eager, relative to eager's largest value.
    difference: f64,
    /// Whether that is no more than rounding can do.
    ok: bool,
}

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    device: String,
    torch: String,
    threads: i32,
    /// Whether weights on the host are prepacked.
    prepack_weights: bool,
    /// How times were taken.
    timing: String,
    /// Bytes that a copy of one large tensor reads and writes, per nanosecond.
    copy_gbps: f64,
    /// Microseconds of a kernel that does nothing, on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    empty_launch_us: Option<f64>,
    /// The peers' versions, and why others are missing.
    peers: BTreeMap<String, String>,
    rows: Vec<Outcome>,
}

/// Runs `tilefuse bench`.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let device = args::device(&args.device)?;
    let kind = args.dtype.as_deref().map(args::dtype).transpose()?;
    let rows = rows::select(args.suite == Suite::Kernels, device.is_cuda(), kind, &args.only);
    if rows.is_empty() {
        return Err(Failure::usage(format!("no row starts with {:?}", args.only)));
    }
    let _no_grad = tch::no_grad_guard();
    tch::manual_seed(0);
    let clock = Clock::new(device)?;
    let mut python = if args.no_python { Python::none() } else { Python::start(&args.python, &args.device) };
    python.keep(&args.peers)?;
    let mut run = Run {
        device: super::report::device_name(device)?,
        torch: String::from("2.11"),
        threads: tch::get_num_threads(),
        prepack_weights: args::options(args.tune).prepack_weights.is_possible(),
        timing: clock.describe(),
        copy_gbps: clock.copy_bandwidth(device)?,
        empty_launch_us: clock.empty_launch()?,
        peers: python.versions().clone(),
        rows: Vec::new(),
    };
    let save = |run: &Run| write(&args.json, || serde_json::to_string_pretty(run).map_err(|e| e.to_string()));
    let progress = report::bar(rows.len() as u64);
    for row in &rows {
        // What is cut off keeps the rows that it has.
        save(&run)?;
        progress.set_message(row.label());
        let outcome = quietly(|| rows::measure(row, device, &clock, &mut python, args));
        match outcome {
            Ok(outcome) => run.rows.push(outcome),
            Err(failure) => progress.suspend(|| eprintln!("{}: {}", row.label(), failure.message)),
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    report::print(&table::table(&run));
    report::print(&report::wrapped(&table::notes(&run)));
    save(&run)?;
    write(&args.html, || Ok(html::page(&run)))?;
    let different = run.rows.iter().filter(|r| !r.ok).count();
    if different == 0 && run.rows.len() == rows.len() {
        return Ok(());
    }
    let message =
        format!("{different} rows differ from eager, {} have no figures", rows.len() - run.rows.len());
    Err(Failure { message, status: 1 })
}

fn write(path: &Option<PathBuf>, text: impl FnOnce() -> Result<String, String>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let written = text().and_then(|text| std::fs::write(path, text).map_err(|e| e.to_string()));
    written.map_err(|e| Failure::usage(format!("cannot write {}: {e}", path.display())))
}
