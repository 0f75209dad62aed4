//! Functions as compiled for each kind of processor, against `f64`: what the table of scalar functions promises of their
//! errors holds for the code that runs, not for the interpreter alone.

use tilefuse_block::ScalarFn;
use tilefuse_block::eval::math_f64;
use tilefuse_block::math::testing;

use super::*;

/// Elements of an instance.
const TILE: usize = 1024;

/// Those that activations, norms and embeddings consist of.
const FUNCTIONS: [ScalarFn; 14] = [
    ScalarFn::Exp,
    ScalarFn::Exp2,
    ScalarFn::Expm1,
    ScalarFn::Log,
    ScalarFn::Log2,
    ScalarFn::Log1p,
    ScalarFn::Tanh,
    ScalarFn::Erf,
    ScalarFn::Sigmoid,
    ScalarFn::Sin,
    ScalarFn::Cos,
    ScalarFn::Rsqrt,
    ScalarFn::Pow,
    ScalarFn::Atan2,
];

/// The distance of `value` from `exact` in units in the last place of `f32`; infinite where one is NaN or infinite, or a
/// zero of some sign, and the other is not.
fn ulps(value: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    if value.to_bits() == rounded.to_bits() || (value.is_nan() && rounded.is_nan()) {
        return 0.0;
    }
    if value.is_nan() || rounded.is_nan() || (value == 0.0 && rounded == 0.0) {
        return f64::INFINITY;
    }
    // An infinity is taken as the number after the largest.
    let end = 2f64.powi(128);
    let (value, exact) = (f64::from(value).clamp(-end, end), exact.clamp(-end, end));
    let exponent = ((exact.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    (value - exact).abs() / 2f64.powi(exponent.clamp(-126, 127) - 23)
}

/// `per_binade` bit patterns of every exponent and sign.
fn stratified(per_binade: u32) -> impl Iterator<Item = f32> {
    let step = (1 << 23) / per_binade;
    (0..512u32).flat_map(move |high| {
        (0..per_binade).map(move |i| {
            let disorder = (i ^ high).wrapping_mul(0x9e37_79b9) >> 9;
            f32::from_bits((high << 23) | (i * step + disorder % step))
        })
    })
}

/// Arguments: edges and their neighbours, then samples of the whole range.
fn arguments(function: ScalarFn) -> Vec<[f32; 2]> {
    let edges = testing::edges_f32(function);
    let near = |v: f32, d: i32| f32::from_bits(v.to_bits().wrapping_add_signed(d));
    if function.arity() == 1 {
        let edges = edges.into_iter().flat_map(|[x, _]| (-8..=8).map(move |d| [near(x, d); 2]));
        return edges.chain(stratified(1 << 8).map(|x| [x; 2])).collect();
    }
    // Second operands that give finite powers, every fourth one half an integer.
    let second = |(i, x): (usize, f32)| {
        let exponent = ((i as f32 * 0.618_034).fract() - 0.5) * 300.0;
        [x, if i % 4 == 0 { exponent.round() * 0.5 } else { exponent / x.abs().log2() }]
    };
    edges.into_iter().chain(stratified(1 << 7).enumerate().map(second)).collect()
}

/// Instances of the function, of [`TILE`] elements each.
fn program(function: ScalarFn) -> String {
    let (name, operands) = (function.name(), if function.arity() == 1 { "%a" } else { "%a, %b" });
    format!(
        "
kernel @f(%x: ptr<f32>, %y: ptr<f32>, %z: ptr<f32>) {{
  %id = program_id 0
  %tile = const {TILE} : i32
  %first = map mul %id, %tile
  %start = splat %first [{TILE}]
  %lanes = range 0 {TILE}
  %at = map add %start, %lanes
  %a = load %x, %at
  %b = load %y, %at
  %c = map {name} {operands}
  store %z, %at, %c
}}"
    )
}

/// What is worse than the table says, if anything is.
fn worst(function: ScalarFn, isa: Isa) -> Option<String> {
    let mut arguments = arguments(function);
    arguments.resize(arguments.len().next_multiple_of(TILE), [1.0; 2]);
    let buffer = |which: usize| Arg::buffer(f32::wrap(arguments.iter().map(|a| a[which]).collect()));
    let args = [buffer(0), buffer(1), buffer(0)];
    let program = program(function).trim().parse::<Program>().unwrap();
    let kernel = HostKernel::compile(&program, &HostOptions { isa }).unwrap();
    let found = run_kernel(&kernel, &args, [(arguments.len() / TILE) as u32, 1, 1], &Rayon);
    let (mut most, mut line) = (function.max_ulp(), None);
    for (i, &[x, y]) in arguments.iter().enumerate() {
        let value = found[2].get(i).unwrap().as_f64() as f32;
        let exact = math_f64(function, f64::from(x), f64::from(y)).unwrap();
        let error = ulps(value, exact);
        if error > most {
            most = error;
            line = Some(format!(
                "{} {isa:?}: {error} ulp at {x:e}, {y:e}: {value:e} for {exact:e}",
                function.name()
            ));
        }
    }
    line
}

#[test]
fn compiled_functions_are_within_two_ulp() {
    let bad: Vec<String> =
        FUNCTIONS.iter().flat_map(|&f| ISAS.iter().filter_map(move |&isa| worst(f, isa))).collect();
    assert!(bad.is_empty(), "less accurate than the table says:\n{}", bad.join("\n"));
    assert!(FUNCTIONS.iter().all(|f| f.max_ulp() <= 2.0));
}
