//! Logarithms.

use crate::math::emit::*;

/// `(log(1 + f) - f) / f^2` on [-1/3, 1/3].
const LOG: [f64; 9] = [
    -0.1289168894290924,
    0.1398443728685379,
    -0.12184260040521622,
    0.140058696269989,
    -0.16680487990379333,
    0.20010405778884888,
    -0.24999797344207764,
    0.3333321511745453,
    -0.5,
];
const SMALLEST_NORMAL: f64 = f32::MIN_POSITIVE as f64;

/// `(e, f)` with `x = 2^e (1 + f)` and `1 + f` in [2/3, 4/3), for positive finite `x`.
pub(super) fn split<F: Single>(x: F) -> (F, F) {
    let small = x.below(SMALLEST_NORMAL);
    let bits = F::select(small, x.times(8_388_608.0), x).bits();
    let e = bits.plus(-0x3f2a_aaab) >> 23;
    let f = F::from_bits(bits - (e << 23)).plus(-1.0);
    let offset = F::select(small, x.lit(-23.0), x.lit(0.0));
    (F::from_int(e) + offset, f)
}

/// `log(x)` from the value `y` that holds for positive finite `x`: the other cases are those of any base.
pub(super) fn special<F: Float>(x: F, y: F) -> F {
    let y = F::select(x.below(f64::INFINITY), y, x);
    y.replace(x.below(0.0), f64::NAN).replace(x.is(0.0), f64::NEG_INFINITY)
}

pub(crate) fn log<F: Single>(x: F) -> F {
    let (e, f) = split(x);
    let y = f.poly(&LOG).fma(f * f, f);
    special(x, e.lit_fma(std::f64::consts::LN_2, y))
}

/// log2(e) and log10(e), log10(2), each in two parts.
const LOG2_E: [f64; 2] = [1.4426950216293335, 1.925963033500011e-8];
const LOG10_E: [f64; 2] = [0.4342944920063019, -1.0103049952192578e-8];
const LOG10_2: [f64; 2] = [0.3010300099849701, -1.432098883924482e-8];

pub(crate) fn log2<F: Single>(x: F) -> F {
    let (e, f) = split(x);
    let y = f.poly(&LOG).fma(f * f, f);
    special(x, y.lit_fma(LOG2_E[0], y.lit_fma(LOG2_E[1], e)))
}

pub(crate) fn log10<F: Single>(x: F) -> F {
    let (e, f) = split(x);
    let y = f.poly(&LOG).fma(f * f, f);
    let low = e.lit_fma(LOG10_2[1], y.times(LOG10_E[1]));
    special(x, e.lit_fma(LOG10_2[0], y.lit_fma(LOG10_E[0], low)))
}

/// As [`log`] of `u = 1 + x`, but with `f = 2^-e x + (2^-e - 1)`, which does not lose the low bits of `x`.
///
/// Above 2^90, where `log(1 + x) = log(x)`, 2^-64 `x` is taken.
pub(crate) fn log1p<F: Single>(x: F) -> F {
    let large = x.above(1.2379400392853803e27);
    let scaled = F::select(large, x.times(5.421010862427522e-20), x);
    let e = scaled.plus(1.0).bits().plus(-0x3f2a_aaab) >> 23;
    let power = F::from_bits(e.lit(0x3f80_0000) - (e << 23));
    let f = scaled.fma(power, power.plus(-1.0));
    let y = f.poly(&LOG).fma(f * f, f);
    let e = F::from_int(e) + F::select(large, x.lit(64.0), x.lit(0.0));
    let y = F::select(x.below(f64::INFINITY), e.lit_fma(std::f64::consts::LN_2, y), x);
    y.replace(x.is(-1.0), f64::INFINITY).replace(x.below(-1.0), f64::NAN).copysign(x)
}
