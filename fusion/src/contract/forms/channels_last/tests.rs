use std::fmt::Write;

use expect_test::{Expect, expect};

use crate::contract::forms::call_layouts;
use crate::contract::{ComparedForms, MatchFailure, Prices, Products, choose_products};
use crate::graph::{Graph, NodeId, Op};
use crate::machine::Profile;
use crate::pipeline::{plan, primitive};
use crate::plan::Plan;
use crate::rewrite::channels_last::ResultLayout;
use crate::rewrite_limit::Rewrites;

fn gpu() -> Profile {
    Profile::gpu(132, 4200.0).with_clusters().with_warpgroups()
}

/// A graph of calls: lines of results, calls and types, over a batch of images, a residual and a weight.
fn graph_of(calls: &[(&str, &str)]) -> String {
    let mut text = String::from(
        "graph {
           %0 = input 0 : bf16[2,16,8,8]@cuda:0
           %1 = input 1 : bf16[2,16,8,8]@cuda:0
           %2 = param 0 : bf16[16,16,3,3]@cuda:0
           %3 = param 1 : bf16[16,16,1,1]@cuda:0\n",
    );
    for (at, (call, shape)) in calls.iter().enumerate() {
        writeln!(text, "%{} = aten::{call} : bf16[{shape}]@cuda:0", at + 4).unwrap();
    }
    writeln!(text, "outputs %{}\n}}", calls.len() + 3).unwrap();
    text
}

const IMAGES: &str = "2,16,8,8";

/// A convolution of three by three taps that keeps the size.
fn conv(of: u32) -> String {
    format!(
        "conv2d(input=%{of}, weight=%2, bias=None, stride=[1,1], padding=[1,1], dilation=[1,1], groups=1)"
    )
}

/// A convolution of one tap.
fn pointwise(of: u32) -> String {
    format!(
        "conv2d(input=%{of}, weight=%3, bias=None, stride=[1,1], padding=[0,0], dilation=[1,1], groups=1)"
    )
}

fn compared(
    text: &str,
    profile: &Profile,
    (products, prepacks): (Products, bool),
) -> (Graph, Vec<ComparedForms>) {
    let mut graph = primitive(text, profile);
    let compared = call_layouts(&mut graph, Prices { profile, products, prepacks }, &Rewrites::default());
    crate::verify(&graph).unwrap();
    (graph, compared)
}

fn rewritten(text: &str) -> Graph {
    compared(text, &gpu(), (Products::Predicted, false)).0
}

/// The calls of a graph, and how many of them have results in channels-last where kernels may be ours and where they are libtorch's.
fn calls_by(text: &str) -> [(usize, usize); 2] {
    [Products::Predicted, Products::Library]
        .map(|products| calls(&compared(text, &gpu(), (products, false)).0))
}

/// The calls of a graph, and how many of them have results in channels-last.
fn calls(graph: &Graph) -> (usize, usize) {
    let is_call = |id: &NodeId| matches!(graph.node(*id).op, Op::Aten(_));
    let last = |id: &NodeId| {
        let ty = graph.ty((*id).into());
        ResultLayout::channels_last(&ty.shape, true).is_some_and(|l| l.is_order_of(&ty.strides, &ty.shape))
    };
    let all: Vec<NodeId> = graph.ids().filter(is_call).collect();
    (all.len(), all.iter().filter(|id| last(id)).count())
}

fn planned(text: &str) -> Plan {
    plan(&rewritten(text), &gpu()).unwrap()
}

#[test]
fn convolutions_behind_each_other_are_in_channels_last() {
    let text = graph_of(&[
        (&conv(0), IMAGES),
        ("relu(self=%4)", IMAGES),
        (&conv(5), IMAGES),
        ("add.Tensor(self=%6, other=%5, alpha=1)", IMAGES),
        (&conv(7), IMAGES),
        ("mean.dim(self=%8, dim=[2,3], keepdim=false, dtype=None)", "2,16"),
    ]);
    assert_eq!(calls(&rewritten(&text)), (3, 3));
    let plan = planned(&text);
    // One launch brings the images and the weight into this order; then the activation, the sum and the average.
    assert_eq!((plan.extern_count(), plan.kernel_count()), (3, 4), "{plan}");
}

#[test]
fn concatenations_and_pooling_stay_in_channels_last() {
    let text = graph_of(&[
        (&conv(0), IMAGES),
        (&conv(4), IMAGES),
        ("cat(tensors=[%4,%5], dim=1)", "2,32,8,8"),
        (
            "max_pool2d(self=%6, kernel_size=[2,2], stride=[2,2], padding=[0,0], dilation=[1,1], ceil_mode=false)",
            "2,32,4,4",
        ),
        ("slice.Tensor(self=%7, dim=1, start=0, end=16, step=1)", "2,16,4,4"),
        ("relu(self=%8)", "2,16,4,4"),
        (&conv(9), "2,16,4,4"),
        ("mean.dim(self=%10, dim=[2,3], keepdim=false, dtype=None)", "2,16"),
    ]);
    assert_eq!(calls(&rewritten(&text)), (3, 3));
}

/// The images lie in channels-last, and eager's result with them; the filters do not.
#[test]
fn filters_follow_results_that_lie_in_channels_last() {
    let images = "bf16[2,16,8,8]{1024,1,128,16}@cuda:0";
    let text = |weight: &str, used: &str| {
        format!(
            "graph {{
               %0 = input 0 : {images}
               %1 = param 0 : bf16[16,16,3,3]{weight}@cuda:0
               %2 = aten::{} : {images}
               %3 = aten::relu(self=%2) : {images}
               outputs {used}
             }}",
            conv(0).replace("weight=%2", "weight=%1")
        )
    };
    for (used, kernels) in [("%2", 1), ("%3", 2), ("%2, %3", 2)] {
        let mut graph = rewritten(&text("", used));
        assert_eq!(calls(&graph), (1, 1), "{graph}");
        let library = plan(&graph, &gpu()).unwrap();
        assert_eq!((library.extern_count(), library.kernel_count()), (1, kernels), "{library}");
        choose_products(&mut graph, &gpu(), Products::Generated, None, u64::MAX, &mut |_| None);
        // The filters, and the convolution with what follows it, which leaves its results as eager lays them out.
        let ours = plan(&graph, &gpu()).unwrap();
        assert_eq!((ours.extern_count(), ours.kernel_count()), (0, 2), "{ours}");
        for output in &graph.outputs {
            assert_eq!(graph.ty(*output).strides[..], [1024, 1, 128, 16], "{graph}");
        }
    }
    // Where the filters lie so, too, nothing is copied.
    let whole = text("{144,1,48,16}", "%2");
    assert_eq!(rewritten(&whole).to_string(), primitive(&whole, &gpu()).to_string());
}

/// cuDNN copies what lies in another order as well: a kernel of ours alone takes less.
#[test]
fn a_convolution_alone_is_in_channels_last_for_a_kernel() {
    let text = graph_of(&[(&conv(0), IMAGES), ("relu(self=%4)", IMAGES)]);
    assert_eq!(calls_by(&text), [(1, 1), (1, 0)]);
    // No kernel computes transposed ones, or those of channels that are not copied 16 bytes at a time.
    let transposed = text
        .replace("conv2d(", "conv_transpose2d.input(")
        .replace("padding=[1,1], ", "padding=[1,1], output_padding=[0,0], ");
    let transposed = transposed.replace("dilation=[1,1], groups=1", "groups=1, dilation=[1,1]");
    assert_eq!(calls_by(&transposed), [(1, 0); 2]);
    let few = text
        .replace("%0 = input 0 : bf16[2,16", "%0 = input 0 : bf16[2,12")
        .replace("16,16,3,3", "16,12,3,3");
    assert_eq!(calls_by(&few), [(1, 0); 2]);
}

#[test]
fn a_processor_keeps_its_own_layouts() {
    let text = graph_of(&[
        (&conv(0), IMAGES),
        (&conv(4), IMAGES),
        ("mean.dim(self=%5, dim=[2,3], keepdim=false, dtype=None)", "2,16"),
    ])
    .replace("@cuda:0", "");
    let profile = Profile::host(2);
    let (graph, compared) = compared(&text, &profile, (Products::Predicted, true));
    assert!(compared.is_empty());
    assert_eq!(graph.to_string(), primitive(&text, &profile).to_string());
}

/// A product is as quick as the images lie, so that it alone copies nothing into another order: at most it lets a kernel store its images
/// for another one.
#[test]
fn convolutions_of_one_tap_follow_their_neighbours() {
    let alone = graph_of(&[
        (&pointwise(0), IMAGES),
        ("relu(self=%4)", IMAGES),
        (&pointwise(5), IMAGES),
        ("mean.dim(self=%6, dim=[2,3], keepdim=false, dtype=None)", "2,16"),
    ]);
    assert_eq!(calls_by(&alone), [(2, 1), (2, 0)]);
    let behind = graph_of(&[
        (&conv(0), IMAGES),
        ("relu(self=%4)", IMAGES),
        (&pointwise(5), IMAGES),
        ("mean.dim(self=%6, dim=[2,3], keepdim=false, dtype=None)", "2,16"),
    ]);
    assert_eq!(calls_by(&behind), [(2, 2); 2]);
}

/// Depthwise convolutions follow each other in channels-last where cuDNN has kernels for their filters, and where that takes more than
/// starting a kernel that copies the images.
#[test]
fn depthwise_convolutions_are_in_channels_last_where_that_saves_more_than_a_copy() {
    let calls_of = |extent: i64, images: &str| {
        let channels = images.split(',').nth(1).unwrap();
        let conv = |of: u32| {
            let padding = extent / 2;
            format!(
                "conv2d(input=%{of}, weight=%2, bias=None, stride=[1,1], padding=[{padding},{padding}], dilation=[1,1], groups={channels})"
            )
        };
        let text = graph_of(&[
            (&conv(0), IMAGES),
            ("relu(self=%4)", IMAGES),
            (&conv(5), IMAGES),
            ("mean.dim(self=%6, dim=[2,3], keepdim=false, dtype=None)", "N,C"),
        ]);
        let pooled = images.rsplitn(3, ',').last().unwrap();
        let text = text.replace(IMAGES, images).replace("N,C", pooled);
        let filters = format!("bf16[{channels},1,{extent},{extent}]");
        calls(&rewritten(&text.replace("bf16[16,16,3,3]", &filters)))
    };
    let of_images = |images: &str| [3, 5, 7, 9].map(|extent| calls_of(extent, images));
    assert_eq!(of_images("64,144,56,56"), [(2, 2), (2, 2), (2, 0), (2, 0)]);
    assert_eq!(of_images("2,16,8,8"), [(2, 1), (2, 1), (2, 0), (2, 0)]);
}

/// A plan says of a call that it is in channels-last, and why it is no kernel.
#[test]
fn plans_say_that_calls_are_in_channels_last() {
    let text = graph_of(&[
        (&conv(0), IMAGES),
        (&pointwise(4), IMAGES),
        ("mean.dim(self=%5, dim=[2,3], keepdim=false, dtype=None)", "2,16"),
    ]);
    let reasons = |products: Products| {
        let mut graph = rewritten(&text);
        choose_products(&mut graph, &gpu(), products, None, u64::MAX, &mut |_| None);
        let of = |id: NodeId| graph.node(id).kernel.clone()?.err().map(|why| why.reason);
        graph.ids().filter_map(of).collect::<Vec<_>>()
    };
    assert!(reasons(Products::Generated).is_empty());
    let library = format!("in channels-last: {}", MatchFailure::Library);
    assert_eq!(reasons(Products::Library), [library.clone(), library]);
}

#[test]
fn group_norms_stay_in_channels_last() {
    let norm = |of: u32| {
        format!(
            "group_norm(input=%{of}, num_groups=4, weight=None, bias=None, eps=1e-05, cudnn_enabled=true)"
        )
    };
    let text = graph_of(&[
        (&norm(0), IMAGES),
        ("silu(self=%4)", IMAGES),
        (&conv(5), IMAGES),
        (&norm(6), IMAGES),
        ("silu(self=%7)", IMAGES),
        (&conv(8), IMAGES),
        ("add.Tensor(self=%9, other=%0, alpha=1)", IMAGES),
    ]);
    assert_eq!(calls(&rewritten(&text)), (2, 2));
    let plan = planned(&text);
    // The images and the weight, the two norms, and the sum.
    assert_eq!((plan.extern_count(), plan.kernel_count()), (2, 3), "{plan}");
    let text: String = plan.programs.iter().map(ToString::to_string).collect();
    // Positions and a group's channels, which lie next to each other.
    assert_eq!(text.matches("reduce sum").count(), 8, "{text}");
}

/// What is compared for the calls of a graph.
fn check(text: &str, how: (Products, bool), expected: Expect) {
    let compared = compared(text, &gpu(), how).1;
    let lines: Vec<String> = compared.iter().map(ToString::to_string).collect();
    expected.assert_eq(&lines.join("\n"));
}

/// The same text with 64 images of 64 channels and 56 x 56 pixels, and as many filters.
fn of_many(text: &str) -> String {
    text.replace("2,16,8,8", "64,64,56,56")
        .replace("16,16,3,3", "64,64,3,3")
        .replace("16,16,1,1", "64,64,1,1")
}

#[test]
fn copies_of_both_forms_are_priced() {
    let mean = ("mean.dim(self=%5, dim=[2,3], keepdim=false, dtype=None)", "64,64");
    let text = of_many(&graph_of(&[(&conv(0), IMAGES), (&pointwise(4), IMAGES), mean]));
    check(
        &text,
        (Products::Library, false),
        expect![[r#"
        a contraction: channels-last, predicted: as it is 69.0 us, channels-last 53.8 us
        a contraction: channels-last, predicted: as it is 33.5 us, channels-last 18.2 us"#]],
    );
    let text = of_many(&graph_of(&[(&pointwise(0), IMAGES)]));
    check(
        &text,
        (Products::Predicted, false),
        expect!["a contraction: as it is, predicted: as it is 18.2 us, channels-last 45.7 us"],
    );
    let alone = of_many(&graph_of(&[(&conv(0), IMAGES)]));
    check(
        &alone,
        (Products::Predicted, false),
        expect!["a contraction: channels-last, predicted: as it is 69.0 us, channels-last 66.0 us"],
    );
    check(
        &alone,
        (Products::Library, false),
        expect!["a contraction: as it is, predicted: as it is 69.0 us, channels-last 69.0 us"],
    );
    // Filters that are prepacked are not copied in each call.
    check(
        &alone,
        (Products::Library, true),
        expect!["a contraction: channels-last, predicted: as it is 69.0 us, channels-last 66.0 us"],
    );
}
