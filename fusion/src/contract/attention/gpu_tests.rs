//! Plans with generated attention on a GPU that multiplies by warpgroups, as `tests.rs` has them of a processor.

use super::tests::{Case, Mask, PLAIN};
use crate::choose_products;
use crate::contract::Products;
use crate::machine::Profile;
use crate::pipeline::primitive;

fn gpu(_: u32) -> Profile {
    Profile::gpu(132, 4200.0).with_clusters().with_warpgroups()
}

/// Elements of a query that fill blocks or end within one, all kinds of masks, and more keys than a step has.
#[test]
fn on_a_gpu_queries_are_rows_of_warpgroups() {
    let plain = Case { device: "@cuda:0", dtype: "bf16", queries: 70, width: 16, depth: 16, ..PLAIN };
    let check = |case: Case| case.check_on(gpu, 1);
    for (queries, keys, width, depth) in [
        (8, 1, 16, 16),
        (64, 64, 32, 32),
        (9, 65, 64, 64),
        (130, 40, 40, 24),
        (20, 70, 80, 96),
        (12, 33, 128, 8),
    ] {
        check(Case { queries, keys, width, depth, batch: [1, 2, 2], ..plain });
    }
    for keys in [11, 64, 70, 140] {
        check(Case { keys, dtype: "f16", causal: true, ..plain });
    }
    check(Case { sequence_first: true, queries: 33, keys: 129, scale: Some(-0.3), ..plain });
    check(Case { batch: [1, 4, 2], keys: 150, causal: true, ..plain });
    check(Case { batch: [2, 6, 2], repeated: true, ..plain });
    check(Case { broadcast: true, ..plain });
    for mask in [&[70, 11][..], &[2, 1, 1, 11], &[2, 3, 70, 11], &[11]] {
        check(Case { mask: Mask::Kept(mask, 0.25), ..plain });
        check(Case { mask: Mask::Added(mask), ..plain });
    }
}

/// Whole and ragged parts, and blocks of queries that are filled and that are not.
#[test]
fn on_a_gpu_ranges_of_keys_have_instances_of_their_own() {
    let profile = |threads| Profile { launch_us: 0.0, ..gpu(threads) };
    let plain = Case { device: "@cuda:0", dtype: "bf16", width: 16, depth: 16, batch: [1, 1, 1], ..PLAIN };
    let check = |case: Case| case.check_on(profile, 2);
    for (queries, keys) in [(1, 256), (3, 300), (70, 256), (64, 290)] {
        check(Case { queries, keys, ..plain });
    }
    let one = Case { queries: 1, keys: 256, ..plain };
    check(Case { dtype: "f16", batch: [1, 4, 2], sequence_first: true, ..one });
    check(Case { batch: [1, 6, 2], repeated: true, ..one });
    check(Case { mask: Mask::Kept(&[1, 1, 1, 256], 0.25), ..one });
    // Whole parts are closed.
    check(Case { mask: Mask::Kept(&[1, 1, 1, 256], 1.0), ..one });
    check(Case { queries: 9, mask: Mask::Added(&[1, 1, 9, 1]), ..one });
}

/// What follows is computed where the result is stored, by the kernel that combines parts if there are some.
#[test]
fn on_a_gpu_what_follows_is_an_epilogue() {
    let plain = Case { device: "@cuda:0", dtype: "bf16", width: 16, depth: 16, gated: true, ..PLAIN };
    for (queries, keys) in [(9, 11), (64, 64), (70, 33), (130, 65)] {
        let case = Case { queries, keys, ..plain };
        case.check_on(gpu, 1);
        Case { sequence_first: true, causal: true, batch: [1, 2, 2], ..case }.check_on(gpu, 1);
    }
    let profile = |threads| Profile { launch_us: 0.0, ..gpu(threads) };
    Case { queries: 3, keys: 300, batch: [1, 1, 1], ..plain }.check_on(profile, 2);
}

/// Every block that is tried gives the same, and none is tried of other types, or where vectors cannot be copied.
#[test]
fn on_a_gpu_several_blocks_are_tried() {
    let plain =
        Case { device: "@cuda:0", dtype: "f16", queries: 300, keys: 200, width: 64, depth: 64, ..PLAIN };
    let templates = |case: Case| {
        let mut graph = primitive(&case.text(), &gpu(1));
        let mut found = Vec::new();
        choose_products(&mut graph, &gpu(1), Products::Measured, None, u64::MAX, &mut |candidate| {
            let program = &candidate.template.kernel.program;
            found.push((candidate.template.kernel.grid, program.warps));
            None
        });
        found
    };
    let large = Case { batch: [8, 12, 12], queries: 1024, keys: 1024, ..plain };
    assert_eq!(templates(large), [([8, 96, 1], 8); 2]);
    assert_eq!(templates(Case { batch: [1, 1, 1], keys: 100, ..plain })[0], ([5, 1, 1], 4));
    for other in [Case { dtype: "f32", ..plain }, Case { width: 60, ..plain }, Case { width: 264, ..plain }] {
        assert_eq!(templates(other), [], "{}", other.text());
    }
}
