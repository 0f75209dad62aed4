//! The values.

use tch::{Device, Kind, Tensor};

/// The types that kernels hold, by the name in programs.
pub(super) const KINDS: &[(&str, Kind)] = &[
    ("f32", Kind::Float),
    ("f64", Kind::Double),
    ("f16", Kind::Half),
    ("bf16", Kind::BFloat16),
    ("i64", Kind::Int64),
    ("i32", Kind::Int),
    ("i16", Kind::Int16),
    ("i8", Kind::Int8),
    ("u8", Kind::Uint8),
    ("bool", Kind::Bool),
];

const FLOATS: &[f64] = &[
    0.0,
    -0.0,
    1.0,
    -1.0,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    0.5,
    -0.5,
    1.5,
    -1.5,
    2.5,
    -2.5,
    3.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    0.1,
    -0.1,
    1.0 / 3.0,
    0.999_999_9,
    -0.999_999_9,
    1.000_000_2,
    std::f64::consts::PI,
    -std::f64::consts::FRAC_PI_2,
    std::f64::consts::LN_2,
    6.0,
    -6.0,
    9.5,
    10.0,
    -12.25,
    20.0,
    20.5,
    -20.5,
    88.0,
    88.8,
    -88.8,
    -87.5,
    104.0,
    -104.0,
    127.5,
    128.0,
    709.9,
    -745.2,
    1e3,
    2048.5,
    65504.0,
    65520.0,
    -65504.0,
    1e5,
    16_777_215.0,
    16_777_217.0,
    -16_777_217.0,
    2_147_483_648.0,
    -2_147_483_648.0,
    1e10,
    -1e10,
    9_223_372_036_854_775_808.0,
    1e20,
    -1e20,
    1e30,
    3.4e38,
    -3.4e38,
    3.402_823_466_385_288_6e38,
    1e300,
    f64::MAX,
    1e-3,
    -1e-3,
    6.2e-5,
    6.1e-5,
    -5.96e-8,
    1e-7,
    1e-20,
    1.175_494_350_822_287_5e-38,
    1e-38,
    -1e-40,
    1e-40,
    1.401_298_464_324_817e-45,
    f64::MIN_POSITIVE,
    5e-324,
];

const INTEGERS: &[i64] = &[
    0,
    1,
    -1,
    2,
    -2,
    3,
    -3,
    5,
    7,
    -7,
    8,
    10,
    -10,
    15,
    16,
    31,
    32,
    33,
    63,
    64,
    65,
    100,
    127,
    -127,
    -128,
    128,
    200,
    255,
    256,
    300,
    32767,
    -32768,
    65535,
    2_147_483_647,
    -2_147_483_648,
    4_294_967_296,
    16_777_217,
    9_007_199_254_740_993,
    i64::MAX,
    i64::MIN,
];

fn range(kind: Kind) -> (i64, i64) {
    match kind {
        Kind::Bool => (0, 1),
        Kind::Uint8 => (0, 255),
        Kind::Int8 => (-128, 127),
        Kind::Int16 => (-32768, 32767),
        Kind::Int => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (i64::MIN, i64::MAX),
    }
}

/// NaN with the sign bit, and NaN with another payload, where the type is as wide as `f32` or `f64`.
fn payloads(kind: Kind) -> Option<Tensor> {
    match kind {
        Kind::Float => Some(Tensor::from_slice(&[f32::from_bits(0xffc0_0000), f32::from_bits(0x7fc0_1234)])),
        Kind::Double => Some(Tensor::from_slice(&[
            f64::from_bits(0xfff8_0000_0000_0000),
            f64::from_bits(0x7ff8_0000_0000_1234),
        ])),
        _ => None,
    }
}

/// Every special value of a type, an odd number of them.
pub(super) fn column(kind: Kind) -> Tensor {
    let float = matches!(kind, Kind::Half | Kind::BFloat16 | Kind::Float | Kind::Double);
    let mut all = if float {
        Tensor::from_slice(FLOATS).to_kind(kind)
    } else {
        let (low, high) = range(kind);
        let fitting: Vec<i64> = INTEGERS.iter().copied().filter(|n| (low..=high).contains(n)).collect();
        Tensor::from_slice(&fitting).to_kind(kind)
    };
    if let Some(more) = payloads(kind) {
        all = Tensor::cat(&[all, more], 0);
    }
    if all.size1().unwrap() % 2 == 0 {
        all = Tensor::cat(&[&all, &all.narrow(0, 0, 1)], 0);
    }
    all
}

/// Every second special value, for functions of several.
fn few(kind: Kind) -> Tensor {
    let all = column(kind);
    if !all.is_floating_point() {
        return all;
    }
    let pick: Vec<i64> = (0..all.size1().unwrap()).filter(|i| *i < 16 || i % 3 == 0).collect();
    all.index_select(0, &Tensor::from_slice(&pick))
}

/// All pairs of special values.
pub(super) fn pairs(kind: Kind) -> (Tensor, Tensor) {
    let all = few(kind);
    let n = all.size1().unwrap();
    let spread = |t: Tensor| t.expand([n, n], false).contiguous().flatten(0, -1);
    (spread(all.unsqueeze(1)), spread(all.unsqueeze(0)))
}

/// Triples of special values.
pub(super) fn triples(kind: Kind) -> Vec<Tensor> {
    let all = few(kind);
    let all = all.narrow(0, 0, all.size1().unwrap().min(21));
    let n = all.size1().unwrap();
    let spread = |t: Tensor| t.expand([n, n, n], false).contiguous().flatten(0, -1);
    vec![spread(all.view([n, 1, 1])), spread(all.view([1, n, 1])), spread(all.view([1, 1, n]))]
}

/// Values without surprises in the type and shape of another tensor.
pub(super) fn ordinary(like: &Tensor) -> Tensor {
    let n = like.numel() as i64;
    let cycle = Tensor::arange(n, (Kind::Int64, Device::Cpu)).remainder(3) + 1;
    cycle.to_kind(like.kind()).view(&*like.size())
}

/// The values that have a defined conversion: from floats to integers those within the range of the target. Outside
/// of it C++ leaves the result undefined, and eager's scalar and vector paths differ.
pub(super) fn convertible(x: &Tensor, to: Kind) -> Tensor {
    let integer = !matches!(to, Kind::Half | Kind::BFloat16 | Kind::Float | Kind::Double | Kind::Bool);
    if !x.is_floating_point() || !integer {
        return x.shallow_clone();
    }
    let (low, high) = range(to);
    let wide = x.to_kind(Kind::Double);
    // The largest i64 is no double: what is below the next one is in range.
    let inside = wide.ge(low as f64).logical_and(&if to == Kind::Int64 {
        wide.lt(high as f64)
    } else {
        wide.trunc().le(high as f64)
    });
    x.masked_select(&inside)
}

/// Rows of this length: all equal, zeros of both signs, all NaN, one NaN at an end or within, all of either infinity,
/// infinities of both signs, one infinity, large values, denormals, ties, and ordinary ones.
pub(super) fn rows(kind: Kind, length: i64) -> Tensor {
    let n = length as usize;
    let at = |f: &dyn Fn(usize) -> f64| (0..n).map(f).collect::<Vec<f64>>();
    let wave = |i: usize| ((i * 7919 + 13) % 101) as f64 / 16.0 - 3.0;
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let put = |place: usize, value: f64| at(&|i| if i == place { value } else { wave(i) });
    let float = matches!(kind, Kind::Half | Kind::BFloat16 | Kind::Float | Kind::Double);
    if !float {
        let (low, high) = range(kind);
        let at = |f: &dyn Fn(usize) -> i64| (0..n).map(f).collect::<Vec<i64>>();
        let all: Vec<Vec<i64>> = vec![
            at(&|_| 0),
            at(&|_| 1),
            at(&|_| low),
            at(&|_| high),
            at(&|i| if i % 2 == 0 { low } else { high }),
            at(&|i| i64::from(i == n / 2)),
            at(&|i| i64::from(i != n / 2)),
            at(&|i| ((i * 7919 + 13) % 11) as i64 - if low < 0 { 5 } else { 0 }),
            at(&|i| if i + 1 == n { high } else { 2 }),
        ];
        return Tensor::from_slice(&all.concat()).view([-1, length]).to_kind(kind);
    }
    let all: Vec<Vec<f64>> = vec![
        at(&|_| 0.0),
        at(&|_| -0.0),
        at(&|i| if i % 2 == 0 { -0.0 } else { 0.0 }),
        at(&|_| 1.0),
        at(&|_| -2.5),
        at(&|_| nan),
        put(0, nan),
        put(n - 1, nan),
        put(n / 2, nan),
        at(&|_| inf),
        at(&|_| -inf),
        at(&|i| if i % 2 == 0 { inf } else { -inf }),
        put(0, inf),
        put(n - 1, -inf),
        at(&|i| if i == n / 2 { 1.0 } else { -inf }),
        at(&|i| if i == n / 3 { nan } else { -inf }),
        at(&|i| if i == n / 3 { nan } else { inf }),
        at(&|_| 1e20),
        at(&|_| -1e20),
        at(&|_| 65504.0),
        at(&|_| 1e38),
        at(&|_| 1e-40),
        at(&|_| 1e-7),
        at(&|i| if i == n - 1 { 1e20 } else { 1.0 }),
        at(&|i| if i == 0 { 104.0 } else { -104.0 }),
        at(&|i| if i % 2 == 0 { 3.0 } else { -3.0 }),
        at(&|i| (i % 3) as f64),
        at(&wave),
        at(&|i| wave(i) / 64.0),
    ];
    Tensor::from_slice(&all.concat()).view([-1, length]).to_kind(kind)
}

/// Rows of this length of one magnitude each, from the least to the largest, and with one element of another.
pub(super) fn magnitudes(kind: Kind, length: i64) -> Tensor {
    let n = length as usize;
    let wave = |i: usize| ((i * 7919 + 13) % 101) as f64 / 16.0 - 3.0;
    let mut all: Vec<f64> = Vec::new();
    for size in [1e-44, 1e-38, 1e-30, 1e-20, 1e-10, 1.0, 1e4, 1e10, 1e18, 1e19, 1e20, 1e30, 3e37] {
        all.extend((0..n).map(|i| size * wave(i)));
        all.extend((0..n).map(|i| size * (wave(i) + 8.0)));
        all.extend((0..n).map(|i| if i == n / 2 { size } else { wave(i) }));
        all.extend((0..n).map(|_| size));
    }
    for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        all.extend((0..n).map(|i| if i == n / 3 { odd } else { 1e20 * wave(i) }));
        all.extend((0..n).map(|i| if i == n / 3 { odd } else { wave(i) }));
    }
    let all = Tensor::from_slice(&all).view([-1, length]);
    // What leaves a narrow type would be infinities.
    let most = if kind == Kind::Half { 6e4 } else { 3e38 };
    all.minimum(&Tensor::from(most)).where_self(&all.isfinite(), &all).to_kind(kind)
}
