//! Accumulators of reductions.

use inkwell::values::PointerValue;
use smallvec::SmallVec;
use tilefuse_block::{Elem, Loc, Op as BlockOp, OpKind, ReduceFn};

use super::ir::{V, lanes_of, llvm, widen};
use super::{Bound, Emitter};
use crate::Result;
use crate::host::plan::{Bit, Map, RegionId, SinkId, SinkKind};
use crate::scalar;

/// Accumulators of one reduction: one for each value of the bits that are unrolled.
pub(super) struct Accumulators<'c> {
    sink: SinkId,
    combine: ReduceFn,
    elem: Elem,
    /// The unrolled bits, lowest first: those of the region, then those of the groups around it.
    unrolled: Map,
    variables: Vec<PointerValue<'c>>,
    /// Where blocks are summed; none where one accumulator takes few elements.
    totals: Vec<PointerValue<'c>>,
    neutral: V<'c>,
    ty: inkwell::types::BasicTypeEnum<'c>,
}

fn combiner(op: &BlockOp) -> Option<ReduceFn> {
    if let OpKind::Reduce { combine, .. } = op.kind { Some(combine) } else { None }
}

impl<'c> Emitter<'c, '_> {
    /// Accumulators for the reductions of a region, set to neutral elements at the top level.
    pub(super) fn accumulators(&mut self, region: RegionId) -> Result<Vec<Accumulators<'c>>> {
        let region = &self.plan.regions[region];
        let unrolled: Map = region.nest.unroll.iter().chain(&region.forced).copied().collect();
        let mut out = Vec::new();
        for &sink in &region.sinks {
            let SinkKind::Reduce(op) = self.plan.sinks[sink].kind else { continue };
            if self.plan.is_dead(sink) {
                continue;
            }
            let Some(combine) = combiner(op) else { continue };
            let elem = op.args.first().and_then(|&a| self.plan.program.ty(a).elem()).unwrap_or(Elem::F32);
            let has_lanes = self.plan.sinks[sink].bits.iter().any(|b| self.lanes.contains(b));
            let n = if has_lanes { 1u32 << self.lanes.len() } else { 0 };
            let ty = widen(self.ir.elem_type(elem), n);
            let neutral = self.ir.splat(self.literal(combine.neutral(elem)), n);
            let count = 1usize << unrolled.len();
            let sums = combine == ReduceFn::Sum && elem.is_float() && region.block_loops > 0;
            let variables = self.variables(count, neutral)?;
            let totals = self.variables(if sums { count } else { 0 }, neutral)?;
            let unrolled = unrolled.clone();
            out.push(Accumulators { sink, combine, elem, unrolled, variables, totals, neutral, ty });
        }
        Ok(out)
    }

    /// Variables with a value that is set at the top level.
    fn variables(&mut self, count: usize, value: V<'c>) -> Result<Vec<PointerValue<'c>>> {
        let mut out = Vec::new();
        for _ in 0..count {
            self.at(0);
            out.push(self.ir.b.build_alloca(value.get_type(), "").map_err(llvm)?);
        }
        let top = self.top();
        self.at(top);
        for &variable in &out {
            self.ir.b.build_store(variable, value).map_err(llvm)?;
        }
        Ok(out)
    }

    /// Adds the sums of a block to the totals, at the top level.
    pub(super) fn add_block(&mut self, acc: &Accumulators<'c>) -> Result<()> {
        let top = self.top();
        self.at(top);
        for (&variable, &total) in acc.variables.iter().zip(&acc.totals) {
            let old = self.ir.b.build_load(acc.ty, total, "").map_err(llvm)?;
            let part = self.ir.b.build_load(acc.ty, variable, "").map_err(llvm)?;
            let new = self.combine(acc.combine, acc.elem, old, part)?;
            self.ir.b.build_store(total, new).map_err(llvm)?;
            self.ir.b.build_store(variable, acc.neutral).map_err(llvm)?;
        }
        Ok(())
    }

    /// Combines the elements at the current position into their accumulator.
    pub(super) fn accumulate(&mut self, acc: &Accumulators<'c>) -> Result<()> {
        let loc = match self.plan.sinks[acc.sink].kind {
            SinkKind::Reduce(op) => op.loc,
            _ => Loc::UNKNOWN,
        };
        self.from(loc, |this| this.accumulate_here(acc))
    }

    fn accumulate_here(&mut self, acc: &Accumulators<'c>) -> Result<()> {
        let sink = &self.plan.sinks[acc.sink];
        let Some(&operand) = sink.roots.first() else { return Ok(()) };
        let value = self.value(operand, &sink.bits)?;
        let cond = match sink.roots.get(1) {
            Some(&mask) => self.mask(mask, &sink.bits)?.0,
            None => None,
        };
        let top = self.top();
        self.at(top);
        let variable = acc.variables[self.unrolled_index(&acc.unrolled)];
        let old = self.ir.b.build_load(acc.ty, variable, "").map_err(llvm)?;
        let value = self.ir.splat(value.v, lanes_of(old));
        let mut new = self.combine(acc.combine, acc.elem, old, value)?;
        if let Some(cond) = cond {
            new = self.ir.select(cond, new, old)?;
        }
        self.ir.b.build_store(variable, new).map_err(llvm)?;
        Ok(())
    }

    /// Which accumulator the current values of the unrolled bits choose; bits that a loop runs over count as 0.
    fn unrolled_index(&self, bits: &[Bit]) -> usize {
        let one = |(i, &bit): (usize, &Bit)| match self.bound[usize::from(bit)] {
            Bound::Known(true) => 1usize << i,
            _ => 0,
        };
        bits.iter().enumerate().map(one).sum()
    }

    fn combine(&mut self, combine: ReduceFn, elem: Elem, a: V<'c>, b: V<'c>) -> Result<V<'c>> {
        scalar::combine(self, combine, scalar::accumulator(elem), &a, &b)
    }

    /// Combines the accumulators and writes the results to the reduction's slot.
    pub(super) fn finish(&mut self, acc: &Accumulators<'c>, region: RegionId) -> Result<()> {
        let plan = self.plan;
        let sink = &plan.sinks[acc.sink];
        let Some(slot) = sink.slot else { return Ok(()) };
        let own = plan.regions[region].nest.unroll.len();
        let forced = plan.regions[region].forced.clone();
        for copy in 0..1usize << forced.len() {
            self.bind_known(&forced, copy);
            let top = self.top();
            self.at(top);
            let mut parts: SmallVec<[V<'c>; 8]> = SmallVec::new();
            for k in 0..1usize << own {
                let from = if acc.totals.is_empty() { &acc.variables } else { &acc.totals };
                let variable = from[copy << own | k];
                parts.push(self.ir.b.build_load(acc.ty, variable, "").map_err(llvm)?);
            }
            while parts.len() > 1 {
                let half = parts.len() / 2;
                for k in 0..half {
                    parts[k] = self.combine(acc.combine, acc.elem, parts[k], parts[k + half])?;
                }
                parts.truncate(half);
            }
            let mut total = parts[0];
            let across = sink.reduced.iter().any(|b| self.lanes.contains(b));
            if across {
                total = self.across_lanes(acc.combine, acc.elem, total)?;
            }
            let total = self.round(total, acc.elem)?;
            let bits = plan.slots[slot].bits.clone();
            self.write_slot(slot, &bits, total)?;
        }
        Ok(())
    }

    /// Combines all lanes, halves first, into a scalar.
    fn across_lanes(&mut self, combine: ReduceFn, elem: Elem, mut v: V<'c>) -> Result<V<'c>> {
        let mut n = i64::from(lanes_of(v));
        while n > 1 {
            n /= 2;
            let low = self.ir.shuffle(v, v, &(0..n).collect::<Vec<_>>())?;
            let high = self.ir.shuffle(v, v, &(n..2 * n).collect::<Vec<_>>())?;
            v = self.combine(combine, elem, low, high)?;
        }
        self.ir.extract(v, 0)
    }

    /// Makes bits those of a number.
    pub(super) fn bind_known(&mut self, bits: &[Bit], number: usize) {
        for (i, &bit) in bits.iter().enumerate() {
            self.bind(bit, Bound::Known(number >> i & 1 == 1));
        }
    }
}
