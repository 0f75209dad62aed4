//! What became of edges that two plans both have: fused or not, and why not.

use std::collections::VecDeque;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::without_numbers;
use crate::explain::operators::module_of;
use crate::explain::{EdgeReport, Explanation, bytes, summary};
use crate::paths::folded;

/// An edge that one of two plans fuses and the other does not, or that they do not fuse for different reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CutChange {
    /// The producing operator.
    pub producer: String,
    /// The consuming operator.
    pub consumer: String,
    /// The module of the producing operator; empty where nothing says so.
    #[serde(default)]
    pub producer_module: String,
    /// The module of the consuming one.
    #[serde(default)]
    pub consumer_module: String,
    /// What became of the edge in the older plan.
    pub old: String,
    /// What became of it in the newer one.
    pub new: String,
    /// Bytes of what the producer gives.
    pub bytes: u64,
}

/// Edges of repeated layers that changed alike.
pub(in crate::explain) struct AlikeCutChange {
    pub(in crate::explain) edge: String,
    /// The modules of their ends.
    pub(in crate::explain) modules: String,
    pub(in crate::explain) old: String,
    pub(in crate::explain) new: String,
    pub(in crate::explain) count: usize,
    pub(in crate::explain) bytes: u64,
}

impl AlikeCutChange {
    /// Of all of them.
    pub(in crate::explain) fn size(&self) -> String {
        bytes(self.bytes)
    }
}

/// The edges with another verdict than in an older plan, numbers in it left out; not those that both fuse, in whatever way. Operators are known by their numbers in plans of as many
/// operators, else by their names, in order.
pub(super) fn changes(old: &Explanation, new: &Explanation) -> Vec<CutChange> {
    let numbered = old.ops_captured == new.ops_captured;
    let key = |edge: &EdgeReport| match numbered {
        true => (edge.producer.clone(), edge.consumer.clone()),
        false => (summary::short(&edge.producer), summary::short(&edge.consumer)),
    };
    let mut before: IndexMap<_, VecDeque<&EdgeReport>> = IndexMap::new();
    for edge in &old.edges {
        before.entry(key(edge)).or_default().push_back(edge);
    }
    let change = |edge: &EdgeReport| {
        let old = before.get_mut(&key(edge)).and_then(VecDeque::pop_front)?;
        let is_fused_still = old.fused && edge.fused;
        let differs = !is_fused_still && without_numbers(&old.verdict) != without_numbers(&edge.verdict);
        differs.then(|| CutChange {
            producer: edge.producer.clone(),
            consumer: edge.consumer.clone(),
            producer_module: module_of(&new.operators, &edge.producer),
            consumer_module: module_of(&new.operators, &edge.consumer),
            old: old.verdict.clone(),
            new: edge.verdict.clone(),
            bytes: edge.bytes,
        })
    };
    new.edges.iter().filter_map(change).collect()
}

/// The changes, those between operators of the same names once.
pub(in crate::explain) fn alike(changes: &[CutChange]) -> Vec<AlikeCutChange> {
    let mut found: IndexMap<[String; 3], Vec<&CutChange>> = IndexMap::new();
    for change in changes {
        let edge = format!("{} -> {}", summary::short(&change.producer), summary::short(&change.consumer));
        let [old, new] = [&change.old, &change.new].map(|verdict| without_numbers(verdict));
        found.entry([edge, old, new]).or_default().push(change);
    }
    let alike = |([edge, ..], all): ([String; 3], Vec<&CutChange>)| {
        let modules = |of: fn(&CutChange) -> &str| folded(all.iter().map(|change| of(change)));
        let [from, to] =
            [modules(|change| &change.producer_module), modules(|change| &change.consumer_module)];
        AlikeCutChange {
            edge,
            modules: summary::between(&from, &to),
            old: summary::short(&all[0].old),
            new: summary::short(&all[0].new),
            count: all.len(),
            bytes: all.iter().map(|change| change.bytes).sum(),
        }
    };
    let mut found: Vec<_> = found.into_iter().map(alike).collect();
    found.sort_by_key(|change| std::cmp::Reverse(change.bytes));
    found
}
