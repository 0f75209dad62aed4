//! A run as one page without anything from elsewhere: the rows, and bandwidth against size as SVG.

use askama::Template;

use super::table::contenders;
use super::{Outcome, Run};
use crate::cli::plot::{Line, STYLE, plot};
use crate::cli::times::Time;
use crate::explain::coded;

#[derive(Template)]
#[template(path = "bench.html")]
struct Page<'a> {
    style: &'static str,
    run: &'a Run,
    weights: &'static str,
    contenders: Vec<&'a str>,
    rows: Vec<Row<'a>>,
    /// SVG.
    plots: Vec<String>,
}

/// A row of the table.
struct Row<'a> {
    of: &'a Outcome,
    /// Of each contender.
    cells: Vec<Cell<'a>>,
    copy: Option<&'a Time>,
}

struct Cell<'a> {
    time: Option<&'a Time>,
    /// Of the copy's bandwidth.
    of_copy: Option<f64>,
    failed: Option<&'a str>,
}

impl Row<'_> {
    fn of<'a>(row: &'a Outcome, contenders: &[&str]) -> Row<'a> {
        let cell = |&name: &&str| Cell {
            time: row.times.get(name),
            of_copy: row.of_copy.get(name).copied(),
            failed: row.failed.get(name).map(String::as_str),
        };
        Row { of: row, cells: contenders.iter().map(cell).collect(), copy: row.times.get("copy") }
    }
}

/// The page.
pub(super) fn page(run: &Run) -> String {
    let contenders = contenders(run);
    let plots = series(run).iter().filter_map(|rows| bandwidths(rows, &contenders)).collect();
    let rows = run.rows.iter().map(|row| Row::of(row, &contenders)).collect();
    let page = Page { style: STYLE, run, weights: super::table::weights(run), contenders, rows, plots };
    // Writing to a string does not fail.
    page.render().unwrap_or_default()
}

/// Rows of one kernel in one type at several sizes, in ascending order.
fn series(run: &Run) -> Vec<Vec<&Outcome>> {
    let mut all: Vec<Vec<&Outcome>> = Vec::new();
    for row in &run.rows {
        let same = |rows: &&mut Vec<&Outcome>| {
            rows.first().is_some_and(|first| first.name == row.name && first.dtype == row.dtype)
        };
        match all.iter_mut().find(same) {
            Some(rows) => rows.push(row),
            None => all.push(vec![row]),
        }
    }
    all.iter_mut().for_each(|rows| rows.sort_by_key(|row| row.size));
    let varies = |rows: &Vec<&Outcome>| rows.first().map(|r| r.size) != rows.last().map(|r| r.size);
    all.into_iter().filter(varies).collect()
}

fn bandwidth(row: &Outcome, contender: &str) -> Option<f64> {
    row.times.get(contender).filter(|t| t.us > 0.0).map(|t| row.bytes as f64 / (t.us * 1e3))
}

/// Gigabytes per second against size, a line for each contender and one for the limit: a copy of as many bytes.
fn bandwidths(rows: &[&Outcome], contenders: &[&str]) -> Option<String> {
    let first = rows.first()?;
    let lines: Vec<Line<'_>> = contenders
        .iter()
        .chain(&["copy"])
        .map(|name| {
            let point = |row: &&Outcome| {
                let gbps = bandwidth(row, name)?;
                Some((row.size, gbps, format!("{name} {}: {gbps:.1} GB/s", row.shape)))
            };
            Line { name, points: rows.iter().filter_map(point).collect(), limit: *name == "copy" }
        })
        .collect();
    Some(plot(&format!("{} {}, GB/s", first.name, first.dtype), &lines))
}
