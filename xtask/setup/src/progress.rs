//! Progress for a person who watches, and one line a step for a log.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

/// One step of a task: a spinner on a terminal, one line in a log.
pub struct Step {
    bar: Option<ProgressBar>,
    name: String,
    start: Instant,
}

impl Step {
    /// Shows that the step begins.
    pub fn begin(name: impl Into<String>) -> Self {
        let name = name.into();
        let bar = std::io::stderr().is_terminal().then(|| spinner(&name));
        if bar.is_none() {
            eprintln!("{name} ...");
        }
        Self { bar, name, start: Instant::now() }
    }

    /// What the step does at the moment; seen on a terminal only.
    pub fn detail(&self, detail: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(detail.to_owned());
        }
    }

    /// Replaces the spinner by the step's outcome.
    pub fn end(self, outcome: &str) {
        let line = outcome_line(&self.name, outcome, self.start.elapsed());
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!("{line}");
    }
}

/// A bar that counts files; hidden in a log.
pub fn counter(name: &str, total: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        eprintln!("{name}: {total} ...");
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len}");
    let bar = ProgressBar::new(total as u64).with_prefix(name.to_owned());
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

fn spinner(name: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_prefix(name.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn outcome_line(name: &str, outcome: &str, elapsed: Duration) -> String {
    if elapsed < Duration::from_secs(1) {
        format!("{name}: {outcome}")
    } else {
        format!("{name}: {outcome} ({})", HumanDuration(elapsed))
    }
}
