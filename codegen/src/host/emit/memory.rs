//! Reads and writes of elements: contiguous vectors where the lanes are contiguous, parts of vectors where low lanes
//! are, gathers and scatters else. Nothing that is masked off is touched.

use inkwell::types::BasicTypeEnum;
use inkwell::values::PointerValue;
use tilefuse_block::{CacheHint, Elem, Op as BlockOp, OpKind, Value};

use super::ir::{V, lane_type, lanes_of, llvm, widen};
use super::{At, Emitter};
use crate::Result;
use crate::host::plan::{Bit, Map, ONE, SlotId, ZERO};

/// Which element of which array.
#[derive(Clone, Copy)]
pub(super) enum Index<'c> {
    /// At these offsets.
    Offsets(Value, PointerValue<'c>),
    /// Of a slot.
    Slot(SlotId, PointerValue<'c>),
}

impl<'c> Index<'c> {
    fn memory(self) -> PointerValue<'c> {
        match self {
            Index::Offsets(_, ptr) | Index::Slot(_, ptr) => ptr,
        }
    }
}

/// Most parts that a vector is put together from before it is gathered.
const MAX_PARTS: u32 = 4;

/// A mask, and the level where it is built or known to hold.
pub(super) type Mask<'c> = (Option<V<'c>>, usize);

impl<'c> Emitter<'c, '_> {
    /// A load of the block program, at a map.
    pub(super) fn load_tile(&mut self, op: &BlockOp, value: Value, map: &Map) -> Result<At<'c>> {
        let OpKind::Load { masked, other, .. } = op.kind else { return Err(llvm("not a load")) };
        if let Some(at) = self.load_transposed(op, value, map)? {
            return Ok(at);
        }
        let elem = self.plan.program.ty(value).elem().unwrap_or(Elem::F32);
        let (Some(&ptr), Some(&offsets)) = (op.args.first(), op.args.get(1)) else {
            return Err(llvm("no address"));
        };
        let pointer = self.value(ptr, &[])?.v.into_pointer_value();
        let (cond, mut floor) = match op.args.get(2).filter(|_| masked) {
            Some(&mask) => self.mask(mask, map)?,
            None => (None, 0),
        };
        let home = self.plan.home[value.index()];
        floor = floor.max(self.block_levels[home]);
        let ty = self.ir.memory_type(elem);
        let index = Index::Offsets(offsets, pointer);
        self.fetch_for_load((ptr, offsets), map)?;
        let raw = self.read(index, map, ty, Some((cond, floor)))?;
        self.at(raw.level);
        let loaded = At { v: self.widened(raw.v, elem)?, level: raw.level };
        match (cond, op.args.get(3).filter(|_| other)) {
            (Some(cond), Some(&fallback)) => {
                let fallback = self.value(fallback, map)?;
                let level = loaded.level.max(fallback.level);
                self.at(level);
                Ok(At { v: self.ir.select(cond, loaded.v, fallback.v)?, level })
            }
            _ => Ok(loaded),
        }
    }

    /// The factor of a lane bit in an index, if it is a known number.
    pub(super) fn stride(&self, index: Index<'c>, map: &[Bit], bit: Bit) -> Option<i64> {
        match index {
            Index::Offsets(value, _) => self.plan.affine(value, map).stride(bit),
            Index::Slot(slot, _) => {
                let places = map.iter().zip(&self.plan.slots[slot].weights).filter(|(b, _)| **b == bit);
                Some(places.filter_map(|(_, w)| w.map(|w| 1i64 << w)).sum())
            }
        }
    }

    /// The index at a map; a vector if it depends on lanes.
    pub(super) fn index(&mut self, index: Index<'c>, map: &[Bit]) -> Result<At<'c>> {
        match index {
            Index::Offsets(value, _) => self.value(value, map),
            Index::Slot(slot, _) => {
                let weights = self.plan.slots[slot].weights.clone();
                let at = self.weighted(map, &weights, 32)?;
                Ok(At { v: at.v, level: at.level.max(self.ready[slot]) })
            }
        }
    }

    pub(super) fn address(
        &mut self,
        index: Index<'c>,
        map: &[Bit],
        ty: BasicTypeEnum<'c>,
        floor: usize,
    ) -> Result<At<'c>> {
        let at = self.index(index, map)?;
        let level = at.level.max(floor);
        self.at(level);
        let V::IntValue(offset) = at.v else { return Err(llvm("a scalar index with lanes")) };
        Ok(At { v: self.ir.element(ty, index.memory(), offset)?.into(), level })
    }

    /// How many of the lowest lane bits are contiguous in an index.
    pub(super) fn contiguous(&self, index: Index<'c>, map: &[Bit]) -> usize {
        let lanes = self.lanes.iter().enumerate();
        lanes.take_while(|&(j, &bit)| self.stride(index, map, bit) == Some(1i64 << j)).count()
    }

    /// A map with the lanes from `low` on replaced by the bits of `part`, and those below by 0.
    pub(super) fn at_part(&self, map: &[Bit], low: usize, part: u32) -> Map {
        let place = |&bit: &Bit| match self.lanes.iter().position(|&l| l == bit) {
            Some(j) if j >= low && part >> (j - low) & 1 == 1 => ONE,
            Some(_) => ZERO,
            None => bit,
        };
        map.iter().map(place).collect()
    }

    fn has_lanes(&self, map: &[Bit]) -> bool {
        map.iter().any(|b| self.lanes.contains(b))
    }

    /// Reads memory as it is. Without a mask the level is that of the index.
    pub(super) fn read(
        &mut self,
        index: Index<'c>,
        map: &[Bit],
        ty: BasicTypeEnum<'c>,
        mask: Option<Mask<'c>>,
    ) -> Result<At<'c>> {
        let (cond, floor) = mask.unwrap_or((None, 0));
        if !self.has_lanes(map) {
            return self.read_scalar(index, map, ty, (cond, floor));
        }
        let width = self.lanes.len();
        let low = self.contiguous(index, map);
        let parts = 1u32 << (width - low);
        if low > 0 && parts <= MAX_PARTS {
            return self.read_parts(index, map, ty, (cond, floor), low);
        }
        if let Some(low) = self.every_second(index, map) {
            return self.read_second(index, map, ty, (cond, floor), low);
        }
        let at = self.index(index, map)?;
        let level = at.level.max(floor);
        self.at(level);
        let n = 1u32 << width;
        let indices = self.ir.splat(at.v, n);
        let addresses = self.ir.elements(ty, index.memory(), indices)?;
        let cond = self.full_mask(cond, n);
        let vector = widen(ty, n);
        let zero = self.ir.splat(ty.const_zero(), n);
        let types = [vector, addresses.get_type()];
        Ok(At { v: self.ir.call("llvm.masked.gather", &types, &[addresses, cond, zero])?, level })
    }

    fn full_mask(&self, cond: Option<V<'c>>, n: u32) -> V<'c> {
        let all = self.ir.int_type(1).const_all_ones().into();
        self.ir.splat(cond.unwrap_or(all), n)
    }

    /// A scalar read; where it is masked off, memory of our own is read in its place.
    fn read_scalar(
        &mut self,
        index: Index<'c>,
        map: &[Bit],
        ty: BasicTypeEnum<'c>,
        (cond, floor): Mask<'c>,
    ) -> Result<At<'c>> {
        let at = self.address(index, map, ty, floor)?;
        let Some(cond) = cond else {
            return Ok(At {
                v: self.ir.load(ty, at.v.into_pointer_value(), alignment(ty))?,
                level: at.level,
            });
        };
        let nowhere = self.nowhere()?;
        self.at(at.level);
        let ptr = self.ir.select(cond, at.v, nowhere.into())?.into_pointer_value();
        let loaded = self.ir.load(ty, ptr, alignment(ty))?;
        Ok(At { v: self.ir.select(cond, loaded, ty.const_zero())?, level: at.level })
    }

    /// Eight bytes that masked-off scalar accesses touch.
    fn nowhere(&mut self) -> Result<PointerValue<'c>> {
        if let Some(ptr) = self.nowhere {
            return Ok(ptr);
        }
        self.at(0);
        let word = self.ir.int_type(64);
        let ptr = self.ir.b.build_alloca(word, "").map_err(llvm)?;
        self.ir.store(word.const_zero().into(), ptr, 8)?;
        self.nowhere = Some(ptr);
        Ok(ptr)
    }

    /// Reads contiguous parts of `2^low` lanes and joins them.
    fn read_parts(
        &mut self,
        index: Index<'c>,
        map: &[Bit],
        ty: BasicTypeEnum<'c>,
        (cond, floor): Mask<'c>,
        low: usize,
    ) -> Result<At<'c>> {
        let n = 1u32 << low;
        let mut level = floor;
        let mut parts = Vec::new();
        for part in 0..1u32 << (self.lanes.len() - low) {
            let at = self.address(index, &self.at_part(map, low, part), ty, floor)?;
            level = level.max(at.level);
            parts.push(at.v);
        }
        self.at(level);
        let mut values = Vec::new();
        for (part, &address) in parts.iter().enumerate() {
            let ptr = address.into_pointer_value();
            let vector = widen(ty, n);
            values.push(match cond {
                None => self.ir.load(vector, ptr, alignment(ty))?,
                Some(cond) => {
                    let cond = self.part_of(cond, part as u32, n)?;
                    self.masked_load(ty, ptr, cond)?
                }
            });
        }
        Ok(At { v: self.join(values)?, level })
    }

    /// What neighbours in memory are where a mask's lanes are set, and 0 in others.
    ///
    /// With AVX2, LLVM 22 reads every lane where it sees of a mask that it computes that no lane is set, as of half a vector that is
    /// wider than a register. A register is loaded at a time, by a mask that it knows nothing about.
    pub(super) fn masked_load(
        &self,
        ty: BasicTypeEnum<'c>,
        first: PointerValue<'c>,
        mask: V<'c>,
    ) -> Result<V<'c>> {
        let lanes = lanes_of(mask);
        let bits = 8 * alignment(ty);
        let n = lanes.min(self.target.vector / bits);
        let (vector, zero) = (widen(ty, n), self.ir.splat(ty.const_zero(), n));
        let mut parts = Vec::new();
        for part in 0..lanes / n {
            let address: V<'c> = self.ir.element(ty, first, self.ir.i64(i64::from(part * n)))?.into();
            let mut mask = self.part_of(mask, part, n)?;
            if self.target.has_masks_in_vectors() && bits >= 32 && n * bits >= 128 {
                mask = self.ir.opaque_signs(mask, bits)?;
            }
            let types = [vector, address.get_type()];
            parts.push(self.ir.call("llvm.masked.load", &types, &[address, mask, zero])?);
        }
        self.join(parts)
    }

    /// Lanes `part * n .. (part + 1) * n`.
    pub(super) fn part_of(&self, v: V<'c>, part: u32, n: u32) -> Result<V<'c>> {
        match lanes_of(v) {
            0 => Ok(self.ir.splat(v, n)),
            lanes if lanes == n => Ok(v),
            _ => {
                let first = i64::from(part * n);
                self.ir.shuffle(v, v, &(first..first + i64::from(n)).collect::<Vec<_>>())
            }
        }
    }

    pub(super) fn join(&self, mut parts: Vec<V<'c>>) -> Result<V<'c>> {
        while parts.len() > 1 {
            let n = i64::from(lanes_of(parts[0]));
            let indices: Vec<i64> = (0..2 * n).collect();
            let pairs: Result<Vec<V<'c>>> = parts
                .chunks(2)
                .map(|pair| self.ir.shuffle(pair[0], pair[pair.len() - 1], &indices))
                .collect();
            parts = pairs?;
        }
        parts.pop().ok_or_else(|| llvm("nothing to join"))
    }

    /// A store of the block program.
    pub(super) fn store_tile(&mut self, op: &BlockOp, map: &[Bit], value: V<'c>) -> Result<()> {
        let [ptr, offsets, _, mask @ ..] = op.args.as_slice() else { return Err(llvm("no address")) };
        let elem = self.plan.program.ty(*ptr).pointee().unwrap_or(Elem::F32);
        let pointer = self.value(*ptr, &[])?.v.into_pointer_value();
        let cond = match mask.first() {
            Some(&mask) => self.mask(mask, map)?.0,
            None => None,
        };
        // Computed before the top level is chosen, so that it lands where it belongs.
        self.index(Index::Offsets(*offsets, pointer), &self.at_part(map, 0, 0))?;
        let top = self.top();
        self.at(top);
        let raw = self.narrowed(value, elem)?;
        let raw = if self.narrows_once(op, raw) { self.ir.in_register(raw)? } else { raw };
        let index = Index::Offsets(*offsets, pointer);
        if cond.is_none()
            && matches!(op.kind, OpKind::Store { hint: CacheHint::Streaming, .. })
            && self.goes_past((*ptr, *offsets), map)
        {
            return self.write_past(op, index, map, raw);
        }
        self.fetch_for_store((*ptr, *offsets), map)?;
        self.write(index, map, raw, cond)
    }

    /// Whether what a store writes is narrowed by an instruction whose result others need as well: what the program computes on
    /// is rounded to what memory holds.
    fn narrows_once(&self, store: &BlockOp, raw: V<'c>) -> bool {
        let bits = lanes_of(raw) * 8 * alignment(lane_type(raw));
        let stored =
            store.args.get(2).map(|&value| (self.plan.program.ty(value).elem(), self.uses[value.index()]));
        let fills_register = (128..=self.target.vector).contains(&bits);
        self.target.f16c && fills_register && matches!(stored, Some((Some(Elem::F16), 2..)))
    }

    /// Writes memory as it is, at the top level.
    pub(super) fn write(
        &mut self,
        index: Index<'c>,
        map: &[Bit],
        raw: V<'c>,
        cond: Option<V<'c>>,
    ) -> Result<()> {
        let top = self.top();
        let ty = lane_type(raw);
        if !self.has_lanes(map) {
            let at = self.address(index, map, ty, top)?;
            let mut ptr = at.v;
            if let Some(cond) = cond {
                let nowhere = self.nowhere()?;
                self.at(top);
                ptr = self.ir.select(cond, ptr, nowhere.into())?;
            }
            return self.ir.store(raw, ptr.into_pointer_value(), alignment(ty));
        }
        let width = self.lanes.len();
        let n = 1u32 << width;
        if lanes_of(raw) == 0 && lanes_of(self.index(index, map)?.v) == 0 {
            return self.write_once(index, map, raw, cond);
        }
        self.at(top);
        let raw = self.ir.splat(raw, n);
        let low = self.contiguous(index, map);
        if low > 0 && 1u32 << (width - low) <= MAX_PARTS {
            return self.write_parts(index, map, raw, cond, low);
        }
        let at = self.index(index, map)?;
        self.at(top);
        let indices = self.ir.splat(at.v, n);
        let addresses = self.ir.elements(ty, index.memory(), indices)?;
        let cond = self.full_mask(cond, n);
        let types = [raw.get_type(), addresses.get_type()];
        self.ir.call_any("llvm.masked.scatter", &types, &[raw, addresses, cond]).map(|_| ())
    }

    /// Writes one value to one place where any lane would.
    fn write_once(&mut self, index: Index<'c>, map: &[Bit], raw: V<'c>, cond: Option<V<'c>>) -> Result<()> {
        let (top, ty) = (self.top(), lane_type(raw));
        let mut ptr = self.address(index, map, ty, top)?.v;
        if let Some(mut cond) = cond {
            let nowhere = self.nowhere()?;
            self.at(top);
            if lanes_of(cond) > 0 {
                cond = self.ir.call("llvm.vector.reduce.or", &[cond.get_type()], &[cond])?;
            }
            ptr = self.ir.select(cond, ptr, nowhere.into())?;
        }
        self.at(top);
        self.ir.store(raw, ptr.into_pointer_value(), alignment(ty))
    }

    fn write_parts(
        &mut self,
        index: Index<'c>,
        map: &[Bit],
        raw: V<'c>,
        cond: Option<V<'c>>,
        low: usize,
    ) -> Result<()> {
        let top = self.top();
        let n = 1u32 << low;
        let ty = lane_type(raw);
        for part in 0..1u32 << (self.lanes.len() - low) {
            let at = self.address(index, &self.at_part(map, low, part), ty, top)?;
            let value = self.part_of(raw, part, n)?;
            match cond {
                None => self.ir.store(value, at.v.into_pointer_value(), alignment(ty))?,
                Some(cond) => {
                    let mut cond = self.part_of(cond, part, n)?;
                    if alignment(ty) < 4 && n <= 32 {
                        cond = self.ir.opaque_mask(cond)?;
                    }
                    let types = [value.get_type(), at.v.get_type()];
                    self.ir.call_any("llvm.masked.store", &types, &[value, at.v, cond])?;
                }
            }
        }
        Ok(())
    }
}

/// The alignment of an element, which is all that is known of an address.
pub(super) fn alignment(ty: BasicTypeEnum<'_>) -> u32 {
    match ty {
        BasicTypeEnum::IntType(t) => t.get_bit_width().div_ceil(8),
        BasicTypeEnum::FloatType(t) => t.get_bit_width() / 8,
        _ => 8,
    }
}
