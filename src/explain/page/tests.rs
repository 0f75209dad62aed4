//! Pages of plans that are made up.

use super::*;
use crate::explain::{
    CodeReport, EagerReport, EdgeReport, MachineReport, OperatorReport, PassReport, TensorReport,
};
use crate::{CompileReport, PatternOption, UnmatchedPattern};

fn tensor(name: &str, step: Option<usize>) -> TensorReport {
    TensorReport { name: name.to_owned(), ty: String::from("f32[4,8]"), bytes: 128, step }
}

/// A kernel that reads what these steps compute.
fn kernel(at: usize, operator: &str, module: &str, from: &[usize]) -> StepReport {
    StepReport::Kernel {
        name: format!("fused_{at}"),
        shape: tilefuse_fusion::plan::KernelKind::Pointwise,
        operators: vec![operator.to_owned()],
        lines: Vec::new(),
        modules: if module.is_empty() { Vec::new() } else { vec![module.to_owned()] },
        grid: 1,
        reads: from.iter().map(|&step| tensor("x", Some(step))).collect(),
        writes: vec![tensor("y", Some(at))],
        flops: 32,
        bytes_read: 128,
        bytes_written: 128,
        bytes_non_temporal: 0,
        predicted_us: 2.0,
        measured_us: None,
        program: at,
        reason: None,
        parts: 1,
        horizontal_refusal: None,
        outer_loop: None,
        schedule: None,
        candidates: Vec::new(),
    }
}

/// A libtorch call.
pub(crate) fn call(operator: &str, predicted_us: Option<f64>) -> StepReport {
    StepReport::Extern {
        operator: operator.to_owned(),
        modules: Vec::new(),
        lines: Vec::new(),
        reads: vec![tensor("x", None)],
        writes: vec![tensor("y", None)],
        flops: 0,
        predicted_us,
        measured_us: None,
        result: String::from("f32[4,8]"),
        view: false,
        reason: None,
        candidates: Vec::new(),
    }
}

fn plan(steps: Vec<StepReport>, edges: Vec<EdgeReport>) -> Explanation {
    let held = vec![64; steps.len()];
    Explanation {
        version: crate::explain::REPORT_VERSION,
        note: None,
        planned_for: None,
        ops_captured: steps.len(),
        kernels_fused: steps.len(),
        launches_fused: steps.len(),
        distinct_kernels: steps.len(),
        extern_ops: 0,
        kernels_eager: steps.len(),
        peak_bytes_eager: 0,
        peak_bytes_fused: 0,
        arena_bytes: 0,
        packed_bytes: 0,
        cuda_graph: None,
        machine: Some(MachineReport {
            measured: true,
            gigabytes_per_s: 20.0,
            gigaops_per_s: 50.0,
            product_gigaops_per_s: 100.0,
            product_is_typical: false,
            launch_us: 2.0,
        }),
        rewrites: 0,
        last_rewrite: None,
        compile: CompileReport::default(),
        passes: vec![PassReport { name: String::from("lower"), ms: 0.25 }],
        programs: steps.iter().map(|_| String::from("kernel @k()")).collect(),
        operators: Vec::new(),
        steps,
        call_us: None,
        waiting: None,
        eager: Vec::new(),
        updates: Vec::new(),
        tolerances: Vec::new(),
        unmatched: Vec::new(),
        edges,
        memory: crate::explain::MemoryReport { fused: held, eager: vec![128, 256] },
        code: Vec::new(),
        source: None,
    }
}

/// Two layers of three steps, and a step before and behind them.
pub(crate) fn layers_of_two() -> Explanation {
    let paths =
        ["embed", "h.0.norm", "h.0.mlp.up", "h.0.mlp.down", "h.1.norm", "h.1.mlp.up", "h.1.mlp.down", "head"];
    let from = |at: usize| match at {
        0 => vec![],
        3 | 6 => vec![at - 1, at - 3],
        _ => vec![at - 1],
    };
    let steps = paths.iter().enumerate();
    let cut = EdgeReport {
        producer: String::from("aten::linear #1"),
        consumer: String::from("aten::linear #2"),
        producer_step: Some(2),
        consumer_step: Some(3),
        verdict: String::from("cut: predicted 9.0 us in one kernel, 4.0 us in two"),
        remedy: Some(String::from("nothing that the cost model knows")),
        fused: false,
        hinted: false,
        unmet: false,
        bytes: 128,
        cost_us: Some(1.5),
    };
    plan(
        steps.map(|(at, path)| kernel(at, &format!("aten::relu #{at}"), path, &from(at))).collect(),
        vec![cut],
    )
}

/// Boxes, each with what is in it, as text.
fn boxes(plan: &Explanation) -> Vec<String> {
    let item = |item: &Item| match item {
        Item::Step(at) => at.to_string(),
        Item::Group(at) => format!("box {at}"),
    };
    let groups = Tree::of(plan).groups;
    let text = groups
        .iter()
        .map(|g| format!("{}: {}", g.label, g.items.iter().map(item).collect::<Vec<_>>().join(", ")));
    text.collect()
}

#[test]
fn modules_are_boxes_where_they_have_several_things() {
    let found = boxes(&layers_of_two());
    assert_eq!(
        found,
        [
            ": 0, box 1, 7",
            "h.* × 2: box 2, box 4",
            "h.0: 1, box 3",
            "mlp: 2, 3",
            "h.1: 4, box 5",
            "mlp: 5, 6"
        ]
    );
    assert_eq!(boxes(&plan(vec![kernel(0, "aten::relu", "a.b", &[])], Vec::new())), [": 0"]);
    assert_eq!(boxes(&plan(Vec::new(), Vec::new())), [": "]);
}

#[test]
fn an_edge_goes_out_of_boxes_and_into_others() {
    let tree = Tree::of(&layers_of_two());
    let way = |from, to| format!("{:?}", tree.crossings(from, to));
    assert_eq!(way(2, 3), "[(3, Some(Step(2)), Some(Step(3)))]");
    assert_eq!(
        way(3, 4),
        "[(3, Some(Step(3)), None), (2, Some(Group(3)), None), (1, Some(Group(2)), Some(Group(4))), (4, None, Some(Step(4)))]"
    );
    assert_eq!(
        way(0, 1),
        "[(0, Some(Step(0)), Some(Group(1))), (1, None, Some(Group(2))), (2, None, Some(Step(1)))]"
    );
}

#[test]
fn a_box_of_a_path_says_what_is_not_said_around_it() {
    let steps =
        ["a.b.c", "a.b.d", "e"].iter().enumerate().map(|(at, path)| kernel(at, "aten::relu", path, &[]));
    assert_eq!(boxes(&plan(steps.collect(), Vec::new())), [": box 1, 2", "a.b: 0, 1"]);
}

/// Layers, half of each attention, behind a step that is of none.
pub(super) fn layers(count: usize, steps: usize) -> Explanation {
    let step = |at: usize| {
        let (layer, within) = (at / steps, at % steps);
        let part = if within < steps / 2 { "attn" } else { "mlp" };
        let from = [at.checked_sub(1), at.checked_sub(steps / 2 + 1)];
        let from: Vec<usize> = from.into_iter().flatten().collect();
        kernel(at, &format!("aten::relu #{at}"), &format!("h.{layer}.{part}.f{within}"), &from)
    };
    plan((0..count * steps).map(step).collect(), Vec::new())
}

/// A plan with an operator of each step, a cut in front of each, and code of each program.
pub(super) fn of_operators(mut plan: Explanation) -> Explanation {
    let name = |at: usize| format!("aten::relu #{at}");
    let steps = plan.steps.len();
    plan.operators = (0..steps)
        .map(|at| operator(at, "aten::relu", &tree::modules(&plan.steps[at])[0], Some(at)))
        .collect();
    let edge = layers_of_two().edges[0].clone();
    let cut = |at: usize| EdgeReport {
        producer: name(at - 1),
        consumer: name(at),
        producer_step: Some(at - 1),
        consumer_step: Some(at),
        ..edge.clone()
    };
    plan.edges = (1..steps).map(cut).collect();
    let lines = |form: &str, at: usize| {
        let line =
            |line: usize| (format!("  %{line} = {form} max %0, %{at}"), line.is_multiple_of(3).then_some(0));
        (0..40).map(line).collect::<Vec<_>>()
    };
    let code = |at: usize| CodeReport {
        operators: vec![name(at)],
        block: lines("map", at),
        llvm: lines("fcmp", at),
        machine: lines("vmaxps", at),
        language: String::from("assembly"),
    };
    plan.code = (0..plan.programs.len()).map(code).collect();
    plan
}

#[test]
fn layers_that_repeat_are_in_one_box_with_what_lies_between_them() {
    let two =
        ["a", "h.0.x", "h.0.y", "h", "h.1.x", "h.1.y", "h.2.x", "h.2.z", "h.3.x", "h.3.z", "n.0", "n.1"];
    let steps = two.iter().enumerate().map(|(at, path)| kernel(at, "aten::relu", path, &[]));
    assert_eq!(
        boxes(&plan(steps.collect(), Vec::new())),
        [
            ": 0, box 1, box 8",
            "h: box 2, box 5",
            "h.* × 2: box 3, 3, box 4",
            "h.0: 1, 2",
            "h.1: 4, 5",
            "h.* × 2: box 6, box 7",
            "h.2: 6, 7",
            "h.3: 8, 9",
            "n: 10, 11"
        ]
    );
}

/// As the masks of a model that are computed before everything else.
#[test]
fn a_module_with_early_steps_lies_where_most_of_it_is() {
    let paths = ["d.mask", "c.x", "c.y", "c.z", "a", "b.x", "b.y", "d.x", "d.y"];
    let steps = paths.iter().enumerate().map(|(at, path)| kernel(at, "aten::relu", path, &[]));
    let found = boxes(&plan(steps.collect(), Vec::new()));
    assert_eq!(found[0], ": box 1, 4, box 2, box 3");
}

#[test]
fn each_step_is_in_one_layer_of_one_box() {
    for plan in [layers_of_two(), chain(2000)] {
        let data = Data::of(&plan);
        let mut times = vec![0; plan.steps.len()];
        for (drawn, _) in data.groups.iter().flat_map(|group| group.layers.iter().flatten()) {
            if let Drawn::Step(at) = drawn {
                times[*at] += 1;
            }
        }
        assert!(times.iter().all(|&times| times == 1), "{times:?}");
    }
}

/// Steps of no module, one after the other, every third of which also reads an earlier one.
pub(super) fn chain(length: usize) -> Explanation {
    let from = |at: usize| match at {
        0 => vec![],
        _ if at.is_multiple_of(3) => vec![at - 1, at - 3],
        _ => vec![at - 1],
    };
    plan((0..length).map(|at| kernel(at, "aten::relu #1", "", &from(at))).collect(), Vec::new())
}

#[test]
fn steps_without_modules_are_in_boxes_of_a_size_that_can_be_laid_out() {
    let tree = Tree::of(&chain(2000));
    assert!(tree.groups.iter().all(|group| group.items.len() <= 120));
    assert_eq!(tree.groups[1].label, "steps 0 to 43");
}

#[test]
fn a_page_has_a_row_for_each_step_and_asks_for_nothing() {
    let page = page(&layers_of_two(), "a model", None);
    for at in 0..8 {
        assert_eq!(page.matches(&format!("<tr data-step=\"{at}\"><td data-value")).count(), 1);
    }
    assert!(page.contains("predicted 9.0 us in one kernel, 4.0 us in two"));
    // What eager holds at most is the height of the plot.
    assert!(page.contains("256 B") && page.matches("<polyline class=\"eager\"").count() == 1);
    for request in [" src=", " href=", "url(http", "@import", "fetch(", "import "] {
        assert!(!page.contains(request), "{request}");
    }
    let outside = page.match_indices("http").map(|(at, _)| &page[at..page.len().min(at + 26)]);
    assert!(
        outside
            .clone()
            .all(|text| text.starts_with("http://www.w3.org/2000/svg") || text.starts_with("http-equiv"))
    );
}

/// An operator of a module, with the step that it is in.
fn operator(number: usize, name: &str, module: &str, step: Option<usize>) -> OperatorReport {
    let left_out = step.is_none().then(|| String::from("nothing that a call gives back needs it"));
    OperatorReport { operator: format!("{name} #{number}"), module: module.to_owned(), step, left_out }
}

/// [`layers_of_two`], whose operators have modules: views are in the steps that read them, and one operator is in no step.
pub(super) fn with_operators() -> Explanation {
    let mut plan = layers_of_two();
    let named =
        |(at, step): (usize, &StepReport)| operator(at, "aten::relu", &tree::modules(step)[0], Some(at));
    plan.operators = plan.steps.iter().enumerate().map(named).collect();
    plan.operators.push(operator(8, "aten::view", "h.1.mlp.reshape", Some(5)));
    plan.operators.push(operator(9, "aten::neg", "unused", None));
    plan.edges[0].producer = String::from("aten::relu #2");
    plan.edges[0].consumer = String::from("aten::relu #3");
    plan.eager = (plan.operators.iter())
        .map(|known| EagerReport { operator: known.operator.clone(), module: known.module.clone(), us: 4.0 })
        .collect();
    plan
}

#[test]
fn cuts_name_the_modules_of_their_ends() {
    let page = page(&with_operators(), "a model", None);
    let row = "data-modules=\"h.0.mlp.down h.0.mlp.up\"";
    assert_eq!(page.matches(row).count(), 1);
    let ends =
        ["up", "down"].map(|part| format!("<td>relu <small class=\"module\">h.0.mlp.{part}</small></td>"));
    assert!(page.contains(&ends.concat()), "{ends:?}");
}

#[test]
fn an_operator_of_eagers_has_the_colour_of_the_step_that_it_is_in() {
    let plan = with_operators();
    let [ours, eagers] = plots::timelines(&plan);
    // On one scale: eager's ten operators take 40 us, the eight steps 16 us.
    assert_eq!((ours.len(), ours[7].x + ours[7].width), (8, 400.0));
    let of = |number: usize| (eagers[number].at, eagers[number].class, eagers[number].left_out);
    assert_eq!(of(1), (Some(1), "pointwise", ""));
    assert_eq!(of(8), (Some(5), "pointwise", ""));
    assert_eq!(of(9), (None, "left-out", "nothing that a call gives back needs it"));
    let page = page(&plan, "a model", None);
    assert!(page.contains("<title>aten::view #8 of h.1.mlp.reshape: 4.0 us, in step 5</title>"));
    assert!(page.contains("in no step: nothing that a call gives back needs it"));
    assert!(page.contains("in the colours of the steps that they are in; 1 that are in no step are pale"));
}

/// The places of a line's points, from the left to the right.
fn across(points: &str) -> Vec<f64> {
    let place = |point: &str| point.split(',').next().and_then(|x| x.parse().ok());
    points.split(' ').filter_map(place).collect()
}

#[test]
fn memory_is_shown_over_the_time_of_a_call() {
    let mut plan = layers_of_two();
    if let StepReport::Kernel { predicted_us, .. } = &mut plan.steps[0] {
        *predicted_us = 14.0;
    }
    plan.steps[7] = call("aten::sort #7", None);
    // Half of the time is the first step's; a call of which nothing is known has no width.
    let plot = plots::memory(&plan).unwrap();
    let (width, fused) = (plot.right - plot.left, across(&plot.fused));
    let part = |x: f64| ((x - plot.left) / width * 100.0).round();
    assert_eq!(fused.iter().map(|&x| part(x)).collect::<Vec<_>>()[..4], [0.0, 54.0, 54.0, 62.0]);
    assert_eq!((part(fused[13]), part(fused[14]), part(fused[15])), (100.0, 100.0, 100.0));
    assert_eq!(across(&plot.eager).iter().map(|&x| part(x)).collect::<Vec<_>>(), [0.0, 50.0, 50.0, 100.0]);
    assert_eq!((plot.axis, plot.columns[4].2.as_str()), ("time within the call, as predicted", "26.0 us"));
    assert!(plot.note.contains("spread evenly") && plot.note.contains("A libtorch call of which no time"));
    // Eager's own times where they were measured.
    let mut plan = with_operators();
    plan.memory.eager = vec![256; 10];
    let plot = plots::memory(&plan).unwrap();
    let [fused, eager] = [&plot.fused, &plot.eager].map(|line| across(line).last().copied().unwrap());
    assert_eq!((part(fused), part(eager), plot.columns[4].2.as_str()), (40.0, 100.0, "40.0 us"));
}

#[test]
fn hints_that_nothing_is_meant_by_and_predictions_beside_measurements_are_said() {
    let mut plan = layers_of_two();
    assert!(!page(&plan, "a model", None).contains(">predicted</th>"));
    plan.unmatched =
        vec![UnmatchedPattern { option: PatternOption::Eager, pattern: String::from("h.*.atn") }];
    for step in &mut plan.steps {
        if let StepReport::Kernel { measured_us, .. } = step {
            *measured_us = Some(3.0);
        }
    }
    let page = page(&plan, "a model", None);
    assert!(page.contains("hint eager=h.*.atn: no operator has this name"));
    let times = "<td data-value=\"3\">3.0</td><td data-value=\"2\">2.0</td>";
    assert!(page.contains(">predicted</th>") && page.contains(times), "{page}");
}

#[test]
fn what_takes_most_is_told_apart_by_its_modules() {
    let mut plan = layers_of_two();
    if let StepReport::Kernel { name, program, .. } = &mut plan.steps[5] {
        // That of the first layer.
        (*name, *program) = (String::from("fused_2"), 2);
    }
    let page = page(&plan, "a model", None);
    for row in [
        "<td>fused_2 <small>× 2</small> <small class=\"module\">h.*.mlp.up</small></td>",
        "<td>fused_3 <small class=\"module\">h.0.mlp.down</small></td>",
    ] {
        assert!(page.contains(row), "{page}");
    }
}

#[test]
fn what_stands_between_backticks_is_code() {
    assert_eq!(coded("a `b<c>` & `d`"), "a <code>b&lt;c&gt;</code> &amp; <code>d</code>");
    assert_eq!(coded("a ` b"), "a ` b");
}

#[test]
fn names_of_a_model_are_text_wherever_they_stand() {
    let evil = "</script><script>alert(1)</script>\"'&";
    let mut plan = plan(vec![kernel(0, evil, evil, &[]), kernel(1, evil, evil, &[0])], Vec::new());
    plan.note = Some(evil.to_owned());
    plan.programs[0] = evil.to_owned();
    let page = page(&plan, evil, None);
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script").count(), 2);
    assert!(!page.contains("alert(1)</"));
}
