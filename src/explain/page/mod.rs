//! A plan as a page: one file, without a request to anything.
//!
//! Tables, totals and plots are written here, by a template. The graph and the details of a step are shown by the page's script
//! (`*.js`) from data in the page: the report as it is, and the boxes with the layers of what is in them.

#[cfg(test)]
mod browser;
#[cfg(test)]
mod devtools;
mod layout;
mod plots;
#[cfg(test)]
pub(super) mod tests;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use indexmap::{IndexMap, IndexSet};
use serde::Serialize;

use self::layout::{Place, layers};
use self::tree::{Item, Tree};
use super::diff::choices::{self, AlikeChoiceChange};
use super::diff::cuts::AlikeCutChange;
use super::diff::{AlikeChange, AlikeOneSided};
use super::limits::{class, limit_sentence, limit_text, limits_text, of_limit, where_time_goes};
use super::operators::module_of;
use super::summary::{Alike, alike, short, time};
use super::{Explanation, PlanDiff, StepReport, TensorReport, TotalChange, bytes, counted};
use crate::paths::{common_prefix, folded};

/// One module: its parts share their names.
const SCRIPTS: [&str; 5] = [
    include_str!("data.js"),
    include_str!("graph.js"),
    include_str!("details.js"),
    include_str!("code.js"),
    include_str!("plan.js"),
];

/// The page of a plan, with what is different from an older one where that is given.
pub(super) fn page(plan: &Explanation, title: &str, changes: Option<&PlanDiff>) -> String {
    let [timeline, eager_timeline] = plots::timelines(plan);
    let page = Page {
        title,
        time_goes: where_time_goes(plan),
        limits: limits_text(plan),
        prediction: plan.prediction_text(),
        call: plan.call_text(),
        style: concat!(include_str!("colours.css"), include_str!("plan.css")),
        scripts: SCRIPTS,
        data: embedded(&Data::of(plan)),
        totals: totals(plan),
        within: within(plan).trim_end_matches('.').to_owned(),
        rows: rows(plan),
        cuts: cuts(plan),
        shares: plots::shares(plan),
        timeline,
        left_out: eager_timeline.iter().filter(|part| part.at.is_none()).count(),
        eager_timeline,
        roofline: plots::roofline(plan),
        memory: plots::memory(plan),
        plan,
        changes: changes.map(Changes::of),
    };
    // Writing to a string does not fail.
    page.render().unwrap_or_default()
}

#[derive(Template)]
#[template(path = "plan.html")]
struct Page<'a> {
    title: &'a str,
    /// Where the time of a call goes.
    time_goes: String,
    /// What must be said of the machine's limits.
    limits: String,
    prediction: String,
    /// A whole call beside its steps.
    call: String,
    style: &'static str,
    scripts: [&'static str; 5],
    /// JSON that cannot end the element that it is in.
    data: String,
    totals: Vec<(&'static str, String)>,
    /// What the modules of all steps lie in, which their rows leave out.
    within: String,
    rows: Vec<Row<'a>>,
    cuts: Vec<Cut>,
    shares: Vec<plots::Share<'a>>,
    timeline: Vec<plots::Segment<'a>>,
    eager_timeline: Vec<plots::Segment<'a>>,
    /// How many of them are in no step.
    left_out: usize,
    roofline: Option<plots::Roofline<'a>>,
    memory: Option<plots::Memory>,
    plan: &'a Explanation,
    changes: Option<Changes<'a>>,
}

/// HTML of a text, in which what stands between backticks is code.
pub(crate) fn coded(text: impl AsRef<str>) -> String {
    let escaped = text.as_ref().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    if !escaped.matches('`').count().is_multiple_of(2) {
        return escaped;
    }
    let tags = ["<code>", "</code>"].into_iter().cycle();
    let mut parts = escaped.split('`');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.zip(tags).fold(first, |html, (part, tag)| html + tag + part)
}

/// What is different from an older plan.
struct Changes<'a> {
    is_empty: bool,
    notes: &'a [String],
    totals: &'a [TotalChange],
    /// What went and what came, by how it is headed, with how many there are.
    steps: [(&'static str, Vec<AlikeOneSided>); 2],
    changed: Vec<AlikeChange<'a>>,
    cuts: Vec<AlikeCutChange>,
    choices: Vec<AlikeChoiceChange>,
}

impl Changes<'_> {
    fn of(diff: &PlanDiff) -> Changes<'_> {
        let steps = [("Steps that went", diff.gone_alike()), ("Steps that came", diff.new_alike())];
        Changes {
            is_empty: diff.is_empty(),
            notes: &diff.notes,
            totals: &diff.totals,
            steps,
            changed: diff.changed_alike(),
            cuts: diff.cuts_alike(),
            choices: diff.choices_alike(),
        }
    }
}

/// A row of the table of cuts.
struct Cut {
    alike: Alike,
    /// The modules of what gives the value, and of what takes it.
    from: String,
    to: String,
    /// All of them, for a search.
    modules: String,
}

/// The cuts of a plan, alike ones once, with the modules of their ends.
fn cuts(plan: &Explanation) -> Vec<Cut> {
    let cut = |alike: Alike| {
        let edges = || alike.edges.iter().map(|&at| &plan.edges[at]);
        let from: BTreeSet<String> = edges().map(|edge| module_of(&plan.operators, &edge.producer)).collect();
        let to: BTreeSet<String> = edges().map(|edge| module_of(&plan.operators, &edge.consumer)).collect();
        let all: Vec<&str> = from.union(&to).map(String::as_str).collect();
        Cut { from: in_short(&from), to: in_short(&to), modules: all.join(" "), alike }
    };
    alike(plan).into_iter().map(cut).collect()
}

/// Modules by one path, `h.*.mlp`, or by a few.
fn in_short(modules: &BTreeSet<String>) -> String {
    folded(modules.iter().map(String::as_str))
}

/// A row of the table of steps.
struct Row<'a> {
    at: usize,
    class: &'static str,
    kind: String,
    name: &'a str,
    modules: String,
    operators: String,
    /// None where nothing is known of it.
    us: Option<f64>,
    share: Option<f64>,
    /// By the cost model.
    predicted_us: Option<f64>,
    /// What stands before these where they are of a call that was not profiled.
    about: &'static str,
    read: u64,
    written: u64,
    flops: u64,
    /// Of the time that the machine's limits ask for, how much of the time of the step that is.
    of_limit: Option<f64>,
    /// The same as it is said.
    of_limit_text: String,
    /// Of which limit that is.
    bound: &'static str,
}

impl Row<'_> {
    fn reads(&self) -> String {
        bytes(self.read)
    }

    fn writes(&self) -> String {
        bytes(self.written)
    }

    /// Millions of operations.
    fn mflop(&self) -> String {
        match self.flops {
            0 => String::new(),
            n if n < 10_000_000 => format!("{:.2}", n as f64 / 1e6),
            n => format!("{:.0}", n as f64 / 1e6),
        }
    }
}

fn rows(plan: &Explanation) -> Vec<Row<'_>> {
    let (all, within) = (plan.known_us(), within(plan));
    plan.steps.iter().enumerate().map(|(at, step)| row(plan, (all, &within), at, step)).collect()
}

/// What the modules of all steps lie in, with a dot behind it.
fn within(plan: &Explanation) -> String {
    common_prefix(plan.steps.iter().flat_map(tree::modules).map(String::as_str))
}

fn row<'a>(plan: &'a Explanation, (all, within): (f64, &str), at: usize, step: &'a StepReport) -> Row<'a> {
    let sum = |tensors: &[TensorReport]| tensors.iter().map(|tensor| tensor.bytes).sum();
    let (kind, name, operators, read, written) = match step {
        StepReport::Kernel { name, shape, operators, bytes_read, bytes_written, .. } => {
            let operators: Vec<String> = operators.iter().map(|o| short(o)).collect();
            (shape.to_string(), name, operators.join(", "), *bytes_read, *bytes_written)
        }
        StepReport::Extern { operator, reads, writes, .. } => {
            (String::from("libtorch"), operator, short(operator), sum(reads), sum(writes))
        }
    };
    let (StepReport::Kernel { modules, flops, .. } | StepReport::Extern { modules, flops, .. }) = step;
    let predicted_us = match step {
        StepReport::Kernel { predicted_us, .. } => Some(*predicted_us),
        StepReport::Extern { predicted_us, .. } => *predicted_us,
    };
    let modules: Vec<&str> = modules.iter().map(|path| path.strip_prefix(within).unwrap_or(path)).collect();
    let (us, of_limit) = (step.us(), of_limit(plan, step));
    Row {
        at,
        class: class(step),
        kind,
        name,
        modules: modules.join(", "),
        operators,
        us,
        share: us.map(|us| if all > 0.0 { 100.0 * us / all } else { 0.0 }),
        predicted_us,
        about: step.about(),
        read,
        written,
        flops: *flops,
        of_limit: of_limit.map(|of| of.part),
        of_limit_text: of_limit.map_or_else(String::new, |of| limit_text(plan, of)),
        bound: of_limit.map_or("", |of| of.bound.name()),
    }
}

fn totals(plan: &Explanation) -> Vec<(&'static str, String)> {
    let sums = plan.totals();
    let left_out = match sums.untimed_calls {
        0 => String::new(),
        calls => format!(", without {} of which nothing is known", counted(calls as u64, "libtorch call")),
    };
    let mut totals = vec![
        (if plan.is_measured() { "measured" } else { "predicted" }, time(sums.us) + &left_out),
        ("kernels", format!("{} ({} distinct)", plan.kernels_fused, plan.distinct_kernels)),
        ("libtorch calls", plan.extern_ops.to_string()),
        ("launches", plan.launches_fused.to_string()),
        ("eager's kernels", plan.kernels_eager.to_string()),
        ("moved by kernels", bytes(sums.bytes_read + sums.bytes_written)),
        ("peak memory", format!("{}, eager {}", bytes(plan.peak_bytes_fused), bytes(plan.peak_bytes_eager))),
    ];
    if plan.packed_bytes > 0 {
        totals.push(("prepacked weights", bytes(plan.packed_bytes)));
    }
    if let Some(state) = &plan.cuda_graph {
        totals.push(("CUDA graph", state.clone()));
    }
    totals
}

/// What the script of the page gets.
#[derive(Serialize)]
struct Data<'a> {
    plan: &'a Explanation,
    classes: Vec<&'static str>,
    /// By step, what it takes, and how that is known; none where it is not.
    times: Vec<Option<(f64, &'static str)>>,
    /// By step, what its predicted time rests on.
    predictions: Vec<&'static str>,
    /// By step, of its time what the machine's limits ask for, as a sentence.
    limits: Vec<Option<String>>,
    groups: Vec<Group>,
    links: Vec<Link>,
    /// By name of an operator, the module that it is of, where there is one.
    modules: BTreeMap<&'a str, String>,
}

/// The module of each operator that a report names.
fn modules_by_name(plan: &Explanation) -> BTreeMap<&str, String> {
    let mut names: BTreeSet<&str> =
        plan.edges.iter().flat_map(|edge| [edge.producer.as_str(), edge.consumer.as_str()]).collect();
    names.extend(plan.operators.iter().map(|known| known.operator.as_str()));
    for step in &plan.steps {
        match step {
            StepReport::Kernel { operators, .. } => names.extend(operators.iter().map(String::as_str)),
            StepReport::Extern { operator, .. } => _ = names.insert(operator),
        }
        let (StepReport::Kernel { reads, writes, candidates, .. }
        | StepReport::Extern { reads, writes, candidates, .. }) = step;
        names.extend(reads.iter().chain(writes).map(|tensor| tensor.name.as_str()));
        names.extend(candidates.iter().map(|candidate| candidate.operator.as_str()));
    }
    let known = names.into_iter().map(|name| (name, module_of(&plan.operators, name)));
    known.filter(|(_, module)| !module.is_empty()).collect()
}

/// A box, with the layers of what is in it.
#[derive(Serialize)]
struct Group {
    label: String,
    path: String,
    parent: Option<usize>,
    /// Whether it holds layers that repeat, which are shown once until it is opened.
    repeats: bool,
    /// From the top, each from the left, with the middle.
    layers: Vec<Vec<(Drawn, f64)>>,
}

/// What is drawn in a layer.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Drawn {
    Step(usize),
    Group(usize),
    /// An edge of the box that goes through.
    Way(usize),
}

/// What one step reads of another's results.
#[derive(Serialize)]
struct Link {
    from: usize,
    to: usize,
    bytes: u64,
    /// Positions of the plan's edges that were not fused between the two.
    cuts: Vec<usize>,
    /// The boxes that it goes through, from the inside of the first end's to the inside of the other's: the position of the edge
    /// in the box, and whether it goes against the order of what is in it.
    ways: Vec<(usize, usize, bool)>,
}

impl Data<'_> {
    fn of(plan: &Explanation) -> Data<'_> {
        let tree = Tree::of(plan);
        let mut links: IndexMap<(usize, usize), Link> = IndexMap::new();
        let link = |(from, to)| Link { from, to, bytes: 0, cuts: Vec::new(), ways: Vec::new() };
        for (to, step) in plan.steps.iter().enumerate() {
            let (StepReport::Kernel { reads, .. } | StepReport::Extern { reads, .. }) = step;
            for (from, bytes) in reads.iter().filter_map(|read| Some((read.step?, read.bytes))) {
                links.entry((from, to)).or_insert_with(|| link((from, to))).bytes += bytes;
            }
        }
        for (position, edge) in plan.edges.iter().enumerate().filter(|(_, edge)| !edge.fused) {
            if let (Some(from), Some(to)) = (edge.producer_step, edge.consumer_step)
                && from != to
            {
                links.entry((from, to)).or_insert_with(|| link((from, to))).cuts.push(position);
            }
        }
        let mut links: Vec<Link> = links.into_values().collect();
        let groups = groups(tree, &mut links);
        let classes = plan.steps.iter().map(class).collect();
        let limits =
            plan.steps.iter().map(|step| Some(limit_sentence(plan, of_limit(plan, step)?))).collect();
        let times =
            plan.steps.iter().map(|step| step.time().map(|(us, source)| (us, source.text()))).collect();
        let predictions = plan.steps.iter().map(|step| step.prediction_source().basis()).collect();
        Data { plan, classes, times, predictions, limits, groups, links, modules: modules_by_name(plan) }
    }
}

/// Lays out the inside of each box, and tells each link which way it goes. What comes from the outside of a box comes from a thing
/// before all others of it, and what goes there goes to a thing behind them; neither is drawn.
fn groups(tree: Tree, links: &mut [Link]) -> Vec<Group> {
    let inside: Vec<IndexSet<Item>> =
        tree.groups.iter().map(|group| group.items.iter().copied().collect()).collect();
    let mut edges: Vec<IndexSet<(usize, usize)>> = vec![IndexSet::new(); inside.len()];
    for link in links.iter_mut() {
        for (group, from, to) in tree.crossings(link.from, link.to) {
            let place = |item: Item| inside[group].get_index_of(&item).map_or(0, |at| at + 1);
            let (from, to) = (from.map_or(0, place), to.map_or(inside[group].len() + 1, place));
            if from != to {
                let (way, _) = edges[group].insert_full((from.min(to), from.max(to)));
                link.ways.push((group, way, from > to));
            }
        }
    }
    let all = tree.groups.iter().enumerate();
    all.map(|(at, group)| Group {
        label: group.label.clone(),
        path: group.path.clone(),
        parent: group.parent,
        repeats: group.repeats,
        layers: drawn(&inside[at], &edges[at]),
    })
    .collect()
}

/// The layers of a box with what is drawn in them.
fn drawn(inside: &IndexSet<Item>, edges: &IndexSet<(usize, usize)>) -> Vec<Vec<(Drawn, f64)>> {
    let drawn = |place| match place {
        Place::Way(edge) => Some(Drawn::Way(edge)),
        Place::Thing(at) => match inside.get_index(at.checked_sub(1)?)? {
            Item::Step(step) => Some(Drawn::Step(*step)),
            Item::Group(inner) => Some(Drawn::Group(*inner)),
        },
    };
    let layers = layers(inside.len() + 2, edges).into_iter();
    let layers =
        layers.map(|layer| layer.into_iter().filter_map(|(place, x)| Some((drawn(place)?, x))).collect());
    layers.filter(|layer: &Vec<_>| !layer.is_empty()).collect()
}

/// Data as JSON within a `script` element.
fn embedded(data: &Data<'_>) -> String {
    // Nothing in a report fails to serialize.
    serde_json::to_string(data).unwrap_or_default().replace('<', "\\u003c")
}
