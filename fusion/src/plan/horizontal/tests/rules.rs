//! What keeps kernels apart: for each rule something that breaks it alone.

use expect_test::expect;
use tilefuse_block::Program;

use super::super::legal::{self, MAX_OPERATIONS, MAX_POINTERS};
use super::super::{HorizontalRefusal, Launch, join, profit};
use super::{BIASES, gpu, kernels, planned, steps};
use crate::block_kernel::BlockKernelKind;
use crate::enum_variants::{Variants, variants};
use crate::graph::ValueRef;
use crate::hints::Hints;
use crate::machine::Profile;
use crate::pipeline::{Context, scheduled};
use crate::plan::{Early, KernelKind, KernelStep, Plan, PlanError, Schedules, StepKind, liveness, verify};
use crate::rewrite_limit::Rewrites;
use crate::text::parse_graph;
use crate::types::Device;

const ONE: &str = "graph {
  %0 = input 0 : f32[300]
  %1 = map exp(%0) : f32[300]
  outputs %1
}
";

/// A plan of one small kernel, and the kernel.
fn one() -> (Plan, KernelStep) {
    let plan = planned(ONE, &gpu());
    let kernel = kernels(&plan)[0].clone();
    (plan, kernel)
}

/// The plan of a graph before kernels share launches.
fn vertical(text: &str) -> Plan {
    let (graph, mut cx) = (parse_graph(text).unwrap(), Context::new(&gpu()));
    scheduled(graph, Early::default(), Schedules::Predicted, &mut cx).unwrap()
}

fn launch(change: impl FnOnce(&mut KernelStep)) -> Result<Launch, HorizontalRefusal> {
    let (plan, mut kernel) = one();
    change(&mut kernel);
    Launch::of(&plan, 0, &kernel, &gpu())
}

/// Another launch, of other values, a step away.
fn other(change: impl FnOnce(&mut Launch)) -> Result<Launch, HorizontalRefusal> {
    let ours = launch(|_| {}).unwrap();
    let mut other = ours.clone();
    other.span = (1, 1);
    other.values = (0..2).map(|out| ValueRef { node: 7.into(), out }).collect();
    change(&mut other);
    ours.with(&other, &gpu(), 4)
}

#[test]
fn small_kernels_of_the_planner_may_be_joined() {
    assert!(launch(|_| {}).is_ok());
    let both = other(|_| {}).unwrap();
    assert_eq!((both.span, both.values.len(), both.cost.instances), ((0, 1), 4, 6));
}

#[test]
fn kernels_with_their_own_blocks_stay_apart() {
    let attention = |k: &mut KernelStep| k.kind = KernelKind::Block(BlockKernelKind::Attention);
    assert_eq!(launch(attention).unwrap_err(), HorizontalRefusal::OwnBlocks);
}

/// On a GPU products share launches with products of as many warps.
#[test]
fn products_share_launches_with_products() {
    let product = |k: &mut KernelStep| k.kind = KernelKind::Block(BlockKernelKind::Contraction);
    let ours = launch(product).unwrap();
    let with = |change: &dyn Fn(&mut Launch)| {
        let mut other = ours.clone();
        other.span = (1, 1);
        change(&mut other);
        ours.with(&other, &gpu(), 4).map(|_| ())
    };
    assert_eq!(with(&|_| {}), Ok(()));
    assert_eq!(with(&|other| other.product = false), Err(HorizontalRefusal::OwnBlocks));
    let (least, most) = (ours.warps.0, 2 * ours.warps.0);
    assert_eq!(with(&|other| other.warps = (most, most)), Err(HorizontalRefusal::Warps { least, most }));
    let (_, mut kernel) = one();
    product(&mut kernel);
    assert_eq!(legal::joinable(&kernel, Profile::host(2).machine), Err(HorizontalRefusal::OwnBlocks));
}

#[test]
fn grids_of_several_axes_stay_apart() {
    assert_eq!(launch(|k| k.grid[2] = 2).unwrap_err(), HorizontalRefusal::Grid);
    let (_, kernel) = one();
    for asks in ["program_id 1", "num_programs 0"] {
        let program: Program = format!("kernel @k() {{\n  %p = {asks}\n}}\n").parse().unwrap();
        assert_eq!(legal::one_axis(&kernel, &program), Err(HorizontalRefusal::Grid), "{asks}");
    }
}

#[test]
fn kernels_with_a_status_word_stay_apart() {
    assert_eq!(launch(|k| k.checks = true).unwrap_err(), HorizontalRefusal::Checks);
    let text = "graph {
  %0 = input 0 : f32[100,8]
  %1 = input 1 : i64[300,8]
  %2 = input 2 : f32[50]
  %3 = gather 0(%0, %1) : f32[300,8]
  %4 = map exp(%2) : f32[50]
  outputs %3, %4
}
";
    let plan = planned(text, &gpu());
    let apart: Vec<_> = kernels(&plan).iter().map(|k| k.horizontal_refusal.clone()).collect();
    assert_eq!(apart, [Some(HorizontalRefusal::Checks), Some(HorizontalRefusal::Only)], "{}", steps(&plan));
}

#[test]
fn tiles_of_clusters_stay_apart() {
    let wide = |k: &mut KernelStep| k.tiling.as_mut().unwrap().axes[0].extent = 16384;
    assert_eq!(launch(wide).unwrap_err(), HorizontalRefusal::Cluster { elements: 16384 });
    let (_, mut kernel) = one();
    wide(&mut kernel);
    assert_eq!(legal::one_block(&kernel, Profile::host(2).machine), Ok(()));
}

#[test]
fn what_takes_much_longer_than_its_launch_stays_apart() {
    let large = |k: &mut KernelStep| (k.predicted_us, k.grid[0]) = (13.0, 1000);
    assert_eq!(launch(large).unwrap_err(), HorizontalRefusal::Large { us: 10.0, most_us: 7.5 });
    // Few instances leave room for others on a GPU; a processor's threads are few.
    let (_, mut kernel) = one();
    (kernel.predicted_us, kernel.grid[0]) = (103.0, 100);
    assert_eq!(profit::small(&kernel, &gpu()), Ok(()));
    assert_eq!(
        profit::small(&kernel, &Profile::host(200)),
        Err(HorizontalRefusal::Large { us: 101.0, most_us: 60.0 })
    );
}

#[test]
fn what_runs_on_the_calling_thread_stays_apart() {
    let (_, mut kernel) = one();
    let mut small = |us: f64, instances: u64, threads: u32| {
        (kernel.predicted_us, kernel.grid[0]) = (2.0 + us, instances);
        profit::small(&kernel, &Profile::host(threads))
    };
    assert_eq!(small(6.0, 2, 2), Ok(()));
    assert_eq!(small(5.5, 2, 2), Err(HorizontalRefusal::Inline { us: 11.0 }));
    assert_eq!(small(6.0, 2, 8), Ok(()), "two instances keep two threads busy");
    assert_eq!(small(2.0, 8, 8), Ok(()));
    assert_eq!(small(30.0, 1, 8), Err(HorizontalRefusal::Inline { us: 30.0 }), "one instance has one thread");
    assert_eq!(small(30.0, 8, 1), Err(HorizontalRefusal::Inline { us: 30.0 }), "there is one thread");
    assert_eq!(small(60.0, 8, 8), Ok(()));
}

#[test]
fn parts_run_on_one_device() {
    assert_eq!(other(|o| o.device = Device::Cuda(0)).unwrap_err(), HorizontalRefusal::Devices);
}

#[test]
fn parts_have_about_as_many_warps() {
    assert!(other(|o| o.warps = (4, 4)).is_ok());
    assert_eq!(other(|o| o.warps = (1, 8)).unwrap_err(), HorizontalRefusal::Warps { least: 1, most: 8 });
}

#[test]
fn parts_load_ahead_alike() {
    assert_eq!(other(|o| o.stages = Some(3)).unwrap_err(), HorizontalRefusal::Stages);
}

#[test]
fn a_launch_has_so_many_pointers_and_operations_and_instances() {
    let values = |count: u16| (0..count).map(|out| ValueRef { node: 7.into(), out }).collect();
    let limit = MAX_POINTERS;
    assert!(other(|o| o.values = values(254)).is_ok());
    assert_eq!(other(|o| o.values = values(255)).unwrap_err(), HorizontalRefusal::Pointers { limit });
    let limit = MAX_OPERATIONS;
    assert_eq!(
        other(|o| o.operations = MAX_OPERATIONS).unwrap_err(),
        HorizontalRefusal::Operations { limit }
    );
    assert_eq!(other(|o| o.cost.instances = i32::MAX as u64).unwrap_err(), HorizontalRefusal::Instances);
}

#[test]
fn parts_are_near_where_memory_is_short() {
    assert_eq!(other(|o| o.span = (5, 5)).unwrap_err(), HorizontalRefusal::Far { steps: 5 });
}

#[test]
fn what_costs_more_than_a_launch_stays_apart() {
    // Neither fills the machine, yet the one is long, and its program another.
    let (plan, kernel) = one();
    let mut long = kernel.clone();
    (long.predicted_us, long.grid[0]) = (103.0, 200);
    let long = Launch::of(&plan, 1, &long, &gpu()).unwrap();
    assert!(matches!(other(|o| (o.cost, o.program) = (long.cost, 9)), Err(HorizontalRefusal::Slower { .. })));
    assert!(other(|o| o.cost = long.cost).is_ok());
}

#[test]
fn kernels_that_need_each_other_stay_apart() {
    let text = "graph {
  %0 = input 0 : f32[300]
  %1 = map exp(%0) : f32[300]
  %2 = aten::cumsum(self=%1) : f32[300]
  %3 = map neg(%2) : f32[300]
  outputs %3
}
";
    let plan = planned(text, &gpu());
    assert!(
        kernels(&plan).iter().all(|k| k.horizontal_refusal == Some(HorizontalRefusal::Only)),
        "{}",
        steps(&plan)
    );
    assert_eq!(plan.kernel_count(), 2);
}

#[test]
fn nothing_moves_past_a_call_with_an_effect() {
    let text = "graph {
  %0 = input 0 : f32[300]
  %1 = input 1 : f32[30]
  %2 = map exp(%0) : f32[300]
  %3 = aten::note(self=%0) : f32[300]
  %4 = map tanh(%1) : f32[30]
  outputs %2, %4
}
";
    let vertical = vertical(text);
    assert_eq!(
        join(vertical.clone(), &gpu(), u64::MAX, (&Rewrites::default(), &Hints::default())).kernel_count(),
        1
    );
    let mut plan = vertical;
    let note = plan.graph.ids().find(|id| id.index() == 3).unwrap();
    plan.graph.node_mut(note).outs.clear();
    let plan = join(liveness::finish(plan), &gpu(), u64::MAX, (&Rewrites::default(), &Hints::default()));
    let order: Vec<bool> = plan.steps.iter().map(|s| matches!(s.kind, StepKind::Extern(_))).collect();
    assert_eq!(order, [false, true, false], "{}", steps(&plan));
}

#[test]
fn nothing_is_written_over_what_another_part_reads() {
    let text = "graph {
  %0 = input 0 : f32[64,32]
  %1 = aten::relu(self=%0) : f32[64,32]
  %2 = map exp(%1) : f32[64,32]
  %3 = view slice[0,3,1](%1) : f32[5,32]
  %4 = map tanh(%3) : f32[5,32]
  %5 = aten::relu(self=%2) : f32[64,32]
  outputs %4, %5
}
";
    let plan = planned(text, &gpu());
    let joined: Vec<_> = kernels(&plan).into_iter().filter(|k| !k.parts.is_empty()).collect();
    let [kernel] = joined[..] else { panic!("{}", steps(&plan)) };
    assert!(kernel.in_place.is_empty() && plan.memory.over.is_empty(), "{}", steps(&plan));
}

/// Eight rows of 64 MB, of which one at a time is needed apart, and before them small kernels, which leave so many results.
fn rows_and(small: &[&str]) -> Plan {
    let mut text = String::from("graph {\n  %0 = input 0 : f32[256]\n  %1 = input 1 : f32[16777216]\n");
    let mut at = 2;
    let mut results = Vec::new();
    for (slot, function) in small.iter().enumerate() {
        text.push_str(&format!("  %{at} = input {} : f32[300]\n", 2 + slot));
        text.push_str(&format!("  %{} = map {function}(%{at}) : f32[300]\n", at + 1));
        results.push(format!("%{}", at + 1));
        at += 2;
    }
    for _ in 0..8 {
        let (small, big) = (at, at + 1);
        text.push_str(&format!("  %{small} = aten::cumsum(self=%0) : f32[1]\n"));
        text.push_str(&format!("  %{big} = aten::cumsum(self=%1, by=%{small}) : f32[16777216]\n"));
        text.push_str(&format!("  %{} = view slice[0,7,1](%{big}) : f32[256]\n", at + 2));
        text.push_str(&format!("  %{} = map exp(%{}) : f32[256]\n", at + 3, at + 2));
        results.push(format!("%{}", at + 3));
        at += 4;
    }
    text.push_str(&format!("  outputs {}\n}}\n", results.join(", ")));
    let plan = planned(&text, &gpu());
    assert!(plan.peak_bytes() < 2 * 67_108_864, "{}", plan.peak_bytes());
    plan
}

#[test]
fn more_memory_than_apart_is_not_taken() {
    let plan = rows_and(&[]);
    assert_eq!(plan.kernel_count(), 8, "{}", steps(&plan));
    let reason = |k: &&KernelStep| {
        matches!(k.horizontal_refusal, Some(HorizontalRefusal::Memory { .. } | HorizontalRefusal::Far { .. }))
    };
    assert!(kernels(&plan).iter().all(reason), "{}", steps(&plan));
}

/// One launch that takes more memory keeps no others apart.
#[test]
fn launches_are_joined_while_there_is_memory() {
    let plan = rows_and(&["exp", "tanh"]);
    let parts: Vec<usize> = kernels(&plan).iter().map(|kernel| kernel.parts.len()).collect();
    assert_eq!(parts, [2, 0, 0, 0, 0, 0, 0, 0, 0], "{}", steps(&plan));
}

#[test]
fn plans_whose_parts_need_each_other_are_refused() {
    let good = planned(BIASES, &gpu());
    let broken = |change: &dyn Fn(&mut KernelStep)| {
        let mut plan = good.clone();
        for step in &mut plan.steps {
            if let StepKind::Kernel(kernel) = &mut step.kind {
                change(kernel);
            }
        }
        matches!(verify(&plan), Err(PlanError::Invalid { .. }))
    };
    assert!(!broken(&|_| {}));
    assert!(broken(&|k| k.parts[1].first += 1), "instances of two parts");
    assert!(broken(&|k| k.grid[0] += 1), "instances of none");
    assert!(broken(&|k| k.parts[2].buffers.push(99)), "a buffer that is not there");
    assert!(broken(&|k| k.parts[0].buffers.clear()), "a buffer of none");
    let [kernel] = kernels(&good)[..] else { panic!("{}", steps(&good)) };
    let written = kernel.buffers.iter().position(|b| b.1).unwrap();
    assert!(broken(&|k| k.parts[2].buffers.push(written)), "what another part writes");
    let read = kernel.buffers.iter().position(|b| b.0 == kernel.in_place[0].0).unwrap();
    assert!(broken(&|k| k.parts[2].buffers.push(read)), "a place that another part reads");
}

/// Each kernel that joins others is a rewrite.
#[test]
fn joins_stop_at_a_limit() {
    let vertical = vertical(BIASES);
    let all = Rewrites::default();
    let whole = join(vertical.clone(), &gpu(), u64::MAX, (&all, &Hints::default()));
    let saved = (vertical.kernel_count() - whole.kernel_count()) as u64;
    assert!(saved > 1 && all.made() == saved, "{}", steps(&whole));
    assert_eq!(all.last().as_deref(), Some("horizontal-fusion"));
    for limit in 0..=saved {
        let rewrites = Rewrites::at_most(Some(limit));
        let plan = join(vertical.clone(), &gpu(), u64::MAX, (&rewrites, &Hints::default()));
        assert_eq!(rewrites.made(), limit);
        assert_eq!(plan.kernel_count() as u64 + limit, vertical.kernel_count() as u64);
        let limited = |k: &&KernelStep| k.horizontal_refusal == Some(HorizontalRefusal::Limit);
        assert_eq!(kernels(&plan).iter().any(limited), limit < saved, "{}", steps(&plan));
    }
}

variants!(
    HorizontalRefusal: OwnBlocks, Grid, Checks, Cluster, Large, Inline, Only, Devices, Warps, Stages, Pointers,
    Operations, Instances, Far, Memory, Slower, Limit, Hint
);

/// The texts of what the tests above make appear.
#[test]
fn reasons_of_kernels_apart() {
    let (us, most_us, separate_us, fused_us) = (10.0, 7.5, 12.25, 13.5);
    let all = [
        HorizontalRefusal::OwnBlocks,
        HorizontalRefusal::Grid,
        HorizontalRefusal::Checks,
        HorizontalRefusal::Cluster { elements: 16384 },
        HorizontalRefusal::Large { us, most_us },
        HorizontalRefusal::Inline { us },
        HorizontalRefusal::Only,
        HorizontalRefusal::Devices,
        HorizontalRefusal::Warps { least: 1, most: 8 },
        HorizontalRefusal::Stages,
        HorizontalRefusal::Pointers { limit: 256 },
        HorizontalRefusal::Operations { limit: 4096 },
        HorizontalRefusal::Instances,
        HorizontalRefusal::Far { steps: 5 },
        HorizontalRefusal::Memory { bytes: 200, most: 100 },
        HorizontalRefusal::Slower { separate_us, fused_us },
        HorizontalRefusal::Limit,
        HorizontalRefusal::Hint,
    ];
    assert_eq!(all.each_ref().map(|refusal| refusal.name()), HorizontalRefusal::NAMES);
    expect![[r#"
        its program has block sizes of its own
        its grid has several axes, or it asks for the grid's size
        it checks indices
        its tile of 16384 elements may need a cluster of blocks
        it takes 10.0 us without the launch, more than 7.5 us
        its 10.0 us run on the thread that calls
        no other small kernel can run at the same place
        the other runs on another device
        one takes 1 warps, another 8
        their loops are pipelined in different numbers of stages
        the launch would have more than 256 pointers
        the program would have more than 4096 operations
        the grid would have too many instances
        5 steps lie between them, and memory is short
        with others in one launch a call would hold 200 bytes, more than 100
        predicted 13.5 us in one launch, 12.2 us in two
        the number of rewrites is limited
        a hint keeps them in separate kernels"#]]
    .assert_eq(&all.map(|apart| apart.to_string()).join("\n"));
}
