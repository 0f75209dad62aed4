//! Tables, progress, and printing.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Failure;
use super::compare::{Outcome, Throughput};
use super::stages::Spinner;
use crate::explain::{Style, bytes, counted, time};

/// Prints text; a closed pipe is no error.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
    if !text.ends_with('\n') {
        let _ = std::io::stdout().write_all(b"\n");
    }
}

/// Lines that go on in further ones where the terminal of standard output is narrower.
pub(crate) fn wrapped(text: &str) -> String {
    wrapped_in(Style::of_terminal(), text)
}

/// The same for standard error.
pub(crate) fn wrapped_error(text: &str) -> String {
    wrapped_in(Style::of_standard_error(), text)
}

/// Lines that go on, two columns further in than they begin.
fn wrapped_in(style: Option<Style>, text: &str) -> String {
    let Some(style) = style else { return text.to_owned() };
    let indent = |line: &str| line.len() - line.trim_start_matches(' ').len() + 2;
    text.split_inclusive('\n').map(|line| style.wrapped(line, indent(line))).collect()
}

/// Columns of what a line of [`print_field`] is about.
const FIELD_WIDTH: usize = 14;

/// Prints what a line is about, and a value that goes on below itself.
pub(crate) fn print_field(name: &str, value: &str) {
    let style = Style::of_terminal().unwrap_or(Style::PLAIN);
    print(&style.wrapped(&format!("{name:FIELD_WIDTH$}{value}"), FIELD_WIDTH));
}

/// A table without rows yet, no wider than a terminal.
pub(crate) fn empty_table(preset: &str) -> Table {
    let mut table = Table::new();
    table.load_preset(preset);
    if let Some(Style { width, .. }) = Style::of_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    }
    table
}

/// Writes to a file, or prints.
pub(crate) fn write(path: Option<&std::path::Path>, text: &str) -> Result<(), Failure> {
    match path {
        Some(path) => std::fs::write(path, text)
            .map_err(|e| Failure::usage(format!("cannot write {}: {e}", path.display()))),
        None => {
            print(text);
            Ok(())
        }
    }
}

/// Prints a value as one line of JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    print(&serde_json::to_string(value).map_err(|e| Failure::usage(e.to_string()))?);
    Ok(())
}

/// Whether progress is drawn: on a terminal whose user does not ask for text without escape codes.
fn is_drawn() -> bool {
    std::io::stderr().is_terminal() && !Style::wants_plain_text()
}

/// Says what is done in a line, on a terminal where nothing is drawn.
pub(crate) fn say_plainly(message: &str) {
    if !is_drawn() && std::io::stderr().is_terminal() {
        eprintln!("{message}");
    }
}

/// A spinner with a message and the stage that runs; hidden where standard error is no terminal, and where `measured` schedules show
/// a progress of their own. Where a terminal is to have no escape codes, it is a line.
pub(crate) fn spinner(message: &str, measured: bool) -> Spinner {
    if measured || !is_drawn() {
        if !measured {
            say_plainly(message);
        }
        return Spinner::new(ProgressBar::hidden(), message);
    }
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(100));
    Spinner::new(bar, message)
}

/// A bar of `len` steps; hidden where it cannot be drawn.
pub(crate) fn bar(len: u64) -> ProgressBar {
    let bar = ProgressBar::new(len);
    if !is_drawn() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {wide_bar} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// The card, or the processor.
pub(crate) fn device_name(device: tch::Device) -> Result<String, Failure> {
    if device.is_cuda() {
        return Ok(crate::engine::device_name(device)?);
    }
    Ok(tilefuse_codegen::host::HostOptions::default().processor())
}

/// What a comparison ran on, in a line.
pub(crate) fn machine(device: tch::Device) -> String {
    let name = device_name(device).unwrap_or_else(|_| format!("{device:?}"));
    let threads = if device.is_cuda() {
        String::new()
    } else {
        format!(", {}", counted(tch::get_num_threads().max(0) as u64, "thread"))
    };
    format!("{name}{threads}; Tilefuse {}", env!("CARGO_PKG_VERSION"))
}

/// Prints an outcome as a table.
pub(crate) fn table(outcome: &Outcome) {
    let mut table = empty_table(presets::UTF8_BORDERS_ONLY);
    table.set_header([&heading(outcome), "eager", "fused"]);
    let us = |t: f64, [low, high]: [f64; 2]| match t > 0.0 {
        true => format!("{} ({} to {})", time(t), time(low), time(high)),
        false => String::from("not timed"),
    };
    let externs = outcome.extern_ops.to_string();
    let (eager, fused) = (outcome.eager_quartiles_us, outcome.fused_quartiles_us);
    let throughput = outcome.throughput.as_ref();
    let per_second = |said: fn(&Throughput) -> String| throughput.map_or_else(String::new, said);
    let rows: [[String; 3]; 8] = [
        ["time of a call, and quartiles".into(), us(outcome.eager_us, eager), us(outcome.fused_us, fused)],
        ["throughput".into(), per_second(Throughput::of_eager), per_second(Throughput::of_fused)],
        [
            "kernels".into(),
            outcome.kernels_eager.to_string(),
            format!("{} + {externs} of libtorch", outcome.kernels_fused),
        ],
        ["launches".into(), outcome.launches_eager.to_string(), outcome.launches_fused.to_string()],
        ["intermediates at peak".into(), bytes(outcome.peak_bytes_eager), bytes(outcome.peak_bytes_fused)],
        ["prepacked weights".into(), String::new(), bytes(outcome.prepacked_bytes)],
        [
            "absolute error against f64".into(),
            format!("{:.3e}", outcome.err_vs_f64_eager),
            format!("{:.3e}", outcome.err_vs_f64_fused),
        ],
        ["largest absolute difference".into(), String::new(), format!("{:.3e}", outcome.max_abs_err)],
    ];
    for row in rows {
        table.add_row(row);
    }
    for (peer, time) in &outcome.peers {
        table.add_row([format!("time of {peer}"), String::new(), us(time.us, [time.low, time.high])]);
        if let Some(throughput) = &outcome.throughput {
            table.add_row([format!("throughput of {peer}"), String::new(), throughput.said_of(time)]);
        }
    }
    print(&table.to_string());
    print(&wrapped(&verdict(outcome)));
    outcome.hints.iter().for_each(|line| print(&wrapped(line)));
    if let Some(report) = &outcome.compile {
        print(&wrapped(&report.to_string()));
    }
}

/// What an outcome is of: in a sweep, with the batch.
fn heading(outcome: &Outcome) -> String {
    let batch = outcome.batch.map_or_else(String::new, |batch| format!(" x {batch}"));
    format!("{}{batch} on {} in {}", outcome.model, outcome.device, outcome.dtype)
}

/// What is said of an outcome as a whole.
pub(crate) fn verdict(outcome: &Outcome) -> String {
    match (&outcome.difference, &outcome.runs_eager) {
        (Some(difference), _) => format!("DIFFERENT: {difference}"),
        (None, Some(reason)) => format!("ok, but nothing is fused: {reason}"),
        (None, None) if outcome.speedup > 0.0 => {
            format!("ok: {:.2}x of eager; compiled in {:.0} ms", outcome.speedup, outcome.compile_ms)
        }
        (None, None) => format!("ok; compiled in {:.0} ms", outcome.compile_ms),
    }
}

/// Says of each peer that has no times why, once for each reason, and of which of several rows.
pub(crate) fn untimed_peers(rows: &[(String, Result<Outcome, String>)]) {
    let mut failed: BTreeMap<(&String, &String), Vec<&str>> = BTreeMap::new();
    for (name, row) in rows {
        for (peer, why) in row.iter().flat_map(|outcome| &outcome.peers_failed) {
            failed.entry((peer, why)).or_default().push(name);
        }
    }
    for ((peer, why), names) in failed {
        let of = if names.len() == rows.len() { String::new() } else { format!(" of {}", names.join(", ")) };
        eprintln!("{}", wrapped(&format!("{peer}{of} is not timed: {why}")));
    }
}

/// Prints the models of the zoo.
pub(crate) fn models() {
    let mut table = empty_table(presets::NOTHING);
    for entry in tilefuse_models::zoo() {
        table.add_row([entry.name, entry.description]);
    }
    print(&table.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_on_further_in_than_they_begin() {
        let style = Style { width: 16, ..Style::PLAIN };
        let text = "left to libtorch:\n  3 x linear of h.*.up\nbut no more\n";
        let expected = "left to\n  libtorch:\n  3 x linear of\n    h.*.up\nbut no more\n";
        assert_eq!(wrapped_in(Some(style), text), expected);
        assert_eq!(wrapped_in(None, text), text);
    }
}
