//! Reductions: within a thread, across the lanes of a warp, across warps, always in one order.

use tilefuse_block::{Elem, Op, OpKind, ReduceFn};

use super::barrier::BarrierReason;
use super::ir::{Val, memory_ty};
use super::lower::{Lower, gather_bits};
use super::pairs;
use super::warp_specialize::ping_pong;
use crate::error::Result;
use crate::layout::{LANE_BITS, Layout};
use crate::scalar;

/// Shared memory for the parts of a reduction's results.
pub(crate) struct Slots {
    base: u64,
    /// Parts of each result.
    parts: u64,
    /// The number of the first part of this thread's results.
    row: Val,
    /// The number of this thread's part.
    mine: Val,
    elem: Elem,
}

/// One reduction on its way from registers to lanes, warps and blocks.
struct Reduction<'l> {
    combine: ReduceFn,
    /// What is combined: 16-bit floats are summed in 32 bits and rounded once.
    elem: Elem,
    layout: &'l Layout,
    /// The bits of an element's coordinates along the axis.
    along: u32,
    result: &'l Layout,
}

/// Whose parts of a result meet in shared memory.
#[derive(Clone, Copy, PartialEq)]
enum Across {
    Warps,
    Blocks,
}

/// Where the parts of a reduction's results are in shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    base: u64,
    parts: u64,
    elem: Elem,
}

impl<'a> Lower<'a> {
    pub(crate) fn reduce(&mut self, op: &'a Op, combine: ReduceFn, axis: usize) -> Result<()> {
        let layout = self.plan.home(op.args[0]);
        let elem = self.elem(op.args[0])?;
        let mut regs = self.get(op.args[0], &layout)?.to_vec();
        if let OpKind::Reduce { masked: true, .. } = op.kind {
            let mask = self.get(op.args[1], &layout)?;
            for (value, mask) in regs.iter_mut().zip(mask.iter()) {
                *value = scalar::masked(&mut self.ir, combine, elem, value, mask)?;
            }
        }
        let wide = scalar::accumulator(elem);
        // The largest and the smallest of 16-bit floats are found in pairs, and are not rounded.
        let first = if pairs::takes(combine.combine(), elem) { elem } else { wide };
        for value in &mut regs {
            *value = scalar::cast(&mut self.ir, elem, first, value)?;
        }
        let result = layout.slice(axis);
        let along = layout.axis_mask(axis);
        let within = Reduction { combine, elem: first, layout: &layout, along, result: &result };
        let mut regs = self.reduce_registers(&within, &regs)?;
        for value in &mut regs {
            *value = scalar::cast(&mut self.ir, first, wide, value)?;
        }
        let reduction = Reduction { elem: wide, ..within };
        self.reduce_lanes(&reduction, &mut regs)?;
        self.reduce_parts(&reduction, Across::Warps, &mut regs)?;
        self.reduce_parts(&reduction, Across::Blocks, &mut regs)?;
        for value in &mut regs {
            *value = scalar::cast(&mut self.ir, wide, elem, value)?;
        }
        self.hold(op.results[0], result, regs);
        Ok(())
    }

    fn reduce_registers(&mut self, reduction: &Reduction, regs: &[Val]) -> Result<Vec<Val>> {
        let &Reduction { combine, elem, layout, along, result } = reduction;
        let kept: Vec<bool> = layout.regs().iter().map(|b| b & along == 0).collect();
        let mut groups: Vec<Vec<Val>> = vec![Vec::new(); result.num_regs()];
        for (r, value) in regs.iter().enumerate() {
            groups[gather_bits(r, &kept)].push(value.clone());
        }
        groups.into_iter().map(|group| self.tree(combine, elem, group)).collect()
    }

    /// Combines neighbours until one is left.
    fn tree(&mut self, combine: ReduceFn, elem: Elem, mut values: Vec<Val>) -> Result<Val> {
        if pairs::takes(combine.combine(), elem) {
            values = pairs::fold(&mut self.ir, combine.combine(), elem, values);
        }
        while values.len() > 1 {
            let mut next = Vec::with_capacity(values.len() / 2);
            for pair in values.chunks(2) {
                next.push(match pair {
                    [a, b] => scalar::combine(&mut self.ir, combine, elem, a, b)?,
                    _ => pair[0].clone(),
                });
            }
            values = next;
        }
        values.pop().ok_or_else(|| self.invalid("a reduction of nothing"))
    }

    fn reduce_lanes(&mut self, reduction: &Reduction, regs: &mut [Val]) -> Result<()> {
        let &Reduction { combine, elem, layout, along, .. } = reduction;
        for (bit, _) in layout.lanes().iter().enumerate().filter(|(_, b)| **b & along != 0) {
            for value in regs.iter_mut() {
                let other = self.exchange(elem, value, 1 << bit);
                *value = scalar::combine(&mut self.ir, combine, elem, value, &other)?;
            }
        }
        Ok(())
    }

    /// Each warp, or block, writes what it has of each result, a block to all of its cluster; then every thread
    /// combines the parts of its own, in order.
    fn reduce_parts(&mut self, reduction: &Reduction, across: Across, regs: &mut [Val]) -> Result<()> {
        let &Reduction { combine, elem, layout, along, result } = reduction;
        let (threads, local) = (layout.threads(), self.plan.block_bits());
        let numbers = match across {
            Across::Warps => LANE_BITS..local,
            Across::Blocks => local..threads.len(),
        };
        let bits: Vec<usize> = numbers.filter(|&t| threads[t] & along != 0).collect();
        if bits.is_empty() {
            return Ok(());
        }
        let slots = self.slots(elem, result, &bits);
        if across == Across::Blocks {
            self.cluster_started();
        }
        // Lanes that differ only along the axis hold the same values, as do warps that hold one part twice.
        let block = result.replicated_threads() & ((1 << local) - 1);
        let writes = self.threads_zero(block & !bits.iter().fold(0, |m, b| m | 1 << b));
        for (r, value) in regs.iter().enumerate() {
            let address = self.slot_of_part(&slots, result.reg_offset(r));
            let value = self.pack_memory(elem, value);
            match across {
                Across::Warps => self.shared_store(&address, elem, &value, &writes),
                Across::Blocks => self.store_to_all_blocks(&address, elem, &value, &writes),
            }
        }
        self.decisions.wait(BarrierReason::Filled);
        match across {
            Across::Warps => self.block_barrier(),
            Across::Blocks => self.cluster_barrier(),
        }
        if across == Across::Warps && self.plan.cluster == 0 {
            self.hazards.clear();
        }
        self.combine_parts(combine, elem, &slots, result, regs)
    }

    /// Shared memory for the parts of a result that the threads hold whose numbers differ in the given bits.
    fn slots(&mut self, elem: Elem, result: &Layout, bits: &[usize]) -> Slots {
        let (room, wait) = self.room(elem, result, bits);
        if wait {
            self.barrier(BarrierReason::Reused);
        }
        self.place_slots(room, result, bits)
    }

    /// Room for [`Lower::slots`]: where it begins, and whether a barrier must come before it is written.
    pub(crate) fn room(&mut self, elem: Elem, result: &Layout, bits: &[usize]) -> (Room, bool) {
        let parts = 1u64 << bits.len();
        let count = 1u64 << result.shape().iter().sum::<u32>();
        let allocation = self.shared.for_reduce(parts * count * u64::from(elem.bytes()));
        self.decisions.allocate(allocation);
        (Room { base: allocation.offset, parts, elem }, allocation.waits)
    }

    pub(crate) fn place_slots(&mut self, room: Room, result: &Layout, bits: &[usize]) -> Slots {
        let Room { base, parts, elem } = room;
        let part = self.part(bits);
        let element = self.thread_part(result);
        let row = self.ir.def(format_args!("mul i32 {element}, {parts}"));
        let mine = self.ir.def(format_args!("add i32 {row}, {part}"));
        Slots { base, parts, row, mine, elem }
    }

    /// The address of this thread's part of the element at an offset.
    pub(crate) fn slot_of_part(&mut self, slots: &Slots, offset: u32) -> Val {
        self.slot_at(slots, &slots.mine, u64::from(offset) * slots.parts)
    }

    fn slot_at(&mut self, slots: &Slots, index: &Val, offset: u64) -> Val {
        let e = memory_ty(slots.elem);
        let start: Val = match self.shared.groups {
            1 => format!("getelementptr (i8, ptr addrspace(3) @tilefuse_reduce, i64 {})", slots.base).into(),
            _ => self.ir.def(format_args!(
                "getelementptr i8, ptr addrspace(3) {}, i64 {}",
                ping_pong::REDUCTIONS,
                slots.base
            )),
        };
        let wide = self.ir.def(format_args!("zext i32 {index} to i64"));
        let slot = self.ir.def(format_args!("getelementptr {e}, ptr addrspace(3) {start}, i64 {wide}"));
        self.ir.def(format_args!("getelementptr {e}, ptr addrspace(3) {slot}, i64 {offset}"))
    }

    /// Combines all parts of each of this thread's results.
    fn combine_parts(
        &mut self,
        combine: ReduceFn,
        elem: Elem,
        slots: &Slots,
        result: &Layout,
        regs: &mut [Val],
    ) -> Result<()> {
        for (r, value) in regs.iter_mut().enumerate() {
            let values = self.parts(slots, result.reg_offset(r));
            *value = self.tree(combine, elem, values)?;
        }
        Ok(())
    }

    /// All parts of the element at an offset, in order.
    pub(crate) fn parts(&mut self, slots: &Slots, offset: u32) -> Vec<Val> {
        let part = |lower: &mut Self, p: u64| {
            let address = lower.slot_at(slots, &slots.row, u64::from(offset) * slots.parts + p);
            lower.shared_load(&address, slots.elem)
        };
        (0..slots.parts).map(|p| part(self, p)).collect()
    }

    /// The number that the given bits of the thread's number form.
    fn part(&mut self, bits: &[usize]) -> Val {
        let mut sum: Val = "0".into();
        for (to, &bit) in bits.iter().enumerate() {
            let masked = self.ir.def(format_args!("and i32 %tid, {}", 1u32 << bit));
            let moved = self.ir.def(format_args!("lshr i32 {masked}, {}", bit - to));
            sum = self.ir.def(format_args!("or i32 {sum}, {moved}"));
        }
        sum
    }

    /// Writes one element of shared memory where `predicate` holds.
    pub(crate) fn shared_store(&mut self, address: &Val, elem: Elem, value: &Val, predicate: &Val) {
        let (suffix, constraint, t, operand) = self.shared_word(memory_ty(elem), elem, value);
        self.ir.raw(format_args!(
            "call void asm sideeffect \"@$2 st.shared.{suffix} [$0], $1;\", \"l,{constraint},b,~{{memory}}\"\
             (ptr addrspace(3) {address}, {t} {operand}, i1 {predicate}) nounwind"
        ));
    }

    /// How an element is moved to shared memory: suffix of the instruction, constraint and type of the operand, and
    /// the operand.
    pub(crate) fn shared_word(
        &mut self,
        e: &str,
        elem: Elem,
        value: &Val,
    ) -> (&'static str, char, &'static str, Val) {
        let (suffix, constraint, operand) = match elem.bytes() {
            1 => ("b8", 'r', self.ir.def(format_args!("zext i8 {value} to i32"))),
            2 if elem.is_float() => ("b16", 'h', self.ir.def(format_args!("bitcast {e} {value} to i16"))),
            2 => ("b16", 'h', value.clone()),
            4 if elem.is_float() => ("b32", 'r', self.ir.def(format_args!("bitcast {e} {value} to i32"))),
            4 => ("b32", 'r', value.clone()),
            _ if elem.is_float() => ("b64", 'l', self.ir.def(format_args!("bitcast {e} {value} to i64"))),
            _ => ("b64", 'l', value.clone()),
        };
        let t = match constraint {
            'h' => "i16",
            'l' => "i64",
            _ => "i32",
        };
        (suffix, constraint, t, operand)
    }
}
