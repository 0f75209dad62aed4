//! Nodes with one meaning become one node.

use std::hash::{Hash, Hasher};

use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHasher};
use smallvec::SmallVec;

use crate::graph::{AtenCall, Graph, Node, NodeId, Op, ValueRef};
use crate::recording::Arg;
use crate::rewrite_limit::Rewrites;

/// Merges each node into an earlier one with the same operator, operands and result types. Calls that draw random
/// numbers or write stay, those with an argument that is known in words alone, and what only a kernel computes.
pub(super) fn cse(graph: &mut Graph, rewrites: &Rewrites) -> usize {
    let Some(order) = graph.topological() else { return 0 };
    let mut seen: IndexMap<u64, SmallVec<[NodeId; 1]>, FxBuildHasher> = IndexMap::default();
    let mut merged = 0;
    for id in order {
        match &graph.node(id).op {
            Op::Aten(call) if call.random || !call.writes.is_empty() || has_words(call) => continue,
            // What it computes is its kernel's.
            Op::Kernel(_) => continue,
            _ => {}
        }
        let operands = graph.operands(id);
        let same = seen.entry(key(graph.node(id), &operands)).or_default();
        match same.iter().copied().find(|&other| equal(graph, other, id, &operands)) {
            None => same.push(id),
            Some(_) if !rewrites.allow("cse") => {}
            Some(other) => {
                for out in 0..graph.node(id).outs.len() as u16 {
                    graph.replace_uses(ValueRef { node: id, out }, ValueRef { node: other, out });
                }
                graph.remove(id);
                merged += 1;
            }
        }
    }
    merged
}

fn equal(graph: &Graph, a: NodeId, b: NodeId, operands: &[ValueRef]) -> bool {
    let (x, y) = (graph.node(a), graph.node(b));
    same_op(&x.op, &y.op) && x.outs == y.outs && graph.operands(a).as_slice() == operands
}

/// Calls are the same whatever recorded call they come from; NaN arguments are not, nor zeros of both signs.
fn same_op(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::Aten(a), Op::Aten(b)) => {
            (&a.op, &a.overload, &a.args, &a.form) == (&b.op, &b.overload, &b.args, &b.form)
                && bits(a).eq(bits(b))
        }
        _ => a == b,
    }
}

/// Whether an argument is known in words alone, which two values may share.
fn has_words(call: &AtenCall) -> bool {
    call.args.iter().any(|(_, arg)| matches!(arg, Arg::Other(_)))
}

/// The floating-point arguments of a call.
fn bits(call: &AtenCall) -> impl Iterator<Item = u64> + '_ {
    let floats = call.args.iter().flat_map(|(_, arg)| match arg {
        Arg::Float(x) => std::slice::from_ref(x),
        Arg::Floats(list) => list,
        _ => &[],
    });
    floats.map(|x| x.to_bits())
}

fn key(node: &Node, operands: &[ValueRef]) -> u64 {
    let mut hasher = FxHasher::default();
    std::mem::discriminant(&node.op).hash(&mut hasher);
    match &node.op {
        Op::Scalar(literal) => literal.hash(&mut hasher),
        Op::Map(function) => function.hash(&mut hasher),
        Op::View(view) => view.hash(&mut hasher),
        Op::Input(n) | Op::Param(n) | Op::Const(n) => n.hash(&mut hasher),
        Op::Aten(call) => (&call.op, &call.overload).hash(&mut hasher),
        Op::Iota { dim } | Op::Concat { dim } | Op::Gather { dim } => dim.hash(&mut hasher),
        Op::Reduce { combine, dims } => (combine, dims).hash(&mut hasher),
        Op::Contract(pairs) => pairs.hash(&mut hasher),
        Op::Kernel(kind) => kind.hash(&mut hasher),
        Op::Cast => {}
    }
    node.outs.hash(&mut hasher);
    operands.hash(&mut hasher);
    hasher.finish()
}
