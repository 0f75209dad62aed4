//! The error function.

use crate::math::common::{SINGLE, exp_factors};
use crate::math::emit::*;

const MAGIC: f64 = 12_582_912.0;
const BIAS: f64 = 127.0;

/// `log2(erfc(b)) / b` on [0, 4], weighted by what it means for `erf`.
const LOG2_ERFC: [f64; 9] = [
    1.29143527e-05,
    -0.000165946796,
    0.000900219718,
    -0.00238321628,
    0.000211482838,
    0.0276415795,
    -0.14827925,
    -0.918447435,
    -1.62790704,
];
/// `((2^r - 1) / r - ln 2) / r` on [-1/2, 1/2].
const EXP2_M1: [f64; 5] = [0.000153820045, 0.00133873872, 0.00961831119, 0.0555036739, 0.240226492];

/// `1 - 2^y` with `y = log2(erfc(b))` and `b = min(|x|, 4)`, where it rounds to 1. `y = n + r` with `|r| <= 1/2`, and the
/// result is `(1 - 2^n) - 2^n (2^r - 1)`, which loses nothing where `n` is 0.
pub(crate) fn erf<F: Single>(x: F) -> F {
    let b = x.abs().at_most(4.0);
    let y = b.poly(&LOG2_ERFC) * b;
    let t = y.plus(MAGIC + BIAS);
    let r = y - t.plus(-MAGIC - BIAS);
    let above_one = r.lit_fma(std::f64::consts::LN_2, r.poly(&EXP2_M1) * (r * r));
    let scale = F::from_bits(t.bits() << 23);
    (-above_one).fma(scale, scale.lit(1.0) - scale).copysign(x)
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
