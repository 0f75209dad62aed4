//! Comparisons as one page without anything from elsewhere.

use std::collections::BTreeSet;

use askama::Template;
use indexmap::IndexMap;

use super::accuracy::{Accuracy, ULP_CLASSES};
use super::{Outcome, Throughput};
use crate::cli::plot::{Line, STYLE, plot};
use crate::explain::{MemoryReport, bytes, coded};

/// A case by its name, and what was found or why nothing was.
type Row = (String, Result<Outcome, String>);

#[derive(Template)]
#[template(path = "compare.html")]
struct Page<'a> {
    style: &'static str,
    machine: &'a str,
    /// What there is of peers, and how the rest is got.
    peers: &'a [String],
    rows: &'a [Row],
    /// How many agree with eager.
    equal: usize,
    /// The geometric mean and the least, where anything was timed.
    speedups: Option<(f64, f64)>,
    /// The largest speed-up, or 1.
    most: f64,
    /// SVG.
    plots: Vec<String>,
    outputs: Vec<Output<'a>>,
}

/// One output of a model, with how its errors are distributed.
struct Output<'a> {
    model: &'a str,
    of: &'a Accuracy,
    classes: Vec<UlpClass>,
}

/// Elements whose errors are alike. Heights are in percent, on a logarithmic scale: one of a million is seen.
struct UlpClass {
    range: String,
    /// The end of the range, on the axis.
    label: String,
    eager: i64,
    fused: i64,
    eager_height: f64,
    fused_height: f64,
}

/// The page of these comparisons.
pub(crate) fn page(rows: &[Row], machine: &str, peers: &[String]) -> String {
    let found = || rows.iter().filter_map(|(name, row)| Some((name.as_str(), row.as_ref().ok()?)));
    let outputs = found().flat_map(|(model, row)| {
        row.outputs.iter().map(move |of| Output { model, of, classes: classes(of) })
    });
    let page = Page {
        style: STYLE,
        machine,
        peers,
        rows,
        equal: found().filter(|(_, row)| row.ok).count(),
        speedups: speedups(found().map(|(_, row)| row.speedup)),
        most: found().map(|(_, row)| row.speedup).fold(1.0, f64::max),
        plots: sweeps(rows),
        outputs: outputs.collect(),
    };
    // Writing to a string does not fail.
    page.render().unwrap_or_default()
}

/// The geometric mean of speed-ups and the least, of those that were measured.
fn speedups(all: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let known: Vec<f64> = all.filter(|&speedup| speedup > 0.0).collect();
    let mean = (known.iter().map(|s| s.ln()).sum::<f64>() / known.len() as f64).exp();
    Some((mean, known.into_iter().reduce(f64::min)?))
}

/// Throughput against the first dimension, for each model of which several were measured.
fn sweeps(rows: &[Row]) -> Vec<String> {
    let mut swept: IndexMap<&str, Vec<&Outcome>> = IndexMap::new();
    for row in rows.iter().filter_map(|(_, row)| row.as_ref().ok()).filter(|row| row.batch.is_some()) {
        swept.entry(&row.model).or_default().push(row);
    }
    swept.iter().filter_map(|(model, rows)| sweep(model, rows)).collect()
}

/// A line for the fused model, for eager and for each peer.
fn sweep(model: &str, rows: &[&Outcome]) -> Option<String> {
    let unit = rows.iter().find_map(|row| row.throughput.as_ref())?.unit;
    let of = |name, per_second: &dyn Fn(&Outcome, &Throughput) -> Option<f64>| {
        let point = |row: &&Outcome| {
            let (batch, throughput) = (row.batch?, row.throughput.as_ref()?);
            let value = per_second(row, throughput)?;
            Some((batch, value, format!("{name}, batch {batch}: {}", throughput.said(value))))
        };
        Line { name, points: rows.iter().filter_map(point).collect(), limit: false }
    };
    let mut lines = vec![
        of("fused", &|_, throughput| Some(throughput.fused)),
        of("eager", &|_, throughput| Some(throughput.eager)),
    ];
    let peers: BTreeSet<&str> = rows.iter().flat_map(|row| row.peers.keys()).map(String::as_str).collect();
    lines.extend(
        peers
            .into_iter()
            .map(|peer| of(peer, &|row, throughput| Some(throughput.of_peer(*row.peers.get(peer)?)))),
    );
    Some(plot(&format!("{model}: {unit}/s against batch"), &lines))
}

/// A number of elements with its unit.
fn elements(&n: &i64) -> String {
    if n == 1 { String::from("1 element") } else { format!("{n} elements") }
}

/// A number of bytes with its unit.
fn size(&n: &u64) -> String {
    bytes(n)
}

/// Bytes held from the begin of a call to its end by eager and by the fused model, as points of two lines on one scale, and its end.
fn held(row: &Outcome) -> Option<([String; 2], u64)> {
    let MemoryReport { fused, eager } = &row.memory;
    let most = fused.iter().chain(eager).copied().max().filter(|&most| most > 0)?;
    let line = |held: &[u64]| {
        let points = held.iter().enumerate().flat_map(|(at, &bytes)| {
            let x = |at: usize| 100.0 * at as f64 / held.len() as f64;
            let y = 30.0 - 28.0 * bytes as f64 / most as f64;
            [x(at), x(at + 1)].map(|x| format!("{x:.1},{y:.1}"))
        });
        points.collect::<Vec<_>>().join(" ")
    };
    Some(([line(eager), line(fused)], most))
}

/// The elements of an output by their errors; empty where there is nothing to compare with.
fn classes(output: &Accuracy) -> Vec<UlpClass> {
    let counts = || output.eager_ulp.iter().zip(&output.fused_ulp);
    let Some(most) = counts().map(|(&a, &b)| a.max(b)).max().filter(|&most| most > 0) else {
        return Vec::new();
    };
    let height = |count: i64| 100.0 * (count as f64 + 1.0).ln() / (most as f64 + 1.0).ln();
    let class = |(class, (&eager, &fused)): (usize, (&i64, &i64))| {
        let (range, label) = match ULP_CLASSES.get(class) {
            Some(end) => (format!("up to {end} ulp"), end.to_string()),
            None => (String::from("more ulp"), String::from("more")),
        };
        UlpClass { range, label, eager, fused, eager_height: height(eager), fused_height: height(fused) }
    };
    counts().enumerate().map(class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_errors_have_labels() {
        let mut eager_ulp = vec![0; ULP_CLASSES.len() + 1];
        let mut fused_ulp = eager_ulp.clone();
        (eager_ulp[0], fused_ulp[0], fused_ulp[12]) = (1, 7, 2);
        let output = Accuracy {
            output: String::from("f32[8]"),
            max_abs: 0.0,
            eager_err: None,
            fused_err: None,
            eager_ulp,
            fused_ulp,
            difference: None,
        };
        let found = classes(&output);
        let labels: Vec<&str> = found.iter().map(|class| class.label.as_str()).collect();
        assert_eq!(labels[..5], ["0.5", "1", "2", "4", "8"]);
        assert_eq!((labels[12], found[12].range.as_str()), ("more", "more ulp"));
        assert_eq!([elements(&found[0].eager), elements(&found[0].fused)], ["1 element", "7 elements"]);
        // One of seven has a third of the height: bars are logarithms, as the page says.
        let heights = [found[0].eager_height, found[0].fused_height, found[1].fused_height];
        assert_eq!(heights.map(|height| format!("{height:.0}")), ["33", "100", "0"]);
        assert!(
            page(&[], "a machine", &[]).contains("; heights are logarithms of the numbers of elements</th>")
        );
    }
}
