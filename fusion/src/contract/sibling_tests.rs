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
fn gate_and_up_are_one_kernel_on_a_gpu() {
    for sizes in [[64, 64, 64], [65, 72, 136], [200, 136, 72], [1, 64, 512]] {
        let text = swiglu("input", "f16", "@cuda:0", sizes, "%6");
        assert_eq!(warpgroup_tests::check(&text), 1, "{text}");
    }
    let text = swiglu("input", "f16", "@cuda:0", [64, 64, 128], "%5, %6");
    assert_eq!(warpgroup_tests::check(&text), 1);
}

#[test]
fn what_both_read_is_read_once() {
    let text = swiglu("input", "bf16", "@cuda:0", [64, 64, 128], "%6");
    let plan = warpgroup_tests::planned(&text, Products::Generated);
    expect![[r#"
        contraction: two products: blocks of 64 x 128, 64 of the sum at a time, 4 warps, 8 stages
        kernel @fused_copy(%a: ptr<bf16> align(16) len(8192), %b: ptr<bf16> align(16) len(8192), %b_1: ptr<bf16> align(16) len(8192), %out3: ptr<bf16> align(16) len(4096)) warps(4) stages(8) early {
          %0 = const 0 : i32
          %1 = const 128 : i32
          %2 = range 0 128
          %3 = const 64 : tile<128xi32>
          %4 = map lt %2, %3
          %5 = const 64 : i32
          %6 = range 0 64
          %7 = const 0.0 : tile<64x128xf32>
          %8 = const 128 : tile<64xi32>
          %9 = map mul %6, %8
          %10 = expand_dims %9 axis 1
          %11 = broadcast %10 [64, 64]
          %12 = const 128 : tile<128xi32>
          %13 = map mul %2, %12
          %14 = expand_dims %13 axis 1
          %15 = broadcast %14 [128, 64]
          %16 = expand_dims %4 axis 1
          %17 = broadcast %16 [128, 64]
          %18, %19 = for %20 in %0..%1 step %5 with (%21 = %7, %22 = %7) {
            %23 = splat %20 [64]
            %24 = map add %23, %6
            %25 = expand_dims %24 axis 0
            %26 = broadcast %25 [64, 64]
            %27 = map add %11, %26
            %28 = load %a, %27
            %29 = broadcast %25 [128, 64]
            %30 = map add %15, %29
            %31 = load %b, %30, mask %17
            %32 = permute %31 [1, 0]
            %33 = dot %28, %32, %21 precision ieee
            %34 = load %b_1, %30, mask %17
            %35 = permute %34 [1, 0]
            %36 = dot %28, %35, %22 precision ieee
            yield %33, %36
          }
          %37 = cast %18 bf16
          %38 = const 64 : tile<64xi32>
          %39 = map mul %6, %38
          %40 = expand_dims %39 axis 1
          %41 = broadcast %40 [64, 128]
          %42 = expand_dims %2 axis 0
          %43 = broadcast %42 [64, 128]
          %44 = map add %41, %43
          %45 = expand_dims %4 axis 0
          %46 = broadcast %45 [64, 128]
          %47 = cast %19 bf16
          %48 = cast %47 f32
          %49 = map neg %48
          %50 = map exp %49
          %51 = const 1.0 : tile<64x128xf32>
          %52 = map add %50, %51
          %53 = map div %48, %52
          %54 = cast %53 bf16
          %55 = cast %54 f32
          %56 = cast %37 f32
          %57 = map mul %55, %56
          %58 = cast %57 bf16
          store %out3, %44, %58, mask %46
        }
    "#]].assert_eq(&format!("{}{}", schedules(&plan), plan.programs[0]));
    let plan = planned(&swiglu("param", "f32", "", [64, 64, 128], "%6"), 2, Products::Generated);
    expect![[r#"
        contraction: two products: blocks of 32 x 64, 128 of the sum at a time, right operand in panels, prepacked
    "#]].assert_eq(&schedules(&plan));
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
