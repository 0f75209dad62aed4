//! The order of the instances of kernels that transpose.

use tilefuse_block::ScalarFn;

use super::G;
use crate::graph::View;
use crate::machine::Profile;
use crate::pipeline::plan;
use crate::plan::StepKind;

/// The program of a matrix and another one's transpose, added.
fn program(rows: i64, columns: i64, profile: &Profile) -> String {
    let mut g = G::new();
    let (x, y) = (g.input(0, &[rows, columns]), g.input(1, &[columns, rows]));
    let transposed = g.view(View::Permute([1u8, 0].into_iter().collect()), y, &[rows, columns]);
    g.0.outputs = vec![g.map(ScalarFn::Add, &[x, transposed])];
    let plan = plan(&g.0, profile).unwrap();
    plan.programs[0].to_string()
}

#[test]
fn instances_go_through_groups_of_tiles_on_a_gpu() {
    let gpu = Profile::gpu(132, 4200.0);
    // 128 by 48 tiles in a group.
    let group = "const 6144 : i32";
    assert!(program(8192, 3072, &gpu).contains(group));
    assert!(program(16384, 3072, &gpu).contains(group));
    for (rows, columns) in [(8192, 1024), (4096, 3072), (8256, 3072)] {
        assert!(!program(rows, columns, &gpu).contains(group), "{rows} by {columns}");
    }
    assert!(!program(8192, 3072, &Profile::host(2)).contains(group));
}

/// Colours that lie apart, and the taps of filters, are one axis of a tile each, beside more of the other one.
#[test]
fn tiles_with_a_short_axis_span_more_of_the_other_one() {
    let instances = |shape: &[i64], result: &[i64]| {
        let mut g = G::new();
        let x = g.input(0, shape);
        let last = g.view(View::Permute([0u8, 2, 3, 1].into_iter().collect()), x, result);
        g.0.outputs = vec![g.map(ScalarFn::Neg, &[last])];
        let plan = plan(&g.0, &Profile::gpu(132, 4200.0)).unwrap();
        let StepKind::Kernel(kernel) = &plan.steps[0].kind else { panic!("a library call") };
        kernel.grid[0]
    };
    // Of 1024 pixels, and of 256 channels.
    assert_eq!(instances(&[64, 3, 224, 224], &[64, 224, 224, 3]), 64 * 49);
    assert_eq!(instances(&[512, 512, 3, 3], &[512, 3, 3, 512]), 512 * 2);
}
