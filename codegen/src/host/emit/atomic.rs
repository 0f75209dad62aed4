//! Atomic operations, lane after lane.

use inkwell::values::{BasicValue, PointerValue};
use inkwell::{AtomicOrdering, AtomicRMWBinOp};
use tilefuse_block::{AtomicFn, Elem, MemoryOrder, Op as BlockOp, OpKind, Value};

use super::ir::{V, llvm, widen};
use super::memory::alignment;
use super::whole::{Tile, int};
use super::{At, Emitter};
use crate::Result;
use crate::host::plan::Map;
use crate::scalar;

/// What happens to one element.
#[derive(Clone, Copy)]
enum Change {
    Combine(AtomicFn),
    /// The first operand is expected, the second one written.
    Swap,
}

impl<'c> Emitter<'c, '_> {
    /// An atomic operation at a map; gives what was in memory before, or 0 where it is masked off.
    pub(super) fn atomic_tile(&mut self, op: &BlockOp, map: &Map) -> Result<At<'c>> {
        let (change, masked, order) = match op.kind {
            OpKind::Atomic { function, masked, order, .. } => (Change::Combine(function), masked, order),
            OpKind::AtomicCas { order, .. } => (Change::Swap, false, order),
            _ => return Err(llvm("not an atomic operation")),
        };
        let [pointer, offsets, operands @ ..] = op.args.as_slice() else { return Err(llvm("no address")) };
        let elem = self.plan.program.ty(*pointer).pointee().unwrap_or(Elem::I32);
        let pointer = self.value(*pointer, &[])?.v.into_pointer_value();
        let (operands, mask) = operands.split_at(operands.len() - usize::from(masked));
        let mut values: Vec<V<'c>> = Vec::new();
        for &value in std::iter::once(offsets).chain(operands).chain(mask) {
            values.push(self.value(value, map)?.v);
        }
        let has_lanes = map.iter().any(|b| self.lanes.contains(b));
        let n = if has_lanes { 1u32 << self.lanes.len() } else { 0 };
        let top = self.top();
        let lanes = self.spilled(&values, std::iter::once(offsets).chain(operands).chain(mask), n)?;
        let result = self.ir.elem_type(elem);
        let before = self.variable(self.ir.splat(result.const_zero(), n))?;
        self.each(n.max(1).into(), |this, lane| {
            let mut operands = lanes.iter().map(|&t| this.get(t, lane, 0)).collect::<Result<Vec<V<'c>>>>()?;
            let taken = if masked { operands.pop() } else { None };
            let place = this.ir.element(this.ir.memory_type(elem), pointer, int(operands[0])?)?;
            let go = |this: &mut Self| {
                let old = this.change(change, elem, place, &operands[1..], ordering(order))?;
                this.put(Tile { memory: before, elem, narrow: false }, lane, old)
            };
            match taken {
                Some(taken) => this.when(int(taken)?, go),
                None => go(this),
            }
        })?;
        let v = self.ir.b.build_load(widen(result, n), before, "").map_err(llvm)?;
        Ok(At { v, level: top })
    }

    /// Variables with these vectors of values, to be read lane after lane.
    fn spilled<'a>(
        &mut self,
        vectors: &[V<'c>],
        values: impl Iterator<Item = &'a Value>,
        n: u32,
    ) -> Result<Vec<Tile<'c>>> {
        let mut out = Vec::new();
        for (&v, &value) in vectors.iter().zip(values) {
            let elem = self.plan.program.ty(value).elem().unwrap_or(Elem::I64);
            let top = self.top();
            self.at(top);
            let raw = if elem == Elem::Bool { self.narrowed(v, elem)? } else { v };
            out.push(Tile { memory: self.variable(self.ir.splat(raw, n))?, elem, narrow: false });
        }
        Ok(out)
    }

    /// Changes one element and gives what it was.
    fn change(
        &mut self,
        change: Change,
        elem: Elem,
        place: PointerValue<'c>,
        operands: &[V<'c>],
        order: AtomicOrdering,
    ) -> Result<V<'c>> {
        let bits = bits_of(elem);
        let Some(&first) = operands.first() else { return Err(llvm("no operand")) };
        let raw = int(scalar::bitcast(self, elem, bits, &first)?)?;
        let old = match change {
            Change::Swap => {
                let new = operands.get(1).copied().unwrap_or(first);
                let new = int(scalar::bitcast(self, elem, bits, &new)?)?;
                let pair = self.ir.b.build_cmpxchg(place, raw, new, order, failure(order)).map_err(llvm)?;
                self.ir.b.build_extract_value(pair, 0, "").map_err(llvm)?
            }
            Change::Combine(function) => match instruction(function, elem) {
                Some(op) => self.ir.b.build_atomicrmw(op, place, raw, order).map_err(llvm)?.into(),
                None => self.exchange_loop(function, elem, place, first, order)?,
            },
        };
        scalar::bitcast(self, bits, elem, &old)
    }

    /// Combines by reading, computing and exchanging until nothing has come between; gives the bits before.
    fn exchange_loop(
        &mut self,
        function: AtomicFn,
        elem: Elem,
        place: PointerValue<'c>,
        operand: V<'c>,
        order: AtomicOrdering,
    ) -> Result<V<'c>> {
        let bits = bits_of(elem);
        let (top, ty) = (self.top(), self.ir.int_type(elem.bits()));
        let seen = self.ir.load(ty.into(), place, alignment(ty.into()))?;
        if let Some(load) = seen.as_instruction_value() {
            load.set_atomic_ordering(AtomicOrdering::Monotonic).map_err(llvm)?;
        }
        let (again, done) = (
            self.ir.cx.append_basic_block(self.function, ""),
            self.ir.cx.append_basic_block(self.function, ""),
        );
        self.ir.b.build_unconditional_branch(again).map_err(llvm)?;
        self.ir.b.position_at_end(again);
        let old = self.ir.b.build_phi(ty, "").map_err(llvm)?;
        let value = scalar::bitcast(self, bits, elem, &old.as_basic_value())?;
        let new = scalar::atomic(self, function, elem, &value, &operand)?;
        let new = int(scalar::bitcast(self, elem, bits, &new)?)?;
        let expected = old.as_basic_value().into_int_value();
        let pair = self.ir.b.build_cmpxchg(place, expected, new, order, failure(order)).map_err(llvm)?;
        let found = self.ir.b.build_extract_value(pair, 0, "").map_err(llvm)?;
        let written = self.ir.b.build_extract_value(pair, 1, "").map_err(llvm)?;
        self.ir.b.build_conditional_branch(int(written)?, done, again).map_err(llvm)?;
        old.add_incoming(&[(&seen as &dyn BasicValue<'c>, self.levels[top].block), (&found, again)]);
        self.levels[top].block = done;
        self.at(top);
        Ok(found)
    }
}

/// The unsigned kind of as many bits.
fn bits_of(elem: Elem) -> Elem {
    match elem.bits() {
        16 => Elem::U16,
        32 => Elem::U32,
        _ => Elem::U64,
    }
}

/// The processor's instruction; none where a loop is needed.
fn instruction(function: AtomicFn, elem: Elem) -> Option<AtomicRMWBinOp> {
    let signed = elem.is_signed_int();
    match function {
        AtomicFn::Exchange => Some(AtomicRMWBinOp::Xchg),
        _ if !elem.is_int() => None,
        AtomicFn::Add => Some(AtomicRMWBinOp::Add),
        AtomicFn::Max if signed => Some(AtomicRMWBinOp::Max),
        AtomicFn::Max => Some(AtomicRMWBinOp::UMax),
        AtomicFn::Min if signed => Some(AtomicRMWBinOp::Min),
        AtomicFn::Min => Some(AtomicRMWBinOp::UMin),
        AtomicFn::And => Some(AtomicRMWBinOp::And),
        AtomicFn::Or => Some(AtomicRMWBinOp::Or),
        AtomicFn::Xor => Some(AtomicRMWBinOp::Xor),
    }
}

fn ordering(order: MemoryOrder) -> AtomicOrdering {
    match order {
        MemoryOrder::Relaxed => AtomicOrdering::Monotonic,
        MemoryOrder::Acquire => AtomicOrdering::Acquire,
        MemoryOrder::Release => AtomicOrdering::Release,
        MemoryOrder::AcqRel => AtomicOrdering::AcquireRelease,
    }
}

/// What a comparison that fails orders.
fn failure(order: AtomicOrdering) -> AtomicOrdering {
    match order {
        AtomicOrdering::Acquire | AtomicOrdering::AcquireRelease => AtomicOrdering::Acquire,
        _ => AtomicOrdering::Monotonic,
    }
}
