use expect_test::{Expect, expect};

use super::FunctionalizeError;
use crate::enum_variants::{Variants, variants};
use crate::{functionalize, parse_graph, parse_recording};

fn check(recording: &str, expect: Expect) {
    let text = match functionalize(&parse_recording(recording).unwrap()) {
        Ok(graph) => {
            let text = graph.to_string();
            assert_eq!(parse_graph(&text).unwrap().to_string(), text);
            text
        }
        Err(error) => error.to_string() + "\n",
    };
    expect.assert_eq(&text);
}

#[test]
fn a_write_through_a_slice_reaches_the_input() {
    check(
        r#"recording {
          %0 = input 0 : f32[4]
          %1: f32[2] in %0+2 = aten::slice.Tensor(self=%0, dim=0, start=2, end=9223372036854775807, step=1)
          %1 = aten::relu_(self=%1!)
          %2: f32[] = aten::sum(self=%0, dtype=None)
          outputs %2, %1
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::slice #0"
              origin 1 "aten::relu_ #1"
              origin 2 "aten::sum #2"
              %0 = input 0 : f32[4]
              %1 = aten::slice.Tensor(self=%0, dim=0, start=2, end=9223372036854775807, step=1) !replay 0 : f32[2] @0
              %2 = aten::relu(self=%1) : f32[2] @1
              %3 = aten::slice_scatter(self=%0, src=%2, dim=0, start=2, end=4, step=1) : f32[4] @1
              %4 = aten::sum(self=%3, dtype=None) !replay 2 : f32[] @2
              outputs %4, %2
              update %0 <- %3
              alias 1 = %0 + 2 : f32[2]
            }
        "#]],
    );
}

/// libtorch's operators order their results by their operands.
#[test]
fn what_is_written_through_a_view_with_gaps_keeps_the_order_of_its_dimensions() {
    check(
        r#"recording {
          %0 = input 0 : f32[9,2]{1,9}
          %1: f32[2,2]{2,9} in %0+6 = aten::slice.Tensor(self=%0, dim=0, start=6, end=28, step=2)
          %1 = aten::relu_(self=%1!)
          %2: dtype9[2,2]{1,2} = aten::complex(real=%1, imag=%1)
          outputs %2
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::slice #0"
              origin 1 "aten::relu_ #1"
              origin 2 "aten::complex #2"
              %0 = input 0 : f32[9,2]{1,9}
              %1 = aten::slice.Tensor(self=%0, dim=0, start=6, end=28, step=2) !replay 0 : f32[2,2]{2,9} @0
              %2 = aten::relu(self=%1) : f32[2,2]{1,2} @1
              %3 = aten::slice_scatter(self=%0, src=%2, dim=0, start=6, end=9, step=2) : f32[9,2]{1,9} @1
              %4 = aten::complex(real=%2, imag=%2) !replay 2 : dtype9[2,2]{1,2} @2
              outputs %4
              update %0 <- %3
            }
        "#]],
    );
}

#[test]
fn views_are_regenerated_after_a_write_to_the_base() {
    check(
        r#"recording {
          %0 = param 0 "w" : f32[2,3]
          %1: f32[2,3] = aten::clone(self=%0, memory_format=None)
          %2: f32[3,2]{1,3} in %1 = aten::t(self=%1)
          %1 = aten::add_.Scalar(self=%1!, other=1, alpha=1)
          %3: f32[3,2]{1,3} = aten::exp(self=%2)
          outputs %3
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::clone #0"
              origin 1 "aten::t #1"
              origin 2 "aten::add_ #2"
              origin 3 "aten::exp #3"
              %0 = param 0 : f32[2,3]
              %1 = aten::clone(self=%0, memory_format=None) !replay 0 : f32[2,3] @0
              %2 = aten::add.Scalar(self=%1, other=1, alpha=1) : f32[2,3] @2
              %3 = aten::t(self=%2) !replay 1 : f32[3,2]{1,3} @1
              %4 = aten::exp(self=%3) !replay 3 : f32[3,2]{1,3} @3
              outputs %4
            }
        "#]],
    );
}

#[test]
fn a_narrower_destination_rounds_the_promoted_result() {
    check(
        r#"recording {
          %0 = input 0 : f16[4]
          %1 = input 1 : f32[4]
          %2: f16[4] = aten::mul.Scalar(self=%0, other=2)
          %2 = aten::add_.Tensor(self=%2!, other=%1, alpha=1)
          %3: f32[4] = aten::clone(self=%1, memory_format=None)
          %3 = aten::eq_.Scalar(self=%3!, other=0)
          outputs %2, %3
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::mul #0"
              origin 1 "aten::add_ #1"
              origin 2 "aten::clone #2"
              origin 3 "aten::eq_ #3"
              %0 = input 0 : f16[4]
              %1 = input 1 : f32[4]
              %2 = aten::mul.Scalar(self=%0, other=2) !replay 0 : f16[4] @0
              %3 = aten::add.Tensor(self=%2, other=%1, alpha=1) : f32[4] @1
              %4 = aten::_to_copy(self=%3, dtype=f16) : f16[4] @1
              %5 = aten::clone(self=%1, memory_format=None) !replay 2 : f32[4] @2
              %6 = aten::eq.Scalar(self=%5, other=0) : bool[4] @3
              %7 = aten::_to_copy(self=%6, dtype=f32) : f32[4] @3
              outputs %4, %7
            }
        "#]],
    );
}

/// Of an operand that is not plain (here an f64 that is lazily negated) no type is known to promote with.
#[test]
fn what_meets_in_a_type_that_is_not_known_is_written_by_the_operator_itself() {
    check(
        r#"recording {
          %0 = input 0 : f32[]
          %1 = input 1 : dtype7[]
          %2: f32[] = aten::exp(self=%0)
          %2 = aten::sub_.Tensor(self=%2!, other=%1, alpha=1)
          outputs %2
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::exp #0"
              origin 1 "aten::sub_ #1"
              %0 = input 0 : f32[]
              %1 = input 1 : dtype7[]
              %2 = aten::exp(self=%0) !replay 0 : f32[] @0
              %3, %4 = aten::sub_.Tensor(self=%2, other=%1, alpha=1) !writes[0] !replay 1 : f32[], f32[] @1
              outputs %4
            }
        "#]],
    );
}

#[test]
fn shifts_and_sums_of_narrow_integers_are_converted_back() {
    check(
        r#"recording {
          %0 = input 0 : i32[4]
          %1 = input 1 : i64[4]
          %2: i32[4] = aten::neg(self=%0)
          %2 = aten::bitwise_left_shift_.Tensor(self=%2!, other=%1)
          %2 = aten::cumsum_(self=%2!, dim=0, dtype=None)
          outputs %2
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::neg #0"
              origin 1 "aten::bitwise_left_shift_ #1"
              origin 2 "aten::cumsum_ #2"
              %0 = input 0 : i32[4]
              %1 = input 1 : i64[4]
              %2 = aten::neg(self=%0) !replay 0 : i32[4] @0
              %3 = aten::bitwise_left_shift.Tensor(self=%2, other=%1) : i64[4] @1
              %4 = aten::_to_copy(self=%3, dtype=i32) : i32[4] @1
              %5 = aten::cumsum(self=%4, dim=0, dtype=None) : i64[4] @2
              %6 = aten::_to_copy(self=%5, dtype=i32) : i32[4] @2
              outputs %6
            }
        "#]],
    );
}

#[test]
fn copy_fill_and_zero() {
    check(
        r#"recording {
          %0 = input 0 : f32[2,3]
          %1 = input 1 : f64[3]
          %2: f32[2,3] = aten::neg(self=%0)
          %3: f32[3] in %2+3 = aten::select.int(self=%2, dim=0, index=-1)
          %3 = aten::copy_(self=%3!, src=%1, non_blocking=false)
          %0 = aten::copy_(self=%0!, src=%2, non_blocking=false)
          %2 = aten::zero_(self=%2!)
          outputs %2, %0
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::neg #0"
              origin 1 "aten::select #1"
              origin 2 "aten::copy_ #2"
              origin 3 "aten::copy_ #3"
              origin 4 "aten::zero_ #4"
              %0 = input 0 : f32[2,3]
              %1 = input 1 : f64[3]
              %2 = aten::neg(self=%0) !replay 0 : f32[2,3] @0
              %3 = aten::_to_copy(self=%1, dtype=f32) : f32[3] @2
              %4 = aten::select_scatter(self=%2, src=%3, dim=0, index=1) : f32[2,3] @2
              %5 = aten::zero(self=%4) : f32[2,3] @4
              outputs %5, %4
              update %0 <- %4
              alias 1 = %0 + 0 : f32[2,3]
            }
        "#]],
    );
}

#[test]
fn an_operator_without_a_counterpart_writes_a_copy() {
    check(
        r#"recording {
          %0 = param 0 "mask" : f32[4]
          %1: f32[2] in %0 = aten::slice.Tensor(self=%0, dim=0, start=0, end=2, step=1)
          %1 = aten::normal_(self=%1!, mean=0.0, std=1.0, generator=None) !random
          %2: f32[4] = aten::clone(self=%0, memory_format=None)
          outputs %2
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::slice #0"
              origin 1 "aten::normal_ #1"
              origin 2 "aten::clone #2"
              %0 = param 0 : f32[4]
              %1 = aten::slice.Tensor(self=%0, dim=0, start=0, end=2, step=1) !replay 0 : f32[2] @0
              %2, %3 = aten::normal_(self=%1, mean=0.0, std=1.0, generator=None) !random !writes[0] !replay 1 : f32[2], f32[2] @1
              %4 = aten::slice_scatter(self=%0, src=%3, dim=0, start=0, end=2, step=1) : f32[4] @1
              %5 = aten::clone(self=%4, memory_format=None) !replay 2 : f32[4] @2
              outputs %5
              update %0 <- %4
            }
        "#]],
    );
}

#[test]
fn training_statistics_are_written() {
    check(
        r#"recording {
          %0 = input 0 : f32[2,3]
          %1 = param 0 "mean" : f32[3]
          %2 = param 1 "var" : f32[3]
          %3: f32[2,3] = aten::batch_norm(input=%0, weight=None, bias=None, running_mean=%1!, running_var=%2!, training=true, momentum=0.1, eps=0.00001, cudnn_enabled=true)
          outputs %3
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::batch_norm #0"
              %0 = input 0 : f32[2,3]
              %1 = param 0 : f32[3]
              %2 = param 1 : f32[3]
              %3, %4, %5 = aten::batch_norm(input=%0, weight=None, bias=None, running_mean=%1, running_var=%2, training=true, momentum=0.1, eps=1e-5, cudnn_enabled=true) !writes[3, 4] !replay 0 : f32[2,3], f32[3], f32[3] @0
              outputs %3
              update %1 <- %4
              update %2 <- %5
            }
        "#]],
    );
}

#[test]
fn unbound_parts_and_diagonals_are_written_back() {
    check(
        r#"recording {
          %0 = input 0 : f32[2,2]
          %1: f32[2,2] = aten::neg(self=%0)
          %2: f32[2] in %1+0, %3: f32[2] in %1+2 = aten::unbind.int(self=%1, dim=0)
          %3 = aten::mul_.Tensor(self=%3!, other=%2)
          %4: f32[2]{3} in %1+0 = aten::diagonal(self=%1, offset=0, dim1=0, dim2=1)
          %4 = aten::fill_.Scalar(self=%4!, value=1)
          outputs %1, %2
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::neg #0"
              origin 1 "aten::unbind #1"
              origin 2 "aten::mul_ #2"
              origin 3 "aten::diagonal #3"
              origin 4 "aten::fill_ #4"
              %0 = input 0 : f32[2,2]
              %1 = aten::neg(self=%0) !replay 0 : f32[2,2] @0
              %2, %3 = aten::unbind.int(self=%1, dim=0) !replay 1 : f32[2], f32[2] @1
              %4 = aten::mul.Tensor(self=%3, other=%2) : f32[2] @2
              %5 = aten::select_scatter(self=%1, src=%4, dim=0, index=1) : f32[2,2] @2
              %6 = aten::diagonal(self=%5, offset=0, dim1=0, dim2=1) !replay 3 : f32[2]{3} @3
              %7 = aten::fill.Scalar(self=%6, value=1) : f32[2] @4
              %8 = aten::diagonal_scatter(self=%5, src=%7, offset=0, dim1=0, dim2=1) : f32[2,2] @4
              %9, %10 = aten::unbind.int(self=%8, dim=0) !replay 1 : f32[2], f32[2] @1
              outputs %8, %9
              alias 1 = output 0 + 0 : f32[2]
            }
        "#]],
    );
}

#[test]
fn metadata_changes_of_intermediates_are_views() {
    check(
        r#"recording {
          %0 = input 0 : f32[2,3]
          %1: f32[2,3] = aten::neg(self=%0)
          %1 = aten::transpose_(self=%1!, dim0=0, dim1=1)
          %1 = aten::relu_(self=%1!)
          outputs %1
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::neg #0"
              origin 1 "aten::transpose_ #1"
              origin 2 "aten::relu_ #2"
              %0 = input 0 : f32[2,3]
              %1 = aten::neg(self=%0) !replay 0 : f32[2,3] @0
              %2 = aten::transpose.int(self=%1, dim0=0, dim1=1) : f32[3,2]{1,3} @1
              %3 = aten::relu(self=%2) : f32[3,2]{1,3} @2
              outputs %3
            }
        "#]],
    );
}

variants!(
    FunctionalizeError: Malformed, Metadata, OverlappingWrite, ReadsWritten, StridedStatistics, OpaqueView, Opaque, SharedMemory, OutOfBounds,
    OutputAliasesInput
);

/// Why a recording of one input `%0` is refused: its text, and which variant it is.
fn refused(body: &str, outputs: &str) -> (String, &'static str) {
    let text = format!("recording {{ %0 = input 0 : f32[4]\n{body}\n outputs {outputs} }}");
    let error = functionalize(&parse_recording(&text).unwrap()).unwrap_err();
    (error.to_string(), error.name())
}

#[test]
fn every_refusal_names_the_call() {
    let mut seen = vec![recordings_out_of_order()];
    for (body, message) in [
        (
            "%0 = aten::resize_(self=%0!, size=[2], memory_format=None)",
            "aten::resize_ #0: changes metadata in place",
        ),
        ("%0 = aten::t_(self=%0!)", "aten::t_ #0: changes metadata in place"),
        (
            "%1: f32[2,4]{0,1} in %0 = aten::expand(self=%0, size=[2,4], implicit=false)
             %1 = aten::relu_(self=%1!)",
            "aten::relu_ #1: writes a tensor whose elements overlap",
        ),
        (
            "%1: bool[4] = aten::gt.Scalar(self=%0, other=0)
             %0 = aten::masked_scatter_(self=%0!, mask=%1, source=%0)",
            "aten::masked_scatter_ #1: reads elements that it writes as another argument",
        ),
        (
            "%1: f32[2,3]{1,1} in %0 = aten::as_strided(self=%0, size=[2,3], stride=[1,1], storage_offset=0)
             %2: f32[3] in %0 = aten::slice(self=%0, dim=0, start=0, end=3, step=1)
             %3: f32[2,3] = aten::select_scatter(self=%1, src=%2, dim=0, index=1)",
            "aten::select_scatter #2: writes a tensor whose elements overlap",
        ),
        (
            "%1: f32[2,3]@cuda:0 = aten::rand(size=[2,3])
             %2: f32[3]{2}@cuda:0 = aten::rand(size=[3])
             %3: f32[3]@cuda:0 = aten::rand(size=[3])
             %4: f32[2,3]@cuda:0 = aten::batch_norm(input=%1, weight=None, bias=None, running_mean=%2!, running_var=%3!, training=true, momentum=0.1, eps=0.00001, cudnn_enabled=true)",
            "aten::batch_norm #3: writes running statistics on a GPU that are not contiguous, which libtorch may leave as they are",
        ),
        (
            "%1: f32[2,4]{0,1} in %0 = aten::expand(self=%0, size=[2,4], implicit=false)
             %2: f32[4] in %0 = aten::select.int(self=%1, dim=0, index=0)
             %2 = aten::relu_(self=%2!)",
            "aten::relu_ #2: writes through a view that repeats elements or reads them as another type",
        ),
        (
            "%1: f32[3,2]{1,1} in %0 = aten::as_strided(self=%0, size=[3,2], stride=[1,1], storage_offset=0)
             %2: f32[2]{1} in %0+1 = aten::select.int(self=%1, dim=0, index=1)
             %2 = aten::zero_(self=%2!)",
            "aten::zero_ #2: writes through a view that repeats elements or reads them as another type",
        ),
        (
            "%1: i32[4] in %0 = aten::view.dtype(self=%0, dtype=i32)
             %1 = aten::zero_(self=%1!)",
            "aten::zero_ #1: writes through a view that repeats elements or reads them as another type",
        ),
        (
            "%1: f32[4] in %0+2 = aten::as_strided(self=%0, size=[4], stride=[1], storage_offset=2)",
            "aten::as_strided #0: addresses memory outside its tensor",
        ),
        (
            "%1: f32[4] opaque = aten::foo(self=%0)
             %1 = aten::relu_(self=%1!)",
            "aten::relu_ #1: writes a tensor that is not plain strided memory, or may be a part of one",
        ),
        (
            "%1: f32[4] = aten::neg(self=%0)
             %2: f32[2] in %1 = aten::foo(self=%0)
             %1 = aten::relu_(self=%1!)",
            "aten::relu_ #2: writes memory that another input or parameter shares",
        ),
    ] {
        let (text, name) = refused(body, "%0");
        assert_eq!(text, message);
        seen.push(name);
    }
    let (text, name) = refused("%1: i32[4] in %0 = aten::view.dtype(self=%0, dtype=i32)", "%1");
    assert_eq!(text, "output 0 shares memory with another tensor in a way that strides do not express");
    seen.push(name);
    let unseen: Vec<&str> =
        FunctionalizeError::NAMES.iter().copied().filter(|name| !seen.contains(name)).collect();
    assert_eq!(unseen, [""; 0], "a recording is missing that is refused for this");
}

/// No text form says that a call uses what a later one makes.
fn recordings_out_of_order() -> &'static str {
    let text = "recording {
      %0 = input 0 : f32[4]
      %1: f32[4] = aten::neg(self=%0)
      %2: f32[4] = aten::exp(self=%1)
      outputs %2
    }";
    let mut recording = parse_recording(text).unwrap();
    recording.calls.reverse();
    let error = functionalize(&recording).unwrap_err();
    let expected =
        "the recording is inconsistent at aten::exp #0: a tensor is used before the call that makes it";
    assert_eq!(error.to_string(), expected);
    error.name()
}

#[test]
fn written_memory_that_another_input_shares_is_refused() {
    check(
        r#"recording {
          %0 = input 0 : f32[4]
          %1 = input 1 : f32[2] in %0+1
          %0 = aten::relu_(self=%0!)
          outputs %1
        }"#,
        expect![[r#"
            aten::relu_ #0: writes memory that another input or parameter shares
        "#]],
    );
}

#[test]
fn tensors_that_are_returned_as_they_are() {
    check(
        r#"recording {
          %0 = input 0 : f32[2,3]
          %0 = aten::contiguous(self=%0, memory_format=0)
          %1: f32[2,3] in %0 = aten::detach(self=%0)
          %2: f32[6] in %0 = aten::view(self=%1, size=[6])
          %3: f32[2,3] = aten::neg(self=%0)
          %4: f32[3] in %3+3 = aten::select.int(self=%3, dim=0, index=1)
          outputs %1, %2, %4, %3, %3
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::contiguous #0"
              origin 1 "aten::detach #1"
              origin 2 "aten::view #2"
              origin 3 "aten::neg #3"
              origin 4 "aten::select #4"
              %0 = input 0 : f32[2,3]
              %1 = aten::view(self=%0, size=[6]) !replay 2 : f32[6] @2
              %2 = aten::neg(self=%0) !replay 3 : f32[2,3] @3
              %3 = aten::select.int(self=%2, dim=0, index=1) !replay 4 : f32[3] @4
              outputs %0, %1, %3, %2, %2
              alias 0 = %0 + 0 : f32[2,3]
              alias 1 = %0 + 0 : f32[6]
              alias 2 = output 3 + 3 : f32[3]
              alias 4 = output 3 + 0 : f32[2,3]
            }
        "#]],
    );
}

#[test]
fn strided_views_are_taken_of_the_root() {
    check(
        r#"recording {
          %0 = input 0 : f32[6]
          %1: f32[4] in %0+2 = aten::slice.Tensor(self=%0, dim=0, start=2, end=6, step=1)
          %2: f32[2,2]{1,1} in %0+1 = aten::as_strided(self=%1, size=[2,2], stride=[1,1], storage_offset=1)
          %3: f32[2] in %0+4 = aten::as_strided(self=%1, size=[2], stride=[1], storage_offset=4)
          %3 = aten::neg_(self=%3!)
          outputs %2
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::slice #0"
              origin 1 "aten::as_strided #1"
              origin 2 "aten::as_strided #2"
              origin 3 "aten::neg_ #3"
              %0 = input 0 : f32[6]
              %1 = aten::as_strided(self=%0, size=[2], stride=[1], storage_offset=4) : f32[2] @2
              %2 = aten::neg(self=%1) : f32[2] @3
              %3 = aten::as_strided_scatter(self=%0, src=%2, size=[2], stride=[1], storage_offset=4) : f32[6] @3
              %4 = aten::as_strided(self=%3, size=[2, 2], stride=[1, 1], storage_offset=1) : f32[2,2]{1,1} @1
              outputs %4
              offset %0
              update %0 <- %3
              alias 0 = %0 + 1 : f32[2,2]{1,1}
            }
        "#]],
    );
}

#[test]
fn an_operand_that_shares_elements_with_what_is_written_is_refused() {
    check(
        r#"recording {
          %0 = input 0 : f32[3,3]
          %1: f32[3,3]{1,3} in %0 = aten::t(self=%0)
          %0 = aten::add_.Tensor(self=%0!, other=%1, alpha=1)
          outputs %0
        }"#,
        expect![[r#"
            aten::add_ #1: reads elements that it writes as another argument
        "#]],
    );
    // Of other elements, four of twice the size at the same place.
    check(
        r#"recording {
          %0 = input 0 : f32[8]
          %1: f32[4] in %0 = aten::slice.Tensor(self=%0, dim=0, start=0, end=4, step=1)
          %2: f64[4] in %0 = aten::view.dtype(self=%0, dtype=f64)
          %1 = aten::copy_(self=%1!, src=%2, non_blocking=false)
          outputs %1
        }"#,
        expect![[r#"
            aten::copy_ #2: reads elements that it writes as another argument
        "#]],
    );
    let halves = parse_recording(
        r#"recording {
          %0 = input 0 : f32[3,4]
          %1: f32[3,2]{4,1} in %0 = aten::slice.Tensor(self=%0, dim=1, start=0, end=2, step=1)
          %2: f32[3,2]{4,1} in %0+2 = aten::slice.Tensor(self=%0, dim=1, start=2, end=4, step=1)
          %1 = aten::add_.Tensor(self=%1!, other=%2, alpha=1)
          %1 = aten::mul_.Tensor(self=%1!, other=%1)
          outputs %1
        }"#,
    );
    functionalize(&halves.unwrap()).unwrap();
}

#[test]
fn strides_over_a_storage_are_taken_of_the_root() {
    check(
        r#"recording {
          %0 = input 0 : f32[8]
          %1 = input 1 : f32[2,4]
          %2: f32[4] in %0 = aten::as_strided(self=%0, size=[4], stride=[1], storage_offset=None)
          %3: f32[2]{2} in %1+1 = aten::as_strided(self=%1, size=[2], stride=[2], storage_offset=1)
          %4: f32[4] = aten::exp(self=%2)
          %5: f32[2] = aten::exp(self=%3)
          outputs %4, %5
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::as_strided #0"
              origin 1 "aten::as_strided #1"
              origin 2 "aten::exp #2"
              origin 3 "aten::exp #3"
              %0 = input 0 : f32[8]
              %1 = input 1 : f32[2,4]
              %2 = aten::as_strided(self=%0, size=[4], stride=[1], storage_offset=0) : f32[4] @0
              %3 = aten::reshape(self=%1, shape=[8]) : f32[8] @1
              %4 = aten::as_strided(self=%3, size=[2], stride=[2], storage_offset=1) : f32[2]{2} @1
              %5 = aten::exp(self=%2) !replay 2 : f32[4] @2
              %6 = aten::exp(self=%4) !replay 3 : f32[2] @3
              outputs %5, %6
              offset %1
            }
        "#]],
    );
}

#[test]
fn a_write_through_strides_is_put_back_in_memory_order() {
    check(
        r#"recording {
          %0 = input 0 : f32[2,4]{1,2}
          %1: f32[2,4]{1,2} = aten::exp(self=%0)
          %2: f32[2]{3} in %1+1 = aten::as_strided(self=%1, size=[2], stride=[3], storage_offset=1)
          %2 = aten::zero_(self=%2!)
          outputs %1
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::exp #0"
              origin 1 "aten::as_strided #1"
              origin 2 "aten::zero_ #2"
              %0 = input 0 : f32[2,4]{1,2}
              %1 = aten::exp(self=%0) !replay 0 : f32[2,4]{1,2} @0
              %2 = aten::permute(self=%1, dims=[1, 0]) : f32[4,2] @1
              %3 = aten::reshape(self=%2, shape=[8]) : f32[8] @1
              %4 = aten::as_strided(self=%3, size=[2], stride=[3], storage_offset=1) : f32[2]{3} @1
              %5 = aten::zero(self=%4) : f32[2] @2
              %6 = aten::permute(self=%1, dims=[1, 0]) : f32[4,2] @2
              %7 = aten::reshape(self=%6, shape=[8]) : f32[8] @2
              %8 = aten::as_strided_scatter(self=%7, src=%5, size=[2], stride=[3], storage_offset=1) : f32[8] @2
              %9 = aten::reshape(self=%8, shape=[4, 2]) : f32[4,2] @2
              %10 = aten::permute(self=%9, dims=[1, 0]) : f32[2,4]{1,2} @2
              outputs %10
            }
        "#]],
    );
}

#[test]
fn views_that_share_what_none_covers_share_a_buffer() {
    check(
        r#"recording {
          %0 = input 0 : f32[4]
          %1: f32[4] = aten::exp(self=%0)
          %2: f32[2] in %1+1 = aten::slice.Tensor(self=%1, dim=0, start=1, end=3, step=1)
          %3: f32[] in %1+3 = aten::select.int(self=%1, dim=0, index=3)
          outputs %2, %3
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::exp #0"
              origin 1 "aten::slice #1"
              origin 2 "aten::select #2"
              %0 = input 0 : f32[4]
              %1 = aten::exp(self=%0) !replay 0 : f32[4] @0
              %2 = aten::slice.Tensor(self=%1, dim=0, start=1, end=3, step=1) !replay 1 : f32[2] @1
              %3 = aten::select.int(self=%1, dim=0, index=3) !replay 2 : f32[] @2
              outputs %2, %3, %1
              buffer f32[4]
              alias 0 = output 2 + 1 : f32[2]
              alias 1 = output 2 + 3 : f32[]
            }
        "#]],
    );
}

#[test]
fn running_statistics_are_written_once() {
    check(
        r#"recording {
          %0 = input 0 : f32[2,3]
          %1 = param 0 "mean" : f32[3]
          %2 = param 1 "var" : f32[3]
          %3: f32[2,3] = aten::batch_norm(input=%0, weight=None, bias=None, running_mean=%1!, running_var=%2!, training=true, momentum=0.1, eps=0.00001, cudnn_enabled=true)
          outputs %3
        }"#,
        expect![[r#"
            graph {
              origin 0 "aten::batch_norm #0"
              %0 = input 0 : f32[2,3]
              %1 = param 0 : f32[3]
              %2 = param 1 : f32[3]
              %3, %4, %5 = aten::batch_norm(input=%0, weight=None, bias=None, running_mean=%1, running_var=%2, training=true, momentum=0.1, eps=1e-5, cudnn_enabled=true) !writes[3, 4] !replay 0 : f32[2,3], f32[3], f32[3] @0
              outputs %3
              update %1 <- %4
              update %2 <- %5
            }
        "#]],
    );
}
