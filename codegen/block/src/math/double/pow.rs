//! Powers.

use super::{fast_two_sum, two_product};
use crate::math::common::{DOUBLE, exp2_factors, signed_power};
use crate::math::emit::*;

/// `(log((1 + s) / (1 - s)) / s - 2 - 2/3 z) / z^2` in `z = s^2`, |s| <= 0.1717.
const SERIES: [f64; 8] = [
    0.11589598750964668,
    0.11721043548574178,
    0.13334148217348554,
    0.15384609782481665,
    0.18181818156252624,
    0.22222222222767224,
    0.28571428571426327,
    0.4,
];
/// `2^r` on [-1/2, 1/2].
const EXP2: [f64; 13] = [
    2.7187549207389003e-11,
    4.465539461628596e-10,
    7.053799333844959e-9,
    1.0177985790815143e-7,
    1.321548990799145e-6,
    1.5252734035994523e-5,
    0.00015403530389348797,
    0.0013333558146165767,
    0.00961812910763081,
    0.05550410866482293,
    0.24022650695910067,
    0.6931471805599453,
    1.0,
];
/// 2/3 and log2(e), each in two parts.
const TWO_THIRDS: [f64; 2] = [0.6666666666666666, 3.700743415417188e-17];
const LOG2_E: [f64; 2] = [1.4426950408889634, 2.0355273740931033e-17];
/// The bit pattern of sqrt(1/2).
const ROOT_HALF: i64 = 0x3fe6_a09e_667f_3bcd;
/// 2^54.
const NORMALIZE: f64 = 18_014_398_509_481_984.0;

/// `log((1 + s) / (1 - s))` for `s = f / (2 + f)`, which is `log(1 + f)`, in two parts.
fn log_near_one<F: Float>(f: F) -> (F, F) {
    let g = f.plus(2.0);
    let g_low = f - g.plus(-2.0);
    let inverse = g.under(1.0);
    let s = f * inverse;
    let s_low = (-s).fma(g, f);
    let s_low = (-s).fma(g_low, s_low) * inverse;
    let (z, z_low) = two_product(s, s);
    let z_low = (s + s).fma(s_low, z_low);
    let (third, third_low) = two_product(z, z.lit(TWO_THIRDS[0]));
    let third_low = z_low.lit_fma(TWO_THIRDS[0], z.lit_fma(TWO_THIRDS[1], third_low));
    let (sum, sum_low) = fast_two_sum(third, z.poly(&SERIES) * (z * z));
    let (factor, factor_low) = fast_two_sum(sum.lit(2.0), sum);
    let factor_low = factor_low + (sum_low + third_low);
    let (log, log_low) = two_product(s, factor);
    (log, s.fma(factor_low, s_low.fma(factor, log_low)))
}

/// The logarithm to base 2 of positive finite `a`, in two parts, to 2^-64.
fn log2<F: Float>(a: F) -> (F, F) {
    let small = a.below(f64::MIN_POSITIVE);
    let bits = F::select(small, a.times(NORMALIZE), a).bits();
    let e = bits.plus(-ROOT_HALF) >> 52;
    let (log, log_low) = log_near_one(F::from_bits(bits - (e << 52)).plus(-1.0));
    let (fraction, fraction_low) = two_product(log, log.lit(LOG2_E[0]));
    let fraction_low = log_low.lit_fma(LOG2_E[0], log.lit_fma(LOG2_E[1], fraction_low));
    let e = F::from_exponent(e) + F::select(small, a.lit(-54.0), a.lit(0.0));
    let (sum, sum_low) = fast_two_sum(e, fraction);
    (sum, sum_low + fraction_low)
}

/// `2^(y log2|x|)` with the logarithm and the product in two parts.
fn magnitude<F: Float>(a: F, y: F) -> F {
    let (log, log_low) = log2(a);
    let y = y.at_least(-1e20).at_most(1e20);
    let (t, t_low) = two_product(y, log);
    // Where it is larger, the power is 0 or infinite.
    let t_low = y.fma(log_low, t_low).at_least(-1e-9).at_most(1e-9);
    let (r, first, second) = exp2_factors(t.at_least(-1100.0).at_most(1100.0), &DOUBLE);
    (r + t_low).poly(&EXP2) * first * second
}

/// The power of the magnitude, then the sign and C's special cases.
pub(crate) fn pow<F: Float>(x: F, y: F) -> F {
    let a = x.abs();
    let zero = a.is(0.0);
    let extreme = (zero | a.is(f64::INFINITY)) & y.eq(y);
    let vanishes = zero ^ y.below(0.0);
    let limit = y.lit(f64::INFINITY).replace(vanishes, 0.0);
    let power = F::select(extreme, limit, magnitude(a, y));
    signed_power(x, y, power.replace(a.ne(a), f64::NAN))
}
