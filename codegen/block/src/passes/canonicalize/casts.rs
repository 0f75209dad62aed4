//! Casts of casts.

use super::Cx;
use crate::program::{Op, OpKind, Value};
use crate::types::Elem;

/// A cast of a cast is one cast where the first one loses nothing that the second one shows.
pub(super) fn cast_of_cast(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let OpKind::Cast(to) = op.kind else { return None };
    let inner = cx.definition(*op.args.first()?)?;
    let OpKind::Cast(middle) = inner.kind else { return None };
    let &x = inner.args.first()?;
    let from = cx.ty(x).elem()?;
    let direct = (is_exact(from, middle) && !leaves_range(from, middle, to)) || wraps(from, middle, to);
    if direct { cx.emit(OpKind::Cast(to), &[x]) } else { None }
}

/// Whether every value of one kind is a value of the other, and converts to it.
fn is_exact(from: Elem, to: Elem) -> bool {
    let unsigned = !from.is_signed_int();
    match (from.is_float(), to.is_float()) {
        _ if from == to => true,
        (true, true) => mantissa(from) <= mantissa(to) && to.bits() > from.bits(),
        (true, false) => false,
        (false, true) => magnitude(from) <= mantissa(to),
        (false, false) if to == Elem::Bool => false,
        (false, false) => {
            let fits = magnitude(from) <= magnitude(to);
            fits && (unsigned || to.is_signed_int())
        }
    }
}

/// Bits of the largest magnitude of an integer kind.
fn magnitude(elem: Elem) -> u32 {
    if elem.is_signed_int() { elem.bits() - 1 } else { elem.bits() }
}

/// Bits of precision of a floating-point kind; 0 for others.
fn mantissa(elem: Elem) -> u32 {
    match elem {
        Elem::F16 => 11,
        Elem::Bf16 => 8,
        Elem::F32 => 24,
        Elem::F64 => 53,
        _ => 0,
    }
}

/// Whether an integer that went through a float could be out of range of what floats convert to, where the integer
/// itself would wrap.
fn leaves_range(from: Elem, middle: Elem, to: Elem) -> bool {
    let wide = matches!(to, Elem::U32 | Elem::I64 | Elem::U64 | Elem::Bool) || to.is_float();
    middle.is_float() && from == Elem::U32 && !wide
}

/// Whether all three are integers and the last is no wider than the middle one, so that both casts only wrap.
fn wraps(from: Elem, middle: Elem, to: Elem) -> bool {
    from.is_int() && middle.is_int() && to.is_int() && to.bits() <= middle.bits()
}
