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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staged {
    pub(crate) base: u64,
    pub(super) batch: u64,
    pub(super) line: u64,
    pub(super) common: u64,
    /// All bytes.
    pub(crate) size: u64,
    /// Where the operand lies in panels, the distances above hold within one, before parts change places.
    pub(super) panels: Option<Panels>,
}

/// A form of operands that products of warpgroups read: runs are cut into panels, which lie one after the other and hold
/// a piece of each run. Within 8 pieces, parts of 16 bytes change places, so that a column of parts lies in all banks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Panels {
    /// Bytes of a piece: 32, 64 or 128.
    pub(super) width: u64,
    /// Bytes of a panel.
    pub(super) size: u64,
    /// Elements of a piece, as a power of two.
    inner: u32,
    by_lines: bool,
}

/// How runs lie in panels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    /// Elements of a piece of a run.
    pub(crate) width: u32,
    /// Bytes of a panel.
    pub(crate) bytes: u64,
    /// Panels.
    pub(crate) count: u64,
}

impl Panels {
    /// Bits of a place that choose the part of 16 bytes within a piece.
    fn parts(self) -> u64 {
        self.width - 16
    }

    /// The place that the byte at a place before the exchange of parts has after it. Linear: the exclusive or of places
    /// has the exclusive or of their images.
    fn exchange(self, place: u64) -> u64 {
        place ^ (place >> 3 & self.parts())
    }
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
        Staged { base, batch: run << outer, line, common, size: run << (outer + extents.batch), panels: None }
    }

    /// For elements of `bytes` bytes, in panels. `base` is a multiple of [`Staged::PANEL_ALIGN`], as the size is; runs
    /// have at least 32 bytes.
    pub(super) fn in_panels(base: u64, extents: &Extents, side: Side, bytes: u32, by_lines: bool) -> Staged {
        let lines = if side == Side::Left { extents.rows } else { extents.cols };
        let (inner, outer) = if by_lines { (lines, extents.common) } else { (extents.common, lines) };
        let bytes = u64::from(bytes);
        let width = (bytes << inner).min(128);
        let (line, common) = if by_lines { (bytes, width) } else { (width, bytes) };
        let panels =
            Panels { width, size: width << outer, inner: (width / bytes).trailing_zeros(), by_lines };
        let size = (bytes << (inner + outer)).next_multiple_of(Staged::PANEL_ALIGN);
        Staged { base, batch: size, line, common, size, panels: Some(panels) }
    }

    /// What the beginning of panels is a multiple of: the exchange of parts looks at bits of the address.
    pub(crate) const PANEL_ALIGN: u64 = 1024;

    /// The place of an element, counted from the beginning of shared memory.
    pub(super) fn at(&self, batch: u64, line: u64, common: u64) -> u64 {
        let place = self.unexchanged(batch, line, common);
        self.base + self.panels.map_or(place, |panels| panels.exchange(place))
    }

    /// The place of an element from the operand's beginning, before parts change places.
    pub(super) fn unexchanged(&self, batch: u64, line: u64, common: u64) -> u64 {
        let Some(panels) = self.panels else {
            return batch * self.batch + line * self.line + common * self.common;
        };
        let cut = |i: u64| (i >> panels.inner, i & ((1 << panels.inner) - 1));
        let (panel, line, common) = match panels.by_lines {
            true => (cut(line).0, cut(line).1, common),
            false => (cut(common).0, line, cut(common).1),
        };
        batch * self.batch + panel * panels.size + line * self.line + common * self.common
    }

    /// Whether neighbours along the lines' axis are adjacent.
    pub(super) fn is_by_lines(&self) -> bool {
        self.panels.map_or(self.line < self.common, |panels| panels.by_lines)
    }

    /// The panels of a matrix whose runs have so many elements.
    pub(crate) fn panels_of(&self, run: u32) -> Option<Runs> {
        let Panels { size, inner, .. } = self.panels?;
        Some(Runs { width: 1 << inner, bytes: size, count: u64::from(run >> inner) })
    }

    /// Whether the operand lies in panels.
    pub(crate) fn has_panels(&self) -> bool {
        self.panels.is_some()
    }

    /// The axis along which neighbours are adjacent.
    pub(crate) fn inner_axis(&self, side: Side, layout: &Layout) -> usize {
        if self.is_by_lines() { side.axis_of_lines(layout) } else { side.axis_of_common(layout) }
    }

    /// The part of [`Staged::at`] that an element's number gives.
    fn offset(&self, side: Side, layout: &Layout, number: u32) -> u64 {
        let [batch, line, common] = side.axes(layout);
        self.at(field(number, &batch), field(number, &line), field(number, &common))
    }
}

/// The part of [`Staged::at`] that a thread gives.
pub(crate) struct Start {
    pub(crate) byte: Val,
    /// Bits that it may have and that a register's part has as well.
    bits: u64,
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

    /// Writes an operand, whose elements `convert` turns into ones of kind `elem`, to shared memory: that for changes of
    /// layout, or from a byte of the stages on.
    pub(super) fn stage(
        &mut self,
        source: &Source,
        (staged, stage): (&Staged, Option<&Val>),
        elem: Elem,
        convert: &mut dyn FnMut(&mut Self, Elem, &Val) -> Result<Val>,
    ) -> Result<()> {
        let inner = staged.inner_axis(source.side, &source.layout);
        let group = (1usize << source.layout.vector(inner)).min(16 / elem.bytes() as usize);
        let start = self.staged_start(staged, source.side, &source.layout);
        for first in (0..source.layout.num_regs()).step_by(group) {
            let group = source.regs[first..first + group].iter();
            let values: Vec<Val> = group.map(|v| convert(self, source.from, v)).collect::<Result<_>>()?;
            let (byte, offset) = self.staged_at(staged, source.side, &source.layout, (&start, first));
            let address = match stage {
                Some(stage) => {
                    let byte = self.ir.def(format_args!("add i32 {byte}, {stage}"));
                    self.shared_at(&byte, offset)
                }
                None => self.scratch_at(&byte, offset),
            };
            self.shared_store_group(&address, elem, &values);
        }
        Ok(())
    }

    /// Writes an operand to a byte of the stages.
    pub(crate) fn write_resident(
        &mut self,
        op: &'a Op,
        side: Side,
        staged: &Staged,
        stage: &Val,
    ) -> Result<()> {
        let source = self.source(op, side)?;
        let elem = source.from;
        self.stage(&source, (staged, Some(stage)), elem, &mut |_, _, value| Ok(value.clone()))
    }

    /// The part of [`Staged::at`] that a thread gives.
    pub(crate) fn staged_start(&mut self, staged: &Staged, side: Side, layout: &Layout) -> Start {
        let [batch, line, common] = side.axes(layout);
        let thread = self.thread_part(layout);
        let Some(panels) = staged.panels else {
            let parts = [(&batch, staged.batch), (&line, staged.line), (&common, staged.common)];
            return Start { byte: self.weighted(&thread, &parts), bits: 0 };
        };
        let (inner, outer) = if panels.by_lines { (line, common) } else { (common, line) };
        let cut = (inner.start + panels.inner).min(inner.end);
        let (near, far) = (inner.start..cut, cut..inner.end);
        let (bytes, width) = (staged.line.min(staged.common), panels.width);
        let parts = [(&batch, staged.batch), (&near, bytes), (&outer, width), (&far, panels.size)];
        let place = self.weighted(&thread, &parts);
        let moved = self.ir.def(format_args!("lshr i32 {place}, 3"));
        let parts = self.ir.def(format_args!("and i32 {moved}, {}", panels.parts()));
        let byte = self.ir.def(format_args!("xor i32 {place}, {parts}"));
        let image = |basis: &u32| staged.offset(side, layout, *basis) - staged.base;
        Start { byte, bits: layout.threads().iter().filter(|b| **b != 0).map(image).fold(0, |m, b| m | b) }
    }

    /// The place of the element in a register, as a byte and a constant distance from it.
    pub(crate) fn staged_at(
        &mut self,
        staged: &Staged,
        side: Side,
        layout: &Layout,
        (start, r): (&Start, usize),
    ) -> (Val, u64) {
        let part = staged.offset(side, layout, layout.reg_offset(r));
        if staged.panels.is_none() {
            return (start.byte.clone(), part);
        }
        let part = part - staged.base;
        let byte = match part & start.bits {
            0 => start.byte.clone(),
            common => self.ir.def(format_args!("xor i32 {}, {common}", start.byte)),
        };
        (byte, staged.base + (part & !start.bits))
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
