//! Which updates are written straight over their targets, and what is in the way of others.

use expect_test::expect;

use super::super::liveness;
use crate::enum_variants::{Variants, variants};
use crate::machine::Profile;
use crate::pipeline::{self, Context};
use crate::place::Alignments;
use crate::plan::{Copied, Plan, PlanError, StepKind, verify};
use crate::text::parse_graph;

/// `%0` is a parameter, `%1` and `%2` are inputs; all 32x32.
fn graph(lines: &str, rest: &str) -> String {
    let form = "f32[32,32]";
    format!(
        "graph {{\n  %0 = param 0 : {form}\n  %1 = input 0 : {form}\n  %2 = input 1 : {form}\n{lines}  {rest}}}\n"
    )
}

fn planned(text: &str, profile: &Profile) -> Plan {
    let plan = pipeline::plan(&parse_graph(text).unwrap(), profile).unwrap();
    assert_eq!(verify(&plan), Ok(()));
    plan
}

fn gpu() -> Profile {
    Profile::gpu(132, 4200.0)
}

/// The decisions about the updates of a graph on the host; a value that is written directly lies in its target.
fn decided(text: &str) -> Vec<Option<Copied>> {
    let mut plan = planned(text, &Profile::host(2));
    for (copied, (target, place)) in plan.copied.iter().zip(&plan.updates) {
        let lies_there = plan.memory.root(place.base()) == (*target).into();
        assert_eq!(lies_there, copied.is_none(), "{:?}", plan.memory);
    }
    plan.limit_memory(0);
    assert_eq!(verify(&plan), Ok(()));
    plan.copied
}

/// The one reason why an update is copied; a plan that writes it over its target all the same is refused.
fn refused(text: &str) -> Copied {
    let [Some(reason)] = decided(text)[..] else { panic!("{:?}", decided(text)) };
    let mut plan = planned(text, &Profile::host(2));
    plan.copied = vec![None];
    let forced = verify(&liveness::finish(plan));
    let seen = [Copied::Across, Copied::Needed, Copied::MayFail, Copied::Checks];
    assert!(!seen.contains(&reason) || matches!(forced, Err(PlanError::Invalid { .. })), "{forced:?}");
    reason
}

const STEP: &str = "  %3 = map sub(%0, %1) : f32[32,32]\n";

#[test]
fn a_kernel_writes_over_the_parameter_that_it_updates() {
    let text = graph(STEP, "outputs %1\n  update %0 <- %3\n");
    assert_eq!(decided(&text), [None]);
    let plan = planned(&text, &Profile::host(2));
    assert_eq!((plan.peak_bytes(), plan.memory.own.len()), (0, 0));
    // The target is not read at all.
    let lines = "  %3 = map exp(%1) : f32[32,32]\n";
    assert_eq!(decided(&graph(lines, "outputs %2\n  update %0 <- %3\n")), [None]);
}

#[test]
fn inputs_are_written_on_the_host_and_copied_on_a_gpu() {
    let lines = "  %3 = map sub(%1, %0) : f32[32,32]\n";
    let text = graph(lines, "outputs %2\n  update %1 <- %3\n");
    assert_eq!(decided(&text), [None]);
    let on_gpu = text.replace("32,32]", "32,32]@cuda:0");
    assert_eq!(planned(&on_gpu, &gpu()).copied, [Some(Copied::Input)]);
    let param = graph(STEP, "outputs %2\n  update %0 <- %3\n").replace("32,32]", "32,32]@cuda:0");
    assert_eq!(planned(&param, &gpu()).copied, [None]);
}

#[test]
fn a_parameter_that_is_returned_after_its_update_is_written_directly() {
    let rest = "outputs %3\n  update %0 <- %3\n  alias 0 = %0 + 0 : f32[32,32]\n";
    assert_eq!(decided(&graph(STEP, rest)), [None]);
}

#[test]
fn what_a_result_or_another_update_reads_is_kept() {
    assert_eq!(refused(&graph(STEP, "outputs %0\n  update %0 <- %3\n")), Copied::Needed);
    assert_eq!(refused(&graph(STEP, "outputs %3\n  update %0 <- %3\n")), Copied::Returned);
    let swapped = graph(STEP, "outputs %2\n  update %0 <- %3\n  update %2 <- %0\n");
    assert_eq!(decided(&swapped), [Some(Copied::Needed), Some(Copied::NotGenerated)]);
    let view = "  %4 = view slice[0,1,1](%0) : f32[4,32]\n";
    let view = graph(&format!("{STEP}{view}"), "outputs %4\n  update %0 <- %3\n");
    assert_eq!(refused(&view), Copied::Needed);
}

#[test]
fn what_the_kernel_reads_across_is_kept() {
    let lines = "  %3 = view permute[1,0](%0) : f32[32,32]{1,32}\n  %4 = map add(%3, %1) : f32[32,32]\n";
    assert_eq!(refused(&graph(lines, "outputs %2\n  update %0 <- %4\n")), Copied::Across);
}

#[test]
fn what_a_later_step_reads_is_kept() {
    // The kernel of the sum over all is another one, and the one behind it reads the parameter.
    let lines = format!(
        "{STEP}  %4 = reduce max[0](%3) : f32[32]
  %5 = view reshape(%4) : f32[32,1]
  %6 = view expand(%5) : f32[32,32]
  %7 = map mul(%6, %0) : f32[32,32]\n"
    );
    let text = graph(&lines, "outputs %7\n  update %0 <- %3\n");
    assert!(planned(&text, &Profile::host(2)).kernel_count() > 1);
    assert!(matches!(refused(&text), Copied::Needed | Copied::Across));
}

#[test]
fn new_values_are_read_where_the_old_ones_were() {
    let lines = format!(
        "{STEP}  %4 = reduce max[0](%3) : f32[32]
  %5 = view reshape(%4) : f32[32,1]
  %6 = view expand(%5) : f32[32,32]
  %7 = map mul(%6, %3) : f32[32,32]\n"
    );
    let plan = planned(&graph(&lines, "outputs %7\n  update %0 <- %3\n"), &Profile::host(2));
    assert_eq!(plan.copied, [None]);
    // What a later step writes is allocated by the time of the first write over a parameter.
    let writes = |step: &crate::plan::Step| match &step.kind {
        StepKind::Kernel(k) => k.buffers.iter().any(|b| b.1 && b.0 == plan.updates[0].1.base()),
        StepKind::Extern(_) => false,
    };
    let first = plan.steps.iter().position(writes).unwrap();
    assert!(plan.steps[first + 1..].iter().all(|step| step.takes.is_empty()));
}

#[test]
fn nothing_is_written_before_a_step_that_may_fail() {
    let after =
        format!("{STEP}  %4 = aten::relu(self=%1) : f32[32,32]\n  %5 = aten::relu(self=%3) : f32[32,32]\n");
    assert_eq!(refused(&graph(&after, "outputs %4, %5\n  update %0 <- %3\n")), Copied::MayFail);
    let before = "  %3 = aten::relu(self=%1) : f32[32,32]\n  %4 = map sub(%0, %3) : f32[32,32]\n";
    assert_eq!(decided(&graph(before, "outputs %2\n  update %0 <- %4\n")), [None]);
    let gather = format!("{STEP}  %4 = input 2 : i64[8,32]\n  %5 = gather 0(%1, %4) : f32[8,32]\n");
    assert_eq!(refused(&graph(&gather, "outputs %5\n  update %0 <- %3\n")), Copied::Checks);
}

#[test]
fn a_library_result_may_be_the_parameter_itself() {
    let lines = "  %3 = aten::relu(self=%0) : f32[32,32]\n  %4 = map sub(%0, %3) : f32[32,32]\n";
    let text = graph(lines, "outputs %2\n  update %0 <- %4\n");
    assert_eq!(decided(&text), [Some(Copied::Needed)]);
}

#[test]
fn targets_lie_as_the_kernel_writes() {
    let with = |target: &str, value: &str| {
        let text = format!(
            "graph {{\n  %0 = param 0 : {target}\n  %1 = input 0 : f32[4,8]\n  %2 = map sub(%0, %1) : {value}
  outputs %1\n  update %0 <- %2\n}}\n"
        );
        decided(&text)
    };
    assert_eq!(with("f32[4,8]{1,4}", "f32[4,8]{1,4}"), [None]);
    assert_eq!(with("f32[4,8]{1,4}", "f32[4,8]"), [Some(Copied::Layout)]);
    assert_eq!(with("f32[4,8]{16,2}", "f32[4,8]{16,2}"), [Some(Copied::Layout)]);
    assert_eq!(with("f32[4,8]{0,1}", "f32[4,8]"), [Some(Copied::Layout)]);
}

#[test]
fn targets_are_aligned_as_kernels_write() {
    let graph = parse_graph(&graph(STEP, "outputs %1\n  update %0 <- %3\n")).unwrap();
    let alignments = Alignments { params: vec![8], ..Alignments::default() };
    let profile = Profile::host(2);
    let plan = pipeline::planned(graph, &mut Context { alignments, ..Context::new(&profile) }).unwrap();
    assert_eq!(plan.copied, [Some(Copied::Unaligned)]);
}

#[test]
fn a_value_is_written_over_one_target() {
    let text = graph(STEP, "outputs %1\n  update %0 <- %3\n  update %2 <- %3\n");
    assert_eq!(decided(&text), [None, Some(Copied::Taken)]);
    let view = format!("{STEP}  %4 = view permute[1,0](%3) : f32[32,32]{{1,32}}\n");
    assert_eq!(refused(&graph(&view, "outputs %1\n  update %0 <- %4\n")), Copied::View);
}

#[test]
fn state_is_stored_behind_what_is_computed_of_it() {
    // The state is updated first, and the parameter by the new state, which its store computes again of the old one.
    let lines = "  %3 = map exp(%0) : f32[32,32]
  %4 = map add(%3, %1) : f32[32,32]
  %5 = map sub(%2, %4) : f32[32,32]\n";
    let text = graph(lines, "outputs %1\n  update %0 <- %4\n  update %2 <- %5\n");
    assert_eq!(decided(&text), [None, None]);
    let plan = planned(&text, &Profile::host(2));
    let StepKind::Kernel(kernel) = &plan.steps[0].kind else { panic!("a call") };
    let stores = |text: String| {
        let line = |l: &&str| l.contains("load") || l.contains("store");
        text.lines().filter(line).map(|l| l.trim().to_owned()).collect::<Vec<_>>().join("\n")
    };
    expect![[r#"
        %6 = load %in3, %5
        %7 = load %in0, %5
        %9 = load %in1, %5
        store %out4, %5, %11
        store %out2, %5, %10"#]]
    .assert_eq(&stores(plan.programs[kernel.program].to_string()));
}

#[test]
fn of_two_that_need_each_other_one_is_copied() {
    let lines = "  %3 = map sub(%0, %1) : f32[32,32]\n  %4 = map mul(%0, %1) : f32[32,32]\n";
    let text = graph(lines, "outputs %2\n  update %0 <- %3\n  update %1 <- %4\n");
    assert_eq!(decided(&text), [Some(Copied::Across), None]);
}

/// How many loads a GPU may make before the kernel's predecessors have ended.
fn read_ahead(text: &str) -> usize {
    let plan = planned(text, &gpu());
    plan.programs.iter().map(|program| program.to_string().matches(", hint ahead").count()).sum()
}

#[test]
fn what_the_plan_does_not_write_is_read_ahead() {
    assert_eq!(read_ahead(&graph(STEP, "outputs %3\n")), 1);
    assert_eq!(read_ahead(&graph("  %3 = map sub(%1, %2) : f32[32,32]\n", "outputs %3\n")), 0);
    assert_eq!(read_ahead(&graph(STEP, "outputs %1\n  update %0 <- %3\n")), 0);
    // A kernel of many instances does not start early.
    let large = graph(STEP, "outputs %3\n").replace("[32,32]", "[8192,8192]");
    assert_eq!(read_ahead(&large), 0);
}

variants!(
    Copied: Checks, Input, View, NotGenerated, MayFail, Layout, Unaligned, Returned, Taken, Across, Needed, Limit
);

/// The texts of what the tests above make appear, and of the limit of [`super::reasons`].
#[test]
fn reasons_of_copies() {
    let all = [
        Copied::Checks,
        Copied::Input,
        Copied::View,
        Copied::NotGenerated,
        Copied::MayFail,
        Copied::Layout,
        Copied::Unaligned,
        Copied::Returned,
        Copied::Taken,
        Copied::Across,
        Copied::Needed,
        Copied::Limit,
    ];
    assert_eq!(all.map(|copied| copied.name()), Copied::NAMES);
    expect![[r#"
        a kernel checks indices
        inputs of a GPU may be copies of the caller's
        the new value is a view of another
        a block kernel or libtorch computes the new value
        a later step may fail
        the kernel writes another layout
        the tensor does not lie at a multiple of 16 bytes
        the new value is returned as well
        the new value is written over another tensor
        the kernel reads the tensor elsewhere or later than it writes
        the old value is needed later
        the number of rewrites is limited"#]]
    .assert_eq(&all.map(|copied| copied.to_string()).join("\n"));
}
