//! Operations that move elements between tiles: join and split, gather, histogram.

use tilefuse_block::{Elem, Literal, Op, Value};

use super::barrier::BarrierReason;
use super::ir::{Val, literal, ty};
use super::lower::{Lower, Regs, gather_bits};
use crate::error::Result;
use crate::layout::{Layout, axis_bits};

impl<'a> Lower<'a> {
    /// Two tiles as one, in a layout of the result.
    pub(crate) fn join_tiles(&mut self, op: &'a Op, layout: &Layout) -> Result<Regs> {
        let halves = layout.slice(layout.shape().len() - 1);
        let (first, second) = (self.get(op.args[0], &halves)?, self.get(op.args[1], &halves)?);
        let kept: Vec<bool> = layout.regs().iter().map(|&b| b != 1).collect();
        let in_thread = layout.threads().iter().position(|&b| b == 1);
        let is_first = in_thread.map(|bit| self.threads_zero(1 << bit));
        let elem = self.elem(op.args[0])?;
        let pick = |lower: &mut Self, r: usize| {
            let at = gather_bits(r, &kept);
            match &is_first {
                Some(is_first) => lower.select(is_first, elem, &first[at], &second[at]),
                None if layout.reg_offset(r) & 1 == 0 => first[at].clone(),
                None => second[at].clone(),
            }
        };
        Ok(Regs::new((0..layout.num_regs()).map(|r| pick(self, r)).collect()))
    }

    /// One of the halves of a tile, in a layout of the half.
    pub(crate) fn half_of_tile(&mut self, op: &'a Op, half: Value, layout: &Layout) -> Result<Regs> {
        let both = self.get(op.args[0], &layout.join())?;
        let which = usize::from(op.results.first() != Some(&half));
        Ok(Regs::new(both.iter().skip(which).step_by(2).cloned().collect()))
    }

    pub(crate) fn gather(&mut self, op: &'a Op, axis: usize) -> Result<()> {
        let (from, to) = (self.plan.home(op.args[0]), self.plan.home(op.results[0]));
        let elem = self.elem(op.args[0])?;
        let (tile, indices) = (self.get(op.args[0], &from)?, self.get(op.args[1], &to)?);
        self.publish(&from, &tile, elem);
        let wide = self.elem(op.args[1])? == Elem::I64;
        let (source, target) = (axis_bits(from.shape(), axis), axis_bits(to.shape(), axis));
        let inner = (1u32 << target.start) - 1;
        let thread = self.thread_part(&to);
        let mut out = Vec::with_capacity(to.num_regs());
        for (r, index) in indices.iter().enumerate() {
            let index =
                if wide { self.ir.def(format_args!("trunc i64 {index} to i32")) } else { index.clone() };
            let index = self.ir.def(format_args!("and i32 {index}, {}", (1u32 << from.shape()[axis]) - 1));
            let along = self.ir.def(format_args!("shl i32 {index}, {}", source.start));
            let number = self.ir.def(format_args!("or i32 {thread}, {}", to.reg_offset(r)));
            let low = self.ir.def(format_args!("and i32 {number}, {inner}"));
            let place = self.ir.def(format_args!("or i32 {along}, {low}"));
            let place = match to.shape().iter().sum::<u32>() - target.end {
                0 => place,
                _ => {
                    let outer = self.ir.def(format_args!("lshr i32 {number}, {}", target.end));
                    let high = self.ir.def(format_args!("shl i32 {outer}, {}", source.end));
                    self.ir.def(format_args!("or i32 {place}, {high}"))
                }
            };
            let address = self.slot_of(&place, elem);
            out.push(self.shared_load(&address, elem));
        }
        self.hold(op.results[0], to, out);
        Ok(())
    }

    pub(crate) fn histogram(&mut self, op: &'a Op, bins: u32) -> Result<()> {
        let (from, to) = (self.plan.home(op.args[0]), self.plan.home(op.results[0]));
        let elem = self.elem(op.args[0])?;
        let numbers = self.get(op.args[0], &from)?;
        let mask = op.args.get(1).map(|&mask| self.get(mask, &from)).transpose()?;
        let zero = literal(Literal::int(Elem::I32, 0));
        self.publish(&to, &vec![zero; to.num_regs()], Elem::I32);
        let first = self.threads_zero(from.replicated_threads());
        for (r, number) in numbers.iter().enumerate() {
            let (inside, bin) = self.bin(elem, number, bins);
            let mut counted = self.ir.def(format_args!("and i1 {inside}, {first}"));
            if let Some(mask) = &mask {
                counted = self.ir.def(format_args!("and i1 {counted}, {}", mask[r]));
            }
            let address = self.slot_of(&bin, Elem::I32);
            self.ir.raw(format_args!(
                "call void asm sideeffect \"@$1 red.shared.add.u32 [$0], 1;\", \"l,b,~{{memory}}\"\
                 (ptr addrspace(3) {address}, i1 {counted}) nounwind"
            ));
        }
        self.barrier(BarrierReason::Filled);
        let mut out = Vec::with_capacity(to.num_regs());
        for r in 0..to.num_regs() {
            let address = self.slot(&to, r, Elem::I32);
            out.push(self.shared_load(&address, Elem::I32));
        }
        self.hold(op.results[0], to, out);
        Ok(())
    }

    /// Whether a number has a bin, and which; 0 where it has none.
    fn bin(&mut self, elem: Elem, number: &Val, bins: u32) -> (Val, Val) {
        let t = ty(elem);
        let sign = if elem.is_signed_int() { 's' } else { 'z' };
        let wide = match elem.bits() {
            64 => number.clone(),
            _ => self.ir.def(format_args!("{sign}ext {t} {number} to i64")),
        };
        let inside = self.ir.def(format_args!("icmp ult i64 {wide}, {bins}"));
        let narrow = self.ir.def(format_args!("trunc i64 {wide} to i32"));
        let bin = self.ir.def(format_args!("select i1 {inside}, i32 {narrow}, i32 0"));
        (inside, bin)
    }
}
