//! Many comparisons in one process.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::args::{device, dtype, specs, strict};
use super::compare::{Case, Outcome, compare, page};
use super::inputs::{Inputs, kind_name};
use super::model::{Which, quietly};
use super::peers::{Python, Wanted};
use super::{Failure, report};

/// What the command line says for cases that do not say it themselves.
pub(crate) trait Defaults {
    /// The device.
    fn device(&self) -> &str;
    /// The element type.
    fn dtype(&self) -> Option<&str>;
    /// How models are compiled.
    fn options(&self) -> crate::Options;
}

/// One line of a manifest. `inputs` is a list of specs or the path of a safetensors file, `strides` a list of the strides of
/// inputs, `null` for a contiguous one; how the model is compiled is said as on the command line.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Line {
    name: Option<String>,
    model: String,
    inputs: Option<InputsLine>,
    strides: Option<Vec<Option<Vec<i64>>>>,
    device: Option<String>,
    dtype: Option<String>,
    tune: Option<bool>,
    hints: Option<Vec<String>>,
    strict: Option<Vec<String>>,
    max_rewrites: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum InputsLine {
    Specs(Vec<String>),
    File(String),
}

/// The lines of a manifest; a line that cannot be read is kept as its error.
pub(crate) fn read(path: &Path) -> Result<Vec<Result<Line, String>>, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display())))?;
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    Ok(lines.map(|l| serde_json::from_str(l).map_err(|e| format!("{e}: {l}"))).collect())
}

/// One line for each case of the models of the zoo whose names start with `prefix` (`all`: of each model). Cases of a
/// device are those at which its peers are measured; with an element type given, each model has its default case.
pub(crate) fn zoo(prefix: &str, defaults: &dyn Defaults) -> Vec<Result<Line, String>> {
    let fits = |name: &str| prefix == "all" || name.starts_with(prefix);
    let gpu = defaults.device().starts_with("cuda");
    let mut lines = Vec::new();
    for entry in tilefuse_models::zoo().iter().filter(|e| fits(e.name)) {
        let cases = if gpu && !entry.gpu.is_empty() { entry.gpu } else { entry.cpu };
        let count = if defaults.dtype().is_some() { 1 } else { cases.len() };
        lines.extend(cases.iter().take(count).map(|case| Ok(line(entry, case, defaults))));
    }
    lines
}

/// A model that runs in `f32` alone does so whatever the element type of the others.
fn line(entry: &tilefuse_models::ZooEntry, case: &tilefuse_models::Case, defaults: &dyn Defaults) -> Line {
    let wanted = defaults.dtype().filter(|_| !entry.f32_only);
    let dtype = wanted.map_or_else(|| kind_name(case.dtype), str::to_owned);
    let spec = |s: &tilefuse_models::InputSpec| match s.int_range {
        Some((low, end)) => format!("{}{:?}{{{low}..{end}}}", kind_name(s.kind), s.shape),
        None => format!("{dtype}{:?}", s.shape),
    };
    Line {
        name: Some(format!("{} {}", entry.name, case.name)),
        model: entry.name.to_owned(),
        inputs: Some(InputsLine::Specs(case.inputs.iter().map(spec).collect())),
        strides: None,
        device: None,
        dtype: Some(dtype.clone()),
        tune: None,
        hints: None,
        strict: None,
        max_rewrites: None,
    }
}

/// Compares every case and prints one JSON object for each, then the counts.
pub(crate) fn run(
    lines: Vec<Result<Line, String>>,
    defaults: &dyn Defaults,
    seconds: f64,
    python: &mut Python,
    html: Option<&Path>,
) -> Result<(), Failure> {
    let models: Vec<Which> =
        lines.iter().flatten().filter_map(|line| Which::find(&line.model).ok()).collect();
    let wanted = Wanted::of(defaults.device(), &models);
    let peers = if seconds > 0.0 { python.said(wanted) } else { Vec::new() };
    peers.iter().for_each(|line| eprintln!("{}", report::wrapped(line)));
    let mut rows = Vec::new();
    let progress = report::bar(lines.len() as u64);
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for line in lines {
        let label = line.as_ref().map_or_else(|_| String::from("?"), |l| l.label());
        progress.set_message(label.clone());
        let result = match line {
            Ok(line) => one(&line, defaults, seconds, python),
            Err(error) => Err(Failure::usage(error)),
        };
        match &result {
            Ok(outcome) if outcome.ok && outcome.runs_eager.is_some() => skipped += 1,
            Ok(outcome) if outcome.ok => passed += 1,
            _ => failed += 1,
        }
        progress.suspend(|| println!("{}", object(&label, &result)));
        rows.push((label, result.map_err(|failure| failure.message)));
        progress.inc(1);
    }
    progress.finish_and_clear();
    if let Some(path) = html {
        let machine = report::machine(device(defaults.device())?);
        std::fs::write(path, page(&rows, &machine, &peers))
            .map_err(|e| Failure::usage(format!("cannot write {}: {e}", path.display())))?;
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { Ok(()) } else { Err(Failure { message: String::new(), status: 1 }) }
}

fn object(label: &str, result: &Result<Outcome, Failure>) -> Value {
    match result {
        Ok(outcome) => {
            let mut value = serde_json::to_value(outcome).unwrap_or(Value::Null);
            value["name"] = json!(label);
            value
        }
        Err(failure) => json!({ "name": label, "ok": false, "error": failure.message }),
    }
}

impl Line {
    fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.model.clone())
    }

    /// How the model is compiled: as the line says, and where it says nothing, as the command line does.
    fn options(&self, default: crate::Options) -> Result<crate::Options, Failure> {
        let hints = self.hints.as_ref().map(|hints| hints.iter().map(|hint| hint.parse()).collect());
        Ok(crate::Options {
            tune: self.tune.unwrap_or(default.tune),
            hints: hints.transpose().map_err(Failure::usage)?.unwrap_or(default.hints),
            strict: self.strict.clone().map_or(default.strict, strict),
            max_rewrites: self.max_rewrites.or(default.max_rewrites),
            ..default
        })
    }
}

fn one(line: &Line, defaults: &dyn Defaults, seconds: f64, python: &mut Python) -> Result<Outcome, Failure> {
    let device = device(line.device.as_deref().unwrap_or(defaults.device()))?;
    let dtype = line.dtype.as_deref().or(defaults.dtype()).map(dtype).transpose()?;
    let which = Which::find(&line.model)?;
    let inputs = match &line.inputs {
        None if line.strides.is_none() => None,
        None => Some(which.default_inputs(dtype.unwrap_or(tch::Kind::Float), device.is_cuda())?),
        Some(InputsLine::Specs(texts)) => Some(Inputs::Drawn(specs(texts)?)),
        Some(InputsLine::File(path)) => Some(Inputs::read(Path::new(path), device, dtype)?),
    };
    let inputs = match (inputs, &line.strides) {
        (Some(inputs), Some(strides)) => Some(inputs.with_strides(strides)?),
        (inputs, _) => inputs,
    };
    let case = Case {
        name: line.model.clone(),
        which,
        inputs,
        device,
        dtype,
        options: line.options(defaults.options())?,
        seconds,
        repro: None,
    };
    let (outcome, plan) = quietly(|| compare(&case, None, python))?;
    plan.as_ref().map_or(Ok(()), super::explain::all_meant)?;
    Ok(outcome)
}
