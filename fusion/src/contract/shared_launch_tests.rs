//! Products of one operand on a GPU: which share a launch, and what that computes.

use expect_test::{Expect, expect};

use super::Products;
use super::warpgroup_tests::{check, planned};
use crate::plan::{Plan, StepKind};

/// Products of one operand by weights of so many columns each, and a bias.
fn products(right: &str, [m, k]: [i64; 2], columns: &[i64]) -> String {
    let mut text = format!("graph {{\n%0 = input 0 : bf16[{m},{k}]@cuda:0\n");
    for (i, n) in columns.iter().enumerate() {
        let (weight, bias) = (2 * i + 1, 2 * i + 2);
        text.push_str(&format!("%{weight} = {right} {weight} : bf16[{n},{k}]@cuda:0\n"));
        text.push_str(&format!("%{bias} = {right} {bias} : bf16[{n}]@cuda:0\n"));
    }
    let first = 2 * columns.len() + 1;
    for (i, n) in columns.iter().enumerate() {
        let (weight, bias, at) = (2 * i + 1, 2 * i + 2, first + i);
        text.push_str(&format!(
            "%{at} = aten::linear(input=%0, weight=%{weight}, bias=%{bias}) : bf16[{m},{n}]@cuda:0\n"
        ));
    }
    let outputs: Vec<String> = (0..columns.len()).map(|i| format!("%{}", first + i)).collect();
    format!("{text}outputs {}\n}}\n", outputs.join(", "))
}

/// What runs: kernels, with the first instances of their parts, and why products are or are no kernels.
fn steps(plan: &Plan) -> String {
    let of = |kind: &StepKind| match kind {
        StepKind::Extern(_) => String::from("libtorch\n"),
        StepKind::Kernel(kernel) => {
            let parts = kernel.parts.iter().map(|part| part.first.to_string()).collect::<Vec<_>>();
            let why = kernel.horizontal_refusal.as_ref().map_or_else(String::new, |why| format!("; {why}"));
            format!("{}, grid {:?}, parts from {}{why}\n", kernel.kind, kernel.grid, parts.join(", "))
        }
    };
    let refused = plan.graph.ids().filter_map(|id| match &plan.graph.node(id).kernel {
        Some(Ok(kernel)) => Some(format!("%{}: {}; {}\n", id.index(), kernel.schedule, kernel.note.clone()?)),
        Some(Err(why)) => Some(format!("%{}: {why}\n", id.index())),
        None => None,
    });
    plan.steps.iter().map(|step| of(&step.kind)).chain(refused).collect()
}

fn expected(text: &str, expect: Expect) {
    expect.assert_eq(&steps(&planned(text, Products::Predicted)));
}

#[test]
fn products_of_few_blocks_are_one_launch() {
    expected(
        &products("param", [128, 768], &[768; 3]),
        expect![[r#"
            horizontal, grid [72, 1, 1], parts from 0, 24, 48
            %25: blocks of 64 x 64, 64 of the sum at a time, 4 warps, 8 stages; predicted: 9.7 us generated, 7.5 us in libtorch, 3.2 us in one launch with products of the same operand
            %26: blocks of 64 x 64, 64 of the sum at a time, 4 warps, 8 stages; predicted: 9.7 us generated, 7.5 us in libtorch, 3.2 us in one launch with products of the same operand
            %27: blocks of 64 x 64, 64 of the sum at a time, 4 warps, 8 stages; predicted: 9.7 us generated, 7.5 us in libtorch, 3.2 us in one launch with products of the same operand
        "#]],
    );
}

/// Keys and values of fewer heads than queries.
#[test]
fn products_of_other_numbers_of_columns_are_one_launch() {
    expected(
        &products("param", [64, 2048], &[2048, 512, 512]),
        expect![[r#"
            horizontal, grid [48, 1, 1], parts from 0, 32, 40
            %25: blocks of 64 x 64, 64 of the sum at a time, 4 warps, 8 stages; predicted: 16.4 us generated, 8.4 us in libtorch, 5.5 us in one launch with products of the same operand
            %26: blocks of 64 x 64, 64 of the sum at a time, 4 warps, 8 stages; predicted: 16.4 us generated, 7.4 us in libtorch, 5.5 us in one launch with products of the same operand
            %27: blocks of 64 x 64, 64 of the sum at a time, 4 warps, 8 stages; predicted: 16.4 us generated, 7.4 us in libtorch, 5.5 us in one launch with products of the same operand
        "#]],
    );
}

/// As in the residual blocks of a U-Net, of the time's embedding.
#[test]
fn many_products_are_one_launch() {
    let columns = [[128; 5], [256; 5], [512; 5]].concat();
    let plan = planned(&products("param", [8, 512], &columns), Products::Predicted);
    assert_eq!((plan.kernel_count(), plan.extern_count()), (1, 0), "{plan}");
    assert!(steps(&plan).starts_with("horizontal, grid [70, 1, 1]"), "{plan}");
}

#[test]
fn products_of_many_blocks_are_separate() {
    expected(
        &products("param", [16384, 768], &[768; 3]),
        expect![[r#"
        libtorch
        libtorch
        libtorch
        %25: predicted: 57.2 us generated, 54.0 us in libtorch; 59.3 us with blocks of 128 x 256, 64 of the sum at a time, 8 warps, 4 stages
        %26: predicted: 57.2 us generated, 54.0 us in libtorch; 59.3 us with blocks of 128 x 256, 64 of the sum at a time, 8 warps, 4 stages
        %27: predicted: 57.2 us generated, 54.0 us in libtorch; 59.3 us with blocks of 128 x 256, 64 of the sum at a time, 8 warps, 4 stages
    "#]],
    );
    expected(
        &products("param", [128, 768], &[768]),
        expect![[r#"
        libtorch
        %9: predicted: 9.7 us generated, 7.5 us in libtorch; 9.8 us with split-K: adds 6 parts
    "#]],
    );
}

#[test]
fn a_launch_computes_what_its_products_do() {
    for right in ["param", "input"] {
        for (sizes, columns) in [
            ([64, 64], &[64, 64, 64][..]),
            ([70, 72], &[40, 136, 8]),
            ([130, 200], &[64, 24]),
            ([1, 64], &[64, 64]),
        ] {
            let text = products(right, sizes, columns);
            assert_eq!(check(&text), 1, "{text}");
        }
    }
}

/// A layer of BERT, with a batch of one: what attention reads of each product is a view.
#[test]
fn queries_keys_and_values_are_one_launch_before_attention() {
    let mut text = String::from("graph {\n%0 = input 0 : bf16[1,128,768]@cuda:0\n");
    for (at, slot) in [(1, 1), (7, 3), (13, 5)] {
        text.push_str(&format!(
            "%{at} = param {slot} : bf16[768,768]@cuda:0
             %{bias} = param {next} : bf16[768]@cuda:0
             %{linear} = aten::linear(input=%0, weight=%{at}, bias=%{bias}) : bf16[1,128,768]@cuda:0
             %{view} = view reshape(%{linear}) : bf16[1,128,12,64]@cuda:0
             %{heads} = view permute[0,2,1,3](%{view}) : bf16[1,12,128,64]{{98304,64,768,1}}@cuda:0\n",
            next = slot + 1,
            bias = at + 1,
            linear = at + 2,
            view = at + 3,
            heads = at + 4,
        ));
    }
    text.push_str(
        "%20 = aten::scaled_dot_product_attention(query=%5, key=%11, value=%17, attn_mask=None, dropout_p=0, \
         is_causal=false, scale=None, enable_gqa=false) : bf16[1,12,128,64]@cuda:0
         outputs %20\n}\n",
    );
    let plan = planned(&text, Products::Predicted);
    let first = steps(&plan).lines().next().map(str::to_owned);
    assert_eq!(first.as_deref(), Some("horizontal, grid [72, 1, 1], parts from 0, 24, 48"), "{plan}");
}

/// The right operand of a product is another one.
#[test]
fn products_that_need_each_other_share_no_launch() {
    let text = "graph {
      %0 = input 0 : bf16[64,64]@cuda:0
      %1 = input 1 : bf16[64,64]@cuda:0
      %2 = aten::mm(self=%0, mat2=%1) : bf16[64,64]@cuda:0
      %3 = aten::mm(self=%0, mat2=%2) : bf16[64,64]@cuda:0
      outputs %3
    }";
    let plan = planned(text, Products::Generated);
    assert_eq!(plan.kernel_count(), 2, "{plan}");
    assert_eq!(steps(&plan).matches("one launch").count(), 0, "{plan}");
}
