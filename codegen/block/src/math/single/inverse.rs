//! Inverse hyperbolic functions, by way of `f64`.

use super::pow::log2_wide;
use crate::math::emit::*;

/// The natural logarithm of `u` as `f32`; that of infinity is infinite.
fn log_narrow<D: Double>(u: D) -> D::S {
    log2_wide(u).times(std::f64::consts::LN_2).narrow()
}

/// `log(a + sqrt(a^2 + 1))` in `f64`, the series for small `a`.
pub(crate) fn asinh<F: Single>(x: F) -> F {
    let a = x.abs();
    let wide = a.widen();
    let far = log_narrow(wide + wide.fma_lit(wide, 1.0).sqrt());
    let near = (x * x).times(-1.0 / 6.0).fma(a, a);
    let far = F::select(a.below(f64::INFINITY), far, a);
    F::select(a.below(SERIES), near, far).copysign(x)
}

/// Below this two terms of a series are enough.
const SERIES: f64 = 1.0 / 1024.0;

/// `log(x + sqrt(x^2 - 1))` in `f64`.
pub(crate) fn acosh<F: Single>(x: F) -> F {
    let wide = x.widen();
    let y = log_narrow(wide + wide.fma_lit(wide, -1.0).sqrt());
    F::select(x.below(f64::INFINITY), y, x).replace(x.below(1.0), f64::NAN)
}

/// `log((1 + a) / (1 - a)) / 2` in `f64`, the series for small `a`.
pub(crate) fn atanh<F: Single>(x: F) -> F {
    let a = x.abs();
    let wide = a.widen();
    let ratio = wide.plus(1.0) / (wide.lit(1.0) - wide);
    let far = log_narrow(ratio).times(0.5);
    let near = (x * x).times(1.0 / 3.0).fma(a, a);
    let far = F::select(a.below(1.0), far, a.lit(f64::NAN)).replace(a.is(1.0), f64::INFINITY);
    F::select(a.below(SERIES), near, far).copysign(x)
}
