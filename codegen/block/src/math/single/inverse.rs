//! Inverse trigonometric and hyperbolic functions.

use super::pow::log2_wide;
use crate::math::emit::*;

/// `(asin(w) / w - 1) / w^2` in `w^2`, |w| <= 1/2.
const ASIN: [f64; 5] = [0.038336106, 0.026430123, 0.045020603, 0.074987605, 0.16666673];
/// `(atan(w) / w - 1) / w^2` in `w^2`, |w| <= 1.
const ATAN: [f64; 9] = [
    -0.002476516,
    0.013860541,
    -0.03643303,
    0.06296261,
    -0.086774774,
    0.11038583,
    -0.1427907,
    0.19999751,
    -0.3333333,
];
/// π/2 in two parts.
const HALF_PI: [f64; 2] = [1.5707963705062866, -4.371138828673793e-8];

/// `asin(w) = w + rest` with `w = |x|` up to 1/2, beyond that with `w = sqrt((1 - |x|) / 2)`, when
/// `asin(|x|) = π/2 - 2 asin(w)`: which case, `w`, `rest`.
fn asin_parts<F: Float>(x: F) -> (F::B, F, F) {
    let a = x.abs();
    let far = a.above(0.5);
    let square = F::select(far, a.mul_add(-0.5, 0.5), a * a);
    let w = F::select(far, square.sqrt(), a);
    (far, w, square.poly(&ASIN) * square * w)
}

pub(crate) fn asin<F: Float>(x: F) -> F {
    let (far, w, rest) = asin_parts(x);
    let beyond = w.mul_add(-2.0, HALF_PI[0]) + rest.mul_add(-2.0, HALF_PI[1]);
    F::select(far, beyond, w + rest).copysign(x)
}

/// `2 asin(w)` or `π - 2 asin(w)` for large |x|, `π/2 - asin(x)` for small.
pub(crate) fn acos<F: Float>(x: F) -> F {
    let (far, w, rest) = asin_parts(x);
    let negative = x.below(0.0);
    let zero = x.lit(0.0);
    let quarter = |i: usize| F::select(far, zero.replace(negative, 2.0 * HALF_PI[i]), x.lit(HALF_PI[i]));
    // The multiple of `asin(w)` that is added: 1 or -1 for small |x|, 2 or -2 for large.
    let one = x.lit(-1.0).replace(negative, 1.0);
    let two = x.lit(2.0).replace(negative, -2.0);
    let factor = F::select(far, two, one);
    w.fma(factor, quarter(0)) + rest.fma(factor, quarter(1))
}

/// `base + w + (atan(w) - w)` for |w| <= 1.
fn atan_sum<F: Float>(w: F, base: [F; 2]) -> F {
    let s = w * w;
    let rest = (s.poly(&ATAN) * s).fma(w, base[1]);
    (base[0] + w) + rest
}

/// `atan(|x|)`, or `π/2 - atan(1 / |x|)` where |x| > 1.
pub(crate) fn atan<F: Float>(x: F) -> F {
    let a = x.abs();
    let far = a.above(1.0);
    let w = F::select(far, a.under(-1.0), a);
    let base = HALF_PI.map(|part| x.lit(0.0).replace(far, part));
    atan_sum(w, base).copysign(x)
}

/// The angle of the first octant, `atan(min / max)`, reflected into the right one, with the sign of `y`.
pub(crate) fn atan2<F: Float>(y: F, x: F) -> F {
    let (a, b) = (y.abs(), x.abs());
    let steep = a.gt(b);
    let (small, large) = (F::select(steep, b, a), F::select(steep, a, b));
    // Equal operands, infinities among them, give 1, and two zeros 0.
    let diagonal = x.lit(1.0).replace(large.is(0.0), 0.0);
    let w = F::select(small.eq(large), diagonal, small / large);
    let left = x.bits().below(0);
    let base = HALF_PI.map(|part| {
        let level = x.lit(0.0).replace(left, 2.0 * part);
        level.replace(steep, part)
    });
    let w = F::select(steep ^ left, -w, w);
    atan_sum(w, base).copysign(y)
}

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
