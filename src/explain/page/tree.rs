//! The modules of a plan as boxes within boxes: what opens and closes on the page.
//!
//! A step belongs to the innermost module that all its modules are of. A module with one thing in it gets no box: the thing
//! takes its place.

use indexmap::IndexMap;
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
        let root = root.fold("");
        tree.add(root, String::new(), None);
        tree
    }

    fn add(&mut self, folded: Folded, label: String, parent: Option<usize>) -> Item {
        let (path, items) = match folded {
            Folded::Step(at) => {
                let own = parent.unwrap_or_default();
                if parent.is_none() {
                    self.groups.push(Group {
                        label,
                        path: String::new(),
                        parent,
                        items: vec![Item::Step(at)],
                    });
                }
                self.home[at] = own;
                return Item::Step(at);
            }
            Folded::Group(path, items) => (path, items),
        };
        let own = self.groups.len();
        self.groups.push(Group { label, path: path.clone(), parent, items: Vec::new() });
        let items = items.into_iter().map(|item| {
            let label = item.label(&path);
            self.add(item, label, Some(own))
        });
        self.groups[own].items = items.collect();
        Item::Group(own)
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

fn modules(step: &StepReport) -> &[String] {
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
    Group(String, Vec<Folded>),
}

impl Module {
    fn insert(&mut self, path: &[&str], step: usize) {
        match path.split_first() {
            None => self.steps.push(step),
            Some((part, rest)) => self.parts.entry((*part).to_owned()).or_default().insert(rest, step),
        }
    }

    fn fold(self, path: &str) -> Folded {
        let mut items: Vec<Folded> = self.steps.into_iter().map(Folded::Step).collect();
        for (part, module) in self.parts {
            let path = if path.is_empty() { part } else { format!("{path}.{part}") };
            items.push(module.fold(&path));
        }
        items.sort_by_cached_key(Folded::middle);
        match items.len() {
            1 => items.swap_remove(0),
            _ => Folded::Group(path.to_owned(), chunked(items, path)),
        }
    }
}

impl Folded {
    fn first(&self) -> usize {
        match self {
            Folded::Step(at) => *at,
            Folded::Group(_, items) => items.iter().map(Folded::first).min().unwrap_or_default(),
        }
    }

    fn last(&self) -> usize {
        match self {
            Folded::Step(at) => *at,
            Folded::Group(_, items) => items.iter().map(Folded::last).max().unwrap_or_default(),
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
            Folded::Group(_, items) => items.iter().for_each(|item| item.collect(steps)),
        }
    }

    /// What its box says within the one of a path.
    fn label(&self, outside: &str) -> String {
        match self {
            Folded::Group(path, _) if path != outside => {
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
            chunks.push(Folded::Group(path.to_owned(), rest.by_ref().take(size).collect()));
        }
        items = chunks;
    }
    items
}
