//! Faults of functionalization: the values that reads and write-backs get, and the memory that outputs share.

use tilefuse_fusion::{Graph, NodeId, ValueRef};

use super::Fault;

/// Where a fault can be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// An output's value or memory, by position.
    Output(usize),
    /// A write-back, by position.
    Update(usize),
    /// A node that reads a value.
    User(NodeId, ValueRef),
}

/// Where a fault can be.
pub(super) fn places(fault: Fault, graph: &Graph) -> Vec<Place> {
    let aliases = (0..graph.aliases.len()).filter(|&at| graph.aliases[at].is_some());
    match fault {
        Fault::UpdateMissed | Fault::UpdateStale => (0..graph.updates.len()).map(Place::Update).collect(),
        Fault::AliasMissed | Fault::AliasShifted => aliases.map(Place::Output).collect(),
        Fault::UseStale => {
            let outputs = (0..graph.outputs.len()).filter(|&at| written(graph, graph.outputs[at]));
            let reads = |id: NodeId| graph.operands(id).into_iter().map(move |value| (id, value));
            let uses = graph.ids().flat_map(reads).filter(|&(_, value)| written(graph, value));
            outputs.map(Place::Output).chain(uses.map(|(id, value)| Place::User(id, value))).collect()
        }
        _ => Vec::new(),
    }
}

/// The graph with a fault at a place.
pub(super) fn with_fault(fault: Fault, graph: &Graph, place: Place) -> Option<Graph> {
    let mut changed = graph.clone();
    match (fault, place) {
        (Fault::UpdateMissed, Place::Update(at)) => {
            changed.updates.remove(at);
        }
        (Fault::UpdateStale, Place::Update(at)) => {
            changed.updates[at].value = before(graph, graph.updates[at].value)?;
        }
        (Fault::AliasMissed, Place::Output(at)) => changed.aliases[at] = None,
        (Fault::AliasShifted, Place::Output(at)) => {
            let alias = changed.aliases[at].as_mut()?;
            alias.offset -= 1;
            if alias.ty.numel() == 0 || alias.offset < 0 {
                return None;
            }
        }
        (Fault::UseStale, Place::Output(at)) => changed.outputs[at] = before(graph, graph.outputs[at])?,
        (Fault::UseStale, Place::User(id, value)) => read_before(&mut changed, id, value)?,
        _ => return None,
    }
    Some(changed)
}

/// The value that a writing call, or a later write of a part, makes another value of.
fn before(graph: &Graph, value: ValueRef) -> Option<ValueRef> {
    let before = *graph.operands(value.node).first()?;
    (graph.ty(before) == graph.ty(value)).then_some(before)
}

/// Whether a value is what a write leaves.
fn written(graph: &Graph, value: ValueRef) -> bool {
    let writes = |origin: &str| origin.split(' ').next().is_some_and(|op| op.ends_with('_'));
    graph.origin(value.node).is_some_and(writes) && before(graph, value).is_some()
}

/// Puts a node in the place of `id` that reads `value` from before its write.
fn read_before(graph: &mut Graph, id: NodeId, value: ValueRef) -> Option<()> {
    let stale = before(graph, value)?;
    let operands: Vec<_> =
        graph.operands(id).into_iter().map(|v| if v == value { stale } else { v }).collect();
    let node = graph.node(id).clone();
    let new = graph.add(node.op, &operands, node.outs.clone(), node.origin);
    graph.node_mut(new).kernel = node.kernel;
    for out in 0..node.outs.len() as u16 {
        graph.replace_uses(ValueRef { node: id, out }, ValueRef { node: new, out });
    }
    graph.remove(id);
    Some(())
}
