//! Plans within a limit of memory.

use super::early::{self, Early};
use super::ir::Plan;
use super::sink::sunk;
use crate::graph::Graph;
use crate::rewrite_limit::Rewrites;

/// Bytes that a plan may always hold beyond: parts of sums, for which a reduction has two kernels.
pub(super) const PARTIAL_SUMS_BYTES: u64 = 16 << 10;

/// The most bytes that a plan holds at a time where it is kept down to `most_bytes`.
pub(super) fn held_within(plan: &Plan, most_bytes: u64) -> u64 {
    let held = plan.peak_bytes();
    if held <= most_bytes {
        return held;
    }
    let mut plan = plan.clone();
    plan.limit_memory(most_bytes);
    plan.peak_bytes()
}

/// The pass `limit-memory`: in the place of a plan that holds more than it may one that holds less, where another order, or kernels
/// that end early, make one. `plan` makes the plan of a graph, with schedules that are tuned or predicted.
pub(crate) fn limit_memory<E>(
    whole: Plan,
    most_bytes: u64,
    rewrites: &Rewrites,
    plan: &mut dyn FnMut(Graph, Early, Schedules) -> Result<Plan, E>,
) -> Result<Plan, E> {
    let most = most_bytes.saturating_add(PARTIAL_SUMS_BYTES);
    let mut least = held_within(&whole, most_bytes);
    if least <= most || rewrites.is_spent() {
        return Ok(whole);
    }
    let mut planned =
        |early: &Early, schedules: Schedules| plan(whole.graph.clone(), early.clone(), schedules).map(sunk);
    let mut best = None;
    let mut early = Early { as_recorded: true, ..Early::default() };
    for _ in 0..early::MAX_ROUNDS {
        if least <= most {
            break;
        }
        let tried = planned(&early, Schedules::Predicted)?;
        let more = early::next(&tried, &early.nodes);
        let held = held_within(&tried, most_bytes);
        if held < least {
            (least, best) = (held, Some(early.clone()));
        }
        if more.is_empty() {
            break;
        }
        early.nodes.extend(more);
    }
    match best.filter(|_| rewrites.allow("limit-memory")) {
        Some(early) => planned(&early, Schedules::Tuned),
        None => Ok(whole),
    }
}

/// How the schedules of a plan are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schedules {
    /// By the cost model.
    Predicted,
    /// As the user of the pipeline asks for.
    Tuned,
}
