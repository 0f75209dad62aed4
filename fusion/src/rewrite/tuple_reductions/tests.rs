use expect_test::{Expect, expect};
use rustc_hash::FxHashMap;
use tilefuse_block::Data;
use tilefuse_block::interp::{self, Arg};

use super::{REWRITES, tuple_reductions};
use crate::eval::{Precision, Sources, eval};
use crate::graph::{Graph, Op, ValueRef};
use crate::machine::Profile;
use crate::pipeline::plan;
use crate::place::Place;
use crate::plan::{Plan, StepKind};
use crate::rewrite_limit::Rewrites;
use crate::{parse_graph, verify};

/// A softmax's statistics over the last dimension.
fn exponentials(rows: i64, cols: i64) -> String {
    format!(
        "graph {{
          %0 = input 0 : f32[{rows},{cols}]
          %1 = reduce max[1](%0) : f32[{rows}]
          %2 = view reshape(%1) : f32[{rows},1]
          %3 = view expand(%2) : f32[{rows},{cols}]
          %4 = map sub(%0, %3) : f32[{rows},{cols}]
          %5 = map exp(%4) : f32[{rows},{cols}]
          %6 = reduce sum[1](%5) : f32[{rows}]
          outputs %1, %6
        }}"
    )
}

fn log_sum_exp(rows: i64, cols: i64) -> String {
    format!(
        "graph {{
          %0 = input 0 : f32[{rows},{cols}]
          %1 = reduce max[1](%0) : f32[{rows}]
          %2 = view reshape(%1) : f32[{rows},1]
          %3 = map is_inf(%2) : bool[{rows},1]
          %4 = scalar 0.0 : f32[]
          %5 = view reshape(%4) : f32[1,1]
          %6 = view expand(%5) : f32[{rows},1]
          %7 = map select(%3, %6, %2) : f32[{rows},1]
          %8 = view expand(%7) : f32[{rows},{cols}]
          %9 = map sub(%0, %8) : f32[{rows},{cols}]
          %10 = map exp(%9) : f32[{rows},{cols}]
          %11 = reduce sum[1](%10) : f32[{rows}]
          outputs %11
        }}"
    )
}

fn moments(elem: &str, rows: i64, cols: i64) -> String {
    format!(
        "graph {{
          %0 = input 0 : {elem}[{rows},{cols}]
          %1 = cast(%0) : f32[{rows},{cols}]
          %2 = reduce sum[1](%1) : f32[{rows}]
          %3 = view reshape(%2) : f32[{rows},1]
          %4 = scalar {cols}.0 : f32[]
          %5 = view reshape(%4) : f32[1,1]
          %6 = view expand(%5) : f32[{rows},1]
          %7 = map div(%3, %6) : f32[{rows},1]
          %8 = view expand(%7) : f32[{rows},{cols}]
          %9 = map sub(%1, %8) : f32[{rows},{cols}]
          %10 = map mul(%9, %9) : f32[{rows},{cols}]
          %11 = reduce sum[1](%10) : f32[{rows}]
          outputs %7, %11
        }}"
    )
}

fn positions(function: &str, rows: i64, cols: i64) -> String {
    format!(
        "graph {{
          %0 = input 0 : f32[{rows},{cols}]
          %1 = reduce {function}[1](%0) : f32[{rows}]
          %2 = view reshape(%1) : f32[{rows},1]
          %3 = view expand(%2) : f32[{rows},{cols}]
          %4 = map eq(%0, %3) : bool[{rows},{cols}]
          %5 = map is_nan(%0) : bool[{rows},{cols}]
          %6 = map or(%4, %5) : bool[{rows},{cols}]
          %7 = iota 1 : i32[{rows},{cols}]
          %8 = scalar {} : i32[]
          %9 = view reshape(%8) : i32[1,1]
          %10 = view expand(%9) : i32[{rows},{cols}]
          %11 = map select(%6, %7, %10) : i32[{rows},{cols}]
          %12 = reduce min[1](%11) : i32[{rows}]
          outputs %1, %12
        }}",
        cols - 1
    )
}

fn rewritten(text: &str) -> Graph {
    let mut graph = parse_graph(text).unwrap();
    verify(&graph).unwrap();
    assert_eq!(tuple_reductions(&mut graph, &Rewrites::default()), 1, "{graph}");
    verify(&graph).unwrap();
    let text = graph.to_string();
    assert_eq!(parse_graph(&text).unwrap().to_string(), text);
    graph
}

fn check(text: &str, expect: Expect) {
    expect.assert_eq(&rewritten(text).to_string());
}

#[test]
fn online_softmax() {
    check(
        &exponentials(2, 5),
        expect![[r#"
            graph {
              %0 = input 0 : f32[2,5]
              %1 = scalar 1.0 : f32[]
              %2 = view reshape(%1) : f32[1,1]
              %3 = view expand(%2) : f32[2,5]
              %4, %5 = reduce max_sumexp[1](%0, %3) : f32[2], f32[2]
              outputs %4, %5
            }
        "#]],
    );
}

#[test]
fn logarithms_of_sums() {
    check(
        &log_sum_exp(2, 5),
        expect![[r#"
            graph {
              %0 = input 0 : f32[2,5]
              %1 = scalar 1.0 : f32[]
              %2 = view reshape(%1) : f32[1,1]
              %3 = view expand(%2) : f32[2,5]
              %4, %5 = reduce max_sumexp[1](%0, %3) : f32[2], f32[2]
              %6 = map is_inf(%4) : bool[2]
              %7 = map exp(%4) : f32[2]
              %8 = map select(%6, %7, %5) : f32[2]
              outputs %8
            }
        "#]],
    );
}

/// Sums below the same maximum, as of a softmax and the logarithm of its sum, are one reduction.
#[test]
fn sums_of_one_maximum_are_one() {
    let both = log_sum_exp(9, 8).replace(
        "outputs %11",
        "%12 = view expand(%2) : f32[9,8]
          %13 = map sub(%0, %12) : f32[9,8]
          %14 = map exp(%13) : f32[9,8]
          %15 = reduce sum[1](%14) : f32[9]
          outputs %11, %15",
    );
    let swapped = both.replace("outputs %11, %15", "outputs %15, %11");
    for text in [both, swapped] {
        let (input, whole) = (rows(8), parse_graph(&text).unwrap());
        let mut graph = whole.clone();
        assert_eq!(tuple_reductions(&mut graph, &Rewrites::default()), 2, "{graph}");
        verify(&graph).unwrap();
        assert_eq!(graph.to_string().matches("reduce ").count(), 1, "{graph}");
        assert_same(&values(&graph, &input), &values(&whole, &input), &text);
    }
}

#[test]
fn welford() {
    check(
        &moments("bf16", 2, 5),
        expect![[r#"
            graph {
              %0 = input 0 : bf16[2,5]
              %1 = cast(%0) : f32[2,5]
              %2 = scalar 1.0 : f32[]
              %3 = view reshape(%2) : f32[1,1]
              %4 = view expand(%3) : f32[2,5]
              %5 = scalar 0.0 : f32[]
              %6 = view reshape(%5) : f32[1,1]
              %7 = view expand(%6) : f32[2,5]
              %8, %9, %10 = reduce moments[1](%4, %1, %7) : f32[2], f32[2], f32[2]
              %11 = view reshape(%9) : f32[2,1]
              outputs %11, %10
            }
        "#]],
    );
}

#[test]
fn positions_of_extremes() {
    check(
        &positions("max", 2, 5),
        expect![[r#"
            graph {
              %0 = input 0 : f32[2,5]
              %1 = iota 1 : i32[2,5]
              %2, %3 = reduce argmax[1](%0, %1) : f32[2], i32[2]
              outputs %2, %3
            }
        "#]],
    );
    check(
        &positions("min", 2, 5),
        expect![[r#"
            graph {
              %0 = input 0 : f32[2,5]
              %1 = iota 1 : i32[2,5]
              %2, %3 = reduce argmin[1](%0, %1) : f32[2], i32[2]
              outputs %2, %3
            }
        "#]],
    );
}

#[test]
fn each_rewrite_has_a_name() {
    let names: Vec<&str> = REWRITES.iter().map(|rewrite| rewrite.name).collect();
    assert_eq!(names, ["online-softmax", "log-sum-exp", "welford", "arg-max", "arg-min"]);
}

#[test]
fn what_is_something_else_stays() {
    let graphs = [
        // Another value's maximum.
        exponentials(2, 5).replace("map sub(%0, %3)", "map sub(%3, %0)"),
        // A maximum over another dimension.
        exponentials(5, 5).replace("reduce max[1]", "reduce max[0]"),
        // Another number of elements.
        moments("bf16", 2, 5).replace("scalar 5.0", "scalar 6.0"),
        // The sum is needed itself.
        moments("bf16", 2, 5).replace("outputs", "outputs %2,"),
        // Positions along another dimension.
        positions("max", 5, 5).replace("iota 1", "iota 0"),
        // No first NaN.
        positions("max", 2, 5).replace("map or(%4, %5)", "map or(%4, %4)"),
    ];
    for text in graphs {
        let mut graph = parse_graph(&text).unwrap();
        assert_eq!(tuple_reductions(&mut graph, &Rewrites::default()), 0, "{text}");
    }
}

/// Rows of ordinary numbers, with infinities and NaN among them, and of nothing else.
fn rows(cols: usize) -> Data {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let ordinary = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 64.0 - 8.0;
    let with = |special: &[(usize, f32)]| {
        let mut row: Vec<f32> = (0..cols).map(ordinary).collect();
        special.iter().for_each(|&(at, x)| row[at % cols] = x);
        row
    };
    let late: Vec<f32> = (0..cols).map(|i| if i + 3 < cols { -inf } else { 2.0 }).collect();
    let all = [
        with(&[]),
        with(&[(1, -inf), (cols / 2, -inf)]),
        with(&[(2, inf), (cols - 1, inf)]),
        with(&[(3, nan), (cols / 3, inf)]),
        with(&[(cols - 2, nan), (cols - 1, nan)]),
        vec![-inf; cols],
        vec![inf; cols],
        late,
        vec![3.0; cols],
    ];
    Data::F32(all.concat())
}

fn values(graph: &Graph, input: &Data) -> Vec<Vec<f64>> {
    let sources = Sources { inputs: std::slice::from_ref(input), ..Sources::default() };
    let found = eval(graph, sources, Precision::Typed).unwrap();
    found.outputs.iter().map(Data::to_f64).collect()
}

/// What the block interpreter makes of a plan.
fn run(plan: &Plan, input: &Data) -> Vec<Vec<f64>> {
    let mut buffers: FxHashMap<ValueRef, Data> = FxHashMap::default();
    for id in plan.graph.ids().filter(|&id| matches!(plan.graph.node(id).op, Op::Input(_))) {
        buffers.insert(id.into(), input.clone());
    }
    for step in &plan.steps {
        let StepKind::Kernel(kernel) = &step.kind else { panic!("a libtorch call") };
        let of = |value: ValueRef| {
            let ty = plan.graph.ty(value);
            let zero = tilefuse_block::Literal::of(ty.dtype.elem().unwrap(), 0.0);
            buffers.get(&value).cloned().unwrap_or_else(|| Data::repeat(zero, ty.numel() as usize))
        };
        let mut args: Vec<Arg> = kernel.buffers.iter().map(|&(value, _)| Arg::buffer(of(value))).collect();
        let program = &plan.programs[kernel.program];
        tilefuse_block::verify(program).unwrap();
        let grid = kernel.grid.map(|n| n as u32);
        interp::run(program, &mut args, grid).unwrap_or_else(|e| panic!("{e}\n{program}"));
        for (&(value, written), arg) in kernel.buffers.iter().zip(&args) {
            if written {
                buffers.insert(value, arg.data().unwrap());
            }
        }
    }
    let place = |place: &Place| match place {
        Place::Value(value) | Place::Strided { base: value, .. } => buffers[value].to_f64(),
    };
    plan.outputs.iter().map(place).collect()
}

fn assert_same(found: &[Vec<f64>], wanted: &[Vec<f64>], what: &str) {
    for (output, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        for (row, (f, w)) in found.iter().zip(wanted).enumerate() {
            let close = (f - w).abs() <= 1e-5 * w.abs().max(1e-3);
            assert!(
                close || f == w || f.is_nan() && w.is_nan(),
                "{what}, output {output}, row {row}: {f}, not {w}"
            );
        }
    }
}

/// A row in one tile, in steps, in loops on both machines, and in parts.
#[test]
fn special_values_are_what_they_were() {
    let machines = [
        ("host", Profile::host(2)),
        ("gpu", Profile::gpu(1, 4200.0)),
        ("clusters", Profile::gpu(1, 4200.0).with_clusters()),
        ("many", Profile::gpu(132, 4200.0)),
    ];
    // Loops begin beyond 16384 columns on a GPU, and 65536 on a processor.
    for (cols, machines) in
        [(7, &machines[..]), (1201, &machines), (20_003, &machines[1..]), (70_001, &machines[..1])]
    {
        let texts = [
            exponentials(9, cols),
            log_sum_exp(9, cols),
            positions("max", 9, cols),
            positions("min", 9, cols),
        ];
        for (which, text) in texts.iter().enumerate() {
            let before = parse_graph(text).unwrap();
            let input = rows(cols as usize);
            let wanted = values(&before, &input);
            let after = rewritten(text);
            let what = |machine: &str| format!("graph {which}, {cols} columns, {machine}");
            assert_same(&values(&after, &input), &wanted, &what("evaluated"));
            for (machine, profile) in machines {
                let plan = plan(&after, profile).unwrap();
                assert_same(&run(&plan, &input), &wanted, &what(machine));
            }
        }
    }
}

/// Means and squared deviations of rows far from 0, in all walks, against `f64`.
#[test]
fn moments_are_exact() {
    let machines = [
        Profile::host(2),
        Profile::gpu(1, 4200.0).with_clusters(),
        Profile::gpu(132, 4200.0).with_clusters(),
    ];
    for cols in [7usize, 1201, 20_003, 70_001] {
        let numbers: Vec<f32> = (0..3 * cols).map(|i| 100.0 + ((i * 31 + i / 7) % 64) as f32 * 0.5).collect();
        let input = tilefuse_block::eval::cast(&Data::F32(numbers), tilefuse_block::Elem::Bf16);
        let after = rewritten(&moments("bf16", 3, cols as i64));
        let exact = input.to_f64();
        let rows: Vec<&[f64]> = exact.chunks(cols).collect();
        let mean = |row: &[f64]| row.iter().sum::<f64>() / cols as f64;
        let squares = |row: &[f64]| row.iter().map(|x| (x - mean(row)).powi(2)).sum::<f64>();
        let wanted = [
            rows.iter().map(|row| mean(row)).collect::<Vec<f64>>(),
            rows.iter().map(|row| squares(row)).collect(),
        ];
        for profile in &machines {
            let plan = plan(&after, profile).unwrap();
            assert_same(&run(&plan, &input), &wanted, &format!("{cols} columns"));
        }
    }
}

/// A long row is divided into parts once for both members: parts are tuples.
#[test]
fn parts_of_a_row_are_tuples() {
    for text in [exponentials(1, 1 << 20), positions("max", 1, 1 << 20), moments("bf16", 1, 1 << 20)] {
        for profile in [Profile::host(2), Profile::gpu(132, 4200.0)] {
            assert_eq!(plan(&rewritten(&text), &profile).unwrap().kernel_count(), 2, "{text}");
        }
    }
}

/// Where a mask leaves elements out, it leaves their deviations out, too: products with counts of 1 and 0 would need these in
/// registers, of which two blocks of 16 warps have 64 a thread.
#[test]
fn masked_moments_select() {
    let mut graph = parse_graph(&moments("bf16", 2670, 50257)).unwrap();
    assert_eq!(tuple_reductions(&mut graph, &Rewrites::default()), 1);
    let plan = plan(&graph, &Profile::gpu(132, 4200.0)).unwrap();
    let [program] = &plan.programs[..] else { panic!("{}", plan.programs.len()) };
    let text = program.to_string();
    let (inside, ends) = text.split_once("yield").unwrap();
    let counts = [inside, ends].map(|part| ["map mul", "map select"].map(|what| part.matches(what).count()));
    expect!["[[8, 0], [13, 6]]"].assert_eq(&format!("{counts:?}"));
}
