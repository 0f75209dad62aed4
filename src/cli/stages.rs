//! What a command is doing, as a spinner says it: the innermost span of `tracing` that the thread of the command is in.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::ProgressBar;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

/// A spinner that says which stage runs, until it is finished or dropped.
pub(crate) struct Spinner {
    bar: ProgressBar,
    _stages: Option<DefaultGuard>,
}

impl Spinner {
    /// Of a command that is said to do this. A bar that is hidden has no stages.
    pub(crate) fn new(bar: ProgressBar, what: &str) -> Spinner {
        bar.set_message(what.to_owned());
        let stages =
            (!bar.is_hidden()).then(|| tracing::subscriber::set_default(Stages::of(bar.clone(), what)));
        Spinner { bar, _stages: stages }
    }

    /// Takes it off the terminal.
    pub(crate) fn finish_and_clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// Writes the stages into a bar's message.
struct Stages {
    bar: ProgressBar,
    what: String,
    next: AtomicU64,
    spans: Mutex<Spans>,
}

#[derive(Default)]
struct Spans {
    /// Spans that are not closed, as they are said.
    said: HashMap<u64, String>,
    entered: Vec<u64>,
}

impl Stages {
    fn of(bar: ProgressBar, what: &str) -> Stages {
        Stages { bar, what: what.to_owned(), next: AtomicU64::new(0), spans: Mutex::default() }
    }

    fn spans(&self) -> MutexGuard<'_, Spans> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, spans: &Spans) {
        let stage = spans.entered.last().and_then(|id| spans.said.get(id));
        self.bar.set_message(match stage {
            Some(stage) => format!("{}: {stage}", self.what),
            None => self.what.clone(),
        });
    }
}

impl Subscriber for Stages {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_stage = metadata.is_span() && *metadata.level() <= Level::INFO;
        is_stage && metadata.target().starts_with("tilefuse")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut said = Said(span.metadata().name().to_owned());
        span.record(&mut said);
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.spans().said.insert(id, said.0);
        Id::from_u64(id)
    }

    fn enter(&self, span: &Id) {
        let mut spans = self.spans();
        spans.entered.push(span.into_u64());
        self.say(&spans);
    }

    fn exit(&self, span: &Id) {
        let mut spans = self.spans();
        if let Some(at) = spans.entered.iter().rposition(|&entered| entered == span.into_u64()) {
            spans.entered.remove(at);
        }
        self.say(&spans);
    }

    fn try_close(&self, span: Id) -> bool {
        self.spans().said.remove(&span.into_u64());
        true
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}
}

/// A span with its fields: `codegen, 86 kernels`.
struct Said(String);

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.0, ", {} {value}", field.name());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, ", {value:?} {}", field.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spinner_says_the_innermost_stage_and_what_it_is_about() {
        let bar = ProgressBar::hidden();
        let stages = Stages::of(bar.clone(), "compiling gpt2");
        let mut said = Vec::new();
        tracing::subscriber::with_default(stages, || {
            tracing::info_span!(target: "tilefuse::test", "compile", operators = 40).in_scope(|| {
                said.push(bar.message());
                let tune = tracing::info_span!(target: "tilefuse::test", "tune", kernel = "fused_relu");
                tune.in_scope(|| said.push(bar.message()));
                tracing::trace_span!(target: "tilefuse::test", "run").in_scope(|| said.push(bar.message()));
                tracing::info_span!(target: "somewhere::else", "load").in_scope(|| said.push(bar.message()));
            });
        });
        said.push(bar.message());
        let compile = "compiling gpt2: compile, 40 operators";
        let tune = "compiling gpt2: tune, kernel fused_relu";
        assert_eq!(said, [compile, tune, compile, compile, "compiling gpt2"]);
    }
}
