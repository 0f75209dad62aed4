//! Which values are worth keeping between regions instead of computing them again.
//!
//! ```text
//! kernel @norm(%x: ptr<f32> align(16), %y: ptr<f32> align(16)) warps(4) {
//!   %i = range 0 512
//!   %v = load %x, %i
//!   %max = reduce max %v axis 0
//!   %top = splat %max [512]
//!   %d = map sub %v, %top
//!   %e = map div %v, %d
//!   %sum = reduce sum %e axis 0
//!   %all = splat %sum [512]
//!   %out = map div %e, %all
//!   store %y, %i, %out
//! }
//! ```
//!
//! ```text
//! // host: vectors of 8 x 32 bits
//! kernel @norm(%x: ptr<f32> align(16), %y: ptr<f32> align(16)) warps(4) {
//!   %i = range 0 512
//!   %v = load %x, %i
//!   %max = reduce max %v axis 0
//!   %top = splat %max [512]
//!   %d = map sub %v, %top
//!   %e = map div %v, %d  // materialize: %e is computed once, in region 1
//!   %sum = reduce sum %e axis 0
//!   %all = splat %sum [512]
//!   %out = map div %e, %all
//!   store %y, %i, %out
//! }
//! ```

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tilefuse_block::{Elem, Op, OpKind, Value};

use super::{Bit, Def, Group, Map, ONE, Part, Plan, RegionId, Sink, SinkId, SinkKind, Slot, operands};
use crate::host::passes::{Seen, Site};

/// Vector instructions above which a value is kept rather than computed again.
const KEEP_COST: u32 = 7;

/// Values that were followed, each at a map.
type Computed = FxHashSet<(Value, Map)>;

/// Where a region looks a value up: after its maker or not, in these loops and this list of operations.
type Lookup<'a> = (bool, &'a [(usize, Bit)], usize);

/// Where a value is computed first, and at which map.
type First = FxHashMap<Value, (RegionId, Map)>;

impl Plan<'_> {
    /// Adds sinks that keep values which several regions need and which cost more than a store and a load.
    pub(super) fn choose_materialized(&mut self) {
        let mut order = Vec::new();
        self.regions_in_order(&self.body, &mut order);
        let mut refused: FxHashSet<Value> = FxHashSet::default();
        // Bounds and conditions are asked for before what comes in the order of operations is kept.
        for l in &self.loops {
            for &control in self.controls(l) {
                self.walk(control, &[], &mut |value, _| {
                    refused.insert(value);
                });
            }
        }
        let mut first = First::default();
        for &region in &order {
            self.visit_region(&order, region, &mut first, &mut refused);
        }
    }

    fn regions_in_order(&self, groups: &[Group], out: &mut Vec<RegionId>) {
        for part in groups.iter().flat_map(|g| &g.parts) {
            match *part {
                Part::Region(r) => out.push(r),
                Part::Loop(l) => self.regions_in_order(&self.loops[l].body, out),
            }
        }
    }

    fn visit_region(
        &mut self,
        order: &[RegionId],
        region: RegionId,
        first: &mut First,
        refused: &mut FxHashSet<Value>,
    ) {
        let sinks = self.regions[region].sinks.iter();
        let mut open: Vec<(Value, Map)> = sinks.flat_map(|&sink| self.demands(sink)).collect();
        let mut seen = FxHashSet::default();
        while let Some((value, map)) = open.pop() {
            if !seen.insert((value, map.clone())) || self.is_outer(value, &map, region) {
                continue;
            }
            let Some(op) = self.pure_op(value) else { continue };
            let worth = || self.costs_more(value, &map, KEEP_COST);
            if let Some((maker, made)) = first.get(&value).cloned()
                && maker != region
                && !refused.contains(&value)
                && worth()
            {
                if self.may_keep(maker, &made, region, &map)
                    && self.all_uses_agree(order, value, maker, &made)
                {
                    self.keep_in(maker, value, made);
                    continue;
                }
                refused.insert(value);
            }
            first.entry(value).or_insert_with(|| (region, map.clone()));
            open.extend(operands(self.program, op, value, &map));
        }
    }

    /// Whether a value is computed outside the loops of a region, once for all regions of the group.
    fn is_outer(&self, value: Value, map: &[Bit], region: RegionId) -> bool {
        let deps = self.deps[value.index()];
        let context = &self.regions[region].context;
        let outer = |bit: Bit| context.iter().any(|&(_, b)| b == bit);
        map.iter().enumerate().all(|(i, &bit)| deps >> i & 1 == 0 || outer(bit))
    }

    /// Whether `maker` always runs before `user`, and on the same elements where both run inside parallel loops.
    fn may_keep(&self, maker: RegionId, made: &[Bit], user: RegionId, used: &[Bit]) -> bool {
        let (m, u) = (&self.regions[maker], &self.regions[user]);
        let shared: Vec<Bit> = m.context.iter().filter(|c| u.context.contains(c)).map(|&(_, b)| b).collect();
        let aligned =
            made.iter().zip(used).all(|(a, b)| a == b || !(shared.contains(a) || shared.contains(b)));
        aligned && made.iter().all(|&b| b > ONE) && self.encloses(m.block, u.block)
    }

    /// Whether every region that would read the materialized value may. Regions in the same loops and list of operations may alike:
    /// what several of them compute is followed once.
    fn all_uses_agree(&self, order: &[RegionId], value: Value, maker: RegionId, made: &[Bit]) -> bool {
        let position = order.iter().position(|&r| r == maker).unwrap_or_default();
        let mut seen: FxHashMap<Lookup<'_>, Computed> = FxHashMap::default();
        order.iter().enumerate().all(|(index, &region)| {
            let own = region == maker;
            let of = &self.regions[region];
            let key = if own { (true, &[][..], 0) } else { (index < position, &of.context[..], of.block) };
            let seen = seen.entry(key).or_default();
            of.sinks.iter().flat_map(|&sink| self.demands(sink)).all(|(root, map)| {
                self.walk_new(root, map, seen, &mut |v, map| {
                    let fits =
                        || if own { map.as_slice() == made } else { self.may_keep(maker, made, region, map) };
                    v != value || (index >= position && fits())
                })
            })
        })
    }

    fn keep_in(&mut self, region: RegionId, value: Value, bits: Map) {
        let ty = self.program.ty(value);
        let elem = ty.elem().unwrap_or(Elem::F32);
        self.slots.push(Slot::new(elem, bits.clone()));
        let slot = self.slots.len() - 1;
        self.slot_of.insert(value, slot);
        let block = self.regions[region].block;
        let roots = SmallVec::from_slice(&[value]);
        let sink = Sink::new(SinkKind::Materialize, roots, bits, ty.shape.clone(), block);
        self.sinks.push(Sink { slot: Some(slot), ..sink });
        let sink = self.sinks.len() - 1;
        for l in 0..self.loops.len() {
            if self.encloses(l + 1, block) {
                self.loops[l].sinks.push(sink);
            }
        }
        // Before the other sinks of its region, which need the value too, but after the materialized values that it is made of.
        let at = self.after_operands(region, value);
        self.regions[region].sinks.insert(at, sink);
    }

    /// The first position among a region's sinks behind every materialized value that `value` is made of.
    fn after_operands(&self, region: RegionId, value: Value) -> usize {
        let bits = self.sinks.last().map(|s| s.bits.clone()).unwrap_or_default();
        let mut parts = FxHashSet::default();
        let made_by = match self.defs[value.index()] {
            Def::Op(op) => operands(self.program, op, value, &bits),
            _ => Default::default(),
        };
        for (operand, map) in made_by {
            self.walk(operand, &map, &mut |v, _| {
                parts.insert(v);
            });
        }
        let sinks = &self.regions[region].sinks;
        let is_part = |&s: &usize| {
            let sink = &self.sinks[s];
            matches!(sink.kind, SinkKind::Materialize) && sink.roots.iter().any(|r| parts.contains(r))
        };
        sinks.iter().rposition(is_part).map_or(0, |at| at + 1)
    }

    /// Whether a vector of a value takes more than about so many vector instructions.
    fn costs_more(&self, value: Value, map: &[Bit], most: u32) -> bool {
        let mut total = 0u32;
        !self.walk_new(value, Map::from_slice(map), &mut Computed::default(), &mut |v, m| {
            total = total.saturating_add(match self.pure_op(v) {
                Some(op) if self.deps[v.index()] != 0 => self.op_cost(op, m),
                _ => u32::from(self.slot_of.contains_key(&v)),
            });
            total <= most
        })
    }

    fn op_cost(&self, op: &Op, map: &[Bit]) -> u32 {
        let narrow = |v: &Value| matches!(self.program.ty(*v).elem(), Some(Elem::F16 | Elem::Bf16));
        let convert = if op.results.iter().any(narrow) { 2 } else { 0 };
        match op.kind {
            OpKind::Map(function) => function.cost() + convert,
            OpKind::Cast(_) => 1 + convert,
            OpKind::Load { .. } => {
                let strides = op.args.get(1).map(|&offsets| self.affine(offsets, map));
                let lowest = map.first().and_then(|&bit| strides.and_then(|a| a.stride(bit)));
                convert + if matches!(lowest, None | Some(0 | 1)) { 1 } else { 14 }
            }
            _ => 0,
        }
    }
}

/// Whether a value is kept, and where it is computed.
pub(in crate::host) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let materialized = |(sink, region, _): (SinkId, RegionId, &Site)| {
        let sink = &seen.plan.sinks[sink];
        let root = sink.roots.first().filter(|_| matches!(sink.kind, SinkKind::Materialize))?;
        Some(format!("{} is computed once, in region {region}", seen.name(*root)))
    };
    seen.sinks(op).into_iter().filter_map(materialized).collect()
}
