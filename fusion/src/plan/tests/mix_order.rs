//! Rows and columns of one tensor, reduced in one kernel.

use tilefuse_block::{Elem, ReduceFn, ScalarFn};

use super::super::mix_order::divide_columns;
use super::run::check;
use super::{G, Plan, Profile, StepKind, plan, plan_within};
use crate::graph::ValueRef;
use crate::rewrite::tuple_reductions::tuple_reductions;
use crate::rewrite_limit::Rewrites;

use crate::schedule::Walk;

const MACHINES: [fn() -> Profile; 2] = [|| Profile::host(2), || Profile::gpu(4, 4200.0)];

/// Buffers of the kernel that reads the input of this number, with whether each is written, by element count; all of it
/// reads the input in one kernel.
fn readers(plan: &Plan, input: ValueRef) -> Vec<&crate::plan::KernelStep> {
    let kernels = plan.steps.iter().filter_map(|step| match &step.kind {
        StepKind::Kernel(kernel) => Some(kernel),
        StepKind::Extern(_) => None,
    });
    kernels
        .filter(|kernel| kernel.buffers.iter().any(|&(value, written)| value == input && !written))
        .collect()
}

fn plans(g: G, outputs: &[ValueRef]) -> Vec<Plan> {
    let mut graph = g.0;
    graph.outputs = outputs.to_vec();
    tuple_reductions(&mut graph, &Rewrites::default());
    let plans: Vec<Plan> = MACHINES.iter().map(|profile| plan(&graph, &profile()).unwrap()).collect();
    plans.iter().for_each(check);
    plans
}

#[test]
fn sums_of_rows_and_columns_read_a_tensor_once() {
    for (rows, cols) in [(1024, 64), (144, 500), (256, 333), (1010, 100)] {
        let mut g = G::new();
        let x = g.input(0, &[rows, cols]);
        let outputs = [g.reduce(ReduceFn::Sum, x, &[1]), g.reduce(ReduceFn::Sum, x, &[0])];
        for plan in plans(g, &outputs) {
            let found = readers(&plan, x);
            assert_eq!(found.len(), 1, "{rows} x {cols}");
            assert_eq!(found[0].buffers.iter().filter(|b| b.1).count(), 2);
        }
    }
}

#[test]
fn tuples_of_columns_are_combined_beside_sums_of_rows() {
    for (rows, cols) in [(1024, 64), (256, 333)] {
        let mut g = G::new();
        let x = g.input(0, &[rows, cols]);
        let softmax = g.softmax(x, 0);
        let outputs = [g.reduce(ReduceFn::Sum, x, &[1]), g.reduce(ReduceFn::Max, softmax, &[0])];
        let plans = plans(g, &outputs);
        let walks = plans.iter().map(|plan| {
            let writes = |kernel: &&crate::plan::KernelStep| kernel.buffers.iter().filter(|b| b.1).count();
            let found = readers(plan, x).into_iter().find(|kernel| writes(kernel) == 3);
            found.and_then(|kernel| kernel.tiling.as_ref()).map(|tiling| tiling.walk)
        });
        let walks: Vec<Option<Walk>> = walks.collect();
        // A processor holds the rows of an instance, a GPU walks along them.
        assert!(walks[0].is_some() && walks[1] == Some(Walk::Rows), "{rows} x {cols}: {walks:?}");
    }
}

#[test]
fn columns_of_what_rows_normalise_join_their_kernel() {
    // As in the backward pass of a layer norm: sums over all rows of a product with what needs two sums of each row.
    for (rows, cols) in [(1024, 64), (256, 333)] {
        let mut g = G::new();
        let (x, d) = (g.input(0, &[rows, cols]), g.input(1, &[rows, cols]));
        let normal = g.layer_norm(x);
        let product = g.map(ScalarFn::Mul, &[normal, d]);
        let outputs = [g.reduce(ReduceFn::Sum, product, &[0]), g.reduce(ReduceFn::Sum, d, &[0]), normal];
        for plan in plans(g, &outputs) {
            assert_eq!(readers(&plan, x).len(), 1, "{rows} x {cols}");
            assert_eq!(readers(&plan, d).len(), 1, "{rows} x {cols}");
        }
    }
}

#[test]
fn columns_are_not_divided_where_their_parts_are_too_much() {
    let mut g = G::new();
    let x = g.input(0, &[1024, 64]);
    g.0.outputs = vec![g.reduce(ReduceFn::Sum, x, &[1]), g.reduce(ReduceFn::Sum, x, &[0])];
    let limited = |most| plan_within(&g.0, &Profile::host(2), most);
    let divided = limited(u64::MAX);
    assert_eq!(readers(&divided, x).len(), 1);
    assert_eq!(readers(&limited(divided.peak_bytes()), x).len(), 1);
    // What is returned, and no more.
    let apart = limited(4 * (1024 + 64));
    assert_eq!(readers(&apart, x).len(), 2);
    assert!(apart.peak_bytes() < divided.peak_bytes());
    check(&apart);
}

#[test]
fn rows_are_held_whole_where_they_fit() {
    use Walk::{Loops, Rows, Spanned};
    for (cols, host, gpu) in [(64, Spanned, Rows), (2000, Loops, Rows), (20_000, Loops, Loops)] {
        let mut g = G::new();
        let x = g.input(0, &[512, cols]);
        g.0.outputs = vec![g.reduce(ReduceFn::Max, x, &[1]), g.reduce(ReduceFn::Sum, x, &[0])];
        let walks = MACHINES.map(|profile| {
            let plan = plan(&g.0, &profile()).unwrap();
            readers(&plan, x)[0].tiling.as_ref().unwrap().walk
        });
        assert_eq!(walks, [host, gpu], "{cols}");
    }
}

#[test]
fn several_leading_dimensions_are_one() {
    let mut g = G::new();
    let x = g.0.add(crate::graph::Op::Input(0), &[], [G::ty(&[16, 64, 8, 16], Elem::Bf16)], None).into();
    let wide = g.0.add(crate::graph::Op::Cast, &[x], [G::ty(&[16, 64, 8, 16], Elem::F32)], None).into();
    let outputs = [g.reduce(ReduceFn::Sum, wide, &[2, 3]), g.reduce(ReduceFn::Sum, wide, &[0, 1])];
    for plan in plans(g, &outputs) {
        assert_eq!(readers(&plan, x).len(), 1);
    }
}

#[test]
fn columns_that_feed_the_rows_stay_apart() {
    let mut g = G::new();
    let x = g.input(0, &[512, 256]);
    let mean = g.reduce_keep(ReduceFn::Sum, x, &[0]);
    let off = g.map(ScalarFn::Sub, &[x, mean]);
    let outputs = [g.reduce(ReduceFn::Sum, off, &[1])];
    for plan in plans(g, &outputs) {
        assert_eq!(readers(&plan, x).len(), 2);
    }
}

#[test]
fn what_is_small_or_has_few_rows_is_not_divided() {
    for (rows, cols, divided) in
        [(64, 64, false), (7, 65_536, false), (1009, 512, false), (1024, 512, true), (1000, 512, true)]
    {
        let mut g = G::new();
        let x = g.input(0, &[rows, cols]);
        let outputs = [g.reduce(ReduceFn::Sum, x, &[1]), g.reduce(ReduceFn::Sum, x, &[0])];
        g.0.outputs = outputs.to_vec();
        for profile in MACHINES {
            assert_eq!(divide_columns(&mut g.0.clone(), &profile(), i64::MAX), divided, "{rows} x {cols}");
        }
    }
}

#[test]
fn columns_alone_are_not_divided() {
    let mut g = G::new();
    let (x, y) = (g.input(0, &[1024, 512]), g.input(1, &[1024, 512]));
    g.0.outputs = vec![g.reduce(ReduceFn::Sum, x, &[0]), g.reduce(ReduceFn::Sum, y, &[1])];
    assert!(!divide_columns(&mut g.0, &Profile::gpu(4, 4200.0), i64::MAX));
}

#[test]
fn columns_of_which_others_are_reduced_are_held_whole() {
    // As argmin beside log_softmax: which of a column's elements are least is known behind the walk along its rows.
    for rows in [17, 16, 12] {
        let mut g = G::new();
        let x = g.input(0, &[rows, rows, 3]);
        let most = g.reduce_keep(ReduceFn::Max, x, &[2]);
        let below = g.map(ScalarFn::Sub, &[x, most]);
        let powers = g.map(ScalarFn::Exp, &[below]);
        let sum = g.reduce_keep(ReduceFn::Sum, powers, &[2]);
        let log = g.map(ScalarFn::Log, &[sum]);
        let result = g.map(ScalarFn::Sub, &[below, log]);
        let least = g.reduce_keep(ReduceFn::Min, x, &[1]);
        let is_least = g.map(ScalarFn::Eq, &[x, least]);
        let (first, none) = (g.input(1, &[rows, rows, 3]), g.literal(100.0, x));
        let found = g.map(ScalarFn::Select, &[is_least, first, none]);
        let at = g.reduce(ReduceFn::Min, found, &[1]);
        for plan in plans(g, &[result, at]) {
            assert_eq!(readers(&plan, x).len(), 1, "{rows}");
        }
    }
}
