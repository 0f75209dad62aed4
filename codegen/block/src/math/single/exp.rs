//! Exponentials and what is made of them.

use crate::math::emit::*;

/// 1.5 · 2^23: adding it to a small number leaves the number's integer part in the low bits.
const MAGIC: f64 = 12_582_912.0;
/// The exponent bias of `f32`.
const BIAS: f64 = 127.0;
/// ln 2 in two parts, the first short enough for exact products with small integers.
const LN2_HI: f64 = 0.693145751953125;
const LN2_LO: f64 = 1.428606765330187e-6;
const LOG2_E: f64 = std::f64::consts::LOG2_E;

/// `(exp(r) - 1 - r) / r^2` on [-ln 2, ln 2].
const EXP: [f64; 6] = [0.00019629415, 0.0014105367, 0.00833597, 0.041661203, 0.16666616, 0.50000036];
/// `(exp(r) - 1 - r) / r^2` on [-ln(2) / 2, ln(2) / 2].
const EXP_HALF: [f64; 6] = [0.00019743646, 0.0013933742, 0.008333567, 0.041666478, 0.16666666, 0.5];
/// `2^r` on [-1/2, 1/2].
const EXP2: [f64; 7] = [0.00015241285, 0.0013391302, 0.009618834, 0.05550359, 0.24022645, 0.6931472, 1.0];

/// `x = 2 m ln 2 + r` with `|r| <= ln 2`. The square of `2^m` covers subnormal results and overflow, where one power
/// of two cannot.
pub(crate) fn exp<F: Single>(x: F) -> F {
    let x = x.at_least(-104.0).at_most(89.0);
    let t = x.mul_add(LOG2_E / 2.0, MAGIC + BIAS);
    let m = t.plus(-MAGIC - BIAS);
    let s = F::from_bits(t.bits() << 23);
    let r = m.lit_fma(-2.0 * LN2_LO, m.lit_fma(-2.0 * LN2_HI, x));
    let [c7, c6, c5, c4, c3, c2] = EXP;
    r.poly(&[c7, c6, c5, c4, c3, c2, 1.0, 1.0]) * s * s
}

/// `(a, b, exp(r))` with `exp(x) = exp(r) a b`, `|r| <= ln(2) / 2` and powers of two `a` and `b`, for `x` in
/// [-150, 150].
pub(super) fn exp_factors<F: Single>(x: F) -> (F, F, F) {
    let t = x.mul_add(LOG2_E, MAGIC + 2.0 * BIAS);
    let n = t.plus(-MAGIC - 2.0 * BIAS);
    let half = t.bits() >> 1;
    let first = F::from_bits(half << 23);
    let second = F::from_bits((t.bits() - half) << 23);
    let r = n.lit_fma(-LN2_LO, n.lit_fma(-LN2_HI, x));
    let [c7, c6, c5, c4, c3, c2] = EXP_HALF;
    (first, second, r.poly(&[c7, c6, c5, c4, c3, c2, 1.0, 1.0]))
}

/// `x = n + r`; `2^n` is applied as two powers of two, `n >> 1` and the rest.
pub(crate) fn exp2<F: Single>(x: F) -> F {
    let x = x.at_least(-151.0).at_most(129.0);
    let t = x.plus(MAGIC + 2.0 * BIAS);
    let r = x - t.plus(-MAGIC - 2.0 * BIAS);
    let half = t.bits() >> 1;
    let first = F::from_bits(half << 23);
    let second = F::from_bits((t.bits() - half) << 23);
    r.poly(&EXP2) * first * second
}

/// `(2^(n + scale), exp(r) - 1)` where `x = n ln 2 + r` with `|r| <= ln(2) / 2`.
fn exp_m1_parts<F: Single>(x: F, scale: f64) -> (F, F) {
    let shift = MAGIC + BIAS + scale;
    let t = x.mul_add(LOG2_E, shift);
    let n = t.plus(-shift);
    let power = F::from_bits(t.bits() << 23);
    let r = n.lit_fma(-LN2_LO, n.lit_fma(-LN2_HI, x));
    (power, r.poly(&EXP_HALF).fma(r * r, r))
}

/// 1.5 · 2^64.
const SIGMOID_SCALE: f64 = 27_670_116_110_564_327_424.0;

/// `e / (e + c)` with `e = c exp(x)` and `c` 1.5 · 2^64; above 30 the quotient is 1.
///
/// The power of two keeps `e` normal where the quotient is not. The factor 1.5 keeps numerator and denominator
/// away from the low end of a binade, where rounding weighs most, when the quotient is at a high end.
pub(crate) fn sigmoid<F: Single>(x: F) -> F {
    let (power, p) = exp_m1_parts(x.at_least(-104.0).at_most(30.0), 64.0);
    let power = F::from_bits(power.bits().plus(1 << 22));
    let e = p.fma(power, power);
    e / e.plus(SIGMOID_SCALE)
}

/// `(e - 1) / (e + 1)` with `e = exp(-2|x|)` and the sign of `x`; above 10 the quotient is -1.
pub(crate) fn tanh<F: Single>(x: F) -> F {
    let (power, p) = exp_m1_parts(x.abs().times(-2.0).at_least(-20.0), 0.0);
    let minus = p.fma(power, power.plus(-1.0));
    let plus = p.fma(power, power.plus(1.0));
    (minus / plus).copysign(x)
}

/// `2 (exp(r) 2^(n-1) - 1/2)`: halved, the power of two stays finite up to the largest result.
pub(crate) fn expm1<F: Single>(x: F) -> F {
    let (power, p) = exp_m1_parts(x.at_least(-18.0).at_most(89.0), -1.0);
    let half = p.fma(power, power.plus(-0.5));
    (half + half).copysign(x)
}

/// `(e^|x| / 4, e^-|x| / 2)`, where the first is finite wherever the hyperbolic functions are.
fn quarter_and_inverse<F: Single>(x: F) -> (F, F) {
    let (power, p) = exp_m1_parts(x.abs().at_most(89.5), -2.0);
    let quarter = p.fma(power, power);
    (quarter, quarter.under(0.125))
}

/// `(sinh(x) / x - 1) / x^2` in `x^2`, for |x| < 1.
const SINH: [f64; 4] = [2.759186e-6, 0.00019846353, 0.008333298, 0.16666667];

pub(crate) fn sinh<F: Single>(x: F) -> F {
    let (quarter, inverse) = quarter_and_inverse(x);
    let far = quarter.lit_fma(2.0, -inverse);
    let s = x * x;
    let near = (s.poly(&SINH) * s).fma(x, x);
    F::select(x.abs().below(1.0), near, far.copysign(x))
}

pub(crate) fn cosh<F: Single>(x: F) -> F {
    let (quarter, inverse) = quarter_and_inverse(x);
    quarter.lit_fma(2.0, inverse)
}
