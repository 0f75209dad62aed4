//! Every schedule that has a mark, and a graph whose plan takes it.

use std::collections::BTreeSet;
use std::path::Path;

use crate::contract::{Products, choose_products};
use crate::machine::Profile;
use crate::pipeline::{self, Context, primitive};
use crate::plan::{Tunable, Tuned};
use crate::taken;

/// Files of `schedule/` that hold no schedule.
const NO_SCHEDULES: &[(&str, &str)] = &[
    ("access.rs", "loads and stores of all schedules"),
    ("address.rs", "addresses of all schedules"),
    ("error.rs", "errors"),
    ("mod.rs", "the entry"),
    ("tiles.rs", "what a tiling is"),
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
    "%0 = input 0 : f32[4096,4096]
     %1 = aten::t(self=%0) : f32[4096,4096]{1,4096}
     %2 = input 1 : f32[4096,4096]
     %3 = aten::add.Tensor(self=%1, other=%2, alpha=1) : f32[4096,4096]
     outputs %3",
    // Rows: short, long, and such that begin anywhere.
    "%0 = input 0 : f32[64,100]
     %1 = aten::softmax.int(self=%0, dim=1) : f32[64,100]
     outputs %1",
    "%0 = input 0 : f32[64,5003]
     %1 = aten::softmax.int(self=%0, dim=1) : f32[64,5003]
     outputs %1",
    "%0 = input 0 : f32[64,100003]
     %1 = aten::softmax.int(self=%0, dim=1) : f32[64,100003]
     outputs %1",
    "%0 = input 0 : f32[4096,100003]
     %1 = aten::logsumexp(self=%0, dim=[1], keepdim=false) : f32[4096]
     outputs %1",
    // Columns.
    "%0 = input 0 : f32[100,3000]
     %1 = aten::sum.dim_IntList(self=%0, dim=[0], keepdim=false) : f32[3000]
     outputs %1",
    // Sums over two dimensions that are not next to each other.
    "%0 = input 0 : f32[500,64,700]
     %1 = aten::sum.dim_IntList(self=%0, dim=[0,2], keepdim=false) : f32[64]
     outputs %1",
    // Groups of channels that lie next to each other.
    "%0 = input 0 : f32[2,12,7,5]{420,1,60,12}
     %1 = aten::group_norm(input=%0, num_groups=4, weight=None, bias=None, eps=1e-5, cudnn_enabled=true) : f32[2,12,7,5]
     outputs %1",
    "%0 = input 0 : f32[2,36,70,50]{126000,1,1800,36}
     %1 = aten::group_norm(input=%0, num_groups=3, weight=None, bias=None, eps=1e-5, cudnn_enabled=true) : f32[2,36,70,50]
     outputs %1",
    // Rows and columns.
    "%0 = input 0 : f32[1024,64]
     %1 = aten::sum.dim_IntList(self=%0, dim=[0], keepdim=false) : f32[64]
     %2 = aten::sum.dim_IntList(self=%0, dim=[1], keepdim=false) : f32[1024]
     outputs %1, %2",
];

/// A product of two operands, of which the right one may be a parameter.
fn product(elem: &str, right: &str, [m, n, k]: [i64; 3], device: &str) -> String {
    format!(
        "%0 = input 0 : {elem}[{m},{k}]{device}
         %1 = {right} 1 : {elem}[{k},{n}]{device}
         %2 = aten::mm(self=%0, mat2=%1) : {elem}[{m},{n}]{device}
         outputs %2"
    )
}

/// Plans of a graph with the predicted and, where launches are free, so that all are worth it, with other schedules of its kernels.
fn plan(text: &str, profile: &Profile) {
    let mut graph = primitive(&format!("graph {{\n{text}\n}}"), profile);
    choose_products(&mut graph, profile, Products::Measured, Some(0), u64::MAX, &mut |_| None);
    pipeline::plan(&graph, profile).unwrap();
    let profile = Profile { launch_us: 0.0, ..*profile };
    let last = |tunable: &Tunable<'_>| {
        let choice = tunable.schedules.len() - 1;
        Some(Tuned { choice, us: Vec::new(), remembered: false })
    };
    pipeline::planned(graph, &mut Context { tuner: Some(Box::new(last)), ..Context::new(&profile) }).unwrap();
}

/// The marks in a file.
fn marks(path: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let marks = text.split("taken!(\"").skip(1).filter_map(|rest| rest.split_once('"'));
    marks.map(|(mark, _)| mark.to_owned()).collect()
}

#[test]
fn every_schedule_is_taken() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut expected = marks(&source.join("contract/schedule.rs"));
    for file in std::fs::read_dir(source.join("schedule")).unwrap() {
        let file = file.unwrap();
        let (found, name) = (marks(&file.path()), file.file_name().into_string().unwrap());
        let helper = NO_SCHEDULES.iter().any(|(helper, _)| *helper == name);
        assert_ne!(found.is_empty(), !helper, "{name}: a schedule has a mark, `taken!`, or is no schedule");
        expected.extend(found);
    }
    taken::since_asked();
    for text in GRAPHS {
        [Profile::host(2), gpu(), Profile::gpu(4, 4200.0)].iter().for_each(|profile| plan(text, profile));
    }
    for (right, sizes) in [
        ("param", [3, 1024, 1024]),
        ("param", [197, 768, 3072]),
        ("input", [64, 1024, 1024]),
        ("input", [1024, 1024, 1024]),
    ] {
        plan(&product("f32", right, sizes, ""), &Profile::host(2));
    }
    for sizes in [[64, 768, 3072], [1024, 768, 3072]] {
        plan(&product("bf16", "input", sizes, "@cuda:0"), &gpu());
    }
    let taken = taken::since_asked();
    let missing: Vec<&String> = expected.iter().filter(|mark| !taken.contains(mark.as_str())).collect();
    assert!(missing.is_empty(), "no graph takes {missing:?}");
}
