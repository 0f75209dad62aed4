//! The error function.

use crate::math::common::{SINGLE, exp_factors};
use crate::math::emit::*;

const MAGIC: f64 = 12_582_912.0;
const BIAS: f64 = 127.0;

/// `erf(x) / x - 1` in `x^2`, for |x| < 1.
const NEAR: [f64; 7] = [
    7.806903886375949e-5,
    -0.0007997853099368513,
    0.005187162198126316,
    -0.026853347197175026,
    0.11283578723669052,
    -0.3761262595653534,
    0.12837916612625122,
];
/// `-log2(1 - erf(b)) / b` on [1, 4].
const FAR: [f64; 7] = [
    1.97067220142344e-5,
    -0.000501277856528759,
    0.00540184834972024,
    -0.034597352147102356,
    0.15364092588424683,
    0.9160993695259094,
    1.628353476524353,
];
/// `2^r` on [-1/2, 1/2], to 2^-23.
const EXP2: [f64; 6] = [0.0013274751, 0.009671565, 0.055506993, 0.24022241, 0.693147, 1.0];

/// `x + x P(x^2)` where |x| < 1, else `1 - 2^(-b Q(b))` with `b = min(|x|, 4)`, which rounds to 1 at 4.
pub(crate) fn erf<F: Single>(x: F) -> F {
    let a = x.abs();
    let near = (x * x).poly(&NEAR).fma(x, x);
    let b = a.at_most(4.0);
    let y = -(b.poly(&FAR) * b);
    let t = y.plus(MAGIC + BIAS);
    let r = y - t.plus(-MAGIC - BIAS);
    let scale = F::from_bits(t.bits() << 23);
    let far = (-r.poly(&EXP2)).fma_lit(scale, 1.0);
    F::select(a.below(1.0), near, far.copysign(x))
}

/// `(0.8 + 1.6a) exp(a^2) erfc(a)` in `a / (a + 2)`, for `a` in [0, 10.08]; the factor 0.8 keeps it below 1.
const ERFCX: [f64; 10] = [
    -0.16730991,
    0.4991774,
    -0.3556585,
    -0.050293293,
    -0.36498618,
    0.4381034,
    1.3359853,
    -2.6269834,
    1.394592,
    0.8,
];

/// `exp(-a^2) P(a / (a + 2)) / (0.8 + 1.6a)` with `a = |x|`, taken from 2 for negative `x`.
pub(crate) fn erfc<F: Single>(x: F) -> F {
    let a = x.abs().at_most(10.08);
    let square = a * a;
    let low = a.fma(-a, square);
    let scaled = (a / a.plus(2.0)).poly(&ERFCX) / a.mul_add(1.6, 0.8);
    // The powers of two come last, because the product may be subnormal.
    let (p, first, second) = exp_factors(-square, low, &SINGLE);
    let tail = p.fma(scaled, scaled) * first * second;
    F::select(x.below(0.0), tail.lit(2.0) - tail, tail)
}
