//! Calls of products, and sums of them.

use expect_test::{Expect, expect};

use super::select_library;
use crate::eval::{Precision, Sources, eval};
use crate::library_form::tests::calls_alone;
use crate::machine::Profile;
use crate::pipeline::primitive;
use crate::rewrite_limit::Rewrites;
use crate::{Graph, lower, parse_graph, simplify, verify};
use tilefuse_block::Data;

/// The primitive graph before the pass.
fn simplified(text: &str) -> Graph {
    let mut graph = lower(&parse_graph(text).unwrap()).unwrap();
    simplify(&mut graph);
    graph
}

fn check(text: &str, expect: Expect) {
    expect.assert_eq(&primitive(text, &Profile::gpu(132, 4200.0)).to_string());
}

/// Each of these is the same call behind the contraction that it is lowered to.
#[test]
fn captured_calls_are_these_calls_again() {
    for (operands, call) in [
        ("f32[2,8,64] f32[48,64] f32[48]", "linear(input=%0, weight=%1, bias=%2) : f32[2,8,48]"),
        ("bf16[2,8,64] bf16[48,64] bf16[48]", "linear(input=%0, weight=%1, bias=%2) : bf16[2,8,48]"),
        ("f16[64] f16[48,64]", "linear(input=%0, weight=%1, bias=None) : f16[48]"),
        ("f32[4,7] f32[7,5]", "mm(self=%0, mat2=%1) : f32[4,5]"),
        ("i64[4,7] i64[7,5]", "mm(self=%0, mat2=%1) : i64[4,5]"),
        ("i8[4,7] i8[7,5]", "mm(self=%0, mat2=%1) : i8[4,5]"),
        ("i8[20,16] i8[16,8]", "_int_mm(self=%0, mat2=%1) : i32[20,8]"),
        ("bf16[3,4,7] bf16[3,7,5]", "bmm(self=%0, mat2=%1) : bf16[3,4,5]"),
        ("f32[5] f32[4,7] f32[7,5]", "addmm(self=%0, mat1=%1, mat2=%2, beta=0.5, alpha=2) : f32[4,5]"),
        ("bf16[4,1] bf16[4,7] bf16[7,5]", "addmm(self=%0, mat1=%1, mat2=%2, beta=1, alpha=0.25) : bf16[4,5]"),
        (
            "f16[4,5] f16[3,4,7] f16[3,7,5]",
            "baddbmm(self=%0, batch1=%1, batch2=%2, beta=1, alpha=3) : f16[3,4,5]",
        ),
        ("f32[4] f32[4,7] f32[7]", "addmv(self=%0, mat=%1, vec=%2, beta=1, alpha=2) : f32[4]"),
        ("f32[2,3,4,7] f32[2,3,7,5]", "matmul(self=%0, other=%1) : f32[2,3,4,5]"),
        ("f32[6,1,4,7] f32[3,7,5]", "matmul(self=%0, other=%1) : f32[6,3,4,5]"),
        ("bf16[1,4,7] bf16[3,7,5]", "matmul(self=%0, other=%1) : bf16[3,4,5]"),
        ("f32[4,7] f32[7]", "matmul(self=%0, other=%1) : f32[4]"),
        ("f32[7] f32[3,7,5]", "matmul(self=%0, other=%1) : f32[3,5]"),
        ("f32[6,4,7] f32[7,5]", "matmul(self=%0, other=%1) : f32[6,4,5]"),
    ] {
        let mut text = String::from("graph {\n");
        for (slot, ty) in operands.split(' ').enumerate() {
            text.push_str(&format!("  %{slot} = input {slot} : {ty}\n"));
        }
        let result = operands.split(' ').count();
        let graph = format!("{text}  %{result} = aten::{call}\n  outputs %{result}\n}}\n");
        let graph = parse_graph(&graph).unwrap().to_string();
        let lowered = lower(&parse_graph(&graph).unwrap()).unwrap().to_string();
        assert!(lowered.contains("contract") && !lowered.contains("aten"), "{lowered}");
        let selected = calls_alone(&primitive(&graph, &Profile::host(2)));
        // What is broadcast has its dimensions of size 1 spelled out.
        let call =
            |text: &str| text.split("aten::").nth(1).map(|t| t.split(['(', '\n']).next().unwrap().to_owned());
        if selected.contains("view") {
            assert_eq!(call(&selected), call(&graph), "{selected}");
        } else {
            assert_eq!(selected, graph);
        }
    }
}

/// A call with a factor of 0 does not read what a multiplication by 0 reads.
#[test]
fn a_factor_of_0_is_no_factor_of_a_call() {
    let types = "%0 = input 0 : f32[4,5]\n%1 = input 1 : f32[4,7]\n%2 = input 2 : f32[7,5]";
    let text = format!(
        "graph {{\n{types}\n%3 = aten::addmm(self=%0, mat1=%1, mat2=%2, beta=1, alpha=0) : f32[4,5]\noutputs %3\n}}"
    );
    let graph = parse_graph(&text).unwrap();
    assert_eq!(lower(&graph).unwrap().to_string(), graph.to_string());

    for (rest, call) in [
        ("map mul(%6, %5) : f32[4,5]\n%8 = map add(%7, %0)", "mm(self=%1, mat2=%2)"),
        ("map mul(%5, %6) : f32[4,5]\n%8 = map add(%7, %0)", "mm(self=%1, mat2=%2)"),
        ("map mul(%0, %5) : f32[4,5]\n%8 = map add(%6, %7)", "mat1=%1, mat2=%2, beta=1, alpha=1)"),
        ("map mul(%5, %0) : f32[4,5]\n%8 = map add(%7, %6)", "mat1=%1, mat2=%2, beta=1, alpha=1)"),
    ] {
        let text = format!(
            "graph {{\n{types}\n%3 = scalar 0.0 : f32[]\n%4 = view reshape(%3) : f32[1,1]\n\
             %5 = view expand(%4) : f32[4,5]\n%6 = contract sum[1]x[0](%1, %2) : f32[4,5]\n\
             %7 = {rest} : f32[4,5]\noutputs %8\n}}"
        );
        let selected = primitive(&text, &Profile::host(2)).to_string();
        assert!(selected.contains(call) && selected.contains("map mul("), "{selected}");
    }
}

/// Calls with what is behind a contraction are rewrites; without one the contraction alone is called.
#[test]
fn epilogues_stop_at_a_limit() {
    let graph = |elem: &str, call: &str| {
        let text = format!(
            "graph {{
              %0 = input 0 : f32[2,4,8]
              %1 = input 1 : f32[6,4,3]
              %2 = input 2 : f32[6]
              %3 = input 3 : f32[4,8]
              %4 = input 4 : f32[6,8]
              %5 = aten::{call}
              outputs %5
            }}"
        );
        simplified(&text.replace("f32", elem))
    };
    let linear = "linear(input=%3, weight=%4, bias=%2) : f32[4,6]";
    let conv =
        "conv1d(input=%0, weight=%1, bias=%2, stride=[1], padding=[1], dilation=[1], groups=1) : f32[2,6,8]";
    for elem in ["f32", "bf16"] {
        for (call, name) in [(linear, "linear"), (conv, "conv1d")] {
            let mut whole = graph(elem, call);
            let rewrites = Rewrites::default();
            select_library(&mut whole, &rewrites);
            assert_eq!((rewrites.made(), rewrites.last().as_deref()), (1, Some("select-library")));
            assert!(!whole.to_string().contains(" map "), "{whole}");
            let mut none = graph(elem, call);
            select_library(&mut none, &Rewrites::at_most(Some(0)));
            verify(&none).unwrap();
            let text = none.to_string();
            let alone = text.contains(&format!("aten::{name}(")) && text.contains("bias=None");
            assert!(alone && text.contains(" map add("), "{text}");
        }
    }
}

/// Only a batch of both operands is repeated by libtorch.
#[test]
fn what_is_expanded_outside_of_a_batch_stays_so() {
    for graph in [
        "%0 = input 0 : f32[1,4,7]
         %1 = input 1 : f32[7,5]
         %2 = view expand(%0) : f32[6,4,7]{0,7,1}
         %3 = aten::matmul(self=%2, other=%1) : f32[6,4,5]",
        "%0 = input 0 : f32[7]
         %1 = input 1 : f32[1,7,5]
         %2 = view expand(%1) : f32[6,7,5]{0,5,1}
         %3 = aten::matmul(self=%0, other=%2) : f32[6,5]",
        "%0 = input 0 : f32[1,1,4,7]
         %1 = input 1 : f32[1,1,7,5]
         %2 = view expand(%0) : f32[2,3,4,7]{0,0,7,1}
         %3 = view expand(%1) : f32[2,3,7,5]{0,0,5,1}
         %4 = aten::matmul(self=%2, other=%3) : f32[2,3,4,5]",
    ] {
        let last = graph.matches('=').count() - graph.matches("self=").count() * 2 - 1;
        let text = format!("graph {{\n{graph}\noutputs %{last}\n}}");
        let graph = parse_graph(&text).unwrap();
        let selected = primitive(&text, &Profile::host(2));
        assert_eq!(calls_alone(&selected), graph.to_string());
    }
}

#[test]
fn a_product_of_one_row_on_a_gpu_is_a_reduction() {
    check(
        "graph {
          %0 = input 0 : bf16[1,1,64]@cuda:0
          %1 = param 0 : bf16[48,64]@cuda:0
          %2 = param 1 : bf16[48]@cuda:0
          %3 = aten::linear(input=%0, weight=%1, bias=%2) : bf16[1,1,48]@cuda:0
          outputs %3
        }",
        expect![[r#"
            graph {
              %0 = input 0 : bf16[1,1,64]@cuda:0
              %1 = param 0 : bf16[48,64]@cuda:0
              %2 = param 1 : bf16[48]@cuda:0
              %3 = cast(%2) : f32[48]@cuda:0
              %4 = view reshape(%3) : f32[1,1,48]@cuda:0
              %5 = cast(%0) : f32[1,1,64]@cuda:0
              %6 = view reshape(%5) : f32[1,1,1,64]@cuda:0
              %7 = view expand(%6) : f32[1,1,48,64]@cuda:0
              %8 = cast(%1) : f32[48,64]@cuda:0
              %9 = view reshape(%8) : f32[1,1,48,64]@cuda:0
              %10 = map mul(%7, %9) : f32[1,1,48,64]@cuda:0
              %11 = reduce sum[3](%10) : f32[1,1,48]@cuda:0
              %12 = map add(%11, %4) : f32[1,1,48]@cuda:0
              %13 = cast(%12) : bf16[1,1,48]@cuda:0
              outputs %13
            }
        "#]],
    );
}

#[test]
fn other_orders_are_products_of_matrices() {
    check(
        r#"graph {
          %0 = input 0 : f32[6,4,8]
          %1 = input 1 : f32[8,6,5]
          %2 = aten::einsum(equation="bik,kbj->ijb", tensors=[%0, %1], path=None) : f32[4,5,6]
          %3 = aten::tensordot(self=%0, other=%1, dims_self=[0,2], dims_other=[1,0]) : f32[4,5]
          outputs %2, %3
        }"#,
        expect![[r#"
            graph {
              %0 = input 0 : f32[6,4,8]
              %1 = input 1 : f32[8,6,5]
              %2 = view permute[1,0,2](%1) : f32[6,8,5]{5,30,1}
              %3 = aten::bmm(self=%0, mat2=%2) contracts batch[0]x[0] sum[2]x[1](0, 1) : f32[6,4,5]
              %4 = view permute[1,2,0](%3) : f32[4,5,6]
              %5 = view permute[1,0,2](%0) : f32[4,6,8]{8,32,1}
              %6 = view reshape(%5) : f32[4,48]
              %7 = view reshape(%2) : f32[48,5]
              %8 = aten::mm(self=%6, mat2=%7) contracts sum[1]x[0](0, 1) : f32[4,5]
              outputs %4, %8
            }
        "#]],
    );
}

/// Two layers of one input and weight share the contraction.
#[test]
fn what_is_shared_is_one_product() {
    let text = |kind: &str| {
        format!(
            "graph {{
              origin 0 \"a\"
              origin 1 \"b\"
              %0 = input 0 : {kind}[4,8]
              %1 = param 0 : {kind}[5,8]
              %2 = param 1 : {kind}[5]
              %3 = param 2 : {kind}[5]
              %4 = aten::linear(input=%0, weight=%1, bias=%2) : {kind}[4,5] @0
              %5 = aten::linear(input=%0, weight=%1, bias=%3) : {kind}[4,5] @1
              outputs %4, %5
            }}"
        )
    };
    check(
        &text("f32"),
        expect![[r#"
            graph {
              origin 0 "a"
              origin 1 "b"
              %0 = input 0 : f32[4,8]
              %1 = param 0 : f32[5,8]
              %2 = param 1 : f32[5]
              %3 = param 2 : f32[5]
              %4 = view reshape(%2) : f32[1,5] @0
              %5 = view expand(%4) : f32[4,5] @0
              %6 = aten::linear(input=%0, weight=%1, bias=None) contracts sum[1]x[1](0, 1) : f32[4,5] @0
              %7 = map add(%6, %5) : f32[4,5] @0
              %8 = view reshape(%3) : f32[1,5] @1
              %9 = view expand(%8) : f32[4,5] @1
              %10 = map add(%6, %9) : f32[4,5] @1
              outputs %7, %10
            }
        "#]],
    );
    check(
        &text("bf16"),
        expect![[r#"
            graph {
              origin 0 "a"
              origin 1 "b"
              %0 = input 0 : bf16[4,8]
              %1 = param 0 : bf16[5,8]
              %2 = param 1 : bf16[5]
              %3 = param 2 : bf16[5]
              %4 = aten::linear(input=%0, weight=%1, bias=%2) contracts sum[1]x[1](0, 1) adds 2 : bf16[4,5] @0
              %5 = aten::linear(input=%0, weight=%1, bias=%3) contracts sum[1]x[1](0, 1) adds 2 : bf16[4,5] @1
              outputs %4, %5
            }
        "#]],
    );
}

/// Contractions of many forms, as they are evaluated and as products and sums.
#[test]
fn sums_of_products_are_what_a_contraction_means() {
    for (left, right, pairs, result) in [
        ("4,7", "5,7", "sum[1]x[1]", "4,5"),
        ("3,4,7", "7,3,5", "batch[0]x[1] sum[2]x[0]", "3,4,5"),
        ("3,4", "3,4", "batch[0]x[0] sum[1]x[1]", "3"),
        ("2,3,4", "4,2,5", "sum[0,2]x[1,0]", "3,5"),
        ("3", "5", "", "3,5"),
        ("7", "7", "sum[0]x[0]", ""),
        ("4,0", "0,5", "sum[1]x[0]", "4,5"),
    ] {
        let text = format!(
            "graph {{
              %0 = input 0 : f64[{left}]
              %1 = input 1 : f64[{right}]
              %2 = contract {pairs}(%0, %1) : f64[{result}]
              outputs %2
            }}"
        );
        let graph = parse_graph(&text).unwrap();
        verify(&graph).unwrap();
        assert_eq!(parse_graph(&graph.to_string()).unwrap().to_string(), graph.to_string());
        let mut sums = graph.clone();
        let node = sums.ids().find(|&id| matches!(sums.node(id).op, crate::Op::Contract(_))).unwrap();
        let contract = super::Contract::of(&sums, node).unwrap();
        let value = contract.as_sums(&mut sums);
        sums.replace_uses(node.into(), value);
        sums.remove_unused();
        verify(&sums).unwrap();
        let data = |text: &str, unit: f64| {
            let len = text.split(',').map(|n| n.parse::<usize>().unwrap()).product();
            Data::F64((0..len).map(|i| ((i * 37) % 17) as f64 * unit - 1.0).collect())
        };
        let inputs = [data(left, 0.25), data(right, 0.5)];
        let sources = Sources { inputs: &inputs, ..Sources::default() };
        let results = [&graph, &sums].map(|g| eval(g, sources, Precision::Exact).unwrap().outputs);
        assert_eq!(results[0], results[1], "{text}");
    }
}

#[test]
fn contractions_that_are_not_well_formed_are_refused() {
    for (pairs, result) in [
        ("sum[1]x[0]", "f32[4,5]"),
        ("sum[1]x[1]", "f32[5,4]"),
        ("sum[1]x[1]", "bf16[4,5]"),
        ("sum[3]x[1]", "f32[4,5]"),
        ("batch[1]x[1] sum[1]x[1]", "f32[4,5]"),
    ] {
        let text = format!(
            "graph {{
              %0 = input 0 : bf16[4,7]
              %1 = input 1 : bf16[5,7]
              %2 = contract {pairs}(%0, %1) : {result}
              outputs %2
            }}"
        );
        assert!(verify(&parse_graph(&text).unwrap()).is_err(), "{text}");
    }
}

#[test]
fn a_sum_that_nothing_rounds_is_computed_in_its_type() {
    let text = "graph {
          %0 = input 0 : bf16[4,8]
          %1 = param 0 : bf16[5,8]
          %2 = contract sum[1]x[1](%0, %1) : f32[4,5]
          outputs %2
        }";
    let mut graph = parse_graph(text).unwrap();
    assert_eq!(select_library(&mut graph, &Rewrites::default()), 1);
    simplify(&mut graph);
    verify(&graph).unwrap();
    expect![[r#"
        graph {
          %0 = input 0 : bf16[4,8]
          %1 = param 0 : bf16[5,8]
          %2 = cast(%0) : f32[4,8]
          %3 = cast(%1) : f32[5,8]
          %4 = aten::linear(input=%2, weight=%3, bias=None) contracts sum[1]x[1](0, 1) : f32[4,5]
          outputs %4
        }
    "#]]
    .assert_eq(&graph.to_string());
}

/// Sums of 16-bit numbers that nothing rounds, which libtorch has on a GPU alone.
#[test]
fn sums_are_calls_of_their_own_on_a_gpu() {
    let graph = |device: &str| {
        format!(
            "graph {{
               %0 = input 0 : bf16[16,64]{device}
               %1 = input 1 : bf16[64,48]{device}
               %2 = input 2 : bf16[3,16,64]{device}
               %3 = input 3 : bf16[3,64,48]{device}
               %4 = aten::mm.dtype(self=%0, mat2=%1, out_dtype=f32) : f32[16,48]{device}
               %5 = aten::bmm.dtype(self=%2, mat2=%3, out_dtype=f32) : f32[3,16,48]{device}
               %6 = aten::exp(self=%4) : f32[16,48]{device}
               outputs %5, %6
             }}"
        )
    };
    check(
        &graph("@cuda:0"),
        expect![[r#"
        graph {
          %0 = input 0 : bf16[16,64]@cuda:0
          %1 = input 1 : bf16[64,48]@cuda:0
          %2 = input 2 : bf16[3,16,64]@cuda:0
          %3 = input 3 : bf16[3,64,48]@cuda:0
          %4 = aten::mm.dtype(self=%0, mat2=%1, out_dtype=f32) contracts sum[1]x[0](0, 1) : f32[16,48]@cuda:0
          %5 = map exp(%4) : f32[16,48]@cuda:0
          %6 = aten::bmm.dtype(self=%2, mat2=%3, out_dtype=f32) contracts batch[0]x[0] sum[2]x[1](0, 1) : f32[3,16,48]@cuda:0
          outputs %6, %5
        }
    "#]],
    );
    check(
        &graph(""),
        expect![[r#"
        graph {
          %0 = input 0 : bf16[16,64]
          %1 = input 1 : bf16[64,48]
          %2 = input 2 : bf16[3,16,64]
          %3 = input 3 : bf16[3,64,48]
          %4 = cast(%0) : f32[16,64]
          %5 = cast(%1) : f32[64,48]
          %6 = aten::mm(self=%4, mat2=%5) contracts sum[1]x[0](0, 1) : f32[16,48]
          %7 = map exp(%6) : f32[16,48]
          %8 = cast(%2) : f32[3,16,64]
          %9 = cast(%3) : f32[3,64,48]
          %10 = aten::bmm(self=%8, mat2=%9) contracts batch[0]x[0] sum[2]x[1](0, 1) : f32[3,16,48]
          outputs %10, %7
        }
    "#]],
    );
}

/// Of integers there are no calls on a GPU, but the one of 8-bit integers.
#[test]
fn products_of_integers_are_sums_on_a_gpu() {
    check(
        r#"graph {
          %0 = input 0 : i64[1]@cuda:0
          %1 = input 1 : i64[1,3]@cuda:0
          %2 = aten::einsum(equation="a,ax->x", tensors=[%0, %1], path=None) : i64[3]@cuda:0
          outputs %2
        }"#,
        expect![[r#"
            graph {
              %0 = input 0 : i64[1]@cuda:0
              %1 = input 1 : i64[1,3]@cuda:0
              %2 = view reshape(%0) : i64[1,1]@cuda:0
              %3 = view expand(%2) : i64[3,1]@cuda:0
              %4 = view permute[1,0](%1) : i64[3,1]@cuda:0
              %5 = map mul(%3, %4) : i64[3,1]@cuda:0
              %6 = reduce sum[1](%5) : i64[3]@cuda:0
              outputs %6
            }
        "#]],
    );
    check(
        "graph {
          %0 = input 0 : i8[32,16]@cuda:0
          %1 = input 1 : i8[16,8]@cuda:0
          %2 = aten::_int_mm(self=%0, mat2=%1) : i32[32,8]@cuda:0
          outputs %2
        }",
        expect![[r#"
            graph {
              %0 = input 0 : i8[32,16]@cuda:0
              %1 = input 1 : i8[16,8]@cuda:0
              %2 = aten::_int_mm(self=%0, mat2=%1) contracts sum[1]x[0](0, 1) : i32[32,8]@cuda:0
              outputs %2
            }
        "#]],
    );
}
