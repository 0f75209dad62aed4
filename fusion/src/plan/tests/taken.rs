//! Every schedule that has a mark, and a graph whose plan takes it and computes what it should.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tilefuse_block::{Data, Literal};

use crate::contract::tests::{memory, points, position, run_packed};
use crate::contract::{Prepacked, Products, Times, choose_products};
use crate::eval::{Precision, Sources, eval};
use crate::graph::{Graph, NodeId, Op};
use crate::machine::Profile;
use crate::pipeline::{self, Context, primitive};
use crate::place::Place;
use crate::plan::{Plan, Tunable, Tuned};
use crate::{lower, parse_graph, taken};

/// Files without a schedule of their own.
const NO_SCHEDULES: &[(&str, &str)] = &[
    ("schedule/access.rs", "loads and stores of all schedules"),
    ("schedule/error.rs", "errors"),
    ("schedule/mod.rs", "the entry"),
    ("schedule/tiles.rs", "what a tiling is"),
];

fn gpu() -> Profile {
    Profile::gpu(132, 4200.0).with_clusters().with_warpgroups()
}

/// Graphs of libtorch's operators, on a host and on a GPU.
const GRAPHS: &[&str] = &[
    // Element by element, and a single number.
    "%0 = input 0 : f32[5000]
     %1 = aten::silu(self=%0) : f32[5000]
     outputs %1",
    "%0 = input 0 : f32[]
     %1 = aten::silu(self=%0) : f32[]
     outputs %1",
    // One axis is contiguous for what is read, and the other one for what is written.
    "%0 = input 0 : f32[256,200]
     %1 = aten::t(self=%0) : f32[200,256]{1,200}
     %2 = input 1 : f32[200,256]
     %3 = aten::add.Tensor(self=%1, other=%2, alpha=1) : f32[200,256]
     outputs %3",
    // Rows: short, long, and such that begin anywhere.
    "%0 = input 0 : f32[64,100]
     %1 = aten::softmax.int(self=%0, dim=1) : f32[64,100]
     outputs %1",
    "%0 = input 0 : f32[8,5003]
     %1 = aten::softmax.int(self=%0, dim=1) : f32[8,5003]
     outputs %1",
    "%0 = input 0 : f32[2,100003]
     %1 = aten::softmax.int(self=%0, dim=1) : f32[2,100003]
     outputs %1",
    "%0 = input 0 : f32[4,100003]
     %1 = aten::logsumexp(self=%0, dim=[1], keepdim=false) : f32[4]
     outputs %1",
    // Columns.
    "%0 = input 0 : f32[100,3000]
     %1 = aten::sum.dim_IntList(self=%0, dim=[0], keepdim=false) : f32[3000]
     outputs %1",
    // Sums over two dimensions that are not next to each other.
    "%0 = input 0 : f32[100,8,70]
     %1 = aten::sum.dim_IntList(self=%0, dim=[0,2], keepdim=false) : f32[8]
     outputs %1",
    // Groups of channels that lie next to each other.
    "%0 = input 0 : f32[2,12,7,5]{420,1,60,12}
     %1 = aten::group_norm(input=%0, num_groups=4, weight=None, bias=None, eps=1e-5, cudnn_enabled=true) : f32[2,12,7,5]
     outputs %1",
    "%0 = input 0 : f32[2,36,40,35]{50400,1,1260,36}
     %1 = aten::group_norm(input=%0, num_groups=3, weight=None, bias=None, eps=1e-5, cudnn_enabled=true) : f32[2,36,40,35]
     outputs %1",
    // Rows and columns.
    "%0 = input 0 : f32[1024,64]
     %1 = aten::sum.dim_IntList(self=%0, dim=[0], keepdim=false) : f32[64]
     %2 = aten::sum.dim_IntList(self=%0, dim=[1], keepdim=false) : f32[1024]
     outputs %1, %2",
];

/// Of a large tensor.
const LARGE: &str = "%0 = input 0 : f32[4096,4096]
     %1 = aten::t(self=%0) : f32[4096,4096]{1,4096}
     %2 = input 1 : f32[4096,4096]
     %3 = aten::add.Tensor(self=%1, other=%2, alpha=1) : f32[4096,4096]
     outputs %3";

/// A product of two operands, of which the right one may be a parameter.
fn product(elem: &str, right: &str, [m, n, k]: [i64; 3], device: &str) -> String {
    format!(
        "%0 = input 0 : {elem}[{m},{k}]{device}
         %1 = {right} 1 : {elem}[{k},{n}]{device}
         %2 = aten::mm(self=%0, mat2=%1) : {elem}[{m},{n}]{device}
         outputs %2"
    )
}

/// Plans a graph.
fn plan(text: &str, profile: &Profile) {
    tuned(primitive(&format!("graph {{\n{text}\n}}"), profile), profile, usize::MAX);
}

/// The plan with the schedule at `choice` of each kernel that has several, the last one where there are not so many; and the most
/// that a kernel has.
fn tuned(graph: Graph, profile: &Profile, choice: usize) -> (Plan, usize) {
    let mut most = 1;
    let tuner = |tunable: &Tunable<'_>| {
        let count = tunable.schedules.len();
        most = most.max(count);
        Some(Tuned { choice: choice.min(count - 1), us: Vec::new(), remembered: false })
    };
    let mut cx = Context { tuner: Some(Box::new(tuner)), ..Context::new(profile) };
    let plan = pipeline::planned(graph, &mut cx).unwrap();
    drop(cx);
    (plan, most)
}

/// What a graph computes in `f64`.
fn exact(text: &str) -> Vec<Vec<f64>> {
    let graph = lower(&parse_graph(text).unwrap()).unwrap();
    let source = |id: NodeId| {
        let (Op::Input(slot) | Op::Param(slot)) = graph.node(id).op else { return None };
        let ty = graph.ty(id.into());
        let memory = memory(slot, ty);
        let literal = |p: &Vec<i64>| Literal::of(ty.dtype.elem().unwrap(), memory[position(p, &ty.strides)]);
        Some((slot, Data::from_literals(ty.dtype.elem().unwrap(), points(&ty.shape).iter().map(literal))))
    };
    let mut all: Vec<(u32, Data)> = graph.ids().filter_map(source).collect();
    all.sort_by_key(|(slot, _)| *slot);
    // Slots are numbered through inputs and parameters.
    let all: Vec<Data> = all.into_iter().map(|(_, data)| data).collect();
    let sources = Sources { inputs: &all, params: &all, consts: &[] };
    eval(&graph, sources, Precision::Exact).unwrap().outputs.iter().map(Data::to_f64).collect()
}

/// Runs plans of a graph in the interpreter: with each kernel that is measured for a contraction as the quickest, and with each
/// schedule of the other kernels.
fn check(text: &str, profile: &Profile) {
    let text = format!("graph {{\n{text}\n}}");
    let exact = exact(&text);
    let tolerance = if text.contains("bf16") { 2e-2 } else { 2e-5 };
    let compare = |plan: &Plan, packed: &[Prepacked]| {
        let all = run_packed(plan, packed);
        for ((memory, place), (value, exact)) in
            all.iter().zip(&plan.outputs).zip(plan.graph.outputs.iter().zip(&exact))
        {
            let ty = plan.graph.ty(*value);
            let (strides, offset) = match place {
                Place::Value(_) => (&ty.strides, 0),
                Place::Strided { strides, offset, .. } => (strides, *offset as usize),
            };
            for (at, exact) in points(&ty.shape).iter().zip(exact) {
                let found = memory[offset + position(at, strides)];
                let close = (found - exact).abs() <= tolerance * exact.abs().max(1.0);
                assert!(close, "{found} instead of {exact} at {at:?}: {text}\n{plan}");
            }
        }
    };
    let profile = Profile { launch_us: 0.0, ..*profile };
    for quickest in 0.. {
        let mut graph = primitive(&text, &profile);
        let mut count = 0;
        let packed =
            choose_products(&mut graph, &profile, Products::Measured, Some(0), u64::MAX, &mut |_| {
                count += 1;
                let generated_us = if count == quickest + 1 { 1.0 } else { 2.0 };
                Some(Times { generated_us, library_us: 9.0, measured: true })
            });
        for choice in 0.. {
            let (plan, most) = tuned(graph.clone(), &profile, choice);
            compare(&plan, &packed);
            if choice + 1 >= most {
                break;
            }
        }
        if quickest + 1 >= count {
            break;
        }
    }
}

/// A convolution, or a transposed one, of images and filters that are a parameter or an input, with this stride and padding.
fn conv(
    images: [i64; 4],
    (filters, [count, depth, kernel]): (&str, [i64; 3]),
    [stride, padding, groups]: [i64; 3],
    transposed: bool,
) -> String {
    let [n, channels, _, width] = images;
    let (result, size, call) = match transposed {
        true => (depth * groups, (width - 1) * stride + kernel - 2 * padding, "conv_transpose2d.input"),
        false => (count, (width + 2 * padding - kernel) / stride + 1, "conv2d"),
    };
    let output = if transposed { "output_padding=[0,0], " } else { "" };
    format!(
        "%0 = input 0 : f32[{n},{channels},{width},{width}]
         %1 = {filters} 1 : f32[{count},{depth},{kernel},{kernel}]
         %2 = aten::{call}(input=%0, weight=%1, bias=None, stride=[{stride},{stride}], padding=[{padding},{padding}], \
         {output}groups={groups}, dilation=[1,1]) : f32[{n},{result},{size},{size}]
         outputs %2"
    )
}

/// A convolution of each channel over images in channels-last.
const CONV_OF_CHANNELS: &str = "%0 = input 0 : f32[1,32,9,9]{2592,1,288,32}
     %1 = param 1 : f32[32,1,3,3]
     %2 = aten::conv2d(input=%0, weight=%1, bias=None, stride=[1,1], padding=[1,1], dilation=[1,1], groups=32) : \
     f32[1,32,9,9]{2592,1,288,32}
     outputs %2";

/// A convolution of 3 x 3 over images in channels-last on a GPU.
const CONV_ON_GPU: &str = "%0 = input 0 : bf16[1,64,8,8]{4096,1,512,64}@cuda:0
     %1 = param 1 : bf16[64,64,3,3]{576,1,192,64}@cuda:0
     %2 = aten::conv2d(input=%0, weight=%1, bias=None, stride=[1,1], padding=[1,1], dilation=[1,1], groups=1) : \
     bf16[1,64,8,8]{4096,1,512,64}@cuda:0
     outputs %2";

/// Two linear layers of one input.
const TWO_LINEAR: &str = "%0 = input 0 : bf16[64,256]@cuda:0
     %1 = param 1 : bf16[256,256]@cuda:0
     %2 = param 2 : bf16[256,256]@cuda:0
     %3 = aten::linear(input=%0, weight=%1, bias=None) : bf16[64,256]@cuda:0
     %4 = aten::linear(input=%0, weight=%2, bias=None) : bf16[64,256]@cuda:0
     outputs %3, %4";

/// Attention of so many heads, queries, keys and elements.
fn attention(elem: &str, [heads, queries, keys, width]: [i64; 4], device: &str) -> String {
    let rows = |n: i64| format!("{elem}[1,{heads},{n},{width}]{device}");
    let (q, k) = (rows(queries), rows(keys));
    format!(
        "%0 = input 0 : {q}
         %1 = input 1 : {k}
         %2 = input 2 : {k}
         %3 = aten::scaled_dot_product_attention(query=%0, key=%1, value=%2, attn_mask=None, dropout_p=0.0, is_causal=false, \
         scale=None, enable_gqa=false) : {q}
         outputs %3"
    )
}

/// The marks in a file.
fn marks(path: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let marks = text.split("taken!(\"").skip(1).filter_map(|rest| rest.split_once('"'));
    marks.map(|(mark, _)| mark.to_owned()).collect()
}

/// The Rust files of a folder, those of tests left out.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        match path.is_dir() {
            true if stem != "tests" => files(&path, found),
            false if !stem.ends_with("tests") && stem != "taken" => found.push(path),
            _ => {}
        }
    }
}

/// Whether a file must have marks: one of `schedule/` that is no helper, and one of `contract/` that writes programs.
fn has_schedules(file: &Path) -> bool {
    let text = std::fs::read_to_string(file).unwrap();
    let writes = ["program(\"", "program_and(", "write(\""].iter().any(|call| text.contains(call));
    let is_in = |folder: &str| file.components().any(|part| part.as_os_str() == folder);
    let is_helper = NO_SCHEDULES.iter().any(|(helper, _)| file.ends_with(helper));
    !is_helper
        && (is_in("contract") && writes || file.parent().is_some_and(|folder| folder.ends_with("schedule")))
}

/// The marks in all files, each of which has some where it must.
fn all_marks() -> BTreeSet<String> {
    let mut all = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut all);
    for (helper, _) in NO_SCHEDULES {
        assert!(all.iter().any(|file| file.ends_with(helper)), "{helper} is not there");
    }
    let mut expected = BTreeSet::new();
    for file in &all {
        let found = marks(file);
        assert!(
            !found.is_empty() || !has_schedules(file),
            "{}: a schedule has a mark, `taken!`, or is no schedule",
            file.display()
        );
        expected.extend(found);
    }
    expected
}

/// Schedules that no graph of these takes whose values are compared, and why.
const NOT_COMPARED: &[(&str, &str)] =
    &[("swizzle", "it is of tensors that are large for the interpreter; tests beside it compare values")];

#[test]
fn every_schedule_is_taken() {
    let (expected, listed) = (all_marks(), NOT_COMPARED.iter().map(|(mark, _)| (*mark).to_owned()).collect());
    taken::since_asked();
    let host = Profile::host(2);
    let pairs = host.with_vnni([800.0, 1500.0]);
    for text in GRAPHS {
        [host, gpu(), Profile::gpu(4, 4200.0)].iter().for_each(|profile| check(text, profile));
    }
    for (right, sizes) in [
        ("param", [3, 40, 33]),
        ("param", [34, 96, 32]),
        ("input", [64, 40, 33]),
        ("input", [24, 40, 50]),
        ("input", [2, 7, 3072]),
    ] {
        check(&product("f32", right, sizes, ""), &host);
    }
    for sizes in [[64, 40, 64], [64, 64, 2048]] {
        check(&product("bf16", "input", sizes, "@cuda:0"), &gpu());
    }
    for (images, filters, window, transposed) in [
        ([1, 6, 9, 9], ("param", [8, 6, 3]), [1, 1, 1], false),
        ([1, 32, 9, 9], ("param", [32, 1, 3]), [1, 1, 32], false),
        ([1, 6, 9, 9], ("param", [6, 3, 4]), [2, 1, 1], true),
        ([1, 6, 9, 9], ("param", [6, 3, 9]), [8, 1, 1], true),
        ([1, 6, 9, 9], ("input", [6, 16, 4]), [2, 1, 1], true),
    ] {
        check(&conv(images, filters, window, transposed), &host);
    }
    check(CONV_OF_CHANNELS, &host);
    [CONV_ON_GPU, TWO_LINEAR].iter().for_each(|text| check(text, &gpu()));
    check(&product("bf16", "param", [64, 64, 64], ""), &pairs);
    check(&attention("bf16", [1, 128, 128, 512], ""), &pairs);
    for sizes in [[2, 1, 40, 8], [2, 40, 40, 8], [1, 1, 4096, 8]] {
        check(&attention("f32", sizes, ""), &host);
    }
    check(&attention("bf16", [2, 64, 64, 64], "@cuda:0"), &gpu());
    let taken: BTreeSet<String> = taken::since_asked().into_iter().map(str::to_owned).collect();
    let missing: BTreeSet<String> = expected.difference(&taken).cloned().collect();
    assert_eq!(missing, listed, "of some schedules no values are compared");
    plan(LARGE, &gpu());
    let taken = taken::since_asked();
    let missing: Vec<&String> = listed.iter().filter(|mark| !taken.contains(mark.as_str())).collect();
    assert!(missing.is_empty(), "no graph takes {missing:?}");
}
