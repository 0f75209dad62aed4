use expect_test::{Expect, expect};

use super::{Facts, MaskFacts, MaskKind, NoFacts, recognise_attention};
use crate::graph::{AtenCall, Graph, ValueRef};
use crate::types::{Dims, TensorType};
use crate::{parse_graph, verify};

/// Every mask is causal, and results have heads and positions swapped in memory. Counts the masks relied on.
#[derive(Default)]
struct Causal(usize);

impl Facts for Causal {
    fn mask(&mut self, _: &Graph, _: ValueRef, _: MaskKind) -> Option<MaskFacts> {
        Some(MaskFacts { causal: true, rows_open: true })
    }

    fn rely(&mut self, _: ValueRef, _: MaskKind) {
        self.0 += 1;
    }

    fn result_strides(&mut self, _: &AtenCall, _: &[TensorType]) -> Option<Dims> {
        Some(Dims::from_slice(&[120, 8, 24, 1]))
    }
}

fn check(graph: &str, facts: &mut dyn Facts, expect: Expect) {
    let mut graph = parse_graph(graph).unwrap();
    recognise_attention(&mut graph, facts);
    verify(&graph).unwrap();
    let text = graph.to_string();
    assert_eq!(parse_graph(&text).unwrap().to_string(), text);
    expect.assert_eq(&text);
}

const MASKED: &str = "graph {
  origin 0 \"aten::matmul #0\"
  origin 1 \"aten::matmul #4\"
  %0 = input 0 : f32[2,3,5,8]
  %1 = input 1 : f32[2,3,8,5]{120,40,1,8}
  %2 = input 2 : f32[2,3,5,8]
  %3 = param 0 : bool[5,5]
  %4 = aten::matmul(self=%0, other=%1) : f32[2,3,5,5] @0
  %5 = aten::div.Scalar(self=%4, other=4.0) : f32[2,3,5,5]
  %6 = aten::masked_fill.Scalar(self=%5, mask=%3, value=-inf) : f32[2,3,5,5]
  %7 = aten::softmax.int(self=%6, dim=-1, dtype=None) : f32[2,3,5,5]
  %8 = aten::matmul(self=%7, other=%2) : f32[2,3,5,8] @1
  outputs %8
}";

#[test]
fn causal_attention_becomes_one_call() {
    check(
        MASKED,
        &mut Causal::default(),
        expect![[r#"
        graph {
          origin 0 "aten::matmul #0"
          origin 1 "aten::matmul #4"
          origin 2 "attention aten::matmul #0 to aten::matmul #4"
          %0 = input 0 : f32[2,3,5,8]
          %1 = input 1 : f32[2,3,8,5]{120,40,1,8}
          %2 = input 2 : f32[2,3,5,8]
          %3 = aten::transpose.int(self=%1, dim0=-2, dim1=-1) : f32[2,3,5,8] @1
          %4 = aten::scaled_dot_product_attention(query=%0, key=%3, value=%2, attn_mask=None, dropout_p=0.0, is_causal=true, scale=0.25, enable_gqa=false) : f32[2,3,5,8]{120,8,24,1} @2
          outputs %4
        }
    "#]],
    );
}

#[test]
fn a_mask_that_nobody_knows_stays() {
    let before = parse_graph(MASKED).unwrap().to_string();
    let mut graph = parse_graph(MASKED).unwrap();
    assert_eq!(recognise_attention(&mut graph, &mut NoFacts), 0);
    assert_eq!(graph.to_string(), before);
}

#[test]
fn only_a_mask_that_was_used_is_relied_on() {
    let mut facts = Causal::default();
    assert_eq!(recognise_attention(&mut parse_graph(MASKED).unwrap(), &mut facts), 1);
    assert_eq!(facts.0, 1);
}

#[test]
fn scores_of_another_width_or_stride_stay() {
    let transposed = MASKED.replace("{120,40,1,8}", "");
    let mut graph = parse_graph(&transposed).unwrap();
    let mut facts = Causal::default();
    assert_eq!(recognise_attention(&mut graph, &mut facts), 0);
    assert_eq!(facts.0, 0);
    let mask_of_one = MASKED.replace("bool[5,5]", "bool[1,1]");
    let mut graph = parse_graph(&mask_of_one).unwrap();
    recognise_attention(&mut graph, &mut Causal::default());
    assert!(!graph.to_string().contains("is_causal=true"));
}
