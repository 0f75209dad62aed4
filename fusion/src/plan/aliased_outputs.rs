//! Outputs that share memory with an input or another output.

use crate::graph::{AliasTarget, Graph};
use crate::rewrite_limit::Rewrites;

/// The pass `drop-aliased-outputs`: outputs that share memory with something else need no value of their own.
pub(crate) fn drop_aliased_outputs(graph: &mut Graph, rewrites: &Rewrites) {
    for at in 0..graph.aliases.len().min(graph.outputs.len()) {
        let Some(target) = graph.aliases[at].as_ref().map(|alias| alias.target) else { continue };
        let value = match target {
            AliasTarget::Node(node) => node.into(),
            AliasTarget::Output(other) => graph.outputs[other as usize],
        };
        if value != graph.outputs[at] {
            rewrites.require("drop-output");
            graph.outputs[at] = value;
        }
    }
    graph.remove_unused();
}
