//! The order of the instances of kernels that transpose.

use tilefuse_block::ScalarFn;

use super::G;
use crate::graph::View;
use crate::plan::{Profile, plan};

/// The program of a matrix and another one's transpose, added.
fn program(rows: i64, columns: i64, profile: &Profile) -> String {
    let mut g = G::new();
    let (x, y) = (g.input(0, &[rows, columns]), g.input(1, &[columns, rows]));
    let turned = g.view(View::Permute([1u8, 0].into_iter().collect()), y, &[rows, columns]);
    g.0.outputs = vec![g.map(ScalarFn::Add, &[x, turned])];
    let plan = plan(&g.0, profile).unwrap();
    plan.programs[0].to_string()
}

#[test]
fn instances_go_through_squares_of_tiles_on_a_gpu() {
    let gpu = Profile::gpu(132, 4200.0);
    // 64 by 32 tiles, in squares of 1024.
    let area = "const 1024 : i32";
    assert!(program(4096, 2048, &gpu).contains(area));
    for (rows, columns) in [(2048, 2048), (2048, 4096), (2112, 2048), (2176, 1088)] {
        assert!(!program(rows, columns, &gpu).contains(area), "{rows} by {columns}");
    }
    assert!(!program(4096, 2048, &Profile::host(2)).contains(area));
}
