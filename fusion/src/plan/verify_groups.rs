//! The invariants of groups:
//! - their graph is well-formed;
//! - every node that is computed in memory or in a kernel is in one group and in no other, and what has no elements or is computed
//!   where it is used is in none;
//! - a group without a kernel is one libtorch call, and no such call is in a kernel;
//! - each group comes after those that it needs, and calls that draw random numbers do so in the graph's order;
//! - a kernel stores what other groups need of its nodes, and what must be in memory;
//! - what a group reads, and what is returned or written back, is a tensor of the caller's, or a group before it stores it.

use rustc_hash::{FxHashMap, FxHashSet};

use super::groups::{Groups, Unit, UnitKernel};
use super::ir::PlanError;
use crate::graph::{NodeId, Op, ValueRef};
use crate::place::Place;

/// Checks groups; linear in the nodes.
///
/// # Errors
/// [`PlanError::Invalid`] with the first invariant that does not hold.
pub fn verify_groups(groups: &Groups) -> Result<(), PlanError> {
    let in_graph = |error: crate::VerifyError| invalid("the graph", error.to_string());
    crate::verify(&groups.graph).map_err(in_graph)?;
    each_node_is_in_one(groups)?;
    let position: FxHashMap<usize, usize> =
        groups.in_sequence().enumerate().map(|(at, (unit, _))| (unit, at)).collect();
    let mut stored = given(groups);
    for (at, (number, unit)) in groups.in_sequence().enumerate() {
        let failed = |what: String| invalid(&format!("group {at}"), what);
        if let Some(early) = groups.next_units(number).find(|next| position.get(next) < Some(&at)) {
            return Err(failed(format!("is needed by group {:?} before it", position.get(&early))));
        }
        let read = reads(groups, unit).map_err(failed)?;
        if let Some(value) = read.into_iter().find(|value| !stored.contains(value)) {
            return Err(failed(format!("reads {}, which is not in memory", name(value))));
        }
        let written = writes(groups, unit);
        let inside: FxHashSet<NodeId> = unit.nodes.iter().copied().collect();
        let mut results = unit.nodes.iter().flat_map(|&node| groups.graph.results(node));
        if let Some(value) = results.find(|&v| groups.is_stored(v, &inside) && !written.contains(&v)) {
            return Err(failed(format!("does not store {}", name(value))));
        }
        stored.extend(written);
    }
    let graph = &groups.graph;
    let returned = graph.outputs.iter().copied().chain(graph.updates.iter().map(|update| update.value));
    match returned.map(|value| base(groups, value)).find(|value| !stored.contains(value)) {
        Some(value) => Err(invalid("the results", format!("need {}, which is not in memory", name(value)))),
        None => Ok(()),
    }
}

fn invalid(place: &str, what: String) -> PlanError {
    PlanError::Invalid { place: place.to_owned(), what }
}

fn name(value: ValueRef) -> String {
    format!("%{}.{}", value.node.index(), value.out)
}

fn each_node_is_in_one(groups: &Groups) -> Result<(), PlanError> {
    let mut unit_of: FxHashMap<NodeId, usize> = FxHashMap::default();
    for (number, unit) in groups.in_sequence() {
        for &node in &unit.nodes {
            if unit_of.insert(node, number).is_some() {
                return Err(invalid(&name(node.into()), String::from("is in two groups")));
            }
        }
    }
    if unit_of != groups.unit_of {
        return Err(invalid("the groups", String::from("are not those of their nodes")));
    }
    let wanted = |id: &NodeId| groups.is_compute(*id) && !groups.is_hollow(*id);
    match groups.order.iter().find(|id| wanted(id) != unit_of.contains_key(id)) {
        Some(&id) => Err(invalid(&name(id.into()), String::from("is in no group, or needs none"))),
        None => Ok(()),
    }
}

/// What is in memory before anything runs: tensors of the caller's, and what has no elements.
fn given(groups: &Groups) -> FxHashSet<ValueRef> {
    let given = |id: &NodeId| {
        matches!(groups.graph.node(*id).op, Op::Input(_) | Op::Param(_) | Op::Const(_))
            || groups.is_hollow(*id)
    };
    groups.order.iter().copied().filter(given).flat_map(|id| groups.graph.results(id)).collect()
}

/// The value in memory of which another is a view, or itself.
fn base(groups: &Groups, value: ValueRef) -> ValueRef {
    groups.place(value).as_ref().map_or(value, Place::base)
}

/// What a group reads, or why it cannot be one.
fn reads(groups: &Groups, unit: &Unit) -> Result<Vec<ValueRef>, String> {
    let is_extern = |id: &NodeId| groups.is_extern(*id);
    match (&unit.kernel, &unit.nodes[..]) {
        (Some(kernel), nodes) if !nodes.iter().any(is_extern) => {
            Ok(kernel.buffers().into_iter().filter(|buffer| !buffer.1).map(|buffer| buffer.0).collect())
        }
        (None, [node]) if is_extern(node) => {
            let Op::Aten(call) = &groups.graph.node(*node).op else { return Ok(Vec::new()) };
            let operands = groups.graph.operands(*node).into_iter().take(call.operand_count());
            Ok(operands.map(|value| base(groups, value)).collect())
        }
        (Some(_), _) => Err(String::from("has a kernel, and a call that runs through libtorch")),
        (None, _) => Err(String::from("has no kernel, and is not one call that runs through libtorch")),
    }
}

/// What a group stores.
fn writes(groups: &Groups, unit: &Unit) -> Vec<ValueRef> {
    match &unit.kernel {
        Some(kernel) => UnitKernel::buffers(kernel).into_iter().filter(|b| b.1).map(|b| b.0).collect(),
        None => unit.nodes.iter().flat_map(|&node| groups.graph.results(node)).collect(),
    }
}
