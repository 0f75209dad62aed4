//! Blocks of registers: what a loop sums in place, where one load serves many elements.
//!
//! A loop that carries a tile, and adds to it products of what is loaded along one axis and what is loaded along
//! another, loads each of these once for a whole block of the tile if the block is unrolled: as many vectors as the
//! processor has registers for.
//!
//! Sums along rows of memory are made of several rows side by side: a processor asks for more of its memory at a time where
//! it reads several places, twice as much of it in the same time with eight as with one.

use super::{Bit, Group, LoopId, Map, ONE, Part, Plan, Role, SinkId};
use tilefuse_block::{OpKind, Value};

/// Logarithm of the least length of a row that is read beside others.
const MIN_ROW_LOG: usize = 7;

/// Vector instructions for each vector above which it is not memory that sums of rows wait for.
const STREAM_COST: u32 = 6;

impl Plan<'_> {
    /// The parallel bits of a group that are unrolled because loads in its loops do not depend on them, the bits above
    /// the lanes first; none where the lanes or such loads are missing.
    pub(super) fn shared_bits(&self, group: &Group, sinks: &[SinkId], lanes: &[Bit]) -> Map {
        let loops = group.parts.iter().filter_map(|part| match *part {
            Part::Loop(l) if self.loops[l].role == Role::For && !self.loops[l].whole => Some(l),
            _ => None,
        });
        let axes = &group.nest.loops;
        let parallel: Map = axes.iter().flatten().copied().collect();
        let (mut across, mut above) = (false, false);
        let mut shared = Map::new();
        for l in loops {
            for load in self.loads_of(l) {
                let missing = |b: &&Bit| !lanes.contains(b) && !load.contains(b);
                let missing: Map = parallel.iter().filter(missing).copied().collect();
                let has_lanes = lanes.iter().any(|b| load.contains(b));
                across |= has_lanes && !missing.is_empty();
                above |= !has_lanes;
                shared.extend(missing.iter().filter(|b| !shared.contains(b)).copied().collect::<Vec<_>>());
            }
        }
        if lanes.is_empty() || !(across && above) {
            return Map::new();
        }
        let axis = axes.iter().find(|axis| lanes.last().is_some_and(|l| axis.contains(l)));
        let of_lanes = |b: &Bit| axis.is_some_and(|axis| axis.contains(b));
        let (along, other): (Map, Map) = shared.into_iter().partition(of_lanes);
        // Half of the registers hold sums.
        let room = if self.registers.are_many() { 4 } else { 3 } - usize::from(self.is_wide(sinks));
        let rows = other.len().min(room.div_ceil(2).max(room.saturating_sub(along.len())));
        along.into_iter().take(room - rows).chain(other.into_iter().take(rows)).collect()
    }

    /// The parallel bits of a group without lanes that are unrolled because they choose rows of memory, and the sums of rows
    /// share what they are multiplied by.
    pub(super) fn row_bits(&self, group: &Group, sinks: &[SinkId]) -> Map {
        let axes = &group.nest.loops;
        let parallel: Map = axes.iter().flatten().copied().collect();
        let (mut rows, mut same) = (Map::new(), Map::new());
        for &sink in sinks.iter().filter(|&&s| self.sinks[s].reduced.len() >= MIN_ROW_LOG) {
            if self.sink_cost(sink) > STREAM_COST {
                return Map::new();
            }
            let mut loads: Vec<Map> = Vec::new();
            self.walk_sink(sink, &mut |value, map| loads.extend(self.load_bits(value, map)));
            let Some(most) = loads.iter().max_by_key(|load| load.len()) else { continue };
            let lacks = |bit: &Bit| loads.iter().any(|load| !load.contains(bit));
            let has = |bit: &Bit| loads.iter().any(|load| load.contains(bit));
            for &bit in parallel.iter().filter(|&bit| lacks(bit) && has(bit)) {
                let known = if most.contains(&bit) { &mut rows } else { &mut same };
                known.push(bit);
            }
        }
        // The rows that are far apart, so that each is followed by some of its neighbours. What is the same for several
        // results is read once.
        let count = if self.registers.are_many() { 3 } else { 2 };
        let same = same.into_iter().take(if rows.is_empty() { 0 } else { count - 1 });
        let bits: Map = same.chain(rows.into_iter().rev()).take(count).collect();
        parallel.into_iter().filter(|bit| bits.contains(bit)).collect()
    }

    /// Whether sinks have elements of 64 bits, of which a register holds half as many.
    fn is_wide(&self, sinks: &[SinkId]) -> bool {
        let wide = |sink: &SinkId| {
            let elem = self.sinks[*sink].roots.first().and_then(|&root| self.program.ty(root).elem());
            elem.is_some_and(|e| e.bits() == 64)
        };
        sinks.iter().any(wide)
    }

    /// The bits on which each load depends that is made anew in each step of a loop.
    fn loads_of(&self, id: LoopId) -> Vec<Map> {
        let mut out = Vec::new();
        for &sink in &self.loops[id].sinks {
            self.walk_sink(sink, &mut |value, map| {
                if self.encloses(id + 1, self.home[value.index()]) {
                    out.extend(self.load_bits(value, map));
                }
            });
        }
        out
    }

    /// The bits on which a load depends; nothing for what is none.
    fn load_bits(&self, value: Value, map: &Map) -> Option<Map> {
        self.pure_op(value).filter(|op| matches!(op.kind, OpKind::Load { .. }))?;
        let deps = self.deps[value.index()];
        let bits = map.iter().enumerate().filter(|(i, b)| deps >> i & 1 == 1 && **b > ONE);
        Some(bits.map(|(_, &b)| self.classes.find(b)).collect())
    }
}
