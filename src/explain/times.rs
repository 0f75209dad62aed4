//! What steps take, and how that is known.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tilefuse_fusion::Profile;

use super::{CandidateReport, Explanation, StepReport};

/// How the time of a step is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TimeSource {
    /// It was measured in a profile of the plan.
    Profile,
    /// The call was measured by itself, when it was compared with kernels.
    Comparison,
    /// The cost model predicts it, from the time of a product that was measured by itself.
    MeasuredProduct,
    /// The cost model predicts it.
    CostModel,
    /// Memory takes as long for the operands and the results: the call may take longer.
    Bytes,
}

impl TimeSource {
    /// What is said of such a time.
    pub(super) fn text(self) -> &'static str {
        match self {
            TimeSource::Profile => "measured",
            TimeSource::Comparison => "measured by itself",
            TimeSource::MeasuredProduct => "predicted from the measured product",
            TimeSource::CostModel => "predicted",
            TimeSource::Bytes => "for its bytes at least",
        }
    }

    /// What a predicted time rests on.
    pub(super) fn basis(self) -> &'static str {
        match self {
            TimeSource::Profile | TimeSource::CostModel => "by the cost model",
            TimeSource::MeasuredProduct | TimeSource::Comparison => {
                "by the cost model, from the measured product"
            }
            TimeSource::Bytes => "for its bytes at least",
        }
    }
}

impl StepReport {
    /// Microseconds that it takes: as measured in a profile where it was, else as it is known otherwise (see [`StepReport::time`]);
    /// none of a libtorch call of which nothing is known.
    pub fn us(&self) -> Option<f64> {
        self.time().map(|(us, _)| us)
    }

    /// The same with how it is known.
    pub fn time(&self) -> Option<(f64, TimeSource)> {
        self.measured_us().map(|us| (us, TimeSource::Profile)).or_else(|| self.time_without_profile())
    }

    /// The same where the plan had not been profiled.
    pub fn time_without_profile(&self) -> Option<(f64, TimeSource)> {
        match self {
            StepReport::Kernel { predicted_us, .. } => Some((*predicted_us, self.prediction_source())),
            StepReport::Extern { predicted_us, candidates, .. } => {
                let call = library(candidates);
                let compared = call.and_then(|call| Some((call.measured_us?, TimeSource::Comparison)));
                compared.or_else(|| predicted_us.map(|us| (us, self.prediction_source())))
            }
        }
    }

    /// What the predicted time of the step rests on, which is [`TimeSource::CostModel`], [`TimeSource::MeasuredProduct`] or
    /// [`TimeSource::Bytes`].
    pub fn prediction_source(&self) -> TimeSource {
        match self {
            StepReport::Kernel { candidates, .. } => {
                let chosen = candidates.iter().filter(|candidate| candidate.chosen);
                let is_measured = chosen.filter_map(|candidate| candidate.measured_us).next().is_some();
                if is_measured { TimeSource::MeasuredProduct } else { TimeSource::CostModel }
            }
            StepReport::Extern { candidates, flops, view, .. } => {
                let is_priced = *view || library(candidates).is_some() || *flops > 0;
                if is_priced { TimeSource::CostModel } else { TimeSource::Bytes }
            }
        }
    }

    /// Microseconds as measured in a profile.
    pub fn measured_us(&self) -> Option<f64> {
        match self {
            StepReport::Kernel { measured_us, .. } | StepReport::Extern { measured_us, .. } => *measured_us,
        }
    }

    /// Whether it is a libtorch call.
    pub(super) fn is_extern(&self) -> bool {
        matches!(self, StepReport::Extern { .. })
    }

    /// What stands before a time that is not that of the step in its place: of a libtorch call that was not profiled.
    pub(super) fn about(&self) -> &'static str {
        if self.is_extern() && self.measured_us().is_none() { "~" } else { "" }
    }
}

impl Explanation {
    /// Microseconds of all steps of which they are known.
    pub(super) fn known_us(&self) -> f64 {
        self.steps.iter().filter_map(StepReport::us).sum()
    }

    /// Libtorch calls of which no time is known.
    pub(super) fn unknown(&self) -> usize {
        self.steps.iter().filter(|step| step.us().is_none()).count()
    }
}

/// Libtorch's call, of what was compared with it.
fn library(candidates: &[CandidateReport]) -> Option<&CandidateReport> {
    candidates.iter().find(|other| other.schedule.is_none())
}

/// What a libtorch call is predicted to take: as when it was compared with kernels, else what its arithmetic takes or its operands and
/// results, of so many bytes, whichever is more; none where these are not known. One that makes a `view` alone moves nothing.
pub(super) fn predicted_call_us(
    candidates: &[CandidateReport],
    (flops, bytes): (u64, u64),
    view: bool,
    profile: Option<&Profile>,
) -> Option<f64> {
    if let Some(call) = library(candidates) {
        return Some(call.predicted_us);
    }
    if view {
        return Some(profile?.launch_us);
    }
    let profile = profile.filter(|_| bytes > 0)?;
    let computing = flops as f64 / profile.products.aligned;
    let moving = bytes as f64 / profile.bandwidth;
    Some(computing.max(moving) / 1e3 + profile.launch_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::page::tests::{call, layers_of_two};

    fn compared(predicted_us: f64, measured_us: Option<f64>) -> CandidateReport {
        CandidateReport {
            operator: String::from("aten::linear #1"),
            schedule: None,
            predicted_us,
            measured_us,
            chosen: true,
        }
    }

    #[test]
    fn calls_are_predicted_by_what_they_compute_or_move() {
        let mut profile = Profile::host(2);
        (profile.bandwidth, profile.products.aligned, profile.launch_us) = (10.0, 100.0, 2.0);
        let of = |work: (u64, u64)| predicted_call_us(&[], work, false, Some(&profile));
        assert_eq!(of((0, 1_000_000)), Some(102.0));
        assert_eq!(of((100_000_000, 1_000_000)), Some(1002.0));
        assert_eq!(of((0, 0)), None);
        assert_eq!(predicted_call_us(&[], (0, 1_000_000), false, None), None);
        assert_eq!(predicted_call_us(&[], (0, 1_000_000), true, Some(&profile)), Some(2.0));
        assert_eq!(predicted_call_us(&[compared(7.0, None)], (0, 0), false, None), Some(7.0));
    }

    #[test]
    fn the_best_known_time_counts() {
        let step = |predicted_us, measured_us, candidates: &[CandidateReport], product: u64| {
            let mut step = call("aten::linear #1", predicted_us);
            let StepReport::Extern { measured_us: measured, candidates: all, flops, .. } = &mut step else {
                return None;
            };
            (*measured, *all, *flops) = (measured_us, candidates.to_vec(), product);
            step.time()
        };
        let alone = [compared(30.0, Some(40.0))];
        assert_eq!(step(Some(30.0), Some(50.0), &alone, 8), Some((50.0, TimeSource::Profile)));
        assert_eq!(step(Some(30.0), None, &alone, 8), Some((40.0, TimeSource::Comparison)));
        assert_eq!(step(Some(30.0), None, &[compared(30.0, None)], 0), Some((30.0, TimeSource::CostModel)));
        assert_eq!(step(Some(30.0), None, &[], 8), Some((30.0, TimeSource::CostModel)));
        assert_eq!(step(Some(30.0), None, &[], 0), Some((30.0, TimeSource::Bytes)));
        assert_eq!(step(None, None, &[], 0), None);
        let mut views = call("aten::split.Tensor #1", Some(2.0));
        if let StepReport::Extern { view, .. } = &mut views {
            *view = true;
        }
        assert_eq!(views.time(), Some((2.0, TimeSource::CostModel)));
    }

    /// A kernel's own time and that of its product alone are two, and say so.
    #[test]
    fn predictions_say_where_they_rest_on_a_measurement() {
        let mut plan = layers_of_two();
        let said = |plan: &Explanation| {
            let text = plan.text(false);
            let line = text.lines().find(|line| line.contains("kernel fused_2 ")).unwrap();
            (plan.steps[2].time(), line.rsplit_once(" B, ").unwrap().1.to_owned())
        };
        assert_eq!(said(&plan), (Some((2.0, TimeSource::CostModel)), String::from("2.0 us predicted")));
        if let StepReport::Kernel { candidates, .. } = &mut plan.steps[2] {
            *candidates = vec![compared(1.8, Some(1.5))];
        }
        let source = TimeSource::MeasuredProduct;
        let text = String::from("2.0 us predicted from the measured product");
        assert_eq!(said(&plan), (Some((2.0, source)), text));
        assert!(plan.html("x").contains("\"by the cost model, from the measured product\""));
        if let StepReport::Kernel { measured_us, .. } = &mut plan.steps[2] {
            *measured_us = Some(2.5);
        }
        let text = String::from("2.0 us predicted from the measured product, 2.5 us measured");
        assert_eq!(said(&plan), (Some((2.5, TimeSource::Profile)), text));
    }

    /// A call that takes most, one of which nothing is known, and kernels of 2 us each.
    #[test]
    fn what_is_left_to_libtorch_has_its_share() {
        let mut plan = layers_of_two();
        plan.steps[3] = call("aten::linear #3", Some(30.0));
        if let StepReport::Extern { candidates, .. } = &mut plan.steps[3] {
            *candidates = vec![compared(30.0, Some(36.0))];
        }
        plan.steps[6] = call("aten::sort #6", None);
        let totals = plan.totals();
        assert_eq!((totals.us, totals.untimed_calls, totals.predicted_us), (48.0, 1, 12.0));
        let text = plan.summary();
        let line =
            |start: &str| text.lines().find(|line| line.trim_start().starts_with(start)).unwrap().to_owned();
        assert!(line("3 ").contains("~75.0 %"), "{text}");
        assert_eq!(line("6 ").split_whitespace().nth(1), Some("?"));
        let heading = "steps: share of 48.0 us as predicted (1 of 8 steps from measured products, ~ libtorch's calls by themselves, ? not \
                       known and left out), how near the machine's limits (mem: memory), bytes";
        assert!(text.replace("\n  ", " ").contains(heading), "{text}");
        let goes = "time: libtorch 75.0 % in 2 steps (1 measured by itself, 1 not known), pointwise 25.0 % in 6 steps at";
        assert!(line("time").starts_with(goes), "{text}");
        let page = plan.html("a model");
        assert!(
            page.contains("<td data-value=\"36\">~36.0</td><td data-value=\"75\">~75.0 %</td>"),
            "{page}"
        );
        assert!(plan.text(false).contains("libtorch aten::linear #3 : f32[4,8], 36.0 us measured by itself"));
    }
}
