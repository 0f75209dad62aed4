//! The rows of `benches/results`, one line of JSON each, below lines that say where and how they were measured.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::predictions::Kernel;

/// What was measured on one kind of machine.
#[derive(Debug)]
pub(super) struct Machine {
    /// What a table calls it in a column.
    pub(super) short: &'static str,
    /// The stems of the files with its rows, the newest last.
    pub(super) files: &'static [&'static str],
}

/// One measured row, with what the line above it says of its machine.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) kind: String,
    /// The name of a kernel or model, with the setting that it was measured with, if any.
    pub(super) name: String,
    pub(super) shape: String,
    pub(super) dtype: String,
    pub(super) date: String,
    pub(super) torch: String,
    /// The card or the processor.
    pub(super) device: String,
    value: Value,
}

impl Row {
    /// The median time of a call in microseconds.
    pub(super) fn call(&self, contender: &str) -> Option<f64> {
        self.value["us"][contender].as_f64().or_else(|| self.value[format!("{contender}_us")].as_f64())
    }

    /// Whether lower quartiles were kept.
    pub(super) fn has_quartiles(&self) -> bool {
        self.value["low_us"].is_object()
    }

    /// The lower quartile of a call in microseconds, where the row has quartiles; else the median.
    pub(super) fn quiet_call(&self, contender: &str) -> Option<f64> {
        match self.value.get("low_us") {
            Some(quartiles) => quartiles[contender].as_f64(),
            None => self.call(contender),
        }
    }

    /// The time to compile or load in milliseconds, with the first call.
    pub(super) fn compile(&self, contender: &str) -> Option<f64> {
        let peer = &self.value["peer_compile_ms"][contender];
        if contender == "tilefuse" { self.value["compile_ms"].as_f64() } else { peer.as_f64() }
    }

    /// The kernels of a row of kind `prediction`.
    pub(super) fn kernels(&self) -> Result<Vec<Kernel>> {
        serde_json::from_value(self.value["kernels"].clone()).context("no kernels")
    }

    /// A number by its JSON pointer; of several, the median.
    pub(super) fn number(&self, pointer: &str) -> Option<f64> {
        match self.value.pointer(pointer)? {
            Value::Array(several) => {
                let mut several: Vec<f64> = several.iter().filter_map(Value::as_f64).collect();
                several.sort_by(f64::total_cmp);
                several.get(several.len() / 2).copied()
            }
            one => one.as_f64(),
        }
    }
}

/// All files, by their stems.
#[derive(Debug)]
pub(super) struct Results(BTreeMap<String, Vec<Row>>);

impl Results {
    /// Reads every `*.jsonl` of a folder.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        let entries =
            std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let text = std::fs::read_to_string(&path)?;
                let rows = parse(&text).with_context(|| path.display().to_string())?;
                files.insert(stem, rows);
            }
        }
        Ok(Self(files))
    }

    /// The rows of a machine, in the order in which they were measured.
    pub(super) fn of<'a>(&'a self, machine: &Machine) -> impl Iterator<Item = &'a Row> + use<'a> {
        machine.files.iter().filter_map(|file| self.0.get(*file)).flatten()
    }

    /// The newest row of each shape with this kind, dtype and name, in the order of the shapes' first rows; with a
    /// `shape`, of that alone.
    pub(super) fn newest<'a>(
        &'a self,
        machine: &Machine,
        (kind, dtype): (&str, &str),
        (name, shape): (&str, &str),
    ) -> Vec<&'a Row> {
        let mut rows: Vec<&Row> = Vec::new();
        let wanted = |row: &&Row| {
            let which = (row.kind.as_str(), row.dtype.as_str(), row.name.as_str());
            which == (kind, dtype, name) && (shape.is_empty() || row.shape == shape)
        };
        for row in self.of(machine).filter(wanted) {
            match rows.iter_mut().find(|known| known.shape == row.shape) {
                Some(known) => *known = row,
                None => rows.push(row),
            }
        }
        rows
    }

    #[cfg(test)]
    pub(super) fn of_text(stem: &str, text: &str) -> Result<Self> {
        Ok(Self(BTreeMap::from([(stem.to_owned(), parse(text)?)])))
    }
}

/// The rows of one file. Those of builds for development are left out.
fn parse(text: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut machine = Value::Null;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let value: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        if value["kind"].is_null() {
            machine = value;
        } else if !value["what"].as_str().is_some_and(|what| what.contains("build for development,")) {
            rows.extend(several(value).into_iter().map(|value| row(value, &machine)));
        }
    }
    Ok(rows)
}

/// A line of kind `compile` may hold the rows of one run.
fn several(value: Value) -> Vec<Value> {
    let Some(rows) = value["rows"].as_array().filter(|_| value["kind"] == "compile") else {
        return vec![value];
    };
    let merge = |row: &Value| {
        let mut merged = value.clone();
        for (key, inner) in row.as_object().into_iter().flatten() {
            merged[key] = inner.clone();
        }
        merged
    };
    rows.iter().map(merge).collect()
}

fn row(value: Value, machine: &Value) -> Row {
    let word = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let setting = value["what"].as_str().filter(|what| what.starts_with("TILEFUSE_"));
    let setting = setting.and_then(|what| what.split(':').next());
    let device = machine["card"].as_str().or(machine["processor"].as_str()).unwrap_or_default();
    Row {
        kind: word("kind"),
        name: setting.map_or_else(|| word("name"), |setting| format!("{} with {setting}", word("name"))),
        shape: word("shape"),
        dtype: word("dtype"),
        date: word("date"),
        torch: machine["torch"].as_str().unwrap_or_default().to_owned(),
        device: device.split(':').next().unwrap_or_default().to_owned(),
        value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_row_of_a_shape_is_taken() {
        let line = |shape: &str, us: f64, what: &str| {
            format!(
                r#"{{"date":"d","kind":"kernel","name":"sum","shape":"{shape}","dtype":"f32","what":"{what}","us":{{"eager":{us}}}}}"#
            )
        };
        let header = r#"{"date":"d","card":null,"processor":"A CPU: fast","torch":"2.11"}"#.to_owned();
        let text = [
            header,
            line("8", 3.0, ""),
            line("4", 2.0, ""),
            line("8", 1.0, ""),
            line("8", 9.0, "build for development, in turns"),
            line("8", 7.0, "TILEFUSE_A=1: one kernel"),
        ];
        let results = Results::of_text("f", &text.join("\n")).unwrap();
        let machine = Machine { short: "CPU", files: &["f"] };
        let rows = |name| {
            let rows = results.newest(&machine, ("kernel", "f32"), (name, ""));
            rows.iter().map(|row| (row.shape.clone(), row.call("eager").unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(rows("sum"), [("8".into(), 1.0), ("4".into(), 2.0)]);
        assert_eq!(rows("sum with TILEFUSE_A=1"), [("8".into(), 7.0)]);
        assert_eq!(results.of(&machine).next().unwrap().device, "A CPU");
    }

    #[test]
    fn a_run_of_compile_times_is_a_row_each() {
        let text = r#"{"kind":"compile","dtype":"bf16","rows":[{"name":"a","cold_ms":3},{"name":"b","cold_ms":[1,9,5]}]}"#;
        let results = Results::of_text("f", text).unwrap();
        let machine = Machine { short: "GPU", files: &["f"] };
        let found: Vec<_> =
            results.of(&machine).map(|row| (row.name.as_str(), row.number("/cold_ms"))).collect();
        assert_eq!(found, [("a", Some(3.0)), ("b", Some(5.0))]);
    }
}
