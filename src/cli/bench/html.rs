//! A run as one page without anything from elsewhere: the rows, and bandwidth against size as SVG.

use std::fmt::Write;

use super::table::contenders;
use super::{Outcome, Run};

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1f2328; --faint: #6b7280; --line: #d0d7de; --page: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --faint: #9aa4af; --line: #3d444d; --page: #0d1117; }
}
body { font: 14px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
small, .faint { color: var(--faint); }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; }
.wide { overflow-x: auto; }
svg text { fill: var(--text); font: 11px system-ui, sans-serif; }
svg .axis { stroke: var(--line); } svg .limit { stroke-dasharray: 5 4; }
";

/// Legible on light and on dark.
const COLOURS: [&str; 7] = ["#2f81f7", "#e8710a", "#1a9c5b", "#a371f7", "#d9480f", "#0e9aa7", "#c2255c"];

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
    let plots: String = series(run).iter().map(|rows| plot(rows, &contenders)).collect();
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

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 34.0;

fn bandwidth(row: &Outcome, contender: &str) -> Option<f64> {
    row.times.get(contender).filter(|t| t.us > 0.0).map(|t| row.bytes as f64 / (t.us * 1e3))
}

/// Gigabytes per second against size, a line for each contender and one for the limit: a copy of as many bytes.
fn plot(rows: &[&Outcome], contenders: &[&str]) -> String {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return String::new() };
    let all =
        rows.iter().flat_map(|row| contenders.iter().chain(&["copy"]).filter_map(|c| bandwidth(row, c)));
    let most = nice(all.fold(0.0, f64::max) * 1.05);
    let (low, high) = ((first.size as f64).log2(), (last.size as f64).log2());
    let x = |size: i64| LEFT + ((size as f64).log2() - low) / (high - low) * (WIDTH - LEFT - RIGHT);
    let y = |gbps: f64| HEIGHT - BOTTOM - gbps / most * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\"><text x=\"{LEFT}\" y=\"14\" font-weight=\"600\">\
         {} {}, GB/s</text>\n",
        escape(&first.name),
        first.dtype
    );
    for quarter in 0..=4 {
        let value = most * f64::from(quarter) / 4.0;
        let at = y(value);
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0
        );
    }
    let mut labelled = f64::NEG_INFINITY;
    for row in rows.iter().filter(|row| row.size > 0) {
        let at = x(row.size);
        if at - labelled >= 44.0 {
            labelled = at;
            let _ = writeln!(
                svg,
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - 14.0,
                short(row.size)
            );
        }
    }
    for (position, contender) in contenders.iter().chain(&["copy"]).enumerate() {
        let (colour, class) = stroke(position, contender);
        let points: Vec<(f64, f64, &Outcome, f64)> = rows
            .iter()
            .filter_map(|row| bandwidth(row, contender).map(|gbps| (x(row.size), y(gbps), *row, gbps)))
            .collect();
        let path: Vec<String> = points.iter().map(|(x, y, ..)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline{class} points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y, row, gbps) in points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{} {}: {gbps:.1} GB/s</title></circle>",
                escape(contender),
                escape(&row.shape)
            );
        }
    }
    svg.push_str(&legend(contenders));
    svg.push_str("</svg>\n");
    svg
}

/// The colour of a contender's line, and its class.
fn stroke(position: usize, name: &str) -> (&'static str, &'static str) {
    if name == "copy" { ("#8b949e", " class=\"limit\"") } else { (COLOURS[position % COLOURS.len()], "") }
}

fn legend(contenders: &[&str]) -> String {
    let mut svg = String::new();
    let mut at = LEFT;
    for (position, name) in contenders.iter().chain(&["copy"]).enumerate() {
        let (colour, class) = stroke(position, name);
        let _ = writeln!(
            svg,
            "<line{class} x1=\"{at:.0}\" x2=\"{:.0}\" y1=\"28\" y2=\"28\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{:.0}\" y=\"32\">{}</text>",
            at + 14.0,
            at + 18.0,
            escape(name)
        );
        at += 30.0 + 6.5 * name.len() as f64;
    }
    svg
}

/// The least of 1, 2, 2.5, 5 and 10 times a power of ten that is not below a number.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    steps.iter().map(|step| step * power).find(|&step| step >= value).unwrap_or(value)
}

/// A size in few characters.
fn short(size: i64) -> String {
    match size {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{}M", n >> 20),
        n if n >= 1 << 20 => format!("{:.1}M", n as f64 / f64::from(1 << 20)),
        n if n >= 1 << 12 && n % (1 << 10) == 0 => format!("{}k", n >> 10),
        n => n.to_string(),
    }
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

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        let ends = [0.9, 1.0, 17.0, 24.0, 4300.0].map(nice);
        assert_eq!(ends, [1.0, 1.0, 20.0, 25.0, 5000.0]);
        assert_eq!([256, 5003, 16384, 1 << 27].map(short), ["256", "5003", "16k", "128M"]);
    }

    #[test]
    fn text_cannot_end_an_attribute() {
        assert_eq!(escape("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
    }
}
