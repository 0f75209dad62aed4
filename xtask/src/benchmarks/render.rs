//! The generated sections as Markdown.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use super::predictions::predictions;
use super::results::{Results, Row};
use super::tables::{
    ALL_OTHERS, COMPILED, COMPILED_ON, Cell, Contender, EAGER, Extra, FACTS, Fact, HEADLINES, HIGHLIGHTS,
    Highlight, PREDICTIONS, Shown, TABLES, Table,
};

/// Times within this factor of the fastest are as fast.
const LEVEL: f64 = 1.005;

/// All sections by their names.
pub(super) fn sections(results: &Results) -> Result<BTreeMap<String, String>> {
    let mut sections = BTreeMap::new();
    let mut headlines = String::new();
    for table in TABLES {
        let entries = entries(results, table).with_context(|| format!("table `{}`", table.name))?;
        if let Some((_, title)) = HEADLINES.iter().find(|(name, _)| *name == table.name) {
            headlines += &format!("- {title}, {}\n", summary(table.others, &entries));
        }
        sections.insert(table.name.to_owned(), render(table, &entries));
    }
    sections.insert("headline".into(), headlines);
    sections.insert("highlights".into(), highlights(results)?);
    sections.insert("gpu-compile".into(), compiled(results)?);
    sections.insert("facts".into(), facts(results)?);
    sections.insert("predictions".into(), predictions(results, PREDICTIONS)?);
    Ok(sections)
}

/// A row of a table: times of all others, and Tilefuse's last.
struct Entry<'a> {
    label: String,
    row: &'a Row,
    times: Vec<Option<f64>>,
}

impl Entry<'_> {
    fn ours(&self) -> f64 {
        self.times.last().copied().flatten().unwrap_or(f64::NAN)
    }

    /// How many times Tilefuse's time the fastest of the others takes.
    fn over_best(&self) -> f64 {
        let others = self.times.iter().rev().skip(1).flatten();
        others.fold(f64::INFINITY, |best, time| best.min(*time)) / self.ours()
    }
}

/// The newest row of each that a table shows; those that none measured on this machine in this type are left out.
fn entries<'a>(results: &'a Results, table: &Table) -> Result<Vec<Entry<'a>>> {
    let mut entries = Vec::new();
    for &(name, shape, label) in table.rows {
        for row in results.newest(&table.machine, (table.kind, table.dtype), (name, shape)) {
            let others = table.others.iter().map(|(other, _)| time(row, other, table.cell));
            let times: Vec<_> = others.chain([time(row, "tilefuse", table.cell)]).collect();
            ensure!(times.last().is_some_and(Option::is_some), "`{name}` has no time of Tilefuse");
            ensure!(times.len() > 1, "`{name}` has no contender");
            entries.push(Entry { label: named(label, row), row, times });
        }
    }
    ensure!(!entries.is_empty(), "no row was measured");
    Ok(entries)
}

/// The time of a contender in the unit of the cells. What the tutorials call libtorch was measured in two processes.
fn time(row: &Row, contender: &str, cell: Cell) -> Option<f64> {
    let call = || match contender {
        "libtorch" => {
            let both = [row.call("eager"), row.call("triton_run_eager")];
            both.into_iter().flatten().min_by(f64::total_cmp)
        }
        other => row.call(other),
    };
    match cell {
        Cell::Microseconds => call(),
        Cell::Milliseconds => milliseconds(row, contender),
        Cell::Compile => row.compile(contender),
    }
}

/// The time of a call as the tables of a CPU give it.
pub(super) fn milliseconds(row: &Row, contender: &str) -> Option<f64> {
    row.quiet_call(contender).map(|time| time / 1e3)
}

/// A label with the parts of the shape in it.
fn named(label: &str, row: &Row) -> String {
    let mut named = label.replace("{shape}", &row.shape.replace('x', " × "));
    for (at, part) in row.shape.split('x').enumerate() {
        named = named.replace(&format!("{{{at}}}"), part);
    }
    named
}

fn render(table: &Table, entries: &[Entry]) -> String {
    let cell = match table.cell {
        Cell::Microseconds => "microseconds of a call, medians",
        Cell::Milliseconds if entries.iter().all(|entry| entry.row.has_quartiles()) => {
            "milliseconds of a call, lower quartiles"
        }
        Cell::Milliseconds => "milliseconds of a call, medians",
        Cell::Compile => "milliseconds to compile or load, with the first call",
    };
    // Who was measured in no row has no column.
    let is_shown = |at: usize| entries.iter().any(|entry| entry.times[at].is_some());
    let titles = table.others.iter().map(|(_, title)| *title).chain(["Tilefuse"]);
    let titles = titles.enumerate().filter(|&(at, _)| is_shown(at)).map(|(_, title)| title);
    let extra = match table.extra {
        Extra::None => None,
        Extra::OfCopy => Some("of copy"),
        Extra::Host => Some("host, us"),
        Extra::Errors => Some("errors"),
    };
    let titles: Vec<_> = [""].into_iter().chain(titles).chain(["over best"]).chain(extra).collect();
    let mut text = format!(
        "{}, {cell}. {}.\n\n",
        measured(entries.iter().map(|entry| entry.row)),
        summary(table.others, entries)
    );
    text += &header(&titles);
    for entry in entries {
        let cells = times(&entry.times).into_iter().enumerate().filter(|&(at, _)| is_shown(at));
        let cells = cells.map(|(_, cell)| cell).chain([ratio(entry.over_best())]);
        let extra = (table.extra != Extra::None).then(|| extra_cell(table.extra, entry.row));
        text += &line([entry.label.clone()].into_iter().chain(cells).chain(extra));
    }
    text
}

/// The times of a row, the fastest in bold.
fn times(times: &[Option<f64>]) -> Vec<String> {
    let best = times.iter().flatten().fold(f64::INFINITY, |best, time| best.min(*time));
    let cell = |time: &Option<f64>| match time {
        Some(time) if *time <= best * LEVEL => format!("**{}**", number(*time)),
        Some(time) => number(*time),
        None => String::new(),
    };
    times.iter().map(cell).collect()
}

fn extra_cell(extra: Extra, row: &Row) -> String {
    let pair = |a: Option<f64>, b: Option<f64>| Some((a?, b?));
    let cell = match extra {
        Extra::None => None,
        Extra::OfCopy => {
            pair(row.call("copy"), row.call("tilefuse")).map(|(copy, ours)| format!("{:.2}", copy / ours))
        }
        Extra::Host => row.number("/launch_overhead_us/tilefuse").map(number),
        Extra::Errors => pair(row.number("/error/eager"), row.number("/error/tilefuse"))
            .map(|(eager, ours)| format!("{eager}, {ours}")),
    };
    cell.unwrap_or_default()
}

/// Where, with which torch, in which type and when rows were measured.
fn measured<'a>(rows: impl Iterator<Item = &'a Row>) -> String {
    let rows: Vec<_> = rows.collect();
    let all = |of: fn(&Row) -> &str| {
        let words: BTreeSet<_> = rows.iter().map(|row| of(row)).filter(|word| !word.is_empty()).collect();
        words.into_iter().collect::<Vec<_>>().join(" and ")
    };
    let dtype = all(|row| &row.dtype);
    let dtype = if dtype.is_empty() { dtype } else { format!(", {dtype}") };
    format!("{}, torch {}{dtype}, {}", all(|row| &row.device), all(|row| &row.torch), all(|row| &row.date))
}

/// The geometric means of a table, and how many rows are ahead. Rows with a setting of their own do not count.
fn summary(others: &[Contender], entries: &[Entry]) -> String {
    let counted = || entries.iter().filter(|entry| !entry.row.name.contains(" with TILEFUSE_"));
    let over: Vec<f64> = counted().map(Entry::over_best).filter(|ratio| ratio.is_finite()).collect();
    let ahead = over.iter().filter(|ratio| **ratio > LEVEL).count();
    let behind = over.iter().filter(|ratio| **ratio < 1.0 / LEVEL).count();
    let mut means = Vec::new();
    if others.first() == Some(&EAGER) {
        let eager = counted().filter_map(|entry| Some(entry.times.first().copied()?? / entry.ours()));
        means.push(format!("{:.2} over eager", mean(&eager.collect::<Vec<_>>())));
    }
    if others.len() > 1 {
        means.push(format!("{:.2} over the fastest other", mean(&over)));
    }
    let (rows, level, means) = (over.len(), over.len() - ahead - behind, means.join(" and "));
    format!("{rows} rows: geometric mean {means}; ahead in {ahead}, level in {level}, behind in {behind}")
}

/// The geometric mean.
fn mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

/// The twelve rows of the README.
fn highlights(results: &Results) -> Result<String> {
    let mut text = header(&["", "", "eager", "fastest other", "Tilefuse", "over eager", "over best"]);
    for highlight in &HIGHLIGHTS {
        let (label, row) = highlighted(results, highlight)?;
        let ours = milliseconds(row, "tilefuse").context("no time of Tilefuse")?;
        let eager = milliseconds(row, "eager").context("no time of eager")?;
        let (best, who) = fastest(row)?;
        let over = best.min(eager) / ours;
        text += &line([
            label,
            format!("{}, {}", highlight.machine.short, highlight.group.1),
            number(eager),
            format!("{} {who}", number(best)),
            if over >= 1.0 / LEVEL { format!("**{}**", number(ours)) } else { number(ours) },
            format!("{:.2}", eager / ours),
            ratio(over),
        ]);
    }
    Ok(text)
}

/// The row of a highlight, and its label.
pub(super) fn highlighted<'a>(results: &'a Results, highlight: &Highlight) -> Result<(String, &'a Row)> {
    let (name, shape, label): Shown = highlight.row;
    let rows = results.newest(&highlight.machine, highlight.group, (name, shape));
    let row = rows.first().copied().with_context(|| format!("no row `{name}` of {shape}"))?;
    Ok((label.to_owned(), row))
}

/// The fastest of all but eager and Tilefuse in milliseconds, and who it is.
pub(super) fn fastest(row: &Row) -> Result<(f64, &'static str)> {
    let others =
        ALL_OTHERS.iter().skip(1).filter_map(|(name, title)| Some((milliseconds(row, name)?, *title)));
    others.min_by(|a, b| a.0.total_cmp(&b.0)).with_context(|| format!("`{}` has no contender", row.name))
}

/// The table `gpu-compile`.
fn compiled(results: &Results) -> Result<String> {
    let mut rows = Vec::new();
    let mut body = String::new();
    for model in COMPILED {
        let found = results.newest(&COMPILED_ON, ("compile", "bf16"), (model.name, ""));
        let row = found.first().copied().with_context(|| format!("no compile time of `{}`", model.name))?;
        rows.push(row);
        let peer = results.newest(&COMPILED_ON, ("model", "bf16"), model.peer);
        let peer = |name| peer.first().and_then(|row| row.compile(name)).map(number).unwrap_or_default();
        let own = |pointer| row.number(pointer).map(number).unwrap_or_default();
        body +=
            &line([model.label.to_owned(), own("/cold_ms"), own("/warm_ms"), peer("inductor"), peer("xla")]);
    }
    let titles = header(&["", "Tilefuse, first", "Tilefuse, cached", "Inductor", "XLA"]);
    Ok(format!("{}, milliseconds.\n\n{titles}{body}", measured(rows.into_iter())))
}

/// The table `facts`.
fn facts(results: &Results) -> Result<String> {
    let mut text = header(&["", "", ""]);
    for Fact { label, machine, row: (kind, name), values } in FACTS {
        let row =
            results.of(machine).filter(|row| (row.kind.as_str(), row.name.as_str()) == (*kind, *name)).last();
        let row = row.with_context(|| format!("no row `{name}` of kind {kind}"))?;
        let mut cells = Vec::new();
        for (caption, pointer, factor, unit) in *values {
            let value = row.number(pointer).with_context(|| format!("`{name}` has no {pointer}"))?;
            cells.push(format!("{caption} {} {unit}", short(value * factor)).trim_end().to_owned());
        }
        text += &line([(*label).to_owned(), machine.short.to_owned(), cells.join(", ")]);
    }
    Ok(text)
}

fn header(titles: &[&str]) -> String {
    line(titles.iter().map(ToString::to_string)) + &line(titles.iter().map(|_| String::from("---")))
}

fn line(cells: impl IntoIterator<Item = String>) -> String {
    format!("| {} |\n", cells.into_iter().collect::<Vec<_>>().join(" | "))
}

/// How many times Tilefuse's time another takes; marked where Tilefuse is behind.
fn ratio(over: f64) -> String {
    match over {
        over if !over.is_finite() => String::new(),
        over if over < 1.0 / LEVEL => format!("{over:.2} ▼"),
        over => format!("{over:.2}"),
    }
}

/// About three digits, without zeros at the end.
fn short(value: f64) -> String {
    let number = number(value);
    if number.contains('.') { number.trim_end_matches('0').to_owned() } else { number }
}

/// About three digits.
fn number(value: f64) -> String {
    let digits = match value {
        v if v == v.trunc() => 0,
        v if v < 0.0995 => 4,
        v if v < 0.995 => 3,
        v if v < 9.95 => 2,
        v if v < 99.5 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_that_is_listed_was_measured() {
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let results = Results::read(&root.join("benches/results")).unwrap();
        let found = |table: &Table, (name, shape, _): Shown| {
            !results.newest(&table.machine, (table.kind, table.dtype), (name, shape)).is_empty()
        };
        for row in TABLES.iter().flat_map(|table| table.rows) {
            let shown = TABLES.iter().any(|table| table.rows.contains(row) && found(table, *row));
            assert!(shown, "no table has a row for {row:?}");
        }
    }

    #[test]
    fn numbers_have_three_digits() {
        let numbers = [0.0028, 0.13, 1.234, 12.34, 123.4, 20905.0, 3.0].map(number);
        assert_eq!(numbers, ["0.0028", "0.130", "1.23", "12.3", "123", "20905", "3"]);
    }

    #[test]
    fn the_fastest_is_bold_and_a_row_that_is_behind_is_marked() {
        assert_eq!(times(&[Some(3.0), None, Some(2.0), Some(2.001)]), ["3", "", "**2**", "**2.00**"]);
        assert_eq!([ratio(1.5), ratio(0.998), ratio(0.9)], ["1.50", "1.00", "0.90 ▼"]);
    }

    #[test]
    fn a_summary_counts_rows_ahead_level_and_behind() {
        let text = [(4.0, 2.0, 1.0), (4.0, 1.0, 1.0), (4.0, 1.0, 2.0)].map(|(eager, xla, ours)| {
            format!(r#"{{"kind":"k","name":"n","us":{{"eager":{eager},"xla":{xla},"tilefuse":{ours}}}}}"#)
        });
        let results = Results::of_text("f", &text.join("\n")).unwrap();
        let machine = super::super::results::Machine { short: "", files: &["f"] };
        let entry = |row| Entry {
            label: String::new(),
            times: ["eager", "xla", "tilefuse"].map(|who| time(row, who, Cell::Microseconds)).into(),
            row,
        };
        let entries: Vec<_> = results.of(&machine).map(entry).collect();
        assert_eq!(
            summary(&ALL_OTHERS[..2], &entries),
            "3 rows: geometric mean 3.17 over eager and 1.00 over the fastest other; ahead in 1, level in 1, behind in 1"
        );
    }
}
