//! Moves out of a loop what is the same in every iteration: operations whose operands are defined outside of it. A
//! load moves only out of a loop that stores nothing and runs at least once.
//!
//! ```text
//! before                              after
//!   for %i in %z..%n step %one {        %b = map mul %x, %y
//!     %b = map mul %x, %y               for %i in %z..%n step %one {
//!     %c = map add %b, %i                 %c = map add %b, %i
//!     ...                                 ...
//! ```

use crate::program::{Op, OpKind, Program, Region, Value};

/// Hoists what does not depend on the iteration, innermost loops first.
pub fn licm(program: &mut Program) {
    let mut constants = vec![None; program.values.len()];
    program.walk(&mut |op| {
        if let (OpKind::Const(literal), Some(result)) = (&op.kind, op.results.first()) {
            constants[result.index()] = literal.as_i64();
        }
    });
    region(&mut program.body, &constants);
}

fn region(region: &mut Region, constants: &[Option<i64>]) {
    for mut op in std::mem::take(&mut region.ops) {
        for inner in &mut op.regions {
            self::region(inner, constants);
        }
        if op.kind == OpKind::For {
            hoist(&mut op, constants, &mut region.ops);
        }
        region.ops.push(op);
    }
}

/// Moves operations of the loop `op` to the end of `before`.
fn hoist(op: &mut Op, constants: &[Option<i64>], before: &mut Vec<Op>) {
    let bound = |index: usize| op.args.get(index).and_then(|v: &Value| constants[v.index()]);
    let runs = matches!((bound(0), bound(1)), (Some(lo), Some(hi)) if lo < hi);
    let loads = runs && !op.has_store();
    let mut inside = vec![false; constants.len()];
    for region in &mut op.regions {
        region.args.iter().for_each(|v| inside[v.index()] = true);
        for op in std::mem::take(&mut region.ops) {
            let movable = op.kind.is_pure() || (loads && matches!(op.kind, OpKind::Load { .. }));
            if movable && op.args.iter().all(|a| !inside[a.index()]) {
                before.push(op);
            } else {
                op.results.iter().for_each(|v| inside[v.index()] = true);
                region.ops.push(op);
            }
        }
    }
}
