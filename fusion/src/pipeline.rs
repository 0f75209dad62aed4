//! The passes from a functional graph to the primitive graph that plans are made of, in order.
//!
//! ```text
//! recognise-attention        matmul, softmax, matmul           -> scaled_dot_product_attention
//! split-unaligned-products   linear with odd rows, on a GPU    -> products of parts of it
//! lower                      calls                             -> primitive operators
//! simplify                   what simplify::PASSES lists       -> until nothing changes
//! select-library             contractions                      -> calls of libtorch, or products and their sums
//! simplify-selected          as simplify
//! ```

use crate::attention::{Facts, recognise_attention};
use crate::graph::Graph;
use crate::library::select_library;
use crate::lower::{LowerError, lower};
use crate::plan::Profile;
use crate::simplify::simplify;
use crate::unaligned::split_unaligned_products;

/// What passes know beside the graph.
pub struct Context<'a> {
    /// The machine.
    pub profile: &'a Profile,
    /// The tensors of the model.
    pub facts: &'a mut dyn Facts,
}

/// A pass over a graph; it returns how much it changed.
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// The pass.
    pub run: fn(&mut Graph, &mut Context<'_>) -> Result<usize, LowerError>,
}

/// The passes, in order.
pub const PASSES: &[Pass] = &[
    Pass { name: "recognise-attention", run: |graph, cx| Ok(recognise_attention(graph, cx.facts)) },
    Pass {
        name: "split-unaligned-products",
        run: |graph, cx| Ok(split_unaligned_products(graph, cx.profile)),
    },
    Pass { name: "lower", run: to_primitive },
    Pass { name: "simplify", run: |graph, _| Ok(simplify(graph)) },
    Pass { name: "select-library", run: |graph, _| Ok(select_library(graph)) },
    Pass { name: "simplify-selected", run: |graph, _| Ok(simplify(graph)) },
];

/// Runs [`PASSES`]; `after` sees the graph after each of them, by the pass's name.
///
/// # Errors
/// Where the graph is not well-formed.
pub fn run(
    mut graph: Graph,
    cx: &mut Context<'_>,
    after: &mut dyn FnMut(&'static str, &Graph),
) -> Result<Graph, LowerError> {
    for pass in PASSES {
        (pass.run)(&mut graph, cx)?;
        debug_assert_eq!(crate::verify(&graph), Ok(()), "after {}", pass.name);
        after(pass.name, &graph);
    }
    Ok(graph)
}

fn to_primitive(graph: &mut Graph, _: &mut Context<'_>) -> Result<usize, LowerError> {
    let before = graph.len();
    *graph = lower(graph)?;
    Ok(before)
}

/// The primitive graph of a functional one in text form.
#[cfg(test)]
pub(crate) fn primitive(text: &str, profile: &Profile) -> Graph {
    #![allow(clippy::unwrap_used, reason = "tests")]
    let mut cx = Context { profile, facts: &mut crate::attention::NoFacts };
    run(crate::parse_graph(text).unwrap(), &mut cx, &mut |_, _| {}).unwrap()
}
