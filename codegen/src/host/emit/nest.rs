//! Groups, loops and regions.

use inkwell::values::{InstructionOpcode as Op, IntValue};
use tilefuse_block::Value;

use super::ir::{V, llvm};
use super::reduce::Accumulators;
use super::{At, Bound, Emitter};
use crate::Result;
use crate::host::plan::{Atom, Bit, Group, LoopId, Map, ONE, Part, Region, RegionId, Role, SinkKind, SlotId};

/// How the steps of a vector axis are divided: full chunks, then a masked rest.
struct Bounds<'c> {
    /// Chunks of which every step holds.
    full: IntValue<'c>,
    /// Where the rest begins and ends, in vectors.
    rest: (IntValue<'c>, IntValue<'c>),
    /// The conjuncts that hold in full chunks.
    atoms: Vec<Atom>,
}

impl<'c> Emitter<'c, '_> {
    pub(super) fn groups(&mut self, groups: &[Group]) -> Result<()> {
        groups.iter().try_for_each(|group| self.group(group))
    }

    fn group(&mut self, group: &Group) -> Result<()> {
        let depth = self.levels.len();
        let outer_lanes = self.lanes.clone();
        self.forget_materialized(group);
        if !group.nest.lanes.is_empty() {
            self.bind_lanes(&group.nest.lanes);
        }
        let mut guard = group.guard.clone();
        let (vector, outer) = match group.nest.loops.split_last() {
            Some((vector, outer)) if group.nest.vector_loop => (Some(vector), outer),
            _ => (None, group.nest.loops.as_slice()),
        };
        for bits in outer {
            self.open_static(bits);
            self.open_guards(&mut guard)?;
        }
        match vector {
            None => {
                self.open_guards(&mut guard)?;
                self.parts(group)?;
            }
            Some(bits) => self.vector_group(group, bits, &mut guard)?,
        }
        self.close_to(depth)?;
        self.lanes = outer_lanes;
        self.release(group.nest.loops.iter().flatten().chain(&group.nest.lanes));
        Ok(())
    }

    /// A group whose last loop runs over vectors: full chunks first, then at most one with masks.
    fn vector_group(&mut self, group: &Group, bits: &Map, guard: &mut Vec<Atom>) -> Result<()> {
        let depth = self.levels.len();
        let unrolled = self.unrolled_of(group);
        let axis: Map = group.nest.lanes.iter().chain(&unrolled).chain(bits).copied().collect();
        let chunk = 1i64 << (axis.len() - bits.len());
        let bounds = self.bounds(guard, &axis, bits.len(), chunk, chunk)?;
        let Some(bounds) = bounds else {
            self.open_static(bits);
            self.open_guards(guard)?;
            self.parts(group)?;
            return self.close_to(depth);
        };
        for (start, end, full) in [(self.ir.i64(0), bounds.full, true), (bounds.rest.0, bounds.rest.1, false)]
        {
            if is_empty(start, end) {
                continue;
            }
            self.forget_materialized(group);
            self.open_loop(start, end, bits.len() as u8);
            self.bind_loop(bits);
            if full {
                self.hold(&bounds.atoms);
            }
            self.open_guards(&mut guard.clone())?;
            self.parts(group)?;
            self.close_to(depth)?;
        }
        Ok(())
    }

    /// What the regions of a group keep is not there before they are built, nor where they are built once more.
    fn forget_materialized(&mut self, group: &Group) {
        let plan = self.plan;
        for part in &group.parts {
            match *part {
                Part::Region(region) => self.unwritten.extend(plan.materialized_by(&plan.regions[region])),
                Part::Loop(l) => plan.loops[l].body.iter().for_each(|inner| self.forget_materialized(inner)),
            }
        }
    }

    /// The bits that the regions of a group unroll for it.
    fn unrolled_of(&self, group: &Group) -> Map {
        let first = group.parts.iter().find_map(|part| match *part {
            Part::Region(r) => Some(self.plan.regions[r].forced.clone()),
            Part::Loop(l) => self.plan.loops[l].body.first().map(|g| self.unrolled_of(g)),
        });
        first.unwrap_or_default()
    }

    fn parts(&mut self, group: &Group) -> Result<()> {
        for part in &group.parts {
            match *part {
                Part::Region(region) => self.region(region)?,
                Part::Loop(l) => match self.plan.loops[l].role {
                    Role::For => self.counted_loop(l)?,
                    Role::While(body) => self.while_loop(l, body)?,
                    Role::If(other) => self.branch(l, other)?,
                    Role::Second => {}
                },
            }
        }
        Ok(())
    }

    /// Opens a loop over all values of some bits.
    fn open_static(&mut self, bits: &Map) {
        let end = self.ir.i64(1i64 << bits.len());
        self.open_loop(self.ir.i64(0), end, bits.len() as u8);
        self.bind_loop(bits);
    }

    /// Bits whose loops are closed mean nothing any more.
    fn release<'b>(&mut self, bits: impl Iterator<Item = &'b Bit>) {
        bits.for_each(|&bit| self.bind(bit, Bound::Free));
    }

    fn hold(&mut self, atoms: &[Atom]) {
        let level = self.top();
        self.known.extend(atoms.iter().map(|atom| (atom.clone(), level)));
    }

    /// Opens a branch for each conjunct that is the same for all lanes and unrolled copies from here on.
    fn open_guards(&mut self, atoms: &mut Vec<Atom>) -> Result<()> {
        let (ready, rest): (Vec<Atom>, Vec<Atom>) = std::mem::take(atoms)
            .into_iter()
            .partition(|atom| atom.map.iter().all(|&bit| self.is_fixed(bit)));
        *atoms = rest;
        for atom in ready {
            if self.known.iter().any(|(known, _)| *known == atom) {
                continue;
            }
            if let V::IntValue(cond) = self.value(atom.value, &atom.map)?.v {
                self.open_branch(cond);
                self.hold(&[atom]);
            }
        }
        Ok(())
    }

    /// Whether a bit is the same for all lanes and unrolled copies.
    fn is_fixed(&self, bit: Bit) -> bool {
        bit <= ONE || matches!(self.bound[usize::from(bit)], Bound::Loop(..))
    }

    fn counted_loop(&mut self, id: LoopId) -> Result<()> {
        let op = self.plan.loops[id].op;
        let (Some(body), [lo, hi, step, ..]) = (op.regions.first(), op.args.as_slice()) else {
            return Ok(());
        };
        let depth = self.levels.len();
        let (lo, hi, step) = (self.value(*lo, &[])?, self.value(*hi, &[])?, self.value(*step, &[])?);
        let level = lo.level.max(hi.level).max(step.level);
        self.at(level);
        let trips = self.trips(lo.v, hi.v, step.v)?;
        self.open_loop(self.ir.i64(0), trips, 0);
        let top = self.top();
        let induction = self.induction_value(lo.v, step.v)?;
        self.induction.insert(id, induction);
        let outer = std::mem::replace(&mut self.block_levels[id + 1], top);
        self.carried_start(body.args.get(1..).unwrap_or_default(), top);
        let plan = self.plan;
        self.groups(&plan.loops[id].body)?;
        self.block_levels[id + 1] = outer;
        self.close_to(depth)
    }

    /// What a loop carries is read inside the loop only.
    pub(super) fn carried_start(&mut self, values: &[Value], level: usize) {
        for value in values {
            if let Some(&slot) = self.plan.slot_of.get(value) {
                self.ready[slot] = level;
            }
        }
    }

    fn trips(&self, lo: V<'c>, hi: V<'c>, step: V<'c>) -> Result<IntValue<'c>> {
        let ir = &self.ir;
        let wide = |v| ir.cast(Op::SExt, v, ir.int_type(64).into());
        let (lo, hi, step) = (wide(lo)?, wide(hi)?, wide(step)?);
        let span = ir.bin(Op::Sub, hi, lo)?;
        let span = ir.call_same("llvm.smax", &[span, ir.int_like(span, 0)])?;
        let rounded = ir.bin(Op::Add, span, ir.bin(Op::Sub, step, ir.int_like(step, 1))?)?;
        // A step below 1 is not a program; it must not divide by 0 either.
        let divisor = ir.call_same("llvm.smax", &[step, ir.int_like(step, 1)])?;
        match ir.bin(Op::UDiv, rounded, divisor)? {
            V::IntValue(trips) => Ok(trips),
            _ => Err(llvm("loop bounds with lanes")),
        }
    }

    fn induction_value(&mut self, lo: V<'c>, step: V<'c>) -> Result<At<'c>> {
        let level = self.top();
        let counter = self.levels[level].counter.ok_or_else(|| llvm("no counter"))?;
        self.at(level);
        let index = self.ir.cast(Op::Trunc, counter.into(), self.ir.int_type(32).into())?;
        let offset = self.ir.bin(Op::Mul, index, step)?;
        Ok(At { v: self.ir.bin(Op::Add, lo, offset)?, level })
    }

    fn region(&mut self, id: RegionId) -> Result<()> {
        let plan = self.plan;
        let region = &plan.regions[id];
        if region.sinks.iter().all(|&sink| plan.is_dead(sink)) {
            return Ok(());
        }
        let depth = self.levels.len();
        let outer_lanes = self.lanes.clone();
        if !region.nest.lanes.is_empty() {
            self.bind_lanes(&region.nest.lanes);
        }
        self.forced = region.forced.clone();
        let loops = &region.nest.loops;
        let last_is_vector = region.nest.vector_loop && !loops.is_empty();
        let plain = loops.len() - usize::from(last_is_vector);
        let free = region.free_loops.min(plain);
        let mut guard = region.guard.clone();
        for bits in &loops[..free] {
            self.open_static(bits);
        }
        let accumulators_level = self.levels.len();
        let accumulators = self.accumulators(id)?;
        self.open_guards(&mut guard)?;
        let inside = (free + region.block_loops).min(plain);
        for bits in &loops[free..inside] {
            self.open_static(bits);
            self.open_guards(&mut guard)?;
        }
        let block_level = self.levels.len();
        for bits in &loops[inside..plain] {
            self.open_static(bits);
            self.open_guards(&mut guard)?;
        }
        match loops.last().filter(|_| last_is_vector) {
            Some(bits) => self.vector_loop(region, bits, &mut guard, &accumulators)?,
            None => self.copies(region, true, &accumulators)?,
        }
        if inside > free {
            self.close_to(block_level)?;
            accumulators.iter().try_for_each(|acc| self.add_block(acc))?;
        }
        self.close_to(accumulators_level)?;
        for acc in &accumulators {
            self.finish(acc, id)?;
        }
        self.close_to(depth)?;
        self.lanes = outer_lanes;
        let nest = &region.nest;
        self.release(
            nest.loops.iter().flatten().chain(&nest.lanes).chain(&nest.unroll).chain(&region.forced),
        );
        self.complete(region);
        Ok(())
    }

    /// What a region wrote can be read from here on.
    fn complete(&mut self, region: &Region) {
        let top = self.top();
        let slots: Vec<SlotId> = region.sinks.iter().flat_map(|&s| self.plan.sinks[s].made()).collect();
        for slot in slots {
            self.ready[slot] = top;
        }
        for value in self.plan.materialized_by(region) {
            self.unwritten.remove(&value);
        }
    }

    fn vector_loop(
        &mut self,
        region: &Region,
        bits: &Map,
        guard: &mut Vec<Atom>,
        accumulators: &[Accumulators<'c>],
    ) -> Result<()> {
        let depth = self.levels.len();
        let unroll = &region.nest.unroll;
        let axis: Map = region.nest.lanes.iter().chain(unroll).chain(bits).copied().collect();
        let vector = 1i64 << region.nest.lanes.len();
        let chunk = vector << unroll.len();
        let Some(bounds) = self.bounds(guard, &axis, bits.len(), chunk, vector)? else {
            self.open_static(bits);
            self.open_guards(guard)?;
            self.copies(region, true, accumulators)?;
            return self.close_to(depth);
        };
        if !is_empty(self.ir.i64(0), bounds.full) {
            self.open_loop(self.ir.i64(0), bounds.full, bits.len() as u8);
            self.bind_loop(bits);
            self.hold(&bounds.atoms);
            self.open_guards(&mut guard.clone())?;
            self.copies(region, true, accumulators)?;
            self.close_to(depth)?;
        }
        if !is_empty(bounds.rest.0, bounds.rest.1) {
            let rest: Map = unroll.iter().chain(bits).copied().collect();
            self.open_loop(bounds.rest.0, bounds.rest.1, rest.len() as u8);
            self.bind_loop(&rest);
            self.open_guards(&mut guard.clone())?;
            self.copies(region, false, accumulators)?;
            self.close_to(depth)?;
        }
        Ok(())
    }

    /// Takes the conjuncts out of `guard` that hold for a leading part of an axis, and divides the axis into chunks
    /// that hold whole and a rest of units of `unit` steps. `None` where there is no such conjunct.
    fn bounds(
        &mut self,
        guard: &mut Vec<Atom>,
        axis: &Map,
        loop_bits: usize,
        chunk: i64,
        unit: i64,
    ) -> Result<Option<Bounds<'c>>> {
        let plan = self.plan;
        let (taken, left): (Vec<Atom>, Vec<Atom>) = std::mem::take(guard).into_iter().partition(|atom| {
            let known = |bit: &Bit| axis.contains(bit) || self.is_fixed(*bit);
            atom.map.iter().all(known) && plan.as_prefix(atom, axis).is_some()
        });
        *guard = left;
        if taken.is_empty() {
            return Ok(None);
        }
        let steps = chunk << loop_bits;
        let mut valid: V<'c> = self.ir.i64(steps).into();
        let mut level = 0;
        for atom in &taken {
            let Some(prefix) = plan.as_prefix(atom, axis) else { continue };
            let start: Map = atom
                .map
                .iter()
                .map(|b| if axis.contains(b) { super::super::plan::ZERO } else { *b })
                .collect();
            let (counter, bound) = (self.value(prefix.counter, &start)?, self.value(prefix.bound, &start)?);
            level = level.max(counter.level).max(bound.level);
            self.at(level);
            let wide = |v| self.ir.cast(Op::SExt, v, self.ir.int_type(64).into());
            // Numbers far apart must not wrap to what looks like many steps.
            let span = self.ir.call_same("llvm.ssub.sat", &[wide(bound.v)?, wide(counter.v)?])?;
            let span = self.ir.call_same("llvm.sadd.sat", &[span, self.ir.int_like(span, prefix.extra)])?;
            valid = self.ir.call_same("llvm.smin", &[valid, span])?;
        }
        self.at(level);
        let valid = self.ir.call_same("llvm.smax", &[valid, self.ir.i64(0).into()])?;
        let shift =
            |v: V<'c>, by: i64| self.ir.bin(Op::LShr, v, self.ir.i64(i64::from(by.trailing_zeros())).into());
        let full = shift(valid, chunk)?;
        let first = self.ir.bin(Op::Mul, full, self.ir.i64(chunk / unit).into())?;
        let rounded = self.ir.bin(Op::Add, valid, self.ir.i64(unit - 1).into())?;
        let last = shift(rounded, unit)?;
        let number = |v: V<'c>| if let V::IntValue(v) = v { Ok(v) } else { Err(llvm("a bound with lanes")) };
        Ok(Some(Bounds { full: number(full)?, rest: (number(first)?, number(last)?), atoms: taken }))
    }

    /// The sinks of a region at every value of the unrolled bits. All values are computed before any is stored.
    fn copies(&mut self, region: &Region, unroll: bool, accumulators: &[Accumulators<'c>]) -> Result<()> {
        let own = if unroll { region.nest.unroll.clone() } else { Map::new() };
        let bits: Map = own.iter().chain(&region.forced).copied().collect();
        self.unrolled = own;
        self.streams = self.streams_in(region);
        for copy in 0..1usize << bits.len() {
            self.bind_known(&bits, copy);
            let mut computed = Vec::new();
            for &id in &region.sinks {
                let plan = self.plan;
                let sink = &plan.sinks[id];
                if plan.is_dead(id) || matches!(sink.kind, SinkKind::Reduce(_)) {
                    continue;
                }
                let at = match (sink.kind, plan.own_op(sink), sink.roots.first()) {
                    (SinkKind::Whole(op), ..) => {
                        self.from(op.loc, |this| this.whole(op))?;
                        continue;
                    }
                    (SinkKind::Atomic(op), ..) => {
                        self.from(op.loc, |this| this.atomic_tile(op, &sink.bits))?
                    }
                    (SinkKind::Copy(from), ..) => self.read_slot(from, &sink.bits)?,
                    (_, Some(op), Some(&root)) => {
                        self.from(op.loc, |this| this.materialized_value(op, root, &sink.bits))?
                    }
                    (_, None, Some(&root)) => self.value(root, &sink.bits)?,
                    _ => continue,
                };
                computed.push((id, at));
            }
            for acc in accumulators {
                self.accumulate(acc)?;
            }
            if !accumulators.is_empty() {
                self.fetch_for_later(region)?;
            }
            for (id, at) in computed {
                let sink = &self.plan.sinks[id];
                match (sink.kind, sink.slot) {
                    (SinkKind::Store(op), _) => {
                        self.from(op.loc, |this| this.store_tile(op, &sink.bits, at.v))?
                    }
                    (_, Some(slot)) => self.write_slot(slot, &sink.bits, at.v)?,
                    _ => {}
                }
            }
        }
        if !self.lines.is_empty() {
            return Err(llvm("a line that is not complete"));
        }
        Ok(())
    }

    /// The value that a sink keeps for others, computed and not read; others in the region find it.
    fn materialized_value(
        &mut self,
        op: &tilefuse_block::Op,
        value: tilefuse_block::Value,
        map: &[Bit],
    ) -> Result<At<'c>> {
        let map = self.dependent(value, map);
        let key = (value, self.resolve(&map));
        if let Some(&at) = self.memo.get(&key) {
            return Ok(at);
        }
        let at = self.operation(op, value, &map)?;
        Ok(self.remember(key, at))
    }
}

/// Whether a range of constants is known to be empty.
fn is_empty(start: IntValue<'_>, end: IntValue<'_>) -> bool {
    match (start.get_sign_extended_constant(), end.get_sign_extended_constant()) {
        (Some(start), Some(end)) => start >= end,
        _ => false,
    }
}
