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
mod strides;
#[cfg(test)]
mod tests;
mod views;

pub(crate) use literals::known;
pub(super) use strides::strides_are_free;

use crate::graph::Graph;
use crate::rewrite_limit::Rewrites;

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
