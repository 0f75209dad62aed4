//! Groups and regions: which sinks run in the same loops.
//!
//! A region is a loop over the elements of sinks that have the same ones; a group is a run of regions inside loops that
//! all of them may share.
//!
//! ```text
//! kernel @rows(%x: ptr<f32> align(16), %y: ptr<f32> align(16), %z: ptr<f32> align(16)) warps(4) {
//!   %i = range 0 512
//!   %at = reshape %i [8, 64]
//!   %v = load %x, %at
//!   %max = reduce max %v axis 1
//!   %r = range 0 8
//!   store %z, %r, %max
//!   %top = expand_dims %max axis 1
//!   %all = broadcast %top [8, 64]
//!   %d = map sub %v, %all
//!   store %y, %at, %d
//! }
//! ```
//!
//! ```text
//! // host: vectors of 8 x 32 bits
//! kernel @rows(%x: ptr<f32> align(16), %y: ptr<f32> align(16), %z: ptr<f32> align(16)) warps(4) {
//!   %i = range 0 512
//!   %at = reshape %i [8, 64]
//!   %v = load %x, %at
//!   %max = reduce max %v axis 1  // groups: group 0 over 8, region 0 over 64, combined
//!   %r = range 0 8
//!   store %z, %r, %max           // groups: group 0 over 8, region 1 over 1
//!   %top = expand_dims %max axis 1
//!   %all = broadcast %top [8, 64]
//!   %d = map sub %v, %all
//!   store %y, %at, %d            // groups: group 0 over 8, region 2 over 64
//! }
//! ```

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::Op;

use super::{
    Bit, Group, Item, Map, Part, Plan, Region, RegionId, Sink, SinkId, SinkKind, SlotId, axis_ranges,
};
use crate::host::passes::{Seen, Site};

/// The slots that each sink reads, and at which maps.
type Uses = Vec<Vec<(SlotId, Map)>>;

/// The groups around a list of operations, with their parallel bits.
type Context = Vec<(usize, Bit)>;

impl Plan<'_> {
    /// Sorts the sinks of every list of operations into groups and regions.
    pub(super) fn form_groups(&mut self, items: &[Vec<Item>]) {
        let uses: Uses = (0..self.sinks.len()).map(|s| self.slot_uses(s)).collect();
        let mut former = Former { plan: self, items, uses, groups: 0 };
        former.plan.body = former.block(0, &Context::new());
    }

    fn free_bits(&self, sink: &Sink) -> Vec<Bit> {
        sink.bits.iter().copied().filter(|b| !sink.reduced.contains(b)).collect()
    }
}

struct Former<'a, 'p> {
    plan: &'a mut Plan<'p>,
    items: &'a [Vec<Item>],
    uses: Uses,
    groups: usize,
}

/// What entries of a list share.
struct Shared {
    /// Whether there are any sinks.
    any: bool,
    /// The bits over which all sinks may run together: each runs over them, none combines along them, and what one of
    /// them produces is needed by the others at the same position only.
    bits: Vec<Bit>,
    /// Whether no tile has more than one axis.
    flat: bool,
    /// Whether one of them runs with nothing else: for whole tiles, or in order with respect to memory.
    alone: bool,
    /// The slots that they write.
    made: FxHashSet<SlotId>,
    /// The maps at which they read slots that none of those before them writes.
    used: FxHashMap<SlotId, Vec<Map>>,
}

impl Default for Shared {
    fn default() -> Shared {
        let (made, used) = (FxHashSet::default(), FxHashMap::default());
        Shared { any: false, bits: Vec::new(), flat: true, alone: false, made, used }
    }
}

impl Former<'_, '_> {
    fn block(&mut self, block: usize, context: &Context) -> Vec<Group> {
        let items = self.items[block].clone();
        let mut groups = Vec::new();
        let mut open: Vec<Item> = Vec::new();
        let mut shared = Shared::default();
        for item in items {
            let single = self.shared([item]);
            let before = (shared.alone, shared.bits.is_empty());
            self.extend(&mut shared, item);
            if !open.is_empty() && !self.joins(before, &shared, &single) {
                groups.push(self.group(&std::mem::take(&mut open), context));
                shared = single;
            }
            open.push(item);
        }
        if !open.is_empty() {
            groups.push(self.group(&open, context));
        }
        groups
    }

    fn sinks(&self, items: &[Item]) -> Vec<SinkId> {
        let mut out = Vec::new();
        for item in items {
            match *item {
                Item::Sink(s) => out.push(s),
                Item::Loop(l) => out.extend(&self.plan.loops[l].sinks),
            }
        }
        out
    }

    /// Whether a single entry continues a group, which then shares `all`; before, it runs alone or has no common bits. Where
    /// nothing stays parallel, tiles of rank 2 and more begin anew, so that their loops stay together.
    fn joins(&self, (alone, apart): (bool, bool), all: &Shared, single: &Shared) -> bool {
        !alone && !single.alone && (!all.bits.is_empty() || all.flat || (apart && single.bits.is_empty()))
    }

    /// Whether an entry runs for whole tiles.
    fn is_whole(&self, item: Item) -> bool {
        matches!(item, Item::Loop(l) if self.plan.loops[l].whole)
    }

    /// What these entries share.
    fn shared(&self, items: impl IntoIterator<Item = Item>) -> Shared {
        let mut shared = Shared::default();
        items.into_iter().for_each(|item| self.extend(&mut shared, item));
        shared
    }

    /// Adds an entry to those that share something.
    fn extend(&self, shared: &mut Shared, item: Item) {
        shared.alone |= self.is_whole(item);
        for id in self.sinks(&[item]) {
            let sink = &self.plan.sinks[id];
            shared.alone |= sink.barrier;
            shared.flat &= sink.shape.len() <= 1;
            let free = self.plan.free_bits(sink);
            match shared.any {
                true => shared.bits.retain(|b| free.contains(b)),
                false => shared.bits = free,
            }
            shared.any = true;
            if let Some(slot) = sink.slot.filter(|&slot| shared.made.insert(slot)) {
                let used = shared.used.remove(&slot).unwrap_or_default();
                used.iter().for_each(|map| self.part(&mut shared.bits, slot, map));
                shared.used.insert(slot, used);
            }
            for (slot, map) in &self.uses[id] {
                match shared.made.contains(slot) {
                    true => self.part(&mut shared.bits, *slot, map),
                    false => shared.used.entry(*slot).or_default().push(map.clone()),
                }
            }
        }
    }

    /// Takes the bits away over which a slot is made at other positions than it is used.
    fn part(&self, bits: &mut Vec<Bit>, slot: SlotId, map: &Map) {
        for (&made, &used) in self.plan.slots[slot].bits.iter().zip(map) {
            bits.retain(|&b| made == used || (b != made && b != used));
        }
    }

    fn group(&mut self, items: &[Item], context: &Context) -> Group {
        let id = self.groups;
        self.groups += 1;
        let outer: Vec<Bit> = context.iter().map(|&(_, b)| b).collect();
        let mut bits = self.shared(items.iter().copied()).bits;
        bits.retain(|b| !outer.contains(b));
        if self.one_pointwise_region(items, context) || items.iter().any(|&i| self.is_whole(i)) {
            bits.clear();
        }
        let mut inner = context.clone();
        inner.extend(bits.iter().map(|&b| (id, b)));
        let mut parts: Vec<Part> = Vec::new();
        for &item in items {
            match item {
                Item::Sink(sink) => self.add_sink(&mut parts, sink, &inner),
                Item::Loop(l) => {
                    let body = self.block(l + 1, &inner);
                    self.plan.loops[l].body = body;
                    parts.push(Part::Loop(l));
                }
            }
        }
        let mut group = Group { parts, ..Group::default() };
        group.nest.loops = self.ordered(items, &bits);
        group
    }

    /// The parallel bits by axis of the sink with the most elements.
    fn ordered(&self, items: &[Item], bits: &[Bit]) -> Vec<Map> {
        let sinks = self.sinks(items);
        let Some(&largest) = sinks.iter().max_by_key(|&&s| self.plan.sinks[s].bits.len()) else {
            return Vec::new();
        };
        axes_of(&self.plan.sinks[largest], |b| bits.contains(&b))
    }

    /// Whether all entries are sinks without combination that share one region, so that no parallel loops are needed.
    fn one_pointwise_region(&self, items: &[Item], context: &Context) -> bool {
        let sinks = self.sinks(items);
        let plain = items.iter().all(|item| matches!(item, Item::Sink(_)));
        let Some(&first) = sinks.first() else { return true };
        plain
            && sinks.iter().all(|&s| {
                let sink = &self.plan.sinks[s];
                !matches!(sink.kind, SinkKind::Reduce(_)) && self.fits(&[first], s, context)
            })
    }

    fn add_sink(&mut self, parts: &mut Vec<Part>, sink: SinkId, context: &Context) {
        if let Some(&Part::Region(region)) = parts.last() {
            let sinks = self.plan.regions[region].sinks.clone();
            if self.fits(&sinks, sink, context) {
                self.plan.regions[region].sinks.push(sink);
                return;
            }
        }
        let block = self.plan.sinks[sink].block;
        let axes = axes_of(&self.plan.sinks[sink], |b| !context.iter().any(|&(_, c)| c == b));
        self.plan.regions.push(Region {
            sinks: vec![sink],
            block,
            axes,
            nest: super::Nest::default(),
            free_loops: 0,
            block_loops: 0,
            forced: Map::new(),
            guard: Vec::new(),
            context: context.clone(),
        });
        parts.push(Part::Region(self.plan.regions.len() - 1));
    }

    /// Whether a sink runs over the same bits as these, needs no result of theirs, and overwrites nothing that they have
    /// yet to read.
    fn fits(&self, region: &[SinkId], sink: SinkId, context: &Context) -> bool {
        let new = &self.plan.sinks[sink];
        let own = |s: &Sink| {
            let mut bits: Vec<Bit> =
                s.bits.iter().copied().filter(|b| !context.iter().any(|c| c.1 == *b)).collect();
            bits.sort_unstable();
            bits
        };
        let sorted = |bits: &[Bit]| {
            let mut bits = bits.to_vec();
            bits.sort_unstable();
            bits
        };
        region.iter().all(|&s| {
            let old = &self.plan.sinks[s];
            let reduces = !old.reduced.is_empty() && !new.reduced.is_empty();
            let depends = old.slot.is_some_and(|slot| {
                !self.is_carried(slot) && s != sink && self.uses[sink].iter().any(|(used, _)| *used == slot)
            });
            // What is read elsewhere than it is written must be read whole before.
            let overwrites = new.slot.is_some_and(|slot| {
                s != sink && self.uses[s].iter().any(|(used, map)| *used == slot && *map != new.bits)
            });
            let alone = (old.barrier || new.barrier) && s != sink;
            own(old) == own(new)
                && (!reduces || sorted(&old.reduced) == sorted(&new.reduced))
                && !depends
                && !overwrites
                && !alone
        })
    }

    /// Whether a slot holds what a loop carries: its readers want what it held before this region.
    fn is_carried(&self, slot: SlotId) -> bool {
        let carried =
            |op: &tilefuse_block::Op| op.results.iter().any(|v| self.plan.slot_of.get(v) == Some(&slot));
        self.plan.loops.iter().any(|l| carried(l.op))
    }
}

/// The bits of each axis of a sink that `keep` accepts, outermost axis first, without empty axes.
fn axes_of(sink: &Sink, keep: impl Fn(Bit) -> bool) -> Vec<Map> {
    let ranges = axis_ranges(&sink.shape).into_iter();
    let axes = ranges.map(|r| sink.bits[r].iter().copied().filter(|&b| keep(b)).collect::<Map>());
    axes.filter(|axis| !axis.is_empty()).collect()
}

/// Which loops an operation's elements are computed in.
pub(in crate::host) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let note = |(sink, id, site): (SinkId, RegionId, &Site)| {
        let (region, sink) = (&seen.plan.regions[id], &seen.plan.sinks[sink]);
        let shared = match site.around.is_empty() {
            true => String::new(),
            false => {
                let around: Vec<String> = site.around.iter().map(u64::to_string).collect();
                format!(" over {}", around.join(" x "))
            }
        };
        let own = Seen::extents(region.axes.iter().map(|axis| axis.len()));
        let combined = if sink.reduced.is_empty() { "" } else { ", combined" };
        format!("group {}{shared}, region {id} over {own}{combined}", site.group)
    };
    seen.sinks(op).into_iter().map(note).collect()
}
