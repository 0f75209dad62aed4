//! Sine, cosine and tangent, right for every argument.

use super::{fast_two_sum, two_product, two_sum};
use crate::math::emit::*;

/// `(sin(r) / r - 1) / r^2` in `r^2`, |r| <= π/4.
const SIN: [f64; 6] = [
    1.5918621892074932e-10,
    -2.505114247075029e-8,
    2.755731618214332e-6,
    -0.00019841269837011374,
    0.008333333333331269,
    -0.16666666666666666,
];
/// `(cos(r) - 1 + r^2 / 2) / r^4` in `r^2`, |r| <= π/4.
const COS: [f64; 6] = [
    -1.1381174291382957e-11,
    2.087612280490804e-9,
    -2.755731713487205e-7,
    2.4801587298417704e-5,
    -0.0013888888888887038,
    0.041666666666666664,
];
const MAGIC: f64 = 6_755_399_441_055_744.0;
/// π/2 in two parts.
const HALF_PI: [f64; 2] = [1.5707963267948966, 6.123233995736766e-17];

/// 2^(32k) · 2/π modulo 4 as a sum of four numbers, for `k` from 0 to 30.
const TWO_OVER_PI: [[f64; 32]; 4] = [
    [
        0.6366197723675814,
        2.3057263591291792,
        1.9849753272621515,
        1.9578379245607584,
        0.8569730280980947,
        1.2354059373013278,
        1.9934294027905102,
        3.8700526584208474,
        1.7153996364816557,
        2.2589999958929963,
        0.02455418790652278,
        2.0383540459425755,
        0.9926440186547213,
        0.6920418289742053,
        2.908236858710308,
        1.1825449776166452,
        0.9125433058255776,
        2.7045821103325305,
        1.2248815431988307,
        1.5129886839099682,
        0.6113948551337428,
        3.742083086428439,
        3.124886989562603,
        3.8672728575613147,
        3.9343119588102495,
        3.351721592113984,
        3.4266127830267514,
        3.155441863301598,
        3.3096656442197623,
        2.618651043031746,
        1.457637475785212,
        0.0,
    ],
    [
        -3.935735335036497e-17,
        -1.135182530699217e-16,
        -3.1178565966641257e-17,
        7.769584704001829e-17,
        3.577510976413712e-18,
        5.0950457647316266e-17,
        7.468610146763042e-17,
        1.9744725602752141e-16,
        3.989997103266016e-17,
        2.0697627390447952e-16,
        1.5716943815562158e-18,
        1.5421106459015996e-16,
        -1.0467525454342137e-17,
        -2.8341991027430526e-17,
        6.271635464139531e-17,
        2.098179600458306e-18,
        -2.421972770216662e-17,
        -1.356600927142831e-16,
        -8.388410436886892e-17,
        -6.302354304316678e-18,
        3.2051665461021856e-18,
        -1.1102949761532465e-16,
        -1.1015850168037546e-16,
        -2.006125451527286e-16,
        1.8211488159424886e-16,
        -1.6525656610109604e-17,
        1.3483732715678284e-16,
        -8.314819587895112e-18,
        1.4124214154350981e-16,
        -7.242896184037602e-17,
        2.0558554398611556e-17,
        0.0,
    ],
    [
        -2.1442872565786008e-33,
        -5.665244373482231e-33,
        6.863064799465887e-34,
        3.34906530821634e-33,
        -4.409950693639701e-35,
        8.532979878662327e-34,
        2.6623537174486554e-33,
        -1.0557320363533948e-32,
        -2.778971522716871e-33,
        5.762075507419365e-33,
        -6.677128753021848e-35,
        4.257792839986927e-34,
        6.293270923234803e-34,
        -6.859988001438987e-34,
        6.0653663707502085e-33,
        -3.1428272666860984e-35,
        6.213798655161652e-34,
        8.4225269935799e-34,
        -1.3178845532633915e-33,
        1.1435170039797679e-34,
        -7.81940772565019e-35,
        9.065069635060728e-33,
        2.0080247848150783e-33,
        1.0495422339270514e-32,
        -1.0200119159100574e-32,
        1.2032554679689714e-33,
        -6.179393194508596e-33,
        -5.207463049859117e-35,
        -5.018340436092126e-33,
        1.391760450615745e-33,
        4.9571308478526475e-34,
        0.0,
    ],
    [
        1.6107127853188224e-49,
        -4.495785048513143e-51,
        -3.385108475271734e-51,
        -1.9473147087135764e-49,
        8.125176617421835e-52,
        1.6800657131910823e-50,
        2.624290316405018e-50,
        6.791945991025762e-49,
        1.314003515760171e-49,
        -6.278688914593106e-50,
        -3.390363894770571e-51,
        2.568817226516546e-50,
        -3.1076181173778906e-50,
        -1.7186745576996058e-50,
        -3.3322666471961407e-49,
        1.3820409653673834e-51,
        -5.416972084971054e-51,
        8.545114584385982e-50,
        8.024134531623681e-50,
        -2.1813463004889347e-51,
        -5.236674178479329e-51,
        -3.923274543984833e-49,
        1.0635763883609244e-49,
        -4.7234593389917425e-49,
        4.232982209733066e-49,
        -2.8985615296438144e-50,
        -5.372733898199806e-50,
        2.7482121952990456e-51,
        -3.145241241588026e-49,
        -5.350359402069822e-50,
        -1.196861860890493e-51,
        0.0,
    ],
];

/// `x = (n + q) π/2` with `|q| <= 1/2`: `q π/2` in two parts and an integer that is `n` modulo 4.
struct Reduced<F: Float> {
    r: F,
    low: F,
    n: F::I,
}

/// The element of each row at an index whose bits are `bits`, the lowest first.
fn choose<F: Float>(like: F, row: &[f64; 32], bits: [F::B; 5]) -> F {
    let mut left: Vec<F> = row.iter().map(|&c| like.lit(c)).collect();
    for bit in bits {
        left = left.chunks(2).map(|pair| F::select(bit, pair[1], pair[0])).collect();
    }
    left[0]
}

/// `a` less the multiple of 4 that is nearest.
fn modulo_4<F: Float>(a: F) -> F {
    a.times(0.25).round_even().lit_fma(-4.0, a)
}

/// After Payne and Hanek: `x = 2^(32k) y` with `y` below 2^84 and an integer where `k` is not 0, so that `y` times
/// 2^(32k) · 2/π may be taken modulo 4 part by part. The four parts reach 2^-212, so that 2^-127 of the remainder is
/// known; the nearest that a number comes to a multiple of π/2 is about 2^-61.
fn reduce<F: Float>(x: F) -> Reduced<F> {
    let exponent = x.abs().bits() >> 52;
    let above = exponent.plus(-1075);
    let above = above.replace(above.below(0), 0);
    let k = [32, 64, 128, 256, 512].map(|bit| above.has(bit));
    let scale = F::from_bits((above.lit(1023) - above.masked(0x3e0)) << 52);
    let y = x * scale;
    let [c1, c2, c3, c4] = [0, 1, 2, 3].map(|i: usize| choose(x, &TWO_OVER_PI[i], k));
    let (first, first_low) = two_product(y, c1);
    let (second, second_low) = two_product(y, c2);
    let (third, third_low) = two_product(y, c3);
    let (a, a_low) = two_sum(modulo_4(first), modulo_4(first_low));
    let (b, b_low) = two_sum(a, modulo_4(second));
    let n = b.round_even();
    let (small, small_low) = two_sum(second_low, third);
    let (f, f_low) = two_sum(b - n, small);
    let (f, rest) = two_sum(f, a_low + b_low);
    let low = y.fma(c4, third_low) + small_low + f_low + rest;
    let (q, q_low) = fast_two_sum(f, low);
    let (r, r_low) = two_product(q, q.lit(HALF_PI[0]));
    let low = q_low.lit_fma(HALF_PI[0], q.lit_fma(HALF_PI[1], r_low));
    let first_octant = x.abs().below(std::f64::consts::FRAC_PI_4);
    Reduced { r: F::select(first_octant, x, r), low: low.replace(first_octant, 0.0), n: n.plus(MAGIC).bits() }
}

/// `sin` and `cos` of `r + low`.
fn sin_cos<F: Float>(r: F, low: F) -> (F, F) {
    let s = r * r;
    let sine = r + (s * r).fma(s.poly(&SIN), low);
    let half = s.times(0.5);
    let one = half.lit(1.0) - half;
    let rest = (one.lit(1.0) - one) - half;
    let tail = (s * s).fma(s.poly(&COS), (-r).fma(low, rest));
    (sine, one + tail)
}

/// `sin(r + n π/2)`.
fn quadrant<F: Float>(reduced: Reduced<F>, n: F::I) -> F {
    let (sine, cosine) = sin_cos(reduced.r, reduced.low);
    let value = F::select(n.has(1), cosine, sine);
    F::select(n.has(2), -value, value)
}

pub(crate) fn sin<F: Float>(x: F) -> F {
    let reduced = reduce(x);
    let n = reduced.n;
    // The polynomial loses the sign of -0.
    F::select(x.is(0.0), x, quadrant(reduced, n))
}

pub(crate) fn cos<F: Float>(x: F) -> F {
    let reduced = reduce(x);
    let n = reduced.n.plus(1);
    quadrant(reduced, n)
}

/// `sin(r) / cos(r)`, or `-cos(r) / sin(r)` in odd quadrants.
pub(crate) fn tan<F: Float>(x: F) -> F {
    let Reduced { r, low, n } = reduce(x);
    let (sine, cosine) = sin_cos(r, low);
    let odd = n.has(1);
    let tangent = F::select(odd, -cosine, sine) / F::select(odd, sine, cosine);
    F::select(x.is(0.0), x, tangent)
}
