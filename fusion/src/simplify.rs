//! Rewrites of primitive graphs that keep every value's meaning, bit for bit.
//!
//! ```text
//! fold-views      permute(permute(x)) -> permute(x);  slice(slice(x)) -> slice(x);  reshape(x) of x's shape -> x
//! fold-literals   add(2.0, 3.0) -> 5.0;  cast(1) -> 1.0;  mul(x, 1) -> x;  div(x, 4.0) -> mul(x, 0.25)
//! share           two nodes with one meaning -> one node
//! drop            nodes that nothing reads -> gone
//! ```
//!
//! A value that an output, a write-back or a libtorch call reads keeps its strides.

mod cse;
mod literals;
#[cfg(test)]
mod tests;
mod views;

pub(crate) use literals::known;

use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::rewrites::Rewrites;

/// A rewrite of a graph; it returns how many nodes it changed, each of which it asks for.
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// The rewrite.
    pub run: fn(&mut Graph, &Rewrites) -> usize,
}

/// The passes in the order in which they run.
pub const PASSES: &[Pass] = &[
    Pass { name: "fold-views", run: views::fold_views },
    Pass { name: "fold-literals", run: literals::fold_literals },
    Pass { name: "cse", run: cse::cse },
    Pass { name: "drop", run: drop_unused },
];

/// Rounds after which simplification stops, whatever is left.
const MAX_ROUNDS: usize = 8;

/// Runs [`PASSES`] until none of them changes anything; returns how many nodes were changed.
pub fn simplify(graph: &mut Graph) -> usize {
    simplify_counted(graph, &Rewrites::default())
}

/// [`simplify`] with no more rewrites than may be made.
pub(crate) fn simplify_counted(graph: &mut Graph, rewrites: &Rewrites) -> usize {
    let mut all = 0;
    for _ in 0..MAX_ROUNDS {
        let mut changed = 0;
        for pass in PASSES {
            changed += (pass.run)(graph, rewrites);
            debug_assert_eq!(crate::verify(graph), Ok(()), "after {}", pass.name);
        }
        all += changed;
        if changed == 0 {
            break;
        }
    }
    all
}

fn drop_unused(graph: &mut Graph, _: &Rewrites) -> usize {
    let before = graph.len();
    graph.remove_unused();
    before - graph.len()
}

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
fn replace(graph: &mut Graph, id: NodeId, to: ValueRef) -> bool {
    let from = ValueRef::from(id);
    if graph.ty(from).strides != graph.ty(to).strides && !strides_are_free(graph, from) {
        return false;
    }
    graph.replace_uses(from, to);
    true
}
