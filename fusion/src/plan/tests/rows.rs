//! Reductions of rows, and what is around them.

use super::check;
use crate::machine::Profile;
use crate::pipeline::{self, Context, Form, Stage, primitive};
use crate::plan::{Plan, Step, StepKind};

/// The plan of a functional graph on two threads.
fn planned(text: &str) -> Plan {
    let form = Form::Graph(crate::parse_graph(text).unwrap());
    let profile = Profile::host(2);
    let stages = Stage::Primitive..=Stage::Plan;
    match pipeline::run(form, stages, &mut Context::new(&profile), &mut |_, _| true) {
        Ok(Form::Plan(plan)) => plan,
        other => panic!("{other:?}"),
    }
}

/// Bytes that steps write.
fn written(plan: &Plan) -> u64 {
    let bytes = |step: &Step| match &step.kind {
        StepKind::Kernel(kernel) => kernel.bytes_written,
        StepKind::Extern(_) => 0,
    };
    plan.steps.iter().map(bytes).sum()
}

fn cross_entropy([rows, classes]: [i64; 2]) -> Plan {
    planned(&format!(
        "graph {{
           %0 = input 0 : f32[{rows},{classes}]
           %1 = input 1 : i64[{rows}]
           %2 = aten::cross_entropy_loss(self=%0, target=%1, weight=None, reduction=1, ignore_index=-100, \
                                         label_smoothing=0.0) : f32[]
           outputs %2
         }}"
    ))
}

#[test]
fn what_a_loss_picks_from_is_merged_before_what_it_is_picked_by() {
    // The mask of targets is reduced as well, to their number: merged with that, the gather could take no row reduction.
    let plan = cross_entropy([128, 50_257]);
    assert!(written(&plan) < 16 << 10 && plan.memory.bytes < 16 << 10, "{plan}");
    assert_eq!(plan.kernel_count(), 3);
    check(&cross_entropy([6, 60]));
}

/// Channels of a group that lie next to each other in memory, and positions, of which neither fills the tile; maxima, too.
#[test]
fn both_axes_of_a_tile_are_reduced() {
    let gpu = Profile::gpu(132, 4200.0).with_clusters();
    let calls = [
        "aten::group_norm(input=%3, num_groups=4, weight=%1, bias=%2, eps=1e-5, cudnn_enabled=true) : f32[2,12,7,5]",
        "aten::amax(self=%3, dim=[1,2,3], keepdim=true) : f32[2,1,1,1]",
        "aten::sum.dim_IntList(self=%3, dim=[1,2], keepdim=false) : f32[2,5]",
        "aten::mean.dim(self=%3, dim=[1,3], keepdim=true, dtype=None) : f32[2,1,7,1]",
    ];
    // The tile of a row that a block does not hold reaches beyond the channels of a group, and the last one beyond the positions.
    let text = "graph {
      %0 = input 0 : f32[2,70,50,36]
      %1 = aten::permute(self=%0, dims=[0,3,1,2]) : f32[2,36,70,50]{126000,1,1800,36}
      %2 = aten::group_norm(input=%1, num_groups=3, weight=None, bias=None, eps=1e-5, cudnn_enabled=true) : f32[2,36,70,50]
      outputs %2
    }";
    let plan = crate::pipeline::plan(&primitive(text, &gpu), &gpu).unwrap();
    check(&plan);
    let StepKind::Kernel(step) = &plan.steps[0].kind else { unreachable!() };
    let tiling = step.tiling.as_ref().unwrap();
    assert_eq!((tiling.axes.len(), tiling.is_walked()), (2, true), "{plan}");
    let images = [
        ("2,12,7,5", "aten::alias(self=%0) : f32[2,12,7,5]"),
        ("2,7,5,12", "aten::permute(self=%0, dims=[0,3,1,2]) : f32[2,12,7,5]{420,1,60,12}"),
    ];
    for (call, (shape, view)) in calls.iter().flat_map(|call| images.map(|images| (call, images))) {
        let text = format!(
            "graph {{
               %0 = input 0 : f32[{shape}]
               %1 = input 1 : f32[12]
               %2 = input 2 : f32[12]
               %3 = {view}
               %4 = {call}
               outputs %4
             }}"
        );
        let plan = crate::pipeline::plan(&primitive(&text, &gpu), &gpu).unwrap();
        check(&plan);
        assert_eq!(plan.kernel_count(), 1, "{text}");
        let StepKind::Kernel(step) = &plan.steps[0].kind else { unreachable!() };
        let axes = step.tiling.as_ref().unwrap().axes.len();
        let expected = if view.contains("permute") { 2 } else { 1 };
        assert!(!call.contains("group_norm") || axes == expected, "{text}{plan}");
    }
}
