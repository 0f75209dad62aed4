//! Groups within a limit of memory.

use super::early::{self, Early};
use super::ir::{Plan, PlanError};
use super::tuner::Tuner;
use super::{group, late};
use crate::graph::Graph;
use crate::hints::Hints;
use crate::machine::Profile;
use crate::place::Alignments;
use crate::rewrites::Rewrites;

/// Bytes that a plan may always hold beyond: parts of sums, for which a reduction has two kernels.
const PARTIAL_SUMS_BYTES: u64 = 16 << 10;

/// The pass `group`: a plan that holds at most so many bytes, where another order, or kernels that end early or run late, make
/// one; else the one that holds least.
pub(crate) fn group_within(
    graph: Graph,
    profile: &Profile,
    alignments: &Alignments,
    most_bytes: u64,
    tuner: &mut Tuner<'_>,
    rules: (&Rewrites, &Hints),
) -> Result<Plan, PlanError> {
    let limited = |mut plan: Plan| {
        plan.limit_memory(most_bytes);
        plan.peak_bytes()
    };
    let most = most_bytes.saturating_add(PARTIAL_SUMS_BYTES);
    let plan = group::plan(graph.clone(), profile, alignments, &Early::default(), tuner, rules)?;
    let mut least = limited(plan.clone());
    if least <= most {
        return Ok(plan);
    }
    let late = |early: &Early, tuner: &mut Tuner<'_>| {
        group::plan(graph.clone(), profile, alignments, early, tuner, rules).map(late::late)
    };
    let sunk = late::late(plan.clone());
    let peak = limited(sunk.clone());
    let plan = if peak < least { sunk } else { plan };
    least = least.min(peak);
    let mut best = None;
    let mut early = Early { as_recorded: true, ..Early::default() };
    for _ in 0..early::MAX_ROUNDS {
        if least <= most {
            break;
        }
        let tried = late(&early, &mut |_| None)?;
        let more = early::next(&tried, &early.nodes);
        let peak = limited(tried);
        if peak < least {
            (least, best) = (peak, Some(early.clone()));
        }
        if more.is_empty() {
            break;
        }
        early.nodes.extend(more);
    }
    match best {
        Some(early) => late(&early, tuner),
        None => Ok(plan),
    }
}
