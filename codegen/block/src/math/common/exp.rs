//! Exponentials and what is made of them.

use super::Format;
use crate::math::emit::*;

const LOG2_E: f64 = std::f64::consts::LOG2_E;

/// `exp(r) 2^(2m)` with `x = 2 m ln 2 + r` and `|r| <= ln 2`. The square of `2^m` covers subnormal results and
/// overflow, where one power of two cannot.
pub(in crate::math) fn exp<F: Float>(x: F, k: &Format) -> F {
    let x = x.at_least(k.exp_bounds[0]).at_most(k.exp_bounds[1]);
    let t = x.mul_add(LOG2_E / 2.0, k.magic + k.bias);
    let m = t.plus(-k.magic - k.bias);
    let s = F::from_bits(t.bits() << k.fraction);
    let r = m.lit_fma(-2.0 * k.ln2[1], m.lit_fma(-2.0 * k.ln2[0], x));
    r.poly(k.exp) * s * s
}

/// Powers of two `2^(n >> 1)` and `2^(n - (n >> 1))` for the `n` of `t = n + magic + 2 bias`.
fn two_powers<F: Float>(t: F, k: &Format) -> (F, F) {
    let half = t.bits() >> 1;
    let rest = t.bits() - half;
    (F::from_bits(half << k.fraction), F::from_bits(rest << k.fraction))
}

/// `(exp(r) - 1, a, b)` with `exp(x + low) = exp(r) a b`, `|r| <= ln(2) / 2` and powers of two `a` and `b`, for `x` within
/// twice the bounds of the format's exponents and `low` below the last bit of `x`.
pub(in crate::math) fn exp_factors<F: Float>(x: F, low: F, k: &Format) -> (F, F, F) {
    let shift = k.magic + 2.0 * k.bias;
    let t = x.mul_add(LOG2_E, shift);
    let n = t.plus(-shift);
    let (first, second) = two_powers(t, k);
    let r = n.lit_fma(-k.ln2[1], n.lit_fma(-k.ln2[0], x) + low);
    (r.poly(k.exp_half).fma(r * r, r), first, second)
}

/// `(r, a, b)` with `2^x = 2^r a b`, `|r| <= 1/2` and powers of two `a` and `b`.
pub(in crate::math) fn exp2_factors<F: Float>(x: F, k: &Format) -> (F, F, F) {
    let shift = k.magic + 2.0 * k.bias;
    let t = x.plus(shift);
    let (first, second) = two_powers(t, k);
    (x - t.plus(-shift), first, second)
}

pub(in crate::math) fn exp2<F: Float>(x: F, k: &Format) -> F {
    let (r, first, second) = exp2_factors(x.at_least(k.exp2_bounds[0]).at_most(k.exp2_bounds[1]), k);
    r.poly(k.exp2) * first * second
}

/// `(2^(n + scale), exp(r) - 1)` where `x = n ln 2 + r` with `|r| <= ln(2) / 2`.
fn exp_m1_parts<F: Float>(x: F, scale: f64, k: &Format) -> (F, F) {
    let shift = k.magic + k.bias + scale;
    let t = x.mul_add(LOG2_E, shift);
    let n = t.plus(-shift);
    let power = F::from_bits(t.bits() << k.fraction);
    let r = n.lit_fma(-k.ln2[1], n.lit_fma(-k.ln2[0], x));
    (power, r.poly(k.exp_half).fma(r * r, r))
}

/// `1 / (1 + e)` for `e` in [0, 1], by Newton's iteration. Residuals are taken with `e` and not with the rounded
/// `1 + e`; `1 - r` is exact.
fn inverse_above_one<F: Float>(e: F, k: &Format) -> F {
    let mut r = e.poly(&INVERSE);
    for _ in 0..k.newton {
        r = (-r).fma(e, r.lit(1.0) - r).fma(r, r);
    }
    r
}

/// `1 / (1 + e)` on [0, 1], to 2^-6.6.
const INVERSE: [f64; 3] = [0.3232323229312897, -0.808080792427063, 0.9898989796638489];

/// `1 / (1 + e)` with `e = exp(-|x|)`, times `e` for negative `x`. A power of two keeps `e` normal where the product
/// is not.
pub(in crate::math) fn sigmoid<F: Float>(x: F, k: &Format) -> F {
    let negative = (-x.abs()).at_least(k.exp_bounds[0]);
    let (power, p) = exp_m1_parts(negative, k.lift[0], k);
    let lifted = p.fma(power, power);
    let inverse = inverse_above_one(lifted.times(k.lift[1]), k);
    F::select(x.below(0.0), (lifted * inverse).times(k.lift[1]), inverse)
}

/// `2 (exp(r) 2^(n-1) - 1/2)`: halved, the power of two stays finite up to the largest result.
pub(in crate::math) fn expm1<F: Float>(x: F, k: &Format) -> F {
    let (power, p) = exp_m1_parts(x.at_least(-k.negligible).at_most(k.exp_bounds[1]), -1.0, k);
    let half = p.fma(power, power.plus(-0.5));
    (half + half).copysign(x)
}

/// `(e - 1) / (e + 1)` with `e = exp(-2|x|)` and the sign of `x`; for large |x| the quotient is -1.
pub(in crate::math) fn tanh<F: Float>(x: F, k: &Format) -> F {
    let (power, p) = exp_m1_parts(x.abs().times(-2.0).at_least(-k.negligible), 0.0, k);
    let minus = p.fma(power, power.plus(-1.0));
    let plus = p.fma(power, power.plus(1.0));
    (minus / plus).copysign(x)
}

/// `(e^|x| / 4, e^-|x| / 2)`, where the first is finite wherever the hyperbolic functions are.
fn quarter_and_inverse<F: Float>(x: F, k: &Format) -> (F, F) {
    let (power, p) = exp_m1_parts(x.abs().at_most(k.sinh_bound), -2.0, k);
    let quarter = p.fma(power, power);
    (quarter, quarter.under(0.125))
}

pub(in crate::math) fn sinh<F: Float>(x: F, k: &Format) -> F {
    let (quarter, inverse) = quarter_and_inverse(x, k);
    let far = quarter.lit_fma(2.0, -inverse);
    let s = x * x;
    let near = (s.poly(k.sinh) * s).fma(x, x);
    F::select(x.abs().below(1.0), near, far.copysign(x))
}

pub(in crate::math) fn cosh<F: Float>(x: F, k: &Format) -> F {
    let (quarter, inverse) = quarter_and_inverse(x, k);
    quarter.lit_fma(2.0, inverse)
}
