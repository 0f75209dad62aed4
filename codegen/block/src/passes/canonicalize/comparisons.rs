//! Comparisons that others decide, or that need no wide numbers.

use super::{Cx, as_binary};
use crate::program::{Op, OpKind, Value};
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Literal};

/// `a < b & a >= b` is false, and so for every two comparisons that exclude each other, NaN or not.
pub(super) fn exclusive(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let (ScalarFn::And, x, y) = as_binary(op)? else { return None };
    let (f, a, b) = as_binary(cx.definition(x)?)?;
    let (g, c, d) = as_binary(cx.definition(y)?)?;
    let same = |p: Value, q: Value| p == q || cx.constant(p).is_some_and(|l| cx.constant(q) == Some(l));
    if !(same(a, c) && same(b, d) && (excludes(f, g) || excludes(g, f))) {
        return None;
    }
    let shape = cx.ty(x).shape.clone();
    Some(cx.emit_constant(Literal::int(Elem::Bool, 0), &shape))
}

fn excludes(f: ScalarFn, g: ScalarFn) -> bool {
    use ScalarFn::{Eq, Ge, Gt, Le, Lt, Ne};
    matches!((f, g), (Lt, Ge | Gt | Eq) | (Gt, Le | Eq) | (Eq, Ne))
}

/// An integer that was widened, compared with a constant that the narrow kind has, is compared in that.
pub(super) fn of_widened(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    use ScalarFn::{Eq, Ge, Gt, Le, Lt, Ne};
    let (function, a, b) = as_binary(op)?;
    if !matches!(function, Eq | Ne | Lt | Le | Gt | Ge) {
        return None;
    }
    let bound = cx.constant(b)?;
    let cast = cx.definition(a)?;
    let (OpKind::Cast(wide), &[narrow]) = (&cast.kind, cast.args.as_slice()) else { return None };
    let from = cx.ty(narrow).elem()?;
    // Signed kinds alone: each holds all of the smaller ones.
    let signed = |e: Elem| matches!(e, Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64);
    if !signed(from) || !signed(*wide) || from.bytes() >= wide.bytes() {
        return None;
    }
    let value = bound.bits as i64;
    let value = value << (64 - 8 * wide.bytes()) >> (64 - 8 * wide.bytes());
    let least = -1i64 << (8 * from.bytes() - 1);
    if value < least || value > -(least + 1) {
        return None;
    }
    let shape = cx.ty(b).shape.clone();
    let bound = cx.emit_constant(Literal::int(from, value), &shape);
    cx.emit_map(function, &[narrow, bound])
}
