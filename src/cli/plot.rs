//! Lines over sizes as SVG, legible on light and on dark pages.

use std::fmt::Write;

/// The style of pages of tables and plots.
pub(crate) const STYLE: &str = "
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

/// Colours of lines, in order.
const COLOURS: [&str; 7] = ["#2f81f7", "#e8710a", "#1a9c5b", "#a371f7", "#d9480f", "#0e9aa7", "#c2255c"];

/// Of a limit's line, which is dashed (class `limit`).
const LIMIT: &str = "#8b949e";

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 34.0;

/// A line of a plot.
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    /// Size, value, and what is said of the point.
    pub(crate) points: Vec<(i64, f64, String)>,
    /// Whether it is the limit of the others.
    pub(crate) limit: bool,
}

/// Values, from 0 on, against sizes on a logarithmic axis. Nothing where there are no points.
pub(crate) fn plot(title: &str, lines: &[Line<'_>]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let mut sizes: Vec<i64> = points().map(|point| point.0).filter(|&size| size > 0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let (Some(&first), Some(&last)) = (sizes.first(), sizes.last()) else { return String::new() };
    let most = nice(points().map(|point| point.1).fold(0.0, f64::max) * 1.05);
    let (low, high) = ((first as f64).log2(), (last as f64).log2());
    let along = |size: i64| if high > low { ((size as f64).log2() - low) / (high - low) } else { 0.5 };
    let x = |size: i64| LEFT + along(size) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\"><text x=\"{LEFT}\" y=\"14\" font-weight=\"600\">{}</text>\n",
        escape(title)
    );
    for quarter in 0..=4 {
        let value = most * f64::from(quarter) / 4.0;
        let at = y(value);
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            value_text(value)
        );
    }
    let mut labelled = f64::NEG_INFINITY;
    for &size in &sizes {
        let at = x(size);
        if at - labelled >= 44.0 {
            labelled = at;
            let _ = writeln!(
                svg,
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - 14.0,
                short(size)
            );
        }
    }
    for (position, line) in lines.iter().enumerate() {
        let (colour, class) = stroke(position, line);
        let places: Vec<(f64, f64, &String)> =
            line.points.iter().map(|(size, value, said)| (x(*size), y(*value), said)).collect();
        let path: Vec<String> = places.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline{class} points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y, said) in places {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{}</title></circle>",
                escape(said)
            );
        }
    }
    svg.push_str(&legend(lines));
    svg.push_str("</svg>\n");
    svg
}

/// The colour of a line, and its class.
fn stroke(position: usize, line: &Line<'_>) -> (&'static str, &'static str) {
    if line.limit { (LIMIT, " class=\"limit\"") } else { (COLOURS[position % COLOURS.len()], "") }
}

fn legend(lines: &[Line<'_>]) -> String {
    let mut svg = String::new();
    let mut at = LEFT;
    for (position, line) in lines.iter().enumerate() {
        let (colour, class) = stroke(position, line);
        let _ = writeln!(
            svg,
            "<line{class} x1=\"{at:.0}\" x2=\"{:.0}\" y1=\"28\" y2=\"28\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{:.0}\" y=\"32\">{}</text>",
            at + 14.0,
            at + 18.0,
            escape(line.name)
        );
        at += 30.0 + 6.5 * line.name.len() as f64;
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

/// A value on an axis.
fn value_text(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", v / 1e6),
        v if v >= 1e4 => format!("{}k", v / 1e3),
        v => v.to_string(),
    }
}

/// Text that ends no attribute and no element.
pub(crate) fn escape(text: &str) -> String {
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
        assert_eq!([2.5, 12_500.0, 2e6].map(value_text), ["2.5", "12.5k", "2M"]);
    }

    #[test]
    fn a_line_has_a_point_for_each_size() {
        let points = vec![(1, 10.0, String::from("a")), (64, 20.0, String::from("b"))];
        let svg = plot("images/s", &[Line { name: "eager", points, limit: false }]);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert_eq!(plot("nothing", &[Line { name: "eager", points: Vec::new(), limit: true }]), "");
    }

    #[test]
    fn text_cannot_end_an_attribute() {
        assert_eq!(escape("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
    }
}
