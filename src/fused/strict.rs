//! What has to be fused, see [`Strict`].

use indexmap::IndexMap;

use super::Engine;
use super::table::Outcome;
use crate::engine::Compiled;
use crate::explain::{Explanation, StepReport};
use crate::hints::{PatternOption, UNMATCHED};
use crate::paths::{Pattern, of_any_layer};
use crate::{Error, Strict};

/// A plan that leaves operators to libtorch that kernels are asked for.
#[derive(Debug)]
pub(crate) struct Unfused {
    operators: Vec<String>,
    pub(crate) plan: Explanation,
}

impl Unfused {
    /// What a call returns.
    pub(crate) fn error(&self) -> Error {
        Error::Unfused { operators: self.operators.clone(), plan: Box::new(self.plan.clone()) }
    }
}

impl Engine {
    /// Why a call that would run eager for a reason is an error.
    pub(super) fn refuses_eager(&self, reason: &str) -> Result<(), Error> {
        match self.options.strict {
            Strict::Off => Ok(()),
            Strict::Plan | Strict::Kernels(_) => Err(Error::RunsEager(reason.to_owned())),
        }
    }

    /// The operators that a plan leaves to libtorch although kernels are asked for.
    pub(super) fn unfused(&self, compiled: &Compiled) -> Option<Box<Unfused>> {
        let Strict::Kernels(patterns) = &self.options.strict else { return None };
        let plan = Explanation::of(compiled, &self.all_names());
        let unmatched = plan.unmatched.iter().filter(|of| of.option == PatternOption::Strict);
        let unmatched = unmatched.map(|of| format!("{} ({UNMATCHED})", of.pattern));
        let mut operators = left_to_libtorch(&plan, patterns);
        operators.extend(unmatched);
        (!operators.is_empty()).then(|| Box::new(Unfused { operators, plan }))
    }

    /// What a call returns that was captured just now, where it is not to return what the model did.
    pub(super) fn captured(&self, outcome: &Outcome) -> Result<(), Error> {
        match outcome {
            Outcome::Plan(..) => Ok(()),
            Outcome::Eager(reason) => self.refuses_eager(reason),
            Outcome::Unfused(unfused) => Err(unfused.error()),
        }
    }
}

/// The operators that patterns ask kernels for and a plan leaves to libtorch: a text for each reason, with all operators that have it and
/// their modules, those of repeated layers once.
///
/// ```text
/// 12 x aten::linear of h.*.mlp.c_fc, aten::sort #7 (it has no lowering)
/// ```
pub(crate) fn left_to_libtorch(plan: &Explanation, patterns: &[String]) -> Vec<String> {
    let modules = || plan.operators.iter().map(|operator| operator.module.as_str());
    let patterns: Vec<Pattern<'_>> = patterns.iter().map(|of| Pattern::new(of, modules())).collect();
    let mut reasons: IndexMap<&str, Vec<Left<'_>>> = IndexMap::new();
    for (left, reason) in plan.steps.iter().filter_map(|step| left(step, &patterns)) {
        reasons.entry(reason).or_default().push(left);
    }
    reasons.into_iter().map(|(reason, all)| format!("{} ({reason})", named(&all))).collect()
}

/// The operator of a libtorch call, with its position, and the module that it is of, or none.
#[derive(Clone, Copy)]
struct Left<'a> {
    operator: &'a str,
    module: &'a str,
}

/// The operator of a libtorch call that a kernel is asked for, and why it has none.
fn left<'a>(step: &'a StepReport, patterns: &[Pattern<'_>]) -> Option<(Left<'a>, &'a str)> {
    let StepReport::Extern { operator, modules, reason, .. } = step else { return None };
    let module = modules.first().map_or("", String::as_str);
    let is_asked_for = patterns.iter().any(|pattern| pattern.covered(operator, module).is_some());
    let reason = reason.as_deref().unwrap_or("it has no lowering");
    is_asked_for.then_some((Left { operator, module }, reason))
}

/// Operators with their modules, those of repeated layers once, with how many there are.
fn named(all: &[Left<'_>]) -> String {
    let mut alike: IndexMap<(&str, String), Vec<Left<'_>>> = IndexMap::new();
    for &left in all {
        let name = left.operator.split(" #").next().unwrap_or_default();
        alike.entry((name, of_any_layer(left.module))).or_default().push(left);
    }
    let of = |module: &str| if module.is_empty() { String::new() } else { format!(" of {module}") };
    let texts = alike.iter().map(|((name, modules), all)| match &all[..] {
        [Left { operator, module }] => format!("{operator}{}", of(module)),
        all => format!("{} x {name}{}", all.len(), of(modules)),
    });
    texts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::{call, layers_of_two};

    #[test]
    fn operators_are_left_once_for_each_reason() {
        let mut plan = layers_of_two();
        plan.steps = (0..8).map(|at| call(&format!("aten::linear #{at}"), None)).collect();
        plan.steps.push(call("aten::sort #8", None));
        for (at, step) in plan.steps.iter_mut().enumerate() {
            let StepReport::Extern { modules, reason, .. } = step else { continue };
            let module = [format!("h.{at}.up"), format!("h.{at}.down"), String::from("head")];
            modules.extend(module.into_iter().nth(if at < 7 { at % 2 } else { 2 }));
            *reason = (at < 8).then(|| String::from(if at < 6 { "measured" } else { "no kernel" }));
        }
        let expected = [
            "3 x aten::linear of h.*.up, 3 x aten::linear of h.*.down (measured)",
            "aten::linear #6 of h.6.up, aten::linear #7 of head (no kernel)",
            "aten::sort #8 of head (it has no lowering)",
        ];
        assert_eq!(left_to_libtorch(&plan, &[String::from("*")]), expected);
        assert_eq!(left_to_libtorch(&plan, &[String::from("sort")]), expected[2..]);
        let error = Error::Unfused { operators: expected.map(String::from).into(), plan: Box::new(plan) };
        assert_eq!(error.to_string(), format!("left to libtorch:\n  {}", expected.join("\n  ")));
    }
}
