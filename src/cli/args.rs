//! Arguments and commands.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use tch::Device;

use super::compare::{Case, Outcome, compare};
use super::dump::Source;
use super::inputs::{Inputs, Spec, kind};
use super::model::{Which, quietly};
use super::peers::{Python, Wanted};
use super::{Failure, doctor, manifest, report};

/// Fuses the operators of a PyTorch model into tile kernels and shows what that brings.
#[derive(Parser)]
#[command(name = "tilefuse", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a model fused and eager, check that both agree, and time both.
    Compare(CompareArgs),
    /// Measure kernels or models: fused, eager, TorchScript's fuser, and peers in Python.
    Bench(super::bench::Args),
    /// Show the fusion plan of a model.
    Explain(super::explain::Args),
    /// Show what a kernel in a file becomes on its way to a target, or run it.
    Kernel(super::kernel::Args),
    /// Say what is installed, which devices and targets there are, and where the cache is.
    Doctor(doctor::Args),
    /// List the models that are known by name.
    Models,
    /// Write the PTX of every kernel of the zoo, or of random programs, to a folder; needs no GPU.
    DumpPtx(DumpArgs),
    /// Compare random tensor programs, fused and eager.
    #[command(hide = true)]
    Random(super::random::Args),
    /// Compare recorded calls of libtorch's operators, fused and eager.
    #[command(hide = true)]
    Samples(super::samples::Args),
}

/// Which model, on what.
#[derive(Args)]
pub(crate) struct ModelArgs {
    /// A model's name (see `tilefuse models`) or a TorchScript file.
    model: Option<String>,
    /// An input, in order: f32[8,3,224,224], i64[4,128]{0..50257}, bf16[..], bool[..]; f32[4,8](1,4) has strides.
    #[arg(long, value_name = "SPEC")]
    input: Vec<String>,
    /// Inputs from a safetensors file, as tensors named 0, 1, ...
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    inputs: Option<PathBuf>,
    /// cpu, cuda or cuda:N.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Type of the weights, and of floating-point inputs without a spec: f32, bf16, f16, f64.
    #[arg(long)]
    dtype: Option<String>,
    /// Measure schedules of kernels where the cost model cannot decide between them.
    #[arg(long)]
    tune: bool,
    /// Which products, convolutions and attention are kernels: measured (whichever takes less time on this machine), predicted (by the
    /// cost model, so that plans depend on no measurement), generated (all that can be), or library (none); else as TILEFUSE_PRODUCTS
    /// says, or measured.
    #[arg(long, value_name = "CHOICE")]
    products: Option<crate::Products>,
    /// Bytes of intermediates that a plan may hold beyond what eager holds at its peak, where that makes it faster; else as
    /// TILEFUSE_WORKSPACE says, or 0.
    #[arg(long, value_name = "BYTES")]
    workspace_bytes: Option<u64>,
    /// What to do with some operators, by name or module: eager=h.*.attn, separate=ln_f, together=h.0.mlp, or tolerance:1e-5=wte,
    /// where they are within this of eager's, relative to the largest element,
    /// or run in libtorch; may be given several times. What no operator is meant by is an error.
    #[arg(long, value_name = "EFFECT=PATTERN")]
    hint: Vec<crate::Hint>,
    /// Fail where an operator of this module or name is left to libtorch, if by `--hint eager=` too, or the model runs eager; `*` for
    /// all. `explain` shows the plan first. May be given several times.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) strict: Vec<String>,
    /// Make at most so many rewrites, to find a wrong one by bisecting; `explain --print-after` says how many there are.
    #[arg(long, value_name = "N")]
    max_rewrites: Option<u64>,
}

#[derive(Args)]
struct CompareArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Compare many cases: a file with one {"name", "model", "inputs", "strides", "device", "dtype", "tune", "products",
    /// "workspace_bytes", "hints", "strict", "max_rewrites"} a line, all but the model optional.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "input", "inputs"])]
    manifest: Option<PathBuf>,
    /// Compare every model of the zoo whose name starts with this, or all.
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["model", "input", "inputs", "manifest"])]
    zoo: Option<String>,
    /// Print one JSON object instead of a table; with `--batch`, `--manifest` and `--zoo` one a line.
    #[arg(long)]
    json: bool,
    /// Write a page for a browser: times with quartiles, throughput, kernels, memory, and each output's errors in ulp.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Time the peers that this Python has, too: Inductor, XLA, ONNX Runtime and OpenVINO, of which XLA takes no TorchScript files.
    #[arg(long, value_name = "PROGRAM")]
    python: Option<String>,
    /// Compare with each of these in the place of the inputs' first dimension.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', conflicts_with_all = ["manifest", "zoo", "inputs"],
          value_parser = clap::value_parser!(i64).range(1..))]
    batch: Vec<i64>,
    /// Find the kernel whose result differs most from eager's, and where results differ, the pass and the operator that make them
    /// differ; takes as many compilations as the logarithm of the numbers of rewrites and operators.
    #[arg(long, conflicts_with_all = ["manifest", "zoo"])]
    bisect: bool,
    /// Write the case, its inputs, its graph and its plan to this folder, to be run elsewhere.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["manifest", "zoo", "batch"])]
    save_repro: Option<PathBuf>,
    /// Seconds of measuring; 0 only checks.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

#[derive(Args)]
struct DumpArgs {
    /// sm_80, sm_90a or sm_100a.
    #[arg(long)]
    target: String,
    /// The folder.
    #[arg(long)]
    out: PathBuf,
    /// Only models whose name starts with this.
    #[arg(long, default_value = "")]
    prefix: String,
    /// The kernels of this many random programs instead of the zoo's.
    #[arg(long, value_name = "COUNT", conflicts_with = "prefix")]
    random: Option<u64>,
    /// The first seed of random programs.
    #[arg(long, default_value_t = 0, requires = "random")]
    seed: u64,
    /// The kernels of the program of this file, as `tilefuse random --print` writes it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prefix", "random"])]
    replay: Option<PathBuf>,
}

/// Runs the program.
pub fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    // TorchScript's own fuser runs kernels that a capture cannot see.
    tch::jit::set_tensor_expr_fuser_enabled(false);
    let result = quietly(|| match cli.command {
        Command::Compare(args) => run_compare(&args),
        Command::Bench(args) => super::bench::run(&args),
        Command::Explain(args) => super::explain::run(&args),
        Command::Kernel(args) => super::kernel::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Models => {
            report::models();
            Ok(())
        }
        Command::DumpPtx(args) => super::dump::run(&args.target, &args.out, args.source()),
        Command::Random(args) => super::random::run(&args),
        Command::Samples(args) => super::samples::run(&args),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}

impl DumpArgs {
    fn source(&self) -> Source<'_> {
        match (&self.replay, self.random) {
            (Some(path), _) => Source::Program(path),
            (None, Some(count)) => Source::Random(self.seed..self.seed.saturating_add(count)),
            (None, None) => Source::Zoo(&self.prefix),
        }
    }
}

impl ModelArgs {
    pub(crate) fn case(&self, seconds: f64) -> Result<Case, Failure> {
        let name = self.model.clone().ok_or_else(|| {
            Failure::usage(String::from("name a model (see `tilefuse models`) or a TorchScript file"))
        })?;
        let device = device(&self.device)?;
        let dtype = self.dtype.as_deref().map(dtype).transpose()?;
        let inputs = match &self.inputs {
            Some(path) => Some(Inputs::read(path, device, dtype)?),
            None if self.input.is_empty() => None,
            None => Some(Inputs::Drawn(specs(&self.input)?)),
        };
        Ok(Case {
            which: Which::find(&name)?,
            name,
            inputs,
            device,
            dtype,
            options: self.options(),
            seconds,
            repro: None,
        })
    }
}

impl ModelArgs {
    /// How models are compiled.
    fn options(&self) -> crate::Options {
        let default = options(self.tune);
        let strict = strict(self.strict.clone());
        let max_rewrites = self.max_rewrites.or(default.max_rewrites);
        let products = self.products.unwrap_or(default.products);
        let workspace_bytes = self.workspace_bytes.unwrap_or(default.workspace_bytes);
        let hints = self.hint.clone();
        crate::Options { products, workspace_bytes, max_rewrites, hints, strict, ..default }
    }
}

/// What is asked of plans by these patterns.
pub(crate) fn strict(patterns: Vec<String>) -> crate::Strict {
    if patterns.is_empty() { crate::Strict::Off } else { crate::Strict::Kernels(patterns) }
}

/// How models are compiled where nothing else is asked for.
pub(crate) fn options(tune: bool) -> crate::Options {
    let default = crate::Options::default();
    // The second call is to run the plan, and no timed one is to be a capture.
    crate::Options { tune: tune || default.tune, audit: crate::Audit::Never, ..default }
}

/// The specs of these texts.
pub(crate) fn specs(texts: &[String]) -> Result<Vec<Spec>, Failure> {
    texts.iter().map(|t| t.parse::<Spec>().map_err(|e| Failure::usage(e.to_string()))).collect()
}

/// The element type of a model of this name.
pub(crate) fn dtype(name: &str) -> Result<tch::Kind, Failure> {
    match kind(name).filter(|k| matches!(name, "f32" | "f64" | "f16" | "bf16") && *k != tch::Kind::Bool) {
        Some(kind) => Ok(kind),
        None => Err(Failure::usage(format!("--dtype {name:?} is none of f32, bf16, f16, f64"))),
    }
}

/// The device of this name, if it is there.
pub(crate) fn device(name: &str) -> Result<Device, Failure> {
    if name == "cpu" {
        return Ok(Device::Cpu);
    }
    let ordinal = match name.strip_prefix("cuda") {
        Some("") => Some(0),
        Some(rest) => rest.strip_prefix(':').and_then(|n| n.parse::<usize>().ok()),
        None => None,
    };
    let ordinal =
        ordinal.ok_or_else(|| Failure::usage(format!("--device {name:?} is none of cpu, cuda, cuda:N")))?;
    let count = crate::torch::cuda_devices()?;
    if ordinal >= count {
        return Err(Failure::usage(format!("--device {name}: there are only {count} CUDA devices")));
    }
    Ok(Device::Cuda(ordinal))
}

fn run_compare(args: &CompareArgs) -> Result<(), Failure> {
    let html = args.html.as_deref();
    let mut python = match &args.python {
        Some(program) => Python::start(program, &args.model.device),
        None => Python::none(),
    };
    let lines = match (&args.manifest, &args.zoo) {
        (Some(path), _) => Some(manifest::read(path)?),
        (None, Some(prefix)) => Some(manifest::zoo(prefix, &args.model)?),
        (None, None) => None,
    };
    if let Some(lines) = lines {
        return manifest::run(lines, &args.model, args.seconds, &mut python, html, args.json);
    }
    let case = Case { repro: args.save_repro.clone(), ..args.model.case(args.seconds)? };
    let batches =
        if args.batch.is_empty() { vec![None] } else { args.batch.iter().copied().map(Some).collect() };
    let mut rows: Vec<(String, Result<Outcome, String>)> = Vec::new();
    let mut meant = Ok(());
    for batch in batches {
        let name = batch.map_or_else(|| case.name.clone(), |batch| format!("{} x {batch}", case.name));
        let progress = report::spinner(&format!("comparing {name}"), case.options.tune);
        let outcome = compare(&case, batch, &mut python);
        progress.finish_and_clear();
        let (mut outcome, plan) = outcome?;
        if args.bisect {
            report::say_plainly(&format!("bisecting {name}"));
            let progress = report::bar(super::compare::bisection_steps(&outcome));
            let case = Case { repro: None, ..case.clone() };
            let found = super::compare::bisect(&case, batch, &outcome, &progress);
            progress.finish_and_clear();
            outcome.bisection = Some(found?);
        }
        if args.json {
            report::json(&outcome)?;
        } else {
            report::table(&outcome);
            outcome.bisection.iter().for_each(|found| report::print(&report::wrapped(&found.text())));
        }
        meant = meant.and(plan.as_ref().map_or(Ok(()), super::explain::all_meant));
        rows.push((name, Ok(outcome)));
    }
    let wanted = Wanted::of(&args.model.device, [&case.which]);
    let peers = if args.seconds > 0.0 { python.said(wanted) } else { Vec::new() };
    peers.iter().for_each(|line| eprintln!("{}", report::wrapped(line)));
    report::untimed_peers(&rows);
    if let Some(path) = html {
        report::write(Some(path), &super::compare::page(&rows, &report::machine(case.device), &peers))?;
    }
    meant?;
    let equal = rows.iter().all(|(_, row)| row.as_ref().is_ok_and(|row| row.ok));
    if equal { Ok(()) } else { Err(Failure { message: String::new(), status: 1 }) }
}

impl super::manifest::Defaults for ModelArgs {
    fn device(&self) -> &str {
        &self.device
    }

    fn dtype(&self) -> Option<&str> {
        self.dtype.as_deref()
    }

    fn options(&self) -> crate::Options {
        ModelArgs::options(self)
    }
}
