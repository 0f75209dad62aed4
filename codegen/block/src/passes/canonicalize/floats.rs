//! Identities of floats, each exact for NaN, infinities and both zeros.

use super::{Cx, as_binary, as_map};
use crate::program::{Op, Value};
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Literal};

fn float(cx: &Cx<'_>, value: Value) -> Option<Elem> {
    cx.ty(value).elem().filter(|e| e.is_float())
}

fn is(literal: Literal, value: f64) -> bool {
    literal.elem.is_float() && literal.as_f64().to_bits() == value.to_bits()
}

/// `x + -0`, `x - 0`, `x * 1`, `x / 1`; `x * -1` is `-x`; division by a power of two is multiplication. `x + 0` is
/// not `x` for -0, and `x * 0` is not 0 for NaN, infinities and negative numbers.
pub(super) fn identity(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let (function, a, b) = as_binary(op)?;
    let elem = float(cx, a)?;
    let c = cx.constant(b)?;
    match function {
        ScalarFn::Add if is(c, -0.0) => Some(a),
        ScalarFn::Sub if is(c, 0.0) => Some(a),
        ScalarFn::Mul | ScalarFn::Div if is(c, 1.0) => Some(a),
        ScalarFn::Mul | ScalarFn::Div if is(c, -1.0) => cx.emit_map(ScalarFn::Neg, &[a]),
        ScalarFn::Div => {
            let reciprocal = exact_reciprocal(elem, c.as_f64())?;
            let shape = cx.ty(b).shape.clone();
            let reciprocal = cx.emit_constant(reciprocal, &shape);
            cx.emit_map(ScalarFn::Mul, &[a, reciprocal])
        }
        _ => None,
    }
}

/// `1 / x` for a power of two whose reciprocal is a normal number of the kind, too.
fn exact_reciprocal(elem: Elem, x: f64) -> Option<Literal> {
    let power_of_two = x.is_normal() && x.to_bits() << 12 == 0;
    let reciprocal = Literal::float(elem, 1.0 / x);
    let smallest = match elem {
        Elem::F16 => f64::powi(2.0, -14),
        Elem::F64 => f64::MIN_POSITIVE,
        _ => f64::from(f32::MIN_POSITIVE),
    };
    let normal = |x: f64| x.is_finite() && x.abs() >= smallest;
    let exact = reciprocal.as_f64() == 1.0 / x;
    (power_of_two && exact && normal(x) && normal(reciprocal.as_f64())).then_some(reciprocal)
}

/// Signs cancel: `-(-x)`, `|-x|`, `x + -y`, `x - -y`, `-x * -y`. Holds for integers, too, but that `|x|` of an unsigned one is `x`.
pub(super) fn signs(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let (function, args) = as_map(op)?;
    let (&first, &last) = (args.first()?, args.last()?);
    let negated = |cx: &Cx<'_>, value| Some(*cx.operands_of(value, ScalarFn::Neg)?.first()?);
    let signed = cx.ty(first).elem().is_some_and(|elem| !elem.is_unsigned_int());
    match function {
        ScalarFn::Neg => negated(cx, first),
        ScalarFn::Abs => match negated(cx, first).filter(|_| signed) {
            Some(x) => cx.emit_map(ScalarFn::Abs, &[x]),
            None => cx.operands_of(first, ScalarFn::Abs).map(|_| first),
        },
        ScalarFn::Add => match (negated(cx, first), negated(cx, last)) {
            (_, Some(y)) => cx.emit_map(ScalarFn::Sub, &[first, y]),
            (Some(x), None) => cx.emit_map(ScalarFn::Sub, &[last, x]),
            (None, None) => None,
        },
        ScalarFn::Sub => {
            let y = negated(cx, last)?;
            cx.emit_map(ScalarFn::Add, &[first, y])
        }
        ScalarFn::Mul => {
            let (x, y) = (negated(cx, first)?, negated(cx, last)?);
            cx.emit_map(ScalarFn::Mul, &[x, y])
        }
        _ => None,
    }
}

/// Extremes of a value and itself, or of a value and the neutral element.
pub(super) fn extremes(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    use ScalarFn::{FMax, FMin, Max, Min};
    let (function, a, b) = as_binary(op)?;
    float(cx, a)?;
    if !matches!(function, Max | Min | FMax | FMin) {
        return None;
    }
    let c = cx.constant(b);
    let same = a == b;
    let neutral = match function {
        Max => c.is_some_and(|c| is(c, f64::NEG_INFINITY)),
        Min => c.is_some_and(|c| is(c, f64::INFINITY)),
        _ => c.is_some_and(|c| c.as_f64().is_nan()),
    };
    (same || neutral).then_some(a)
}

/// Small whole powers are products, as in libtorch.
pub(super) fn power(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let (ScalarFn::Pow, x, y) = as_binary(op)? else { return None };
    let elem = float(cx, x)?;
    let c = cx.constant(y)?;
    let shape = cx.ty(x).shape.clone();
    let wide = matches!(elem, Elem::F32 | Elem::F64);
    match c.as_f64() {
        0.0 => Some(cx.emit_constant(Literal::float(elem, 1.0), &shape)),
        1.0 => Some(x),
        2.0 => cx.emit_map(ScalarFn::Mul, &[x, x]),
        3.0 if wide => {
            let square = cx.emit_map(ScalarFn::Mul, &[x, x])?;
            cx.emit_map(ScalarFn::Mul, &[square, x])
        }
        -1.0 => {
            let one = cx.emit_constant(Literal::float(elem, 1.0), &shape);
            cx.emit_map(ScalarFn::Div, &[one, x])
        }
        _ => None,
    }
}

/// `x * 1 + c` is a sum, `x * y + -0` a product.
pub(super) fn fma(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let (ScalarFn::Fma, &[a, b, c]) = as_map(op)? else { return None };
    let holds = |value, x| cx.constant(value).is_some_and(|l| is(l, x));
    match () {
        () if holds(b, 1.0) => cx.emit_map(ScalarFn::Add, &[a, c]),
        () if holds(a, 1.0) => cx.emit_map(ScalarFn::Add, &[b, c]),
        () if holds(c, -0.0) => cx.emit_map(ScalarFn::Mul, &[a, b]),
        () => None,
    }
}
