//! Arguments and commands.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tch::Device;

use super::compare::{Case, compare};
use super::dump::Source;
use super::inputs::{Inputs, Spec, kind};
use super::model::{Loaded, Which, quietly};
use super::peers::Python;
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
    Explain(ExplainArgs),
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
struct ModelArgs {
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
    /// What to do with some operators, by module or name: eager=h.*.attn, separate=ln_f, together=h.0.mlp; may be given several
    /// times.
    #[arg(long, value_name = "EFFECT=PATTERN")]
    hint: Vec<crate::Hint>,
    /// Fail where an operator of this module or name is left to libtorch, if by `--hint eager=` too, or the model runs eager; `*` for
    /// all. `explain` shows the plan first. May be given several times.
    #[arg(long, value_name = "PATTERN")]
    strict: Vec<String>,
    /// Make at most so many rewrites, to find a wrong one by bisecting; `explain --print-after` says how many there are.
    #[arg(long, value_name = "N")]
    max_rewrites: Option<u64>,
}

#[derive(Args)]
struct CompareArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Compare many cases: a file with one {"name", "model", "inputs", "strides", "device", "dtype"} a line, all but the model
    /// optional.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "input", "inputs"])]
    manifest: Option<PathBuf>,
    /// Every model of the zoo that fits this pattern (a prefix, or all).
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["model", "input", "inputs", "manifest"])]
    zoo: Option<String>,
    /// Print one JSON object instead of a table; with `--batch` one a line.
    #[arg(long)]
    json: bool,
    /// Write a page for a browser: times with quartiles, throughput, kernels, memory, and each output's errors in ulp.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Time the peers that this Python has, too, where the model is one of the zoo: Inductor, XLA, ONNX Runtime, OpenVINO.
    #[arg(long, value_name = "PROGRAM")]
    python: Option<String>,
    /// Compare with each of these in the place of the inputs' first dimension.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', conflicts_with_all = ["manifest", "zoo", "inputs"],
          value_parser = clap::value_parser!(i64).range(1..))]
    batch: Vec<i64>,
    /// Where results differ, find the rewrite and the operator that make them differ; takes as many compilations as the logarithm
    /// of their numbers.
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
struct ExplainArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// How to show the plan.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write to a file.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Measure each step, and on a CPU each operator in eager, in runs of their own.
    #[arg(long)]
    profile: bool,
    /// Show every step and every cut, not what repeats once.
    #[arg(long)]
    full: bool,
    /// As `--full`, with the block program of each distinct kernel.
    #[arg(long)]
    programs: bool,
    /// As `--full`, with the block program, LLVM IR, and assembly or PTX of each distinct kernel, each line with the operator that it
    /// computes a part of; `--format html` always has them.
    #[arg(long)]
    code: bool,
    /// Show what is different from an older plan, which `--format json` wrote.
    #[arg(long, value_name = "FILE")]
    diff: Option<PathBuf>,
    /// End with status 1 where the plan costs more than the older one by more than this: 5% or 0.05 of its predicted time, kernels,
    /// libtorch calls, bytes or peak memory.
    #[arg(long, value_name = "PART", value_parser = part, requires = "diff")]
    fail_on_regression: Option<f64>,
    /// Show the program after this pass instead of the plan; may be given several times.
    #[arg(long, value_name = "PASS", value_parser = pass)]
    print_after: Vec<String>,
    /// Show the program after this pass, and run no further ones.
    #[arg(long, value_name = "PASS", value_parser = pass)]
    stop_after: Option<String>,
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

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    /// Data, as `docs/plan.schema.json` describes it.
    Json,
    /// A graph for Graphviz.
    Dot,
    /// The JSON Schema of `json`, which depends on no model.
    Schema,
    /// A page for a browser, in one file.
    Html,
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
        Command::Explain(args) => run_explain(&args),
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
    fn case(&self, seconds: f64) -> Result<Case, Failure> {
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
        let strict = match self.strict.is_empty() {
            true => crate::Strict::Off,
            false => crate::Strict::Kernels(self.strict.clone()),
        };
        let max_rewrites = self.max_rewrites.or(default.max_rewrites);
        crate::Options { max_rewrites, hints: self.hint.clone(), strict, ..default }
    }
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
    for (peer, version) in python.versions() {
        eprintln!("{peer}: {version}");
    }
    if let Some(path) = &args.manifest {
        return manifest::run(manifest::read(path)?, &args.model, args.seconds, &mut python, html);
    }
    if let Some(prefix) = &args.zoo {
        return manifest::run(
            manifest::zoo(prefix, &args.model),
            &args.model,
            args.seconds,
            &mut python,
            html,
        );
    }
    let case = Case { repro: args.save_repro.clone(), ..args.model.case(args.seconds)? };
    let batches =
        if args.batch.is_empty() { vec![None] } else { args.batch.iter().copied().map(Some).collect() };
    let mut rows = Vec::new();
    for batch in batches {
        let name = batch.map_or_else(|| case.name.clone(), |batch| format!("{} x {batch}", case.name));
        let progress = report::spinner(&format!("comparing {name}"), case.options.tune);
        let outcome = compare(&case, batch, &mut python);
        progress.finish_and_clear();
        let outcome = outcome?;
        if args.json {
            report::json(&outcome)?;
        } else {
            report::table(&outcome);
        }
        if args.bisect && !outcome.ok {
            let progress = report::spinner(&format!("bisecting {name}"), false);
            let found = super::compare::bisect(&Case { repro: None, ..case.clone() }, batch, &outcome);
            progress.finish_and_clear();
            report::print(&found?.text());
        }
        rows.push((name, Ok(outcome)));
    }
    if let Some(path) = html {
        write(Some(path), &super::compare::page(&rows, &report::machine(case.device)))?;
    }
    let equal = rows.iter().all(|(_, row)| row.as_ref().is_ok_and(|row: &super::compare::Outcome| row.ok));
    if equal { Ok(()) } else { Err(Failure { message: String::new(), status: 1 }) }
}

/// A pass from the recorded operators to the plan.
pub(crate) fn pass(name: &str) -> Result<String, String> {
    let names: Vec<&str> = tilefuse_fusion::pipeline::PASSES.iter().map(|pass| pass.name).collect();
    if names.contains(&name) {
        Ok(name.to_owned())
    } else {
        let meant = super::model::alike(name, names.iter().copied());
        let meant = meant.map_or_else(String::new, |meant| format!(", did you mean {meant}?"));
        Err(format!("no pass{meant}; there are {}", names.join(", ")))
    }
}

/// A part of a whole: 5% or 0.05.
fn part(text: &str) -> Result<f64, String> {
    let (number, whole) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let part = number.trim().parse::<f64>().ok().map(|number| number / whole);
    part.filter(|part| part.is_finite() && *part >= 0.0)
        .ok_or_else(|| format!("{text:?} is none of 5% and 0.05"))
}

/// Shows what is different from an older plan, and fails where that is worse by more than may be.
fn show_diff(args: &ExplainArgs, path: &std::path::Path, plan: &crate::Explanation) -> Result<(), Failure> {
    let bad = |error: String| Failure::usage(format!("{}: {error}", path.display()));
    let old = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let old = crate::Explanation::from_json(&old).map_err(|error| bad(error.to_string()))?;
    let diff = plan.diff(&old);
    let text = match args.format {
        Format::Json => json(&diff)?,
        _ => diff.text(),
    };
    write(args.output.as_deref(), &text)?;
    let Some(part) = args.fail_on_regression else { return Ok(()) };
    let worse: Vec<String> = diff
        .regressions(part)
        .iter()
        .map(|total| format!("{} {:.1} -> {:.1}", total.name, total.old, total.new))
        .collect();
    if worse.is_empty() {
        return Ok(());
    }
    Err(Failure { message: format!("worse by more than {}%: {}", part * 100.0, worse.join("; ")), status: 1 })
}

fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value)
        .map_err(|e| Failure::usage(format!("the plan cannot be written as JSON: {e}")))
}

fn run_explain(args: &ExplainArgs) -> Result<(), Failure> {
    if matches!(args.format, Format::Schema) {
        return write(args.output.as_deref(), &crate::Explanation::schema());
    }
    if args.diff.is_some() && matches!(args.format, Format::Dot | Format::Html) {
        return Err(Failure::usage("--diff is written with --format text or json".to_owned()));
    }
    let prints_passes = !args.print_after.is_empty() || args.stop_after.is_some();
    if prints_passes && !args.model.strict.is_empty() {
        return Err(Failure::usage(
            "--strict asks something of a plan, --print-after and --stop-after show none".to_owned(),
        ));
    }
    if prints_passes && !matches!(args.format, Format::Text) {
        return Err(Failure::usage(
            "--print-after and --stop-after write text, in no other --format".to_owned(),
        ));
    }
    let case = args.model.case(0.0)?;
    let _no_grad = tch::no_grad_guard();
    let progress = report::spinner(&format!("compiling {}", case.name), case.options.tune);
    let model = Loaded::load(&case.which, case.device, case.dtype)?;
    let (kind, options) = (case.dtype.unwrap_or(tch::Kind::Float), case.options.clone());
    let inputs = match case.inputs {
        Some(inputs) => inputs,
        None => case.which.default_inputs(kind, case.device.is_cuda())?,
    };
    let inputs = inputs.for_capture(case.device);
    case.which.check_inputs(inputs.len())?;
    if prints_passes {
        let forward = |x: &[tch::Tensor]| model.forward(x);
        let last = args.stop_after.as_deref();
        let text = crate::engine::forms_after(&inputs, &forward, &args.print_after, last, &options)?;
        progress.finish_and_clear();
        return write(args.output.as_deref(), &text);
    }
    let names = model.names.iter().map(|(n, t)| (n.clone(), t.shallow_clone())).collect();
    let fused = crate::fuse_with(model, options).with_names(names);
    let explanation = quietly(|| match args.profile {
        true => Ok(fused.profile_with(&inputs, |m, x| m.forward(x))?),
        false => Ok(fused.explain_with(&inputs, |m, x| m.forward(x))?),
    })?;
    let shows_code = args.code || matches!(args.format, Format::Html);
    let explanation = if shows_code && args.diff.is_none() { explanation.with_code()? } else { explanation };
    progress.finish_and_clear();
    if let Some(path) = &args.diff {
        show_diff(args, path, &explanation)?;
        return fused_as_asked(args, explanation);
    }
    let text = match args.format {
        Format::Text if args.full || args.programs || args.code => explanation.text(args.programs),
        Format::Text if args.output.is_none() => explanation.summary_in(crate::explain::Look::of_output()),
        Format::Text => explanation.summary(),
        Format::Json => json(&explanation)?,
        Format::Schema => crate::Explanation::schema(),
        Format::Dot => explanation.dot(),
        Format::Html => explanation.html(&case.name),
    };
    write(args.output.as_deref(), &text)?;
    fused_as_asked(args, explanation)
}

/// Fails where a plan leaves operators to libtorch that `--strict` asks kernels for.
fn fused_as_asked(args: &ExplainArgs, plan: crate::Explanation) -> Result<(), Failure> {
    let operators = crate::fused::left_to_libtorch(&plan, &args.model.strict);
    if operators.is_empty() {
        return Ok(());
    }
    Err(crate::Error::Unfused { operators, plan: Box::new(plan) }.into())
}

/// Writes to a file, or prints.
fn write(path: Option<&std::path::Path>, text: &str) -> Result<(), Failure> {
    match path {
        Some(path) => std::fs::write(path, text)
            .map_err(|e| Failure::usage(format!("cannot write {}: {e}", path.display()))),
        None => {
            report::print(text);
            Ok(())
        }
    }
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
