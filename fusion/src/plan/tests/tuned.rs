//! Schedules that are chosen by measuring: every one that is offered computes the same, and the plan takes the one that is
//! named.

use tilefuse_block::{ReduceFn, ScalarFn};

use super::{G, check};
use crate::graph::{Graph, ValueRef, View};
use crate::machine::Profile;
use crate::pipeline::{self, Context};
use crate::plan::{Plan, StepKind, Tunable, Tuned, verify};

/// Machines whose launches are free, so that small kernels are worth tuning.
fn machines() -> [Profile; 2] {
    [Profile::host(2), Profile::gpu(132, 4200.0)].map(|profile| Profile { launch_us: 0.0, ..profile })
}

/// Plans with the schedule at `choice` of every kernel that has so many; and the numbers of schedules.
fn planned(graph: &Graph, profile: &Profile, choice: usize) -> (Plan, Vec<usize>) {
    let mut offered = Vec::new();
    let tuner = |tunable: &Tunable<'_>| {
        let count = tunable.schedules.len();
        offered.push(count);
        assert!((2..=6).contains(&count));
        assert!(tunable.schedules.iter().all(|s| s.program.params.len() == tunable.buffers.len()));
        let us = (0..count).map(|at| Some(at as f64)).collect();
        (choice < count).then_some(Tuned { choice, us, remembered: false })
    };
    let mut cx = Context { tuner: Some(Box::new(tuner)), ..Context::new(profile) };
    let plan = pipeline::planned(graph.clone(), &mut cx).unwrap();
    drop(cx);
    assert_eq!(verify(&plan), Ok(()));
    (plan, offered)
}

/// Runs every schedule of a graph's kernels on both machines; returns how many there were of the kernel with the most.
fn all_agree(graph: &Graph) -> [usize; 2] {
    machines().map(|profile| {
        let most = planned(graph, &profile, usize::MAX).1.into_iter().max().unwrap_or(1);
        let mut tilings: Vec<String> = Vec::new();
        for choice in 0..most {
            let (plan, _) = planned(graph, &profile, choice);
            check(&plan);
            tilings.push(format!("{:?}", steps(&plan)));
        }
        let count = tilings.len();
        tilings.sort();
        tilings.dedup();
        assert_eq!(tilings.len(), count, "{tilings:?}");
        most
    })
}

/// Tiles and numbers of instances of a plan's kernels.
fn steps(plan: &Plan) -> Vec<(String, u64)> {
    let kernel = |step: &crate::plan::Step| match &step.kind {
        StepKind::Kernel(k) => Some((k.tiling.as_ref()?.to_string(), k.grid[0])),
        StepKind::Extern(_) => None,
    };
    plan.steps.iter().filter_map(kernel).collect()
}

fn of(build: impl FnOnce(&mut G) -> Vec<ValueRef>) -> Graph {
    let mut g = G::new();
    let outputs = build(&mut g);
    g.0.outputs = outputs;
    g.0
}

#[test]
fn every_schedule_of_element_by_element_kernels_agrees() {
    let one_axis = of(|g| {
        let x = g.input(0, &[5000]);
        vec![g.map(ScalarFn::Exp, &[x])]
    });
    assert!(all_agree(&one_axis).into_iter().all(|most| most > 1));
    let transposed = of(|g| {
        let (x, y) = (g.input(0, &[100, 70]), g.input(1, &[70, 100]));
        let turned = g.view(View::Permute([1u8, 0].into_iter().collect()), y, &[100, 70]);
        vec![g.map(ScalarFn::Add, &[x, turned])]
    });
    assert!(all_agree(&transposed).into_iter().all(|most| most > 3));
}

#[test]
fn every_schedule_of_reductions_agrees() {
    for (rows, width) in [(20, 100), (3, 700), (100, 3)] {
        all_agree(&of(|g| {
            let x = g.input(0, &[rows, width]);
            vec![g.softmax(x, 1)]
        }));
        all_agree(&of(|g| {
            let x = g.input(0, &[rows, width]);
            vec![g.layer_norm(x)]
        }));
        all_agree(&of(|g| {
            let x = g.input(0, &[rows, width]);
            vec![g.reduce(ReduceFn::Sum, x, &[0])]
        }));
    }
    let long = all_agree(&of(|g| {
        let x = g.input(0, &[1, 17_000]);
        vec![g.softmax(x, 1)]
    }));
    // On a GPU in loops; on the host one tile is as wide as the row.
    assert!(long[1] > 1, "{long:?}");
}

#[test]
fn every_schedule_of_mix_order_reductions_agrees() {
    let tried = all_agree(&of(|g| {
        let x = g.input(0, &[720, 100]);
        vec![g.reduce(ReduceFn::Sum, x, &[1]), g.reduce(ReduceFn::Sum, x, &[0])]
    }));
    assert!(tried.iter().all(|&schedules| schedules > 1), "{tried:?}");
}

#[test]
fn without_a_choice_the_plan_is_the_predicted_one() {
    let graph = of(|g| {
        let x = g.input(0, &[64, 512]);
        vec![g.softmax(x, 1)]
    });
    for profile in machines() {
        let predicted = pipeline::plan(&graph, &profile).unwrap();
        let (none, _) = planned(&graph, &profile, usize::MAX);
        let (first, _) = planned(&graph, &profile, 0);
        assert_eq!(predicted.programs, none.programs);
        assert_eq!(predicted.programs, first.programs);
        let StepKind::Kernel(kernel) = &first.steps[0].kind else { panic!("a call") };
        assert!(kernel.tuned.as_ref().is_some_and(|t| t.choice == 0 && t.us.len() > 1));
    }
    // What takes as long as a launch is not worth it.
    let (_, offered) = planned(&graph, &Profile { launch_us: 1e3, ..Profile::host(2) }, 0);
    assert!(offered.is_empty());
}

#[test]
fn updates_are_written_over_their_targets_by_other_schedules_too() {
    let text = "graph {
  %0 = param 0 : f32[300,200]
  %1 = input 0 : f32[300,200]
  %2 = map sub(%0, %1) : f32[300,200]
  outputs %1
  update %0 <- %2
}
";
    let graph = crate::text::parse_graph(text).unwrap();
    for choice in 0..4 {
        let (plan, offered) = planned(&graph, &machines()[0], choice);
        assert!(offered[0] > choice);
        assert_eq!(plan.copied, [None]);
    }
}
