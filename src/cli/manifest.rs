//! Many comparisons in one process.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::args::{device, dtype, specs};
use super::compare::{Case, Outcome, compare};
use super::inputs::{Inputs, read_safetensors};
use super::model::{Which, quietly};
use super::{Failure, report};

/// What the command line says for cases that do not say it themselves.
pub(crate) trait Defaults {
    /// The device.
    fn device(&self) -> &str;
    /// The element type.
    fn dtype(&self) -> Option<&str>;
}

/// One line of a manifest. `inputs` is a list of specs or the path of a safetensors file.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Line {
    name: Option<String>,
    model: String,
    inputs: Option<InputsLine>,
    device: Option<String>,
    dtype: Option<String>,
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

/// One line for each model of the zoo whose name starts with `prefix` (`all`: for each).
pub(crate) fn zoo(prefix: &str) -> Vec<Result<Line, String>> {
    let fits = |name: &str| prefix == "all" || name.starts_with(prefix);
    let line =
        |model: &str| Line { name: None, model: model.to_owned(), inputs: None, device: None, dtype: None };
    let entries = tilefuse_models::zoo().iter().filter(|e| fits(e.name));
    entries.map(|e| Ok(line(e.name))).collect()
}

/// Compares every case and prints one JSON object for each, then the counts.
pub(crate) fn run(
    lines: Vec<Result<Line, String>>,
    defaults: &dyn Defaults,
    seconds: f64,
) -> Result<(), Failure> {
    let progress = report::bar(lines.len() as u64);
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for line in lines {
        let label = line.as_ref().map_or_else(|_| String::from("?"), |l| l.label());
        progress.set_message(label.clone());
        let result = match line {
            Ok(line) => one(&line, defaults, seconds),
            Err(error) => Err(Failure::usage(error)),
        };
        match &result {
            Ok(outcome) if outcome.ok && outcome.runs_eager.is_some() => skipped += 1,
            Ok(outcome) if outcome.ok => passed += 1,
            _ => failed += 1,
        }
        progress.suspend(|| println!("{}", object(&label, result)));
        progress.inc(1);
    }
    progress.finish_and_clear();
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { Ok(()) } else { Err(Failure { message: String::new(), status: 1 }) }
}

fn object(label: &str, result: Result<Outcome, Failure>) -> Value {
    match result {
        Ok(outcome) => {
            let mut value = serde_json::to_value(&outcome).unwrap_or(Value::Null);
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
}

fn one(line: &Line, defaults: &dyn Defaults, seconds: f64) -> Result<Outcome, Failure> {
    let device = device(line.device.as_deref().unwrap_or(defaults.device()))?;
    let dtype = line.dtype.as_deref().or(defaults.dtype()).map(dtype).transpose()?;
    let inputs = match &line.inputs {
        None => None,
        Some(InputsLine::Specs(texts)) => Some(Inputs::Drawn(specs(texts)?)),
        Some(InputsLine::File(path)) => Some(Inputs::Given(read_safetensors(Path::new(path), device)?)),
    };
    let which = Which::find(&line.model)?;
    let case = Case { name: line.model.clone(), which, inputs, device, dtype, seconds };
    quietly(|| compare(&case))
}
