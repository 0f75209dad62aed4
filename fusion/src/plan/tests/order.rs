//! The order of steps, and the verifier of plans.

use crate::graph::ValueRef;
use crate::machine::Profile;
use crate::pipeline::plan;
use crate::plan::{PlanError, StepKind, verify};
use crate::text::parse_graph;

use super::run::check;

/// The kernel of `%2` and `%11` needs `%8`, which needs `%7`, and feeds `%6`: `%6` and `%7` read the same input, yet
/// must stay apart.
const AROUND: &str = "graph {
  %0 = input 0 : f32[2,1,64,1]
  %1 = input 1 : f32[2,1,64,1]
  %2 = map tanh(%0) : f32[2,1,64,1]
  %3 = reduce sum[2](%2) : f32[2,1,1]
  %4 = reduce prod[3](%2) : f32[2,1,64]
  %5 = view reshape(%4) : f32[2,1,64,1]
  %6 = map mul(%5, %1) : f32[2,1,64,1]
  %7 = reduce prod[1](%1) : f32[2,64,1]
  %8 = reduce max[0,1](%7) : f32[1]
  %9 = view reshape(%8) : f32[1,1,1,1]
  %10 = view expand(%9) : f32[2,1,64,1]
  %11 = map max(%2, %10) : f32[2,1,64,1]
  %12 = view reshape(%3) : f32[2,1,1,1]
  %13 = view expand(%12) : f32[2,1,64,1]
  %14 = map sub(%2, %13) : f32[2,1,64,1]
  %15 = map mul(%14, %14) : f32[2,1,64,1]
  %16 = reduce sum[2](%15) : f32[2,1,1]
  outputs %16, %6, %11
}
";

/// Calls that draw random numbers, the first of which is ready last.
const RANDOM: &str = "graph {
  %0 = input 0 : f32[8]
  %1 = map exp(%0) : f32[8]
  %2 = aten::bernoulli(self=%1) !random : f32[8]
  %3 = aten::bernoulli(self=%0) !random : f32[8]
  %4 = map neg(%2) : f32[8]
  %5 = map tanh(%3) : f32[8]
  outputs %4, %5
}
";

fn profiles() -> [Profile; 2] {
    [Profile::host(2), Profile::gpu(132, 4200.0)]
}

#[test]
fn kernels_that_share_an_input_stay_apart_where_a_third_is_between_them() {
    let graph = parse_graph(AROUND).unwrap();
    for profile in profiles() {
        check(&plan(&graph, &profile).unwrap());
    }
}

#[test]
fn random_numbers_are_drawn_in_the_order_of_the_calls() {
    let graph = parse_graph(RANDOM).unwrap();
    for profile in profiles() {
        let plan = plan(&graph, &profile).unwrap();
        let drawn = plan.steps.iter().filter_map(|step| match &step.kind {
            StepKind::Extern(call) => Some(call.node.index()),
            StepKind::Kernel(_) => None,
        });
        assert_eq!(drawn.collect::<Vec<_>>(), [2, 3]);
    }
}

#[test]
fn plans_that_read_what_is_not_in_memory_are_refused() {
    let graph = parse_graph(AROUND).unwrap();
    let good = plan(&graph, &Profile::host(2)).unwrap();
    let invalid = |plan: &_| matches!(verify(plan), Err(PlanError::Invalid { .. }));
    assert_eq!(verify(&good), Ok(()));
    for at in 0..good.steps.len() {
        let mut lacking = good.clone();
        lacking.steps.remove(at);
        assert!(invalid(&lacking), "without step {at}");
    }
    let mut backwards = good.clone();
    backwards.steps.reverse();
    assert!(invalid(&backwards));
    let mut homeless = good.clone();
    homeless.memory.own.clear();
    assert!(invalid(&homeless));
    let mut overlapping = good.clone();
    let at_start: Vec<ValueRef> = overlapping.memory.offsets.keys().copied().collect();
    overlapping.memory.offsets = at_start.into_iter().map(|value| (value, 0)).collect();
    assert!(invalid(&overlapping), "{:?}", good.memory);
}
