//! Operations on whole tiles that lie in slots, element after element in the order of their positions.

use inkwell::IntPredicate;
use inkwell::types::BasicTypeEnum;
use inkwell::values::{InstructionOpcode as Op, IntValue, PointerValue};
use tilefuse_block::{Elem, Op as BlockOp, OpKind, Value};

use super::Emitter;
use super::ir::{V, lanes_of, llvm, widen};
use super::memory::alignment;
use crate::Result;
use crate::host::plan::Slot;

/// A tile in memory, row-major.
#[derive(Clone, Copy)]
pub(super) struct Tile<'c> {
    pub(super) memory: PointerValue<'c>,
    pub(super) elem: Elem,
    /// Whether elements lie as in memory where that is narrower than in registers.
    pub(super) narrow: bool,
}

pub(super) fn int(v: V<'_>) -> Result<IntValue<'_>> {
    if let V::IntValue(v) = v { Ok(v) } else { Err(llvm("no scalar integer")) }
}

impl<'c> Emitter<'c, '_> {
    pub(super) fn whole(&mut self, op: &BlockOp) -> Result<()> {
        let top = self.top();
        self.at(top);
        match &op.kind {
            OpKind::ReduceWith { axis } => self.combine_along(op, usize::from(*axis), None),
            OpKind::Scan { axis, reverse } => self.combine_along(op, usize::from(*axis), Some(*reverse)),
            OpKind::Histogram { bins, masked } => self.histogram(op, *bins, *masked),
            OpKind::Dot { .. } => self.dot(op),
            OpKind::Print { prefix, hex } => self.print(op, prefix, *hex),
            OpKind::Assert { message, masked } => self.assert(op, message, *masked),
            other => Err(llvm(format!("{} takes no whole tiles", other.name()))),
        }
    }

    /// The tile that an operand or a result of such an operation is.
    pub(super) fn tile(&mut self, value: Value) -> Result<Tile<'c>> {
        let slot = self.plan.rows.get(&value).or_else(|| self.plan.slot_of.get(&value));
        let &slot = slot.ok_or_else(|| llvm("a tile that lies nowhere"))?;
        let memory = self.slot_memory(slot)?;
        let top = self.top();
        self.at(top);
        let Slot { elem, narrow, .. } = self.plan.slots[slot];
        Ok(Tile { memory, elem, narrow })
    }

    pub(super) fn tiles(&mut self, values: &[Value]) -> Result<Vec<Tile<'c>>> {
        values.iter().map(|&v| self.tile(v)).collect()
    }

    /// Runs `body` with every number below `count`, and builds at the top level afterwards.
    pub(super) fn each(
        &mut self,
        count: u64,
        body: impl FnOnce(&mut Self, IntValue<'c>) -> Result<()>,
    ) -> Result<()> {
        let zero = self.ir.i64(0);
        if count == 1 {
            return body(self, zero);
        }
        let depth = self.levels.len();
        self.open_loop(zero, self.ir.i64(count as i64), 0);
        let top = self.top();
        let counter = self.levels[top].counter.ok_or_else(|| llvm("no counter"))?;
        self.at(top);
        body(self, counter)?;
        self.close_to(depth)?;
        self.at(depth - 1);
        Ok(())
    }

    /// Runs `body` where a condition that was built at the top level holds.
    pub(super) fn when(
        &mut self,
        cond: IntValue<'c>,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let depth = self.levels.len();
        self.open_branch(cond);
        self.at(depth);
        body(self)?;
        self.close_to(depth)?;
        self.at(depth - 1);
        Ok(())
    }

    /// `a * factor + b`.
    pub(super) fn linear(&self, a: IntValue<'c>, factor: u64, b: IntValue<'c>) -> Result<IntValue<'c>> {
        let scaled = self.ir.bin(Op::Mul, a.into(), self.ir.i64(factor as i64).into())?;
        int(self.ir.bin(Op::Add, scaled, b.into())?)
    }

    /// `n` elements from a position on; one as a scalar where `n` is 0.
    pub(super) fn get(&self, tile: Tile<'c>, at: IntValue<'c>, n: u32) -> Result<V<'c>> {
        let ty = self.tile_type(tile);
        let place = self.ir.element(ty, tile.memory, at)?;
        let raw = self.ir.load(widen(ty, n), place, alignment(ty))?;
        if tile.narrow || tile.elem == Elem::Bool { self.widened(raw, tile.elem) } else { Ok(raw) }
    }

    /// Writes elements from a position on.
    pub(super) fn put(&self, tile: Tile<'c>, at: IntValue<'c>, v: V<'c>) -> Result<()> {
        let ty = self.tile_type(tile);
        let place = self.ir.element(ty, tile.memory, at)?;
        let raw = if tile.narrow || tile.elem == Elem::Bool { self.narrowed(v, tile.elem)? } else { v };
        self.ir.store(raw, place, alignment(ty))
    }

    fn tile_type(&self, tile: Tile<'c>) -> BasicTypeEnum<'c> {
        if tile.narrow { self.ir.memory_type(tile.elem) } else { self.ir.storage_type(tile.elem) }
    }

    /// Lanes for runs of `extent` elements of 32 bits; 0 where there is but one.
    pub(super) fn lanes_for(&self, extent: u64) -> u32 {
        match extent.min(1 << self.plan.width) as u32 {
            1 => 0,
            n => n,
        }
    }

    /// A variable of the function with a value, set at the top level.
    pub(super) fn variable(&mut self, value: V<'c>) -> Result<PointerValue<'c>> {
        let top = self.top();
        self.at(0);
        let variable = self.ir.b.build_alloca(value.get_type(), "").map_err(llvm)?;
        self.at(top);
        self.ir.b.build_store(variable, value).map_err(llvm)?;
        Ok(variable)
    }

    fn histogram(&mut self, op: &BlockOp, bins: u32, masked: bool) -> Result<()> {
        let (&from, &result) = op.args.first().zip(op.results.first()).ok_or_else(|| llvm("no operands"))?;
        let (tile, counts) = (self.tile(from)?, self.tile(result)?);
        let mask = op.args.get(1).filter(|_| masked).map(|&m| self.tile(m)).transpose()?;
        let n = self.lanes_for(bins.into());
        let count_type = self.ir.int_type(32);
        let zero = self.ir.int_of(count_type.into(), n, 0);
        self.each(u64::from(bins) / u64::from(n.max(1)), |this, chunk| {
            let at = this.linear(chunk, n.max(1).into(), this.ir.i64(0))?;
            this.put(counts, at, zero)
        })?;
        self.each(self.plan.program.ty(from).numel(), |this, at| {
            let value = this.get(tile, at, 0)?;
            let extend = if tile.elem.is_signed_int() { Op::SExt } else { Op::ZExt };
            let wide = int(this.ir.cast(extend, value, this.ir.int_type(64).into())?)?;
            let mut counted =
                this.ir.icmp(IntPredicate::ULT, wide.into(), this.ir.i64(bins.into()).into())?;
            if let Some(mask) = mask {
                counted = this.ir.bin(Op::And, counted, this.get(mask, at, 0)?)?;
            }
            this.when(int(counted)?, |this| {
                let old = this.get(counts, wide, 0)?;
                let new = this.ir.bin(Op::Add, old, this.ir.int_like(old, 1))?;
                this.put(counts, wide, new)
            })
        })
    }

    /// Whether any lane of a truth value holds.
    pub(super) fn any(&self, v: V<'c>) -> Result<IntValue<'c>> {
        match lanes_of(v) {
            0 => int(v),
            _ => int(self.ir.call("llvm.vector.reduce.or", &[v.get_type()], &[v])?),
        }
    }
}
