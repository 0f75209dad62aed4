//! Vertical fusion: producers and consumers in one kernel.
//!
//! ```text
//! 0: kernel: %2 = map add(%0, %1); stores %2
//! 1: kernel: %3 = map tanh(%2); stores %3       ->     0: kernel: %2, %3; stores %3
//! ```

use std::cmp::Reverse;

use super::groups::{Groups, Rules, UnitKernel};
use super::reasons::{Decision, Verdict};
use crate::graph::NodeId;
use crate::kernel::Refusal;
use crate::types::TensorType;

/// The pass `vertical-fusion`: merges along edges, operands before users; into each user first the operand of most bytes: what is
/// merged into it decides what else can be.
pub(crate) fn vertical_fusion(groups: &mut Groups, rules: Rules<'_>) {
    for consumer in groups.order.clone() {
        let Some(mut sources) = groups.sources.get(&consumer).cloned() else { continue };
        sources.sort_by_key(|&producer| Reverse(bytes_made(groups, producer)));
        for producer in sources {
            let verdict = try_edge(groups, producer, consumer, rules);
            let [a, b] = [producer, consumer].map(|end| groups.graph.node(end).origin);
            let demanded = rules.hints.demand(a, b);
            groups.decisions.push(Decision { producer, consumer, verdict, demanded });
        }
    }
}

/// The pass `retry-epilogues`: tries edges at block kernels once more, for a producer may have had users that have joined the
/// kernel since.
pub(crate) fn retry_epilogues(groups: &mut Groups, rules: Rules<'_>) {
    for at in 0..groups.decisions.len() {
        let Decision { producer, consumer, ref verdict, .. } = groups.decisions[at];
        let at_block_kernel = [producer, consumer].into_iter().any(|id| is_in_block_kernel(groups, id));
        if !verdict.is_fused() && at_block_kernel {
            groups.decisions[at].verdict = try_edge(groups, producer, consumer, rules);
        }
    }
}

/// Bytes of the largest result of a node.
fn bytes_made(groups: &Groups, id: NodeId) -> u64 {
    groups.graph.node(id).outs.iter().map(TensorType::bytes).max().unwrap_or(0)
}

fn try_edge(groups: &mut Groups, producer: NodeId, consumer: NodeId, rules: Rules<'_>) -> Verdict {
    let (Some(&a), Some(&b)) = (groups.unit_of.get(&producer), groups.unit_of.get(&consumer)) else {
        // One without elements is computed by no kernel.
        return Verdict::Illegal(Refusal::Empty);
    };
    match groups.kernels(a, b) {
        _ if a == b => Verdict::Fused,
        Err(verdict) => verdict,
        Ok(_) if groups.early.nodes.contains(&producer) => Verdict::Memory,
        Ok(_) => groups.try_merge(a, b, rules),
    }
}

fn is_in_block_kernel(groups: &Groups, id: NodeId) -> bool {
    let unit = groups.unit_of.get(&id).and_then(|&unit| groups.units[unit].as_ref());
    unit.is_some_and(|unit| matches!(unit.kernel, Some(UnitKernel::Block(_))))
}
