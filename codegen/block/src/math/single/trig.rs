//! Sine, cosine and tangent, right for every argument.

use crate::math::emit::*;

/// 1.5 · 2^52.
const MAGIC: f64 = 6_755_399_441_055_744.0;

/// 2/π as a sum of 29, 53 and 53 bits.
const TWO_OVER_PI: [f64; 3] = [0.636619770899415, 1.4681663269012186e-9, 7.696704864039572e-26];
/// The fraction of 2/π · 2^51, times 2^-51, likewise: multiples of 2^-50 contribute whole turns where |x| >= 2^76.
const TWO_OVER_PI_LOW: [f64; 3] = [2.937095537534198e-16, 2.8376220177865265e-25, -7.058761003808782e-42];
/// 2^76.
const TWO_TO_76: f64 = 7.555786372591432e22;

/// `(sin(r) / r - 1) / r^2` in `r^2`, |r| <= π/4.
const SIN: [f64; 3] = [-0.00019518085, 0.008332188, -0.16666655];
/// `cos(r)` in `r^2`, |r| <= π/4.
const COS: [f64; 5] = [2.4432093e-5, -0.0013887308, 0.041666646, -0.5, 1.0];

/// `x = (n + q) π/2` with `|q| <= 1/2`: `q π/2` and an integer that is `n` modulo 4.
///
/// The first product is exact (24 by 29 bits) and taken modulo 4, the other two are added to its distance from
/// the nearest integer, so that cancellation leaves at least 53 bits of `q`.
pub(super) fn reduce<F: Single>(x: F) -> (F::D, <F::D as Float>::I) {
    let large = x.abs().above(TWO_TO_76);
    let wide = x.widen();
    let part = |i: usize| F::D::select(large, wide.lit(TWO_OVER_PI_LOW[i]), wide.lit(TWO_OVER_PI[i]));
    let first = part(0) * wide;
    let turns = first.times(0.25).round_even();
    let first = turns.lit_fma(-4.0, first);
    let second = part(1);
    let n = second.fma(wide, first).round_even();
    let q = part(2).fma(wide, second.fma(wide, first - n));
    (q.times(std::f64::consts::FRAC_PI_2), n.plus(MAGIC).bits())
}

/// `sin(r)` and `cos(r)` for |r| <= π/4.
pub(in crate::math) fn sine_cosine<F: Single>(r: F) -> (F, F) {
    let s = r * r;
    ((s.poly(&SIN) * s).fma(r, r), s.poly(&COS))
}

/// `sin(r + n π/2)`.
fn quadrant<F: Single>(r: F::D, n: <F::D as Float>::I) -> F {
    let (sine, cosine) = sine_cosine::<F>(r.narrow());
    let value = F::select(n.has(1), cosine, sine);
    F::select(n.has(2), -value, value)
}

pub(crate) fn sin<F: Single>(x: F) -> F {
    let (r, n) = reduce(x);
    // The reduction loses the sign of -0.
    F::select(x.is(0.0), x, quadrant::<F>(r, n))
}

pub(crate) fn cos<F: Single>(x: F) -> F {
    let (r, n) = reduce(x);
    quadrant::<F>(r, n.plus(1))
}

/// `sin(r) / r` and `cos(r)` in `r^2`, |r| <= π/4, for `f64`.
const SIN_WIDE: [f64; 4] = [-0.0001951565777567183, 0.008332166382388907, -0.1666665476395195, 1.0];
const COS_WIDE: [f64; 5] =
    [2.4388367582523743e-5, -0.001388674215047526, 0.04166662265967033, -0.4999999971946897, 1.0];

/// `sin(r) / cos(r)`, or `-cos(r) / sin(r)` in odd quadrants, in `f64`.
pub(crate) fn tan<F: Single>(x: F) -> F {
    let (r, n) = reduce(x);
    let s = r * r;
    let sine = s.poly(&SIN_WIDE) * r;
    let cosine = s.poly(&COS_WIDE);
    let odd = n.has(1);
    let tangent = F::D::select(odd, -cosine, sine) / F::D::select(odd, sine, cosine);
    F::select(x.is(0.0), x, tangent.narrow())
}
