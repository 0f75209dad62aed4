use expect_test::{Expect, expect};

use crate::{parse_graph, simplify, verify};

fn check(graph: &str, expect: Expect) {
    let mut graph = parse_graph(graph).unwrap();
    verify(&graph).unwrap();
    simplify(&mut graph);
    verify(&graph).unwrap();
    expect.assert_eq(&graph.to_string());
}

#[test]
fn views_of_views() {
    check(
        "graph {
          %0 = input 0 : f32[2,3,4]
          %1 = view permute[1,0,2](%0) : f32[3,2,4]{4,12,1}
          %2 = view permute[1,0,2](%1) : f32[2,3,4]
          %3 = view reshape(%2) : f32[6,4]
          %4 = view reshape(%3) : f32[24]
          %5 = view slice[0,2,3](%4) : f32[7]
          %6 = view slice[0,1,2](%5) : f32[3]
          %7 = view flip[0](%6) : f32[3]
          %8 = view flip[0](%7) : f32[3]
          %9 = map neg(%8) : f32[3]
          outputs %9
        }",
        expect![[r#"
            graph {
              %0 = input 0 : f32[2,3,4]
              %1 = view reshape(%0) : f32[24]
              %2 = view slice[0,5,6](%1) : f32[3]
              %3 = map neg(%2) : f32[3]
              outputs %3
            }
        "#]],
    );
}

#[test]
fn outputs_keep_their_strides() {
    check(
        "graph {
          %0 = input 0 : f32[2,3]{1,2}
          %1 = view reshape(%0) : f32[2,3]
          %2 = map exp(%1) : f32[2,3]
          outputs %1, %2
        }",
        expect![[r#"
            graph {
              %0 = input 0 : f32[2,3]{1,2}
              %1 = view reshape(%0) : f32[2,3]
              %2 = map exp(%1) : f32[2,3]
              outputs %1, %2
            }
        "#]],
    );
}

#[test]
fn literals() {
    check(
        "graph {
          %0 = input 0 : f32[3]
          %1 = scalar 2.0 : f32[]
          %2 = view reshape(%1) : f32[1]
          %3 = view expand(%2) : f32[3]
          %4 = map add(%3, %3) : f32[3]
          %5 = map div(%0, %4) : f32[3]
          %6 = scalar 1 : i64[]
          %7 = cast(%6) : f32[]
          %8 = view reshape(%7) : f32[1]
          %9 = view expand(%8) : f32[3]
          %10 = map mul(%5, %9) : f32[3]
          %11 = scalar 0.0 : f32[]
          %12 = view reshape(%11) : f32[1]
          %13 = view expand(%12) : f32[3]
          %14 = map add(%10, %13) : f32[3]
          %15 = map sub(%14, %13) : f32[3]
          outputs %15
        }",
        expect![[r#"
            graph {
              %0 = input 0 : f32[3]
              %1 = scalar 0.0 : f32[]
              %2 = view reshape(%1) : f32[1]
              %3 = view expand(%2) : f32[3]
              %4 = scalar 0.25 : f32[]
              %5 = view reshape(%4) : f32[1]
              %6 = view expand(%5) : f32[3]
              %7 = map mul(%0, %6) : f32[3]
              %8 = map add(%7, %3) : f32[3]
              outputs %8
            }
        "#]],
    );
}

#[test]
fn casts() {
    check(
        "graph {
          %0 = input 0 : bf16[3]
          %1 = cast(%0) : f32[3]
          %2 = cast(%1) : bf16[3]
          %3 = cast(%1) : f64[3]
          %4 = map exp(%1) : f32[3]
          %5 = cast(%4) : bf16[3]
          %6 = cast(%5) : f32[3]
          outputs %2, %3, %6
        }",
        expect![[r#"
            graph {
              %0 = input 0 : bf16[3]
              %1 = cast(%0) : f32[3]
              %2 = map exp(%1) : f32[3]
              %3 = cast(%2) : bf16[3]
              %4 = cast(%3) : f32[3]
              %5 = cast(%0) : f64[3]
              outputs %0, %5, %4
            }
        "#]],
    );
}

#[test]
fn equal_nodes() {
    check(
        "graph {
          %0 = input 0 : f32[3]
          %1 = aten::foo(self=%0) : f32[3]
          %2 = aten::foo(self=%0) !replay 4 : f32[3]
          %3 = aten::bernoulli(self=%0) !random : f32[3]
          %4 = aten::bernoulli(self=%0) !random : f32[3]
          %5 = map exp(%1) : f32[3]
          %6 = map exp(%2) : f32[3]
          %7 = map add(%5, %6) : f32[3]
          outputs %7
        }",
        expect![[r#"
            graph {
              %0 = input 0 : f32[3]
              %1 = aten::foo(self=%0) : f32[3]
              %2 = aten::bernoulli(self=%0) !random : f32[3]
              %3 = aten::bernoulli(self=%0) !random : f32[3]
              %4 = map exp(%1) : f32[3]
              %5 = map add(%4, %4) : f32[3]
              outputs %5
            }
        "#]],
    );
}

#[test]
fn zeros_of_both_signs_are_two_arguments() {
    check(
        "graph {
          %0 = input 0 : f32[4]
          %1 = input 1 : i64[2]
          %2 = aten::index_fill.int_Scalar(self=%0, dim=0, index=%1, value=0.0) : f32[4]
          %3 = aten::index_fill.int_Scalar(self=%0, dim=0, index=%1, value=-0.0) : f32[4]
          %4 = aten::index_fill.int_Scalar(self=%0, dim=0, index=%1, value=-0.0) : f32[4]
          %5 = map div(%2, %3) : f32[4]
          %6 = map div(%5, %4) : f32[4]
          outputs %6
        }",
        expect![[r#"
            graph {
              %0 = input 0 : f32[4]
              %1 = input 1 : i64[2]
              %2 = aten::index_fill.int_Scalar(self=%0, dim=0, index=%1, value=0.0) : f32[4]
              %3 = aten::index_fill.int_Scalar(self=%0, dim=0, index=%1, value=-0.0) : f32[4]
              %4 = map div(%2, %3) : f32[4]
              %5 = map div(%4, %3) : f32[4]
              outputs %5
            }
        "#]],
    );
}
