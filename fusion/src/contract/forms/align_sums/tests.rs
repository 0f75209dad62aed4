use expect_test::{Expect, expect};

use crate::contract::Products;
use crate::contract::forms::rewritten;
use crate::machine::Profile;

fn on_gpu(text: &str) -> (usize, crate::Graph) {
    rewritten(text, &Profile::gpu(132, 4200.0), Products::Library)
}

fn check(text: &str, expected: Expect) {
    let (made, graph) = on_gpu(text);
    expected.assert_eq(&format!("{made}: {graph}"));
}

#[test]
fn both_operands_are_padded_with_zeros() {
    check(
        "graph {
          %0 = input 0 : bf16[64,768,196]
          %1 = param 0 : bf16[384,196]
          %2 = contract sum[2]x[1](%0, %1) : f32[64,768,384]
          outputs %2
        }",
        expect![[r#"
            1: graph {
              %0 = input 0 : bf16[64,768,196]
              %1 = param 0 : bf16[384,196]
              %2 = view pad[0,0,0]=0.0(%0) : bf16[64,768,200]
              %3 = view pad[0,0]=0.0(%1) : bf16[384,200]
              %4 = contract sum[2]x[1](%2, %3) : f32[64,768,384]
              outputs %4
            }
        "#]],
    );
    // Rows of the right one are aligned; its columns are those of the left one.
    check(
        "graph {
          %0 = input 0 : bf16[49152,196]
          %1 = param 0 : bf16[196,384]
          %2 = contract sum[1]x[0](%0, %1) : f32[49152,384]
          outputs %2
        }",
        expect![[r#"
            1: graph {
              %0 = input 0 : bf16[49152,196]
              %1 = param 0 : bf16[196,384]
              %2 = view pad[0,0]=0.0(%0) : bf16[49152,200]
              %3 = view pad[0,0]=0.0(%1) : bf16[200,384]
              %4 = contract sum[1]x[0](%2, %3) : f32[49152,384]
              outputs %4
            }
        "#]],
    );
}

#[test]
fn what_padding_would_not_quicken_is_left() {
    let product = |left: &str, right: &str, contract: &str| {
        format!(
            "graph {{
              %0 = input 0 : {left}
              %1 = param 0 : {right}
              %2 = {contract}
              outputs %2
            }}"
        )
    };
    for (left, right, contract) in [
        // Aligned, too small, of floats that have no matrix units of their own rate.
        ("bf16[49152,200]", "bf16[384,200]", "contract sum[1]x[1](%0, %1) : f32[49152,384]"),
        ("bf16[512,196]", "bf16[384,196]", "contract sum[1]x[1](%0, %1) : f32[512,384]"),
        ("f32[49152,196]", "f32[384,196]", "contract sum[1]x[1](%0, %1) : f32[49152,384]"),
        // Rows along other dimensions than the sum.
        ("bf16[49152,196]", "bf16[196,387]", "contract sum[1]x[0](%0, %1) : f32[49152,387]"),
        ("bf16[196,49152]", "bf16[196,384]", "contract sum[0]x[0](%0, %1) : f32[49152,384]"),
    ] {
        assert_eq!(on_gpu(&product(left, right, contract)).0, 0, "{left} {right}");
    }
    let text = product("bf16[49152,196]", "bf16[384,196]", "contract sum[1]x[1](%0, %1) : f32[49152,384]");
    assert_eq!(rewritten(&text, &Profile::host(16), Products::Predicted).0, 0);
}
