//! By how much results of a plan's kernels differ from eager's: a plan in which they are kept, beside libtorch's operators one by one.

use std::fmt::Write;

use serde::Serialize;

use crate::{Explanation, StepReport};

/// Differences of the results of kernels.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Differences {
    /// How many results were compared.
    pub(super) compared: usize,
    /// The kernel whose result differs most; none where all are as eager's.
    pub(super) kernel: Option<Kernel>,
}

/// A kernel with a result that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Kernel {
    /// Its position among the steps.
    pub(super) step: usize,
    pub(super) name: String,
    pub(super) operators: Vec<String>,
    pub(super) modules: Vec<String>,
    /// The operator whose result it is.
    pub(super) result: String,
    /// Its largest difference, relative to the largest element; none where NaN, infinities or integers differ.
    pub(super) difference: Option<f64>,
}

/// The operators whose results kernels write.
pub(super) fn written(plan: &Explanation) -> Vec<String> {
    let kernels = plan.steps.iter().filter(|step| matches!(step, StepReport::Kernel { .. }));
    let mut written: Vec<String> = kernels.flat_map(results).map(String::from).collect();
    written.sort_unstable();
    written.dedup();
    written
}

/// The operators whose results a step writes. Values that no operator made have no position.
fn results(step: &StepReport) -> impl Iterator<Item = &str> {
    let (StepReport::Kernel { writes, .. } | StepReport::Extern { writes, .. }) = step;
    writes.iter().map(|tensor| &*tensor.name).filter(|name| name.contains(" #"))
}

impl Differences {
    /// Those of a plan in which results have a tolerance that nothing exceeds.
    pub(super) fn of(plan: &Explanation) -> Differences {
        let mut found = Differences::default();
        let mut most = 0.0;
        for tolerance in &plan.tolerances {
            let writer = plan.steps.iter().rposition(|step| results(step).any(|name| name == tolerance.part));
            let Some(step) = writer else { continue };
            let StepReport::Kernel { name, operators, modules, .. } = &plan.steps[step] else { continue };
            found.compared += 1;
            let difference = tolerance.difference.unwrap_or(f64::INFINITY);
            if difference > most {
                most = difference;
                found.kernel = Some(Kernel {
                    step,
                    name: name.clone(),
                    operators: operators.clone(),
                    modules: modules.clone(),
                    result: tolerance.part.clone(),
                    difference: tolerance.difference,
                });
            }
        }
        found
    }

    /// For a reader.
    pub(super) fn text(&self) -> String {
        let Differences { compared, kernel } = self;
        let Some(Kernel { step, name, operators, modules, result, difference }) = kernel else {
            return match compared {
                0 => String::from("no result of a kernel could be compared with eager's\n"),
                _ => format!("each of {compared} results of kernels is eager's\n"),
            };
        };
        let by = match difference {
            Some(difference) => format!("by {difference:.1e} of its largest element"),
            None => String::from("in NaN, infinities or integers"),
        };
        let mut text = format!(
            "of {compared} results of kernels that of {result} differs most from eager's, {by}: step {step}, {name}, which computes {}",
            operators.join(", ")
        );
        if !modules.is_empty() {
            let _ = write!(text, ", in {}", modules.join(", "));
        }
        text.push('\n');
        text
    }
}
