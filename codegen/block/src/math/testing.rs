//! Arguments at which a mathematical function is worth testing.

use crate::scalar_fn::ScalarFn;

/// Values where some function of the table changes its course: zeros, infinities, NaN, extremes of the formats,
/// bounds of exponentials, poles, multiples of π/2. Every function must be tested at these and at their neighbours;
/// a function of two operands at all pairs.
pub const EDGES: &[f64] = &[
    0.0,
    1e-45,
    1.1754942106924411e-38,
    1.1754943508222875e-38,
    1e-20,
    1e-8,
    2.44140625e-4,
    0.1,
    0.2928932,
    std::f64::consts::LN_2 / 2.0,
    0.4142135,
    0.46875,
    0.5,
    0.55,
    std::f64::consts::FRAC_1_SQRT_2,
    std::f64::consts::FRAC_PI_4,
    0.84375,
    1.0,
    1.25,
    std::f64::consts::SQRT_2,
    1.5,
    std::f64::consts::FRAC_PI_2,
    2.0,
    std::f64::consts::E,
    3.0,
    std::f64::consts::PI,
    3.8325069,
    4.0,
    4.71238898038469,
    6.0,
    2.0 * std::f64::consts::PI,
    9.0109,
    10.0,
    10.0546,
    22.0,
    28.0,
    87.33655,
    88.722839,
    89.41599,
    103.97208,
    126.0,
    127.0,
    128.0,
    149.0,
    150.0,
    709.782712893384,
    745.1332191019412,
    1022.0,
    1023.0,
    1024.0,
    1075.0,
    16_777_215.0,
    16_777_216.0,
    33_554_431.0,
    1e9,
    2_147_483_648.0,
    9_007_199_254_740_991.0,
    9_007_199_254_740_992.0,
    7.555786372591432e22,
    1.6e-314,
    3.4028234663852886e38,
    1.7976931348623157e308,
    2.2250738585072014e-308,
    5e-324,
    f64::INFINITY,
    f64::NAN,
];

/// The arguments of [`EDGES`] with both signs, as `f32`, that `function` is tested at.
pub fn edges_f32(function: ScalarFn) -> Vec<[f32; 2]> {
    pairs(function, |v| v as f32)
}

/// The arguments of [`EDGES`] with both signs that `function` is tested at.
pub fn edges_f64(function: ScalarFn) -> Vec<[f64; 2]> {
    pairs(function, |v| v)
}

fn pairs<T: Copy>(function: ScalarFn, round: impl Fn(f64) -> T) -> Vec<[T; 2]> {
    let values: Vec<T> = EDGES.iter().flat_map(|&v| [round(v), round(-v)]).collect();
    if function.arity() == 1 {
        return values.iter().map(|&v| [v, v]).collect();
    }
    values.iter().flat_map(|&a| values.iter().map(move |&b| [a, b])).collect()
}
