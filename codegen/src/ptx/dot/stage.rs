//! Operands of a product in shared memory.

use tilefuse_block::{Elem, Op, Value};

use super::Extents;
use crate::error::Result;
use crate::layout::{Layout, axis_bits};
use crate::ptx::ir::Val;
use crate::ptx::lower::{Lower, Regs};

/// Which operand: the left one has rows, the right one columns; both are lines here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

impl Side {
    /// The position among the product's operands.
    pub(crate) fn index(self) -> usize {
        usize::from(self == Side::Right)
    }

    /// The axes of batches, lines and the common extent, as bits of an element's number.
    fn axes(self, layout: &Layout) -> [std::ops::Range<u32>; 3] {
        let shape = layout.shape();
        let (before, last) = (axis_bits(shape, shape.len() - 2), axis_bits(shape, shape.len() - 1));
        let batch = before.end..shape.iter().sum();
        if self == Side::Left { [batch, before, last] } else { [batch, last, before] }
    }

    fn axis_of_lines(self, layout: &Layout) -> usize {
        layout.shape().len() - if self == Side::Left { 2 } else { 1 }
    }

    fn axis_of_common(self, layout: &Layout) -> usize {
        layout.shape().len() - if self == Side::Left { 1 } else { 2 }
    }

    /// Whether more neighbours along the lines' axis than along the common one lie in one thread.
    pub(super) fn is_by_lines(self, layout: &Layout) -> bool {
        layout.vector(self.axis_of_lines(layout)) > layout.vector(self.axis_of_common(layout))
    }
}

/// An operand that is still in registers.
pub(super) struct Source {
    side: Side,
    pub(super) layout: Layout,
    regs: Regs,
    /// The kind that it has.
    from: Elem,
}

/// How an operand lies in shared memory: where it begins, and how far apart neighbours along each axis are, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged {
    pub(crate) base: u64,
    pub(super) batch: u64,
    pub(super) line: u64,
    pub(super) common: u64,
    /// All bytes.
    pub(crate) size: u64,
}

impl Staged {
    /// For elements of `bytes` bytes; neighbours are adjacent along the lines' axis or along the common one. 16 bytes
    /// stay free at the end of each run, so that runs do not begin in one bank; 32 where single elements of several
    /// runs are read together.
    pub(super) fn new(base: u64, extents: &Extents, side: Side, bytes: u32, by_lines: bool) -> Staged {
        let lines = if side == Side::Left { extents.rows } else { extents.cols };
        let (inner, outer) = if by_lines { (lines, extents.common) } else { (extents.common, lines) };
        let bytes = u64::from(bytes);
        let run = (bytes << inner).next_multiple_of(16) + if by_lines && bytes >= 4 { 32 } else { 16 };
        let (line, common) = if by_lines { (bytes, run) } else { (run, bytes) };
        Staged { base, batch: run << outer, line, common, size: run << (outer + extents.batch) }
    }

    /// The place of an element, counted from the beginning of shared memory.
    pub(super) fn at(&self, batch: u64, line: u64, common: u64) -> u64 {
        self.base + batch * self.batch + line * self.line + common * self.common
    }

    /// Whether neighbours along the lines' axis are adjacent.
    pub(super) fn is_by_lines(&self) -> bool {
        self.line < self.common
    }

    /// The axis along which neighbours are adjacent.
    pub(crate) fn inner_axis(&self, side: Side, layout: &Layout) -> usize {
        if self.is_by_lines() { side.axis_of_lines(layout) } else { side.axis_of_common(layout) }
    }

    /// The part of [`Staged::at`] that a register gives.
    pub(crate) fn offset(&self, side: Side, layout: &Layout, r: usize) -> u64 {
        let number = layout.reg_offset(r);
        let [batch, line, common] = side.axes(layout);
        self.at(field(number, &batch), field(number, &line), field(number, &common))
    }
}

/// A field of an element's number.
fn field(number: u32, bits: &std::ops::Range<u32>) -> u64 {
    u64::from(number >> bits.start) & ((1u64 << bits.len()) - 1)
}

impl<'a> Lower<'a> {
    /// An operand as it is held.
    pub(super) fn source(&mut self, op: &'a Op, side: Side) -> Result<Source> {
        let value: Value = op.args[usize::from(side == Side::Right)];
        let layout = self.plan.home(value);
        let regs = self.get(value, &layout)?;
        Ok(Source { side, layout, regs, from: self.elem(value)? })
    }

    /// Writes an operand, whose elements `convert` turns into ones of kind `elem`, to shared memory.
    pub(super) fn stage(
        &mut self,
        source: &Source,
        staged: &Staged,
        elem: Elem,
        convert: &mut dyn FnMut(&mut Self, Elem, &Val) -> Val,
    ) {
        let inner = staged.inner_axis(source.side, &source.layout);
        let group = (1usize << source.layout.vector(inner)).min(16 / elem.bytes() as usize);
        let start = self.staged_start(staged, source.side, &source.layout);
        for first in (0..source.layout.num_regs()).step_by(group) {
            let values: Vec<Val> =
                source.regs[first..first + group].iter().map(|v| convert(self, source.from, v)).collect();
            let offset = staged.offset(source.side, &source.layout, first);
            let address = self.scratch_at(&start, offset);
            self.shared_store_group(&address, elem, &values);
        }
    }

    /// The part of [`Staged::at`] that a thread gives.
    pub(crate) fn staged_start(&mut self, staged: &Staged, side: Side, layout: &Layout) -> Val {
        let [batch, line, common] = side.axes(layout);
        let thread = self.thread_part(layout);
        let parts = [(&batch, staged.batch), (&line, staged.line), (&common, staged.common)];
        self.weighted(&thread, &parts)
    }

    /// The sum of fields of a number, each times its weight.
    pub(super) fn weighted(&mut self, number: &Val, parts: &[(&std::ops::Range<u32>, u64)]) -> Val {
        let mut sum: Val = "0".into();
        for (bits, weight) in parts.iter().filter(|(bits, _)| !bits.is_empty()) {
            let moved = self.ir.def(format_args!("lshr i32 {number}, {}", bits.start));
            let mask = (1u64 << bits.len()) - 1;
            let part = self.ir.def(format_args!("and i32 {moved}, {mask}"));
            let scaled = self.ir.def(format_args!("mul nuw nsw i32 {part}, {weight}"));
            sum = self.ir.def(format_args!("add nuw nsw i32 {sum}, {scaled}"));
        }
        sum
    }

    /// The address of a byte of the shared memory for changes of layout, at a constant distance from another.
    pub(super) fn scratch_at(&mut self, byte: &Val, offset: u64) -> Val {
        let address = self.scratch(byte);
        self.ir.def(format_args!("getelementptr i8, ptr addrspace(3) {address}, i64 {offset}"))
    }

    /// The address of a byte of the stages of loops, at a constant distance from another.
    pub(crate) fn shared_at(&mut self, byte: &Val, offset: u64) -> Val {
        let wide = self.ir.def(format_args!("zext i32 {byte} to i64"));
        let address =
            self.ir.def(format_args!("getelementptr i8, ptr addrspace(3) @tilefuse_convert, i64 {wide}"));
        self.ir.def(format_args!("getelementptr i8, ptr addrspace(3) {address}, i64 {offset}"))
    }
}
