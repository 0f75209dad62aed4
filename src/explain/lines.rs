//! The lines of a model's source that steps compute.

use indexmap::IndexSet;
use tilefuse_fusion::plan::{Plan, Step};

use crate::engine::nodes_of;
use crate::torch::{CallSite, Lines};

/// By step: the lines of source at which its operators are called, in order.
pub(super) fn step_lines(plan: &Plan, sites: &[CallSite]) -> Vec<Vec<String>> {
    let mut known = Lines::default();
    let lines = |step: &Step| {
        let mut lines: IndexSet<String> = IndexSet::new();
        let origins = nodes_of(step).iter().filter_map(|&node| plan.graph.node(node).origin);
        lines.extend(origins.filter_map(|origin| known.of(sites.get(origin as usize)?)));
        lines.into_iter().collect()
    };
    plan.steps.iter().map(lines).collect()
}
