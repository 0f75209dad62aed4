//! Reductions with a combiner of the program's own, on tuples of values.
//!
//! The order of combination follows the numbers of registers, lanes and warps, the same for all threads, so that every
//! thread that holds a result holds the same one whatever the combiner is.

use tilefuse_block::{Elem, Op, Region, Value};

use super::barrier::BarrierReason;
use super::ir::{Val, ty};
use super::lower::{Lower, gather_bits};
use super::reduce::Slots;
use crate::error::Result;
use crate::layout::{LANE_BITS, Layout};
use crate::scalar;

/// One element of each operand.
pub(crate) type Tuple = Vec<Val>;

impl<'a> Lower<'a> {
    pub(crate) fn reduce_with(&mut self, op: &'a Op, axis: usize) -> Result<()> {
        let layout = self.plan.home(op.args[0]);
        let region = self.combiner(op)?;
        let elems = self.elems(&op.args)?;
        let tuples = self.tuples(&op.args, &layout)?;
        let result = layout.slice(axis);
        let along = layout.axis_mask(axis);
        let kept: Vec<bool> = layout.regs().iter().map(|b| b & along == 0).collect();
        let mut groups: Vec<Vec<Tuple>> = vec![Vec::new(); result.num_regs()];
        for (r, tuple) in tuples.into_iter().enumerate() {
            groups[gather_bits(r, &kept)].push(tuple);
        }
        let mut tuples =
            groups.into_iter().map(|group| self.combine_all(region, group)).collect::<Result<Vec<_>>>()?;
        for (bit, _) in layout.lanes().iter().enumerate().filter(|(_, b)| **b & along != 0) {
            for tuple in &mut tuples {
                *tuple = self.combine_lanes(region, &elems, tuple, bit)?;
            }
        }
        self.combine_warps(region, &elems, (&layout, along), &result, &mut tuples)?;
        self.hold_tuples(op, &result, tuples);
        Ok(())
    }

    /// The region that combines.
    pub(crate) fn combiner(&self, op: &'a Op) -> Result<&'a Region> {
        op.regions.first().ok_or_else(|| self.invalid("a reduction or scan without a combiner"))
    }

    pub(crate) fn elems(&self, values: &[Value]) -> Result<Vec<Elem>> {
        values.iter().map(|&v| self.elem(v)).collect()
    }

    /// By register: the elements of several tiles in one layout.
    pub(crate) fn tuples(&mut self, values: &[Value], layout: &Layout) -> Result<Vec<Tuple>> {
        let tiles = values.iter().map(|&v| self.get(v, layout)).collect::<Result<Vec<_>>>()?;
        Ok((0..layout.num_regs()).map(|r| tiles.iter().map(|tile| tile[r].clone()).collect()).collect())
    }

    /// Records where the results of an operation are.
    pub(crate) fn hold_tuples(&mut self, op: &Op, layout: &Layout, tuples: Vec<Tuple>) {
        for (index, &result) in op.results.iter().enumerate() {
            self.hold(result, layout.clone(), tuples.iter().map(|tuple| tuple[index].clone()).collect());
        }
    }

    /// What the combiner makes of two tuples.
    pub(crate) fn combined(&mut self, region: &'a Region, first: &[Val], second: &[Val]) -> Result<Tuple> {
        let args: Vec<Val> = first.iter().chain(second).cloned().collect();
        scalar::region(&mut self.ir, self.plan.program, region, &args)
    }

    /// Combines neighbours until one is left.
    fn combine_all(&mut self, region: &'a Region, mut tuples: Vec<Tuple>) -> Result<Tuple> {
        while tuples.len() > 1 {
            let mut next = Vec::with_capacity(tuples.len().div_ceil(2));
            for pair in tuples.chunks(2) {
                next.push(match pair {
                    [a, b] => self.combined(region, a, b)?,
                    _ => pair[0].clone(),
                });
            }
            tuples = next;
        }
        tuples.pop().ok_or_else(|| self.invalid("a reduction of nothing"))
    }

    /// Combines with the lane whose number differs in one bit; that of the lower lane comes first.
    fn combine_lanes(
        &mut self,
        region: &'a Region,
        elems: &[Elem],
        mine: &Tuple,
        bit: usize,
    ) -> Result<Tuple> {
        let lower = self.threads_zero(1 << bit);
        let (mut first, mut second) = (Tuple::new(), Tuple::new());
        for (&elem, value) in elems.iter().zip(mine) {
            let other = self.exchange(elem, value, 1 << bit);
            first.push(self.select(&lower, elem, value, &other));
            second.push(self.select(&lower, elem, &other, value));
        }
        self.combined(region, &first, &second)
    }

    pub(crate) fn select(&mut self, condition: &Val, elem: Elem, yes: &Val, no: &Val) -> Val {
        let t = ty(elem);
        self.ir.def(format_args!("select i1 {condition}, {t} {yes}, {t} {no}"))
    }

    /// Each warp writes what it has of each result; then every thread combines the parts of its own, in order.
    fn combine_warps(
        &mut self,
        region: &'a Region,
        elems: &[Elem],
        (layout, along): (&Layout, u32),
        result: &Layout,
        tuples: &mut [Tuple],
    ) -> Result<()> {
        let threads = layout.threads();
        let bits: Vec<usize> = (LANE_BITS..threads.len()).filter(|&t| threads[t] & along != 0).collect();
        if bits.is_empty() {
            return Ok(());
        }
        let slots = self.all_slots(elems, result, &bits);
        let writes = self.threads_zero(result.replicated_threads() & !bits.iter().fold(0, |m, b| m | 1 << b));
        for (r, tuple) in tuples.iter().enumerate() {
            for ((value, slots), &elem) in tuple.iter().zip(&slots).zip(elems) {
                let address = self.slot_of_part(slots, result.reg_offset(r));
                let value = self.pack_memory(elem, value);
                self.shared_store(&address, elem, &value, &writes);
            }
        }
        self.barrier(BarrierReason::Filled);
        for (r, tuple) in tuples.iter_mut().enumerate() {
            let columns: Vec<Vec<Val>> = slots.iter().map(|s| self.parts(s, result.reg_offset(r))).collect();
            let parts = (0..1usize << bits.len()).map(|p| columns.iter().map(|c| c[p].clone()).collect());
            *tuple = self.combine_all(region, parts.collect())?;
        }
        Ok(())
    }

    fn all_slots(&mut self, elems: &[Elem], result: &Layout, bits: &[usize]) -> Vec<Slots> {
        let rooms: Vec<_> = elems.iter().map(|&elem| self.room(elem, result, bits)).collect();
        if rooms.iter().any(|(_, wait)| *wait) {
            self.barrier(BarrierReason::Reused);
        }
        rooms.into_iter().map(|(room, _)| self.place_slots(room, result, bits)).collect()
    }
}
