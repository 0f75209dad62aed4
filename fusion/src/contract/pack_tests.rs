//! Plans whose products read operands that kernels packed, run in the interpreter and compared with sums in `f64`.

use expect_test::expect;
use tilefuse_block::Elem;

use super::tests::{evaluate, run};
use super::{Products, Times, choose_products};
use crate::block_kernel::BlockKernelKind;
use crate::graph::{Graph, Op};
use crate::machine::Profile;
use crate::parse_graph;
use crate::pipeline::{plan, primitive};
use crate::plan::Plan;
use crate::verify;

/// A plan that packs operands wherever that can be done, and its graph before planning.
fn planned(text: &str, profile: &Profile) -> (Graph, Plan) {
    let mut graph = primitive(text, profile);
    choose_products(&mut graph, profile, Products::Measured, Some(0), u64::MAX, &mut |candidate| {
        let generated_us = if candidate.template.operand_kernels.is_empty() { 1.5 } else { 1.0 };
        Some(Times { generated_us, library_us: 2.0, measured: true })
    });
    verify(&graph).unwrap();
    let plan = plan(&graph, profile).unwrap();
    (graph, plan)
}

/// Operands that are packed for the products of a graph.
fn packed(graph: &Graph) -> usize {
    let is = |op: &Op| *op == Op::Kernel(BlockKernelKind::Pack);
    graph.ids().filter(|&id| is(&graph.node(id).op)).count()
}

/// Runs a graph on several numbers of threads, which make the same bits, and returns how many operands are packed.
fn check(text: &str, profile: fn(u32) -> Profile) -> usize {
    let exact = evaluate(&parse_graph(text).unwrap());
    let mut before: Option<Vec<Vec<f64>>> = None;
    let mut count = 0;
    for threads in [1, 2, 16] {
        let (graph, plan) = planned(text, &profile(threads));
        assert_eq!(plan.extern_count(), 0, "{text}");
        count = packed(&graph);
        let found = run(&plan);
        let elem = graph.ty(graph.outputs[0]).dtype.elem();
        let tolerance = if matches!(elem, Some(Elem::F16 | Elem::Bf16)) { 1e-2 } else { 1e-5 };
        for (found, exact) in found.iter().zip(&exact) {
            assert_eq!(found.len(), exact.data.len());
            let largest = exact.data.iter().fold(1.0f64, |most, e| most.max(e.abs()));
            for (at, (f, e)) in found.iter().zip(&exact.data).enumerate() {
                assert!((f - e).abs() <= tolerance * largest, "element {at}: {f} instead of {e}\n{text}");
            }
        }
        assert!(before.as_ref().is_none_or(|before| *before == found), "{threads} threads\n{text}");
        before = Some(found);
    }
    count
}

/// A processor that packs operands in no time, so that it pays for the smallest products.
fn packing(threads: u32) -> Profile {
    Profile { launch_us: 0.0, bandwidth: 1e12, ..Profile::host(threads) }
}

fn pairs(threads: u32) -> Profile {
    packing(threads).with_vnni([800.0, 0.0])
}

/// A product of matrices that may be transposed.
fn product(elem: &str, [m, n, k]: [i64; 3], transposed: [bool; 2]) -> String {
    let shape = |rows: i64, columns: i64, transposed: bool| match transposed {
        true => format!("{elem}[{rows},{columns}]{{1,{rows}}}"),
        false => format!("{elem}[{rows},{columns}]"),
    };
    format!(
        "graph {{
           %0 = input 0 : {}
           %1 = input 1 : {}
           %2 = aten::mm(self=%0, mat2=%1) : {elem}[{m},{n}]
           outputs %2
         }}",
        shape(m, k, transposed[0]),
        shape(k, n, transposed[1])
    )
}

#[test]
fn odd_sizes_are_filled_up_with_zeros() {
    let elems = [("f32", packing as fn(u32) -> Profile), ("f64", packing), ("bf16", pairs)];
    for (elem, profile) in elems {
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            for (sizes, count) in [
                ([17, 33, 5], 1),
                ([16, 1, 130], 1),
                ([33, 300, 9], 2),
                ([35, 4, 1153], 1),
                ([35, 4, 1216], 1),
            ] {
                assert_eq!(
                    check(&product(elem, sizes, transposed), profile),
                    count,
                    "{elem} {sizes:?} {transposed:?}"
                );
            }
        }
    }
}

#[test]
fn halves_are_widened_once() {
    assert_eq!(check(&product("f16", [17, 33, 20], [false, true]), packing), 1);
    assert_eq!(check(&product("bf16", [33, 300, 20], [false, false]), packing), 2);
}

#[test]
fn few_rows_read_the_operand_where_it_lies() {
    assert_eq!(check(&product("f32", [9, 70, 20], [false, true]), Profile::host), 0);
    assert_eq!(
        check(&product("bf16", [5, 70, 20], [false, true]), |threads| Profile::host(threads)
            .with_vnni([800.0, 0.0])),
        0
    );
}

#[test]
fn members_of_a_batch_have_panels_of_their_own() {
    for (elem, profile) in [("f32", packing as fn(u32) -> Profile), ("bf16", pairs)] {
        let views = format!(
            "graph {{
               %0 = input 0 : {elem}[3,20,7]
               %1 = input 1 : {elem}[3,9,7]
               %2 = aten::transpose.int(self=%1, dim0=-2, dim1=-1) : {elem}[3,7,9]{{63,1,7}}
               %3 = aten::bmm(self=%0, mat2=%2) : {elem}[3,20,9]
               outputs %3
             }}"
        );
        assert_eq!(check(&views, profile), 1);
        let repeated = format!(
            "graph {{
               %0 = input 0 : {elem}[2,1,40,5]
               %1 = input 1 : {elem}[3,5,260]
               %2 = aten::matmul(self=%0, other=%1) : {elem}[2,3,40,260]
               outputs %2
             }}"
        );
        assert_eq!(check(&repeated, profile), 2);
    }
}

#[test]
fn integers_lie_in_fours() {
    let text = "graph {
      %0 = input 0 : i8[33,21]
      %1 = input 1 : i8[21,18]
      %2 = aten::_int_mm(self=%0, mat2=%1) : i32[33,18]
      outputs %2
    }";
    assert_eq!(check(text, |threads| packing(threads).with_vnni([0.0, 1500.0])), 1);
}

#[test]
fn what_is_read_twice_is_packed_once() {
    let text = "graph {
      %0 = input 0 : f32[20,7]
      %1 = input 1 : f32[9,7]
      %2 = input 2 : f32[17,7]
      %3 = aten::linear(input=%0, weight=%1, bias=None) : f32[20,9]
      %4 = aten::linear(input=%2, weight=%1, bias=None) : f32[17,9]
      outputs %3, %4
    }";
    assert_eq!(check(text, packing), 1);
}

#[test]
fn many_rows_pack_operands_without_a_measurement() {
    let shown = |m: i64, n: i64, k: i64| {
        let mut graph = primitive(&product("f32", [m, n, k], [false, false]), &Profile::host(2));
        choose_products(&mut graph, &Profile::host(2), Products::Predicted, Some(0), u64::MAX, &mut |_| None);
        let plan = plan(&graph, &Profile::host(2)).unwrap();
        format!(
            "{m} x {n} x {k}: {} packed, {} kernels, {} calls\n",
            packed(&graph),
            plan.kernel_count(),
            plan.extern_count()
        )
    };
    let all = [(8, 1024, 1024), (64, 1024, 1024), (1024, 1024, 1024), (1024, 1000, 1008)];
    let all: String = all.into_iter().map(|(m, n, k)| shown(m, n, k)).collect();
    expect![[r#"
        8 x 1024 x 1024: 0 packed, 1 kernels, 0 calls
        64 x 1024 x 1024: 0 packed, 1 kernels, 0 calls
        1024 x 1024 x 1024: 2 packed, 3 kernels, 0 calls
        1024 x 1000 x 1008: 2 packed, 3 kernels, 0 calls
    "#]]
    .assert_eq(&all);
}

/// What fills up the blocks of a left operand takes memory, too.
#[test]
fn operands_that_take_too_much_memory_are_read_where_they_lie() {
    let kernels = |most_bytes: u64| {
        let mut graph = primitive(&product("f32", [1025, 256, 300], [false, false]), &Profile::host(2));
        choose_products(&mut graph, &Profile::host(2), Products::Generated, Some(0), most_bytes, &mut |_| {
            None
        });
        let plan = plan(&graph, &Profile::host(2)).unwrap();
        (packed(&graph), plan.kernel_count(), plan.extern_count())
    };
    assert_eq!(kernels(u64::MAX), (2, 3, 0));
    // Without what fills them up, both take 1,557,680 bytes.
    assert_eq!(kernels(1_600_000), (0, 1, 0));
}

/// Sizes around multiples of all blocks: a read beyond what was packed is an error of the interpreter.
#[test]
fn products_of_many_sizes_read_what_was_packed() {
    let near = |of: i64, n: i64| (of + n % 3 - 1).max(1);
    for n in 0..40i64 {
        let depths = [64, 128, 192, 320, 576, 832, 1088, 1152, 1216, 1344];
        let sizes = [near(24, n), near([1, 4, 16, 33, 64][(n % 5) as usize], n / 3), {
            near(depths[(n % 10) as usize], n / 7)
        }];
        let (elem, profile) = match n % 3 {
            0 => ("f32", packing as fn(u32) -> Profile),
            1 => ("f64", packing as fn(u32) -> Profile),
            _ => ("bf16", pairs as fn(u32) -> Profile),
        };
        check(&product(elem, sizes, [n % 2 == 0, n % 4 < 2]), profile);
    }
}
