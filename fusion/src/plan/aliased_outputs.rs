//! Outputs that share memory with an input or another output.

use crate::graph::{AliasTarget, Graph};

/// The pass `drop-aliased-outputs`: outputs that share memory with something else need no value of their own.
pub(crate) fn drop_aliased_outputs(graph: &mut Graph) {
    for at in 0..graph.aliases.len().min(graph.outputs.len()) {
        match graph.aliases[at].as_ref().map(|a| a.target) {
            Some(AliasTarget::Node(node)) => graph.outputs[at] = node.into(),
            Some(AliasTarget::Output(other)) => graph.outputs[at] = graph.outputs[other as usize],
            None => {}
        }
    }
    graph.remove_unused();
}
