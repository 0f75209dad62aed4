//! Many comparisons in one process.

mod printed;

use std::path::Path;

use serde::Deserialize;

use self::printed::Printed;
use super::args::{device, dtype, specs, strict};
use super::compare::{Case, Outcome, compare, page};
use super::inputs::{Inputs, kind_name};
use super::model::{Which, quietly, with_prefix};
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
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    name: Option<String>,
    model: String,
    inputs: Option<InputsLine>,
    strides: Option<Vec<Option<Vec<i64>>>>,
    device: Option<String>,
    dtype: Option<String>,
    tune: Option<bool>,
    products: Option<String>,
    workspace_bytes: Option<u64>,
    hints: Option<Vec<String>>,
    strict: Option<Vec<String>>,
    max_rewrites: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "`inputs` must be a list of specs or the path of a safetensors file")]
enum InputsLine {
    Specs(Vec<String>),
    File(String),
}

/// A line of a manifest that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct BadLine {
    /// The file and the line's number.
    place: String,
    problem: String,
}

impl BadLine {
    fn new(file: &Path, number: usize, error: &serde_json::Error) -> BadLine {
        let (text, column) = (error.to_string(), error.column());
        // Each line is read by itself.
        let problem = text.strip_suffix(&format!(" at line {} column {column}", error.line()));
        let problem = problem.map_or(text.clone(), |problem| format!("{problem}, in column {column}"));
        BadLine { place: format!("{}:{number}", file.display()), problem }
    }
}

/// The cases of a manifest, one a line; those that cannot be read say where they are and what is wrong.
pub(crate) fn read(path: &Path) -> Result<Vec<Result<Line, BadLine>>, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display())))?;
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let read = |(line, number)| serde_json::from_str(line).map_err(|e| BadLine::new(path, number, &e));
    let lines: Vec<_> = lines.map(read).collect();
    if lines.is_empty() {
        return Err(Failure::usage(format!("{} has no cases", path.display())));
    }
    Ok(lines)
}

/// One line for each case of the models of the zoo whose names start with `prefix` (`all`: of each model). Cases of a
/// device are those at which its peers are measured; with an element type given, each model has its default case.
pub(crate) fn zoo(prefix: &str, defaults: &dyn Defaults) -> Result<Vec<Result<Line, BadLine>>, Failure> {
    let gpu = defaults.device().starts_with("cuda");
    let mut lines = Vec::new();
    for entry in with_prefix(if prefix == "all" { "" } else { prefix })? {
        let cases = if gpu && !entry.gpu.is_empty() { entry.gpu } else { entry.cpu };
        let count = if defaults.dtype().is_some() { 1 } else { cases.len() };
        lines.extend(cases.iter().take(count).map(|case| Ok(line(entry, case, defaults))));
    }
    Ok(lines)
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
        products: None,
        workspace_bytes: None,
        hints: None,
        strict: None,
        max_rewrites: None,
    }
}

/// Compares every case, and prints a table or, with `is_json`, one JSON object for each; then the counts.
pub(crate) fn run(
    lines: Vec<Result<Line, BadLine>>,
    defaults: &dyn Defaults,
    seconds: f64,
    python: &mut Python,
    html: Option<&Path>,
    is_json: bool,
) -> Result<(), Failure> {
    let models: Vec<Which> =
        lines.iter().flatten().filter_map(|line| Which::find(&line.model).ok()).collect();
    let wanted = Wanted::of(defaults.device(), &models);
    let peers = if seconds > 0.0 { python.said(wanted) } else { Vec::new() };
    peers.iter().for_each(|line| eprintln!("{}", report::wrapped(line)));
    let printed = match is_json {
        true => Printed::Json,
        false => Printed::table(lines.iter().map(label), seconds > 0.0),
    };
    printed.heading().iter().for_each(|line| report::print(line));
    let mut rows = Vec::new();
    let progress = report::bar(lines.len() as u64);
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for line in lines {
        let label = label(&line).to_owned();
        progress.set_message(label.clone());
        let result = match line {
            Ok(line) => one(&line, defaults, seconds, python),
            Err(line) => Err(Failure::usage(line.problem)),
        };
        match &result {
            Ok(outcome) if outcome.ok && outcome.runs_eager.is_some() => skipped += 1,
            Ok(outcome) if outcome.ok => passed += 1,
            _ => failed += 1,
        }
        let text = printed.outcome(&label, &result);
        progress.suspend(|| report::print(&if is_json { text } else { report::wrapped(&text) }));
        rows.push((label, result.map_err(|failure| failure.message)));
        progress.inc(1);
    }
    progress.finish_and_clear();
    report::untimed_peers(&rows);
    if let Some(path) = html {
        let machine = report::machine(device(defaults.device())?);
        report::write(Some(path), &page(&rows, &machine, &peers))?;
    }
    printed.counts(&format!("{passed} passed, {failed} failed, {skipped} skipped"));
    if failed == 0 { Ok(()) } else { Err(Failure { message: String::new(), status: 1 }) }
}

/// What a case is called.
fn label(line: &Result<Line, BadLine>) -> &str {
    match line {
        Ok(line) => line.name.as_deref().unwrap_or(&line.model),
        Err(line) => &line.place,
    }
}

impl Line {
    /// How the model is compiled: as the line says, and where it says nothing, as the command line does.
    fn options(&self, default: crate::Options) -> Result<crate::Options, Failure> {
        let hints = self.hints.as_ref().map(|hints| hints.iter().map(|hint| hint.parse()).collect());
        let products = self.products.as_deref().map(str::parse);
        Ok(crate::Options {
            tune: self.tune.unwrap_or(default.tune),
            products: products.transpose().map_err(Failure::usage)?.unwrap_or(default.products),
            workspace_bytes: self.workspace_bytes.unwrap_or(default.workspace_bytes),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_cannot_be_read_say_where_and_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cases.jsonl");
        let lines =
            "{\"model\":\"gpt2\"}\n\n{\"modle\":\"gpt2\"}\n{\"model\":\n{\"model\":\"gpt2\",\"inputs\":7}\n";
        std::fs::write(&path, lines).unwrap();
        let lines = read(&path).unwrap();
        assert_eq!(label(&lines[0]), "gpt2");
        let known = "`name`, `model`, `inputs`, `strides`, `device`, `dtype`, `tune`, `products`, `workspace_bytes`, `hints`, `strict`, `max_rewrites`";
        let expected = [
            (3, format!("unknown field `modle`, expected one of {known}, in column 8")),
            (4, String::from("EOF while parsing a value, in column 9")),
            (
                5,
                String::from(
                    "`inputs` must be a list of specs or the path of a safetensors file, in column 27",
                ),
            ),
        ];
        for (line, (number, problem)) in lines[1..].iter().zip(expected) {
            let Err(bad) = line else { panic!("{line:?}") };
            assert_eq!((label(line), &bad.problem), (&*format!("{}:{number}", path.display()), &problem));
        }
        std::fs::write(&path, "\n").unwrap();
        assert!(read(&path).unwrap_err().message.ends_with("cases.jsonl has no cases"));
    }
}
