//! Row reductions before and behind products: what is written to memory, and what is computed, in the interpreter.

use expect_test::expect;
use tilefuse_block::{Data, Literal};

use super::Products;
use super::tests::{memory, run_packed};
use crate::eval::{Precision, Sources, eval};
use crate::graph::{Op, ValueRef};
use crate::machine::Profile;
use crate::parse_graph;
use crate::pipeline::{self, Context, Form, Stage};
use crate::place::Place;
use crate::plan::{Plan, StepKind};
use crate::{Graph, Prepacked};

/// The plan of a functional graph with generated products over packed weights.
pub(super) fn planned(text: &str, profile: &Profile) -> (Plan, Vec<Prepacked>) {
    let mut cx = Context::new(profile);
    cx.selection.products = Products::Generated;
    cx.selection.constants = Some(0);
    let form = Form::Graph(parse_graph(text).unwrap());
    match pipeline::run(form, Stage::Primitive..=Stage::Plan, &mut cx, &mut |_, _| true) {
        Ok(Form::Plan(plan)) => (plan, cx.selection.packed),
        other => panic!("{other:?}"),
    }
}

/// Values of at least so many bytes that steps write to memory, beside results and what an outer loop holds a block at a time.
fn written_whole(plan: &Plan, bytes: u64) -> Vec<ValueRef> {
    let buffers = plan.steps.iter().flat_map(|step| match &step.kind {
        StepKind::Kernel(kernel) => kernel.buffers.clone(),
        StepKind::Extern(_) => panic!("a libtorch call"),
    });
    let kept: Vec<ValueRef> =
        plan.outer_loops.iter().flat_map(|l| &l.local_buffers).map(|k| k.value).collect();
    let results: Vec<ValueRef> = plan.outputs.iter().map(Place::base).collect();
    let written = buffers.filter(|b| b.1).map(|b| b.0);
    let whole = written.filter(|v| plan.graph.ty(*v).bytes() >= bytes);
    whole.filter(|v| !kept.contains(v) && !results.contains(v)).collect()
}

/// How each kernel of a plan computes its results.
fn schedules(plan: &Plan) -> String {
    let kernels = plan.steps.iter().filter_map(|step| match &step.kind {
        StepKind::Kernel(kernel) => Some(format!("{}\n", kernel.schedule)),
        StepKind::Extern(_) => None,
    });
    kernels.collect()
}

/// The results of a functional graph in `f64`.
pub(super) fn exact(text: &str, profile: &Profile) -> Vec<Vec<f64>> {
    let form = Form::Graph(parse_graph(text).unwrap());
    let primitive = Stage::Primitive..=Stage::Primitive;
    let lowered =
        pipeline::run(form, primitive, &mut Context::new(profile), &mut |pass, _| pass != "simplify");
    let Ok(Form::Graph(graph)) = lowered else { panic!() };
    let data = |graph: &Graph, wanted: &dyn Fn(&Op) -> bool| -> Vec<Data> {
        let ids = graph.ids().filter(|&id| wanted(&graph.node(id).op));
        let mut found: Vec<(u32, Data)> = ids
            .map(|id| {
                let ty = graph.ty(id.into());
                let (Op::Input(slot) | Op::Param(slot)) = graph.node(id).op else { panic!() };
                let elem = ty.dtype.elem().unwrap();
                let values = memory(slot, ty);
                (slot, Data::from_literals(elem, values.iter().map(|&v| Literal::of(elem, v))))
            })
            .collect();
        found.sort_by_key(|f| f.0);
        found.into_iter().map(|f| f.1).collect()
    };
    let inputs = data(&graph, &|op| matches!(op, Op::Input(_)));
    let params = data(&graph, &|op| matches!(op, Op::Param(_)));
    let sources = Sources { inputs: &inputs, params: &params, ..Sources::default() };
    eval(&graph, sources, Precision::Exact).unwrap().outputs.iter().map(Data::to_f64).collect()
}

fn check(text: &str, profile: &Profile) {
    check_within(text, profile, 2e-5);
}

pub(super) fn check_within(text: &str, profile: &Profile, tolerance: f64) {
    let (plan, packed) = planned(text, profile);
    let found = run_packed(&plan, &packed);
    for (f, e) in found.iter().flatten().zip(exact(text, profile).iter().flatten()) {
        assert!((f - e).abs() <= tolerance * e.abs().max(1.0), "{f} instead of {e}\n{plan}");
    }
}

/// A graph of bf16 on a GPU.
pub(super) fn on_gpu(text: &str) -> String {
    let mut parts = text.split("f32[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (shape, rest) = part.split_once(']').unwrap();
        text + "bf16[" + shape + "]@cuda:0" + rest
    })
}

/// The cross-entropy of classes of bf16 on a GPU.
fn loss_on_gpu(rows: i64, width: i64, classes: i64) -> String {
    let targets = format!("i64[{rows}]");
    on_gpu(&loss_behind(rows, width, classes)).replace(&targets, &(targets.clone() + "@cuda:0"))
}

/// A linear layer, a residual and a layer norm, whose sum is a result as well.
fn norm_behind(rows: i64, width: i64, hidden: i64) -> String {
    format!(
        "graph {{
           %0 = input 0 : f32[{rows},{width}]
           %1 = input 1 : f32[{rows},{hidden}]
           %2 = param 0 : f32[{hidden},{width}]
           %3 = param 1 : f32[{hidden}]
           %4 = aten::linear(input=%0, weight=%2, bias=%3) : f32[{rows},{hidden}]
           %5 = aten::add(self=%4, other=%1) : f32[{rows},{hidden}]
           %6 = aten::layer_norm(input=%5, normalized_shape=[{hidden}], weight=%3, bias=%3, eps=1e-05) : f32[{rows},{hidden}]
           outputs %6
         }}"
    )
}

/// A root mean square norm and a linear layer.
fn norm_before(rows: i64, width: i64, hidden: i64) -> String {
    format!(
        "graph {{
           %0 = input 0 : f32[{rows},{width}]
           %1 = param 0 : f32[{width}]
           %2 = param 1 : f32[{hidden},{width}]
           %3 = aten::rms_norm(input=%0, normalized_shape=[{width}], weight=%1, eps=1e-05) : f32[{rows},{width}]
           %4 = aten::linear(input=%3, weight=%2) : f32[{rows},{hidden}]
           outputs %4
         }}"
    )
}

/// A linear layer and the softmax of its rows.
fn softmax_behind(rows: i64, width: i64, classes: i64) -> String {
    format!(
        "graph {{
           %0 = input 0 : f32[{rows},{width}]
           %1 = param 0 : f32[{classes},{width}]
           %2 = aten::linear(input=%0, weight=%1) : f32[{rows},{classes}]
           %3 = aten::softmax(self=%2, dim=1) : f32[{rows},{classes}]
           outputs %3
         }}"
    )
}

/// The cross-entropy of a linear layer's classes.
fn loss_behind(rows: i64, width: i64, classes: i64) -> String {
    format!(
        "graph {{
           %0 = input 0 : f32[{rows},{width}]
           %1 = input 1 : i64[{rows}]
           %2 = param 0 : f32[{classes},{width}]
           %3 = param 1 : f32[{classes}]
           %4 = aten::linear(input=%0, weight=%2, bias=%3) : f32[{rows},{classes}]
           %5 = aten::cross_entropy_loss(self=%4, target=%1, weight=None, reduction=1, ignore_index=-100, \
                                         label_smoothing=0.0) : f32[]
           outputs %5
         }}"
    )
}

#[test]
fn norms_beside_products_are_computed_in_blocks_of_rows() {
    let profile = Profile::host(2);
    for text in [norm_behind(4096, 768, 768), norm_before(4096, 768, 3072)] {
        let (plan, _) = planned(&text, &profile);
        let [outer_loop] = plan.outer_loops.as_slice() else { panic!("{:?}", plan.outer_loop_refusals) };
        assert_eq!(
            (plan.kernel_count(), outer_loop.steps.clone(), outer_loop.local_buffers.len()),
            (2, 0..2, 1)
        );
        assert_eq!(written_whole(&plan, 64 << 10), []);
    }
    // What fits the threads' caches is there when it is read.
    for text in [norm_behind(128, 768, 768), norm_before(128, 768, 3072)] {
        let (plan, _) = planned(&text, &profile);
        assert_eq!((plan.kernel_count(), plan.outer_loops.len()), (2, 0));
    }
}

#[test]
fn rows_of_one_block_are_normalized_where_they_are_summed() {
    for (rows, hidden, kernels) in
        [(32, 48, 1), (128, 64, 1), (128, 33, 1), (128, 65, 2), (7, 40, 1), (1, 40, 2)]
    {
        let text = norm_behind(rows, 24, hidden);
        let (plan, _) = planned(&text, &Profile::host(2));
        assert_eq!(plan.kernel_count(), kernels, "{plan}");
        check(&text, &Profile::host(2));
    }
}

/// Rows that no block divides are computed a few at a time, of which the last ones are computed twice.
#[test]
fn rows_of_an_unaligned_product_are_normalized_where_they_are_summed() {
    let cases =
        [(17, 33, 1), (17, 65, 2), (129, 48, 1), (129, 64, 1), (197, 20, 1), (197, 64, 1), (197, 768, 2)];
    for (rows, hidden, kernels) in cases {
        let text = norm_behind(rows, 24, hidden);
        let (plan, _) = planned(&text, &Profile::host(2));
        assert!(schedules(&plan).contains("unaligned GEMM"), "{plan}");
        assert_eq!(plan.kernel_count(), kernels, "{plan}");
        check(&text, &Profile::host(2));
    }
    // What is normalized is stored beside.
    let text = norm_behind(197, 24, 48);
    check(&text.replace("outputs %6", "outputs %6, %5"), &Profile::host(2));
    check_within(&text.replace("f32[", "f16["), &Profile::host(2), 2e-2);
    let softmax = softmax_behind(197, 24, 40);
    assert_eq!(planned(&softmax, &Profile::host(2)).0.kernel_count(), 1);
    check(&softmax, &Profile::host(2));
}

/// The store of each row of a tile follows its statistics.
#[test]
fn a_tile_of_an_unaligned_product_has_a_norm_for_each_of_its_rows() {
    let (plan, _) = planned(&norm_behind(197, 24, 64), &Profile::host(2));
    let text = plan.programs[0].to_string();
    let after = text.rsplit_once("yield").map_or("", |(_, after)| after);
    let count = |op: &str| after.matches(op).count();
    let found = format!(
        "{}{} joins, {} sums of rows, {} stores",
        schedules(&plan),
        count("= join "),
        count("= reduce sum "),
        count("store %")
    );
    expect![[r#"
        unaligned GEMM, blocks of 6 x 64, right operand in panels, prepacked
        18 joins, 18 sums of rows, 6 stores"#]]
    .assert_eq(&found);
}

/// Products of two inputs, of which the rows are normalized.
fn norm_behind_batch(members: i64, rows: i64, columns: i64) -> String {
    format!(
        "graph {{
           %0 = input 0 : f32[{members},{rows},24]
           %1 = input 1 : f32[{members},24,{columns}]
           %2 = param 0 : f32[{columns}]
           %3 = aten::bmm(self=%0, mat2=%1) : f32[{members},{rows},{columns}]
           %4 = aten::add(self=%3, other=%3) : f32[{members},{rows},{columns}]
           %5 = aten::layer_norm(input=%4, normalized_shape=[{columns}], weight=%2, bias=%2, eps=1e-05) : f32[{members},{rows},{columns}]
           outputs %5
         }}"
    )
}

#[test]
fn rows_of_batched_products_are_normalized_where_they_are_summed() {
    for (rows, columns, kernels) in [(7, 33, 1), (17, 48, 1), (129, 64, 1), (17, 65, 2)] {
        let text = norm_behind_batch(3, rows, columns);
        let (plan, _) = planned(&text, &Profile::host(2));
        assert_eq!(plan.kernel_count(), kernels, "{plan}");
        check(&text, &Profile::host(2));
    }
}

/// A matrix of one column has no variable along it, and blocks that are wider.
#[test]
fn rows_of_one_column_have_the_shape_of_their_block() {
    let mut pairs = Profile::host(4);
    pairs.products.vnni2 = 2.0 * pairs.products.generated;
    for (elem, tolerance) in [("f32", 2e-5), ("f64", 2e-5), ("f16", 2e-2), ("bf16", 2e-2)] {
        for (rows, width) in [(1, 33), (3, 1), (17, 65), (197, 33)] {
            let batch = norm_behind_batch(3, rows, 1);
            for text in [norm_behind(rows, width, 1), softmax_behind(rows, width, 1), batch] {
                for profile in [Profile::host(4), pairs] {
                    check_within(&text.replace("f32", elem), &profile, tolerance);
                }
            }
        }
    }
}

/// A convolution and a norm over the channels of each pixel.
fn norm_of_channels(batch: i64, channels: i64, [size, kernel]: [i64; 2]) -> String {
    let padding = kernel / 2;
    format!(
        "graph {{
           %0 = input 0 : f32[{batch},24,{size},{size}]
           %1 = param 0 : f32[{channels},24,{kernel},{kernel}]
           %2 = param 1 : f32[{channels}]
           %3 = aten::conv2d(input=%0, weight=%1, bias=%2, stride=[1, 1], padding=[{padding}, {padding}], dilation=[1, 1], groups=1) \
                : f32[{batch},{channels},{size},{size}]
           %4 = aten::permute(self=%3, dims=[0, 2, 3, 1]) : f32[{batch},{size},{size},{channels}]{{{image},{row},1,{plane}}}
           %5 = aten::layer_norm(input=%4, normalized_shape=[{channels}], weight=%2, bias=%2, eps=1e-05) : f32[{batch},{size},{size},{channels}]
           outputs %5
         }}",
        image = channels * size * size,
        row = size,
        plane = size * size,
    )
}

#[test]
fn channels_of_a_pixel_are_normalized_where_they_are_summed() {
    for (batch, channels, sizes, kernels) in [(1, 32, [7, 3], 1), (2, 30, [9, 1], 1), (2, 40, [9, 1], 2)] {
        let text = norm_of_channels(batch, channels, sizes);
        let (plan, _) = planned(&text, &Profile::host(2));
        assert_eq!(plan.kernel_count(), kernels, "{plan}");
        check(&text, &Profile::host(2));
    }
}

#[test]
fn on_a_gpu_rows_of_one_block_are_normalized_where_they_are_summed() {
    let gpu = Profile::gpu(132, 4200.0).with_clusters().with_warpgroups();
    for (rows, hidden, kernels) in [(70, 48, 1), (64, 64, 1), (40_000, 96, 1), (40_000, 128, 1)] {
        let text = on_gpu(&norm_behind(rows, 64, hidden));
        assert_eq!(planned(&text, &gpu).0.kernel_count(), kernels, "{rows} {hidden}");
        if rows < 100 {
            check_within(&text, &gpu, 3e-2);
        }
    }
}

#[test]
fn logits_are_not_written_for_their_loss() {
    let (plan, _) = planned(&loss_behind(128, 768, 50_257), &Profile::host(2));
    assert_eq!(written_whole(&plan, 1 << 20), []);
    assert!(plan.memory.bytes < 2 << 20);
    // Targets; logits and their parts of statistics; the logits of the targets; all statistics; the mean.
    assert_eq!(plan.kernel_count(), 5);
    // Two threads that share a fast memory write them in the time of a launch.
    let mut fast = Profile::host(2);
    fast.bandwidth = 1e6;
    let (plan, _) = planned(&loss_behind(128, 768, 50_257), &fast);
    assert_eq!(written_whole(&plan, 1 << 20).len(), 1, "{plan}");
}

/// With a mask of minus infinity added to the logits.
fn masked(text: &str) -> String {
    let shape = text
        .split("outputs")
        .next()
        .and_then(|t| t.split("aten::linear").nth(1))
        .and_then(|t| t.split(": ").nth(1));
    let shape = shape.and_then(|t| t.lines().next()).unwrap_or_default();
    let mask = format!(
        "%6 = aten::mul(self=%4, other=0.0) : {shape}
         %7 = aten::add(self=%6, other=1.0) : {shape}
         %8 = aten::tril(self=%7, diagonal=16) : {shape}
         %9 = aten::log(self=%8) : {shape}
         %10 = aten::add(self=%4, other=%9) : {shape}
         %5 = "
    );
    text.replace("self=%4, target", "self=%10, target").replace("%5 = ", &mask)
}

#[test]
fn losses_of_parts_of_rows_are_those_of_whole_rows() {
    let mut slow = Profile::host(2);
    slow.bandwidth = 0.01;
    for (rows, classes) in
        [(64, 150), (128, 128), (16, 50), (128, 1000), (7, 65), (17, 1000), (129, 150), (197, 768)]
    {
        let text = loss_behind(rows, 16, classes);
        let (plan, _) = planned(&text, &slow);
        assert_eq!(written_whole(&plan, (rows * classes * 4) as u64), [], "{rows} {classes}\n{plan}");
        check(&text, &slow);
    }
    // Whole blocks of minus infinity, in most rows.
    let text = masked(&loss_behind(64, 16, 150));
    check(&text, &slow);
    // The mask is gathered from.
    let plan = planned(&text, &slow).0;
    let product = |v: &ValueRef| matches!(plan.graph.node(v.node).op, Op::Aten(_));
    assert!(!written_whole(&plan, 64 * 150 * 4).iter().any(product), "{plan}");
    // Logits that are returned.
    let text = loss_behind(64, 16, 150).replace("outputs %5", "outputs %5, %4");
    check(&text, &slow);
}

#[test]
fn on_a_gpu_logits_are_not_written_for_their_loss_either() {
    let gpu = Profile::gpu(132, 4200.0).with_clusters().with_warpgroups();
    let (plan, _) = planned(&loss_on_gpu(8192, 768, 50_257), &gpu);
    let logits = |v: &ValueRef| plan.graph.ty(*v).numel() == 8192 * 50_257;
    assert!(!written_whole(&plan, 1 << 20).iter().any(logits), "{plan}");
    assert!(plan.memory.bytes < 32 << 20);
    // A small one is there when its loss reads it.
    assert_eq!(planned(&loss_on_gpu(128, 768, 1000), &gpu).0.kernel_count(), 4);
}

#[test]
fn on_a_gpu_losses_of_parts_of_rows_are_those_of_whole_rows() {
    let mut slow = Profile::gpu(132, 4200.0).with_clusters().with_warpgroups();
    slow.bandwidth = 0.01;
    for (rows, classes) in [(64, 300), (128, 512), (70, 1001)] {
        let text = loss_on_gpu(rows, 32, classes);
        let (plan, _) = planned(&text, &slow);
        let logits = |v: &ValueRef| plan.graph.ty(*v).numel() == rows * classes;
        assert!(!written_whole(&plan, 0).iter().any(logits), "{rows} {classes}\n{plan}");
        check_within(&text, &slow, 3e-2);
    }
    let text = masked(&loss_on_gpu(64, 32, 600));
    let (plan, _) = planned(&text, &slow);
    let product = |v: &ValueRef| matches!(plan.graph.node(v.node).op, Op::Aten(_));
    assert!(!written_whole(&plan, 64 * 600).iter().any(product), "{plan}");
    check_within(&text, &slow, 3e-2);
}
