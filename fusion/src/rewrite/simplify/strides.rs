//! Which values may be replaced by ones with other strides.

use crate::graph::{Graph, NodeId, Op, ValueRef, View};

/// Whether a value may be read with other strides than its type says: no output, write-back or libtorch call reads
/// it, and no windows are taken of it. Images lie in memory as a model chose for its convolutions.
pub(crate) fn strides_are_free(graph: &Graph, value: ValueRef) -> bool {
    let kept = graph.outputs.contains(&value) || graph.updates.iter().any(|u| u.value == value);
    let reads = |node: NodeId| matches!(graph.node(node).op, Op::Aten(_)) || makes_windows(graph, node);
    !kept && !graph.users(value.node).iter().any(|&(user, _)| reads(user))
}

/// Whether a node makes windows of its operand, padded or cut.
fn makes_windows(graph: &Graph, node: NodeId) -> bool {
    match &graph.node(node).op {
        Op::View(View::Window(_)) => true,
        Op::View(View::Pad { .. } | View::Slice { .. }) => {
            graph.users(node).iter().any(|&(user, _)| makes_windows(graph, user))
        }
        _ => false,
    }
}

/// Makes uses of the node's result uses of `to`, where strides allow. Returns whether they do.
pub(super) fn replace(graph: &mut Graph, id: NodeId, to: ValueRef) -> bool {
    let from = ValueRef::from(id);
    if graph.ty(from).strides != graph.ty(to).strides && !strides_are_free(graph, from) {
        return false;
    }
    graph.replace_uses(from, to);
    true
}
