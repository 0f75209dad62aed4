//! Inverse trigonometric functions.

use super::Format;
use crate::math::emit::*;

/// `asin(w) = w + rest` with `w = |x|` up to 1/2, beyond that with `w = sqrt((1 - |x|) / 2)`, when
/// `asin(|x|) = π/2 - 2 asin(w)`: which case, `w`, `rest`.
fn asin_parts<F: Float>(x: F, k: &Format) -> (F::B, F, F) {
    let a = x.abs();
    let far = a.above(0.5);
    let square = F::select(far, a.mul_add(-0.5, 0.5), a * a);
    let w = F::select(far, square.sqrt(), a);
    (far, w, square.poly(k.asin) * square * w)
}

pub(in crate::math) fn asin<F: Float>(x: F, k: &Format) -> F {
    let (far, w, rest) = asin_parts(x, k);
    let beyond = w.mul_add(-2.0, k.half_pi[0]) + rest.mul_add(-2.0, k.half_pi[1]);
    F::select(far, beyond, w + rest).copysign(x)
}

/// `2 asin(w)` or `π - 2 asin(w)` for large |x|, `π/2 - asin(x)` for small.
pub(in crate::math) fn acos<F: Float>(x: F, k: &Format) -> F {
    let (far, w, rest) = asin_parts(x, k);
    let negative = x.below(0.0);
    let zero = x.lit(0.0);
    let quarter = |i: usize| F::select(far, zero.replace(negative, 2.0 * k.half_pi[i]), x.lit(k.half_pi[i]));
    // The multiple of `asin(w)` that is added: 1 or -1 for small |x|, 2 or -2 for large.
    let one = x.lit(-1.0).replace(negative, 1.0);
    let two = x.lit(2.0).replace(negative, -2.0);
    let factor = F::select(far, two, one);
    w.fma(factor, quarter(0)) + rest.fma(factor, quarter(1))
}

/// `base + w + (atan(w) - w)` for |w| <= 1.
fn atan_sum<F: Float>(w: F, base: [F; 2], k: &Format) -> F {
    let s = w * w;
    let rest = (s.poly(k.atan) * s).fma(w, base[1]);
    (base[0] + w) + rest
}

/// `atan(|x|)`, or `π/2 - atan(1 / |x|)` where |x| > 1.
pub(in crate::math) fn atan<F: Float>(x: F, k: &Format) -> F {
    let a = x.abs();
    let far = a.above(1.0);
    let w = F::select(far, a.under(-1.0), a);
    let base = k.half_pi.map(|part| x.lit(0.0).replace(far, part));
    atan_sum(w, base, k).copysign(x)
}

/// The angle of the first octant, `atan(min / max)`, reflected into the right one, with the sign of `y`.
pub(in crate::math) fn atan2<F: Float>(y: F, x: F, k: &Format) -> F {
    let (a, b) = (y.abs(), x.abs());
    let steep = a.gt(b);
    let (small, large) = (F::select(steep, b, a), F::select(steep, a, b));
    // Equal operands, infinities among them, give 1, and two zeros 0.
    let diagonal = x.lit(1.0).replace(large.is(0.0), 0.0);
    let w = F::select(small.eq(large), diagonal, small / large);
    let left = x.bits().below(0);
    let base = k.half_pi.map(|part| {
        let level = x.lit(0.0).replace(left, 2.0 * part);
        level.replace(steep, part)
    });
    let w = F::select(steep ^ left, -w, w);
    atan_sum(w, base, k).copysign(y)
}
