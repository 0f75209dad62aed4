//! Masks that are known.

use smallvec::SmallVec;

use super::Cx;
use crate::program::{Op, OpKind, Value};
use crate::types::Literal;

/// A mask that is always set is dropped; a load with one that is never set is its fallback.
pub(super) fn constant(cx: &mut Cx<'_>, op: &Op) -> Option<Value> {
    let without = |index: usize| -> SmallVec<[Value; 4]> {
        let kept = op.args.iter().enumerate().filter(|&(i, _)| i != index);
        kept.map(|(_, &v)| v).collect()
    };
    match op.kind {
        OpKind::Load { masked: false, other: true, hint } => {
            cx.emit(OpKind::Load { masked: false, other: false, hint }, &without(2))
        }
        OpKind::Load { masked: true, other, hint } => match (cx.constant(*op.args.get(2)?)?.bits, other) {
            (0, true) => op.args.get(3).copied(),
            (0, false) => {
                let ty = cx.ty(*op.results.first()?).clone();
                Some(cx.emit_constant(Literal { elem: ty.elem()?, bits: 0 }, &ty.shape))
            }
            _ => cx.emit(OpKind::Load { masked: false, other, hint }, &without(2)),
        },
        OpKind::Reduce { combine, axis, masked: true } => {
            cx.constant(*op.args.get(1)?).filter(|mask| mask.bits != 0)?;
            cx.emit(OpKind::Reduce { combine, axis, masked: false }, &without(1))
        }
        _ => None,
    }
}

/// Drops a store's mask that is always set; gives nothing for a store whose mask never is. Any other operation
/// comes back as it is.
pub(super) fn store(cx: &Cx<'_>, mut op: Op) -> Option<Op> {
    let OpKind::Store { masked: true, hint } = op.kind else { return Some(op) };
    match op.args.get(3).and_then(|&mask| cx.constant(mask)) {
        Some(mask) if mask.bits == 0 => return None,
        Some(_) => {
            op.args.truncate(3);
            op.kind = OpKind::Store { masked: false, hint };
        }
        None => {}
    }
    Some(op)
}
