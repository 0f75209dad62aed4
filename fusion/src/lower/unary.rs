//! Functions of one operand.

use tilefuse_block::{Elem, Literal, ScalarFn};

use super::cx::{Call, Cx, wide};
use super::registry::Registry;
use crate::graph::ValueRef;
use crate::types::Device;

macro_rules! functions {
    ($r:ident; $($function:ident: $($name:literal),+;)*) => {
        $($r.one(&[$($name),+], |cx, call| function(cx, call, ScalarFn::$function));)*
    };
}

pub(super) fn register(r: &mut Registry) {
    functions! { r;
        Neg: "neg", "negative";
        Sqrt: "sqrt";
        Rsqrt: "rsqrt";
        Exp: "exp";
        Exp2: "exp2", "special_exp2";
        Expm1: "expm1", "special_expm1";
        Log: "log";
        Log2: "log2";
        Log10: "log10";
        Log1p: "log1p", "special_log1p";
        Sin: "sin";
        Cos: "cos";
        Tan: "tan";
        Asin: "asin", "arcsin";
        Acos: "acos", "arccos";
        Atan: "atan", "arctan";
        Sinh: "sinh";
        Cosh: "cosh";
        Tanh: "tanh";
        Asinh: "asinh", "arcsinh";
        Acosh: "acosh", "arccosh";
        Atanh: "atanh", "arctanh";
        Erf: "erf", "special_erf";
        Erfc: "erfc", "special_erfc";
        Sigmoid: "sigmoid", "special_expit";
    }
    r.one(&["abs", "absolute"], abs);
    r.one(&["floor"], |cx, call| rounding(cx, call, ScalarFn::Floor));
    r.one(&["ceil"], |cx, call| rounding(cx, call, ScalarFn::Ceil));
    r.one(&["trunc", "fix"], |cx, call| rounding(cx, call, ScalarFn::Trunc));
    r.one(&["round", "special_round"], round);
    r.one(&["frac"], frac);
    r.one(&["sign", "sgn"], sign);
    r.one(&["square"], square);
    r.one(&["reciprocal"], reciprocal);
    r.one(&["deg2rad"], |cx, call| scaled(cx, call, std::f64::consts::PI / 180.0));
    r.one(&["rad2deg"], |cx, call| scaled(cx, call, 180.0 / std::f64::consts::PI));
    r.one(&["logit", "special_logit"], logit);
    r.one(&["nan_to_num"], nan_to_num);
    r.one(&["bitwise_not"], |cx, call| function(cx, call, ScalarFn::Not));
    r.one(&["isnan"], |cx, call| test(cx, call, ScalarFn::IsNan));
    r.one(&["isinf"], |cx, call| test(cx, call, ScalarFn::IsInf));
    r.one(&["isfinite"], isfinite);
    r.one(&["isposinf"], |cx, call| infinite(cx, call, f64::INFINITY));
    r.one(&["isneginf"], |cx, call| infinite(cx, call, f64::NEG_INFINITY));
}

/// The operand in the result's element type.
fn operand(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    cx.cast(call.tensor("self")?, call.elem()?)
}

fn function(cx: &mut Cx, call: &Call<'_>, function: ScalarFn) -> Option<ValueRef> {
    let x = operand(cx, call)?;
    cx.map(function, &[x])
}

fn abs(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = operand(cx, call)?;
    if call.elem()? == Elem::Bool || call.elem()?.is_unsigned_int() {
        Some(x)
    } else {
        cx.map(ScalarFn::Abs, &[x])
    }
}

/// Integers are round already.
fn rounding(cx: &mut Cx, call: &Call<'_>, function: ScalarFn) -> Option<ValueRef> {
    let x = operand(cx, call)?;
    if call.elem()?.is_float() { cx.map(function, &[x]) } else { Some(x) }
}

/// Half to even; with `decimals`, in units of a power of ten.
fn round(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let decimals = call.args.int("decimals").unwrap_or(0);
    if decimals == 0 || !call.elem()?.is_float() {
        return rounding(cx, call, ScalarFn::RoundEven);
    }
    let elem = wide(call.elem()?);
    let x = cx.cast(call.tensor("self")?, elem)?;
    let unit = 10f64.powi(i32::try_from(decimals.abs()).ok()?);
    let (there, back) =
        if decimals > 0 { (ScalarFn::Mul, ScalarFn::Div) } else { (ScalarFn::Div, ScalarFn::Mul) };
    let value = cx.map_number(there, x, unit)?;
    let value = cx.map(ScalarFn::RoundEven, &[value])?;
    let value = cx.map_number(back, value, unit)?;
    cx.cast(value, call.elem()?)
}

fn frac(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = operand(cx, call)?;
    let whole = cx.map(ScalarFn::Trunc, &[x])?;
    cx.map(ScalarFn::Sub, &[x, whole])
}

/// `(x > 0) - (x < 0)`: 0 for NaN.
fn sign(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = operand(cx, call)?;
    let elem = call.elem()?;
    if elem == Elem::Bool {
        return Some(x);
    }
    let zero = cx.number(elem, 0.0);
    let (above, below) = (cx.map(ScalarFn::Gt, &[x, zero])?, cx.map(ScalarFn::Lt, &[x, zero])?);
    let (above, below) = (cx.cast(above, elem)?, cx.cast(below, elem)?);
    cx.map(ScalarFn::Sub, &[above, below])
}

fn square(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = operand(cx, call)?;
    cx.map(ScalarFn::Mul, &[x, x])
}

fn reciprocal(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = operand(cx, call)?;
    let one = cx.number(call.elem()?, 1.0);
    cx.map(ScalarFn::Div, &[one, x])
}

fn scaled(cx: &mut Cx, call: &Call<'_>, factor: f64) -> Option<ValueRef> {
    let x = cx.cast(call.tensor("self")?, wide(call.elem()?))?;
    let value = cx.map_number(ScalarFn::Mul, x, factor)?;
    cx.cast(value, call.elem()?)
}

/// `log(x / (1 - x))`, with `x` first clamped to `[eps, 1 - eps]` where `eps` is given: the lower limit holds where they cross. On the
/// CPU both are numbers of the operand's type.
fn logit(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = wide(call.elem()?);
    let mut x = cx.cast(call.tensor("self")?, elem)?;
    if let Some(eps) = call.args.float("eps").filter(|&eps| eps >= 0.0) {
        let of = if cx.device == Device::Cpu { call.elem()? } else { elem };
        let low = Literal::of(of, eps).as_f64();
        let high = Literal::of(of, 1.0 - low).as_f64();
        let (low, high) = (cx.number(elem, low), cx.number(elem, high));
        let (below, above) = (cx.map(ScalarFn::Lt, &[x, low])?, cx.map(ScalarFn::Gt, &[x, high])?);
        let limited = cx.select(above, high, x)?;
        x = cx.select(below, low, limited)?;
    }
    let (one, zero) = (cx.number(elem, 1.0), cx.number(elem, 0.0));
    let mut rest = cx.map(ScalarFn::Sub, &[one, x])?;
    if elem != call.elem()? {
        // Of a half type much is 1 that is not in a wider one.
        let is_one = cx.map(ScalarFn::Eq, &[x, one])?;
        rest = cx.select(is_one, zero, rest)?;
    }
    let odds = cx.map(ScalarFn::Div, &[x, rest])?;
    let value = cx.map(ScalarFn::Log, &[odds])?;
    cx.cast(value, call.elem()?)
}

/// The largest finite value.
fn largest(elem: Elem) -> f64 {
    match elem {
        Elem::F16 => 65504.0,
        Elem::Bf16 => f64::from(f32::from_bits(0x7f7f_0000)),
        Elem::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    }
}

fn nan_to_num(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = operand(cx, call)?;
    let elem = call.elem()?;
    if !elem.is_float() {
        return Some(x);
    }
    let number = |name, default| call.args.float(name).unwrap_or(default);
    let nan = cx.number(elem, number("nan", 0.0));
    let high = cx.number(elem, number("posinf", largest(elem)));
    let low = cx.number(elem, number("neginf", -largest(elem)));
    let is_nan = cx.map(ScalarFn::IsNan, &[x])?;
    let is_high = cx.map_number(ScalarFn::Eq, x, f64::INFINITY)?;
    let is_low = cx.map_number(ScalarFn::Eq, x, f64::NEG_INFINITY)?;
    let value = cx.select(is_low, low, x)?;
    let value = cx.select(is_high, high, value)?;
    cx.select(is_nan, nan, value)
}

fn test(cx: &mut Cx, call: &Call<'_>, function: ScalarFn) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    if cx.elem(x)?.is_float() {
        cx.map(function, &[x])
    } else {
        cx.full(Literal::int(Elem::Bool, 0), &cx.shape(x))
    }
}

fn isfinite(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    if !cx.elem(x)?.is_float() {
        return cx.full(Literal::int(Elem::Bool, 1), &cx.shape(x));
    }
    let (nan, infinite) = (cx.map(ScalarFn::IsNan, &[x])?, cx.map(ScalarFn::IsInf, &[x])?);
    let either = cx.map(ScalarFn::Or, &[nan, infinite])?;
    cx.map(ScalarFn::Not, &[either])
}

fn infinite(cx: &mut Cx, call: &Call<'_>, value: f64) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    if cx.elem(x)?.is_float() {
        cx.map_number(ScalarFn::Eq, x, value)
    } else {
        cx.full(Literal::int(Elem::Bool, 0), &cx.shape(x))
    }
}
