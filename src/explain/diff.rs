//! What is different between two plans of one model: of two versions of Tilefuse, two types or two models that are almost one.

mod basis;
pub(super) mod choices;
mod code;
pub(super) mod cuts;

use std::collections::VecDeque;
use std::fmt::Write as _;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::basis::Basis;
use self::choices::AlikeChoiceChange;
pub use self::choices::ChoiceChange;
use self::cuts::AlikeCutChange;
pub use self::cuts::CutChange;
use super::style::Style;
use super::{CodeReport, Explanation, REPORT_VERSION, StepReport, bytes, summary};
use crate::Error;
use crate::paths::any_number;

/// Where what is different in a step begins in a line.
const STEP_INDENT: usize = 8;

/// The name of the sum of operations.
const OPERATIONS: &str = "operations";

/// What is different in a plan from an older one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanDiff {
    /// [`REPORT_VERSION`] of the plans, and of this.
    #[serde(default)]
    pub version: u32,
    /// What the plans were made of or with that is not the same, and what that means for the figures that are compared.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What a call costs in all, in both; those that stayed among them.
    pub totals: Vec<TotalChange>,
    /// Steps of the older plan that no step of the newer one is like.
    pub gone: Vec<OneSided>,
    /// Steps of the newer plan that no step of the older one is like.
    pub new: Vec<OneSided>,
    /// Steps that compute the same in another way or time.
    pub changed: Vec<StepChange>,
    /// Edges between operators of both that are fused in one of them, or not for another reason.
    #[serde(default)]
    pub cuts: Vec<CutChange>,
    /// Products, convolutions and attention of both for which they chose different candidates.
    #[serde(default)]
    pub choices: Vec<ChoiceChange>,
}

/// A step that one of two plans alone has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OneSided {
    /// What it computes.
    pub step: String,
    /// Microseconds that it takes, as [`StepReport::time`] has them, or where only one of the plans was profiled, as
    /// [`StepReport::time_without_profile`].
    pub us: Option<f64>,
}

/// Such steps of repeated layers.
#[derive(Debug, PartialEq)]
pub(super) struct AlikeOneSided {
    /// What they compute, `*` for the numbers of the layers.
    pub(super) step: String,
    pub(super) count: usize,
    /// Of all of them of which it is known; none where it is of none.
    pub(super) us: Option<f64>,
}

impl AlikeOneSided {
    /// The time, in the unit that suits it.
    pub(super) fn time(&self) -> String {
        self.us.map_or_else(|| String::from("?"), summary::time)
    }
}

/// A sum over a plan, before and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TotalChange {
    /// What it is a sum of, with its unit.
    pub name: String,
    /// In the older plan.
    pub old: f64,
    /// In the newer one.
    pub new: f64,
    /// Whether more of it is worse.
    pub cost: bool,
}

/// Steps that repeated layers have alike, and that changed alike.
pub(super) struct AlikeChange<'a> {
    /// What they compute, `*` for the numbers of the layers.
    pub(super) step: String,
    /// The position of the first one in the newer plan.
    pub(super) at: usize,
    pub(super) what: &'a [String],
    pub(super) count: usize,
    /// Microseconds that all of them take more.
    pub(super) more_us: f64,
}

impl TotalChange {
    /// How much more of it there is, as a part of what there was; infinite where there was none.
    pub fn growth(&self) -> f64 {
        if self.old == self.new { 0.0 } else { (self.new - self.old) / self.old }
    }

    /// What there was.
    pub(crate) fn before(&self) -> String {
        self.shown(self.old)
    }

    /// What there is.
    pub(crate) fn now(&self) -> String {
        self.shown(self.new)
    }

    fn shown(&self, value: f64) -> String {
        match self.name.as_str() {
            name if name.starts_with("bytes") => bytes(value as u64),
            OPERATIONS => operations(value),
            _ => number(value),
        }
    }

    /// The growth in percent.
    pub(super) fn percent(&self) -> String {
        match self.growth() {
            growth if growth.is_finite() => format!("{:+.1} %", 100.0 * growth),
            _ => String::from("there was none"),
        }
    }

    /// How it is marked: more or less of a cost.
    pub(super) fn class(&self) -> &'static str {
        match self.growth() {
            growth if self.cost && growth > 0.0 => "more",
            growth if self.cost && growth < 0.0 => "less",
            _ => "",
        }
    }
}

/// A step that computes the same in another way or time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepChange {
    /// What it computes.
    pub step: String,
    /// Its position in the newer plan.
    pub at: usize,
    /// What is different.
    pub what: Vec<String>,
    /// Microseconds that it takes more, by the times that [`OneSided::us`] has; 0 where one of the two is not known.
    pub more_us: f64,
}

impl Explanation {
    /// A report that was written as JSON.
    ///
    /// # Errors
    /// Where the text is none, or of another [`REPORT_VERSION`].
    pub fn from_json(text: &str) -> Result<Explanation, Error> {
        let bad = |error: serde_json::Error| Error::Report(error.to_string());
        let value: serde_json::Value = serde_json::from_str(text).map_err(bad)?;
        match value["version"].as_u64() {
            Some(version) if version == u64::from(REPORT_VERSION) => {
                serde_json::from_value(value).map_err(bad)
            }
            Some(version) => Err(Error::Report(format!(
                "it has version {version}, and this program reads {REPORT_VERSION}: write it again with the version of Tilefuse \
                 that reads it"
            ))),
            None => Err(Error::Report(String::from("it says no version"))),
        }
    }

    /// What is different from an older plan.
    pub fn diff(&self, old: &Explanation) -> PlanDiff {
        let basis = Basis::of(old, self);
        let mut before: IndexMap<String, VecDeque<&StepReport>> = IndexMap::new();
        for step in &old.steps {
            before.entry(computed(step)).or_default().push_back(step);
        }
        let (mut new, mut changed) = (Vec::new(), Vec::new());
        for (at, step) in self.steps.iter().enumerate() {
            let name = computed(step);
            match before.get_mut(&name).and_then(VecDeque::pop_front) {
                None => new.push(OneSided { step: name, us: basis.us(step) }),
                Some(step_before) => {
                    let what = differences((old, step_before), (self, step));
                    if !what.is_empty() {
                        let more_us =
                            basis.us(step).zip(basis.us(step_before)).map_or(0.0, |(is, was)| is - was);
                        changed.push(StepChange { step: name, at, what, more_us });
                    }
                }
            }
        }
        let gone = before.into_iter().flat_map(|(name, steps)| {
            steps.into_iter().map(move |step| OneSided { step: name.clone(), us: basis.us(step) })
        });
        PlanDiff {
            version: REPORT_VERSION,
            notes: basis::notes(old, self),
            totals: totals(old, self, basis),
            gone: gone.collect(),
            new,
            changed,
            cuts: cuts::changes(old, self),
            choices: choices::changes(old, self),
        }
    }
}

/// What a step computes: by this, steps of two plans are taken to be the same.
fn computed(step: &StepReport) -> String {
    let (modules, operators) = match step {
        StepReport::Kernel { modules, operators, .. } => (modules, operators.clone()),
        StepReport::Extern { modules, operator, .. } => (modules, vec![operator.clone()]),
    };
    let operators: Vec<String> = operators.iter().map(|operator| summary::short(operator)).collect();
    let place = if modules.is_empty() { String::new() } else { format!("{}: ", modules.join(", ")) };
    format!("{place}{}", operators.join(", "))
}

/// In what two steps that compute the same differ.
fn differences(
    (old_plan, old): (&Explanation, &StepReport),
    (new_plan, new): (&Explanation, &StepReport),
) -> Vec<String> {
    let mut found = Vec::new();
    let mut differs = |what: &str, old: String, new: String| {
        if old != new {
            found.push(format!("{what}: {old} -> {new}"));
        }
    };
    differs("runs as", kind(old), kind(new));
    if let (
        StepReport::Kernel {
            bytes_read: r, bytes_written: w, predicted_us: us, schedule: s, grid: g, ..
        },
        StepReport::Kernel { bytes_read, bytes_written, predicted_us, schedule, grid, .. },
    ) = (old, new)
    {
        differs("bytes read", bytes(*r), bytes(*bytes_read));
        differs("bytes written", bytes(*w), bytes(*bytes_written));
        differs("instances", g.to_string(), grid.to_string());
        let tiles = |schedule: &Option<super::ScheduleReport>| {
            schedule.as_ref().map_or_else(|| String::from("none"), |s| format!("{}{}", s.tiles, s.blocks))
        };
        differs("tiles", tiles(s), tiles(schedule));
        differs("predicted", summary::time(*us), summary::time(*predicted_us));
    }
    if let (Some(us), Some(measured_us)) = (old.measured_us(), new.measured_us()) {
        differs("measured", summary::time(us), summary::time(measured_us));
    }
    for (old, new) in reasons(old).into_iter().zip(reasons(new)) {
        let [was, is] = [old, new].map(|reason| reason.map_or("nothing said", String::as_str));
        if without_numbers(was) != without_numbers(is) {
            found.push(format!("reason: {} -> {}", summary::short(was), summary::short(is)));
        }
    }
    let [was, is] = [(old_plan, old), (new_plan, new)].map(|(plan, step)| program(plan, step));
    if let (Some(was), Some(is)) = (was, is) {
        let block = code::difference(was.0, is.0).map(|what| format!("block program: {what}"));
        found.extend(block.into_iter().chain(code::machine_difference(was.1, is.1)));
    }
    found
}

/// Why a step is what it is, and why it shares neither its launch nor its loop.
fn reasons(step: &StepReport) -> [Option<&String>; 3] {
    match step {
        StepReport::Kernel { reason, horizontal_refusal, outer_loop, .. } => {
            [reason.as_ref(), horizontal_refusal.as_ref(), outer_loop.as_ref()]
        }
        StepReport::Extern { reason, .. } => [reason.as_ref(), None, None],
    }
}

/// The block program of a kernel, and its code where that was asked for.
fn program<'a>(plan: &'a Explanation, step: &StepReport) -> Option<(&'a str, Option<&'a CodeReport>)> {
    let StepReport::Kernel { program, .. } = step else { return None };
    Some((plan.programs.get(*program)?, plan.code.get(*program)))
}

/// A reason without the numbers in it: times and sizes change with what was measured, and are compared by themselves.
fn without_numbers(reason: &str) -> String {
    let mut text = String::with_capacity(reason.len());
    for c in reason.chars() {
        let is_number = c.is_ascii_digit() || (c == '.' && text.ends_with('#'));
        match is_number {
            true if text.ends_with('#') => {}
            true => text.push('#'),
            false => text.push(c),
        }
    }
    text
}

fn kind(step: &StepReport) -> String {
    match step {
        StepReport::Kernel { shape, .. } => format!("a {shape} kernel"),
        StepReport::Extern { result, .. } => format!("a libtorch call that gives {result}"),
    }
}

/// The sums, of which some are no cost: where other operators are left to libtorch, kernels take, read and write other than before for that
/// alone; measured times of all steps vary from run to run.
fn totals(old: &Explanation, new: &Explanation, basis: Basis) -> Vec<TotalChange> {
    let (a, b) = (old.totals(), new.totals());
    let kernels_alike = a.extern_calls == b.extern_calls;
    let all_known_alike = basis == Basis::NoProfile && basis.unknown(old) == basis.unknown(new);
    let change =
        |name: &str, old: f64, new: f64, cost: bool| TotalChange { name: name.to_owned(), old, new, cost };
    vec![
        change("predicted time of kernels, us", a.predicted_us, b.predicted_us, kernels_alike),
        change(basis.total(), basis.sum_us(old), basis.sum_us(new), all_known_alike),
        change("kernels", a.kernels as f64, b.kernels as f64, kernels_alike),
        change("launches", a.launches as f64, b.launches as f64, true),
        change("libtorch calls", a.extern_calls as f64, b.extern_calls as f64, true),
        change("bytes read by kernels", a.bytes_read as f64, b.bytes_read as f64, kernels_alike),
        change("bytes written by kernels", a.bytes_written as f64, b.bytes_written as f64, kernels_alike),
        change("bytes at peak", a.peak_bytes as f64, b.peak_bytes as f64, true),
        change("distinct kernels", a.distinct_kernels as f64, b.distinct_kernels as f64, false),
        change("edges that were not fused", a.cuts as f64, b.cuts as f64, false),
        change(OPERATIONS, a.flops as f64, b.flops as f64, false),
    ]
}

impl PlanDiff {
    /// The JSON Schema of differences, `docs/diff.schema.json`.
    pub fn schema() -> String {
        let schema = schemars::schema_for!(PlanDiff);
        // A schema is a value of JSON.
        serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
    }

    /// Whether the plans do the same in the same way.
    pub fn is_empty(&self) -> bool {
        let same = self.totals.iter().all(|total| total.old == total.new);
        let no_steps = self.gone.is_empty() && self.new.is_empty() && self.changed.is_empty();
        same && no_steps && self.cuts.is_empty() && self.choices.is_empty()
    }

    /// The costs that have grown by more than this part of what they were: the time of all steps where not both plans were profiled and as
    /// many calls have none, launches, libtorch calls and bytes at peak; between plans of as many libtorch calls also what kernels are
    /// predicted to take, their number and their bytes.
    pub fn regressions(&self, part: f64) -> Vec<&TotalChange> {
        self.totals.iter().filter(|total| total.cost && total.growth() > part).collect()
    }

    /// For a reader.
    pub fn text(&self) -> String {
        self.text_in(Style { width: usize::MAX, ..Style::PLAIN })
    }

    /// The same, as it is read there.
    pub(crate) fn text_in(&self, style: Style) -> String {
        if self.is_empty() {
            return String::from("the plans are the same\n");
        }
        let mut text = String::new();
        for note in &self.notes {
            let _ = writeln!(text, "{}", style.wrapped(note, STEP_INDENT));
        }
        for total in &self.totals {
            let (before, now) = (total.before(), total.now());
            let line = format!("{:32} {before:>16} -> {now:>16}  {}", total.name, total.percent());
            let _ = writeln!(text, "{}", style.wrapped(&line, STEP_INDENT));
        }
        for (title, steps) in [("gone", self.gone_alike()), ("new", self.new_alike())] {
            if !steps.is_empty() {
                let _ = writeln!(text, "\n{title}");
            }
            for one in steps {
                let line = format!("  {:3} x {}, {}", one.count, one.step, one.time());
                let _ = writeln!(text, "{}", style.wrapped(&line, STEP_INDENT));
            }
        }
        if !self.changed.is_empty() {
            let _ = writeln!(text, "\nchanged");
        }
        for AlikeChange { step, what, count, .. } in self.changed_alike() {
            let _ = writeln!(text, "{}", style.wrapped(&format!("  {count:3} x {step}"), STEP_INDENT));
            let what = format!("{:STEP_INDENT$}{}", "", what.join("; "));
            let _ = writeln!(text, "{}", style.wrapped(&what, STEP_INDENT));
        }
        if !self.choices.is_empty() {
            let _ = writeln!(text, "\n{}", style.wrapped(choices::HEADING, STEP_INDENT));
        }
        for AlikeChoiceChange { operator, modules, old, new, count } in self.choices_alike() {
            let line = format!("  {count:3} x {operator}{}", behind(&modules));
            let _ = writeln!(text, "{}", style.wrapped(&line, STEP_INDENT));
            let change = format!("{:STEP_INDENT$}{old} -> {new}", "");
            let _ = writeln!(text, "{}", style.wrapped(&change, STEP_INDENT));
        }
        if !self.cuts.is_empty() {
            let _ = writeln!(text, "\nedges");
        }
        for AlikeCutChange { edge, modules, old, new, count, bytes: size } in self.cuts_alike() {
            let edge = format!("  {count:3} x {edge}, {}{}", bytes(size), behind(&modules));
            let _ = writeln!(text, "{}", style.wrapped(&edge, STEP_INDENT));
            let change = format!("{:STEP_INDENT$}{old} -> {new}", "");
            let _ = writeln!(text, "{}", style.wrapped(&change, STEP_INDENT));
        }
        text
    }

    /// The steps that are gone, those of repeated layers once, with how many there are.
    pub(super) fn gone_alike(&self) -> Vec<AlikeOneSided> {
        counted(&self.gone)
    }

    /// The steps that are new, likewise.
    pub(super) fn new_alike(&self) -> Vec<AlikeOneSided> {
        counted(&self.new)
    }

    /// The edges that changed, those between operators of the same names once.
    pub(super) fn cuts_alike(&self) -> Vec<AlikeCutChange> {
        cuts::alike(&self.cuts)
    }

    /// The choices that changed, those between operators of the same names once.
    pub(super) fn choices_alike(&self) -> Vec<AlikeChoiceChange> {
        choices::alike(&self.choices)
    }

    /// The steps that changed, those of repeated layers that changed alike once.
    pub(super) fn changed_alike(&self) -> Vec<AlikeChange<'_>> {
        let mut found: IndexMap<(String, &[String]), AlikeChange<'_>> = IndexMap::new();
        for StepChange { step, at, what, more_us } in &self.changed {
            let new = AlikeChange { step: step.clone(), at: *at, what, count: 0, more_us: 0.0 };
            let alike = found.entry((of_any_layer(step), what)).or_insert(new);
            (alike.count, alike.more_us) = (alike.count + 1, alike.more_us + more_us);
        }
        for ((step, _), alike) in &mut found {
            if alike.count > 1 {
                alike.step.clone_from(step);
            }
        }
        found.into_values().collect()
    }
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// Operations, in the unit that suits them.
fn operations(n: f64) -> String {
    match n {
        n if n < 1e4 => format!("{n:.0} flop"),
        n if n < 1e7 => format!("{:.1} kflop", n / 1e3),
        n if n < 1e10 => format!("{:.1} Mflop", n / 1e6),
        n => format!("{:.1} Gflop", n / 1e9),
    }
}

/// Modules behind what is in them; empty where none are known.
fn behind(modules: &str) -> String {
    if modules.is_empty() { String::new() } else { format!("  {modules}") }
}

/// Steps of repeated layers once, with how many there are.
fn counted(steps: &[OneSided]) -> Vec<AlikeOneSided> {
    let mut counts: IndexMap<String, AlikeOneSided> = IndexMap::new();
    for OneSided { step, us } in steps {
        let all = of_any_layer(step);
        let new = AlikeOneSided { step: step.clone(), count: 0, us: None };
        let alike = counts.entry(all.clone()).or_insert(new);
        alike.count += 1;
        alike.us = alike.us.map_or(*us, |sum| Some(sum + us.unwrap_or(0.0)));
        if alike.count > 1 {
            alike.step = all;
        }
    }
    counts.into_values().collect()
}

/// What a step computes, with `*` in the place of the numbers in its modules' paths.
fn of_any_layer(step: &str) -> String {
    let Some((modules, operators)) = step.rsplit_once(": ") else { return String::from(step) };
    let part = |part: &str| match part.split_once(", ") {
        Some((end, next)) => format!("{}, {next}", any_number(end)),
        None => any_number(part).to_owned(),
    };
    let modules: Vec<String> = modules.split('.').map(part).collect();
    format!("{}: {operators}", modules.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::page::tests::{call, layers_of_two};

    #[test]
    fn a_plan_differs_from_itself_in_nothing() {
        let plan = layers_of_two();
        let diff = plan.diff(&plan);
        assert!(diff.is_empty() && diff.regressions(0.0).is_empty());
        assert_eq!(diff.text(), "the plans are the same\n");
    }

    #[test]
    fn what_came_went_and_changed_is_said() {
        let old = layers_of_two();
        let mut new = old.clone();
        let removed = new.steps.pop().unwrap();
        if let Some(StepReport::Kernel { predicted_us, bytes_read, .. }) =
            new.steps.iter_mut().find(|step| matches!(step, StepReport::Kernel { .. }))
        {
            *predicted_us += 1000.0;
            *bytes_read += 64;
        }
        let diff = new.diff(&old);
        assert_eq!(diff.gone, [OneSided { step: computed(&removed), us: removed.us() }]);
        assert_eq!(diff.new, []);
        let [change] = &diff.changed[..] else { panic!("{:?}", diff.changed) };
        assert_eq!(change.more_us, 1000.0);
        assert_eq!(change.what.len(), 2, "{:?}", change.what);
        let grown: Vec<&str> = diff.regressions(0.0).iter().map(|total| total.name.as_str()).collect();
        assert!(grown.contains(&"predicted time of kernels, us"), "{grown:?}");
        assert!(diff.regressions(f64::MAX).is_empty());
        assert_eq!(old.diff(&new).new, diff.gone);
    }

    /// A product that libtorch takes 30 us for, and a kernel 20.
    #[test]
    fn kernels_in_the_place_of_calls_are_compared_by_the_time_of_all_steps() {
        let mut generated = layers_of_two();
        if let StepReport::Kernel { predicted_us, .. } = &mut generated.steps[2] {
            *predicted_us = 20.0;
        }
        let mut library = generated.clone();
        (library.kernels_fused, library.extern_ops) = (7, 1);
        library.steps[2] = call("aten::relu #2", Some(30.0));
        if let (StepReport::Extern { modules, .. }, StepReport::Kernel { modules: own, .. }) =
            (&mut library.steps[2], &generated.steps[2])
        {
            modules.clone_from(own);
        }
        let grown = |diff: &PlanDiff| {
            diff.regressions(0.05).iter().map(|total| total.name.clone()).collect::<Vec<_>>()
        };
        let better = generated.diff(&library);
        assert_eq!((better.changed[0].more_us, grown(&better)), (-10.0, vec![]));
        let worse = library.diff(&generated);
        assert_eq!(worse.changed[0].more_us, 10.0);
        assert_eq!(grown(&worse), ["known time of all steps, us", "libtorch calls"]);
        // Of a call of which nothing is known, the sums are not of the same steps.
        if let StepReport::Extern { predicted_us, .. } = &mut library.steps[2] {
            *predicted_us = None;
        }
        let unknown = generated.diff(&library);
        assert_eq!((unknown.changed[0].more_us, grown(&unknown)), (0.0, vec![]));
    }

    #[test]
    fn reasons_cuts_and_code_are_compared() {
        let old = layers_of_two();
        let mut new = old.clone();
        // What is measured in each compilation is no other reason.
        new.edges[0].verdict = String::from("cut: predicted 8.5 us in one kernel, 4.0 us in two");
        assert!(new.diff(&old).is_empty());
        let mut second = old.edges[0].clone();
        (second.producer, second.consumer) =
            (String::from("aten::linear #4"), String::from("aten::linear #5"));
        let mut old = old;
        old.edges.push(second.clone());
        new.edges.push(second);
        for edge in &mut new.edges {
            (edge.verdict, edge.fused) = (String::from("fused"), true);
        }
        new.programs[1] = String::from("kernel @k()\n  %1 = load %0");
        if let StepReport::Kernel { reason, .. } = &mut new.steps[0] {
            *reason = Some(String::from("measured: 1.0 us generated, 2.0 us in libtorch"));
        }
        let diff = new.diff(&old);
        assert_eq!((diff.changed.len(), diff.cuts.len()), (2, 2));
        let text = diff.text();
        let (_, changes) = text.split_once("\nchanged\n").unwrap();
        let expected = "    1 x embed: relu\n        reason: nothing said -> measured: 1.0 us generated, 2.0 us in libtorch\n    \
                        1 x h.0.norm: relu\n        block program: 1 -> 2 lines, 0 of them gone and 1 new\n\nedges\n    \
                        2 x linear -> linear, 256 B\n        cut: predicted 9.0 us in one kernel, 4.0 us in two -> fused\n";
        assert_eq!(changes, expected);
        // With other operators, edges are known by their names.
        new.ops_captured += 1;
        assert_eq!(new.diff(&old).cuts.len(), 2);
        // What both fuse is no change, whichever way.
        let mut other = new.clone();
        other.edges[0].verdict = String::from("fused as an epilogue");
        assert!(other.diff(&new).is_empty());
        assert_eq!(without_numbers("12.5 us, 3 of 4."), "# us, # of #");
    }

    /// Operators, modules and operations are written as in the text of a plan.
    #[test]
    fn edges_and_totals_read_as_those_of_plans() {
        let mut old = layers_of_two();
        for (operator, module) in [("relu", "h.0.norm"), ("linear", "h.0.mlp.up"), ("linear", "h.0.mlp.down")]
        {
            old.operators.push(crate::explain::OperatorReport {
                operator: format!("aten::{operator} #{}", old.operators.len()),
                module: module.into(),
                step: None,
                left_out: None,
            });
        }
        let mut new = old.clone();
        new.edges[0].verdict = String::from("cut: aten::cumsum #3 runs through libtorch");
        for step in &mut new.steps {
            if let StepReport::Kernel { flops, reason, .. } = step {
                *flops = 2_000_000;
                *reason = Some(String::from("aten::linear #1 needs it"));
            }
        }
        let diff = new.diff(&old);
        let text = diff.text();
        let operations = text.lines().find(|line| line.starts_with("operations ")).unwrap();
        let words: Vec<&str> = operations.split_whitespace().collect();
        assert_eq!(words[..6], ["operations", "256", "flop", "->", "16.0", "Mflop"]);
        let edges = "\nedges\n    1 x linear -> linear, 128 B  h.0.mlp.up -> h.0.mlp.down\n        cut: predicted 9.0 us in one \
                     kernel, 4.0 us in two -> cut: cumsum runs through libtorch\n";
        assert!(text.ends_with(edges), "{text}");
        assert!(
            text.contains("reason: nothing said -> linear needs it") && !text.contains("aten::"),
            "{text}"
        );
        let page = new.html_with_changes("a model", &diff);
        assert!(page.contains("<small class=\"module\">h.0.mlp.up -&#62; h.0.mlp.down</small>"), "{page}");
        assert_eq!([1e7, 1e10, 1e12].map(super::operations), ["10.0 Mflop", "10.0 Gflop", "1000.0 Gflop"]);
    }

    #[test]
    fn repeated_layers_that_changed_alike_are_one() {
        let old = layers_of_two();
        let mut new = old.clone();
        for step in &mut new.steps {
            let StepReport::Kernel { modules, grid, operators, .. } = step else { continue };
            *grid += u64::from(modules[0].contains("mlp"));
            operators[0] = operators[0].replace("relu", if modules[0] == "head" { "tanh" } else { "relu" });
        }
        let text = new.diff(&old).text();
        let (_, steps) = text.split_once("\ngone\n").unwrap();
        let expected = "    1 x head: relu, 2.0 us\n\nnew\n    1 x head: tanh, 2.0 us\n\nchanged\n    2 x h.*.mlp.up: relu\n        instances: 1 -> 2\n    \
                        2 x h.*.mlp.down: relu\n        instances: 1 -> 2\n";
        assert_eq!(steps, expected);
        assert_eq!(of_any_layer("h.0.a, h.1: x, y"), "h.*.a, h.*: x, y");
        assert_eq!(of_any_layer("x, y"), "x, y");
    }

    #[test]
    fn reports_of_other_versions_are_refused() {
        let text = serde_json::to_string(&layers_of_two()).unwrap();
        assert_eq!(Explanation::from_json(&text).unwrap().steps.len(), layers_of_two().steps.len());
        let newer = text.replacen("\"version\":1", "\"version\":2", 1);
        let error = Explanation::from_json(&newer).unwrap_err().to_string();
        assert!(error.contains("it has version 2, and this program reads 1"), "{error}");
        assert!(Explanation::from_json("{}").unwrap_err().to_string().contains("it says no version"));
        assert!(matches!(Explanation::from_json("["), Err(Error::Report(_))));
    }
}
