//! Operations that move elements, and functions of what they give.

use smallvec::SmallVec;

use super::Cx;
use crate::program::{Op, OpKind, Value};
use crate::types::Shape;

/// What changes neither shape nor kind is its operand.
pub(super) fn trivial(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let &tile = op.args.first()?;
    let same = cx.ty(tile) == cx.ty(*op.results.first()?);
    let trivial = match &op.kind {
        OpKind::Splat(_) | OpKind::Broadcast(_) | OpKind::Reshape(_) => same,
        OpKind::Cast(_) | OpKind::Bitcast(_) => same,
        OpKind::Permute(perm) => perm.iter().enumerate().all(|(i, &axis)| i == usize::from(axis)),
        _ => false,
    };
    trivial.then_some(tile)
}

/// A splat in another shape is a splat.
pub(super) fn of_splat(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    match op.kind {
        OpKind::ExpandDims(_) | OpKind::Broadcast(_) | OpKind::Reshape(_) | OpKind::Permute(_) => {}
        _ => return None,
    }
    let scalar = splat(cx, *op.args.first()?)?;
    let shape = cx.ty(*op.results.first()?).shape.clone();
    cx.emit(OpKind::Splat(shape), &[scalar])
}

/// Two movements of one kind are one.
pub(super) fn composed(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let inner = cx.definition(*op.args.first()?)?;
    let &x = inner.args.first()?;
    let kind = match (&op.kind, &inner.kind) {
        (OpKind::Reshape(_), OpKind::Reshape(_) | OpKind::ExpandDims(_))
        | (OpKind::Broadcast(_), OpKind::Broadcast(_))
        | (OpKind::Bitcast(_), OpKind::Bitcast(_)) => op.kind.clone(),
        (OpKind::Permute(outer), OpKind::Permute(first)) => OpKind::Permute(
            outer.iter().map(|&axis| first.get(usize::from(axis)).copied()).collect::<Option<_>>()?,
        ),
        _ => return None,
    };
    cx.emit(kind, &[x])
}

fn splat(cx: &Cx<'_>, value: Value) -> Option<Value> {
    let op = cx.definition(value)?;
    match op.kind {
        OpKind::Splat(_) => op.args.first().copied(),
        _ => None,
    }
}

/// A function of splats and constants is the splat of the function of scalars.
pub(super) fn function_of_splats(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    if !is_function(op) || !op.args.iter().any(|&a| splat(cx, a).is_some()) {
        return None;
    }
    let scalars = on_smaller(cx, &op.args, &Shape::new(), splat)?;
    let scalar = cx.emit(op.kind.clone(), &scalars)?;
    let shape = cx.ty(*op.results.first()?).shape.clone();
    cx.emit(OpKind::Splat(shape), &[scalar])
}

/// A function of tiles that are repeated, or expanded, alike is computed before that.
pub(super) fn function_of_broadcasts(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    if is_function(op) { of_broadcasts(cx, op, 0) } else { None }
}

/// What is loaded from addresses that are repeated, or expanded, is so too. With a mask it may not be, which may leave out other
/// elements of each row.
pub(super) fn load_of_broadcast(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let whole = matches!(op.kind, OpKind::Load { masked: false, other: false, .. });
    if whole { of_broadcasts(cx, op, 1) } else { None }
}

/// The operation before its operands, without so many scalars in front, are repeated or expanded.
fn of_broadcasts(cx: &mut Cx<'_>, op: &Op, scalars: usize) -> Option<Value> {
    let moves = |op: &&Op| matches!(op.kind, OpKind::Broadcast(_) | OpKind::ExpandDims(_));
    let first = op.args.iter().skip(scalars).find_map(|&a| cx.definition(a).filter(moves))?;
    let (kind, from) = (first.kind.clone(), cx.ty(*first.args.first()?).shape.clone());
    let source = |cx: &Cx<'_>, value: Value| {
        let op = cx.definition(value).filter(|op| op.kind == kind)?;
        op.args.first().copied().filter(|&x| cx.ty(x).shape == from)
    };
    let tiles = on_smaller(cx, op.args.get(scalars..)?, &from, source)?;
    let args: SmallVec<[Value; 4]> = op.args.iter().copied().take(scalars).chain(tiles).collect();
    let small = cx.emit(op.kind.clone(), &args)?;
    cx.emit(kind, &[small])
}

fn is_function(op: &Op) -> bool {
    matches!(op.kind, OpKind::Map(_) | OpKind::Cast(_) | OpKind::Bitcast(_))
}

/// Operands in a smaller shape: what `source` gives, or else constants and splats.
fn on_smaller(
    cx: &mut Cx<'_>,
    args: &[Value],
    shape: &Shape,
    source: impl Fn(&Cx<'_>, Value) -> Option<Value>,
) -> Option<SmallVec<[Value; 4]>> {
    let fits =
        |cx: &Cx<'_>, a: Value| source(cx, a).is_some() || cx.constant(a).is_some() || splat(cx, a).is_some();
    if !args.iter().all(|&a| fits(cx, a)) {
        return None;
    }
    let mut small = SmallVec::new();
    for &arg in args {
        small.push(match (source(cx, arg), cx.constant(arg), splat(cx, arg)) {
            (Some(value), _, _) => value,
            (_, Some(literal), _) => cx.emit_constant(literal, shape),
            (_, _, Some(scalar)) => cx.emit(OpKind::Splat(shape.clone()), &[scalar])?,
            _ => return None,
        });
    }
    Some(small)
}
