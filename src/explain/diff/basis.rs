//! What two plans are compared by: like with like, and what is not alike is said.

use std::collections::BTreeMap;

use super::choices;
use crate::explain::{Explanation, MachineReport, OperatorReport, StepReport, summary};

/// How the times of steps are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Basis {
    /// As a profile of each plan measured them.
    Profile,
    /// As they are known without a profile, which not both plans have.
    NoProfile,
}

impl Basis {
    pub(super) fn of(old: &Explanation, new: &Explanation) -> Basis {
        if old.is_measured() && new.is_measured() { Basis::Profile } else { Basis::NoProfile }
    }

    /// Microseconds that a step takes.
    pub(super) fn us(self, step: &StepReport) -> Option<f64> {
        match self {
            Basis::Profile => step.us(),
            Basis::NoProfile => step.time_without_profile().map(|(us, _)| us),
        }
    }

    /// Of all steps of which that is known.
    pub(super) fn sum_us(self, plan: &Explanation) -> f64 {
        plan.steps.iter().filter_map(|step| self.us(step)).sum()
    }

    /// Steps of which it is not.
    pub(super) fn unknown(self, plan: &Explanation) -> usize {
        plan.steps.iter().filter(|step| self.us(step).is_none()).count()
    }

    /// What this sum is called.
    pub(super) fn total(self) -> &'static str {
        match self {
            Basis::Profile => "measured time of all steps, us",
            Basis::NoProfile => "known time of all steps, us",
        }
    }
}

/// What the plans were made of or with that is not the same.
pub(super) fn notes(old: &Explanation, new: &Explanation) -> Vec<String> {
    let profile = match (old.is_measured(), new.is_measured()) {
        (true, false) => Some("older"),
        (false, true) => Some("newer"),
        _ => None,
    };
    let profile = profile.map(|which| {
        format!(
            "only the {which} plan was profiled: times are compared as they are known without a profile, and no measured one with a predicted one"
        )
    });
    let made_with: Vec<String> = machines(old, new).into_iter().chain(types(old, new)).collect();
    // Other types and other figures of a machine have other times by themselves.
    let measured = if made_with.is_empty() { choices::note(old, new) } else { None };
    models(old, new).into_iter().chain(profile).chain(made_with).chain(measured).collect()
}

/// Where fewer than half of the operators of one plan are in the other: by their modules and names, or where one names no modules, by
/// their names.
fn models(old: &Explanation, new: &Explanation) -> Option<String> {
    let has_modules =
        [old, new].into_iter().all(|plan| plan.operators.iter().any(|op| !op.module.is_empty()));
    let counted = |plan: &Explanation| {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for OperatorReport { operator, module, .. } in &plan.operators {
            let module = if has_modules { module } else { "" };
            *counts.entry(format!("{module}: {}", summary::short(operator))).or_default() += 1;
        }
        counts
    };
    let (before, now) = (counted(old), counted(new));
    let both: usize =
        now.iter().map(|(name, &count)| count.min(before.get(name).copied().unwrap_or(0))).sum();
    let all = old.operators.len().min(new.operators.len());
    (2 * both < all).then(|| {
        format!("{both} of {all} operators are in both plans: these may be plans of different models")
    })
}

/// Figures of the machine from which times are predicted.
fn machines(old: &Explanation, new: &Explanation) -> Option<String> {
    let figures = |machine: &MachineReport| {
        [machine.gigabytes_per_s, machine.gigaops_per_s, machine.product_gigaops_per_s, machine.launch_us]
    };
    let (was, is) = (old.machine.as_ref()?, new.machine.as_ref()?);
    let how = |machine: &MachineReport| if machine.measured { "measured" } else { "typical" };
    (figures(was) != figures(is)).then(|| {
        format!("times are predicted from other figures of the machine: {} -> {} ones", how(was), how(is))
    })
}

/// Inputs of other types, and tensors of the model of other element types.
fn types(old: &Explanation, new: &Explanation) -> Vec<String> {
    let (before, now) = (sources(old), sources(new));
    let both = now.iter().filter_map(|(&name, &new)| Some((name, *before.get(name)?, new)));
    let mut notes = Vec::new();
    let mut counts: BTreeMap<[&str; 2], usize> = BTreeMap::new();
    for (name, old, new) in both {
        if name.starts_with("input ") {
            notes.extend((old != new).then(|| format!("{name}: {old} -> {new}")));
        } else {
            *counts.entry([old, new].map(element_type)).or_default() += 1;
        }
    }
    let changed = counts.into_iter().filter(|([old, new], _)| old != new);
    notes.extend(changed.map(|([old, new], count)| {
        let tensors = if count == 1 { "tensor" } else { "tensors" };
        format!("{count} {tensors} of the model: {old} -> {new}")
    }));
    notes
}

/// The types of the inputs and of the model's tensors that steps read, by name, prepacked or not.
fn sources(plan: &Explanation) -> BTreeMap<&str, &str> {
    let reads = plan.steps.iter().flat_map(|step| match step {
        StepReport::Kernel { reads, .. } | StepReport::Extern { reads, .. } => reads,
    });
    let from_outside = reads.filter(|read| read.step.is_none());
    from_outside.map(|read| (read.name.trim_end_matches(", prepacked"), read.ty.as_str())).collect()
}

/// What a type is of: `bf16` of `bf16[4,8]`.
fn element_type(ty: &str) -> &str {
    ty.split('[').next().unwrap_or(ty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::TensorReport;
    use crate::explain::page::tests::layers_of_two;

    fn profiled(mut plan: Explanation) -> Explanation {
        for step in &mut plan.steps {
            let (StepReport::Kernel { measured_us, .. } | StepReport::Extern { measured_us, .. }) = step;
            *measured_us = Some(5.0);
        }
        plan
    }

    #[test]
    fn measured_times_are_compared_with_measured_ones() {
        let plain = layers_of_two();
        let measured = profiled(plain.clone());
        let total = |new: &Explanation, old: &Explanation| {
            let diff = new.diff(old);
            let total =
                diff.totals.into_iter().find(|total| total.name.contains("time of all steps")).unwrap();
            (total.name, total.old, total.new, diff.notes)
        };
        let (name, old, new, notes) = total(&measured, &measured);
        assert_eq!((&*name, old, new, notes.len()), ("measured time of all steps, us", 40.0, 40.0, 0));
        for (old, new, which) in [(&plain, &measured, "newer"), (&measured, &plain, "older")] {
            let (name, was, is, notes) = total(new, old);
            assert_eq!((&*name, was, is), ("known time of all steps, us", 16.0, 16.0));
            let note =
                format!("only the {which} plan was profiled: times are compared as they are known without");
            assert!(notes.len() == 1 && notes[0].starts_with(&note), "{notes:?}");
            // In nothing else do they differ.
            assert!(new.diff(old).is_empty());
        }
        let mut shorter = measured.clone();
        shorter.steps.pop();
        assert_eq!(shorter.diff(&plain).gone[0].us, Some(2.0));
        assert_eq!(shorter.diff(&measured).gone[0].us, Some(5.0));
    }

    #[test]
    fn plans_of_different_models_say_so() {
        let with = |operators: &[(&str, &str)]| {
            let mut plan = layers_of_two();
            plan.operators = (operators.iter().enumerate())
                .map(|(at, (operator, module))| OperatorReport {
                    operator: format!("aten::{operator} #{at}"),
                    module: (*module).to_owned(),
                    step: None,
                    left_out: None,
                })
                .collect();
            plan
        };
        let old = with(&[("linear", "h.0"), ("gelu", "h.0"), ("linear", "h.1"), ("gelu", "h.1")]);
        let other = with(&[("conv2d", "stem"), ("relu", "stem"), ("linear", "head")]);
        let note = "0 of 3 operators are in both plans: these may be plans of different models";
        assert_eq!(notes(&old, &other), [note]);
        let fewer = with(&[("linear", "h.0"), ("gelu", "h.0"), ("add", "h.0")]);
        assert_eq!(notes(&old, &fewer), [""; 0]);
        // Without modules, names are compared alone.
        let unnamed = with(&[("linear", ""), ("gelu", ""), ("linear", "")]);
        assert_eq!(notes(&old, &unnamed), [""; 0]);
    }

    #[test]
    fn other_types_and_machines_are_said() {
        let with = |types: [&str; 3]| {
            let mut plan = layers_of_two();
            let names = ["input 0", "w, prepacked", "b"];
            let read = |(name, ty): (&str, &str)| TensorReport {
                name: name.to_owned(),
                ty: ty.to_owned(),
                bytes: 8,
                step: None,
            };
            if let StepReport::Kernel { reads, .. } = &mut plan.steps[0] {
                reads.extend(names.into_iter().zip(types).map(read));
            }
            plan
        };
        let old = with(["i64[2,17]", "f32[1,4,8]", "f32[8]"]);
        let mut new = with(["i64[4,17]", "bf16[1,4,8]", "bf16[8]"]);
        let machine = new.machine.as_mut().unwrap();
        (machine.measured, machine.gigabytes_per_s) = (false, 24.0);
        let expected = [
            "times are predicted from other figures of the machine: measured -> typical ones",
            "input 0: i64[2,17] -> i64[4,17]",
            "2 tensors of the model: f32 -> bf16",
        ];
        assert_eq!(notes(&old, &new), expected);
    }
}
