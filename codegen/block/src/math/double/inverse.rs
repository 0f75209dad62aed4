//! Inverse hyperbolic functions.

use crate::math::common::{DOUBLE, log1p};
use crate::math::emit::*;

/// Beyond 2^56, the sum is `2a`, and `log(1 + a)` is `log(a)`.
const TWO_TO_56: f64 = 72_057_594_037_927_936.0;

/// `log(1 + t)`, or `log(2a)` where `a` is large.
fn log_of_sum<F: Float>(a: F, t: F) -> F {
    let large = a.above(TWO_TO_56);
    let offset = a.lit(0.0).replace(large, std::f64::consts::LN_2);
    log1p(F::select(large, a, t), &DOUBLE) + offset
}

/// `log(1 + t)` with `t = a + a^2 / (1 + sqrt(1 + a^2))`.
pub(crate) fn asinh<F: Float>(x: F) -> F {
    let a = x.abs();
    let square = a * a;
    let t = a + square / square.plus(1.0).sqrt().plus(1.0);
    log_of_sum(a, t).copysign(x)
}

/// `log(1 + d + sqrt(d (2 + d)))` with `d = x - 1`.
pub(crate) fn acosh<F: Float>(x: F) -> F {
    let d = x.plus(-1.0);
    let t = d + (d * d.plus(2.0)).sqrt();
    log_of_sum(x, t).replace(x.below(1.0), f64::NAN)
}

/// `log(1 + 2a / (1 - a)) / 2`.
pub(crate) fn atanh<F: Float>(x: F) -> F {
    let a = x.abs();
    let t = (a + a) / (a.lit(1.0) - a);
    log1p(t, &DOUBLE).times(0.5).replace(a.above(1.0), f64::NAN).copysign(x)
}
