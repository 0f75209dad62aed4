//! Which bits become vector lanes, which are unrolled, and in which order the loops stand.
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
//!   %max = reduce max %v axis 1  // lanes: region 0, in a loop over 8: 2 combined steps, 4 unrolled, 8 lanes
//!   %r = range 0 8
//!   store %z, %r, %max           // lanes: region 1, in a loop over 8: 1 lane
//!   %top = expand_dims %max axis 1
//!   %all = broadcast %top [8, 64]
//!   %d = map sub %v, %all
//!   store %y, %at, %d            // lanes: region 2, in a loop over 8: 2 steps, 4 unrolled, 8 lanes
//! }
//! ```

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tilefuse_block::{Op, OpKind};

use super::bit_affine::BitAffine;
use super::{Bit, Group, Map, Nest, ONE, Part, Plan, RegionId, SinkId, SinkKind};
use crate::host::passes::{Seen, Site};

/// Vector instructions above which unrolling a whole block for transposition makes too much code.
const CROSS_COST: u32 = 60;

/// Vector instructions above which several vectors are computed at once.
const FORMULA_COST: u32 = 12;

/// Bits that some access walks with strides 1, 2, 4, ...
type Chain = SmallVec<[Bit; 6]>;

impl Plan<'_> {
    /// Chooses lanes, unrolled bits and loops of every group and region.
    pub(super) fn choose_lanes(&mut self) {
        let mut body = std::mem::take(&mut self.body);
        self.choose_in(&mut body, &Map::new());
        self.body = body;
    }

    /// `outer` are the lanes of the groups around these.
    fn choose_in(&mut self, groups: &mut [Group], outer: &Map) {
        for group in groups {
            let sinks = self.group_sinks(group);
            let lanes =
                if outer.is_empty() { self.group_lanes(&sinks, &group.nest.loops) } else { Map::new() };
            let unroll = match self.shared_bits(group, &sinks, &lanes) {
                shared if shared.is_empty() && lanes.is_empty() && outer.is_empty() => {
                    self.row_bits(group, &sinks)
                }
                shared if shared.is_empty() => self.group_unroll(&sinks, &group.nest.loops, &lanes),
                shared => shared,
            };
            group.nest = self.nest(&group.nest.loops, lanes.clone(), unroll.clone());
            // Unrolled bits are left to the regions, which hold all of them in registers.
            group.nest.unroll.clear();
            let inside = if outer.is_empty() { &lanes } else { outer };
            for part in group.parts.clone() {
                match part {
                    Part::Region(region) => self.choose_region(region, inside, &unroll),
                    Part::Loop(l) => {
                        let mut body = std::mem::take(&mut self.loops[l].body);
                        self.choose_in(&mut body, inside);
                        self.loops[l].body = body;
                        self.unroll_inner(l, &unroll);
                    }
                }
            }
        }
    }

    /// Bits that an outer group leaves to the regions inside a loop.
    fn unroll_inner(&mut self, id: usize, unroll: &Map) {
        let body = std::mem::take(&mut self.loops[id].body);
        for part in body.iter().flat_map(|g| &g.parts) {
            match *part {
                Part::Region(r) => self.add_unroll(r, unroll),
                Part::Loop(l) => self.unroll_inner(l, unroll),
            }
        }
        self.loops[id].body = body;
    }

    fn add_unroll(&mut self, region: RegionId, unroll: &Map) {
        let region = &mut self.regions[region];
        region.forced.extend(unroll.iter().copied());
        region.context.retain(|c| !unroll.contains(&c.1));
    }

    fn group_sinks(&self, group: &Group) -> Vec<SinkId> {
        let mut out = Vec::new();
        for part in &group.parts {
            match *part {
                Part::Region(r) => out.extend(&self.regions[r].sinks),
                Part::Loop(l) => out.extend(&self.loops[l].sinks),
            }
        }
        out
    }

    /// The bits that most accesses walk with strides 1, 2, 4 and so on.
    fn best_chain(&self, sinks: &[SinkId]) -> Chain {
        let mut votes: FxHashMap<Bit, (u32, Chain)> = FxHashMap::default();
        let most = sinks.iter().map(|&s| self.sinks[s].bits.len()).max().unwrap_or(0);
        for &sink in sinks {
            let full = self.sinks[sink].bits.len();
            self.walk_sink(sink, &mut |value, map| {
                if let Some(op) = self.pure_op(value).filter(|op| matches!(op.kind, OpKind::Load { .. })) {
                    // What is the same along an axis is read once for it.
                    let own = self.deps[value.index()].count_ones() as usize;
                    let weight = if own >= full && full == most { 4 } else { 1 };
                    self.vote(op, map, weight, &mut votes);
                }
            });
            let weight = if full == most { 9 } else { 1 };
            if let SinkKind::Store(op) = self.sinks[sink].kind {
                self.vote(op, &self.sinks[sink].bits, weight, &mut votes);
            }
            let chain = self.chain_of_slot(sink);
            if let Some(&first) = chain.first() {
                votes.entry(first).or_insert_with(|| (0, chain)).0 += weight;
            }
        }
        let best = votes.into_iter().max_by_key(|(bit, (weight, _))| (*weight, std::cmp::Reverse(*bit)));
        best.map(|(_, (_, chain))| chain).unwrap_or_default()
    }

    /// The bits that a sink walks with strides 1, 2, 4, ... where it leaves a tile in the order of its positions.
    fn chain_of_slot(&self, sink: SinkId) -> Chain {
        let sink = &self.sinks[sink];
        let ordered = sink.slot.is_some_and(|slot| self.slots[slot].row_major);
        if !ordered || !matches!(sink.kind, SinkKind::Materialize) {
            return Chain::new();
        }
        sink.bits.iter().copied().take_while(|&bit| bit > ONE).take(self.width as usize).collect()
    }

    fn vote(
        &self,
        op: &tilefuse_block::Op,
        map: &[Bit],
        weight: u32,
        votes: &mut FxHashMap<Bit, (u32, Chain)>,
    ) {
        let Some(&offsets) = op.args.get(1) else { return };
        let affine = self.affine(offsets, map);
        let chain = self.chain(&affine, map);
        if let Some(&first) = chain.first() {
            let entry = votes.entry(first).or_insert_with(|| (0, chain.clone()));
            entry.0 += weight;
            if chain.len() > entry.1.len() {
                entry.1 = chain;
            }
        }
    }

    /// The bits with strides 1, 2, 4, ..., at most as many as a vector has lanes.
    fn chain(&self, affine: &BitAffine, map: &[Bit]) -> Chain {
        let mut chain = Chain::new();
        while chain.len() < self.width as usize {
            let wanted = Some(1i64 << chain.len());
            match map.iter().find(|&&bit| bit > ONE && affine.stride(bit) == wanted) {
                Some(&bit) => chain.push(self.classes.find(bit)),
                None => break,
            }
        }
        chain
    }

    /// The bits along which loads with strided lanes are contiguous, as many as there are lanes, if there are such
    /// loads: unrolled, they let blocks be transposed in registers.
    fn cross_bits(&self, sinks: &[SinkId], bits: &[Bit], lanes: &[Bit], reduced: &[Bit]) -> Map {
        let mut found = Map::new();
        let Some(&lane) = lanes.first() else { return found };
        for &sink in sinks {
            self.walk_sink(sink, &mut |value, map| {
                let load = self.pure_op(value).filter(|op| matches!(op.kind, OpKind::Load { .. }));
                let Some(&offsets) = load.and_then(|op| op.args.get(1)) else { return };
                let affine = self.affine(offsets, map);
                let chain = self.chain(&affine, map);
                let strided = !matches!(affine.stride(lane), Some(0 | 1));
                let usable = |b: &Bit| bits.contains(b) && !lanes.contains(b) && !reduced.contains(b);
                if strided && found.is_empty() && chain.len() >= lanes.len() && chain.iter().all(usable) {
                    found = chain.iter().copied().take(lanes.len()).collect();
                }
            });
        }
        found
    }

    /// Lanes among the parallel bits of a group, if it is better vectorised along them.
    fn group_lanes(&self, sinks: &[SinkId], axes: &[Map]) -> Map {
        let width = self.width as usize;
        let parallel: Map = axes.iter().rev().flatten().copied().collect();
        let inner = |s: &SinkId| self.sinks[*s].bits.iter().filter(|b| !parallel.contains(b)).count();
        let widest_inner = sinks.iter().map(inner).max().unwrap_or(0);
        let chain = self.best_chain(sinks);
        let along = chain.first().is_some_and(|bit| parallel.contains(bit));
        if parallel.is_empty() || (!along && (widest_inner >= width || parallel.len() <= widest_inner)) {
            return Map::new();
        }
        fill(&chain, &parallel, width)
    }

    /// Parallel bits above the lanes that regions unroll, so that combined axes run in the innermost loop.
    fn group_unroll(&self, sinks: &[SinkId], axes: &[Map], lanes: &[Bit]) -> Map {
        if lanes.is_empty() {
            return Map::new();
        }
        let cost = sinks.iter().map(|&s| self.sink_cost(s)).max().unwrap_or(0);
        let accumulators = sinks.iter().filter(|&&s| !self.sinks[s].reduced.is_empty()).count();
        // Whole rows are read at once, as far as the accumulators stay in registers.
        let count = match (cost, accumulators) {
            (0..=4, 0..=1) => 4,
            (0..=8, 0..=2) => 3,
            (0..=16, 0..=4) => 2,
            _ => 1,
        };
        let axis = axes.iter().find(|axis| lanes.last().is_some_and(|l| axis.contains(l)));
        let above = axis.into_iter().flatten().copied().filter(|b| !lanes.contains(b));
        above.take(count).collect()
    }

    /// Approximate vector instructions for one vector of what a sink computes.
    pub(super) fn sink_cost(&self, sink: SinkId) -> u32 {
        let mut total = 0u32;
        self.walk_sink(sink, &mut |value, _| {
            if let Some(op) = self.pure_op(value).filter(|_| self.deps[value.index()] != 0) {
                total += match op.kind {
                    OpKind::Map(function) if self.program.ty(value).elem().is_some_and(|e| e.is_float()) => {
                        function.cost()
                    }
                    OpKind::Load { .. } | OpKind::Cast(_) => 1,
                    _ => 0,
                };
            }
        });
        total
    }

    fn choose_region(&mut self, id: RegionId, outer_lanes: &Map, forced: &Map) {
        let region = &self.regions[id];
        let sinks = region.sinks.clone();
        let reduced: Vec<Bit> = sinks.iter().flat_map(|&s| self.sinks[s].reduced.iter().copied()).collect();
        let axes: Vec<Map> = region.axes.iter().flat_map(|axis| sides(axis, &reduced)).collect();
        let bits: Map = axes.iter().rev().flatten().copied().collect();
        let lanes = match outer_lanes.is_empty() {
            true => self.region_lanes(&sinks, &bits, &reduced),
            false => Map::new(),
        };
        let cost = sinks.iter().map(|&s| self.sink_cost(s)).max().unwrap_or(0);
        let cross =
            if cost <= CROSS_COST { self.cross_bits(&sinks, &bits, &lanes, &reduced) } else { Map::new() };
        let unroll = match cross.is_empty() {
            true => self.region_unroll(&sinks, &axes, &lanes, &reduced, forced),
            false => Map::new(),
        };
        let more = self.lanes_for_formulas(&sinks, &axes, &lanes, &unroll);
        let several = cross.is_empty() && forced.is_empty() && !more.is_empty();
        let (lanes, unroll) =
            if several { (lanes.into_iter().chain(more).collect(), Map::new()) } else { (lanes, unroll) };
        let strip = |axis: Map| axis.into_iter().filter(|b| !cross.contains(b)).collect::<Map>();
        let axes: Vec<Map> = axes.into_iter().map(strip).filter(|axis| !axis.is_empty()).collect();
        let is_reduced = |axis: &Map| axis.iter().any(|b| reduced.contains(b));
        let (combined, free): (Vec<Map>, Vec<Map>) = axes.into_iter().partition(is_reduced);
        let mut free = self.nest(&free, lanes.clone(), unroll.clone());
        // Blocks that are transposed follow each other as their rows lie in memory.
        let crossed = |bits: &Map| {
            let axis = self.regions[id].axes.iter().find(|axis| cross.iter().any(|b| axis.contains(b)));
            axis.is_some_and(|axis| bits.iter().any(|b| axis.contains(b)))
        };
        if combined.is_empty()
            && self.regions[id].guard.is_empty()
            && let Some(at) = free.loops.iter().position(crossed)
        {
            let along = free.loops.remove(at);
            free.loops.push(along);
            free.vector_loop = false;
        }
        let combined = self.nest(&combined, lanes.clone(), unroll.clone());
        let vector_loop = if combined.loops.is_empty() { free.vector_loop } else { combined.vector_loop };
        let (outer, inner) = in_blocks(combined.loops);
        let region = &mut self.regions[id];
        region.free_loops = free.loops.len();
        region.block_loops = outer.len();
        region.nest = Nest {
            vector_loop,
            loops: free.loops.into_iter().chain(outer).chain(inner).collect(),
            unroll,
            lanes,
        };
        self.regions[id].forced = cross;
        self.add_unroll(id, forced);
    }

    /// Further lanes for what has long formulas: each instruction of a formula waits for the one before, and vectors of
    /// several registers let the processor work on as many formulas at once.
    fn lanes_for_formulas(&self, sinks: &[SinkId], axes: &[Map], lanes: &[Bit], unroll: &[Bit]) -> Map {
        let cost = sinks.iter().map(|&s| self.sink_cost(s)).max().unwrap_or(0);
        let mut wide = false;
        for &sink in sinks {
            self.walk_sink(sink, &mut |value, _| {
                let bits = self.program.ty(value).elem().map_or(0, |e| e.bits());
                wide |= self.deps[value.index()] != 0 && bits == 64;
            });
        }
        // Values of 64 bits take two registers as it is.
        let count = match (cost > FORMULA_COST && !wide, self.registers.are_many()) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        };
        let axis = axes.iter().find(|axis| lanes.last().is_some_and(|l| axis.contains(l)));
        let above = axis.into_iter().flatten().copied().filter(|b| !lanes.contains(b));
        let more: Map = above.take(count).collect();
        if more.len() < unroll.len() { Map::new() } else { more }
    }

    fn region_lanes(&self, sinks: &[SinkId], bits: &[Bit], reduced: &[Bit]) -> Map {
        let chain = self.best_chain(sinks);
        let along = chain.first().copied().filter(|b| bits.contains(b)).or(bits.first().copied());
        let Some(first) = along else { return Map::new() };
        // Lanes are all combined or all not.
        let side: Vec<Bit> =
            bits.iter().copied().filter(|b| reduced.contains(b) == reduced.contains(&first)).collect();
        let chain = if chain.first() == Some(&first) { chain } else { Chain::new() };
        fill(&chain, &side, self.width as usize)
    }

    /// Bits above the lanes that are unrolled: several accumulators hide the latency of a combination, and
    /// several cheap vectors that of the loop.
    fn region_unroll(
        &self,
        sinks: &[SinkId],
        axes: &[Map],
        lanes: &[Bit],
        reduced: &[Bit],
        forced: &[Bit],
    ) -> Map {
        let cost = sinks.iter().map(|&s| self.sink_cost(s)).max().unwrap_or(0);
        let wanted = match (cost, reduced.is_empty()) {
            (0..=12, false) => 2usize,
            (0..=6, true) => 2,
            (13..=60, false) | (7..=24, true) => 1,
            _ => 0,
        };
        let wanted = wanted.saturating_sub(forced.len());
        let lowest_reduced = axes.iter().rev().find(|a| a.iter().any(|b| reduced.contains(b)));
        let axis = match lanes.last() {
            Some(l) => axes.iter().find(|axis| axis.contains(l)),
            None if reduced.is_empty() => axes.last(),
            None => lowest_reduced,
        };
        let Some(axis) = axis else { return Map::new() };
        let vector_is_free = !reduced.is_empty() && !axis.iter().any(|b| reduced.contains(b));
        if vector_is_free {
            return Map::new();
        }
        axis.iter().copied().filter(|b| !lanes.contains(b)).take(wanted).collect()
    }

    /// Loops over what lanes and unrolled bits leave of each axis, the vector axis last.
    fn nest(&self, axes: &[Map], lanes: Map, unroll: Map) -> Nest {
        let taken = |b: &Bit| lanes.contains(b) || unroll.contains(b);
        let mut loops = Vec::new();
        let mut vector = None;
        for axis in axes {
            let rest: Map = axis.iter().copied().filter(|b| !taken(b)).collect();
            let low: Map = lanes.iter().chain(&unroll).copied().collect();
            let is_vector = !low.is_empty() && axis.starts_with(&low);
            match (rest.is_empty(), is_vector) {
                (true, _) => {}
                (false, true) => vector = Some(rest),
                (false, false) => loops.push(rest),
            }
        }
        let vector_loop = vector.is_some();
        loops.extend(vector);
        Nest { loops, vector_loop, unroll, lanes }
    }
}

/// An axis as those parts, outermost first, of which each is either combined whole or not at all: what is one axis of a
/// region's first sink may be several of a reduction in it.
fn sides(axis: &Map, reduced: &[Bit]) -> Vec<Map> {
    let parts = axis.chunk_by(|a, b| reduced.contains(a) == reduced.contains(b));
    parts.rev().map(Map::from_slice).collect()
}

/// Logarithm of the most steps that one accumulator takes.
const MAX_CHAIN_LOG: usize = 6;

/// Combined loops as loops over blocks, and loops inside a block of at most `2^MAX_CHAIN_LOG` steps.
fn in_blocks(loops: Vec<Map>) -> (Vec<Map>, Vec<Map>) {
    let (mut outer, mut inner) = (Vec::new(), Vec::new());
    let mut room = MAX_CHAIN_LOG;
    for mut bits in loops.into_iter().rev() {
        let high: Map = bits.drain(room.min(bits.len())..).collect();
        room -= bits.len();
        if !bits.is_empty() {
            inner.insert(0, bits);
        }
        if !high.is_empty() {
            outer.insert(0, high);
        }
    }
    (outer, inner)
}

/// A chain of lanes, filled up to `width` from `bits`, as far as they reach.
fn fill(chain: &[Bit], bits: &[Bit], width: usize) -> Map {
    let mut lanes: Map = chain.iter().copied().take_while(|b| bits.contains(b)).take(width).collect();
    for &bit in bits {
        if lanes.len() < width && !lanes.contains(&bit) {
            lanes.push(bit);
        }
    }
    lanes
}

/// The loops of an operation's elements.
pub(in crate::host) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let note = |(_, id, site): (SinkId, RegionId, &Site)| {
        let region = &seen.plan.regions[id];
        let own = |loops: &[Map]| Seen::extents(loops.iter().map(|bits| bits.len()));
        let (free, combined) = region.nest.loops.split_at(region.free_loops.min(region.nest.loops.len()));
        let around: Vec<String> = site.around.iter().map(u64::to_string).collect();
        let around = if around.is_empty() {
            String::new()
        } else {
            format!(", in a loop over {}", around.join(" x "))
        };
        let mut out = Vec::new();
        out.extend((!free.is_empty()).then(|| format!("{} steps", own(free))));
        out.extend((!combined.is_empty()).then(|| format!("{} combined steps", own(combined))));
        let unrolled = region.nest.unroll.len() + region.forced.len();
        out.extend((unrolled > 0).then(|| format!("{} unrolled", 1u32 << unrolled)));
        let lanes = region.nest.lanes.len() + site.lanes;
        let s = if lanes == 0 { "" } else { "s" };
        out.push(format!("{} lane{s}", 1u32 << lanes));
        format!("region {id}{around}: {}", out.join(", "))
    };
    seen.sinks(op).into_iter().map(note).collect()
}
