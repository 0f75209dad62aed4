//! Which reductions are made in two steps because that is predicted to pay.

use super::ir::Plan;
use super::mix_order;
use super::split::{in_blocks, split_reductions};
use crate::graph::Graph;
use crate::machine::Profile;
use crate::rewrite_limit::Rewrites;

/// The pass `divide-reductions`: makes reductions of columns of a tensor whose rows are reduced as well, or of rows that a block
/// program stores in parts, in two steps, where that is predicted to pay. `plan` makes the plan of a graph.
pub(crate) fn divide_reductions<E>(
    graph: &mut Graph,
    profile: &Profile,
    most_bytes: u64,
    rewrites: &Rewrites,
    plan: &mut dyn FnMut(Graph) -> Result<Plan, E>,
) -> Result<(), E> {
    let mix_order = mix_order::divided(graph, profile).into_iter().map(|form| ("mix-order", form));
    let in_blocks = in_blocks(graph).map(|form| ("rows", form));
    let divided: Vec<(&'static str, Graph)> = mix_order.chain(in_blocks).collect();
    if divided.is_empty() || rewrites.is_spent() {
        return Ok(());
    }
    let mut planned = |graph: &Graph| {
        let mut graph = graph.clone();
        split_reductions(&mut graph, profile);
        plan(graph)
    };
    let mut least = planned(graph)?.predicted_us();
    let mut best = None;
    for (name, form) in divided {
        let plan = planned(&form)?;
        let predicted = plan.predicted_us();
        if predicted < least && plan.holds_at_most(most_bytes) {
            (best, least) = (Some((name, form)), predicted);
        }
    }
    if let Some((_, form)) = best.filter(|(name, _)| rewrites.allow(name)) {
        *graph = form;
    }
    Ok(())
}
