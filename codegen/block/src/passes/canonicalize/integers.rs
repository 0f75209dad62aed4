//! Identities of integers and truth values.

use super::{Cx, as_binary};
use crate::eval;
use crate::program::{Op, Value};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::{Elem, Literal};

fn elem(cx: &Cx<'_>, value: Value) -> Option<Elem> {
    cx.ty(value).elem().filter(|e| !e.is_float())
}

/// Neutral and absorbing constants: `x + 0`, `x * 1`, `x * 0`, `x & -1`, `0 / x`, ...
pub(super) fn identity(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let (function, a, b) = as_binary(op)?;
    let elem = elem(cx, a)?;
    if let Some(c) = cx.constant(a) {
        return zero_on_the_left(cx, function, c, a, b);
    }
    let c = cx.constant(b)?;
    let is = |value: i64| c == Literal::int(elem, value);
    let extreme = |combine: ReduceFn| c == combine.neutral(elem);
    match function {
        ScalarFn::Add | ScalarFn::Sub | ScalarFn::Or | ScalarFn::Xor | ScalarFn::Shl | ScalarFn::Shr
            if is(0) =>
        {
            Some(a)
        }
        ScalarFn::Mul | ScalarFn::DivTrunc | ScalarFn::DivFloor if is(1) => Some(a),
        ScalarFn::And if is(-1) => Some(a),
        ScalarFn::Max if extreme(ReduceFn::Max) => Some(a),
        ScalarFn::Min if extreme(ReduceFn::Min) => Some(a),
        ScalarFn::Mul | ScalarFn::And if is(0) => Some(b),
        ScalarFn::Or if is(-1) => Some(b),
        ScalarFn::Max if extreme(ReduceFn::Min) => Some(b),
        ScalarFn::Min if extreme(ReduceFn::Max) => Some(b),
        ScalarFn::DivTrunc | ScalarFn::DivFloor | ScalarFn::RemTrunc | ScalarFn::RemFloor if is(0) => Some(b),
        ScalarFn::RemTrunc | ScalarFn::RemFloor if is(1) => zeros(cx, op),
        ScalarFn::Xor if is(-1) => cx.emit_map(ScalarFn::Not, &[a]),
        ScalarFn::Sub => {
            let negative = eval::map_literals(ScalarFn::Neg, &[c])?;
            let shape = cx.ty(b).shape.clone();
            let negative = cx.emit_constant(negative, &shape);
            cx.emit_map(ScalarFn::Add, &[a, negative])
        }
        _ => None,
    }
}

fn zero_on_the_left(cx: &mut Cx<'_>, function: ScalarFn, c: Literal, a: Value, b: Value) -> Option<Value> {
    use ScalarFn::{DivFloor, DivTrunc, RemFloor, RemTrunc, Shl, Shr, Sub};
    match function {
        Sub if c.bits == 0 => cx.emit_map(ScalarFn::Neg, &[b]),
        DivTrunc | DivFloor | RemTrunc | RemFloor | Shl | Shr if c.bits == 0 => Some(a),
        _ => None,
    }
}

fn zeros(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let ty = cx.ty(*op.results.first()?).clone();
    Some(cx.emit_constant(Literal::int(ty.elem()?, 0), &ty.shape))
}

/// `x - x`, `x & x`, `x < x`, ...
pub(super) fn same_operands(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    use ScalarFn::{And, Eq, Ge, Gt, Le, Lt, Max, Min, Ne, Or, RemFloor, RemTrunc, Sub, Xor};
    let (function, a, b) = as_binary(op)?;
    if a != b {
        return None;
    }
    elem(cx, a)?;
    match function {
        And | Or | Max | Min => Some(a),
        Sub | Xor | RemTrunc | RemFloor | Ne | Lt | Gt => zeros(cx, op),
        Eq | Le | Ge => {
            let shape = cx.ty(a).shape.clone();
            Some(cx.emit_constant(Literal::int(Elem::Bool, 1), &shape))
        }
        _ => None,
    }
}

/// `(x + c) + d` is `x + (c + d)`, and so for the other associative functions; of floats only the extremes are.
pub(super) fn reassociate(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    use ScalarFn::{Add, And, Max, Min, Mul, Or, Xor};
    let (function, a, b) = as_binary(op)?;
    let exact = elem(cx, a).is_some() || matches!(function, Max | Min);
    if !exact || !matches!(function, Add | Mul | And | Or | Xor | Max | Min) {
        return None;
    }
    let d = cx.constant(b)?;
    let inner = cx.operands_of(a, function)?;
    let &[x, c] = inner.as_slice() else { return None };
    let folded = eval::map_literals(function, &[cx.constant(c)?, d])?;
    let shape = cx.ty(b).shape.clone();
    let folded = cx.emit_constant(folded, &shape);
    cx.emit_map(function, &[x, folded])
}
