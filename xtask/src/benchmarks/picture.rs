//! The picture of the README: how many times faster than eager the rows of its table are.

use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::render::{fastest, highlighted, milliseconds};
use super::results::Results;
use super::tables::HIGHLIGHTS;

const WIDTH: f64 = 760.0;
const ROW: f64 = 30.0;
const TOP: f64 = 40.0;
/// Where bars begin, and the longest bar.
const LEFT: f64 = 270.0;
const LONGEST: f64 = 340.0;

/// Colours that can be read on white and on black.
const STYLE: &str = "text { font: 600 13px sans-serif; fill: #6e7681 } .note { font-weight: 400 } \
    .ours { fill: #c8661b } .other { fill: #8b949e }";

/// A row's label and machine, and the speeds of Tilefuse and of the fastest other over eager.
struct Bar {
    label: String,
    machine: &'static str,
    ours: f64,
    best: (f64, &'static str),
}

/// The picture as SVG.
pub(super) fn picture(results: &Results) -> Result<String> {
    let bars = HIGHLIGHTS.iter().map(|highlight| {
        let (label, row) = highlighted(results, highlight)?;
        let eager = milliseconds(row, "eager").context("no time of eager")?;
        let ours = milliseconds(row, "tilefuse").context("no time of Tilefuse")?;
        let (best, who) = fastest(row)?;
        Ok(Bar { label, machine: highlight.machine.short, ours: eager / ours, best: (eager / best, who) })
    });
    draw(&bars.collect::<Result<Vec<_>>>()?)
}

fn draw(bars: &[Bar]) -> Result<String> {
    let height = TOP + ROW * bars.len() as f64 + 10.0;
    let longest = bars.iter().fold(1.0, |most: f64, bar| most.max(bar.ours).max(bar.best.0));
    let scale = LONGEST / longest;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <title>Times faster than eager: Tilefuse and the fastest other compiler</title>\n<style>{STYLE}</style>\n\
         <text x=\"{}\" y=\"21\" text-anchor=\"end\">times faster than eager (dashed)</text>\n\
         <rect class=\"ours\" x=\"{LEFT}\" y=\"10\" width=\"12\" height=\"12\"/>\
         <text x=\"{}\" y=\"21\">Tilefuse</text>\n\
         <rect class=\"other\" x=\"{}\" y=\"10\" width=\"12\" height=\"12\"/>\
         <text x=\"{}\" y=\"21\">the fastest other</text>\n",
        LEFT - 8.0,
        LEFT + 18.0,
        LEFT + 110.0,
        LEFT + 128.0,
    );
    for (at, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * at as f64;
        row(&mut svg, bar, y, scale)?;
    }
    let x = LEFT + scale;
    writeln!(
        svg,
        "<line x1=\"{x:.1}\" y1=\"{}\" x2=\"{x:.1}\" y2=\"{}\" stroke=\"#6e7681\" stroke-dasharray=\"3 3\"/>\n</svg>",
        TOP - 6.0,
        height - 8.0
    )?;
    Ok(svg)
}

fn row(svg: &mut String, bar: &Bar, y: f64, scale: f64) -> Result<()> {
    let Bar { label, machine, ours, best: (best, who) } = bar;
    let (long, short) = (ours * scale, best * scale);
    writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{} <tspan class=\"note\">{machine}</tspan></text>",
        LEFT - 8.0,
        y + 15.0,
        escape(label),
    )?;
    writeln!(svg, "<rect class=\"ours\" x=\"{LEFT}\" y=\"{y}\" width=\"{long:.1}\" height=\"12\"/>")?;
    writeln!(
        svg,
        "<rect class=\"other\" x=\"{LEFT}\" y=\"{}\" width=\"{short:.1}\" height=\"8\"/>",
        y + 13.0
    )?;
    writeln!(
        svg,
        "<text class=\"note\" x=\"{:.1}\" y=\"{}\">{ours:.1}, {who} {best:.1}</text>",
        LEFT + long.max(short) + 6.0,
        y + 15.0
    )?;
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
