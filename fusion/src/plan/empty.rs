//! Tensors without elements: nothing computes them, and nothing reads them.
//!
//! ```text
//! %1 = map exp %0 : f32[0,3]        ->  %1 = scalar 0 : f32[0,3]
//! %2 = reduce sum %1 [0] : f32[3]   ->  0, expanded to f32[3]
//! %3 = concat %1 %4 0 : f32[2,3]    ->  %3 = concat %4 0 : f32[2,3]
//! ```
//! An empty value that a libtorch call or an output needs is only allocated.

use tilefuse_block::{Elem, Literal};

use crate::combiner::Combiner;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::rewrite_limit::Rewrites;

/// The pass `drop-empty`: replaces what is empty, and what reads it.
pub(crate) fn drop_empty(graph: &mut Graph, rewrites: &Rewrites) {
    let empty = |graph: &Graph, value: ValueRef| graph.ty(value).numel() == 0;
    if !graph.ids().any(|id| graph.node(id).outs.iter().any(|t| t.numel() == 0)) {
        return;
    }
    for id in graph.topological().unwrap_or_default() {
        if is_source(&graph.node(id).op) {
            continue;
        }
        if graph.node(id).outs.iter().all(|ty| ty.numel() == 0) {
            rewrites.require("allocate-only");
            allocate_only(graph, id);
        } else if graph.operands(id).iter().any(|&v| empty(graph, v)) {
            rewrites.require("drop-operands");
            without_empty_operands(graph, id);
        }
    }
    let updates = std::mem::take(&mut graph.updates);
    graph.updates = updates.into_iter().filter(|u| !empty(graph, u.value)).collect();
    graph.remove_unused();
}

fn is_source(op: &Op) -> bool {
    matches!(op, Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::Aten(_) | Op::Kernel(_))
}

fn allocate_only(graph: &mut Graph, id: NodeId) {
    let node = graph.node(id).clone();
    for (out, ty) in node.outs.iter().enumerate() {
        let Some(elem) = ty.dtype.elem() else { return };
        let hollow = graph.add(Op::Scalar(Literal::of(elem, 0.0)), &[], [ty.clone()], node.origin);
        graph.replace_uses(ValueRef { node: id, out: out as u16 }, hollow.into());
    }
    graph.remove(id);
}

fn without_empty_operands(graph: &mut Graph, id: NodeId) {
    let node = graph.node(id).clone();
    let Some(ty) = node.outs.first() else { return };
    let replacement = match &node.op {
        Op::Reduce { combine, .. } => return become_identity(graph, id, *combine),
        Op::View(View::Pad { fill, .. }) => graph.add_filled(*fill, ty, node.origin),
        Op::Concat { .. } => {
            let full: Vec<ValueRef> =
                graph.operands(id).into_iter().filter(|&v| graph.ty(v).numel() > 0).collect();
            graph.add(node.op.clone(), &full, [ty.clone()], node.origin).into()
        }
        _ => return,
    };
    graph.replace_uses(id.into(), replacement);
    graph.remove(id);
}

/// What a reduction makes of nothing.
fn become_identity(graph: &mut Graph, id: NodeId, combine: Combiner) {
    let node = graph.node(id).clone();
    let Some(elems) = node.outs.iter().map(|ty| ty.dtype.elem()).collect::<Option<Vec<Elem>>>() else {
        return;
    };
    for (out, (ty, literal)) in node.outs.iter().zip(combine.identity(&elems)).enumerate() {
        let value = graph.add_filled(literal, ty, node.origin);
        graph.replace_uses(ValueRef { node: id, out: out as u16 }, value);
    }
    graph.remove(id);
}
