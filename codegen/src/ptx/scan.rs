//! Scans, by halves: what is combined in each half of a group becomes what is combined in the group when every element
//! of the later half takes in the last element of the earlier one. The bits of the coordinate are the halves, lowest
//! first; a bit lies in the number of a register, of a lane or of a warp, and an element comes from there as it is, by
//! a shuffle or through shared memory. The order of elements is kept.

use tilefuse_block::{Elem, Op, Region};

use super::barrier::BarrierReason;
use super::combine::Tuple;
use super::ir::Val;
use super::lower::Lower;
use crate::error::Result;
use crate::layout::{LANE_BITS, Layout, axis_bits};

/// One bit of the coordinate along the axis.
struct Step<'l> {
    layout: &'l Layout,
    reverse: bool,
    /// The first bit of an element's number that belongs to the axis.
    start: u32,
    /// Which bit of the coordinate this is.
    bit: u32,
    /// The bit in the number of a register, 0 where it is none.
    reg: usize,
    /// The bit in the number of the thread, 0 where it is none.
    thread: u32,
    /// The lower bits of the coordinate, in the number of a register.
    regs_below: usize,
    /// The lower bits of the coordinate, in the number of the thread.
    threads_below: u32,
}

impl Step<'_> {
    fn new(layout: &Layout, axis: usize, bit: u32, reverse: bool) -> Step<'_> {
        let start = axis_bits(layout.shape(), axis).start;
        let (low, own) = (((1u32 << bit) - 1) << start, 1u32 << (start + bit));
        let threads = layout.threads();
        let holding = |bases: &[u32], of: u32| {
            bases.iter().enumerate().filter(|(_, b)| **b & of != 0).fold(0, |m, (i, _)| m | 1u32 << i)
        };
        Step {
            layout,
            reverse,
            start,
            bit,
            reg: holding(layout.regs(), own) as usize,
            thread: holding(&threads, own),
            regs_below: holding(layout.regs(), low) as usize,
            threads_below: holding(&threads, low),
        }
    }

    /// The register of the earlier half's last element, for an element of the later half in register `r`.
    fn source(&self, r: usize) -> usize {
        match self.reverse {
            false => (r | self.regs_below) & !self.reg,
            true => (r & !self.regs_below) | self.reg,
        }
    }

    /// Whether register `r` holds an element that takes in another one, as far as the register tells.
    fn takes(&self, r: usize) -> bool {
        self.reg == 0 || (r & self.reg == 0) == self.reverse
    }

    /// Whether the other element comes from another warp.
    fn crosses_warps(&self) -> bool {
        (self.thread | self.threads_below) >> LANE_BITS != 0
    }

    /// The number of an element without the bits of the coordinate up to this one.
    fn compact(&self, element: u32) -> u32 {
        let low = element & ((1 << self.start) - 1);
        ((u64::from(element) >> (self.start + self.bit + 1)) as u32) << self.start | low
    }
}

impl<'a> Lower<'a> {
    pub(crate) fn scan(&mut self, op: &'a Op, axis: usize, reverse: bool) -> Result<()> {
        let layout = self.plan.home(op.args[0]);
        let region = self.combiner(op)?;
        let elems = self.elems(&op.args)?;
        let mut tuples = self.tuples(&op.args, &layout)?;
        for bit in 0..layout.shape()[axis] {
            let step = Step::new(&layout, axis, bit, reverse);
            self.take_in(region, &elems, &step, &mut tuples)?;
        }
        self.hold_tuples(op, &layout, tuples);
        Ok(())
    }

    fn take_in(
        &mut self,
        region: &'a Region,
        elems: &[Elem],
        step: &Step<'_>,
        tuples: &mut [Tuple],
    ) -> Result<()> {
        let takers: Vec<usize> = (0..tuples.len()).filter(|&r| step.takes(r)).collect();
        let mut sources: Vec<usize> = takers.iter().map(|&r| step.source(r)).collect();
        sources.sort_unstable();
        sources.dedup();
        let others = match step.crosses_warps() {
            true => self.take_from_warps(elems, step, tuples, &sources),
            false => self.take_from_lanes(elems, step, tuples, &sources),
        };
        let condition = (step.thread != 0).then(|| self.later_half(step));
        for r in takers {
            let Ok(at) = sources.binary_search(&step.source(r)) else { continue };
            let (first, second) = (&others[at], tuples[r].clone());
            let combined = self.combined(region, first, &second)?;
            tuples[r] = match &condition {
                None => combined,
                Some(c) => {
                    let values = elems.iter().zip(combined.iter().zip(&second));
                    values.map(|(&elem, (new, old))| self.select(c, elem, new, old)).collect()
                }
            };
        }
        Ok(())
    }

    /// True in threads of the half that takes in elements.
    fn later_half(&mut self, step: &Step<'_>) -> Val {
        let lower = self.threads_zero(step.thread);
        if step.reverse { lower } else { self.ir.def(format_args!("xor i1 {lower}, true")) }
    }

    /// The last elements of the earlier half, from the lanes that hold them.
    fn take_from_lanes(
        &mut self,
        elems: &[Elem],
        step: &Step<'_>,
        tuples: &[Tuple],
        sources: &[usize],
    ) -> Vec<Tuple> {
        let moves = step.thread | step.threads_below;
        if moves == 0 {
            return sources.iter().map(|&s| tuples[s].clone()).collect();
        }
        let (set, clear) = match step.reverse {
            false => (step.threads_below, step.thread),
            true => (step.thread, step.threads_below),
        };
        let kept = self.ir.def(format_args!("and i32 %tid, {}", 31 & !clear));
        let lane = self.ir.def(format_args!("or i32 {kept}, {set}"));
        let tuple = |lower: &mut Self, s: usize| {
            let values = elems.iter().zip(&tuples[s]);
            values.map(|(&elem, value)| lower.value_of_lane(elem, value, &lane)).collect()
        };
        sources.iter().map(|&s| tuple(self, s)).collect()
    }

    /// The last elements of the earlier half, through shared memory.
    fn take_from_warps(
        &mut self,
        elems: &[Elem],
        step: &Step<'_>,
        tuples: &[Tuple],
        sources: &[usize],
    ) -> Vec<Tuple> {
        let count = 1u64 << (step.layout.shape().iter().sum::<u32>() - step.bit - 1);
        let mut bases = vec![0u64];
        for elem in elems {
            let end = bases[bases.len() - 1] + count * u64::from(elem.bytes());
            bases.push(end.next_multiple_of(8));
        }
        self.reserve(bases[elems.len()]);
        let (ones, zeros) = match step.reverse {
            false => (step.threads_below, step.thread),
            true => (step.thread, step.threads_below),
        };
        let copies = step.layout.replicated_threads();
        let bits = self.ir.def(format_args!("and i32 %tid, {}", ones | zeros | copies));
        let writes = self.ir.def(format_args!("icmp eq i32 {bits}, {ones}"));
        let thread = self.compact_thread(step);
        let place = |lower: &mut Self, s: usize, k: usize| {
            let offset = step.compact(step.layout.reg_offset(s));
            lower.scan_slot(&thread, offset, elems[k], bases[k])
        };
        for &s in sources {
            for (k, value) in tuples[s].iter().enumerate() {
                let address = place(self, s, k);
                let value = self.pack_memory(elems[k], value);
                self.shared_store(&address, elems[k], &value, &writes);
            }
        }
        self.barrier(BarrierReason::Filled);
        let mut out = Vec::new();
        for &s in sources {
            let mut tuple = Tuple::new();
            for (k, &elem) in elems.iter().enumerate() {
                let address = place(self, s, k);
                tuple.push(self.shared_load(&address, elem));
            }
            out.push(tuple);
        }
        out
    }

    /// The part of [`Step::compact`] that the thread gives.
    fn compact_thread(&mut self, step: &Step<'_>) -> Val {
        let thread = self.thread_part(step.layout);
        let above = step.start + step.bit + 1;
        let low = self.ir.def(format_args!("and i32 {thread}, {}", (1u32 << step.start) - 1));
        if above >= step.layout.shape().iter().sum() {
            return low;
        }
        let high = self.ir.def(format_args!("lshr i32 {thread}, {above}"));
        let high = self.ir.def(format_args!("shl i32 {high}, {}", step.start));
        self.ir.def(format_args!("or i32 {high}, {low}"))
    }

    fn scan_slot(&mut self, thread: &Val, offset: u32, elem: Elem, base: u64) -> Val {
        let number = self.ir.def(format_args!("or i32 {thread}, {offset}"));
        let byte = self.ir.def(format_args!("mul nuw nsw i32 {number}, {}", elem.bytes()));
        let place = self.ir.def(format_args!("add nuw nsw i32 {byte}, {base}"));
        self.scratch(&place)
    }
}
