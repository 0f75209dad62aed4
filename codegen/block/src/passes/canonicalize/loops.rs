//! Loops that are known to run once or never.

use super::Cx;
use crate::program::{Op, OpKind, Value};

/// Puts the body of a loop of one iteration, or nothing for a loop of none, in its place. Gives back any other
/// operation.
pub(super) fn unroll(cx: &mut Cx<'_>, op: Op) -> Option<Op> {
    let Some(trips) = trips(cx, &op).filter(|&n| n <= 1) else { return Some(op) };
    let mut values: Vec<Value> = op.args.iter().skip(3).copied().collect();
    if let (1, Some(region)) = (trips, op.regions.into_iter().next()) {
        let handed = op.args.first().copied().into_iter().chain(values.iter().copied());
        for (arg, value) in region.args.iter().zip(handed) {
            cx.forward[arg.index()] = value;
        }
        for inner in region.ops {
            if inner.kind == OpKind::Yield {
                values = inner.args.iter().map(|v| cx.forward[v.index()]).collect();
            } else {
                cx.op(inner);
            }
        }
    }
    for (result, value) in op.results.iter().zip(values) {
        cx.forward[result.index()] = value;
    }
    None
}

/// The number of iterations, where bounds and step are constants.
fn trips(cx: &Cx<'_>, op: &Op) -> Option<i64> {
    if op.kind != OpKind::For {
        return None;
    }
    let bound = |index: usize| cx.constant(*op.args.get(index)?)?.as_i64();
    let (lo, hi, step) = (bound(0)?, bound(1)?, bound(2)?);
    (step > 0).then(|| ((hi - lo).max(0) + step - 1) / step)
}
