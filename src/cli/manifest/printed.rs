//! The outcomes of many comparisons, printed one by one as they come.
//!
//! ```text
//! case                     eager         fused  kernels  libtorch  result
//! gpt2 batch 1        31201.4 us    20114.9 us       88        12  ok: 1.55x of eager; compiled in 2113 ms
//! cases.jsonl:2     failed: unknown field `modle`, expected one of `name`, `model`, ...
//! ```

use serde_json::{Value, json};

use crate::cli::compare::Outcome;
use crate::cli::{Failure, report};
use crate::explain::time;

/// How outcomes are printed.
pub(super) enum Printed {
    /// One JSON object a line.
    Json,
    /// A table.
    Table {
        /// Columns of the names of cases.
        width: usize,
        /// Whether calls are timed.
        is_timed: bool,
    },
}

impl Printed {
    /// A table with cases of these names.
    pub(super) fn table<'a>(names: impl Iterator<Item = &'a str>, is_timed: bool) -> Printed {
        let width = names.chain(["case"]).map(|name| name.chars().count()).max().unwrap_or_default();
        Printed::Table { width, is_timed }
    }

    /// What stands before the outcomes.
    pub(super) fn heading(&self) -> Option<String> {
        let times = [String::from("eager"), String::from("fused")];
        let columns = ["kernels", "libtorch", "result"].map(String::from);
        self.line("case", times, columns)
    }

    /// The outcome of a case.
    pub(super) fn outcome(&self, name: &str, result: &Result<Outcome, Failure>) -> String {
        let Printed::Table { width, .. } = self else { return object(name, result).to_string() };
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(failure) => return format!("{name:width$}  failed: {}", failure.message),
        };
        let times = [outcome.eager_us, outcome.fused_us].map(time);
        let counts = [outcome.kernels_fused, outcome.extern_ops].map(|count| count.to_string());
        let [kernels, calls] = counts;
        let line = self.line(name, times, [kernels, calls, report::verdict(outcome)]);
        let peers = outcome.peers.iter().map(|(peer, took)| format!("  time of {peer}: {}", time(took.us)));
        let hints = outcome.hints.iter().map(|hint| format!("  {hint}"));
        line.into_iter().chain(peers).chain(hints).collect::<Vec<_>>().join("\n")
    }

    /// What stands behind the outcomes: on standard error where standard output is data.
    pub(super) fn counts(&self, text: &str) {
        match self {
            Printed::Json => eprintln!("{text}"),
            Printed::Table { .. } => report::print(text),
        }
    }

    /// A line of a table.
    fn line(&self, name: &str, times: [String; 2], columns: [String; 3]) -> Option<String> {
        let Printed::Table { width, is_timed } = self else { return None };
        let times = times.iter().filter(|_| *is_timed).map(|time| format!("  {time:>12}"));
        let [kernels, calls, result] = columns;
        let times: String = times.collect();
        Some(format!("{name:width$}{times}  {kernels:>7}  {calls:>8}  {result}"))
    }
}

fn object(name: &str, result: &Result<Outcome, Failure>) -> Value {
    match result {
        Ok(outcome) => {
            let mut value = serde_json::to_value(outcome).unwrap_or(Value::Null);
            value["name"] = json!(name);
            value
        }
        Err(failure) => json!({ "name": name, "ok": false, "error": failure.message }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_as_wide_as_their_names() {
        let table = |is_timed| Printed::table(["gpt2", "mlp8x1024-tiny"].into_iter(), is_timed);
        let heading = |is_timed| table(is_timed).heading().unwrap();
        assert_eq!(heading(false), "case            kernels  libtorch  result");
        assert_eq!(heading(true), "case                   eager         fused  kernels  libtorch  result");
        assert!(Printed::Json.heading().is_none());
        let failed = Err(Failure::usage(String::from("there is no model")));
        assert_eq!(table(true).outcome("gpt2", &failed), "gpt2            failed: there is no model");
        let object = "{\"error\":\"there is no model\",\"name\":\"gpt2\",\"ok\":false}";
        assert_eq!(Printed::Json.outcome("gpt2", &failed), object);
    }
}
