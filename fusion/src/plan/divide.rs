//! Which reductions are split: those that must be, and those that are predicted to pay.

use super::early::Early;
use super::ir::PlanError;
use super::liveness::finish;
use super::split::{in_blocks, split_counted, split_reductions};
use super::{group, mix_order};
use crate::graph::Graph;
use crate::hints::Hints;
use crate::machine::Profile;
use crate::place::Alignments;
use crate::rewrites::Rewrites;

/// The pass `split-reductions`: reductions whose rows are too few to keep the machine busy, and where that is predicted to pay
/// those of columns of a tensor whose rows are reduced as well, and of rows that a block program stores in parts.
pub(crate) fn divide_reductions(
    graph: &mut Graph,
    profile: &Profile,
    alignments: &Alignments,
    most_bytes: u64,
    (rewrites, hints): (&Rewrites, &Hints),
) -> Result<(), PlanError> {
    let mut divided = mix_order::divided(graph, profile);
    // On a GPU a kernel over rows reads them once, and nothing else multiplies while an instance computes its epilogue.
    divided.extend(in_blocks(graph).filter(|_| !profile.machine.is_gpu()));
    split_counted(graph, profile, rewrites);
    if divided.is_empty() || rewrites.is_spent() {
        return Ok(());
    }
    let (early, all) = (Early::default(), Rewrites::default());
    let plan =
        |graph: &Graph| group::plan(graph.clone(), profile, alignments, &early, &mut |_| None, (&all, hints));
    let mut least = plan(graph)?.predicted_us();
    let mut best = None;
    for mut form in divided {
        split_reductions(&mut form, profile);
        let plan = plan(&form)?;
        let predicted = plan.predicted_us();
        if predicted < least && finish(plan).holds_at_most(most_bytes) {
            (best, least) = (Some(form), predicted);
        }
    }
    if let Some(form) = best.filter(|_| rewrites.allow("split-reductions")) {
        *graph = form;
    }
    Ok(())
}
