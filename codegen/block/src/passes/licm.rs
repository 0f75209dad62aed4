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
    let mut cx = Cx { constants, defined_in: vec![0; program.values.len()], loops: 0 };
    cx.region(&mut program.body);
}

struct Cx {
    /// The number that a value is known to be.
    constants: Vec<Option<i64>>,
    /// The last visited loop that defines a value; loops are counted from 1.
    defined_in: Vec<u32>,
    loops: u32,
}

impl Cx {
    fn region(&mut self, region: &mut Region) {
        for mut op in std::mem::take(&mut region.ops) {
            op.regions.iter_mut().for_each(|inner| self.region(inner));
            if matches!(op.kind, OpKind::For | OpKind::While) {
                self.hoist(&mut op, &mut region.ops);
            }
            region.ops.push(op);
        }
    }

    /// Moves operations of the loop `op` to the end of `before`.
    fn hoist(&mut self, op: &mut Op, before: &mut Vec<Op>) {
        let bound = |index: usize| op.args.get(index).and_then(|v: &Value| self.constants[v.index()]);
        let counted = op.kind == OpKind::For;
        let runs = counted && matches!((bound(0), bound(1)), (Some(lo), Some(hi)) if lo < hi);
        let loads = runs && !op.has_store();
        self.loops += 1;
        for region in &mut op.regions {
            self.define(&region.args);
            for op in std::mem::take(&mut region.ops) {
                let movable = op.kind.is_pure() || (loads && matches!(op.kind, OpKind::Load { .. }));
                if movable && op.args.iter().all(|a| self.defined_in[a.index()] != self.loops) {
                    before.push(op);
                } else {
                    self.define(&op.results);
                    region.ops.push(op);
                }
            }
        }
    }

    fn define(&mut self, values: &[Value]) {
        values.iter().for_each(|v| self.defined_in[v.index()] = self.loops);
    }
}
