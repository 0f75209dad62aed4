//! Non-temporal stores, where a program says that what it stores is used once: a plain store reads the line that it
//! writes to first, and puts out of the caches what others need.
//!
//! That is for vectors of 512 bits, each of which is a line: the processor need not collect it of several stores. Shorter
//! vectors, of narrow elements, are put together first. The line's address must be known to be a multiple of its size: LLVM
//! divides other stores into scalars. What is not so is stored plainly, as is what a mask cuts.

use inkwell::values::PointerValue;
use tilefuse_block::{Op, OpKind, Program, Value};

use super::Emitter;
use super::ir::{V, lane_type};
use super::memory::{Index, alignment};
use super::prefetch::LINE;
use crate::Result;
use crate::host::plan::{Bit, ZERO};

/// What is to be stored to a line that is not complete.
pub(super) struct Line<'c> {
    /// The store: where its operation lies.
    store: usize,
    /// Where the line begins.
    start: PointerValue<'c>,
    parts: Vec<V<'c>>,
}

/// Whether a program tells others, before its end, that something is stored.
pub(super) fn tells_others(program: &Program) -> bool {
    let mut tells = false;
    program.walk(&mut |op| tells |= matches!(op.kind, OpKind::Atomic { .. } | OpKind::AtomicCas { .. }));
    tells
}

impl<'c> Emitter<'c, '_> {
    /// Whether a store at a map fills lines that are written by non-temporal stores.
    pub(super) fn goes_past(&self, (ptr, offsets): (Value, Value), map: &[Bit]) -> bool {
        let Some(param) = self.plan.program.params.iter().find(|param| param.value == ptr) else {
            return false;
        };
        if !self.may_stream || self.lanes.is_empty() || i64::from(param.align) < LINE {
            return false;
        }
        let elem = self.plan.program.ty(ptr).pointee().map_or(1, |elem| u64::from(elem.bytes()));
        let affine = self.plan.affine(offsets, map);
        let follows = |(j, &bit): (usize, &Bit)| affine.stride(bit) == Some(1 << j);
        // Vectors that are unrolled one after the other go on where the lanes end.
        let chain = || self.lanes.iter().chain(&self.unrolled).enumerate();
        let wanted = (LINE as u64 / elem).trailing_zeros() as usize;
        if chain().take(wanted).filter(|&at| follows(at)).count() < wanted {
            return false;
        }
        // What the other lanes and unrolled vectors add is a multiple of their factors.
        let within: Vec<Bit> = chain().take(wanted).map(|(_, &bit)| bit).collect();
        let start: Vec<Bit> = map.iter().map(|&bit| if within.contains(&bit) { ZERO } else { bit }).collect();
        let divisor = self.plan.affine(offsets, &start).divisor().saturating_mul(elem);
        divisor.is_multiple_of(LINE as u64)
    }

    /// Writes all lanes by non-temporal stores, at the top level: each line when it is complete.
    pub(super) fn write_past(&mut self, op: &Op, index: Index<'c>, map: &[Bit], raw: V<'c>) -> Result<()> {
        let top = self.top();
        self.at(top);
        let store = std::ptr::from_ref(op).addr();
        let raw = self.ir.splat(raw, 1 << self.lanes.len());
        let ty = lane_type(raw);
        let of_line = LINE as u32 / alignment(ty);
        let low = self.lanes.len().min(of_line.trailing_zeros() as usize);
        for part in 0..1 << (self.lanes.len() - low) {
            let start = self.address(index, &self.at_part(map, low, part), ty, top)?.v.into_pointer_value();
            let value = self.part_of(raw, part, 1 << low)?;
            let mut line = match self.lines.iter().position(|line| line.store == store) {
                Some(line) => self.lines.swap_remove(line),
                None => Line { store, start, parts: Vec::new() },
            };
            line.parts.push(value);
            if (line.parts.len() << low) < of_line as usize {
                self.lines.push(line);
                continue;
            }
            let mut value = self.join(line.parts)?;
            if alignment(ty) < 4 {
                value = self.ir.in_register(value)?;
            }
            self.ir.store_past(value, line.start, LINE as u32)?;
            self.stores_non_temporal = true;
        }
        Ok(())
    }

    /// Waits at the end of the function until others see what non-temporal stores wrote.
    pub(super) fn finish_stream(&mut self) -> Result<()> {
        match self.stores_non_temporal {
            true => self.ir.call_any("llvm.x86.sse.sfence", &[], &[]).map(|_| ()),
            false => Ok(()),
        }
    }
}
