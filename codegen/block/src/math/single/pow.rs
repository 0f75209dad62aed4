//! Powers, by way of `f64`.

use crate::math::common::signed_power;
use crate::math::emit::*;

/// `log2(1 + f) / f` on [sqrt(1/2) - 1, sqrt(2) - 1].
const LOG2: [f64; 14] = [
    -0.06974079577804358,
    0.13251500364770507,
    -0.1346303888902138,
    0.13027513672735733,
    -0.14249834136271241,
    0.16021668313290224,
    -0.18043677629260808,
    0.2061071237481304,
    -0.24044643262883061,
    0.28853879568396834,
    -0.3606737931516312,
    0.48089834880341276,
    -0.7213475203274894,
    1.4426950408865735,
];
/// `2^r` on [-1/2, 1/2].
const EXP2: [f64; 7] = [
    0.00015353362374347215,
    0.00133988744010399,
    0.009618437356009456,
    0.05550332471169783,
    0.2402264791364135,
    0.6931472028550386,
    1.0,
];
/// 1.5 · 2^52.
const MAGIC: f64 = 6_755_399_441_055_744.0;
/// The bit pattern of sqrt(1/2).
const ROOT_HALF: i64 = 0x3fe6_a09e_667f_3bcd;

/// The logarithm to base 2 of positive finite `a`, to 2^-38.
pub(super) fn log2_wide<D: Double>(a: D) -> D {
    let e = a.bits().plus(-ROOT_HALF) >> 52;
    let f = D::from_bits(a.bits() - (e << 52)).plus(-1.0);
    let n = D::from_bits(e.plus(MAGIC.to_bits() as i64)).plus(-MAGIC);
    f.poly(&LOG2).fma(f, n)
}

/// `2^t`, to 2^-29.
fn exp2<D: Double>(t: D) -> D {
    let t = t.at_least(-200.0).at_most(200.0);
    let shifted = t.plus(MAGIC + 1023.0);
    let r = t - shifted.plus(-MAGIC - 1023.0);
    r.poly(&EXP2) * D::from_bits(shifted.bits() << 52)
}

/// `2^(y log2|x|)` in `f64`, then the sign and C's special cases.
pub(crate) fn pow<F: Single>(x: F, y: F) -> F {
    let a = x.abs();
    let finite = a.below(f64::INFINITY);
    let wide = a.widen();
    let l = F::D::select(finite, log2_wide(wide), wide).replace(a.is(0.0), f64::NEG_INFINITY);
    let bounded = y.at_least(-1e38).at_most(1e38);
    let magnitude = exp2(l * bounded.widen()).narrow();
    signed_power(x, y, magnitude)
}
