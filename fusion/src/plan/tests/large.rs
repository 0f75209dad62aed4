//! Tensors of more elements than 32 bits count.

use tilefuse_block::{Elem, OpKind, ReduceFn, ScalarFn};

use super::{G, Profile, View, plan};
use crate::graph::ValueRef;

/// Plans for both machines, in which no number of 32 bits has wrapped.
fn counts(name: &str, make: impl Fn(&mut G) -> ValueRef) {
    for profile in [Profile::host(2), Profile::gpu(132, 4200.0)] {
        let mut g = G::new();
        let result = make(&mut g);
        g.0.outputs = vec![result];
        let plan = plan(&g.0, &profile).unwrap();
        assert!(plan.kernel_count() > 0, "{name}");
        for program in &plan.programs {
            program.walk(&mut |op| {
                let OpKind::Const(literal) = &op.kind else { return };
                let wrapped = literal.elem == Elem::I32 && literal.as_i64().is_some_and(|n| n < 0);
                assert!(!wrapped, "{name}: {literal:?} in {program}");
            });
        }
    }
}

#[test]
fn loops_count_no_more_than_32_bits() {
    let sizes: [[i64; 2]; 4] = [[65_537, 32_769], [3, 1 << 30], [1 << 30, 3], [70_000, 70_001]];
    for [rows, columns] in sizes {
        let shape = [rows, columns];
        counts(&format!("map {shape:?}"), |g| {
            let x = g.input(0, &shape);
            g.map(ScalarFn::Neg, &[x])
        });
        counts(&format!("transposed {shape:?}"), |g| {
            let (x, y) = (g.input(0, &shape), g.input(1, &[columns, rows]));
            let y = g.view(View::Permute([1, 0].into_iter().collect()), y, &shape);
            g.map(ScalarFn::Add, &[x, y])
        });
        for dims in [&[0][..], &[1], &[0, 1]] {
            counts(&format!("sum {shape:?} {dims:?}"), |g| {
                let x = g.input(0, &shape);
                g.reduce(ReduceFn::Sum, x, dims)
            });
        }
        counts(&format!("softmax {shape:?}"), |g| {
            let x = g.input(0, &shape);
            g.softmax(x, 1)
        });
    }
}

#[test]
fn a_loop_over_more_points_than_32_bits_count_is_no_kernel() {
    let mut g = G::new();
    let x = g.input(0, &[(1 << 31) + 80]);
    let y = g.map(ScalarFn::Neg, &[x]);
    g.0.outputs = vec![y];
    for profile in [Profile::host(2), Profile::gpu(132, 4200.0)] {
        let error = plan(&g.0, &profile).unwrap_err().to_string();
        assert!(error.ends_with("is longer than 32 bits count"), "{error}");
    }
}
