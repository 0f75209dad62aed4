//! Comparisons as one page without anything from elsewhere.

use std::fmt::Write;

use indexmap::IndexMap;

use super::Outcome;
use super::accuracy::{Accuracy, ULP_CLASSES};
use crate::cli::plot::{Line, STYLE, escape, plot};
use crate::explain::MemoryReport;

/// What this page has besides.
const OWN_STYLE: &str = "
body { max-width: 104rem; } td { white-space: nowrap; } td small { display: block; }
td.left, th.left { text-align: left; } .bad { color: #cf222e; font-weight: 600; }
.bar { display: inline-block; height: .7em; background: #2f81f7; border-radius: 2px; margin-right: .4em; }
.bar.slow { background: #e8710a; }
.memory { display: block; width: 9rem; height: 2rem; margin-left: auto; }
.memory polyline { fill: none; stroke: #8b949e; stroke-dasharray: 4 3; vector-effect: non-scaling-stroke; }
.memory .fused { stroke: #2f81f7; stroke-dasharray: none; stroke-width: 1.6; }
.ulp { display: inline-flex; align-items: flex-end; gap: 2px; height: 3.2rem; }
.ulp span { display: inline-flex; align-items: flex-end; gap: 1px; height: 100%; }
.ulp i { width: 7px; background: #8b949e; } .ulp i.fused { background: #2f81f7; }
";

/// The page of these comparisons: names and what was found, or why nothing was.
pub(crate) fn page(rows: &[(String, Result<Outcome, String>)], machine: &str) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>tilefuse compare</title>\n\
         <style>{STYLE}{OWN_STYLE}</style>\n<h1>Fused beside eager</h1>\n<p class=\"faint\">{}</p>\n",
        escape(machine)
    );
    page.push_str(&totals(rows));
    page.push_str(&sweeps(rows));
    page.push_str(&table(rows));
    page.push_str(&accuracies(rows));
    page.push_str("</html>\n");
    page
}

/// How many are equal, and the geometric mean of the speed-ups.
fn totals(rows: &[(String, Result<Outcome, String>)]) -> String {
    let found = || rows.iter().filter_map(|(_, row)| row.as_ref().ok());
    let equal = found().filter(|row| row.ok).count();
    let speedups: Vec<f64> = found().map(|row| row.speedup).filter(|&speedup| speedup > 0.0).collect();
    let mut text = format!("<p>{equal} of {} agree with eager", rows.len());
    if !speedups.is_empty() {
        let mean = (speedups.iter().map(|s| s.ln()).sum::<f64>() / speedups.len() as f64).exp();
        let least = speedups.iter().copied().fold(f64::INFINITY, f64::min);
        let _ = write!(text, "; {mean:.2}x of eager in the geometric mean, {least:.2}x at least");
    }
    text.push_str(".</p>\n");
    text
}

/// Throughput against the first dimension, for each model of which several were measured.
fn sweeps(rows: &[(String, Result<Outcome, String>)]) -> String {
    let mut swept: IndexMap<&str, Vec<&Outcome>> = IndexMap::new();
    for row in rows.iter().filter_map(|(_, row)| row.as_ref().ok()) {
        if row.batch.is_some() {
            swept.entry(&row.model).or_default().push(row);
        }
    }
    let plots: String = swept
        .iter()
        .filter_map(|(model, rows)| {
            let unit = rows.iter().find_map(|row| row.throughput.as_ref())?.unit;
            let line = |name: &'static str, of: fn(&super::Throughput) -> f64| {
                let point = |row: &&Outcome| {
                    let value = of(row.throughput.as_ref()?);
                    Some((row.batch?, value, format!("{name}, batch {}: {value:.0} {unit}/s", row.batch?)))
                };
                Line { name, points: rows.iter().filter_map(point).collect(), limit: false }
            };
            let lines = [line("fused", |t| t.fused), line("eager", |t| t.eager)];
            Some(plot(&format!("{model}: {unit}/s against batch"), &lines))
        })
        .collect();
    if plots.is_empty() { plots } else { format!("<div class=\"plots\">\n{plots}</div>\n") }
}

fn time(us: f64, [low, high]: [f64; 2]) -> String {
    if us > 0.0 { format!("{us:.1} <small>{low:.1}–{high:.1}</small>") } else { String::from("not timed") }
}

fn table(rows: &[(String, Result<Outcome, String>)]) -> String {
    let most = rows.iter().filter_map(|(_, row)| Some(row.as_ref().ok()?.speedup)).fold(1.0, f64::max);
    let mut table = String::from(
        "<div class=\"wide\"><table>\n<tr><th>model</th><th>type</th><th>eager, us</th><th>fused, us</th><th>peers, us</th><th class=\"left\">speed-up</th>\
         <th>throughput</th><th>kernels</th><th>libtorch</th><th>peak, MB</th><th>compile, ms</th>\
         <th>error against f64</th><th class=\"left\">result</th></tr>\n",
    );
    for (name, row) in rows {
        let Ok(row) = row else {
            let why = row.as_ref().err().map_or("", String::as_str);
            let _ = writeln!(
                table,
                "<tr><td>{}</td><td colspan=\"11\"></td><td class=\"left bad\">{}</td></tr>",
                escape(name),
                escape(why)
            );
            continue;
        };
        let mut peers: String = row
            .peers
            .iter()
            .map(|(peer, time)| {
                format!("{} {:.1} <small>{:.1}–{:.1}</small>", escape(peer), time.us, time.low, time.high)
            })
            .collect();
        for (peer, why) in &row.peers_failed {
            let _ = write!(peers, "<span title=\"{}\">{} failed</span>", escape(why), escape(peer));
        }
        let bar = if row.speedup > 0.0 {
            let (width, slow) = (90.0 * row.speedup / most, if row.speedup < 1.0 { " slow" } else { "" });
            format!("<span class=\"bar{slow}\" style=\"width:{width:.0}px\"></span>{:.2}x", row.speedup)
        } else {
            String::new()
        };
        let throughput = row.throughput.as_ref().map_or_else(String::new, |t| {
            format!("{:.0} {}/s <small>{:.0} eager</small>", t.fused, t.unit, t.eager)
        });
        let result = match (&row.difference, &row.runs_eager) {
            (Some(difference), _) => format!("<span class=\"bad\">{}</span>", escape(difference)),
            (None, Some(reason)) => format!("runs eager: {}", escape(reason)),
            (None, None) => String::from("equal"),
        };
        let _ = writeln!(
            table,
            "<tr><td>{}</td><td>{} {}</td><td>{}</td><td>{}</td><td>{peers}</td><td class=\"left\">{bar}</td><td>{throughput}</td>\
             <td>{} <small>{} eager</small></td><td>{}</td><td>{:.1} <small>{:.1} eager</small>{}</td><td>{:.0}</td>\
             <td>{:.2e} <small>{:.2e} eager</small></td><td class=\"left\">{result}</td></tr>",
            escape(name),
            row.device,
            row.dtype,
            time(row.eager_us, row.eager_quartiles_us),
            time(row.fused_us, row.fused_quartiles_us),
            row.kernels_fused,
            row.kernels_eager,
            row.extern_ops,
            row.peak_bytes_fused as f64 / 1e6,
            row.peak_bytes_eager as f64 / 1e6,
            over_time(&row.memory),
            row.compile_ms,
            row.err_vs_f64_fused,
            row.err_vs_f64_eager
        );
    }
    table.push_str(
        "</table></div>\n<p class=\"faint\">Medians and quartiles of calls in turns; kernels: launches of a call, and \
         the calls of libtorch besides; peak: intermediates and results, below it over a call, eager's dashed.</p>\n",
    );
    table
}

/// Bytes held from the begin of a call to its end, as two lines on one scale.
fn over_time(memory: &MemoryReport) -> String {
    let most = memory.fused.iter().chain(&memory.eager).copied().max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let line = |class: &str, held: &[u64]| {
        let points = held.iter().enumerate().flat_map(|(at, &held_bytes)| {
            let x = |at: usize| 100.0 * at as f64 / held.len() as f64;
            let y = 30.0 - 28.0 * held_bytes as f64 / most as f64;
            [x(at), x(at + 1)].map(|x| format!("{x:.1},{y:.1}"))
        });
        let points = points.collect::<Vec<_>>().join(" ");
        format!("<polyline class=\"{class}\" points=\"{points}\"/>")
    };
    format!(
        "<svg class=\"memory\" viewBox=\"0 0 100 32\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"Bytes held over a call, fused and eager\">{}{}</svg>",
        line("eager", &memory.eager),
        line("fused", &memory.fused)
    )
}

/// Every output with its errors, and how they are distributed.
fn accuracies(rows: &[(String, Result<Outcome, String>)]) -> String {
    let mut text = String::from(
        "<h2>Accuracy</h2>\n<div class=\"wide\"><table>\n<tr><th>model</th><th>output</th><th>largest difference</th>\
         <th>eager's error</th><th>fused error</th><th class=\"left\">errors in ulp: eager grey, fused blue</th></tr>\n",
    );
    let outputs = rows.iter().filter_map(|(name, row)| Some((name, &row.as_ref().ok()?.outputs)));
    for (name, outputs) in outputs {
        for output in outputs {
            let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2e}"));
            let _ = writeln!(
                text,
                "<tr><td>{}</td><td>{}</td><td>{:.2e}</td><td>{}</td><td>{}</td><td class=\"left\">{}</td></tr>",
                escape(name),
                escape(&output.output),
                output.max_abs,
                number(output.eager_err),
                number(output.fused_err),
                histogram(output)
            );
        }
    }
    text.push_str("</table></div>\n");
    text
}

/// Elements by error, on a logarithmic scale: one of a million is seen.
fn histogram(output: &Accuracy) -> String {
    let most = output.eager_ulp.iter().chain(&output.fused_ulp).copied().max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let height = |count: i64| 100.0 * (count as f64 + 1.0).ln() / (most as f64 + 1.0).ln();
    let mut text = String::from("<div class=\"ulp\">");
    for (class, (eager, fused)) in output.eager_ulp.iter().zip(&output.fused_ulp).enumerate() {
        let range =
            ULP_CLASSES.get(class).map_or_else(|| String::from("more"), |end| format!("to {end} ulp"));
        let _ = write!(
            text,
            "<span title=\"{range}: {eager} elements of eager's, {fused} of the fused\"><i style=\"height:{:.0}%\"></i>\
             <i class=\"fused\" style=\"height:{:.0}%\"></i></span>",
            height(*eager),
            height(*fused)
        );
    }
    text.push_str("</div>");
    text
}
