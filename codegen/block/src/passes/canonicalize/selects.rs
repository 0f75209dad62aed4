//! Selections and negations.

use super::{Cx, as_map};
use crate::program::{Op, OpKind, Value};
use crate::scalar_fn::ScalarFn;
use crate::types::Elem;

/// A selection that is known, between equals, of truth values, by a negation, or by the same condition again.
pub(super) fn select(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let (ScalarFn::Select, &[c, a, b]) = as_map(op)? else { return None };
    if a == b {
        return Some(a);
    }
    if let Some(known) = cx.constant(c) {
        return Some(if known.bits != 0 { a } else { b });
    }
    if let Some(inner) = cx.operands_of(c, ScalarFn::Not) {
        return cx.emit_map(ScalarFn::Select, &[*inner.first()?, b, a]);
    }
    if cx.ty(a).elem() == Some(Elem::Bool) {
        match (cx.constant(a).map(|l| l.bits), cx.constant(b).map(|l| l.bits)) {
            (Some(1), Some(0)) => return Some(c),
            (Some(0), Some(1)) => return cx.emit_map(ScalarFn::Not, &[c]),
            _ => {}
        }
    }
    let branch = |value, index: usize| {
        let inner = cx.operands_of(value, ScalarFn::Select)?;
        (inner.first() == Some(&c)).then(|| inner.get(index).copied())?
    };
    match (branch(a, 1), branch(b, 2)) {
        (None, None) => None,
        (x, y) => cx.emit_map(ScalarFn::Select, &[c, x.unwrap_or(a), y.unwrap_or(b)]),
    }
}

/// A negated negation or comparison. An ordered comparison of floats is not the negation of another one.
pub(super) fn not(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let (ScalarFn::Not, &[x]) = as_map(op)? else { return None };
    let (function, args) = match cx.definition(x)? {
        Op { kind: OpKind::Map(function), args, .. } => (*function, args.clone()),
        _ => return None,
    };
    let ordered = args.first().and_then(|&a| cx.ty(a).elem()).is_some_and(|e| !e.is_float());
    let negation = match function {
        ScalarFn::Not => return args.first().copied(),
        ScalarFn::Eq => ScalarFn::Ne,
        ScalarFn::Ne => ScalarFn::Eq,
        ScalarFn::Lt if ordered => ScalarFn::Ge,
        ScalarFn::Ge if ordered => ScalarFn::Lt,
        ScalarFn::Le if ordered => ScalarFn::Gt,
        ScalarFn::Gt if ordered => ScalarFn::Le,
        _ => return None,
    };
    cx.emit_map(negation, &args)
}
