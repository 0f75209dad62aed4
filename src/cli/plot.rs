//! Lines over sizes as SVG, legible on light and on dark pages.

use askama::Template;

/// The style of pages of tables and plots: the colours of the page of a plan, and what such pages have.
pub(crate) const STYLE: &str =
    concat!(include_str!("../explain/page/colours.css"), include_str!("templates/report.css"));

/// Colours of lines, in order.
const COLOURS: [&str; 7] = ["#2f81f7", "#e8710a", "#1a9c5b", "#a371f7", "#d9480f", "#0e9aa7", "#c2255c"];

/// Of a limit's line, which is dashed.
const LIMIT: &str = "#8b949e";

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const BOTTOM: f64 = 34.0;
/// Where the legend begins, and the height of a line of it.
const LEGEND: f64 = 32.0;
const LEGEND_LINE: f64 = 15.0;

/// A line of a plot.
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    /// Size, value, and what is said of the point.
    pub(crate) points: Vec<(i64, f64, String)>,
    /// Whether it is the limit of the others.
    pub(crate) limit: bool,
}

#[derive(Template)]
#[template(path = "plot.svg", escape = "html")]
struct Plot<'a> {
    title: &'a str,
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    /// Values with their places.
    values: Vec<(f64, String)>,
    /// Sizes with theirs.
    sizes: Vec<(f64, String)>,
    lines: Vec<Drawn<'a>>,
}

/// A line with the places of its points.
struct Drawn<'a> {
    name: &'a str,
    colour: &'static str,
    limit: bool,
    path: String,
    points: Vec<(f64, f64, &'a str)>,
    /// Its place in the legend.
    key: (f64, f64),
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
    let keys = legend(lines);
    let top = keys.last().map_or(LEGEND, |key| key.1) + 12.0;
    let height = HEIGHT + top - LEGEND - 12.0;
    let x = |size: i64| LEFT + along(size) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| height - BOTTOM - value / most * (height - top - BOTTOM);
    let value = |quarter: i32| most * f64::from(quarter) / 4.0;
    let drawn = lines.iter().zip(keys).enumerate().map(|(position, (line, key))| {
        let places: Vec<(f64, f64, &str)> =
            line.points.iter().map(|(size, value, said)| (x(*size), y(*value), said.as_str())).collect();
        let path: Vec<String> = places.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
        Drawn {
            name: line.name,
            colour: if line.limit { LIMIT } else { COLOURS[position % COLOURS.len()] },
            limit: line.limit,
            path: path.join(" "),
            points: places,
            key,
        }
    });
    let plot = Plot {
        title,
        width: WIDTH,
        height,
        left: LEFT,
        right: WIDTH - RIGHT,
        values: (0..=4).map(|quarter| (y(value(quarter)), value_text(value(quarter)))).collect(),
        sizes: labelled(sizes.iter().map(|&size| (x(size), size))),
        lines: drawn.collect(),
    };
    // Writing to a string does not fail.
    plot.render().unwrap_or_default()
}

/// The sizes that are labelled: those with room behind the one before.
fn labelled(sizes: impl Iterator<Item = (f64, i64)>) -> Vec<(f64, String)> {
    let mut labels: Vec<(f64, String)> = Vec::new();
    for (at, size) in sizes {
        if labels.last().is_none_or(|last| at - last.0 >= 44.0) {
            labels.push((at, short(size)));
        }
    }
    labels
}

/// The places of the names of lines, in as many rows as they take.
fn legend(lines: &[Line<'_>]) -> Vec<(f64, f64)> {
    let (mut at, mut keys) = ((LEFT, LEGEND), Vec::new());
    for line in lines {
        let width = 30.0 + 6.5 * line.name.len() as f64;
        if at.0 > LEFT && at.0 + width > WIDTH {
            at = (LEFT, at.1 + LEGEND_LINE);
        }
        keys.push(at);
        at.0 += width;
    }
    keys
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
        let points = vec![(1, 10.0, String::from("a<b> & \"c\""))];
        let svg = plot("a\"<", &[Line { name: "<i>", points, limit: false }]);
        assert!(svg.contains("<title>a&#60;b&#62; &#38; &#34;c&#34;</title>"), "{svg}");
        assert!(svg.contains("aria-label=\"a&#34;&#60;\"") && !svg.contains("<i>"), "{svg}");
    }

    #[test]
    fn a_legend_takes_the_rows_that_it_needs() {
        let names = ["fused", "eager", "inductor", "onnxruntime", "openvino", "torchscript", "xla"];
        let lines = names.map(|name| Line { name, points: vec![(1, 1.0, String::new())], limit: false });
        let keys = legend(&lines);
        assert!(keys.iter().zip(names).all(|(key, name)| key.0 + 6.5 * name.len() as f64 + 20.0 < WIDTH));
        assert_eq!((keys[0].1, keys[6].1), (LEGEND, LEGEND + LEGEND_LINE));
    }
}
