//! What became of edges that two plans both have: fused or not, and why not.

use std::collections::VecDeque;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::without_numbers;
use crate::explain::{EdgeReport, Explanation, bytes, summary};

/// An edge that one of two plans fuses and the other does not, or that they do not fuse for different reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CutChange {
    /// The producing operator.
    pub producer: String,
    /// The consuming operator.
    pub consumer: String,
    /// What became of the edge in the older plan.
    pub old: String,
    /// What became of it in the newer one.
    pub new: String,
    /// Bytes of what the producer gives.
    pub bytes: u64,
}

/// Edges of repeated layers that changed alike.
pub(in crate::explain) struct AlikeCutChange<'a> {
    pub(in crate::explain) edge: String,
    pub(in crate::explain) old: &'a str,
    pub(in crate::explain) new: &'a str,
    pub(in crate::explain) count: usize,
    pub(in crate::explain) bytes: u64,
}

impl AlikeCutChange<'_> {
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
            old: old.verdict.clone(),
            new: edge.verdict.clone(),
            bytes: edge.bytes,
        })
    };
    new.edges.iter().filter_map(change).collect()
}

/// The changes, those between operators of the same names once.
pub(in crate::explain) fn alike(changes: &[CutChange]) -> Vec<AlikeCutChange<'_>> {
    let mut found: IndexMap<(String, String, String), AlikeCutChange<'_>> = IndexMap::new();
    for CutChange { producer, consumer, old, new, bytes } in changes {
        let edge = format!("{} -> {}", summary::short(producer), summary::short(consumer));
        let key = (edge.clone(), without_numbers(old), without_numbers(new));
        let none = AlikeCutChange { edge, old, new, count: 0, bytes: 0 };
        let change = found.entry(key).or_insert(none);
        (change.count, change.bytes) = (change.count + 1, change.bytes + bytes);
    }
    let mut found: Vec<_> = found.into_values().collect();
    found.sort_by_key(|change| std::cmp::Reverse(change.bytes));
    found
}
