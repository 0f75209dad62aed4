//! Operators on 16-bit floats where libtorch rounds on the way: numbers and tensors of rank 0 to the operands' type, and values before
//! something that a small change of an operand moves far. Every element is eager's, whatever is nearer to exact numbers.

use tch::Device;
use tilefuse::random::{Outcome, Program, run_fused};

use crate::common::{device, on_cpu, setup};

/// Inputs of 256 whole numbers `%0`, of as many numbers `%1`, of one number in f32 `%2`, and of integers `%7`, of which `calls` compute `%9`. libtorch
/// rounds once more in what is left of whole vectors, of which there is nothing.
fn program(kind: &str, calls: &str) -> Program {
    let text = format!(
        "s0 = {kind} 256 ints 1 240
         s1 = {kind} 256 normal
         s2 = f32 1 normal
         s3 = i64 256 ints 1 1000
         %0 = input s0 [4, 64] strides [64, 1] offset 0
         %1 = input s1 [4, 64] strides [64, 1] offset 0
         %2 = input s2 [] strides [] offset 0
         %7 = input s3 [4, 64] strides [64, 1] offset 0
         {calls}
         return %9!"
    );
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn is_eagers(program: &Program, device: Device) {
    // Every third seed is called with other strides, too, over which libtorch has no whole vectors.
    for seed in [1, 2, 4] {
        let ran = run_fused(program, seed, device).unwrap();
        assert_eq!(ran.outcome, Outcome::Same { noisy: false }, "seed {seed}\n{program}");
        assert!(ran.eager.is_none() && ran.kernels > 0, "{ran:?}\n{program}");
    }
}

fn are_eagers(calls: &[&str], device: Device) {
    setup();
    for kind in ["bf16", "f16"] {
        calls.iter().for_each(|calls| is_eagers(&program(kind, calls), device));
    }
}

#[test]
fn divisors_are_of_the_operands_type() {
    let calls = [
        "%9! = fmod.Scalar(%0, 0.1)",
        "%9! = fmod.Tensor(%0, %2)",
        "%9! = remainder.Scalar(%0, 0.1)",
        "%9! = remainder.Tensor(%0, %2)",
    ];
    are_eagers(&calls, device());
}

#[test]
fn positions_are_those_of_what_was_rounded() {
    let calls = [
        "%3 = add.Scalar(%1, 300.0, 1)\n%9! = argmax(%3, -1, false)",
        "%3 = add.Scalar(%1, 300.0, 1)\n%9! = argmin(%3, 0, true)",
        "%3 = add.Scalar(%1, 300.0, 1)\n%4! %9! = max.dim(%3, -1, false)",
    ];
    are_eagers(&calls, device());
}

#[test]
fn positions_in_parts_are_those_of_what_was_rounded() {
    setup();
    let text = "s0 = bf16 600000 normal
                %0 = input s0 [600000] strides [1] offset 0
                %1 = add.Scalar(%0, 300.0, 1)
                %2! = argmax(%1, none, false)
                return %2!";
    is_eagers(&text.parse().unwrap(), device());
}

/// A tensor of another type is rounded first unless libtorch takes it as a number of the host.
#[test]
fn tensors_are_of_the_operands_type() {
    let calls = [
        "%9! = mul.Tensor(%2, %0)",
        "%9! = add.Tensor(%2, %1, 1)",
        "%9! = sub.Tensor(%2, %1, 1)",
        "%9! = mul.Tensor(%0, %7)",
        "%9! = mul.Tensor(%7, %0)",
        "%9! = add.Tensor(%0, %7, 1)",
        "%9! = maximum(%0, %7)",
        "%9! = mul.Tensor(%0, %2)",
        "%9! = add.Tensor(%1, %2, 1)",
        "%9! = sub.Tensor(%1, %2, 1)",
    ];
    are_eagers(&calls, device());
}

/// On a GPU the last bits of these functions are others than libtorch's, and some numbers are not rounded.
#[test]
fn numbers_are_of_the_operands_type_on_the_cpu() {
    if !on_cpu() {
        return;
    }
    let calls = [
        "%9! = pow.Tensor_Scalar(%0, 1.01)",
        "%9! = pow.Scalar(1.01, %1)",
        "%9! = xlogy.Scalar_Other(%0, 1.001)",
        "%9! = mul.Tensor(%2, %0)",
        "%9! = div.Tensor(%2, %0)",
        "%9! = add.Tensor(%0, %1, 0.3)",
        "%9! = sub.Tensor(%0, %1, 0.3)",
        "%9! = rsub.Tensor(%0, %1, 0.3)",
        "%3 = mul.Scalar(%1, 0.0)\n%4 = add.Scalar(%3, 1.0, 1)\n%9! = logit(%4, 0.000001)",
    ];
    are_eagers(&calls, Device::Cpu);
}

/// A small step beyond an edge is none in 16 bits.
#[test]
fn values_near_an_edge_are_rounded_before() {
    if !on_cpu() {
        return;
    }
    let near = |calls: &str| format!("%3 = mul.Scalar(%1, 0.0001)\n{calls}");
    let calls = [
        near("%4 = add.Scalar(%3, 2.0, 1)\n%9! = pow.Scalar(-2.0, %4)"),
        near("%4 = add.Scalar(%3, 2.0, 1)\n%9! = div.Scalar_mode(%4, 0.5, \"floor\")"),
        near("%4 = add.Scalar(%3, 2.0, 1)\n%9! = lt.Tensor(%4, %2)"),
        "%3 = mul.Scalar(%1, 0.0)\n%4 = add.Scalar(%3, 0.0002, 1)\n%5 = add.Scalar(%4, 1.0, 1)\n%9! = logit(%5, none)".into(),
        near("%4 = add.Scalar(%3, 1.0, 1)\n%9! = acos(%4)"),
        near("%4 = add.Scalar(%3, 1.0, 1)\n%9! = asin(%4)"),
        near("%4 = add.Scalar(%3, 1.0, 1)\n%9! = atanh(%4)"),
        near("%4 = add.Scalar(%3, 1.0, 1)\n%9! = acosh(%4)"),
        near("%4 = add.Scalar(%3, -1.0, 1)\n%9! = log1p(%4)"),
    ];
    are_eagers(&calls.each_ref().map(String::as_str), Device::Cpu);
}

#[test]
fn limits_that_cross() {
    setup();
    let text = "s0 = f32 64 normal
                %0 = input s0 [64] strides [1] offset 0
                %1 = logit(%0, 0.7)
                return %1";
    is_eagers(&text.parse().unwrap(), device());
}

/// Limits that a float of 64 bits does not hold.
#[test]
fn limits_of_integers() {
    setup();
    let text = "s0 = i64 4 data 0100000000002000010000000000200001000000000020000700000000002000
                %0 = input s0 [4] strides [1] offset 0
                %1! = hardtanh(%0, -9007199254740993, 9007199254740993)
                return %1!";
    is_eagers(&text.parse().unwrap(), device());
}

/// The factors of `addr` are no operands that its type is promoted by.
#[test]
fn outer_products_of_truth_values() {
    setup();
    let text = "s0 = bool 12 ints 0 2
                %0 = input s0 [3, 4] strides [4, 1] offset 0
                %1 = input s0 [3] strides [1] offset 0
                %2 = input s0 [4] strides [1] offset 3
                %3 = logical_not(%0)
                %4 = addr_(%3, %1, %2, 1, 1)
                return %4";
    is_eagers(&text.parse().unwrap(), device());
}

/// What is computed of a value that is in memory too is computed of the number that is there.
#[test]
fn stored_values_are_computed_on() {
    setup();
    for kind in ["bf16", "f16"] {
        let text = format!(
            "s0 = {kind} 256 normal
             s1 = {kind} 256 normal
             %0 = input s0 [4, 64] strides [64, 1] offset 0
             %1 = input s1 [4, 64] strides [64, 1] offset 0
             %2! = add.Tensor(%0, %1, 1)
             %3! = mul.Scalar(%2, 3.0)
             return %2! %3!"
        );
        is_eagers(&text.parse().unwrap(), device());
    }
    // A kernel stores the sum and the largest one of each row, in which there is one; another subtracts them.
    let text = "s0 = bf16 1536 normal
                s1 = bf16 12288 normal
                s2 = bf16 1 normal
                s3 = bf16 1 normal
                %0 = input s0 [2, 128, 6, 1] strides [768, 6, 1, 1] offset 0
                %1 = param s1 [24, 128, 2, 2] strides [512, 1, 256, 128] offset 0
                %2 = input s2 [1, 1] strides [1, 1] offset 0
                %3 = input s3 [1] strides [1] offset 0
                %4 = conv2d.padding(%0, %1, none, [1, 1], \"same\", [1, 1], 1)
                %5 = linear(%4, %2, %3)
                %6 = add.Tensor(%5, %4, 1)
                %7 = log_softmax.int(%6, 3)
                return %7";
    is_eagers(&text.parse().unwrap(), device());
}

/// As what a product stores, and what is computed of its rows.
#[test]
fn stored_products_are_computed_on() {
    setup();
    for calls in [
        "%3! = linear(%0, %1, none)\n%4! = mul.Scalar(%3, 3.0)",
        "%5 = linear(%0, %1, none)\n%3 = add.Tensor(%5, %2, 1)\n%6 = amax(%3, [1], true)\n%4! = sub.Tensor(%3, %6, 1)",
        "%3! = linear(%0, %1, none)\n%6! = amax(%3, [1], true)\n%4! = sub.Tensor(%3, %6, 1)",
    ] {
        let text = format!(
            "s0 = bf16 8192 ints -15 16
             s1 = bf16 8192 ints -15 16
             s2 = bf16 16384 ints -15 16
             %0 = input s0 [128, 64] strides [64, 1] offset 0
             %1 = param s1 [128, 64] strides [64, 1] offset 0
             %2 = input s2 [128, 128] strides [128, 1] offset 0
             {calls}
             return %3 %4!"
        );
        is_eagers(&text.parse().unwrap(), device());
    }
}
