//! Reductions of rows, and what is around them.

use super::check;
use crate::machine::Profile;
use crate::pipeline::{self, Context, Form, Stage};
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
