//! Operations that pick elements of other tiles: by a bit of the position, or by an index.

use inkwell::IntPredicate;
use inkwell::values::InstructionOpcode as Op;
use tilefuse_block::{Op as BlockOp, Value};

use super::ir::{V, lanes_of, llvm, widen};
use super::memory::alignment;
use super::{At, Bound, Emitter};
use crate::Result;
use crate::host::plan::{Map, axis_ranges};

impl<'c> Emitter<'c, '_> {
    /// Elements of one tile or the other, by the lowest bit of the position.
    pub(super) fn joined(&mut self, op: &BlockOp, map: &Map) -> Result<At<'c>> {
        let ([even, odd], Some((&bit, rest))) = (op.args.as_slice(), map.split_first()) else {
            return Err(llvm("a join of nothing"));
        };
        if let Bound::Known(second) = self.bound[usize::from(bit)] {
            return self.value(if second { *odd } else { *even }, rest);
        }
        let (a, b) = (self.value(*even, rest)?, self.value(*odd, rest)?);
        let bit = self.weighted(&[bit], &[Some(0)], 32)?;
        let level = a.level.max(b.level).max(bit.level);
        self.at(level);
        let second = self.ir.icmp(IntPredicate::NE, bit.v, self.ir.int_like(bit.v, 0))?;
        Ok(At { v: self.ir.select(second, b.v, a.v)?, level })
    }

    /// Elements of a tile in a slot, by an index along an axis.
    pub(super) fn gathered(&mut self, op: &BlockOp, value: Value, axis: usize, map: &Map) -> Result<At<'c>> {
        let plan = self.plan;
        let ([source, index], Some(slot)) = (op.args.as_slice(), plan.gathered(value)) else {
            return Err(llvm("a tile to gather from that lies nowhere"));
        };
        let (from, to) = (&plan.program.ty(*source).shape, &plan.program.ty(value).shape);
        let (inner, along) = (axis_ranges(from)[axis].clone(), axis_ranges(to)[axis].clone());
        // The position in the source but for the axis; the bits above it are displaced where the extents differ.
        let mut weights: Vec<Option<u8>> = (0..map.len() as u8).map(Some).collect();
        for (bit, weight) in weights.iter_mut().enumerate().skip(along.start) {
            let above = bit.checked_sub(along.end).map(|k| (k + inner.end) as u8);
            *weight = if bit < along.end { None } else { above };
        }
        let others = self.weighted(map, &weights, 64)?;
        let index = self.value(*index, map)?;
        let memory = self.slot_memory(slot)?;
        let level = others.level.max(index.level).max(self.ready[slot]);
        self.at(level);
        let wide = self.ir.cast(Op::SExt, index.v, self.ir.int_type(64).into())?;
        let wrapped = self.ir.bin(Op::And, wide, self.ir.int_like(wide, (1i64 << inner.len()) - 1))?;
        let offset = self.ir.bin(Op::Shl, wrapped, self.ir.int_like(wrapped, inner.start as i64))?;
        let place = self.ir.bin(Op::Add, offset, others.v)?;
        let ty = self.slot_type(slot);
        let raw = match place {
            V::IntValue(place) => self.ir.load(ty, self.ir.element(ty, memory, place)?, alignment(ty))?,
            _ => {
                let n = lanes_of(place);
                let addresses = self.ir.elements(ty, memory, place)?;
                let vector = widen(ty, n);
                let all = self.ir.splat(self.ir.int_type(1).const_all_ones().into(), n);
                let zero = self.ir.splat(ty.const_zero(), n);
                let types = [vector, addresses.get_type()];
                self.ir.call("llvm.masked.gather", &types, &[addresses, all, zero])?
            }
        };
        Ok(At { v: self.fetched(slot, raw)?, level })
    }
}
