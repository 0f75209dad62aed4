//! Distances from the `f64` functions of the system, which are themselves right to about one unit.

use super::math_functions;
use crate::eval::math_f64;
use crate::math::{eval_f64, testing};
use crate::scalar_fn::ScalarFn;

/// Units in the last place between two numbers; infinite where one is NaN or the signs of zeros differ.
fn distance(a: f64, b: f64) -> f64 {
    if a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    if a.is_nan() || b.is_nan() || (a == 0.0 && b == 0.0) {
        return f64::INFINITY;
    }
    // Bit patterns in the order of the numbers.
    let order = |v: f64| i128::from((v.to_bits() as i64) ^ (((v.to_bits() as i64) >> 63) & i64::MAX));
    (order(a) - order(b)).abs() as f64
}

fn scramble(i: u64) -> u64 {
    let z = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i >> 7)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// Numbers of every exponent, and as many again of exponents between -32 and 31.
fn samples(count: u64) -> impl Iterator<Item = f64> {
    (0..count).flat_map(|i| {
        let bits = scramble(i);
        let common = (991 + (bits >> 3) % 64) << 52 | (bits & 0x800f_ffff_ffff_ffff);
        [f64::from_bits(bits), f64::from_bits(common)]
    })
}

fn neighbours([x, y]: [f64; 2]) -> impl Iterator<Item = [f64; 2]> {
    let near = |v: f64, d: i64| f64::from_bits(v.to_bits().wrapping_add_signed(d));
    [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1)]
        .map(|(a, b)| [near(x, a), near(y, b)])
        .into_iter()
}

/// A second operand with which `x` gives a finite power, or any number.
fn partner(x: f64, i: u64) -> f64 {
    let bits = scramble(i + (1 << 40));
    let fitting = ((bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5) * 2300.0;
    match i & 7 {
        0 => f64::from_bits(bits),
        1 => fitting.round() * 0.5,
        2 => (fitting * 0.01).round(),
        _ => fitting / x.abs().log2(),
    }
}

fn worst(function: ScalarFn, count: u64) -> (f64, [f64; 2]) {
    let edges = testing::edges_f64(function).into_iter().flat_map(neighbours);
    let spread = samples(count).enumerate().map(|(i, x)| [x, partner(x, i as u64)]);
    let near_one = (0..count).map(|i| {
        let x = f64::from_bits(0x3ff0_0000_0000_0000 ^ (scramble(i) >> (9 + i % 40)));
        [x, partner(x, i | 3)]
    });
    let mut worst = (0.0, [0.0; 2]);
    for [x, y] in edges.chain(spread).chain(near_one) {
        // Signalling NaNs are no arguments of C's functions.
        let [x, y] = [x, y].map(|v| if v.is_nan() { f64::NAN } else { v });
        let Some(value) = eval_f64(function, x, y) else { continue };
        let ulp = distance(value, math_f64(function, x, y).unwrap());
        if ulp > worst.0 {
            worst = (ulp, [x, y]);
        }
    }
    worst
}

#[test]
fn f64_functions_are_within_4_ulp_of_the_systems() {
    let count = std::env::var("TILEFUSE_MATH_SAMPLES").ok().and_then(|n| n.parse().ok()).unwrap_or(1 << 15);
    let mut bad = Vec::new();
    for function in math_functions() {
        let (ulp, [x, y]) = worst(function, count);
        let values = (eval_f64(function, x, y).unwrap(), math_f64(function, x, y).unwrap());
        let line = format!("{:8} {ulp} ulp at {x:e}, {y:e}: {values:?}", function.name());
        println!("{line}");
        if ulp > 4.0 {
            bad.push(line);
        }
    }
    assert!(bad.is_empty(), "too far from the system's functions:\n{}", bad.join("\n"));
}

/// The `f64` that comes nearest to a multiple of π/2, with the values of a computation in 1500 bits. Some systems'
/// functions are several units off here.
#[test]
fn the_worst_argument_of_trigonometric_functions() {
    let x = 6_381_956_970_095_103.0 * 2f64.powi(797);
    assert_eq!(eval_f64(ScalarFn::Sin, x, x), Some(1.0));
    assert_eq!(eval_f64(ScalarFn::Cos, x, x), Some(-4.687_165_924_254_628e-19));
    let tangent = eval_f64(ScalarFn::Tan, x, x).unwrap();
    assert!(distance(tangent, -2_133_485_385_753_703_843.7) <= 1.0, "{tangent:e}");
}
