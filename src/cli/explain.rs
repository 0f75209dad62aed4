//! `tilefuse explain`: the plan of a model, as text, data, a graph or a page.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::args::ModelArgs;
use super::model::{Loaded, alike, quietly};
use super::{Failure, report};
use crate::engine::AbsentTarget;
use crate::explain::{Order, Style};

/// Options of `tilefuse explain`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// How to show the plan.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write to a file.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show the plan for a GPU that is not here, by the typical figures of one: sm_80, sm_90a or sm_100a. The model runs once on the
    /// processor; its kernels are compiled, and assembled where there is a ptxas. Or for a processor of a level, whatever this one is:
    /// x86-64, x86-64-v3 or x86-64-v4, on a 64-bit Arm processor armv8-a, with as many threads as libtorch has here.
    #[arg(long, value_name = "TARGET", value_parser = target, conflicts_with_all = ["profile", "print_after", "stop_after"])]
    target: Option<AbsentTarget>,
    /// Measure each step, and each operator in eager, in runs of their own.
    #[arg(long)]
    profile: bool,
    /// What comes first in the plan as text.
    #[arg(long, value_enum, default_value_t = Order::Calls, conflicts_with_all = ["full", "programs", "code"])]
    sort: Order,
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
    /// Show what is different from an older plan, which `--format json` wrote; with `--format html`, beside the plan. Where both have
    /// `--code`, assembly or PTX is compared as well.
    #[arg(long, value_name = "FILE")]
    diff: Option<PathBuf>,
    /// End with status 1 where the plan costs more than the older one by more than this: 5% or 0.05 of its predicted time, kernels,
    /// launches, libtorch calls, bytes or peak memory. Products are measured, which may come out otherwise in another compilation:
    /// with `--products predicted` for both plans the same model has the same plan.
    #[arg(long, value_name = "PART", value_parser = part, requires = "diff")]
    fail_on_regression: Option<f64>,
    /// Show the program after this pass instead of the plan; may be given several times.
    #[arg(long, value_name = "PASS", value_parser = pass)]
    print_after: Vec<String>,
    /// Show the program after this pass, and run no further ones.
    #[arg(long, value_name = "PASS", value_parser = pass)]
    stop_after: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    /// Data, as `docs/plan.schema.json` describes it.
    Json,
    /// A graph for Graphviz.
    Dot,
    /// The JSON Schema of `json`, with `--diff` of that of differences; it depends on no model.
    Schema,
    /// A page for a browser, in one file.
    Html,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if matches!(args.format, Format::Schema) {
        let of_diff = args.diff.is_some();
        let schema = if of_diff { crate::PlanDiff::schema() } else { crate::Explanation::schema() };
        return report::write(args.output.as_deref(), &schema);
    }
    if args.diff.is_some() && matches!(args.format, Format::Dot) {
        return Err(Failure::usage("--diff is written with --format text, json or html".to_owned()));
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
    if args.target.is_some() && case.device.is_cuda() {
        return Err(Failure::usage(
            "--target plans for what need not be here, --device for a GPU that is".to_owned(),
        ));
    }
    let _no_grad = tch::no_grad_guard();
    let progress = report::spinner(&format!("compiling {}", case.name), case.options.tune);
    let model = Loaded::load(&case.which, case.device, case.dtype)?;
    let plans_for_gpu = matches!(args.target, Some(AbsentTarget::Gpu(_)));
    let (kind, mut options) = (case.dtype.unwrap_or(tch::Kind::Float), case.options.clone());
    options.source_lines |= args.full || args.programs || args.code || !matches!(args.format, Format::Text);
    let inputs = match case.inputs {
        Some(inputs) => inputs,
        None => case.which.default_inputs(kind, case.device.is_cuda() || plans_for_gpu)?,
    };
    let inputs = inputs.for_capture(case.device);
    case.which.check_inputs(inputs.len())?;
    if prints_passes {
        let forward = |x: &[tch::Tensor]| model.forward(x);
        let last = args.stop_after.as_deref();
        let text = crate::engine::forms_after(&inputs, &forward, &args.print_after, last, &options)?;
        progress.finish_and_clear();
        return report::write(args.output.as_deref(), &text);
    }
    let names: Vec<_> = model.names.iter().map(|(n, t)| (n.clone(), t.shallow_clone())).collect();
    let explanation = quietly(|| match args.target {
        Some(target) => {
            let forward = |x: &[tch::Tensor]| model.forward(x);
            Ok(crate::Explanation::for_absent(&inputs, &forward, &names, target, &options)?)
        }
        None => {
            let fused = crate::fuse_with(model, options).with_names(names);
            Ok(match args.profile {
                true => fused.profile_with(&inputs, |m, x| m.forward(x))?,
                false => fused.explain_with(&inputs, |m, x| m.forward(x))?,
            })
        }
    })?;
    let shows_code = matches!(args.format, Format::Html) || args.code;
    let explanation = if shows_code { explanation.with_code()? } else { explanation };
    progress.finish_and_clear();
    if let Some(path) = &args.diff {
        show_diff(args, path, &explanation, &case.name)?;
        return fused_as_asked(args, explanation);
    }
    let terminal = if args.output.is_none() { Style::of_terminal() } else { None };
    let text = match args.format {
        Format::Text if args.full || args.programs || args.code => match terminal {
            Some(style) => explanation.text_in(args.programs, style),
            None => explanation.text(args.programs),
        },
        Format::Text => {
            explanation.summary_in(Style { order: args.sort, ..terminal.unwrap_or(Style::PLAIN) })
        }
        Format::Json => json(&explanation)?,
        Format::Schema => crate::Explanation::schema(),
        Format::Dot => explanation.dot(),
        Format::Html => explanation.html(&case.name),
    };
    report::write(args.output.as_deref(), &text)?;
    fused_as_asked(args, explanation)
}

/// Fails where a plan leaves operators to libtorch that `--strict` asks kernels for, or that or a hint names what is not in the model.
fn fused_as_asked(args: &Args, plan: crate::Explanation) -> Result<(), Failure> {
    all_meant(&plan)?;
    let operators = crate::fused::left_to_libtorch(&plan, &args.model.strict);
    if operators.is_empty() {
        return Ok(());
    }
    Err(crate::Error::Unfused { operators, plan: Box::new(plan) }.into())
}

/// Fails where a hint or `--strict` names what is not in the model.
pub(crate) fn all_meant(plan: &crate::Explanation) -> Result<(), Failure> {
    let Some(asked) = plan.unmatched.first() else { return Ok(()) };
    let modules: std::collections::BTreeSet<&str> = plan
        .operators
        .iter()
        .map(|known| known.module.as_str())
        .filter(|module| !module.is_empty())
        .collect();
    let some: Vec<&str> = modules.into_iter().take(5).collect();
    let some = if some.is_empty() { String::new() } else { format!("; modules are {}, ..", some.join(", ")) };
    Err(Failure::usage(format!("--{}{some}", asked.text())))
}

/// Shows what is different from an older plan, and fails where that is worse by more than may be.
fn show_diff(args: &Args, path: &Path, plan: &crate::Explanation, name: &str) -> Result<(), Failure> {
    let bad = |error: String| Failure::usage(format!("{}: {error}", path.display()));
    let old = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let old = crate::Explanation::from_json(&old).map_err(|error| bad(error.to_string()))?;
    let diff = plan.diff(&old);
    let text = match args.format {
        Format::Json => json(&diff)?,
        Format::Html => plan.html_with_changes(name, &diff),
        _ => match if args.output.is_none() { Style::of_terminal() } else { None } {
            Some(style) => diff.text_in(style),
            None => diff.text(),
        },
    };
    report::write(args.output.as_deref(), &text)?;
    let Some(part) = args.fail_on_regression else { return Ok(()) };
    let worse: Vec<String> = diff
        .regressions(part)
        .iter()
        .map(|total| format!("{} {} -> {}", total.name, total.before(), total.now()))
        .collect();
    if worse.is_empty() {
        return Ok(());
    }
    let notes: String = diff.notes.iter().map(|note| format!("\n  {note}")).collect();
    let message = format!("worse by more than {}%: {}{notes}", part * 100.0, worse.join("; "));
    Err(Failure { message, status: 1 })
}

fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value)
        .map_err(|e| Failure::usage(format!("the plan cannot be written as JSON: {e}")))
}

/// A pass from the recorded operators to the plan.
pub(crate) fn pass(name: &str) -> Result<String, String> {
    let names: Vec<&str> = tilefuse_fusion::pipeline::PASSES.iter().map(|pass| pass.name).collect();
    if names.contains(&name) {
        Ok(name.to_owned())
    } else {
        let meant = alike(name, names.iter().copied());
        let meant = meant.map_or_else(String::new, |meant| format!(", did you mean {meant}?"));
        Err(format!("no pass{meant}; there are {}", names.join(", ")))
    }
}

/// What a plan is made for that need not be here.
fn target(name: &str) -> Result<AbsentTarget, String> {
    let named = AbsentTarget::all().find(|target| target.name() == name);
    let names = || AbsentTarget::all().map(AbsentTarget::name).collect::<Vec<_>>().join(", ");
    named.ok_or_else(|| format!("{name:?} is none of {}", names()))
}

/// A part of a whole: 5% or 0.05.
fn part(text: &str) -> Result<f64, String> {
    let (number, whole) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let part = number.trim().parse::<f64>().ok().map(|number| number / whole);
    part.filter(|part| part.is_finite() && *part >= 0.0)
        .ok_or_else(|| format!("{text:?} is none of 5% and 0.05"))
}
