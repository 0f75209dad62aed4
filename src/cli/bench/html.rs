//! A run as one page without anything from elsewhere: the rows, and bandwidth against size as SVG.

use std::fmt::Write;

use super::table::contenders;
use super::{Outcome, Run};
use crate::cli::plot::{Line, STYLE, escape, plot};

/// The page.
pub(super) fn page(run: &Run) -> String {
    let contenders = contenders(run);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>tilefuse bench</title>\n\
         <style>{STYLE}</style>\n<h1>tilefuse bench</h1>\n<p>{}, libtorch {}, {} threads; {}. A copy of one large \
         tensor reads and writes {:.1} GB/s.</p>\n",
        escape(&run.device),
        escape(&run.torch),
        run.threads,
        escape(&run.timing),
        run.copy_gbps
    );
    let _ = writeln!(page, "<div class=\"faint\">{}</div>", super::table::weights(run));
    for (peer, version) in &run.peers {
        let _ = writeln!(page, "<div class=\"faint\">{}: {}</div>", escape(peer), escape(version));
    }
    let plots: String = series(run).iter().map(|rows| bandwidths(rows, &contenders)).collect();
    if !plots.is_empty() {
        let _ = write!(page, "<h2>Bandwidth against size</h2>\n<div class=\"plots\">\n{plots}</div>\n");
    }
    page.push_str("<h2>Microseconds of a call</h2>\n");
    page.push_str(&rows(run, &contenders));
    page.push_str("</html>\n");
    page
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
fn bandwidths(rows: &[&Outcome], contenders: &[&str]) -> String {
    let Some(first) = rows.first() else { return String::new() };
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
    plot(&format!("{} {}, GB/s", first.name, first.dtype), &lines)
}

fn rows(run: &Run, contenders: &[&str]) -> String {
    let mut table = String::from("<div class=\"wide\"><table>\n<tr><th>row</th><th>type</th><th>MB</th>");
    for name in contenders {
        let _ = write!(table, "<th>{}</th><th>of copy</th>", escape(name));
    }
    table.push_str("<th>copy</th><th>kernels</th></tr>\n");
    for row in &run.rows {
        let megabytes = row.bytes as f64 / 1e6;
        let _ = write!(
            table,
            "<tr><td>{} {}{}</td><td>{}</td><td>{megabytes:.1}</td>",
            escape(&row.name),
            escape(&row.shape),
            if row.ok { "" } else { " <b>different</b>" },
            row.dtype
        );
        for name in contenders {
            let part = row.of_copy.get(*name).map_or_else(String::new, |part| format!("{part:.2}"));
            let _ = match (row.times.get(*name), row.failed.get(*name)) {
                (Some(time), _) => write!(
                    table,
                    "<td>{:.1} <small>{:.1}–{:.1}</small></td><td>{part}</td>",
                    time.us, time.low, time.high
                ),
                (None, Some(why)) => write!(table, "<td title=\"{}\">failed</td><td></td>", escape(why)),
                (None, None) => write!(table, "<td></td><td></td>"),
            };
        }
        let copy = row.times.get("copy").map_or(0.0, |time| time.us);
        let _ = writeln!(table, "<td>{copy:.1}</td><td>{} + {}</td></tr>", row.kernels_fused, row.extern_ops);
    }
    table.push_str(
        "</table></div>\n<p class=\"faint\">Medians and quartiles; MB: inputs, weights and results, each once; of \
         copy: the time of a copy that reads and writes as many bytes, beside this one; kernels: generated ones and \
         calls of libtorch.</p>\n",
    );
    table
}
