//! Logarithms.

use super::Format;
use crate::math::emit::*;

/// `(e, f)` with `x = 2^e (1 + f)` and `1 + f` in [2/3, 4/3), for positive finite `x`.
fn split<F: Float>(x: F, k: &Format) -> (F, F) {
    let small = x.below(k.smallest_normal);
    let bits = F::select(small, x.times(k.normalize), x).bits();
    let e = bits.plus(-k.two_thirds) >> k.fraction;
    let f = F::from_bits(bits - (e << k.fraction)).plus(-1.0);
    let offset = F::select(small, x.lit(-f64::from(k.fraction)), x.lit(0.0));
    (F::from_exponent(e) + offset, f)
}

/// `log(1 + f)`.
fn log_near_one<F: Float>(f: F, k: &Format) -> F {
    f.poly(k.log).fma(f * f, f)
}

/// A logarithm of `x` from the value `y` that holds for positive finite `x`.
fn special<F: Float>(x: F, y: F) -> F {
    let y = F::select(x.below(f64::INFINITY), y, x);
    y.replace(x.below(0.0), f64::NAN).replace(x.is(0.0), f64::NEG_INFINITY)
}

/// `log(2^e (1 + f))`.
pub(in crate::math) fn log_of<F: Float>((e, f): (F, F), k: &Format) -> F {
    e.lit_fma(std::f64::consts::LN_2, log_near_one(f, k))
}

/// `log2(2^e (1 + f))`.
pub(in crate::math) fn log2_of<F: Float>((e, f): (F, F), k: &Format) -> F {
    let y = log_near_one(f, k);
    y.lit_fma(k.log2_e[0], y.lit_fma(k.log2_e[1], e))
}

pub(in crate::math) fn log<F: Float>(x: F, k: &Format) -> F {
    special(x, log_of(split(x, k), k))
}

pub(in crate::math) fn log2<F: Float>(x: F, k: &Format) -> F {
    special(x, log2_of(split(x, k), k))
}

pub(in crate::math) fn log10<F: Float>(x: F, k: &Format) -> F {
    let (e, f) = split(x, k);
    let y = log_near_one(f, k);
    let low = e.lit_fma(k.log10_2[1], y.times(k.log10_e[1]));
    special(x, e.lit_fma(k.log10_2[0], y.lit_fma(k.log10_e[0], low)))
}

/// As [`log`] of `u = 1 + x`, but with `f = 2^-e x + (2^-e - 1)`, which does not lose the low bits of `x`.
pub(in crate::math) fn log1p<F: Float>(x: F, k: &Format) -> F {
    let [bound, factor, exponent] = k.log1p_large;
    let large = x.above(bound);
    let scaled = F::select(large, x.times(factor), x);
    let e = scaled.plus(1.0).bits().plus(-k.two_thirds) >> k.fraction;
    let power = F::from_bits(e.lit((k.bias as i64) << k.fraction) - (e << k.fraction));
    let f = scaled.fma(power, power.plus(-1.0));
    let e = F::from_exponent(e) + F::select(large, x.lit(exponent), x.lit(0.0));
    let y = e.lit_fma(std::f64::consts::LN_2, log_near_one(f, k));
    let y = F::select(x.below(f64::INFINITY), y, x);
    y.replace(x.is(-1.0), f64::INFINITY).replace(x.below(-1.0), f64::NAN).copysign(x)
}
