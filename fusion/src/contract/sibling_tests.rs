//! Products whose results meet, as one kernel.

use expect_test::expect;

use super::Products;
use super::tests::{check, planned};
use super::warpgroup_tests;
use crate::plan::{Plan, StepKind};

/// `silu(x @ gate) * (x @ up)` of weights that are `param` or `input`, which returns these values.
fn swiglu(right: &str, dtype: &str, device: &str, [m, n, k]: [i64; 3], outputs: &str) -> String {
    format!(
        "graph {{
           %0 = input 0 : {dtype}[{m},{k}]{device}
           %1 = {right} 1 : {dtype}[{n},{k}]{device}
           %2 = {right} 2 : {dtype}[{n},{k}]{device}
           %3 = aten::linear(input=%0, weight=%1) : {dtype}[{m},{n}]{device}
           %4 = aten::silu(self=%3) : {dtype}[{m},{n}]{device}
           %5 = aten::linear(input=%0, weight=%2) : {dtype}[{m},{n}]{device}
           %6 = aten::mul.Tensor(self=%4, other=%5) : {dtype}[{m},{n}]{device}
           outputs {outputs}
         }}"
    )
}

/// What kernels of a plan compute, and how.
fn schedules(plan: &Plan) -> String {
    let of = |kind: &StepKind| match kind {
        StepKind::Kernel(kernel) => format!("{}: {}\n", kernel.kind, kernel.schedule),
        StepKind::Extern(_) => String::from("libtorch\n"),
    };
    plan.steps.iter().map(|step| of(&step.kind)).collect()
}

#[test]
fn gate_and_up_are_one_kernel_on_a_host() {
    for right in ["param", "input"] {
        for sizes in [[1, 40, 33], [3, 65, 40], [16, 200, 129], [70, 130, 64]] {
            let text = swiglu(right, "f32", "", sizes, "%6");
            assert_eq!(check(&text), 1, "{text}");
        }
    }
    assert_eq!(check(&swiglu("param", "f16", "", [33, 40, 64], "%6")), 1);
    // Results that something else needs are stored beside.
    assert_eq!(check(&swiglu("param", "f32", "", [16, 70, 33], "%3, %6")), 1);
    assert_eq!(check(&swiglu("param", "f32", "", [16, 70, 33], "%5, %3, %6")), 1);
}

#[test]
fn gate_and_up_are_two_kernels_on_a_gpu() {
    for sizes in [[64, 64, 64], [65, 72, 136]] {
        let text = swiglu("input", "f16", "@cuda:0", sizes, "%6");
        assert_eq!(warpgroup_tests::check(&text), 2, "{text}");
    }
}

/// Either product has its loop, and one store follows both.
#[test]
fn one_store_is_of_both_products() {
    let plan = planned(&swiglu("param", "f32", "", [16, 64, 256], "%6"), 2, Products::Generated);
    let all = schedules(&plan);
    expect![[r#"
        contraction: two products: blocks of 8 x 64, 128 of the sum at a time, right operand in panels, prepacked
    "#]].assert_eq(&all);
    let program = plan.programs[0].to_string();
    assert_eq!([" for %", " dot ", " store "].map(|op| program.matches(op).count()), [2, 2, 1], "{program}");
}

/// A product of what the other one computes, and one that is read in another order.
#[test]
fn products_that_need_each_other_stay_separate() {
    let chain = "graph {
      %0 = input 0 : f32[40,40]
      %1 = param 1 : f32[40,40]
      %2 = param 2 : f32[40,40]
      %3 = aten::linear(input=%0, weight=%1) : f32[40,40]
      %4 = aten::linear(input=%3, weight=%2) : f32[40,40]
      %5 = aten::add.Tensor(self=%3, other=%4, alpha=1) : f32[40,40]
      outputs %5
    }";
    assert_eq!(check(chain), 2);
    let turned = "graph {
      %0 = input 0 : f32[40,40]
      %1 = param 1 : f32[40,40]
      %2 = param 2 : f32[40,40]
      %3 = aten::linear(input=%0, weight=%1) : f32[40,40]
      %4 = aten::linear(input=%0, weight=%2) : f32[40,40]
      %5 = aten::transpose.int(self=%4, dim0=0, dim1=1) : f32[40,40]{1,40}
      %6 = aten::add.Tensor(self=%3, other=%5, alpha=1) : f32[40,40]
      outputs %6
    }";
    assert_eq!(check(turned), 2);
}
