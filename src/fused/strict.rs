//! What has to be fused, see [`Strict`].

use super::Engine;
use super::table::Outcome;
use crate::engine::Compiled;
use crate::explain::{Explanation, StepReport};
use crate::hints::{PatternOption, UNMATCHED};
use crate::paths::Pattern;
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

/// The operators that patterns ask kernels for and a plan leaves to libtorch, with their modules and the reasons.
pub(crate) fn left_to_libtorch(plan: &Explanation, patterns: &[String]) -> Vec<String> {
    let modules = || plan.operators.iter().map(|operator| operator.module.as_str());
    let patterns: Vec<Pattern<'_>> = patterns.iter().map(|of| Pattern::new(of, modules())).collect();
    plan.steps.iter().filter_map(|step| left(step, &patterns)).collect()
}

/// The operator of a libtorch call that a kernel is asked for.
fn left(step: &StepReport, patterns: &[Pattern<'_>]) -> Option<String> {
    let StepReport::Extern { operator, modules, reason, .. } = step else { return None };
    let module = modules.first().map_or("", String::as_str);
    if patterns.iter().all(|pattern| pattern.covered(operator, module).is_none()) {
        return None;
    }
    let place = if module.is_empty() { String::new() } else { format!(" of {module}") };
    let why = reason.as_ref().map_or_else(|| String::from("it has no lowering"), String::clone);
    Some(format!("{operator}{place} ({why})"))
}
