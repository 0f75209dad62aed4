//! What the formulas that serve both formats need to know of each.
//!
//! Polynomials are minimax fits made with Sollya's `fpminimax`, for coefficients of 24 bits in `f32` and of 53 bits
//! in `f64`; the comments of [`Format`] name the function and the interval of each. Coefficients stand with the
//! highest power first.

/// Numbers of a floating-point format.
pub(in crate::math) struct Format {
    /// Stored bits of the fraction.
    pub(in crate::math) fraction: u32,
    /// 1.5 · 2^`fraction`: adding it to a small number leaves the number's integer part in the low bits.
    pub(in crate::math) magic: f64,
    /// The exponent bias.
    pub(in crate::math) bias: f64,
    /// The smallest normal number.
    pub(super) smallest_normal: f64,
    /// 2^`fraction`.
    pub(super) normalize: f64,
    /// The bits of 2/3.
    pub(in crate::math) two_thirds: i64,
    /// `exp` of anything outside is 0 or infinite.
    pub(super) exp_bounds: [f64; 2],
    /// `exp2` of anything outside is 0 or infinite.
    pub(super) exp2_bounds: [f64; 2],
    /// Below its negative, `exp` vanishes beside 1.
    pub(super) negligible: f64,
    /// A bound for |x| beyond which `sinh` and `cosh` are infinite, with a quarter of `exp` still finite.
    pub(super) sinh_bound: f64,
    /// An exponent that makes the smallest `exp` normal, and the inverse of that power of two.
    pub(super) lift: [f64; 2],
    /// Steps of Newton's iteration that make 7 bits all.
    pub(super) newton: u32,
    /// Beyond the first, `log(1 + x) = log(x)`; a power of two that makes such `x` smaller, and its negated exponent.
    pub(super) log1p_large: [f64; 3],
    /// ln 2 in two parts, the first short enough for exact products with exponents.
    pub(in crate::math) ln2: [f64; 2],
    /// log2(e) in two parts.
    pub(super) log2_e: [f64; 2],
    /// log10(e) in two parts.
    pub(super) log10_e: [f64; 2],
    /// log10(2) in two parts.
    pub(super) log10_2: [f64; 2],
    /// π/2 in two parts.
    pub(super) half_pi: [f64; 2],
    /// `exp(r)` on [-ln 2, ln 2].
    pub(in crate::math) exp: &'static [f64],
    /// `(exp(r) - 1 - r) / r^2` on [-ln(2) / 2, ln(2) / 2].
    pub(super) exp_half: &'static [f64],
    /// `2^r` on [-1/2, 1/2].
    pub(in crate::math) exp2: &'static [f64],
    /// `(log(1 + f) - f) / f^2` on [-1/3, 1/3].
    pub(super) log: &'static [f64],
    /// `(asin(w) / w - 1) / w^2` in `w^2`, |w| <= 1/2.
    pub(super) asin: &'static [f64],
    /// `(atan(w) / w - 1) / w^2` in `w^2`, |w| <= 1.
    pub(super) atan: &'static [f64],
    /// `(sinh(x) / x - 1) / x^2` in `x^2`, for |x| < 1.
    pub(super) sinh: &'static [f64],
}

/// `f32`.
pub(in crate::math) const SINGLE: Format = Format {
    fraction: 23,
    magic: 12_582_912.0,
    bias: 127.0,
    smallest_normal: f32::MIN_POSITIVE as f64,
    normalize: 8_388_608.0,
    two_thirds: 0x3f2a_aaab,
    exp_bounds: [-104.0, 89.0],
    exp2_bounds: [-151.0, 129.0],
    negligible: 20.0,
    sinh_bound: 89.5,
    lift: [64.0, 5.421010862427522e-20],
    newton: 2,
    log1p_large: [1.2379400392853803e27, 5.421010862427522e-20, 64.0],
    ln2: [0.693145751953125, 1.428606765330187e-6],
    log2_e: [1.4426950216293335, 1.925963033500011e-8],
    log10_e: [0.4342944920063019, -1.0103049952192578e-8],
    log10_2: [0.3010300099849701, -1.432098883924482e-8],
    half_pi: [1.5707963705062866, -4.371138828673793e-8],
    exp: &[0.00019629415, 0.0014105367, 0.00833597, 0.041661203, 0.16666616, 0.50000036, 1.0, 1.0],
    exp_half: &[0.00019743646, 0.0013933742, 0.008333567, 0.041666478, 0.16666666, 0.5],
    exp2: &[0.00015241285, 0.0013391302, 0.009618834, 0.05550359, 0.24022645, 0.6931472, 1.0],
    log: &[
        -0.1289168894290924,
        0.1398443728685379,
        -0.12184260040521622,
        0.140058696269989,
        -0.16680487990379333,
        0.20010405778884888,
        -0.24999797344207764,
        0.3333321511745453,
        -0.5,
    ],
    asin: &[0.038336106, 0.026430123, 0.045020603, 0.074987605, 0.16666673],
    atan: &[
        -0.002476516,
        0.013860541,
        -0.03643303,
        0.06296261,
        -0.086774774,
        0.11038583,
        -0.1427907,
        0.19999751,
        -0.3333333,
    ],
    sinh: &[2.759186e-6, 0.00019846353, 0.008333298, 0.16666667],
};

/// `f64`.
pub(in crate::math) const DOUBLE: Format = Format {
    fraction: 52,
    magic: 6_755_399_441_055_744.0,
    bias: 1023.0,
    smallest_normal: f64::MIN_POSITIVE,
    normalize: 4_503_599_627_370_496.0,
    two_thirds: 0x3fe5_5555_5555_5555,
    exp_bounds: [-746.0, 710.0],
    exp2_bounds: [-1076.0, 1025.0],
    negligible: 40.0,
    sinh_bound: 710.5,
    lift: [512.0, 7.458340731200207e-155],
    newton: 4,
    log1p_large: [4.149515568880993e180, 8.636168555094445e-78, 256.0],
    ln2: [0.6931471803691238, 1.9082149292705877e-10],
    log2_e: [1.4426950408889634, 2.0355273740931033e-17],
    log10_e: [0.4342944819032518, 1.098319650216765e-17],
    log10_2: [0.3010299956639812, -2.8037281277851704e-18],
    half_pi: [1.5707963267948966, 6.123233995736766e-17],
    exp: &[
        1.5935428539122128e-10,
        2.1062442855716438e-9,
        2.5055038004970674e-8,
        2.7556156692373425e-7,
        2.755730061242237e-6,
        2.4801590835813958e-5,
        0.00019841269892912822,
        0.0013888888883566164,
        0.008333333333269717,
        0.041666666666702164,
        0.16666666666666938,
        0.4999999999999993,
        1.0,
        1.0,
    ],
    exp_half: &[
        2.08733885239483e-9,
        2.51127546773642e-8,
        2.75574105133876e-7,
        2.7557232645749095e-6,
        2.4801587163337328e-5,
        0.00019841269898820108,
        0.001388888888896408,
        0.00833333333331592,
        0.04166666666666653,
        0.16666666666666685,
        0.5,
    ],
    exp2: &[
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
    ],
    log: &[
        0.08517987591112064,
        -0.086986802721701,
        0.04164876235962555,
        -0.04532897806049521,
        0.06054364117547678,
        -0.06400384097745145,
        0.06650297924738569,
        -0.07129569898823733,
        0.0769329650348879,
        -0.08334066971683136,
        0.09090871051064688,
        -0.0999997477290688,
        0.11111112016037879,
        -0.1250000051897048,
        0.14285714273300432,
        -0.16666666660825363,
        0.20000000000085155,
        -0.2500000000002994,
        0.33333333333333126,
        -0.49999999999999956,
    ],
    asin: &[
        0.028418082375555088,
        -0.011089493995594241,
        0.016236567048021528,
        0.007735876007473647,
        0.011889382309974416,
        0.013927806815724683,
        0.01735541741778863,
        0.022372039269171622,
        0.030381947625662386,
        0.04464285709933998,
        0.07500000000023252,
        0.16666666666666646,
    ],
    atan: &[
        1.9104461465480627e-5,
        -0.0002098936715264227,
        0.0010931870623236545,
        -0.003612698364507519,
        0.008582699758113616,
        -0.015818029888616175,
        0.023976369608453386,
        -0.031487572865530264,
        0.03761646479424038,
        -0.042657687625176924,
        0.047395978344975845,
        -0.05258452957886246,
        0.058815999148365425,
        -0.06666577859109633,
        0.07692300279902431,
        -0.09090908677642409,
        0.11111111097018601,
        -0.14285714285460843,
        0.19999999999998216,
        -0.3333333333333333,
    ],
    sinh: &[
        1.2879774445861785e-14,
        7.26992660784844e-13,
        1.6064704537159598e-10,
        2.5052065114167216e-8,
        2.7557319401148674e-6,
        0.00019841269840897475,
        0.008333333333333678,
        0.16666666666666666,
    ],
};
