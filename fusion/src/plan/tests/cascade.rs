//! The error of sums on a GPU: beside `f64`, and beside a sum in order.

use tilefuse_block::{Elem, Literal, ReduceFn};

use super::run::outputs;
use super::{G, Plan, Profile, plan};
use crate::graph::{Op, ValueRef, View};
use crate::rewrite::tuple_reductions::tuple_reductions;
use crate::rewrite_limit::Rewrites;

/// A GPU whose largest tiles are halved three times, so that few elements make long walks; too small to divide rows.
fn small_tiles() -> Profile {
    (0..3).fold(Profile::gpu(1, 4200.0), |profile, _| profile.with_smaller_tiles().unwrap())
}

/// Numbers near 3.7, whose sums are rounded.
fn number(at: usize) -> f64 {
    f64::from(3.7 + (at % 5 / 4) as f32 * 0.117)
}

/// The same with 16 bits.
fn narrow(at: usize) -> f64 {
    Literal::of(Elem::Bf16, number(at)).as_f64()
}

/// How deep the loops of the plan's programs are.
fn depth(plan: &Plan) -> usize {
    let text = plan.programs.iter().map(ToString::to_string).collect::<String>();
    let loops = text.lines().filter(|line| line.contains(" = for %"));
    loops.map(|line| line.chars().take_while(|&c| c == ' ').count() / 2).max().unwrap_or(0)
}

fn planned(g: &mut G, output: ValueRef) -> Plan {
    planned_on(g, output, &small_tiles())
}

fn planned_on(g: &mut G, output: ValueRef, profile: &Profile) -> Plan {
    g.0.outputs = vec![output];
    tuple_reductions(&mut g.0, &Rewrites::default());
    plan(&g.0, profile).unwrap()
}

/// The largest relative error of the first output, in units of 2^-24.
fn error(plan: &Plan, exact: impl Fn(usize) -> f64) -> f64 {
    let graph = &plan.graph;
    let found = outputs(plan, |input| (0..graph.ty(input).numel() as usize).map(number).collect());
    let found = found[0].as_ref().unwrap().iter().enumerate();
    found.map(|(at, f)| (f / exact(at) - 1.0).abs()).fold(0.0, f64::max) * f64::from(1 << 24)
}

/// The same of a sum in order of so many numbers, every `step`-th of all.
fn error_in_order(count: usize, step: usize) -> f64 {
    let numbers = || (0..count).map(|at| number(at * step));
    let found = numbers().fold(0.0, |sum: f32, x| sum + x as f32);
    (f64::from(found) / numbers().sum::<f64>() - 1.0).abs() * f64::from(1 << 24)
}

#[test]
fn loops_over_short_rows_are_cut() {
    // Tiles have four elements: each would take 5,000 of them in order.
    let mut g = G::new();
    let x = g.input(0, &[2, 50, 2, 100, 2, 3]);
    let sum = g.reduce(ReduceFn::Sum, x, &[1, 3, 5]);
    let plan = planned(&mut g, sum);
    let exact = |at: usize| {
        let row = |i: usize, j: usize| ((((at / 4 * 50 + i) * 2 + at / 2 % 2) * 100 + j) * 2 + at % 2) * 3;
        let rows = (0..5000).map(|n| row(n / 100, n % 100));
        rows.map(|first| (first..first + 3).map(number).sum::<f64>()).sum()
    };
    let (ours, in_order) = (error(&plan, exact), error_in_order(5000, 6));
    assert!(depth(&plan) > 2);
    assert!(ours <= 20.0 && in_order >= 100.0, "{ours} {in_order}");
}

#[test]
fn loops_in_loops_are_cut() {
    let mut g = G::new();
    let x = g.input(0, &[600, 2, 8, 3]);
    let x = g.view(View::Permute([1, 3, 0, 2].into_iter().collect()), x, &[2, 3, 600, 8]);
    let sum = g.reduce(ReduceFn::Sum, x, &[0, 1, 2, 3]);
    let plan = planned(&mut g, sum);
    let exact = (0..28_800).map(number).sum::<f64>();
    let (ours, in_order) = (error(&plan, |_| exact), error_in_order(9600, 3));
    assert!(depth(&plan) > 2);
    assert!(ours <= 20.0 && in_order >= 100.0, "{ours} {in_order}");
}

#[test]
fn loops_over_columns_are_cut() {
    let mut g = G::new();
    let x = g.input(0, &[400, 2048]);
    let sum = g.reduce(ReduceFn::Sum, x, &[0]);
    let plan = planned(&mut g, sum);
    let exact = |at: usize| (0..400).map(|row| number(row * 2048 + at)).sum::<f64>();
    let ours = error(&plan, exact);
    assert_eq!(depth(&plan), 2, "{}", plan.programs[0]);
    assert!(ours <= 8.0, "{ours}");
}

/// Outputs over rows of this width, beside what a row's numbers give.
fn close(plan: &Plan, width: usize, numbers: fn(usize) -> f64, exact: fn(&[f64]) -> Vec<f64>, bound: f64) {
    assert_eq!(depth(plan), 2, "{}", plan.programs[0]);
    let row = |at: usize| exact(&(at * width..(at + 1) * width).map(numbers).collect::<Vec<_>>());
    let rows: Vec<f64> = (0..5).flat_map(row).collect();
    let ours = error(plan, |at| rows[at]);
    assert!(ours <= bound, "{ours}");
}

#[test]
fn walks_for_a_maximum_and_a_sum_are_cut() {
    let width = 600_000;
    let mut g = G::new();
    let x = g.input(0, &[5, width]);
    let softmax = g.softmax(x, 1);
    let plan = planned_on(&mut g, softmax, &Profile::gpu(1, 4200.0));
    let exact = |row: &[f64]| {
        let top = row.iter().copied().fold(f64::MIN, f64::max);
        let powers: Vec<f64> = row.iter().map(|x| (x - top).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.iter().map(|p| p / sum).collect()
    };
    close(&plan, width as usize, number, exact, 8.0);
}

#[test]
fn walks_for_mean_and_deviations_are_cut() {
    let width = 600_000;
    let mut g = G::new();
    let x = g.0.add(Op::Input(0), &[], [G::ty(&[5, width], Elem::Bf16)], None).into();
    let x = g.0.add(Op::Cast, &[x], [G::ty(&[5, width], Elem::F32)], None).into();
    let normal = g.layer_norm(x);
    let plan = planned_on(&mut g, normal, &Profile::gpu(1, 4200.0));
    let exact = |row: &[f64]| {
        let count = row.len() as f64;
        let mean = row.iter().sum::<f64>() / count;
        let var = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        row.iter().map(|x| (x - mean) / (var + 1e-5).sqrt()).collect()
    };
    // Of differences that are a hundredth of the numbers.
    close(&plan, width as usize, narrow, exact, 1000.0);
}

/// The text of a softmax down the columns of a cast on a GPU.
fn softmax_of_cast(from: &str, dtype: &str) -> String {
    let text = format!(
        "graph {{
          %0 = input 0 : {from}[128,2]@cuda:0
          %1 = aten::to.dtype(self=%0, dtype={dtype}) : {dtype}[128,2]@cuda:0
          %2 = aten::softmax.int(self=%1, dim=0, dtype=None) : {dtype}[128,2]@cuda:0
          %3 = aten::softmax.int(self=%1, dim=1, dtype=None) : {dtype}[128,2]@cuda:0
          outputs %2, %3
        }}"
    );
    let profile = small_tiles();
    let mut graph = crate::pipeline::primitive(&text, &profile);
    tuple_reductions(&mut graph, &Rewrites::default());
    let plan = plan(&graph, &profile).unwrap();
    plan.programs.iter().map(ToString::to_string).collect()
}

/// The unit for special functions is as precise as 16 bits: what is made of integers has the precision of what it is cast to.
#[test]
fn sums_of_powers_of_integers_are_as_precise_as_their_kind() {
    for (from, dtype) in [("i64", "f32"), ("i64", "f64"), ("bf16", "f64"), ("f16", "f64")] {
        let text = softmax_of_cast(from, dtype);
        assert!(text.contains("map exp ") && !text.contains("approx"), "{text}");
    }
}
