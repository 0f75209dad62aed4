//! The modules of a plan as boxes within boxes: what opens and closes on the page.
//!
//! A step belongs to the innermost module that all its modules are of. A module with one thing in it gets no box: the thing
//! takes its place. Layers that repeat, with what lies between them, are in one box: `h.0`, `h.1`, .. in `h.* × 12`.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::explain::{Explanation, StepReport};

/// The most things in one box: steps of models without modules are put in boxes of consecutive ones.
const MAX_INSIDE: usize = 120;

/// What is in a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Item {
    /// A step, by position.
    Step(usize),
    /// A box, by position.
    Group(usize),
}

/// A box.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// What it says, without what the box around it says.
    pub(super) label: String,
    /// The path of the module.
    pub(super) path: String,
    /// The box around it.
    pub(super) parent: Option<usize>,
    /// Whether it holds layers that repeat.
    pub(super) repeats: bool,
    /// What is in it, in the order of steps as far as boxes have one.
    pub(super) items: Vec<Item>,
}

/// Boxes, the outermost first.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) groups: Vec<Group>,
    /// By step: the box that it is in.
    home: Vec<usize>,
}

impl Tree {
    pub(super) fn of(plan: &Explanation) -> Tree {
        let mut root = Module::default();
        for (at, step) in plan.steps.iter().enumerate() {
            root.insert(&common(modules(step)), at);
        }
        let mut tree = Tree { groups: Vec::new(), home: vec![0; plan.steps.len()] };
        let root = match root.fold("", &Layers::of(plan)) {
            // Something is around all others.
            Folded::Group(inner) if inner.layers == 0 => inner,
            only => Inner { path: String::new(), items: vec![only], layers: 0 },
        };
        tree.add_group(root, String::new(), None);
        tree
    }

    fn add(&mut self, folded: Folded, label: String, parent: usize) -> Item {
        match folded {
            Folded::Step(at) => {
                self.home[at] = parent;
                Item::Step(at)
            }
            Folded::Group(inner) => Item::Group(self.add_group(inner, label, Some(parent))),
        }
    }

    fn add_group(&mut self, inner: Inner, label: String, parent: Option<usize>) -> usize {
        let Inner { path, items, layers } = inner;
        let own = self.groups.len();
        self.groups.push(Group { label, path: path.clone(), parent, repeats: layers > 0, items: Vec::new() });
        let items = items.into_iter().map(|item| {
            let label = item.label(&path);
            self.add(item, label, own)
        });
        self.groups[own].items = items.collect();
        own
    }

    /// The boxes around a step, the innermost first.
    fn around(&self, step: usize) -> Vec<usize> {
        std::iter::successors(Some(self.home[step]), |&group| self.groups[group].parent).collect()
    }

    /// The way from a step to another: out of the boxes around the one, through the innermost box around both, and into those
    /// around the other.
    pub(super) fn crossings(&self, from: usize, to: usize) -> Vec<Crossing> {
        let (mut out, mut into) = (self.around(from), self.around(to));
        let mut meeting = 0;
        while let (Some(a), Some(b)) = (out.last(), into.last())
            && a == b
        {
            meeting = *a;
            out.pop();
            into.pop();
        }
        let inner = |step: usize, boxes: &[usize], at: usize| match at.checked_sub(1) {
            Some(at) => Item::Group(boxes[at]),
            None => Item::Step(step),
        };
        let leave = (0..out.len()).map(|at| (out[at], Some(inner(from, &out, at)), None));
        let through = (meeting, Some(inner(from, &out, out.len())), Some(inner(to, &into, into.len())));
        let enter = (0..into.len()).rev().map(|at| (into[at], None, Some(inner(to, &into, at))));
        leave.chain([through]).chain(enter).collect()
    }
}

/// What an edge goes through: a box, and from what in it to what in it; none where from or to the outside.
pub(super) type Crossing = (usize, Option<Item>, Option<Item>);

pub(super) fn modules(step: &StepReport) -> &[String] {
    match step {
        StepReport::Kernel { modules, .. } | StepReport::Extern { modules, .. } => modules,
    }
}

/// The parts that several paths begin with.
fn common(paths: &[String]) -> Vec<&str> {
    let Some((first, rest)) = paths.split_first() else { return Vec::new() };
    let mut parts: Vec<&str> = first.split('.').collect();
    for path in rest {
        let alike = parts.iter().zip(path.split('.')).take_while(|(a, b)| **a == *b).count();
        parts.truncate(alike);
    }
    parts
}

/// Modules with the steps in them, as the paths say.
#[derive(Default)]
struct Module {
    parts: IndexMap<String, Module>,
    steps: Vec<usize>,
}

/// The same without modules of one thing.
enum Folded {
    Step(usize),
    Group(Inner),
}

/// A box and what is in it.
struct Inner {
    path: String,
    items: Vec<Folded>,
    /// How many layers that repeat it holds.
    layers: usize,
}

/// What tells which layers are alike: those of the same modules, however they are fused.
struct Layers {
    /// By the path of each numbered module, the paths within it.
    within: FxHashMap<String, BTreeSet<String>>,
    /// By step, the path that all its modules are of.
    paths: Vec<String>,
}

impl Layers {
    fn of(plan: &Explanation) -> Layers {
        let mut within: FxHashMap<String, BTreeSet<String>> = FxHashMap::default();
        for path in plan.steps.iter().flat_map(modules) {
            let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
            for end in ends.filter(|&end| number(path[..end].rsplit('.').next()).is_some()) {
                let inner = path[end..].trim_start_matches('.').to_owned();
                within.entry(path[..end].to_owned()).or_default().insert(inner);
            }
        }
        Layers { within, paths: plan.steps.iter().map(|step| common(modules(step)).join(".")).collect() }
    }

    /// The layer of a module that an item is, or is all that there is of.
    fn layer(&self, item: &Folded, module: &str) -> Option<String> {
        let path = match item {
            Folded::Step(at) => &self.paths[*at],
            Folded::Group(inner) => &inner.path,
        };
        let rest = if module.is_empty() { path } else { path.strip_prefix(module)?.strip_prefix('.')? };
        let part = rest.split('.').next();
        number(part)?;
        Some(joined(module, part?))
    }

    /// Puts layers of a module that are alike, and steps between them, in one box.
    fn gather(&self, items: Vec<Folded>, module: &str) -> Vec<Folded> {
        let layers: Vec<Option<String>> = items.iter().map(|item| self.layer(item, module)).collect();
        let mut items: Vec<Option<Folded>> = items.into_iter().map(Some).collect();
        let mut gathered = Vec::new();
        let mut at = 0;
        while at < items.len() {
            let run = self.run(&layers[at..], |next| matches!(items[at + next], Some(Folded::Step(_))));
            let taken = items[at..at + run.max(1)].iter_mut().filter_map(Option::take);
            match run {
                0 | 1 => gathered.extend(taken),
                _ => {
                    let (path, items) = (joined(module, "*"), taken.collect());
                    let layers = layers[at..at + run].iter().flatten().count();
                    gathered.push(Folded::Group(Inner { path, items, layers }));
                }
            }
            at += run.max(1);
        }
        gathered
    }

    /// How many things from the first on are layers alike, or steps between two of them.
    fn run(&self, layers: &[Option<String>], is_step: impl Fn(usize) -> bool) -> usize {
        let parts = |at: usize| self.within.get(layers.get(at)?.as_ref()?);
        // What has no modules within is no layer.
        let Some(first) = parts(0).filter(|parts| parts.iter().any(|part| !part.is_empty())) else {
            return 0;
        };
        let mut run = 1;
        for at in 1..layers.len() {
            match parts(at) {
                Some(parts) if parts == first => run = at + 1,
                None if is_step(at) => {}
                _ => break,
            }
        }
        run
    }
}

fn number(part: Option<&str>) -> Option<usize> {
    part?.parse().ok()
}

fn joined(module: &str, part: &str) -> String {
    if module.is_empty() { part.to_owned() } else { format!("{module}.{part}") }
}

impl Module {
    fn insert(&mut self, path: &[&str], step: usize) {
        match path.split_first() {
            None => self.steps.push(step),
            Some((part, rest)) => self.parts.entry((*part).to_owned()).or_default().insert(rest, step),
        }
    }

    fn fold(self, path: &str, layers: &Layers) -> Folded {
        let mut items: Vec<Folded> = self.steps.into_iter().map(Folded::Step).collect();
        for (part, module) in self.parts {
            items.push(module.fold(&joined(path, &part), layers));
        }
        items.sort_by_cached_key(Folded::middle);
        let mut items = layers.gather(items, path);
        match items.len() {
            1 => items.swap_remove(0),
            _ => {
                let items = chunked(items, path);
                Folded::Group(Inner { path: path.to_owned(), items, layers: 0 })
            }
        }
    }
}

impl Folded {
    fn first(&self) -> usize {
        match self {
            Folded::Step(at) => *at,
            Folded::Group(Inner { items, .. }) => items.iter().map(Folded::first).min().unwrap_or_default(),
        }
    }

    fn last(&self) -> usize {
        match self {
            Folded::Step(at) => *at,
            Folded::Group(Inner { items, .. }) => items.iter().map(Folded::last).max().unwrap_or_default(),
        }
    }

    /// The median of its steps: steps of a module that are computed early do not put all of it before its operands.
    fn middle(&self) -> usize {
        let mut steps = Vec::new();
        self.collect(&mut steps);
        steps.sort_unstable();
        steps.get(steps.len() / 2).copied().unwrap_or_default()
    }

    fn collect(&self, steps: &mut Vec<usize>) {
        match self {
            Folded::Step(at) => steps.push(*at),
            Folded::Group(Inner { items, .. }) => items.iter().for_each(|item| item.collect(steps)),
        }
    }

    /// What its box says within the one of a path.
    fn label(&self, outside: &str) -> String {
        match self {
            Folded::Group(Inner { path, layers, .. }) if *layers > 0 => format!("{path} × {layers}"),
            Folded::Group(Inner { path, .. }) if path != outside => {
                let inner = path.strip_prefix(outside).unwrap_or(path);
                inner.trim_start_matches('.').to_owned()
            }
            _ => format!("steps {} to {}", self.first(), self.last()),
        }
    }
}

/// At most [`MAX_INSIDE`] things: where there are more, boxes of consecutive ones.
fn chunked(mut items: Vec<Folded>, path: &str) -> Vec<Folded> {
    while items.len() > MAX_INSIDE {
        let size = items.len().isqrt().min(MAX_INSIDE / 2);
        let mut rest = items.into_iter().peekable();
        let mut chunks = Vec::new();
        while rest.peek().is_some() {
            let items = rest.by_ref().take(size).collect();
            chunks.push(Folded::Group(Inner { path: path.to_owned(), items, layers: 0 }));
        }
        items = chunks;
    }
    items
}
