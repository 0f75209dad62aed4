use std::fmt::Write;

use crate::contract::{MatchFailure, Products, choose_products};
use crate::graph::{Graph, NodeId, Op};
use crate::machine::Profile;
use crate::pipeline::{plan, primitive};
use crate::plan::Plan;
use crate::rewrite_limit::Rewrites;

use super::ResultLayout;
use super::library::channels_last;

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

fn rewritten(text: &str) -> Graph {
    let profile = gpu();
    let mut graph = primitive(text, &profile);
    channels_last(&mut graph, &profile, &Rewrites::default());
    crate::verify(&graph).unwrap();
    graph
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

/// cuDNN copies what lies in another order as well.
#[test]
fn a_convolution_alone_stays_as_it_is() {
    let text = graph_of(&[(&conv(0), IMAGES), ("relu(self=%4)", IMAGES)]);
    assert_eq!(calls(&rewritten(&text)), (1, 0));
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
    let mut graph = primitive(&text, &profile);
    let before = graph.to_string();
    channels_last(&mut graph, &profile, &Rewrites::default());
    assert_eq!(graph.to_string(), before);
}

/// A product is as quick as the images lie, so that it alone brings nothing into another order.
#[test]
fn convolutions_of_one_tap_follow_their_neighbours() {
    let alone = graph_of(&[
        (&pointwise(0), IMAGES),
        ("relu(self=%4)", IMAGES),
        (&pointwise(5), IMAGES),
        ("mean.dim(self=%6, dim=[2,3], keepdim=false, dtype=None)", "2,16"),
    ]);
    assert_eq!(calls(&rewritten(&alone)), (2, 0));
    let behind = graph_of(&[
        (&conv(0), IMAGES),
        ("relu(self=%4)", IMAGES),
        (&pointwise(5), IMAGES),
        ("mean.dim(self=%6, dim=[2,3], keepdim=false, dtype=None)", "2,16"),
    ]);
    assert_eq!(calls(&rewritten(&behind)), (2, 2));
}

/// Depthwise convolutions follow each other in channels-last where cuDNN has kernels for their filters.
#[test]
fn depthwise_convolutions_of_large_filters_stay_as_they_are() {
    let calls_of = |extent: i64| {
        let conv = |of: u32| {
            let padding = extent / 2;
            format!(
                "conv2d(input=%{of}, weight=%2, bias=None, stride=[1,1], padding=[{padding},{padding}], dilation=[1,1], groups=16)"
            )
        };
        let text = graph_of(&[
            (&conv(0), IMAGES),
            ("relu(self=%4)", IMAGES),
            (&conv(5), IMAGES),
            ("mean.dim(self=%6, dim=[2,3], keepdim=false, dtype=None)", "2,16"),
        ]);
        calls(&rewritten(&text.replace("bf16[16,16,3,3]", &format!("bf16[16,1,{extent},{extent}]"))))
    };
    assert_eq!([3, 5, 7, 9].map(calls_of), [(2, 2), (2, 2), (2, 0), (2, 0)]);
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
