//! How well the cost model's times are those that were measured.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::summary::time;
use super::{Explanation, StepReport};

/// How long threads may wait for a processor before the times say more of other processes than of the plan.
const MAX_WAITING: f64 = 0.1;

/// Predicted times of kernels beside measured ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prediction {
    /// Kernels, those of an outer loop together as one.
    pub kernels: usize,
    /// Their predicted microseconds.
    pub predicted_us: f64,
    /// Their measured microseconds.
    pub measured_us: f64,
    /// Spearman's rank correlation of the two, 1 where the cost model orders kernels as they are; none of fewer than three kernels, or
    /// where all take the same time.
    pub rank_correlation: Option<f64>,
    /// Measured microseconds of a whole call.
    #[serde(default)]
    pub call_us: Option<f64>,
    /// The part of these that is in no step, libtorch's calls among them: guards, memory and results. It is negative where times between
    /// steps took longer.
    #[serde(default)]
    pub unexplained: Option<f64>,
}

impl Explanation {
    /// Predicted times beside measured ones; none of a plan without kernels that were measured (see
    /// [`Fused::profile`](crate::Fused::profile)).
    pub fn prediction(&self) -> Option<Prediction> {
        let mut times: Vec<[f64; 2]> = Vec::new();
        for step in &self.steps {
            let StepReport::Kernel { predicted_us, measured_us: Some(measured), .. } = step else { continue };
            match times.last_mut() {
                // Of an outer loop, the first kernel has the time of all.
                Some([predicted, _]) if *measured == 0.0 => *predicted += predicted_us,
                _ => times.push([*predicted_us, *measured]),
            }
        }
        let sum = |at: usize| times.iter().map(|time| time[at]).sum();
        let [predicted, measured] = [0, 1].map(|at| ranks(times.iter().map(|time| time[at]).collect()));
        (!times.is_empty()).then(|| Prediction {
            kernels: times.len(),
            predicted_us: sum(0),
            measured_us: sum(1),
            rank_correlation: correlation(&predicted, &measured).filter(|_| times.len() > 2),
            call_us: self.call_us,
            unexplained: self.unexplained(),
        })
    }

    /// The part of a whole call's time that is in no step.
    fn unexplained(&self) -> Option<f64> {
        let call_us = self.call_us.filter(|&us| us > 0.0)?;
        Some(1.0 - self.totals().measured_us? / call_us)
    }

    /// The time of a whole call beside that of its steps, as a line, which says as well where others had the processors meanwhile; empty
    /// where it was not measured.
    pub(super) fn call_text(&self) -> String {
        let (Some(call), Some(steps), Some(part)) =
            (self.call_us, self.totals().measured_us, self.unexplained())
        else {
            return String::new();
        };
        let (call, steps) = (time(call), time(steps));
        let rest = match part {
            0.0.. => format!("of which steps take {steps}; {:.1} % are in none", 100.0 * part),
            _ => format!("steps timed one by one {steps}"),
        };
        let busy = self.waiting.filter(|&part| part > MAX_WAITING).map_or_else(String::new, |part| {
            format!(
                "; other processes had the processors: all threads together waited {part:.1} times as long as the profile took"
            )
        });
        format!("call: {call}, {rest}{busy}")
    }

    /// Predicted times beside measured ones as a line; empty where nothing was measured.
    pub(super) fn prediction_text(&self) -> String {
        self.prediction().map_or_else(String::new, |found| {
            let correlation =
                found.rank_correlation.map_or_else(String::new, |r| format!(", rank correlation {r:.2}"));
            format!(
                "cost model: {} kernels predicted at {}, measured at {}{correlation}",
                found.kernels,
                time(found.predicted_us),
                time(found.measured_us)
            )
        })
    }
}

/// The rank of each number; equal ones share the mean of theirs.
fn ranks(numbers: Vec<f64>) -> Vec<f64> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|&a, &b| numbers[a].total_cmp(&numbers[b]));
    let mut ranks = vec![0.0; numbers.len()];
    for same in order.chunk_by(|&a, &b| numbers[a] == numbers[b]) {
        let first = order.partition_point(|&at| numbers[at] < numbers[same[0]]);
        same.iter().for_each(|&at| ranks[at] = first as f64 + (same.len() - 1) as f64 / 2.0);
    }
    ranks
}

/// Pearson's correlation.
fn correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let mean = |numbers: &[f64]| numbers.iter().sum::<f64>() / numbers.len() as f64;
    let (of_a, of_b) = (mean(a), mean(b));
    let product = |x: &[f64], of_x: f64, y: &[f64], of_y: f64| {
        x.iter().zip(y).map(|(x, y)| (x - of_x) * (y - of_y)).sum::<f64>()
    };
    let spread = (product(a, of_a, a, of_a) * product(b, of_b, b, of_b)).sqrt();
    (spread > 0.0).then(|| product(a, of_a, b, of_b) / spread)
}

#[cfg(test)]
mod tests {
    use super::{correlation, ranks};
    use crate::explain::StepReport;
    use crate::explain::page::tests::{call, layers_of_two};

    #[test]
    fn equal_numbers_share_a_rank() {
        assert_eq!(ranks(vec![3.0, 1.0, 3.0, 2.0]), [2.5, 0.0, 2.5, 1.0]);
        assert_eq!(correlation(&ranks(vec![1.0, 2.0, 9.0]), &ranks(vec![1.0, 4.0, 5.0])), Some(1.0));
        assert_eq!(correlation(&[1.0, 1.0], &[1.0, 2.0]), None);
    }

    #[test]
    fn kernels_of_an_outer_loop_count_as_one() {
        let mut plan = layers_of_two();
        assert_eq!(plan.prediction(), None);
        assert_eq!(plan.prediction_text(), "");
        for (at, step) in plan.steps.iter_mut().enumerate() {
            let StepReport::Kernel { measured_us, predicted_us, .. } = step else { continue };
            (*predicted_us, *measured_us) =
                (1.0 + at as f64, Some(if at == 1 { 0.0 } else { 8.0 - at as f64 }));
        }
        let found = plan.prediction().unwrap();
        assert_eq!((found.kernels, found.predicted_us, found.measured_us), (7, 36.0, 29.0));
        // Times fall where the model says that they grow, but for the two that are one.
        assert!(found.rank_correlation.unwrap() < -0.99);
        assert_eq!(
            plan.prediction_text(),
            "cost model: 7 kernels predicted at 36.0 us, measured at 29.0 us, rank correlation -0.99"
        );
    }

    #[test]
    fn what_is_in_no_step_is_not_explained() {
        let mut plan = layers_of_two();
        plan.call_us = Some(40.0);
        assert_eq!(plan.call_text(), "");
        plan.steps.push(call("aten::sort #8", None));
        for step in &mut plan.steps {
            let (StepReport::Kernel { measured_us, .. } | StepReport::Extern { measured_us, .. }) = step;
            *measured_us = Some(4.0);
        }
        let found = plan.prediction().unwrap();
        // Libtorch's call is a step, and no kernel.
        assert_eq!((found.kernels, found.measured_us, found.call_us), (8, 32.0, Some(40.0)));
        assert!((found.unexplained.unwrap() - 0.1).abs() < 1e-9, "{found:?}");
        let line = "call: 40.0 us, of which steps take 36.0 us; 10.0 % are in none";
        assert_eq!(plan.call_text(), line);
        assert!(
            plan.summary().contains(line)
                && plan.text(false).contains(line)
                && plan.html("a model").contains(line)
        );
        plan.call_us = Some(30.0);
        assert!(plan.call_text().ends_with(", steps timed one by one 36.0 us"));
        plan.waiting = Some(0.05);
        assert!(plan.call_text().ends_with("36.0 us"));
        plan.waiting = Some(0.5);
        let busy = "; other processes had the processors: all threads together waited 0.5 times as long as the profile took";
        assert!(plan.call_text().ends_with(busy) && plan.summary().contains("all threads together"));
    }
}
