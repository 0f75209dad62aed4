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
