use expect_test::{Expect, expect};

use super::slice_products;
use crate::parse_graph;
use crate::rewrite_limit::Rewrites;

fn check(text: &str, expected: Expect) {
    let mut graph = parse_graph(text).unwrap();
    let rewrites = Rewrites::default();
    let made = slice_products(&mut graph, &rewrites);
    crate::verify(&graph).unwrap();
    assert_eq!(made as u64, rewrites.made());
    expected.assert_eq(&format!("{made}: {graph}"));
}

/// How many slices are rewritten in `lines`, of operands %0 to %2: `f32[2,3,8]`, weights `f32[50,8]` and an input `f32[2,8,5]`.
fn made(lines: &str) -> usize {
    let operands = "%0 = input 0 : f32[2,3,8]\n%1 = param 0 : f32[50,8]\n%2 = input 1 : f32[2,8,5]";
    let mut graph = parse_graph(&format!("graph {{\n{operands}\n{lines}\n}}")).unwrap();
    let made = slice_products(&mut graph, &Rewrites::default());
    crate::verify(&graph).unwrap();
    made
}

#[test]
fn the_last_row_is_multiplied_alone() {
    check(
        "graph {
          %0 = input 0 : f32[2,3,8]
          %1 = param 0 : f32[50,8]
          %2 = param 1 : f32[50]
          %3 = contract sum[2]x[1](%0, %1) : f32[2,3,50]
          %4 = view reshape(%2) : f32[1,1,50]
          %5 = view expand(%4) : f32[2,3,50]
          %6 = map add(%3, %5) : f32[2,3,50]
          %7 = view slice[1,2,1](%6) : f32[2,1,50]
          %8 = map exp(%7) : f32[2,1,50]
          outputs %8
        }",
        expect![[r#"
            1: graph {
              %0 = input 0 : f32[2,3,8]
              %1 = param 0 : f32[50,8]
              %2 = param 1 : f32[50]
              %3 = view reshape(%2) : f32[1,1,50]
              %4 = view slice[1,2,1](%0) : f32[2,1,8]{24,8,1}
              %5 = contract sum[2]x[1](%4, %1) : f32[2,1,50]
              %6 = view expand(%3) : f32[2,1,50]
              %7 = map add(%5, %6) : f32[2,1,50]
              %8 = map exp(%7) : f32[2,1,50]
              outputs %8
            }
        "#]],
    );
}

#[test]
fn columns_are_columns_of_the_weight() {
    check(
        "graph {
          %0 = input 0 : f32[2,3,8]
          %1 = param 0 : f32[50,8]
          %2 = contract sum[2]x[1](%0, %1) : f32[2,3,50]
          %3 = view reshape(%2) : f32[6,50]
          %4 = view slice[1,10,2](%3) : f32[6,7]
          %5 = map exp(%4) : f32[6,7]
          outputs %5
        }",
        expect![[r#"
            1: graph {
              %0 = input 0 : f32[2,3,8]
              %1 = param 0 : f32[50,8]
              %2 = view slice[0,10,2](%1) : f32[7,8]{16,1}
              %3 = contract sum[2]x[1](%0, %2) : f32[2,3,7]
              %4 = view reshape(%3) : f32[6,7]
              %5 = map exp(%4) : f32[6,7]
              outputs %5
            }
        "#]],
    );
}

#[test]
fn what_is_needed_as_a_whole_is_not_sliced() {
    let product = "%3 = contract sum[2]x[1](%0, %1) : f32[2,3,50]";
    let slice = "%4 = view slice[1,2,1](%3) : f32[2,1,50]\n%5 = map exp(%4) : f32[2,1,50]";
    assert_eq!(made(&format!("{product}\n{slice}\noutputs %5")), 1);
    // Something else reads the product, or it is a result.
    assert_eq!(made(&format!("{product}\n{slice}\n%6 = map exp(%3) : f32[2,3,50]\noutputs %5, %6")), 0);
    assert_eq!(made(&format!("{product}\n{slice}\noutputs %5, %3")), 0);
    // A result has the strides that eager gives it.
    let strided = "%4 = view slice[1,2,1](%3) : f32[2,1,50]{150,50,1}";
    assert_eq!(made(&format!("{product}\n{strided}\noutputs %4")), 0);
    // Rows that are no dimension of the product's.
    let across =
        "%4 = view reshape(%3) : f32[300]\n%5 = view slice[0,0,1](%4) : f32[70]\n%6 = map exp(%5) : f32[70]";
    assert_eq!(made(&format!("{product}\n{across}\noutputs %6")), 0);
    // No operand is a weight: the product may be attention's.
    let batched = "%3 = contract batch[0]x[0] sum[2]x[1](%0, %2) : f32[2,3,5]";
    let row = "%4 = view slice[1,2,1](%3) : f32[2,1,5]\n%5 = map exp(%4) : f32[2,1,5]";
    assert_eq!(made(&format!("{batched}\n{row}\noutputs %5")), 0);
}
