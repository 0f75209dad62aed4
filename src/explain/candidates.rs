//! What products, convolutions and attention were compared with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tilefuse_fusion::NodeId;
use tilefuse_fusion::plan::Plan;

/// A kernel for a product, a convolution or attention, or libtorch's call of it, as it was compared with the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CandidateReport {
    /// The captured operator.
    pub operator: String,
    /// How the kernel computes it; none of libtorch's call.
    pub schedule: Option<String>,
    /// Time in microseconds that the cost model predicts of the operator alone, without neighbours in its kernel. The predicted time
    /// of the step is another one: of all that its kernel computes, from the measured time where there is one.
    pub predicted_us: f64,
    /// Measured time in microseconds, where it was: of the operator alone as well.
    pub measured_us: Option<f64>,
    /// Whether it was chosen.
    pub chosen: bool,
}

impl CandidateReport {
    /// Those of these nodes, the chosen one of each first, and then the quickest.
    pub(super) fn all(plan: &Plan, nodes: &[NodeId]) -> Vec<CandidateReport> {
        let of = |&node: &NodeId| {
            let compared = plan.graph.node(node).compared.iter();
            let mut all: Vec<CandidateReport> = compared
                .map(|other| CandidateReport {
                    operator: plan.graph.origin(node).unwrap_or_default().to_owned(),
                    schedule: other.schedule.clone(),
                    predicted_us: other.predicted_us,
                    measured_us: other.measured_us,
                    chosen: other.chosen,
                })
                .collect();
            let us = |other: &CandidateReport| other.measured_us.unwrap_or(other.predicted_us);
            all.sort_by(|a, b| b.chosen.cmp(&a.chosen).then(us(a).total_cmp(&us(b))));
            all
        };
        nodes.iter().flat_map(of).collect()
    }
}
