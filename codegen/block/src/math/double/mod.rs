//! Functions on `f64` with formulas of their own.
//!
//! Sums and products of two parts follow Knuth and Dekker: a pair `(a, b)` stands for `a + b` with `b` below the
//! last bit of `a`. Polynomials are minimax fits made with Sollya's `fpminimax`.

mod erf;
mod inverse;
mod pow;
mod trig;

pub(super) use erf::{erf, erfc};
pub(super) use inverse::{acosh, asinh, atanh};
pub(super) use pow::pow;
pub(super) use trig::{cos, sin, tan};

use super::emit::Float;

/// `a + b` rounded, and the rounding error.
fn two_sum<F: Float>(a: F, b: F) -> (F, F) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// As [`two_sum`], where `a` is 0 or at least as large as `b`.
fn fast_two_sum<F: Float>(a: F, b: F) -> (F, F) {
    let sum = a + b;
    (sum, b - (sum - a))
}

/// `a * b` rounded, and the rounding error.
fn two_product<F: Float>(a: F, b: F) -> (F, F) {
    let product = a * b;
    (product, a.fma(b, -product))
}
