//! Powers and roots.

use crate::math::emit::*;

pub(in crate::math) fn rsqrt<F: Float>(x: F) -> F {
    x.sqrt().under(1.0)
}

/// `x^y` from `|x|^y`: negative for a negative `x` and odd `y`, NaN for a negative finite `x` where `y` is not an
/// integer, 1 where `x` is 1 or `y` is 0.
pub(in crate::math) fn signed_power<F: Float>(x: F, y: F, magnitude: F) -> F {
    let integer = y.trunc().eq(y);
    let half = y.times(0.5);
    let odd = integer & half.trunc().ne(half);
    let negative = x.bits().below(0);
    let result = F::select(odd & negative, -magnitude, magnitude);
    let complex = x.below(0.0) & x.above(f64::NEG_INFINITY) & !integer;
    result.replace(complex, f64::NAN).replace(x.is(1.0) | y.is(0.0), 1.0)
}
