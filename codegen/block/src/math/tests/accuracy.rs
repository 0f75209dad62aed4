//! Errors in units in the last place over the whole range.
//!
//! A test samples every exponent and the neighbours of [`EDGES`](testing::EDGES). With `TILEFUSE_MATH_SWEEP=all`, or
//! names in place of `all`, `sweep` takes every `f32` instead; run it with optimisation:
//! `RUSTFLAGS=-Ctarget-cpu=native TILEFUSE_MATH_SWEEP=exp cargo test --release -p tilefuse-block sweep -- --nocapture`.

use super::math_functions;
use crate::eval::math_f64;
use crate::math::{eval_f32, eval_f64, testing};
use crate::scalar_fn::ScalarFn;

/// The distance of `value` from `exact` in units in the last place of `f32` at `exact`; infinite where one is NaN,
/// infinite or a zero of some sign and the other is not.
fn error_f32(value: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    if value.to_bits() == rounded.to_bits() || (value.is_nan() && rounded.is_nan()) {
        // Right after rounding, though up to half a unit away.
        return if rounded.is_finite() && exact != 0.0 { distance(f64::from(value), exact) } else { 0.0 };
    }
    let sign_lost = value == 0.0 && rounded == 0.0;
    if value.is_nan() || rounded.is_nan() || sign_lost {
        return f64::INFINITY;
    }
    // An infinity is taken as the next number after the largest.
    let unbounded =
        |v: f32| if v.is_infinite() { 2f64.powi(128).copysign(f64::from(v)) } else { f64::from(v) };
    let exact = if rounded.is_infinite() { exact.clamp(-2f64.powi(128), 2f64.powi(128)) } else { exact };
    distance(unbounded(value), exact)
}

fn distance(value: f64, exact: f64) -> f64 {
    let exponent = ((exact.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    (value - exact).abs() / 2f64.powi(exponent.clamp(-126, 127) - 23)
}

#[derive(Clone, Copy)]
struct Worst {
    ulp: f64,
    at: [f32; 2],
    value: f32,
    exact: f64,
}

impl Worst {
    fn new() -> Worst {
        Worst { ulp: 0.0, at: [0.0; 2], value: 0.0, exact: 0.0 }
    }

    fn see(&mut self, function: ScalarFn, [x, y]: [f32; 2]) {
        let Some(value) = eval_f32(function, x, y) else { return };
        let exact = math_f64(function, f64::from(x), f64::from(y)).unwrap();
        let ulp = error_f32(value, exact);
        if ulp > self.ulp {
            *self = Worst { ulp, at: [x, y], value, exact };
        }
    }
}

/// Bit patterns of `f32`: `per_binade` of every exponent and sign, spread evenly with a little disorder.
fn stratified(per_binade: u32) -> impl Iterator<Item = f32> {
    let step = (1 << 23) / per_binade;
    (0..512u32).flat_map(move |high| {
        (0..per_binade).map(move |i| {
            let disorder = (i ^ high).wrapping_mul(0x9e37_79b9) >> 9;
            f32::from_bits((high << 23) | (i * step + disorder % step))
        })
    })
}

/// `value` and its neighbours, as far as 16 bit patterns away.
fn neighbours(value: f32) -> impl Iterator<Item = f32> {
    (-16..=16i32).map(move |d| f32::from_bits(value.to_bits().wrapping_add_signed(d)))
}

fn worst_of_one(function: ScalarFn, per_binade: u32) -> Worst {
    let mut worst = Worst::new();
    let edges = testing::edges_f32(function).into_iter().flat_map(|[x, _]| neighbours(x));
    for x in edges.chain(stratified(per_binade)) {
        worst.see(function, [x, x]);
    }
    worst
}

/// Pseudo-random 32 bits.
fn scramble(i: u64) -> u64 {
    let z = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i >> 7)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

fn worst_of_two(function: ScalarFn, samples: u64) -> Worst {
    let mut worst = Worst::new();
    for [x, y] in testing::edges_f32(function) {
        for (a, b) in [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1)] {
            let near = |v: f32, d: i32| f32::from_bits(v.to_bits().wrapping_add_signed(d));
            worst.see(function, [near(x, a), near(y, b)]);
        }
    }
    for i in 0..samples {
        let bits = scramble(i);
        let x = f32::from_bits(bits as u32);
        let any = f32::from_bits((bits >> 32) as u32);
        // Exponents that give a finite power, every fourth one a small integer or half of one.
        let fitting = (((bits >> 32) as u32 as f64 / f64::from(u32::MAX) - 0.5) * 300.0) as f32;
        let power = fitting / x.abs().log2();
        let y = match i & 7 {
            0 => any,
            1 => fitting.round() * 0.5,
            2 => (fitting * 0.1).round(),
            _ => power,
        };
        worst.see(function, [x, y]);
        let near = f32::from_bits(0x3f80_0000 ^ (bits as u32 & 0x00ff_ffff));
        worst.see(function, [near, fitting / near.log2()]);
    }
    worst
}

/// Prints what was found and describes it where the table promises better.
fn judge(function: ScalarFn, worst: Worst) -> Option<String> {
    let Worst { ulp, at, value, exact } = worst;
    let line = format!("{:8} {ulp:.4} ulp at {at:?}: {value:e} for {exact:e}", function.name());
    println!("{line}");
    (ulp > function.max_ulp()).then_some(line)
}

#[test]
fn every_f32_function_is_as_accurate_as_the_table_says() {
    let worst = |f: ScalarFn| match f.arity() {
        1 => worst_of_one(f, 1 << 11),
        _ => worst_of_two(f, 1 << 19),
    };
    let bad: Vec<String> = math_functions().filter_map(|f| judge(f, worst(f))).collect();
    assert!(bad.is_empty(), "less accurate than the table says:\n{}", bad.join("\n"));
}

/// Every `f32`, in blocks that the compiler makes vector code of: `f64` formulas judge, and what they find worse than
/// anything before is looked at with the reference.
#[inline(always)]
fn sweep_one(function: ScalarFn) -> Worst {
    const BLOCK: usize = 1024;
    // Less is right after rounding.
    let mut worst = Worst { ulp: 0.5, ..Worst::new() };
    let mut found = [0f64; BLOCK];
    for block in 0..(1u64 << 32) / BLOCK as u64 {
        let first = (block * BLOCK as u64) as u32;
        for (i, out) in found.iter_mut().enumerate() {
            let x = f32::from_bits(first + i as u32);
            let value = eval_f32(function, x, x).unwrap_or(f32::NAN);
            let exact = eval_f64(function, f64::from(x), f64::from(x)).unwrap_or(f64::NAN);
            let rounded = exact as f32;
            let same = value.to_bits() == rounded.to_bits() || (value.is_nan() & rounded.is_nan());
            *out = if same { 0.0 } else { distance(f64::from(value), exact) };
        }
        for (i, &ulp) in found.iter().enumerate() {
            if ulp.is_nan() || ulp > worst.ulp - 1e-4 {
                let x = f32::from_bits(first + i as u32);
                worst.see(function, [x, x]);
            }
        }
    }
    worst
}

/// [`sweep_one`] with the function known to the compiler.
macro_rules! sweep_of {
    ($function:expr, $($name:ident)*) => {
        match $function {
            $(ScalarFn::$name => sweep_one(ScalarFn::$name),)*
            other => worst_of_two(other, 1 << 24),
        }
    };
}

#[test]
fn sweep() {
    let Ok(wanted) = std::env::var("TILEFUSE_MATH_SWEEP") else { return };
    let chosen = math_functions().filter(|f| wanted == "all" || wanted.split(',').any(|w| w == f.name()));
    let bad: Vec<String> = chosen
        .filter_map(|f| {
            let worst = sweep_of!(f, Rsqrt Exp Exp2 Expm1 Log Log2 Log10 Log1p Sin Cos Tan Asin Acos Atan Sinh Cosh
                Tanh Asinh Acosh Atanh Erf Erfc Sigmoid Exp2Approx Exp2ApproxFtz RecipApprox RsqrtApprox);
            judge(f, worst)
        })
        .collect();
    assert!(bad.is_empty(), "less accurate than the table says:\n{}", bad.join("\n"));
}
