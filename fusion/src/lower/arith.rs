//! Arithmetic of two operands, and what is made of it.

use tilefuse_block::{Elem, ScalarFn};

use super::cx::{Call, Cx, literal, wide};
use super::registry::Registry;
use crate::args::Number;
use crate::graph::{Op, ValueRef};
use crate::recording::Arg;
use crate::types::Device;

pub(super) fn register(r: &mut Registry) {
    r.one(&["add", "sub", "subtract"], add);
    r.one(&["rsub"], add);
    r.one(&["mul", "multiply"], mul);
    r.one(&["div", "divide", "true_divide"], div);
    r.one(&["floor_divide"], floor_divide);
    r.one(&["remainder"], remainder);
    r.one(&["fmod"], fmod);
    r.one(&["pow"], pow);
    r.one(&["maximum"], maximum);
    r.one(&["minimum"], minimum);
    r.one(&["fmax"], fmax);
    r.one(&["fmin"], fmin);
    r.one(&["atan2", "arctan2"], |cx, call| of_rounded(cx, call, ScalarFn::Atan2));
    r.one(&["copysign"], |cx, call| binary(cx, call, ScalarFn::CopySign));
    r.one(&["clamp", "clip", "clamp_min", "clamp_max"], clamp);
    r.one(&["lerp"], lerp);
    r.one(&["outer", "ger"], outer);
    r.one(&["addcmul"], addcmul);
    r.one(&["addcdiv"], addcdiv);
    r.one(&["logaddexp"], logaddexp);
    r.one(&["xlogy", "special_xlogy"], xlogy);
    r.one(&["heaviside"], heaviside);
}

/// The element type to compute in: the result's, or a wider one where an operand is not exact in the result's.
fn computation(cx: &Cx, call: &Call<'_>, names: &[&str]) -> Option<Elem> {
    let result = call.elem()?;
    if wide(result) == result {
        return Some(result);
    }
    for name in names {
        let exact = match call.args.get(name)? {
            Arg::Tensor(_) => cx.elem(call.tensor(name)?)? == result,
            _ => {
                let number = call.args.number(name)?;
                literal(result, number)?.as_f64() == number.as_f64()
            }
        };
        if !exact {
            return Some(wide(result));
        }
    }
    Some(result)
}

/// Both operands in the computation type, as libtorch takes them.
fn operands(cx: &mut Cx, call: &Call<'_>) -> Option<(ValueRef, ValueRef)> {
    let elem = computation(cx, call, &["self", "other"])?;
    Some((taken(cx, call, "self", elem)?, taken(cx, call, "other", elem)?))
}

/// An operand in a wider type than the result's: a number as it is, a tensor rounded to the result's type before.
fn taken(cx: &mut Cx, call: &Call<'_>, name: &str, elem: Elem) -> Option<ValueRef> {
    let first = if is_number(cx, call, name) { elem } else { call.elem()? };
    let value = cx.operand(call, name, first)?;
    cx.cast(value, elem)
}

/// Whether libtorch takes an operand as a number of the host: on the CPU a second operand of one element, on a GPU one of the
/// host without dimensions.
fn is_number(cx: &Cx, call: &Call<'_>, name: &str) -> bool {
    call.tensor(name).is_none_or(|value| {
        let (ty, op) = (cx.graph.ty(value), &cx.graph.node(value.node).op);
        match cx.device {
            Device::Cpu => name == "other" && ty.numel() == 1,
            _ => ty.rank() == 0 && (ty.device == Device::Cpu || matches!(op, Op::Scalar(_))),
        }
    })
}

/// Both operands in the result's type.
fn rounded_operands(cx: &mut Cx, call: &Call<'_>) -> Option<(ValueRef, ValueRef)> {
    let elem = call.elem()?;
    Some((cx.operand(call, "self", elem)?, cx.operand(call, "other", elem)?))
}

/// A function of operands that libtorch rounds to the result's type first: a number beside a half type is one of that type.
fn of_rounded(cx: &mut Cx, call: &Call<'_>, function: ScalarFn) -> Option<ValueRef> {
    let (a, b) = rounded_operands(cx, call)?;
    cx.map(function, &[a, b])
}

/// Both operands in the type for operators of several steps, as libtorch takes them.
fn wide_operands(cx: &mut Cx, call: &Call<'_>) -> Option<(ValueRef, ValueRef)> {
    let elem = wide(call.elem()?);
    Some((taken(cx, call, "self", elem)?, taken(cx, call, "other", elem)?))
}

fn binary(cx: &mut Cx, call: &Call<'_>, function: ScalarFn) -> Option<ValueRef> {
    let (a, b) = operands(cx, call)?;
    let value = cx.map(function, &[a, b])?;
    cx.cast(value, call.elem()?)
}

/// `a + alpha * b`, of floats rounded once, as libtorch does. On the CPU `alpha` is one of the result's type.
fn add(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = call.elem()?;
    let alpha = call.args.number("alpha").unwrap_or(Number::Int(1));
    let scaled = alpha.as_f64() != 1.0;
    if elem == Elem::Bool {
        return if call.name == "add" && !scaled { binary(cx, call, ScalarFn::Or) } else { None };
    }
    let (mut a, mut b) = addends(cx, call, scaled)?;
    if call.name == "rsub" {
        (a, b) = (b, a);
    }
    let plus = call.name == "add";
    if scaled && elem.is_float() {
        let alpha = match cx.device {
            Device::Cpu => literal(elem, alpha)?.as_f64(),
            _ => alpha.as_f64(),
        };
        let alpha = if plus { alpha } else { -alpha };
        let alpha = cx.elem(b).map(|elem| cx.number(elem, alpha))?;
        let value = cx.map(ScalarFn::Fma, &[b, alpha, a])?;
        return cx.cast(value, elem);
    }
    if scaled {
        let alpha = cx.elem(b).and_then(|elem| literal(elem, alpha))?;
        let alpha = cx.literal(alpha);
        b = cx.map(ScalarFn::Mul, &[b, alpha])?;
    }
    let value = cx.map(if plus { ScalarFn::Add } else { ScalarFn::Sub }, &[a, b])?;
    cx.cast(value, elem)
}

/// The operands of a sum. Of half types libtorch rounds a number to the type first on the CPU, and not on a GPU.
fn addends(cx: &mut Cx, call: &Call<'_>, scaled: bool) -> Option<(ValueRef, ValueRef)> {
    let elem = call.elem()?;
    if cx.device != Device::Cpu {
        return if scaled { wide_operands(cx, call) } else { operands(cx, call) };
    }
    let (a, b) = (cx.operand(call, "self", elem)?, cx.operand(call, "other", elem)?);
    if scaled { Some((cx.widen(a)?, cx.widen(b)?)) } else { Some((a, b)) }
}

fn mul(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let function = if call.elem()? == Elem::Bool { ScalarFn::And } else { ScalarFn::Mul };
    binary(cx, call, function)
}

fn div(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    match call.args.str("rounding_mode") {
        None if call.args.absent("rounding_mode") => {
            let (a, b) = if cx.device == Device::Cpu { operands(cx, call) } else { wide_operands(cx, call) }?;
            let value = divided(cx, call, a, b)?;
            cx.cast(value, call.elem()?)
        }
        Some("floor") => floor_divide(cx, call),
        Some("trunc") => truncated(cx, call),
        _ => None,
    }
}

/// The operands of an integer division whose divisor is a constant other than 0; eager raises for 0.
fn integer_operands(cx: &mut Cx, call: &Call<'_>) -> Option<(ValueRef, ValueRef)> {
    let (a, b) = operands(cx, call)?;
    cx.known(b).filter(|divisor| divisor.bits != 0).map(|_| (a, b))
}

/// A quotient of floats. On a GPU libtorch multiplies by the reciprocal of a number.
fn divided(cx: &mut Cx, call: &Call<'_>, a: ValueRef, b: ValueRef) -> Option<ValueRef> {
    if cx.device == Device::Cpu || !is_number(cx, call, "other") {
        return cx.map(ScalarFn::Div, &[a, b]);
    }
    let elem = cx.elem(b)?;
    let inverse = match cx.known(b) {
        Some(number) if elem == Elem::F32 => cx.number(elem, f64::from(1.0 / number.as_f64() as f32)),
        Some(number) => cx.number(elem, 1.0 / number.as_f64()),
        None => {
            let one = cx.number(elem, 1.0);
            cx.map(ScalarFn::Div, &[one, b])?
        }
    };
    cx.map(ScalarFn::Mul, &[a, inverse])
}

/// Division rounded toward zero.
fn truncated(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = call.elem()?;
    if elem.is_int() {
        let (a, b) = integer_operands(cx, call)?;
        return cx.map(ScalarFn::DivTrunc, &[a, b]);
    }
    let (a, b) = wide_operands(cx, call)?;
    let quotient = divided(cx, call, a, b)?;
    let rounded = if is_number(cx, call, "other") { quotient } else { cx.cast(quotient, elem)? };
    let value = cx.map(ScalarFn::Trunc, &[rounded])?;
    cx.cast(value, elem)
}

/// Division rounded down. For floats libtorch takes the remainder away first, so that the result is the floor of the
/// exact quotient:
///
/// ```text
/// m = fmod(a, b);  d = (a - m) / b;  if m != 0 and sign(m) != sign(b) then d = d - 1
/// if d == 0 then copysign(0, a / b) else (f = floor(d); if d - f > 0.5 then f + 1 else f);  b == 0: a / b
/// ```
fn floor_divide(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = call.elem()?;
    if elem.is_int() {
        let (a, b) = integer_operands(cx, call)?;
        return cx.map(ScalarFn::DivFloor, &[a, b]);
    }
    let (a, b) = wide_operands(cx, call)?;
    // On a GPU nothing on the way is rounded.
    let whole = is_number(cx, call, "other") || cx.device != Device::Cpu;
    let settle = |cx: &mut Cx, value: ValueRef| {
        if whole { Some(value) } else { cx.cast(value, elem).and_then(|v| cx.cast(v, wide(elem))) }
    };
    let zero = cx.elem(a).map(|elem| cx.number(elem, 0.0))?;
    let modulo = cx.map(ScalarFn::RemTrunc, &[a, b])?;
    let difference = cx.map(ScalarFn::Sub, &[a, modulo])?;
    let difference = settle(cx, difference)?;
    let exact = divided(cx, call, difference, b)?;
    let exact = settle(cx, exact)?;
    let below = cx.map_number(ScalarFn::Sub, exact, 1.0)?;
    let below = settle(cx, below)?;
    let some = cx.map(ScalarFn::Ne, &[modulo, zero])?;
    let (negative_b, negative_m) =
        (cx.map(ScalarFn::Lt, &[b, zero])?, cx.map(ScalarFn::Lt, &[modulo, zero])?);
    let opposite = cx.map(ScalarFn::Xor, &[negative_b, negative_m])?;
    let adjust = cx.map(ScalarFn::And, &[some, opposite])?;
    let rounded = cx.select(adjust, below, exact)?;
    let floor = cx.map(ScalarFn::Floor, &[rounded])?;
    let above = cx.map_number(ScalarFn::Add, floor, 1.0)?;
    let rest = cx.map(ScalarFn::Sub, &[rounded, floor])?;
    let up = cx.map_number(ScalarFn::Gt, rest, 0.5)?;
    let nearest = cx.select(up, above, floor)?;
    let quotient = divided(cx, call, a, b)?;
    let signed_zero = cx.map(ScalarFn::CopySign, &[zero, quotient])?;
    let is_zero = cx.map(ScalarFn::Eq, &[rounded, zero])?;
    let value = cx.select(is_zero, signed_zero, nearest)?;
    let by_zero = cx.map(ScalarFn::Eq, &[b, zero])?;
    let value = cx.select(by_zero, quotient, value)?;
    cx.cast(value, elem)
}

fn remainder(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    rest(cx, call, ScalarFn::RemFloor)
}

fn fmod(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    rest(cx, call, ScalarFn::RemTrunc)
}

fn rest(cx: &mut Cx, call: &Call<'_>, function: ScalarFn) -> Option<ValueRef> {
    if call.elem()?.is_float() {
        return of_rounded(cx, call, function);
    }
    let (a, b) = integer_operands(cx, call)?;
    cx.map(function, &[a, b])
}

/// Powers with a constant exponent become multiplications and roots where libtorch makes them so. Beside a half type an exponent or
/// a base is a number of that type.
fn pow(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = call.elem()?;
    if let Some(exponent) = cx.number_of(call, "exponent") {
        let base = cx.operand(call, "self", wide(elem))?;
        let exponent = match wide(elem) == elem {
            true => exponent,
            false => Number::Float(literal(elem, exponent)?.as_f64()),
        };
        let value = match integral(exponent) {
            Some(n) if n >= 0 && (elem.is_int() || n <= 3) => power(cx, base, n)?,
            // Of f16 libtorch has no special cases on the CPU: a root of -0 is +0, and one of -inf is inf.
            _ if elem == Elem::F16 && cx.device == Device::Cpu => {
                cx.map_number(ScalarFn::Pow, base, exponent.as_f64())?
            }
            _ if elem.is_float() => float_power(cx, base, exponent.as_f64())?,
            _ => return None,
        };
        return cx.cast(value, elem);
    }
    if !elem.is_float() {
        return None;
    }
    let (exponent, base) = (cx.operand(call, "exponent", elem)?, cx.operand(call, "self", elem)?);
    match call.args.float("self") {
        Some(2.0) => cx.map(ScalarFn::Exp2, &[exponent]),
        _ => cx.map(ScalarFn::Pow, &[base, exponent]),
    }
}

fn integral(number: Number) -> Option<i64> {
    match number {
        Number::Int(n) => Some(n),
        Number::Bool(b) => Some(i64::from(b)),
        Number::Float(x) => (x.fract() == 0.0 && x.abs() < 1e9).then_some(x as i64),
    }
}

/// `base` multiplied with itself, by squaring.
fn power(cx: &mut Cx, base: ValueRef, exponent: i64) -> Option<ValueRef> {
    if exponent == 0 {
        let (elem, shape) = (cx.elem(base)?, cx.shape(base));
        let one = tilefuse_block::Literal::of(elem, 1.0);
        return cx.full(one, &shape);
    }
    let (mut square, mut result, mut left) = (base, None, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result = Some(match result {
                None => square,
                Some(r) => cx.map(ScalarFn::Mul, &[r, square])?,
            });
        }
        left >>= 1;
        if left > 0 {
            square = cx.map(ScalarFn::Mul, &[square, square])?;
        }
    }
    result
}

fn float_power(cx: &mut Cx, base: ValueRef, exponent: f64) -> Option<ValueRef> {
    let elem = cx.elem(base)?;
    let one = cx.number(elem, 1.0);
    match exponent {
        0.5 => cx.map(ScalarFn::Sqrt, &[base]),
        -0.5 => cx.map(ScalarFn::Rsqrt, &[base]),
        -1.0 => cx.map(ScalarFn::Div, &[one, base]),
        -2.0 => {
            let square = cx.map(ScalarFn::Mul, &[base, base])?;
            cx.map(ScalarFn::Div, &[one, square])
        }
        other => {
            let other = cx.number(elem, other);
            cx.map(ScalarFn::Pow, &[base, other])
        }
    }
}

/// [`ScalarFn::Max`] or [`ScalarFn::Min`], of booleans too.
pub(super) fn extreme(cx: &mut Cx, a: ValueRef, b: ValueRef, max: bool) -> Option<ValueRef> {
    let function = match (cx.elem(a)? == Elem::Bool, max) {
        (true, true) => ScalarFn::Or,
        (true, false) => ScalarFn::And,
        (false, true) => ScalarFn::Max,
        (false, false) => ScalarFn::Min,
    };
    cx.map(function, &[a, b])
}

pub(super) fn maximum(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (a, b) = operands(cx, call)?;
    let value = extreme(cx, a, b, true)?;
    cx.cast(value, call.elem()?)
}

pub(super) fn minimum(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (a, b) = operands(cx, call)?;
    let value = extreme(cx, a, b, false)?;
    cx.cast(value, call.elem()?)
}

fn fmax(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    if call.elem()?.is_float() { binary(cx, call, ScalarFn::FMax) } else { maximum(cx, call) }
}

fn fmin(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    if call.elem()?.is_float() { binary(cx, call, ScalarFn::FMin) } else { minimum(cx, call) }
}

/// A limit that is a NaN and the only one limits nothing; `clamp_min` and `clamp_max` by it are NaN.
fn clamp(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = call.elem()?;
    let mut value = cx.operand(call, "self", elem)?;
    let is_only = call.args.absent("min") != call.args.absent("max") && matches!(call.name, "clamp" | "clip");
    for (name, max) in [("min", true), ("max", false)] {
        let is_nan = call.args.number(name).is_some_and(|limit| limit.as_f64().is_nan());
        if call.args.absent(name) || is_only && is_nan {
            continue;
        }
        let bound = cx.operand(call, name, elem)?;
        value = bounded(cx, value, bound, max)?;
    }
    cx.broadcast(value, &call.out().shape)
}

/// A value, or the bound where the value is below it (with `low`) or above it. A zero that equals the bound keeps its
/// sign; on a GPU, where 0 is larger than -0 and there are instructions for that, not that of a lower bound.
pub(super) fn bounded(cx: &mut Cx, value: ValueRef, bound: ValueRef, low: bool) -> Option<ValueRef> {
    let number = cx.known(bound).map(|literal| literal.as_f64()).filter(|number| !number.is_nan());
    let chosen = cx.device == Device::Cpu || !low && number == Some(0.0);
    if number.is_none() || !chosen || !cx.elem(value)?.is_float() {
        return extreme(cx, value, bound, low);
    }
    let beyond = cx.map(if low { ScalarFn::Lt } else { ScalarFn::Gt }, &[value, bound])?;
    cx.select(beyond, bound, value)
}

/// `a + w * (b - a)` for `|w| < 0.5`, else `b - (b - a) * (1 - w)`, with each product and its sum rounded once.
fn lerp(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = wide(call.elem()?);
    let (a, b) = (cx.operand(call, "self", elem)?, cx.operand(call, "end", elem)?);
    let weight = cx.operand(call, "weight", elem)?;
    let one = cx.number(elem, 1.0);
    let difference = cx.map(ScalarFn::Sub, &[b, a])?;
    let low = cx.map(ScalarFn::Fma, &[weight, difference, a])?;
    // The two differ in the sign of 0.
    let (rest, factor) = if cx.device == Device::Cpu {
        (cx.map(ScalarFn::Sub, &[weight, one])?, difference)
    } else {
        (cx.map(ScalarFn::Sub, &[one, weight])?, cx.map(ScalarFn::Neg, &[difference])?)
    };
    let high = cx.map(ScalarFn::Fma, &[factor, rest, b])?;
    let magnitude = cx.map(ScalarFn::Abs, &[weight])?;
    let is_low = cx.map_number(ScalarFn::Lt, magnitude, 0.5)?;
    let value = cx.select(is_low, low, high)?;
    cx.cast(value, call.elem()?)
}

fn outer(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = call.elem().filter(|&elem| elem != Elem::Bool)?;
    let (a, b) = (cx.cast(call.tensor("self")?, elem)?, cx.cast(call.tensor("vec2")?, elem)?);
    let column = cx.reshape(a, &[cx.graph.ty(a).numel(), 1])?;
    cx.map(ScalarFn::Mul, &[column, b])
}

/// `self + (value * tensor1) * tensor2`, of floats with the last product and the sum rounded once; on a GPU
/// `self + value * (tensor1 * tensor2)`.
fn addcmul(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = call.elem()?;
    let factor = call.args.number("value").unwrap_or(Number::Int(1));
    if elem.is_float() && cx.device != Device::Cpu && factor.as_f64() != 1.0 {
        let [a, b, base] = ["tensor1", "tensor2", "self"].map(|name| cx.operand(call, name, wide(elem)));
        let product = cx.map(ScalarFn::Mul, &[a?, b?])?;
        let factor = literal(wide(elem), factor)?;
        let factor = cx.literal(factor);
        let value = cx.map(ScalarFn::Fma, &[factor, product, base?])?;
        return cx.cast(value, elem);
    }
    let (a, b, base) = scaled_operands(cx, call)?;
    let value = if elem.is_float() {
        cx.map(ScalarFn::Fma, &[a, b, base])?
    } else {
        let product = cx.map(ScalarFn::Mul, &[a, b])?;
        cx.map(ScalarFn::Add, &[base, product])?
    };
    cx.cast(value, elem)
}

/// `self + (value * tensor1) / tensor2`.
fn addcdiv(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    if !call.elem()?.is_float() {
        return None;
    }
    let (a, b, base) = scaled_operands(cx, call)?;
    let quotient = cx.map(ScalarFn::Div, &[a, b])?;
    let value = cx.map(ScalarFn::Add, &[base, quotient])?;
    cx.cast(value, call.elem()?)
}

/// `value * tensor1`, `tensor2` and `self`.
fn scaled_operands(cx: &mut Cx, call: &Call<'_>) -> Option<(ValueRef, ValueRef, ValueRef)> {
    let elem = wide(call.elem()?);
    let mut rounded = |name| cx.operand(call, name, call.elem()?).and_then(|value| cx.widen(value));
    let (mut a, b, base) = (rounded("tensor1")?, rounded("tensor2")?, rounded("self")?);
    let factor = literal(elem, call.args.number("value").unwrap_or(Number::Int(1)))?;
    if factor.as_f64() != 1.0 {
        let factor = cx.literal(factor);
        a = cx.map(ScalarFn::Mul, &[factor, a])?;
    }
    Some((a, b, base))
}

/// `m + log1p(exp(-|a - b|))` with `m` the larger operand; equal infinities are the result themselves.
fn logaddexp(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (a, b) = rounded_operands(cx, call)?;
    let (a, b) = (cx.widen(a)?, cx.widen(b)?);
    let larger = cx.map(ScalarFn::Max, &[a, b])?;
    let difference = cx.map(ScalarFn::Sub, &[a, b])?;
    let distance = cx.map(ScalarFn::Abs, &[difference])?;
    let negative = cx.map(ScalarFn::Neg, &[distance])?;
    let exponential = cx.map(ScalarFn::Exp, &[negative])?;
    let correction = cx.map(ScalarFn::Log1p, &[exponential])?;
    let sum = cx.map(ScalarFn::Add, &[larger, correction])?;
    let (infinite, equal) = (cx.map(ScalarFn::IsInf, &[a])?, cx.map(ScalarFn::Eq, &[a, b])?);
    let same = cx.map(ScalarFn::And, &[infinite, equal])?;
    let value = cx.select(same, a, sum)?;
    cx.cast(value, call.elem()?)
}

/// NaN where `other` is NaN, 0 where `self` is 0, else `self * log(other)`.
fn xlogy(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (a, b) = rounded_operands(cx, call)?;
    let (a, b) = (cx.widen(a)?, cx.widen(b)?);
    let logarithm = cx.map(ScalarFn::Log, &[b])?;
    let product = cx.map(ScalarFn::Mul, &[a, logarithm])?;
    let zero = cx.elem(a).map(|elem| cx.number(elem, 0.0))?;
    let is_zero = cx.map(ScalarFn::Eq, &[a, zero])?;
    let value = cx.select(is_zero, zero, product)?;
    let is_nan = cx.map(ScalarFn::IsNan, &[b])?;
    let value = cx.select(is_nan, b, value)?;
    cx.cast(value, call.elem()?)
}

fn heaviside(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = call.elem()?;
    let (x, at_zero) = (cx.operand(call, "self", elem)?, cx.operand(call, "values", elem)?);
    let zero = cx.number(elem, 0.0);
    let positive = cx.map(ScalarFn::Gt, &[x, zero])?;
    let step = cx.cast(positive, elem)?;
    let is_zero = cx.map(ScalarFn::Eq, &[x, zero])?;
    cx.select(is_zero, at_zero, step)
}
