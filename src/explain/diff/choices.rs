//! Which candidates two plans chose for products, convolutions and attention, and what of that rests on measurements.

use std::collections::VecDeque;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::explain::operators::module_of;
use crate::explain::{CandidateReport, Explanation, StepReport, summary};
use crate::paths::folded;

/// What stands over the changes.
pub(in crate::explain) const HEADING: &str = "other candidates chosen, with the times of all of them alone";

/// A product, a convolution or attention for which two plans chose different candidates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChoiceChange {
    /// The captured operator, as the newer plan names it.
    pub operator: String,
    /// Its module; empty where nothing says so.
    #[serde(default)]
    pub module: String,
    /// What the older plan chose.
    pub old: CandidateReport,
    /// What the newer one chose.
    pub new: CandidateReport,
}

/// Such changes of repeated layers.
pub(in crate::explain) struct AlikeChoiceChange {
    pub(in crate::explain) operator: String,
    /// Their modules.
    pub(in crate::explain) modules: String,
    /// What was chosen, with the time of all of them.
    pub(in crate::explain) old: String,
    pub(in crate::explain) new: String,
    pub(in crate::explain) count: usize,
}

/// What was chosen for each operator. Operators are known by their numbers in plans of as many operators, else by their names, in order.
fn chosen(plan: &Explanation, is_numbered: bool) -> IndexMap<String, VecDeque<&CandidateReport>> {
    let candidates = plan.steps.iter().flat_map(|step| match step {
        StepReport::Kernel { candidates, .. } | StepReport::Extern { candidates, .. } => candidates,
    });
    let mut found: IndexMap<String, VecDeque<&CandidateReport>> = IndexMap::new();
    for candidate in candidates.filter(|candidate| candidate.chosen) {
        let name = if is_numbered { candidate.operator.clone() } else { summary::short(&candidate.operator) };
        found.entry(name).or_default().push_back(candidate);
    }
    found
}

/// What both plans chose, of each operator that both have.
fn pairs<'a>(old: &'a Explanation, new: &'a Explanation) -> Vec<[&'a CandidateReport; 2]> {
    let is_numbered = old.ops_captured == new.ops_captured;
    let mut before = chosen(old, is_numbered);
    let now = chosen(new, is_numbered).into_iter();
    let pair = |(name, all): (String, VecDeque<&'a CandidateReport>)| {
        let old = before.shift_remove(&name).unwrap_or_default();
        old.into_iter().zip(all).map(|(old, new)| [old, new])
    };
    now.flat_map(pair).collect()
}

/// The operators for which another candidate was chosen.
pub(super) fn changes(old: &Explanation, new: &Explanation) -> Vec<ChoiceChange> {
    let changed = pairs(old, new).into_iter().filter(|[old, new]| old.schedule != new.schedule);
    let change = |[old, chosen]: [&CandidateReport; 2]| ChoiceChange {
        operator: chosen.operator.clone(),
        module: module_of(&new.operators, &chosen.operator),
        old: old.clone(),
        new: chosen.clone(),
    };
    changed.map(change).collect()
}

/// What of the differences may rest on measurements that came out otherwise.
pub(super) fn note(old: &Explanation, new: &Explanation) -> Option<String> {
    let rests = [old, new].map(rests_on_measurements);
    let other = pairs(old, new).into_iter().filter(|[old, new]| {
        let choice = |of: &CandidateReport| (of.schedule.clone(), of.measured_us, of.predicted_us);
        choice(old) != choice(new)
    });
    let count = other.count();
    (count > 0 && rests != [false; 2]).then(|| {
        let have = if count == 1 { "1 product has" } else { &format!("{count} products have") };
        format!(
            "{have} other measured times, or none in one of the plans, from which choices and predicted times follow; with `--products \
             predicted` plans rest on no measurement"
        )
    })
}

/// Whether a candidate of a plan was measured: others are judged by those that were.
fn rests_on_measurements(plan: &Explanation) -> bool {
    plan.steps.iter().any(|step| {
        let (StepReport::Kernel { candidates, .. } | StepReport::Extern { candidates, .. }) = step;
        candidates.iter().any(|candidate| candidate.measured_us.is_some())
    })
}

/// The changes, those between operators of the same names once.
pub(in crate::explain) fn alike(changes: &[ChoiceChange]) -> Vec<AlikeChoiceChange> {
    let mut found: IndexMap<_, Vec<&ChoiceChange>> = IndexMap::new();
    for change in changes {
        let key = (summary::short(&change.operator), &change.old.schedule, &change.new.schedule);
        found.entry(key).or_default().push(change);
    }
    let alike = |((operator, ..), all): ((String, _, _), Vec<&ChoiceChange>)| AlikeChoiceChange {
        operator,
        modules: folded(all.iter().map(|change| change.module.as_str())),
        old: text(all.iter().map(|change| &change.old)),
        new: text(all.iter().map(|change| &change.new)),
        count: all.len(),
    };
    found.into_iter().map(alike).collect()
}

/// Candidates with one schedule, with the time of all of them.
fn text<'a>(all: impl Iterator<Item = &'a CandidateReport> + Clone) -> String {
    let schedule = all.clone().next().and_then(|first| first.schedule.as_deref());
    let how = if all.clone().all(|one| one.measured_us.is_some()) { "measured" } else { "predicted" };
    let us: f64 = all.map(|one| one.measured_us.unwrap_or(one.predicted_us)).sum();
    format!("{}, {} {how}", schedule.unwrap_or("libtorch's call"), summary::time(us))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::page::tests::layers_of_two;

    fn with(choices: [(Option<&str>, Option<f64>); 2]) -> Explanation {
        let mut plan = layers_of_two();
        for (at, (schedule, measured_us)) in choices.into_iter().enumerate() {
            let (StepReport::Kernel { candidates, .. } | StepReport::Extern { candidates, .. }) =
                &mut plan.steps[at];
            candidates.push(CandidateReport {
                operator: format!("aten::linear #{at}"),
                schedule: schedule.map(String::from),
                predicted_us: 3.0,
                measured_us,
                chosen: true,
            });
        }
        plan
    }

    #[test]
    fn differences_that_rest_on_measurements_say_so() {
        let old = with([(Some("blocks of 8"), Some(2.0)), (Some("blocks of 8"), Some(2.5))]);
        assert!(old.diff(&old).is_empty() && old.diff(&old).notes.is_empty());
        let new = with([(None, Some(2.1)), (None, Some(2.2))]);
        let diff = new.diff(&old);
        assert_eq!(diff.choices.len(), 2);
        let note = "2 products have other measured times, or none in one of the plans, from which choices and predicted times follow; \
                    with `--products predicted` plans rest on no measurement";
        assert_eq!(diff.notes, [note]);
        let text = diff.text();
        let expected = format!(
            "\n{HEADING}\n    2 x linear\n        blocks of 8, 4.5 us measured -> libtorch's call, 4.3 us measured\n"
        );
        assert!(text.starts_with(note) && text.contains(&expected), "{text}");
        let page = new.html_with_changes("a model", &diff);
        assert!(
            page.contains("2 products have other measured times")
                && page.contains("s call, 4.3 us measured</td>")
        );
        // Another time of the same choice changes what is predicted.
        let slower = with([(Some("blocks of 8"), Some(2.4)), (Some("blocks of 8"), Some(2.5))]);
        let diff = slower.diff(&old);
        assert!(
            diff.choices.is_empty() && diff.notes[0].starts_with("1 product has other measured times"),
            "{:?}",
            diff.notes
        );
        // What was made of other types has other times by itself.
        let mut other = new.clone();
        other.machine.as_mut().unwrap().launch_us = 5.0;
        assert!(other.diff(&old).notes[0].starts_with("times are predicted from other figures"));
        assert_eq!(other.diff(&old).notes.len(), 1);
        // Without measurements, nothing rests on them.
        let predicted = [with([(None, None), (None, None)]), with([(Some("rows"), None), (None, None)])];
        let diff = predicted[1].diff(&predicted[0]);
        assert!(diff.choices.len() == 1 && diff.notes.is_empty());
    }
}
