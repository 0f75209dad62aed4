//! Library selection: contractions as calls of libtorch, those of [products](product) and of
//! [convolutions](conv), or as products and their sums.
//!
//! ```text
//! %3 = contract sum[1]x[1](%0, %1) : f32[8,16]      ->   %3 = aten::linear(input=%0, weight=%1, bias=%2) : bf16[8,16]
//! %4 = map add(%3, cast %2 broadcast) : f32[8,16]
//! %5 = cast(%4) : bf16[8,16]
//!
//! %2 = contract sum[1]x[1](%0, %1) : f32[1,16]      ->   %2 = map mul(cast %0 broadcast, cast %1 broadcast) : f32[1,16,64]
//!                                                        %3 = reduce sum[2](%2) : f32[1,16]
//! ```
//!
//! A contraction that does as little for each element that it reads as a reduction does is one: that of vectors, and on a GPU
//! that of a matrix, read along its rows, and a vector, for which libtorch's kernels are made for more rows. It takes what
//! surrounds it with it.

mod conv;
mod product;
#[cfg(test)]
mod tests;

use self::conv::Convolution;
use self::product::Contract;
use crate::graph::{Graph, NodeId, Op};
use crate::rewrite_limit::Rewrites;

/// Turns every contraction of a primitive graph into a call of libtorch or into products and their sums; returns how many
/// there were. Epilogues in calls are counted as rewrites: without one, the call is of the contraction alone.
pub(crate) fn select_library(graph: &mut Graph, rewrites: &Rewrites) -> usize {
    let is_contract = |id: &NodeId| matches!(graph.node(*id).op, Op::Contract(_));
    let all: Vec<NodeId> = graph.ids().filter(is_contract).collect();
    for &id in &all {
        let Some(contract) = Contract::of(graph, id) else { continue };
        if let Some(convolution) = Convolution::of(graph, &contract) {
            convolution.as_calls(graph, rewrites);
        } else if contract.is_reduction(graph) || !contract.has_call(graph) {
            let sums = contract.as_sums(graph);
            graph.replace_uses(id.into(), sums);
        } else {
            contract.as_calls(graph, rewrites);
        }
    }
    if !all.is_empty() {
        graph.remove_unused();
    }
    all.len()
}
