//! Formulas for processors with instructions for exponents and significands.
//!
//! They give the bits of those that all processors have, on every `f32`.

use super::common::{self, SINGLE};
use super::emit::*;
use super::native::Native;
use super::single;
use crate::scalar_fn::{Level, MathFn, ScalarFn};

/// A function of `f32` by [`Exponents`], with the bits of [`super::eval_f32`] (but for a NaN's payload). `None` where
/// they do not help.
#[inline(always)]
pub fn with_exponents<F: Exponents>(function: ScalarFn, x: F) -> Option<F> {
    let Level::Math(function) = function.level() else { return None };
    use MathFn::*;
    Some(match function {
        Exp => exp(x),
        Exp2 | Exp2Approx | Exp2ApproxFtz => exp2(x),
        Log => common::log_of(split(x), &SINGLE),
        Log2 => common::log2_of(split(x), &SINGLE),
        Sin => sin(x),
        Cos => cos(x),
        Rsqrt | Pow | Expm1 | Log10 | Log1p | Tan | Asin | Acos | Atan | Atan2 | Sinh | Cosh | Tanh
        | Asinh | Acosh | Atanh | Erf | Erfc | Sigmoid | RecipApprox | RsqrtApprox => return None,
    })
}

/// [`with_exponents`] of one number.
#[inline]
pub fn eval_with_exponents(function: ScalarFn, x: f32) -> Option<f32> {
    with_exponents(function, Native(x)).map(|v| v.0)
}

/// The remainder of a reduction of an exponent, a number below 2 in place of one that is larger. It is larger, infinite
/// or NaN only where the exponent is so far out of range that the result is 0, infinite or NaN whatever the remainder.
fn bounded<F: Single>(r: F) -> F {
    F::from_bits(r.bits().masked(!0x4000_0000))
}

/// `exp(r) 2^n` with `x = n ln 2 + r`, even `n` and `|r| <= ln 2`.
fn exp<F: Exponents>(x: F) -> F {
    let k = &SINGLE;
    let shift = 2.0 * (k.magic + k.bias);
    let n = x.mul_add(std::f64::consts::LOG2_E, shift).plus(-shift);
    let r = n.lit_fma(-k.ln2[1], n.lit_fma(-k.ln2[0], x));
    bounded(r).poly(k.exp).scale(n)
}

/// `2^r 2^n` with `x = n + r` and `|r| <= 1/2`.
fn exp2<F: Exponents>(x: F) -> F {
    let k = &SINGLE;
    let shift = k.magic + 2.0 * k.bias;
    let n = x.plus(shift).plus(-shift);
    bounded(x - n).poly(k.exp2).scale(n)
}

/// `(e, f)` with `x = 2^e (1 + f)` and `1 + f` in [2/3, 4/3). `e` is infinite for zeros and infinity and `f` NaN for other
/// negative numbers, so that a logarithm needs no special cases.
fn split<F: Exponents>(x: F) -> (F, F) {
    // Twice the first `f32` from 2/3 on.
    const FOUR_THIRDS: f64 = 1.3333333730697632;
    let (e, m) = (x.exponent(), x.significand());
    let low = m.below(FOUR_THIRDS);
    (F::select(low, e, e.plus(1.0)), F::select(low, m, m.times(0.5)).plus(-1.0))
}

/// Below this, [`reduce`] leaves the same remainder as the reduction for all numbers, after rounding.
const MAX_DIRECT: f64 = 268_435_456.0;
/// 1.5 · 2^52.
const MAGIC: f64 = 6_755_399_441_055_744.0;
/// π/2 in two parts.
const HALF_PI: [f64; 2] = [1.5707963267948966, 6.123233995736766e-17];

/// `x = r + n π/2` with `|r| <= π/4`, after Cody and Waite: `r`, and an integer that is `n` modulo 4.
fn reduce<F: Exponents>(x: F) -> (F, F::I) {
    let wide = x.widen();
    let shifted = wide.mul_add(std::f64::consts::FRAC_2_PI, MAGIC);
    let n = shifted.plus(-MAGIC);
    let r = n.lit_fma(-HALF_PI[1], n.lit_fma(-HALF_PI[0], wide));
    (r.narrow(), F::low_half(shifted.bits()))
}

/// `sin(r + n π/2)`.
fn quadrant<F: Exponents>((r, n): (F, F::I)) -> F {
    let (sine, cosine) = single::sine_cosine(r);
    let value = F::select(n.has(1), cosine, sine);
    F::from_bits(value.bits() ^ (n << 30).masked(i64::from(i32::MIN)))
}

fn is_large<F: Single>(x: F) -> F::B {
    !x.abs().below(MAX_DIRECT)
}

fn sin<F: Exponents>(x: F) -> F {
    // The polynomial loses the sign of -0.
    let usual = || F::select(x.is(0.0), x, quadrant(reduce(x)));
    F::unless(is_large(x), usual, || single::sin(x))
}

fn cos<F: Exponents>(x: F) -> F {
    let usual = || {
        let (r, n) = reduce(x);
        quadrant((r, n.plus(1)))
    };
    F::unless(is_large(x), usual, || single::cos(x))
}
