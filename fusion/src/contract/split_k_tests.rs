//! Products whose sums are divided: which are, and what they compute, in the interpreter.

use super::warpgroup_tests::{bmm, check, gpu, linear, planned, with_epilogue};
use super::{Products, choose_products};
use crate::pipeline::{plan, primitive};
use crate::plan::{Plan, StepKind};

/// The instances of each kernel.
fn instances(plan: &Plan) -> Vec<u64> {
    let kernels = plan.steps.iter().filter_map(|step| match &step.kind {
        StepKind::Kernel(kernel) => Some(kernel.grid.iter().product()),
        _ => None,
    });
    kernels.collect()
}

/// Blocks of the result by parts of the sum, and blocks in which these are added.
#[test]
fn long_sums_of_few_blocks_are_divided() {
    for (sizes, expected) in [
        ([64, 768, 3072], vec![6 * 16, 96]),
        ([16, 4096, 4096], vec![32 * 4, 128]),
        ([128, 1024, 8192], vec![16 * 8, 256]),
    ] {
        let plan = planned(&linear("bf16", sizes, "", 4), Products::Generated);
        assert_eq!(instances(&plan), expected, "{sizes:?}");
        assert!(plan.programs.iter().all(|program| program.early), "{sizes:?}");
    }
}

/// There are enough blocks, the sum is short, or partial sums are large.
#[test]
fn other_sums_stay_whole() {
    for sizes in [[8192, 768, 3072], [1024, 768, 3072], [512, 1024, 1024], [64, 768, 256], [64, 768, 3000]] {
        let plan = planned(&linear("bf16", sizes, "", 4), Products::Generated);
        assert_eq!(instances(&plan).len(), 1, "{sizes:?}");
    }
}

/// The kernel that adds parts stores the result, and takes what is behind it.
#[test]
fn divided_sums_have_the_epilogue_in_their_second_kernel() {
    for dtype in ["bf16", "f16"] {
        assert_eq!(check(&linear(dtype, [16, 24, 1024], "", 4)), 2);
        assert_eq!(check(&with_epilogue(dtype, [17, 40, 1536])), 2);
    }
    let rows = "%5 = aten::sum.dim_IntList(self=%4, dim=[1], keepdim=true) : bf16[16,1]@cuda:0
                %6 = aten::div.Tensor(self=%4, other=%5) : bf16[16,40]@cuda:0";
    let plan = planned(&linear("bf16", [16, 40, 1024], rows, 6), Products::Generated);
    assert_eq!((plan.kernel_count(), plan.extern_count()), (2, 0), "{plan}");
}

#[test]
fn divided_sums_are_of_operands_in_every_order_and_in_batches() {
    for (left, right) in [(false, false), (false, true), (true, false), (true, true)] {
        let strides = |rows: i64, columns: i64, transposed: bool| match transposed {
            true => format!("[2,{rows},{columns}]{{{},1,{rows}}}", rows * columns),
            false => format!("[2,{rows},{columns}]"),
        };
        let text = bmm(&strides(16, 1024, left), &strides(1024, 24, right), "[2,16,24]");
        assert_eq!(check(&text), 2);
    }
}

#[test]
fn factors_and_what_is_added_count_once() {
    let text = "graph {
      %0 = input 0 : bf16[9,24]@cuda:0
      %1 = input 1 : bf16[9,1024]@cuda:0
      %2 = input 2 : bf16[1024,24]@cuda:0
      %3 = aten::addmm(self=%0, mat1=%1, mat2=%2, beta=3, alpha=0.5) : bf16[9,24]@cuda:0
      outputs %3
    }";
    assert_eq!(check(text), 2);
}

/// A product of a matrix with itself has one operand twice.
#[test]
fn both_operands_may_be_the_same() {
    let text = "graph {
      %0 = input 0 : bf16[16,1024]@cuda:0
      %1 = aten::transpose.int(self=%0, dim0=0, dim1=1) : bf16[1024,16]{1,1024}@cuda:0
      %2 = aten::mm(self=%0, mat2=%1) : bf16[16,16]@cuda:0
      outputs %2
    }";
    assert_eq!(check(text), 2);
}

/// Where libtorch would do the same, it is asked to unless a kernel is saved.
#[test]
fn divided_sums_are_kernels_where_these_save_one() {
    let kernels = |text: &str| {
        let plan = planned(text, Products::Predicted);
        (plan.kernel_count(), plan.extern_count())
    };
    let sizes = [64, 1024, 1024];
    assert_eq!(kernels(&linear("bf16", sizes, "", 4)), (0, 1));
    assert_eq!(kernels(&with_epilogue("bf16", sizes)), (2, 0));
}

/// Sums are divided into as many parts as there is memory for, and stay whole where there is none.
#[test]
fn partial_sums_are_held_where_there_is_memory() {
    for (most_bytes, expected) in [(u64::MAX, 6 * 16), (1 << 20, 12 * 4)] {
        let mut graph = primitive(&linear("bf16", [64, 768, 3072], "", 4), &gpu());
        choose_products(&mut graph, &gpu(), Products::Generated, None, most_bytes, &mut |_| None);
        assert_eq!(instances(&plan(&graph, &gpu()).unwrap())[0], expected);
    }
}
