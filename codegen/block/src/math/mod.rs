//! The mathematical functions as sequences of base functions.
//!
//! [`expand_math`] rewrites every operation of [`Level::Math`] into sums, products, fused multiply-adds, quotients,
//! square roots, comparisons and bit operations, each with one exact meaning, so that every target gives the same
//! bits. The same formulas, written once over the traits of `emit`, are computed directly by [`eval_f32`] and
//! [`eval_f64`].
//!
//! `f16` and `bf16` are computed in `f32` and rounded once.

#![allow(clippy::approx_constant, reason = "coefficients of fits lie near constants that they are not")]

mod common;
mod double;
pub mod emit;
mod exponents;
mod native;
mod single;
pub mod testing;
#[cfg(test)]
mod tests;
mod tile;

use std::cell::RefCell;

pub use exponents::{eval_with_exponents, with_exponents};

use emit::{Double, Single};
use native::Native;
use tile::{Recorder, Tile};

use crate::infer::TypeError;
use crate::program::{Op, OpKind, Program, Region, Value, ValueData, locate};
use crate::scalar_fn::{Level, MathFn, ScalarFn};
use crate::types::Elem;

/// Rewrites every mathematical function of a program into base functions, casts, bitcasts and literals.
///
/// # Errors
/// If an operation does not take its operands; the program is then unchanged up to that operation.
pub fn expand_math(program: &mut Program) -> Result<(), TypeError> {
    expand_math_except(program, &|_, _| false)
}

/// [`expand_math`] but for the functions of operands of a kind that a target has itself.
///
/// # Errors
/// As [`expand_math`].
pub fn expand_math_except(
    program: &mut Program,
    has: &dyn Fn(ScalarFn, Option<Elem>) -> bool,
) -> Result<(), TypeError> {
    let Program { values, body, .. } = program;
    expand_region(values, body, has)
}

fn expand_region(
    values: &mut Vec<ValueData>,
    region: &mut Region,
    has: &dyn Fn(ScalarFn, Option<Elem>) -> bool,
) -> Result<(), TypeError> {
    let mut ops = Vec::with_capacity(region.ops.len());
    for mut op in std::mem::take(&mut region.ops) {
        for inner in &mut op.regions {
            expand_region(values, inner, has)?;
        }
        let (from, loc) = (ops.len(), op.loc);
        match op.kind {
            OpKind::Map(function)
                if function.is_math()
                    && !has(function, op.args.first().and_then(|a| values[a.index()].ty.elem())) =>
            {
                expand_op(values, function, &op, &mut ops, has)?
            }
            _ => ops.push(op),
        }
        locate(&mut ops[from..], loc);
    }
    region.ops = ops;
    Ok(())
}

/// Appends to `ops` what computes the same as `op`.
fn expand_op(
    values: &mut Vec<ValueData>,
    function: ScalarFn,
    op: &Op,
    ops: &mut Vec<Op>,
    has: &dyn Fn(ScalarFn, Option<Elem>) -> bool,
) -> Result<(), TypeError> {
    let (first, second, result) = match (&op.args[..], &op.results[..]) {
        (&[x], &[result]) if function.arity() == 1 => (x, x, result),
        (&[x, y], &[result]) if function.arity() == 2 => (x, y, result),
        _ => return Err(TypeError::Arity { op: "map", expected: function.arity(), found: op.args.len() }),
    };
    let recorder = RefCell::new(Recorder::new(values));
    let elem = recorder.borrow().elem(first);
    let value = match elem.filter(|&e| e.is_float() && e.bits() == 16 && function.arity() == 1) {
        // As the formulas compute it: in `f32`, and rounded once. Approximations may have other bits there.
        Some(elem) if has(function, Some(Elem::F32)) && !function.is_approximate() => {
            let wide = Tile::<f64>::new(&recorder, first).cast::<f64>(Elem::F32);
            wide.map1(function).cast::<f64>(elem).value
        }
        _ => record(&recorder, function, first, second)?,
    };
    ops.extend(recorder.into_inner().finish(value, result)?);
    Ok(())
}

/// Records a function of `first` (and `second`, where it takes two operands).
fn record(
    recorder: &RefCell<Recorder<'_>>,
    function: ScalarFn,
    first: Value,
    second: Value,
) -> Result<Value, TypeError> {
    let elem = recorder.borrow().elem(first);
    let x = Tile::<f64>::new(recorder, first);
    let y = Tile::<f64>::new(recorder, second);
    let result = match (function.level(), elem) {
        (Level::Math(function), Some(Elem::F64)) => Some(double(function, x, y)),
        (Level::Math(function), Some(elem)) if elem.is_float() => {
            Some(single(function, x.cast(Elem::F32), y.cast(Elem::F32)).cast::<f64>(elem))
        }
        _ => None,
    };
    let missing = || TypeError::Attribute {
        op: "map",
        message: format!("{} has no formula for these operands", function.name()),
    };
    result.map(|tile| tile.value).ok_or_else(missing)
}

/// A function of [`Level::Math`] of one `f32`, or of two; the same as the expanded operations, bit for bit (but for
/// a NaN's payload). `None` for other functions.
#[inline]
pub fn eval_f32(function: ScalarFn, x: f32, y: f32) -> Option<f32> {
    match function.level() {
        Level::Math(function) => Some(single(function, Native(x), Native(y)).0),
        Level::Base(_) => None,
    }
}

/// A function of [`Level::Math`] of one `f64`, or of two; the same as the expanded operations, bit for bit (but for
/// a NaN's payload). `None` for other functions.
#[inline]
pub fn eval_f64(function: ScalarFn, x: f64, y: f64) -> Option<f64> {
    match function.level() {
        Level::Math(function) => Some(double(function, Native(x), Native(y)).0),
        Level::Base(_) => None,
    }
}

/// The formulas for `f32`.
#[inline(always)]
fn single<F: Single>(function: MathFn, x: F, y: F) -> F {
    let k = &common::SINGLE;
    match function {
        MathFn::Rsqrt | MathFn::RsqrtApprox => common::rsqrt(x),
        MathFn::Pow => single::pow(x, y),
        MathFn::Exp => common::exp(x, k),
        MathFn::Exp2 | MathFn::Exp2Approx | MathFn::Exp2ApproxFtz => common::exp2(x, k),
        MathFn::RecipApprox => x.under(1.0),
        MathFn::Expm1 => common::expm1(x, k),
        MathFn::Log => common::log(x, k),
        MathFn::Log2 => common::log2(x, k),
        MathFn::Log10 => common::log10(x, k),
        MathFn::Log1p => common::log1p(x, k),
        MathFn::Sin => single::sin(x),
        MathFn::Cos => single::cos(x),
        MathFn::Tan => single::tan(x),
        MathFn::Asin => common::asin(x, k),
        MathFn::Acos => common::acos(x, k),
        MathFn::Atan => common::atan(x, k),
        MathFn::Atan2 => common::atan2(x, y, k),
        MathFn::Sinh => common::sinh(x, k),
        MathFn::Cosh => common::cosh(x, k),
        MathFn::Tanh => common::tanh(x, k),
        MathFn::Asinh => single::asinh(x),
        MathFn::Acosh => single::acosh(x),
        MathFn::Atanh => single::atanh(x),
        MathFn::Erf => single::erf(x),
        MathFn::Erfc => single::erfc(x),
        MathFn::Sigmoid => common::sigmoid(x, k),
    }
}

/// The formulas for `f64`.
#[inline(always)]
fn double<F: Double>(function: MathFn, x: F, y: F) -> F {
    let k = &common::DOUBLE;
    match function {
        MathFn::Rsqrt | MathFn::RsqrtApprox => common::rsqrt(x),
        MathFn::Pow => double::pow(x, y),
        MathFn::Exp => common::exp(x, k),
        MathFn::Exp2 | MathFn::Exp2Approx | MathFn::Exp2ApproxFtz => common::exp2(x, k),
        MathFn::RecipApprox => x.under(1.0),
        MathFn::Expm1 => common::expm1(x, k),
        MathFn::Log => common::log(x, k),
        MathFn::Log2 => common::log2(x, k),
        MathFn::Log10 => common::log10(x, k),
        MathFn::Log1p => common::log1p(x, k),
        MathFn::Sin => double::sin(x),
        MathFn::Cos => double::cos(x),
        MathFn::Tan => double::tan(x),
        MathFn::Asin => common::asin(x, k),
        MathFn::Acos => common::acos(x, k),
        MathFn::Atan => common::atan(x, k),
        MathFn::Atan2 => common::atan2(x, y, k),
        MathFn::Sinh => common::sinh(x, k),
        MathFn::Cosh => common::cosh(x, k),
        MathFn::Tanh => common::tanh(x, k),
        MathFn::Asinh => double::asinh(x),
        MathFn::Acosh => double::acosh(x),
        MathFn::Atanh => double::atanh(x),
        MathFn::Erf => double::erf(x),
        MathFn::Erfc => double::erfc(x),
        MathFn::Sigmoid => common::sigmoid(x, k),
    }
}
