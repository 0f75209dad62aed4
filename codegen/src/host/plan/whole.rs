//! Operations that do not follow position bits.

use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use tilefuse_block::{Op, OpKind, Program, Shape, Value};

use super::build::Builder;
use super::{BlockId, Map, Sink, SinkKind, shape_bits};
use crate::Result;

impl<'p> Builder<'p> {
    /// An operation on whole tiles, whose results lie in slots.
    pub(super) fn whole(&mut self, op: &'p Op, block: BlockId) -> Result<()> {
        let sink = Sink::new(SinkKind::Whole(op), SmallVec::new(), Map::new(), Shape::new(), block);
        let sink = self.add(Sink { barrier: true, ..sink });
        for &result in &op.results {
            let carried = op.args.get(2).and_then(|sum| self.plan.slot_of.get(sum)).copied();
            if let Some(slot) = carried.filter(|_| self.sums.results.contains(&result)) {
                self.plan.sinks[sink].outs.push(slot);
                self.plan.slot_of.insert(result, slot);
                continue;
            }
            let ty = self.plan.program.ty(result);
            let bits = self.plan.classes.fresh_map(shape_bits(&ty.shape));
            let slot = self.slot(ty, bits)?;
            self.plan.slots[slot].row_major = true;
            self.plan.sinks[sink].outs.push(slot);
            self.plan.slot_of.insert(result, slot);
        }
        Ok(())
    }

    /// An atomic operation.
    pub(super) fn atomic(&mut self, op: &'p Op, block: BlockId) -> Result<()> {
        self.pointer(op)?;
        let ([_, roots @ ..], Some(&result)) = (op.args.as_slice(), op.results.first()) else {
            return Ok(());
        };
        let sink = self.sink(SinkKind::Atomic(op), SmallVec::from_slice(roots), result, block);
        let slot = self.slot(self.plan.program.ty(result), self.plan.sinks[sink].bits.clone())?;
        self.plan.sinks[sink].slot = Some(slot);
        self.plan.sinks[sink].barrier = true;
        self.plan.slot_of.insert(result, slot);
        Ok(())
    }
}

/// The values that must lie row-major in slots: operands of operations on whole tiles, and what is gathered from.
pub(super) fn whole_operands(program: &Program) -> FxHashSet<Value> {
    let mut out = FxHashSet::default();
    program.walk(&mut |op| match op.kind {
        OpKind::ReduceWith { .. }
        | OpKind::Scan { .. }
        | OpKind::Histogram { .. }
        | OpKind::Dot { .. }
        | OpKind::Print { .. }
        | OpKind::Assert { .. } => out.extend(op.args.iter().copied()),
        OpKind::Gather { .. } => out.extend(op.args.first().copied()),
        _ => {}
    });
    out
}
