//! Values, built where they are demanded.

use inkwell::types::BasicTypeEnum;
use inkwell::values::{InstructionOpcode as Op, IntValue};
use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, Loc, Op as BlockOp, OpKind, Value};

use super::ir::{V, llvm};
use super::{At, Bound, Emitter};
use crate::Result;
use crate::host::plan::{Atom, Bit, Def, Map, Slot, SlotId, operands};
use crate::scalar;

impl<'c> Emitter<'c, '_> {
    /// The elements of a value at a map: a vector if it depends on lanes, else a scalar.
    pub(super) fn value(&mut self, value: Value, map: &[Bit]) -> Result<At<'c>> {
        let map = self.dependent(value, map);
        let key = (value, self.resolve(&map));
        if let Some(&at) = self.memo.get(&key) {
            return Ok(at);
        }
        let truth = self.plan.program.ty(value).elem() == Some(Elem::Bool);
        if truth && let Some(level) = self.known_at(value, &map) {
            let v = self.ir.int_type(1).const_all_ones().into();
            return Ok(At { v, level });
        }
        let at = self.build(value, &map)?;
        Ok(self.remember(key, at))
    }

    fn build(&mut self, value: Value, map: &Map) -> Result<At<'c>> {
        if let Some(&slot) = self.plan.slot_of.get(&value)
            && !self.unwritten.contains(&value)
        {
            return self.read_slot(slot, map);
        }
        match self.plan.defs[value.index()] {
            Def::Param(index) => self.argument(index, value),
            Def::Induction(id) => self.induction.get(&id).copied().ok_or_else(|| llvm("no loop counter")),
            Def::Op(op) => self.from(op.loc, |this| this.operation(op, value, map)),
            Def::None | Def::Carried => Err(llvm("a value that nothing defines")),
        }
    }

    /// What `build` builds comes from a location.
    pub(super) fn from<T>(&mut self, loc: Loc, build: impl FnOnce(&mut Self) -> T) -> T {
        let around = self.ir.set_loc(loc);
        let built = build(self);
        self.ir.set_loc(around);
        built
    }

    /// Builds an operation that is computed element by element.
    pub(super) fn operation(&mut self, op: &BlockOp, value: Value, map: &Map) -> Result<At<'c>> {
        let elem = self.plan.program.ty(value).elem().unwrap_or(Elem::I64);
        match &op.kind {
            OpKind::Const(literal) => Ok(At { v: self.literal(*literal), level: 0 }),
            OpKind::ProgramId(axis) => self.program_id(*axis),
            OpKind::NumPrograms(axis) => self.num_programs(*axis),
            OpKind::Range { start, .. } => self.range(*start, map),
            OpKind::Load { .. } => self.load_tile(op, value, map),
            OpKind::Join => self.joined(op, map),
            OpKind::Gather { axis } => self.gathered(op, value, usize::from(*axis), map),
            _ => {
                let plan = self.plan;
                let mut level = 0;
                let mut args: SmallVec<[V<'c>; 3]> = SmallVec::new();
                for (arg, map) in operands(plan.program, op, value, map) {
                    let at = self.value(arg, &map)?;
                    level = level.max(at.level);
                    args.push(at.v);
                }
                self.at(level);
                let v = self.elementwise(op, elem, &args)?;
                Ok(At { v, level })
            }
        }
    }

    pub(super) fn elementwise(&mut self, op: &BlockOp, elem: Elem, args: &[V<'c>]) -> Result<V<'c>> {
        match (&op.kind, args) {
            (OpKind::Map(_) | OpKind::Cast(_) | OpKind::Bitcast(_), _) => {
                scalar::operation(self, self.plan.program, op, args)
            }
            (OpKind::Reduce { combine, .. }, [a, mask]) => scalar::masked(self, *combine, elem, a, mask),
            (_, [a]) => Ok(*a),
            _ => Err(llvm(format!("{} is not element by element", op.kind.name()))),
        }
    }

    /// A literal as a scalar constant.
    pub(super) fn literal(&self, literal: Literal) -> V<'c> {
        match self.ir.elem_type(literal.elem) {
            inkwell::types::BasicTypeEnum::FloatType(t) => t.const_float(literal.as_f64()).into(),
            ty => self.ir.int_of(ty, 0, literal.bits as i64),
        }
    }

    fn range(&mut self, start: i32, map: &Map) -> Result<At<'c>> {
        let weights: Vec<Option<u8>> = (0..map.len() as u8).map(Some).collect();
        let at = self.weighted(map, &weights, 32)?;
        self.at(at.level);
        let v = self.ir.bin(Op::Add, at.v, self.ir.int_like(at.v, i64::from(start)))?;
        Ok(At { v, level: at.level })
    }

    /// The sum of the bits of a map, each times its power of two; bits without one are left out.
    pub(super) fn weighted(&mut self, map: &[Bit], weights: &[Option<u8>], width: u32) -> Result<At<'c>> {
        let bounds = self.resolve(map);
        let terms = || bounds.iter().zip(weights).filter_map(|(&b, &w)| w.map(|w| (b, w)));
        let mut constant = 0i64;
        let mut lane_weights: SmallVec<[(u8, u8); 6]> = SmallVec::new();
        let mut loops: SmallVec<[(u16, u8, u8); 12]> = SmallVec::new();
        for (bound, weight) in terms() {
            match bound {
                Bound::Known(bit) => constant += i64::from(bit) << weight,
                Bound::Lane(lane, _) => lane_weights.push((lane, weight)),
                Bound::Loop(level, shift) => loops.push((level, shift, weight)),
                Bound::Free => return Err(llvm("an iteration bit outside its loop")),
            }
        }
        let ty = self.ir.int_type(width);
        let mut at = At { v: ty.const_int(constant as u64, true).into(), level: 0 };
        loops.sort_unstable();
        for run in runs(&loops) {
            let part = self.counter_bits(run, width)?;
            let level = at.level.max(part.level);
            self.at(level);
            at = At { v: self.ir.bin(Op::Add, at.v, part.v)?, level };
        }
        if !lane_weights.is_empty() {
            let lanes = self.lane_numbers(&lane_weights);
            self.at(at.level);
            at.v = self.ir.bin(Op::Add, self.ir.int_vector(ty, &lanes), at.v)?;
        }
        Ok(at)
    }

    fn lane_numbers(&self, weights: &[(u8, u8)]) -> Vec<i64> {
        let value = |lane: i64| weights.iter().map(|&(bit, w)| (lane >> bit & 1) << w).sum();
        (0..1i64 << self.lanes.len()).map(value).collect()
    }

    /// Consecutive bits of a loop's counter, shifted to their weight.
    fn counter_bits(&mut self, run: &[(u16, u8, u8)], width: u32) -> Result<At<'c>> {
        let (level, shift, weight) = run[0];
        let level = usize::from(level);
        let open = self.levels.get(level).and_then(|l| Some((l.bits, l.counter?)));
        let (bits, counter): (u8, IntValue<'c>) =
            open.ok_or_else(|| llvm("an iteration bit outside its loop"))?;
        self.at(level);
        let ir = &self.ir;
        let mut v = ir.cast(Op::Trunc, counter.into(), ir.int_type(width).into())?;
        if shift > 0 {
            v = ir.bin(Op::LShr, v, ir.int_like(v, i64::from(shift)))?;
        }
        if usize::from(shift) + run.len() < usize::from(bits) {
            v = ir.bin(Op::And, v, ir.int_like(v, (1i64 << run.len()) - 1))?;
        }
        if weight > 0 {
            v = ir.bin(Op::Shl, v, ir.int_like(v, i64::from(weight)))?;
        }
        Ok(At { v, level })
    }

    /// The level from which a conjunct is known to hold, if it is.
    fn known_at(&self, value: Value, map: &Map) -> Option<usize> {
        let bounds = self.resolve(map);
        let same = |atom: &Atom| atom.value == value && self.resolve(&atom.map) == bounds;
        self.known.iter().find(|(atom, _)| same(atom)).map(|&(_, level)| level)
    }

    /// A mask without the conjuncts that are known to hold, or nothing where all are; and its level.
    pub(super) fn mask(&mut self, mask: Value, map: &[Bit]) -> Result<(Option<V<'c>>, usize)> {
        let mut atoms = Vec::new();
        self.plan.atoms(mask, map, &mut atoms);
        let mut level = 0;
        let mut all: Option<V<'c>> = None;
        for atom in atoms {
            if let Some(known) = self.known_at(atom.value, &atom.map) {
                level = level.max(known);
                continue;
            }
            let at = self.value(atom.value, &atom.map)?;
            level = level.max(at.level);
            self.at(level);
            all = Some(match all {
                Some(other) => self.ir.bin(Op::And, other, at.v)?,
                None => at.v,
            });
        }
        Ok((all, level))
    }

    /// Fills a slot at a map from a value at the top level.
    pub(super) fn write_slot(&mut self, slot: SlotId, map: &[Bit], v: V<'c>) -> Result<()> {
        let memory = self.slot_memory(slot)?;
        let top = self.top();
        self.at(top);
        let raw = self.stored(slot, v)?;
        self.write(super::memory::Index::Slot(slot, memory), map, raw, None)
    }

    /// Reads a slot at a map.
    pub(super) fn read_slot(&mut self, slot: SlotId, map: &Map) -> Result<At<'c>> {
        let memory = self.slot_memory(slot)?;
        let ty = self.slot_type(slot);
        let at = self.read(super::memory::Index::Slot(slot, memory), map, ty, None)?;
        self.at(at.level);
        Ok(At { v: self.fetched(slot, at.v)?, level: at.level })
    }

    /// The type of an element of a slot.
    pub(super) fn slot_type(&self, slot: SlotId) -> BasicTypeEnum<'c> {
        let slot = &self.plan.slots[slot];
        if slot.narrow { self.ir.memory_type(slot.elem) } else { self.ir.storage_type(slot.elem) }
    }

    /// What stands in a slot for a value in a register.
    fn stored(&self, slot: SlotId, v: V<'c>) -> Result<V<'c>> {
        match &self.plan.slots[slot] {
            Slot { narrow: true, elem: Elem::Bf16, .. } => self.upper_half(v),
            Slot { narrow, elem, .. } if *narrow || *elem == Elem::Bool => self.narrowed(v, *elem),
            _ => Ok(v),
        }
    }

    /// The value in a register for what stands in a slot.
    pub(super) fn fetched(&self, slot: SlotId, v: V<'c>) -> Result<V<'c>> {
        let slot = &self.plan.slots[slot];
        if slot.narrow || slot.elem == Elem::Bool { self.widened(v, slot.elem) } else { Ok(v) }
    }
}

/// Runs of bits that follow each other in one counter and in weight.
fn runs(loops: &[(u16, u8, u8)]) -> impl Iterator<Item = &[(u16, u8, u8)]> {
    loops.chunk_by(|a, b| a.0 == b.0 && a.1 + 1 == b.1 && a.2 + 1 == b.2)
}
