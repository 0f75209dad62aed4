//! Arguments and elements at which operators do something of their own: every element is eager's.

use tilefuse::random::{Outcome, Program, run_fused};

use crate::common::{device, setup};

/// That a program of inputs and calls does what eager does.
fn is_eagers(text: &str) {
    setup();
    let program: Program = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    let ran = run_fused(&program, 1, device()).unwrap();
    assert_eq!(ran.outcome, Outcome::Same { noisy: false }, "{program}");
    assert!(ran.eager.is_none(), "{ran:?}\n{program}");
}

#[test]
fn a_limit_that_is_no_number() {
    for call in [
        "clamp(%0, none, nan)",
        "clamp(%0, nan, none)",
        "clamp(%0, nan, 1.0)",
        "clamp_min(%0, nan)",
        "clamp_max(%0, nan)",
    ] {
        for storage in ["f32 4 normal", "i32 4 ints 0 9"] {
            is_eagers(&format!(
                "s0 = {storage}\n%0 = input s0 [4] strides [1] offset 0\n%1! = {call}\nreturn %1!"
            ));
        }
    }
}

#[test]
fn no_deviation() {
    for call in [
        "instance_norm(%0, none, none, none, none, true, 0.1, 0.0, false)",
        "instance_norm(%0, %1, %1, none, none, true, 0.1, 0.0, false)",
    ] {
        is_eagers(&format!(
            "s0 = f32 8 fill 3.0\ns1 = f32 2 fill 0.5\n%0 = input s0 [1, 2, 4] strides [8, 4, 1] offset 0\n\
             %1 = input s1 [2] strides [1] offset 0\n%2! = {call}\nreturn %2!"
        ));
    }
}

#[test]
fn diagonals_outside() {
    for offset in [-2_305_843_009_213_693_952, i64::MIN + 1, -5, 7] {
        is_eagers(&format!(
            "s0 = f32 24 normal\n%0 = input s0 [4, 6] strides [6, 1] offset 0\n\
             %1! = diagonal(%0, {offset}, 0, 1)\nreturn %1!"
        ));
    }
}

#[test]
fn infinite_differences() {
    is_eagers(
        "s0 = f32 2 data 0000807f0000803f\ns1 = f32 2 data 000000000000803f\n\
         %0 = input s0 [2] strides [1] offset 0\n%1 = input s1 [2] strides [1] offset 0\n\
         %2! = huber_loss(%0, %1, 0, inf)\nreturn %2!",
    );
}

#[test]
fn statistics_of_nothing() {
    is_eagers(
        "s0 = f32 0 normal\n%0 = input s0 [2, 0] strides [1, 1] offset 0\n\
         %1 %2! %3 = native_layer_norm(%0, [0], none, none, 1e-5)\nreturn %2!",
    );
}

/// What is rounded to 16 bits before a comparison stays of the wider type.
#[test]
fn comparisons_with_wider_numbers() {
    for (half, call) in
        [("f16", "ne.Tensor(%0, %1)"), ("bf16", "le.Tensor(%1, %0)"), ("bf16", "pow.Tensor_Tensor(%1, %0)")]
    {
        is_eagers(&format!(
            "s0 = {half} 8 normal\ns1 = f64 8 normal\n%0 = input s0 [8] strides [1] offset 0\n\
             %1 = input s1 [8] strides [1] offset 0\n%2 = {call}\nreturn %2"
        ));
    }
}
