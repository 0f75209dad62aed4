//! What a kernel of a plan computes, by its kind.

use super::super::{KernelKind, StepKind, verify};
use super::{G, Plan, Profile};
use crate::block_kernel::BlockKernelKind;
use crate::contract::{Products, choose_products};
use crate::pipeline::{plan, primitive};
use tilefuse_block::{ReduceFn, ScalarFn};

fn of(plan: &Plan) -> Vec<KernelKind> {
    let kind = |kind: &StepKind| match kind {
        StepKind::Kernel(kernel) => Some(kernel.kind),
        StepKind::Extern(_) => None,
    };
    plan.steps.iter().filter_map(|step| kind(&step.kind)).collect()
}

/// The plan of a graph whose products are all generated.
fn planned(text: &str) -> Plan {
    let profile = Profile::host(2);
    let mut graph = primitive(text, &profile);
    choose_products(&mut graph, &profile, Products::Generated, Some(0), u64::MAX, &mut |_| None);
    plan(&graph, &profile).unwrap()
}

/// The kinds of its kernels.
fn kinds(text: &str) -> String {
    let plan = planned(text);
    let kinds: Vec<String> = of(&plan).iter().map(ToString::to_string).collect();
    let kinds = kinds.join(", ");
    let printed = plan.to_string();
    kinds.split(", ").for_each(|kind| assert!(printed.contains(&format!("({kind}, program ")), "{printed}"));
    kinds
}

#[test]
fn products_are_contractions() {
    let linear = "graph {
      %0 = input 0 : f32[64,64]
      %1 = param 1 : f32[64,64]
      %2 = aten::linear(input=%0, weight=%1) : f32[64,64]
      %3 = aten::relu(self=%2) : f32[64,64]
      outputs %3
    }";
    assert_eq!(kinds(linear), "contraction");
    // Rows that no blocks divide, which are computed as pixels of a convolution.
    assert_eq!(
        kinds(&linear.replace("[64,64]", "[197,64]").replace("1 : f32[197", "1 : f32[64")),
        "contraction"
    );
}

#[test]
fn convolutions_are_convolutions_and_their_operands_are_packed() {
    let convolution = "graph {
      %0 = input 0 : f32[1,8,16,16]
      %1 = param 1 : f32[32,8,3,3]
      %2 = aten::conv2d(input=%0, weight=%1, bias=None, stride=[1,1], padding=[1,1], dilation=[1,1], groups=1) : f32[1,32,16,16]
      outputs %2
    }";
    assert_eq!(kinds(convolution), "convolution");
    let transposed = "graph {
      %0 = input 0 : f32[1,64,8,8]
      %1 = input 1 : f32[64,32,2,2]
      %2 = aten::conv_transpose2d(input=%0, weight=%1, bias=None, stride=[2,2], padding=[0,0], output_padding=[0,0], groups=1, dilation=[1,1]) : f32[1,32,16,16]
      outputs %2
    }";
    assert_eq!(kinds(transposed), "pack, convolution");
}

#[test]
fn attention_is_attention_in_one_kernel_or_two() {
    let attention = |heads: i64, queries: i64, keys: i64| {
        format!(
            "graph {{
              %0 = input 0 : f32[1,{heads},{queries},16]
              %1 = input 1 : f32[1,{heads},{keys},16]
              %2 = input 2 : f32[1,{heads},{keys},16]
              %3 = aten::scaled_dot_product_attention(query=%0, key=%1, value=%2) : f32[1,{heads},{queries},16]
              outputs %3
            }}"
        )
    };
    assert_eq!(kinds(&attention(2, 64, 64)), "attention");
    assert_eq!(kinds(&attention(1, 1, 8192)), "attention, attention");
}

#[test]
fn what_the_planner_groups_is_named_by_its_reductions() {
    for (dims, kind) in [(&[][..], "pointwise"), (&[1], "row-reduction"), (&[0], "column-reduction")] {
        let mut g = G::new();
        let x = g.input(0, &[4096, 4096]);
        let y = g.map(ScalarFn::Exp, &[x]);
        let y = if dims.is_empty() { y } else { g.reduce(ReduceFn::Sum, y, dims) };
        for plan in g.plans(&[y]) {
            let last = *of(&plan).first().unwrap();
            assert_eq!(last.to_string(), kind);
            assert!(!last.has_own_blocks());
        }
    }
    assert!(KernelKind::Block(BlockKernelKind::Custom).has_own_blocks());
    assert_eq!(KernelKind::Horizontal.to_string(), "horizontal");
}

/// A product cannot fail, which a kernel of a user's operator can.
#[test]
fn an_update_before_a_product_is_written_in_place() {
    let plan = planned(
        "graph {
          %0 = param 0 : f32[32,32]
          %1 = input 0 : f32[32,32]
          %2 = param 1 : f32[32,32]
          %3 = aten::sub(self=%0, other=%1) : f32[32,32]
          %4 = aten::linear(input=%1, weight=%2) : f32[32,32]
          outputs %4
          update %0 <- %3
        }",
    );
    assert_eq!(of(&plan).iter().map(ToString::to_string).collect::<Vec<_>>(), ["pointwise", "contraction"]);
    assert_eq!(plan.copied, [None]);
    assert_eq!(verify(&plan), Ok(()));
}
