//! A plan on one screen: repeated parts once, and the cuts that cost most.
//!
//! ```text
//!    0          0.2 %  fused_embedding_add_layer_norm   embedding, embedding, add, layer_norm
//! 12 x steps 1 to 7, to step 84: 24.1 ms, 88.7 %
//!    1          1.6 %  fused_linear                     linear
//! ```

use std::fmt::Write as _;

use indexmap::IndexMap;

use super::limits::{limit_text, of_limit, of_limit_in};
use super::operators::module_of;
use super::style::{Style, clip};
use super::{EdgeReport, Explanation, StepReport, TimeSource, bytes};
use crate::engine::common_path;
use crate::hints::UnmatchedPattern;
use crate::paths::{common_prefix, folded};

/// Cuts that are shown.
const MAX_CUTS: usize = 5;

/// Where the reason of a cut begins in a line.
const CUT_INDENT: usize = 6;

/// Where steps that are repeated, several together, begin in a line.
const STEP_INDENT: usize = 4;

/// Steps one after the other, as they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: usize,
    /// Steps that are repeated.
    period: usize,
    times: usize,
}

impl Run {
    /// The position behind its last step.
    fn end(&self) -> usize {
        self.start + self.period * self.times
    }
}

/// The steps as runs, by keys that are equal where steps are alike: each is the one that covers most from where it starts, and
/// of these the one with the fewest steps.
fn runs(keys: &[String]) -> Vec<Run> {
    let mut found = Vec::new();
    let mut start = 0;
    while start < keys.len() {
        let rest = &keys[start..];
        let times =
            |period: usize| rest.chunks_exact(period).take_while(|part| *part == &rest[..period]).count();
        let repeated =
            (1..=rest.len() / 2).map(|period| (period, times(period))).filter(|&(_, times)| times > 1);
        let most = repeated.max_by_key(|&(period, times)| (period * times, std::cmp::Reverse(period)));
        let (period, times) = most.unwrap_or((1, 1));
        found.push(Run { start, period, times });
        start += period * times;
    }
    found
}

/// A text without the positions of the operators in it, which are others in each of repeated layers.
fn unnumbered(text: &str) -> String {
    let mut found: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let number =
            word.strip_prefix('#').map(|number| number.trim_start_matches(|c: char| c.is_ascii_digit()));
        match (number, found.last_mut()) {
            // What stands behind a position, as a comma.
            (Some(rest), Some(before)) => before.push_str(rest),
            _ => found.push(word.to_owned()),
        }
    }
    found.join(" ")
}

/// A text with operators that have neither namespace nor position.
pub(super) fn short(operator: &str) -> String {
    let name = unnumbered(operator);
    let own = |word: &str| match word.strip_prefix('(') {
        Some(inner) => format!("({}", inner.strip_prefix("aten::").unwrap_or(inner)),
        None => word.strip_prefix("aten::").unwrap_or(word).to_owned(),
    };
    name.split(' ').map(own).collect::<Vec<_>>().join(" ")
}

fn key(step: &StepReport) -> String {
    match step {
        StepReport::Kernel { program, operators, grid, .. } => {
            let operators: Vec<String> = operators.iter().map(|operator| short(operator)).collect();
            format!("{program} {grid} {operators:?}")
        }
        StepReport::Extern { operator, result, .. } => format!("{} {result}", short(operator)),
    }
}

/// A time, in the unit that suits it. The sum of no times is -0.
pub(crate) fn time(us: f64) -> String {
    let us = us + 0.0;
    if us < 1e4 { format!("{us:.1} us") } else { format!("{:.1} ms", us / 1e3) }
}

fn modules_of(step: &StepReport) -> &[String] {
    let (StepReport::Kernel { modules, .. } | StepReport::Extern { modules, .. }) = step;
    modules
}

/// The module that all those of a plan lie in, with a dot behind it; empty where there is none.
fn common_module(plan: &Explanation) -> String {
    common_prefix(plan.operators.iter().map(|operator| operator.module.as_str()))
}

/// A path without what all have in common.
fn within<'a>(path: &'a str, common: &str) -> &'a str {
    path.strip_prefix(common).unwrap_or(path)
}

/// The modules of a step that is repeated with others: one path for all repetitions, without what all modules have in common.
fn modules(plan: &Explanation, at: usize, run: Run) -> String {
    let (of, common) = (|at: usize| modules_of(&plan.steps[at]), common_module(plan));
    let paths = |module: usize| {
        let alike = (0..run.times).map(|time| of(at + time * run.period));
        folded(alike.map(|modules| within(modules.get(module).map_or("", String::as_str), &common)))
    };
    (0..of(at).len()).map(paths).collect::<Vec<_>>().join(", ")
}

/// So many steps in a row, or runs of them, of which each takes less than [`SMALL`] of the time are one line.
const MIN_FOLDED: usize = 4;

/// Of all time, in percent.
const SMALL: f64 = 0.1;

/// Lines that steps have where those that take least can be put together.
const MAX_STEP_LINES: usize = 24;

/// How times are known that were not measured.
const PREDICTED: &str = "as predicted";

/// What a plan takes, and what its columns are.
fn heading(plan: &Explanation, what: &str, style: Style) -> String {
    let eager: f64 = plan.eager.iter().map(|operator| operator.us).sum();
    let how = match (plan.is_measured(), eager > 0.0) {
        (false, _) => String::from(PREDICTED),
        (true, false) => String::from("as measured"),
        (true, true) => format!("as measured; eager's {} operators take {}", plan.eager.len(), time(eager)),
    };
    let basis = basis(plan).filter(|_| !plan.is_measured());
    let how = if how == PREDICTED && basis.is_none() { format!("{how} by the cost model") } else { how };
    let marks = [
        plan.steps
            .iter()
            .any(|step| step.us().is_some() && !step.about().is_empty())
            .then_some("~ libtorch's calls by themselves"),
        (plan.unknown() > 0).then_some("? not known and left out"),
    ];
    let marks: Vec<&str> = basis.as_deref().into_iter().chain(marks.into_iter().flatten()).collect();
    let marks = if marks.is_empty() { String::new() } else { format!(" ({})", marks.join(", ")) };
    let all = time(plan.known_us());
    let common = match common_module(plan).strip_suffix('.') {
        Some(module) => format!("; modules within {module}"),
        None => String::new(),
    };
    let near = limit_heading(plan);
    let line = format!("{what}: share of {all} {how}{marks}{near}, bytes{common}");
    style.strong(&style.wrapped(&line, 2)) + "\n"
}

/// What predicted times rest on, where that is not the cost model alone.
fn basis(plan: &Explanation) -> Option<String> {
    let is_measured = |step: &&StepReport| {
        matches!(step.time(), Some((_, TimeSource::MeasuredProduct | TimeSource::Comparison)))
    };
    let count = plan.steps.iter().filter(is_measured).count();
    (count > 0).then(|| format!("{count} of {} steps from measured products", plan.steps.len()))
}

/// What the column of the machine's limits is, where steps have one.
fn limit_heading(plan: &Explanation) -> String {
    let found: Vec<&str> =
        plan.steps.iter().filter_map(|step| of_limit(plan, step)).map(|of| of.bound.short()).collect();
    let legend = [("mem", "mem: memory"), ("ops", "ops: arithmetic")];
    let legend: Vec<&str> =
        legend.into_iter().filter(|(short, _)| found.contains(short)).map(|(_, text)| text).collect();
    if legend.is_empty() {
        String::new()
    } else {
        format!(", how near the machine's limits ({})", legend.join(", "))
    }
}

/// The steps of a plan, repeated ones once, and many small ones in a row together.
pub(super) fn steps(plan: &Explanation, style: Style) -> String {
    let all = plan.known_us();
    let share = |us: f64| if all > 0.0 { 100.0 * us / all } else { 0.0 };
    let width = width_of_names(plan, style);
    let mut text = heading(plan, "steps", style);
    for row in rows(plan) {
        let line = match row {
            Row::Heading(run) => format!(
                "{} x {} steps, {} to {}: {}, {:.1} %",
                run.times,
                run.period,
                run.start,
                run.end() - 1,
                time(us(plan, run.start, run.end())),
                share(us(plan, run.start, run.end()))
            ),
            Row::Steps { start, end, run } if end == start + 1 => {
                let us = plan.steps[start].us().map(|_| us_of_one(plan, start, end, run));
                let line = step(plan, start, run, (us, us.map(share)), width);
                let line = clip(&line, style.width);
                if plan.steps[start].is_extern() { style.warning(&line) } else { line }
            }
            Row::Steps { start, end, run } => {
                let line = format!(
                    "{:indent$}{} steps, {start} to {}, {:.1} % together{}: {}",
                    "",
                    end - start,
                    end - 1,
                    share(us_of_one(plan, start, end, run)),
                    around(plan, start, end, run),
                    kinds(&plan.steps[start..end]),
                    indent = if run.times > 1 { STEP_INDENT } else { 0 }
                );
                style.faint(&clip(&line, style.width))
            }
        };
        let _ = writeln!(text, "{line}");
    }
    text
}

/// The module that steps lie in, which are repeated with others, behind a comma; empty where there is none.
fn around(plan: &Explanation, start: usize, end: usize, run: Run) -> String {
    let common = common_module(plan);
    let path = |at: usize| {
        let alike = (0..run.times).map(|time| first_module(&plan.steps[at + time * run.period]));
        folded(alike.map(|module| within(module, &common)))
    };
    // Several paths have nothing in common that would be said here.
    let path = |at: usize| Some(path(at)).filter(|path| !path.contains(", ")).unwrap_or_default();
    let module = (start + 1..end).fold(path(start), |module, at| common_path(&module, &path(at)));
    if module.is_empty() { module } else { format!(", {module}") }
}

/// What steps take of which it is known.
fn us(plan: &Explanation, start: usize, end: usize) -> f64 {
    plan.steps[start..end].iter().filter_map(StepReport::us).sum()
}

/// What steps take in one of the repetitions of a run, on average.
fn us_of_one(plan: &Explanation, start: usize, end: usize, run: Run) -> f64 {
    let again = |time: usize| us(plan, start + time * run.period, end + time * run.period);
    (0..run.times).map(again).sum::<f64>() / run.times as f64
}

/// A line of the steps of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    /// Steps that are repeated follow.
    Heading(Run),
    /// A step, or several in a row together.
    Steps {
        start: usize,
        end: usize,
        /// What they are repeated in, or a run of one repetition.
        run: Run,
    },
}

impl Row {
    /// Both together, where they stand for steps that are repeated together or not at all.
    fn merged(self, next: Row) -> Option<Row> {
        match (self, next) {
            (Row::Steps { start, run, .. }, Row::Steps { end, run: next, .. }) => {
                let alike = run == next || (run.times == 1 && next.times == 1);
                alike.then_some(Row::Steps { start, end, run })
            }
            _ => None,
        }
    }
}

/// The lines of the steps of a plan: those that take least are put together with their neighbours until there are no more lines than fit
/// a screen.
fn rows(plan: &Explanation) -> Vec<Row> {
    let all = plan.known_us();
    let is_known = |start: usize, end: usize| plan.steps[start..end].iter().all(is_known_to_be_short);
    let is_small = |start: usize, end: usize| {
        all > 0.0 && 100.0 * us(plan, start, end) / all < SMALL && is_known(start, end)
    };
    let keys: Vec<String> = plan.steps.iter().map(key).collect();
    let found = runs(&keys);
    let mut rows = Vec::new();
    for part in found.chunk_by(|a, b| is_small(a.start, a.end()) == is_small(b.start, b.end())) {
        let (first, last) = (part[0], part[part.len() - 1]);
        if part.len() >= MIN_FOLDED && is_small(first.start, first.end()) {
            let run = Run { period: 1, times: 1, ..first };
            rows.push(Row::Steps { start: first.start, end: last.end(), run });
            continue;
        }
        for &run in part {
            if run.times > 1 {
                rows.push(Row::Heading(run));
            }
            let steps: Vec<usize> = (run.start..run.start + run.period).collect();
            for part in steps.chunk_by(|&a, &b| is_small(a, a + 1) == is_small(b, b + 1)) {
                let (start, end) = (part[0], part[0] + part.len());
                if part.len() >= MIN_FOLDED && is_small(start, start + 1) {
                    rows.push(Row::Steps { start, end, run });
                } else {
                    rows.extend((start..end).map(|at| Row::Steps { start: at, end: at + 1, run }));
                }
            }
        }
    }
    let cost = |row: Row| match row {
        Row::Steps { start, end, run } if is_known(start, end) => {
            us_of_one(plan, start, end, run) * run.times as f64
        }
        _ => f64::INFINITY,
    };
    while rows.len() > MAX_STEP_LINES {
        let pairs = rows.windows(2).enumerate();
        let pairs = pairs.filter_map(|(at, pair)| Some((at, pair[0].merged(pair[1])?)));
        let least = pairs.map(|(at, row)| (at, row, cost(row))).min_by(|a, b| a.2.total_cmp(&b.2));
        let Some((at, row, _)) = least.filter(|least| least.2.is_finite()) else { break };
        rows.splice(at..at + 2, [row]);
    }
    rows
}

/// The distinct kernels of a plan, and the operators of libtorch, that which takes most time first.
pub(super) fn by_time(plan: &Explanation, style: Style) -> String {
    let width = width_of_names(plan, style);
    let mut text = heading(plan, "kernels and libtorch's operators", style);
    for share in shares(plan) {
        let first = &plan.steps[share.steps[0]];
        let modules = share.modules(plan);
        let line = format!(
            "{:>4} x {}",
            share.steps.len(),
            columns(plan, first, (share.us_of_one(), share.part), share.bytes, width, &modules)
        );
        let line = clip(line.trim_end(), style.width);
        let _ = writeln!(text, "{}", if first.is_extern() { style.warning(&line) } else { line });
    }
    text
}

/// All launches of a kernel, or all calls of an operator of libtorch.
pub(super) struct Share {
    /// The positions of the steps.
    pub(super) steps: Vec<usize>,
    /// None where nothing is known of any.
    pub(super) us: Option<f64>,
    /// Of the time of all steps, in percent.
    pub(super) part: Option<f64>,
    /// Bytes that all of them read and write.
    bytes: u64,
}

impl Share {
    /// What one takes on average.
    fn us_of_one(&self) -> Option<f64> {
        Some(self.us? / self.steps.len() as f64)
    }

    /// The modules of a step alone; of several, one path for the first ones of all. Without what all modules have in common.
    pub(super) fn modules(&self, plan: &Explanation) -> String {
        if let [at] = self.steps[..] {
            return modules(plan, at, Run { start: at, period: 1, times: 1 });
        }
        let common = common_module(plan);
        folded(self.steps.iter().map(|&at| within(first_module(&plan.steps[at]), &common)))
    }
}

/// What takes time, that which takes most first; that of which none is known last.
pub(super) fn shares(plan: &Explanation) -> Vec<Share> {
    let mut found: IndexMap<(Option<usize>, String), Share> = IndexMap::new();
    let all = plan.known_us();
    for (at, step) in plan.steps.iter().enumerate() {
        let key = match step {
            StepReport::Kernel { program, .. } => (Some(*program), String::new()),
            StepReport::Extern { operator, .. } => (None, short(operator)),
        };
        let new = Share { steps: Vec::new(), us: None, part: None, bytes: 0 };
        let share = found.entry(key).or_insert(new);
        share.steps.push(at);
        share.bytes += moved(step).unwrap_or(0);
        if let Some(us) = step.us() {
            let us = share.us.unwrap_or(0.0) + us;
            (share.us, share.part) = (Some(us), Some(if all > 0.0 { 100.0 * us / all } else { 0.0 }));
        }
    }
    let mut found: Vec<Share> = found.into_values().collect();
    found.sort_by(|a, b| b.us.partial_cmp(&a.us).unwrap_or(std::cmp::Ordering::Equal));
    found
}

/// A quarter of a line at most.
fn width_of_names(plan: &Explanation, style: Style) -> usize {
    plan.steps.iter().map(|step| name(step).len()).max().unwrap_or(0).min(style.width / 4)
}

fn first_module(step: &StepReport) -> &str {
    modules_of(step).first().map_or("", String::as_str)
}

/// Bytes that a kernel reads and writes.
fn moved(step: &StepReport) -> Option<u64> {
    match step {
        StepReport::Kernel { bytes_read, bytes_written, .. } => Some(bytes_read + bytes_written),
        StepReport::Extern { .. } => None,
    }
}

/// Whether a step is known to take little: a libtorch call of which nothing but its bytes is known may take long where these are many.
fn is_known_to_be_short(step: &StepReport) -> bool {
    match (step.time(), step) {
        (Some((_, TimeSource::Bytes)) | None, StepReport::Extern { writes, .. }) => {
            writes.iter().map(|tensor| tensor.bytes).sum::<u64>() < 1 << 16
        }
        _ => true,
    }
}

fn name(step: &StepReport) -> String {
    match step {
        StepReport::Kernel { name, .. } => name.clone(),
        StepReport::Extern { .. } => String::from("libtorch"),
    }
}

/// What steps are called, with how many there are of each.
fn kinds(steps: &[StepReport]) -> String {
    let mut counts: IndexMap<String, usize> = IndexMap::new();
    for step in steps {
        *counts.entry(name(step)).or_default() += 1;
    }
    counts.sort_by(|_, a, _, b| b.cmp(a));
    let each = counts.iter().map(|(name, count)| format!("{count} x {name}"));
    each.collect::<Vec<_>>().join(", ")
}

/// A step in a line, with what it takes and which share that is.
fn step(plan: &Explanation, at: usize, run: Run, times: (Option<f64>, Option<f64>), width: usize) -> String {
    let step = &plan.steps[at];
    let indent = if run.times > 1 { 2 } else { 0 };
    let columns = columns(plan, step, times, moved(step).unwrap_or(0), width, &modules(plan, at, run));
    format!("{:indent$}{at:4} {columns}", "").trim_end().to_owned()
}

/// What is said of a step, or of several that are alike: what one of them takes, and the share of all.
fn columns(
    plan: &Explanation,
    step: &StepReport,
    (us, share): (Option<f64>, Option<f64>),
    moved: u64,
    width: usize,
    modules: &str,
) -> String {
    let operators: Vec<String> = match step {
        StepReport::Kernel { operators, .. } => operators.iter().map(|operator| short(operator)).collect(),
        StepReport::Extern { operator, .. } => vec![short(operator)],
    };
    let limit = us.and_then(|us| of_limit_in(plan, step, us));
    let limit = limit.map_or_else(String::new, |of| format!("{} {}", limit_text(plan, of), of.bound.short()));
    let moved = if step.is_extern() { String::new() } else { bytes(moved) };
    let share = share.map_or_else(|| String::from("?  "), |share| format!("{}{share:.1} %", step.about()));
    format!(
        "{share:>8} {limit:>10} {moved:>9}  {:width$}  {modules}{}{}",
        clip(&name(step), width),
        if modules.is_empty() { "" } else { ": " },
        operators.join(", ")
    )
}

/// Cuts between the same operators for the same reason.
#[derive(Debug)]
pub(super) struct Alike {
    pub(super) producer: String,
    pub(super) consumer: String,
    pub(super) verdict: String,
    pub(super) remedy: Option<String>,
    /// How many there are.
    pub(super) count: usize,
    /// Bytes over all of them.
    pub(super) bytes: u64,
    /// Predicted microseconds that all of them cost at most.
    pub(super) cost_us: f64,
    /// Their positions.
    pub(super) edges: Vec<usize>,
}

impl Alike {
    /// The bytes, in the unit that suits them.
    pub(super) fn size(&self) -> String {
        bytes(self.bytes)
    }

    /// The cost, likewise.
    pub(super) fn cost(&self) -> String {
        time(self.cost_us)
    }

    /// The modules of their ends, without what all modules have in common.
    fn modules(&self, plan: &Explanation) -> String {
        let common = common_module(plan);
        let of = |end: fn(&EdgeReport) -> &String| {
            let edges = self.edges.iter().filter_map(|&at| plan.edges.get(at));
            let modules: Vec<String> = edges.map(|edge| module_of(&plan.operators, end(edge))).collect();
            folded(modules.iter().map(|module| within(module, &common)))
        };
        between(&of(|edge| &edge.producer), &of(|edge| &edge.consumer))
    }
}

/// The modules of the ends of an edge; empty where nothing is known of either.
pub(super) fn between(from: &str, to: &str) -> String {
    match (from, to) {
        (one, "") | ("", one) => String::from(one),
        _ if from == to => String::from(from),
        _ => format!("{from} -> {to}"),
    }
}

/// The cuts of a plan, alike ones once, those that cost most first.
pub(super) fn alike(plan: &Explanation) -> Vec<Alike> {
    alike_edges(plan, |edge| !edge.fused)
}

/// Some of the edges of a plan, likewise.
fn alike_edges(plan: &Explanation, is_asked_for: fn(&EdgeReport) -> bool) -> Vec<Alike> {
    let mut found: IndexMap<(String, String, String), Alike> = IndexMap::new();
    for (at, edge) in plan.edges.iter().enumerate().filter(|(_, edge)| is_asked_for(edge)) {
        let EdgeReport { producer, consumer, verdict, remedy, bytes, cost_us, .. } = edge;
        let (producer, consumer) = (short(producer), short(consumer));
        let (verdict, remedy) = (short(verdict), remedy.as_deref().map(short));
        let key = (producer.clone(), consumer.clone(), verdict.clone());
        let alike = found.entry(key).or_insert(Alike {
            producer,
            consumer,
            verdict,
            remedy,
            count: 0,
            bytes: 0,
            cost_us: 0.0,
            edges: Vec::new(),
        });
        (alike.count, alike.bytes) = (alike.count + 1, alike.bytes + bytes);
        alike.cost_us += cost_us.unwrap_or(0.0);
        alike.edges.push(at);
    }
    let mut found: Vec<_> = found.into_values().collect();
    found.sort_by(|a, b| b.cost_us.total_cmp(&a.cost_us).then(b.bytes.cmp(&a.bytes)));
    found
}

/// What became of hints: the edges that are fused because of one alone, those that one asks for in vain, and hints that no operator is
/// meant by; empty where there are none.
pub(crate) fn hinted(plan: &Explanation) -> Vec<String> {
    let fused = alike_edges(plan, |edge| edge.fused && edge.hinted);
    let fused = fused.iter().map(|Alike { producer, consumer, verdict, count, .. }| {
        format!("{count} x {producer} -> {consumer}, {verdict}")
    });
    let unmet = alike_edges(plan, |edge| edge.unmet);
    let unmet = unmet.iter().map(|Alike { producer, consumer, verdict, count, .. }| {
        format!(
            "{count} x {producer} -> {consumer}, not in one kernel as the hint `together` asks, {verdict}"
        )
    });
    fused.chain(unmet).chain(plan.unmatched.iter().map(UnmatchedPattern::text)).collect()
}

/// The cuts that cost most, alike ones once, and each reason behind all those that have it.
pub(super) fn cuts(plan: &Explanation, style: Style) -> String {
    let alike = alike(plan);
    if alike.is_empty() {
        return String::from("every edge is fused\n");
    }
    let costs = if alike[0].cost_us > 0.0 { "cost most" } else { "have most bytes" };
    let shown = alike.len().min(MAX_CUTS);
    let heading = format!("cuts that {costs} ({shown} of {}): predicted time at most, bytes", alike.len());
    let mut text = style.strong(&style.wrapped(&heading, 2)) + "\n";
    let mut reasons: IndexMap<(&str, Option<&str>), Vec<&Alike>> = IndexMap::new();
    for cut in alike.iter().take(MAX_CUTS) {
        reasons.entry((&cut.verdict, cut.remedy.as_deref())).or_default().push(cut);
    }
    for ((verdict, remedy), cuts) in reasons {
        for cut in cuts {
            let Alike { producer, consumer, count, .. } = cut;
            let edges = if *count == 1 { "edge " } else { "edges" };
            let (cost, size) = (cut.cost(), cut.size());
            let mut line = format!("  {cost:>10} {size:>9} in {count:3} {edges}  {producer} -> {consumer}");
            let modules = cut.modules(plan);
            if !modules.is_empty() && line.chars().count() + modules.chars().count() + 2 <= style.width {
                line.push_str(&format!("  {modules}"));
            }
            let _ = writeln!(text, "{}", style.wrapped(&line, CUT_INDENT));
        }
        let _ = writeln!(text, "{}", style.wrapped(&format!("{:CUT_INDENT$}{verdict}", ""), CUT_INDENT));
        if let Some(remedy) = remedy {
            let line = format!("{:CUT_INDENT$}what would change it: {remedy}", "");
            let _ = writeln!(text, "{}", style.faint(&style.wrapped(&line, CUT_INDENT)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::OperatorReport;
    use super::super::style::Order;
    use super::*;

    fn runs_of(keys: &str) -> Vec<(usize, usize, usize)> {
        let keys: Vec<String> = keys.chars().map(String::from).collect();
        runs(&keys).into_iter().map(|run| (run.start, run.period, run.times)).collect()
    }

    #[test]
    fn what_repeats_is_one_run() {
        assert_eq!(runs_of(""), []);
        assert_eq!(runs_of("abc"), [(0, 1, 1), (1, 1, 1), (2, 1, 1)]);
        assert_eq!(runs_of("xabababy"), [(0, 1, 1), (1, 2, 3), (7, 1, 1)]);
        assert_eq!(runs_of("aaaa"), [(0, 1, 4)]);
        assert_eq!(runs_of("aabaabc"), [(0, 3, 2), (6, 1, 1)]);
    }

    #[test]
    fn what_takes_least_is_put_together_until_a_plan_fits_a_screen() {
        let mut plan = crate::explain::page::tests::layers_of_two();
        let step = plan.steps[0].clone();
        plan.steps.clear();
        // Twice a layer of 60 steps, of which the last one takes most, and one more.
        for at in (0..60).chain(0..60).chain([60]) {
            let mut step = step.clone();
            let StepReport::Kernel { program, predicted_us, .. } = &mut step else { continue };
            (*program, *predicted_us) = (at, if at == 59 { 1000.0 } else { 10.0 });
            plan.steps.push(step);
        }
        let found = rows(&plan);
        assert_eq!(found.len(), MAX_STEP_LINES);
        let layer = Run { start: 0, period: 60, times: 2 };
        assert_eq!(found[0], Row::Heading(layer));
        assert_eq!(found[22], Row::Steps { start: 59, end: 60, run: layer });
        let last = Run { start: 120, period: 1, times: 1 };
        assert_eq!(found[23], Row::Steps { start: 120, end: 121, run: last });
        let mut at = 0;
        for row in &found[1..22] {
            let Row::Steps { start, end, .. } = *row else { panic!("{row:?}") };
            assert!(start == at && end - start <= 4, "{row:?}");
            at = end;
        }
        let text = plan.summary();
        assert!(text.contains("\n    4 steps, 0 to 3, 1.3 % together, embed: 4 x fused_0\n"), "{text}");
    }

    #[test]
    fn a_plan_without_steps_has_no_times() {
        let mut plan = crate::explain::page::tests::layers_of_two();
        plan.steps.clear();
        plan.edges.clear();
        let text = plan.summary();
        assert!(
            text.ends_with("\nno steps: what a call returns is given to it or has no elements\n"),
            "{text}"
        );
        assert_eq!((time(-0.0), time(1234.56)), (String::from("0.0 us"), String::from("1234.6 us")));
    }

    #[test]
    fn colours_are_for_terminals_alone() {
        let plan = crate::explain::page::tests::layers_of_two();
        assert!(!plan.summary().contains('\u{1b}'));
        let style = Style { width: 60, colour: true, order: Order::Calls };
        let text = plan.summary_in(style);
        assert!(text.contains("\u{1b}[1m"), "{text}");
        let plain = plan.summary_in(Style { colour: false, ..style });
        assert!(plain.lines().all(|line| line.chars().count() <= 60), "{plain}");
        assert_eq!(console::strip_ansi_codes(&text), plain);
    }

    #[test]
    fn edges_that_a_hint_fuses_say_so() {
        let mut plan = crate::explain::page::tests::layers_of_two();
        let edge = &mut plan.edges[0];
        (edge.fused, edge.hinted, edge.remedy) = (true, true, None);
        edge.verdict = String::from("fused: a hint keeps them together");
        let said = "\n1 x linear -> linear, fused: a hint keeps them together\n";
        assert!(plan.summary().contains(said) && plan.text(false).contains(said));
        assert!(plan.summary().ends_with("every edge is fused\n"));
    }

    #[test]
    fn a_reason_is_said_once() {
        let mut plan = crate::explain::page::tests::layers_of_two();
        let mut others = [plan.edges[0].clone(), plan.edges[0].clone()];
        (others[0].bytes, others[0].producer, others[0].verdict) =
            (64, String::from("aten::exp #1"), String::from("cut: other"));
        (others[1].bytes, others[1].producer) = (32, String::from("aten::sin #1"));
        plan.edges.extend(others);
        let text = plan.summary();
        let (_, cuts) =
            text.split_once("cuts that cost most (3 of 3): predicted time at most, bytes\n").unwrap();
        let expected = "      1.5 us     128 B in   1 edge   linear -> linear\n      1.5 us      32 B in   1 edge   sin -> linear\n      \
                        cut: predicted 9.0 us in one kernel, 4.0 us in two\n      what would change it: nothing that the cost model \
                        knows\n      1.5 us      64 B in   1 edge   exp -> linear\n      cut: other\n      what would change it: nothing that \
                        the cost model knows\n";
        assert_eq!(cuts, expected);
    }

    #[test]
    fn cuts_have_their_modules_where_they_fit() {
        let mut plan = crate::explain::page::tests::layers_of_two();
        for module in ["head", "h.0.mlp.up", "h.0.mlp.down"] {
            let operator = format!("aten::linear #{}", plan.operators.len());
            plan.operators.push(OperatorReport {
                operator,
                module: module.into(),
                step: None,
                left_out: None,
            });
        }
        let cut = "      1.5 us     128 B in   1 edge   linear -> linear";
        assert!(plan.summary().contains(&format!("\n{cut}  h.0.mlp.up -> h.0.mlp.down\n")));
        let text = plan.summary_in(Style { width: 60, ..Style::PLAIN });
        assert!(text.contains(&format!("\n{cut}\n")), "{text}");
        assert_eq!([between("a", "a"), between("", "b"), between("", "")], ["a", "b", ""]);
    }

    #[test]
    fn a_heading_says_what_times_rest_on_and_what_limits_are() {
        let mut plan = crate::explain::page::tests::layers_of_two();
        let line = |plan: &Explanation| heading(plan, "steps", Style { width: 500, ..Style::PLAIN });
        let said = "steps: share of 16.0 us as predicted by the cost model, how near the machine's limits (mem: memory), bytes\n";
        assert_eq!(line(&plan), said);
        plan.steps[0] = crate::explain::page::tests::call("aten::mm #0", None);
        if let StepReport::Extern { candidates, .. } = &mut plan.steps[0] {
            candidates.push(crate::explain::CandidateReport {
                operator: String::from("aten::mm #0"),
                schedule: None,
                predicted_us: 2.0,
                measured_us: Some(2.0),
                chosen: true,
            });
        }
        let said = "steps: share of 16.0 us as predicted (1 of 8 steps from measured products, ~ libtorch's calls by themselves), how";
        assert!(line(&plan).starts_with(said), "{}", line(&plan));
        plan.machine = None;
        assert!(line(&plan).ends_with("by themselves), bytes\n"));
    }

    #[test]
    fn what_all_modules_lie_in_is_said_once() {
        let mut plan = crate::explain::page::tests::layers_of_two();
        for step in &mut plan.steps {
            if let StepReport::Kernel { modules, .. } = step {
                modules[0].insert_str(0, "gpt.transformer.");
                let (operator, module) = (String::from("aten::relu"), modules[0].clone());
                plan.operators.push(OperatorReport { operator, module, step: None, left_out: None });
            }
        }
        for order in [Order::Calls, Order::Time] {
            let text = plan.summary_in(Style { order, width: 160, ..Style::PLAIN });
            assert_eq!(text.matches("transformer").count(), 1, "{text}");
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains("; modules within gpt.transformer "), "{text}");
            assert!(text.contains(" h.0.mlp.up: relu\n"), "{text}");
        }
    }

    #[test]
    fn operators_are_named_without_positions() {
        assert_eq!(short("aten::linear #23"), "linear");
        assert_eq!(short("attention (aten::matmul #13 .. aten::matmul #19)"), "attention (matmul .. matmul)");
        let mut plan = crate::explain::page::tests::layers_of_two();
        plan.edges[0].verdict = String::from("cut: aten::conv2d #3, a step between them, needs the first");
        plan.edges[0].remedy = Some(String::from("aten::conv2d #3 would have to be in the kernel as well"));
        let text = plan.summary();
        assert!(text.contains("cut: conv2d, a step") && text.contains("change it: conv2d would"), "{text}");
        assert!(!text.contains("aten::"), "{text}");
    }

    #[test]
    fn kernels_are_sorted_by_time() {
        let mut plan = crate::explain::page::tests::layers_of_two();
        for (at, step) in plan.steps.iter_mut().enumerate() {
            let StepReport::Kernel { program, predicted_us, .. } = step else { continue };
            // The steps of a layer are those of the other.
            *program = if (4..7).contains(&at) { at - 3 } else { at };
            *predicted_us = [1.0, 2.0, 8.0, 1.0, 2.0, 8.0, 1.0, 3.0][at];
        }
        let text = plan.summary_in(Style { order: Order::Time, ..Style::PLAIN });
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(" x ")).collect();
        let expected = [
            "   2 x   61.5 %    0 % mem     512 B  fused_2  h.*.mlp.up: relu",
            "   2 x   15.4 %    1 % mem     512 B  fused_1  h.*.norm: relu",
            "   1 x   11.5 %    0 % mem     256 B  fused_7  head: relu",
            "   2 x    7.7 %    1 % mem     512 B  fused_3  h.*.mlp.down: relu",
            "   1 x    3.8 %    1 % mem     256 B  fused_0  embed: relu",
        ];
        assert_eq!(lines, expected);
    }
}
