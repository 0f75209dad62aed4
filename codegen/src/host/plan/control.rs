//! Loops and branches: their regions, and the slots of what they carry or yield.

use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use tilefuse_block::{Op, OpKind, Region as Body, Value};

use super::build::Builder;
use super::{BlockId, Def, Item, Loop, LoopId, Plan, Role, SinkId, SinkKind, Slot, SlotId};
use crate::Result;

impl<'p> Builder<'p> {
    pub(super) fn for_loop(&mut self, op: &'p Op, block: BlockId) -> Result<()> {
        let Some(body) = op.regions.first() else { return Ok(()) };
        let slots = self.initial(op.args.get(3..).unwrap_or_default(), block)?;
        let id = self.add_loop(op, Role::For, block);
        let inner = id + 1;
        self.carry(body.args.get(1..).unwrap_or_default(), &slots, inner);
        self.carry(&op.results, &slots, block);
        self.items[block].push(Item::Loop(id));
        if let Some(&counter) = body.args.first() {
            self.plan.defs[counter.index()] = Def::Induction(id);
            self.plan.home[counter.index()] = inner;
        }
        let first = self.plan.sinks.len();
        self.region(body, inner)?;
        self.yields(body, &slots, inner);
        self.end_loop(id, first);
        Ok(())
    }

    pub(super) fn while_loop(&mut self, op: &'p Op, block: BlockId) -> Result<()> {
        let [test, body] = op.regions.as_slice() else { return Ok(()) };
        let slots = self.initial(&op.args, block)?;
        let (first, second) = self.add_pair(op, Role::While, block);
        for (values, home) in [(&test.args[..], first + 1), (&body.args, second + 1), (&op.results, block)] {
            self.carry(values, &slots, home);
        }
        let start = self.plan.sinks.len();
        self.region(test, first + 1)?;
        self.end_loop(first, start);
        let start = self.plan.sinks.len();
        self.region(body, second + 1)?;
        self.yields(body, &slots, second + 1);
        self.end_loop(second, start);
        Ok(())
    }

    pub(super) fn branch(&mut self, op: &'p Op, block: BlockId) -> Result<()> {
        let [taken, other] = op.regions.as_slice() else { return Ok(()) };
        let (first, second) = self.add_pair(op, Role::If, block);
        let start = self.plan.sinks.len();
        self.region(taken, first + 1)?;
        let yielded = taken.ops.last().map(|op| op.args.clone()).unwrap_or_default();
        let slots = self.initial(&yielded, first + 1)?;
        self.end_loop(first, start);
        let start = self.plan.sinks.len();
        self.region(other, second + 1)?;
        self.yields(other, &slots, second + 1);
        self.end_loop(second, start);
        self.carry(&op.results, &slots, block);
        Ok(())
    }

    /// New slots that hold these values first.
    fn initial(&mut self, values: &[Value], block: BlockId) -> Result<Vec<SlotId>> {
        let mut slots = Vec::new();
        for &value in values {
            let sink = self.keep(value, block)?;
            slots.push(self.plan.sinks[sink].slot.unwrap_or_default());
        }
        Ok(slots)
    }

    /// Says that values of a list of operations are what lies in slots.
    fn carry(&mut self, values: &[Value], slots: &[SlotId], home: BlockId) {
        for (&value, &slot) in values.iter().zip(slots) {
            self.plan.defs[value.index()] = Def::Carried;
            self.plan.home[value.index()] = home;
            self.plan.slot_of.insert(value, slot);
        }
    }

    fn add_loop(&mut self, op: &'p Op, role: Role, block: BlockId) -> LoopId {
        let whole = role != Role::For;
        self.plan.loops.push(Loop { op, role, whole, body: Vec::new(), sinks: Vec::new() });
        self.plan.parents.push(block);
        self.items.push(Vec::new());
        self.plan.loops.len() - 1
    }

    /// The regions of an operation with two.
    fn add_pair(&mut self, op: &'p Op, role: fn(LoopId) -> Role, block: BlockId) -> (LoopId, LoopId) {
        let first = self.add_loop(op, Role::Second, block);
        let second = self.add_loop(op, Role::Second, block);
        self.plan.loops[first].role = role(second);
        self.items[block].extend([Item::Loop(first), Item::Loop(second)]);
        (first, second)
    }

    /// Notes the sinks of a region, which are those from `first` on. Where some run in program order with respect to
    /// memory, iterations must not run for one part of their tiles after the other.
    fn end_loop(&mut self, id: LoopId, first: SinkId) {
        let plan = &mut self.plan;
        let inner = self.items[id + 1].iter().any(|i| matches!(i, Item::Loop(l) if plan.loops[*l].whole));
        plan.loops[id].whole |= inner || plan.sinks[first..].iter().any(|s| s.barrier);
        plan.loops[id].sinks = (first..plan.sinks.len()).collect();
    }

    /// Tiles first: their elements may depend on carried scalars, which must not change before.
    fn yields(&mut self, body: &'p Body, slots: &[SlotId], block: BlockId) {
        let Some(op) = body.ops.last().filter(|op| op.kind == OpKind::Yield) else { return };
        let pairs: Vec<(Value, SlotId)> = op.args.iter().copied().zip(slots.iter().copied()).collect();
        for tiles in [true, false] {
            for &(value, slot) in &pairs {
                // A sum that is added to where it lies is there already.
                let there =
                    self.sums.results.contains(&value) && self.plan.slot_of.get(&value) == Some(&slot);
                if (self.plan.program.ty(value).rank() > 0) == tiles && !there {
                    let sink = self.sink(SinkKind::Materialize, SmallVec::from_slice(&[value]), value, block);
                    self.plan.sinks[sink].slot = Some(slot);
                }
            }
        }
    }

    /// Where the next values of a loop's tiles cannot be written in place, computes all of them first.
    pub(super) fn protect_yields(&mut self) {
        for id in 0..self.plan.loops.len() {
            for sink in self.overwriting(id) {
                self.copy_through(sink);
            }
        }
    }

    /// The sinks that write carried tiles which others still read, at the end of a loop's body.
    fn overwriting(&self, id: LoopId) -> Vec<SinkId> {
        let (tiles, numbers) = self.carried_yields(id);
        if !self.plan.in_place(&tiles) {
            return tiles;
        }
        // With nothing else in the list, all of them run in one region, which computes before it writes. Anywhere else
        // something that one of them waits for may come between two.
        let together = self.items[id + 1].len() == tiles.len() + numbers.len();
        let reads = |reader: SinkId, slot: Option<SlotId>| {
            self.plan.slot_uses(reader).iter().any(|&(used, _)| Some(used) == slot)
        };
        let is_read_later = |&(at, &sink): &(usize, &SinkId)| {
            let slot = self.plan.sinks[sink].slot;
            let later = if together { &[] } else { &tiles[at + 1..] };
            later.iter().chain(&numbers).any(|&reader| reads(reader, slot))
        };
        tiles.iter().enumerate().filter(is_read_later).map(|(_, &sink)| sink).collect()
    }

    /// The sinks that write the carried tiles at the end of a loop's body, and those that write the carried scalars after
    /// them.
    fn carried_yields(&self, id: LoopId) -> (Vec<SinkId>, Vec<SinkId>) {
        if self.plan.loops[id].op.kind == OpKind::If {
            // Nothing inside reads what its regions yield.
            return (Vec::new(), Vec::new());
        }
        let carried: FxHashSet<SlotId> =
            self.plan.loops[id].op.results.iter().filter_map(|v| self.plan.slot_of.get(v).copied()).collect();
        // What the start of a sum is computed into is read before the body ends.
        let start = |s: SinkId| self.plan.sinks[s].roots.iter().any(|r| self.sums.starts.contains_key(r));
        let is_yield = |item: &Item| match item {
            Item::Sink(s) if self.plan.sinks[*s].slot.is_some_and(|slot| carried.contains(&slot)) => {
                (!start(*s)).then_some(*s)
            }
            _ => None,
        };
        let yields = self.items[id + 1].iter().filter_map(is_yield);
        yields.partition(|&s| !self.plan.sinks[s].shape.is_empty())
    }

    /// Makes a yield write a slot of its own, which a new sink copies to the carried slot after all yields.
    fn copy_through(&mut self, sink: SinkId) {
        let Some(target) = self.plan.sinks[sink].slot else { return };
        let Some(&value) = self.plan.sinks[sink].roots.first() else { return };
        let block = self.plan.sinks[sink].block;
        let bits = self.plan.sinks[sink].bits.clone();
        let elem = self.plan.slots[target].elem;
        let temporary = self.plan.slots.len();
        self.plan.slots.push(Slot::new(elem, bits.clone()));
        self.plan.sinks[sink].slot = Some(temporary);
        let copy = self.sink(SinkKind::Copy(temporary), SmallVec::new(), value, block);
        self.plan.sinks[copy].bits = bits;
        self.plan.sinks[copy].slot = Some(target);
        for id in 0..self.plan.loops.len() {
            if self.plan.encloses(id + 1, block) {
                self.plan.loops[id].sinks.push(copy);
            }
        }
    }
}

impl<'p> Plan<'p> {
    /// What says how often, or whether, a region runs.
    pub(super) fn controls<'a>(&'a self, region: &'a Loop<'p>) -> &'a [Value] {
        let op = region.op;
        match region.role {
            Role::For => op.args.get(..3).unwrap_or_default(),
            Role::If(_) => &op.args,
            Role::While(_) => self.condition(op),
            Role::Second => &[],
        }
    }

    /// The condition of a `while`, alone.
    pub(crate) fn condition<'a>(&self, op: &'a Op) -> &'a [Value] {
        op.regions.first().and_then(|test| test.ops.last()).map_or(&[], |last| last.args.as_slice())
    }

    /// Whether these sinks may write the carried tiles while others of them still read them, if all run in one region.
    fn in_place(&self, yields: &[SinkId]) -> bool {
        let Some(&first) = yields.first() else { return true };
        let bits = self.classes.canonical(&self.sinks[first].bits);
        let targets: FxHashSet<SlotId> = yields.iter().filter_map(|&s| self.sinks[s].slot).collect();
        yields.iter().all(|&sink| {
            self.classes.canonical(&self.sinks[sink].bits) == bits
                && self.slot_uses(sink).iter().all(|(slot, map)| !targets.contains(slot) || *map == bits)
        })
    }
}
