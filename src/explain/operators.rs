//! The captured operators of a model: the modules that they are of, and the steps that they are in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tilefuse_fusion::plan::Plan;

use crate::engine::{self, OperatorFlow, nodes_of, numbers};

/// An operator of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperatorReport {
    /// Its name and number, `aten::linear #23`.
    pub operator: String,
    /// The module that it is of; empty where nothing says so.
    pub module: String,
    /// The position of the step that it is in: the last one that computes a part of it. What has no computation of its own, as views and
    /// what passes make a part of another operator, is in the step that reads its result. None where it is in no step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
    /// Why it is in no step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// The captured operators in the order of their numbers.
pub(super) fn operators(plan: &Plan, modules: &[String], flow: &OperatorFlow) -> Vec<OperatorReport> {
    let names = plan.graph.origins.iter().zip(modules);
    let steps = steps_of(plan, modules.len(), flow);
    let report = |(at, ((operator, module), step)): (usize, ((&String, &String), Option<usize>))| {
        let why = if flow.is_needed(at) {
            "it is a view of what the caller or the model has"
        } else {
            "nothing that a call gives back needs it"
        };
        OperatorReport {
            operator: operator.clone(),
            module: module.clone(),
            step,
            left_out: step.is_none().then(|| String::from(why)),
        }
    };
    names.zip(steps).enumerate().map(report).collect()
}

/// By captured operator: the step that it is in.
fn steps_of(plan: &Plan, captured: usize, flow: &OperatorFlow) -> Vec<Option<usize>> {
    let (mut steps, mut spans) = (vec![None; captured], Vec::new());
    for (at, step) in plan.steps.iter().enumerate() {
        for origin in nodes_of(step).iter().filter_map(|&node| plan.graph.node(node).origin) {
            match (steps.get_mut(origin as usize), plan.graph.origins.get(origin as usize)) {
                (Some(step), _) => *step = Some(at),
                // What a pass made of several operators is named after the first and the last.
                (None, Some(name)) => {
                    let numbers: Vec<usize> = numbers(name).filter(|&number| number < captured).collect();
                    if let (Some(&first), Some(&last)) = (numbers.iter().min(), numbers.iter().max()) {
                        spans.push(([first, last], at));
                    }
                }
                (None, None) => {}
            }
        }
    }
    flow.complete(&mut steps, &spans);
    steps
}

/// The module of what has a name in a report, which of several operators is the one that all of them are in; empty where nothing says so.
pub(super) fn module_of(operators: &[OperatorReport], name: &str) -> String {
    engine::module_of(name, |number| operators.get(number).map(|known| known.module.as_str()))
}

#[cfg(test)]
mod tests {
    use tilefuse_fusion::pipeline::plan;
    use tilefuse_fusion::{Profile, functionalize, lower, parse_recording, simplify};

    use super::*;

    /// The last view of what is returned is a part of the step before it, and what nothing needs is left out.
    #[test]
    fn each_operator_is_in_the_step_that_computes_or_reads_it() {
        let recording = r#"recording {
          %0 = input 0 : f32[64,32]
          %1: f32[64,32] = aten::exp(self=%0)
          %2: f32[2048] in %1 = aten::view(self=%1, size=[2048])
          %3: f32[2048] = aten::relu(self=%2)
          %4: f32[2048] = aten::neg(self=%3)
          %5: f32[32,64] in %3 = aten::view(self=%3, size=[32,64])
          outputs %5
        }"#;
        let recording = parse_recording(recording).unwrap();
        let mut graph = lower(&functionalize(&recording).unwrap()).unwrap();
        simplify(&mut graph);
        let plan = plan(&graph, &Profile::host(2)).unwrap();
        let modules = vec![String::from("h.0"); 5];
        let found = operators(&plan, &modules, &OperatorFlow::of(&recording));
        let steps: Vec<Option<usize>> = found.iter().map(|known| known.step).collect();
        assert_eq!(steps, [Some(0), Some(0), Some(0), None, Some(0)]);
        assert_eq!(found[3].left_out.as_deref(), Some("nothing that a call gives back needs it"));
        assert_eq!((found[4].operator.as_str(), &found[4].left_out), ("aten::view #4", &None));
    }
}
