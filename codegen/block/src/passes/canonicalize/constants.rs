//! Operations on constants.

use super::{Cx, as_binary};
use crate::eval;
use crate::program::{Op, OpKind, Value};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::Literal;

/// `f(c, d)` is a constant. Not where the sign or the bits of a NaN would show.
pub(super) fn scalar_function(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let args: Vec<Literal> = op.args.iter().map(|&a| cx.constant(a)).collect::<Option<_>>()?;
    let nan = |l: &Literal| l.elem.is_float() && l.as_f64().is_nan();
    let literal = match op.kind {
        OpKind::Map(ScalarFn::CopySign) if args.iter().any(nan) => return None,
        OpKind::Map(function) => eval::map_literals(function, &args)?,
        OpKind::Cast(to) => eval::cast_literal(*args.first()?, to),
        OpKind::Bitcast(to) => {
            Some(eval::bitcast_literal(*args.first()?, to)?).filter(|l| !nan(l) && !args.iter().any(nan))?
        }
        _ => return None,
    };
    let shape = cx.ty(*op.results.first()?).shape.clone();
    Some(cx.emit_constant(literal, &shape))
}

/// A constant in another shape is a constant, and so is a range of one value.
pub(super) fn movement(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let literal = match op.kind {
        OpKind::Range { start, len: 1 } => Literal::int(crate::types::Elem::I32, i64::from(start)),
        OpKind::Splat(_)
        | OpKind::ExpandDims(_)
        | OpKind::Broadcast(_)
        | OpKind::Reshape(_)
        | OpKind::Permute(_) => cx.constant(*op.args.first()?)?,
        _ => return None,
    };
    let shape = cx.ty(*op.results.first()?).shape.clone();
    Some(cx.emit_constant(literal, &shape))
}

/// A reduction over an extent of 1 only drops the axis, except that it makes +0 of -0 in a sum; one of a constant
/// by an idempotent combiner is that constant, and the sum of an integer one a multiple of it.
pub(super) fn reduction(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let OpKind::Reduce { combine, axis, masked: false } = op.kind else { return None };
    let &tile = op.args.first()?;
    let ty = cx.ty(tile).clone();
    let shape = cx.ty(*op.results.first()?).shape.clone();
    let idempotent = matches!(combine, ReduceFn::Max | ReduceFn::Min | ReduceFn::And | ReduceFn::Or);
    if let Some(literal) = cx.constant(tile).filter(|_| idempotent) {
        return Some(cx.emit_constant(literal, &shape));
    }
    let exact = combine != ReduceFn::Sum || !ty.elem()?.is_float();
    if let (Some(literal), ReduceFn::Sum, true) = (cx.constant(tile), combine, exact) {
        let times = i64::from(*ty.shape.get(usize::from(axis))?);
        let sum = Literal::int(literal.elem, literal.as_i64()?.wrapping_mul(times));
        return Some(cx.emit_constant(sum, &shape));
    }
    match ty.shape.get(usize::from(axis)) {
        Some(1) if exact => cx.emit(OpKind::Reshape(shape), &[tile]),
        _ => None,
    }
}

/// Nothing needs to be promised of a constant.
pub(super) fn promise(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let &value = op.args.first().filter(|_| matches!(op.kind, OpKind::Assume(_)))?;
    cx.constant(value).map(|_| value)
}

/// `f(c, x)` is `f(x, c)` for a commutative function.
pub(super) fn to_the_right(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let (function, a, b) = as_binary(op)?;
    let swap = function.is_commutative() && cx.constant(a).is_some() && cx.constant(b).is_none();
    if swap { cx.emit_map(function, &[b, a]) } else { None }
}
