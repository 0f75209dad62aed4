//! Blocks of registers: what a loop sums in place, where one load serves many elements.
//!
//! A loop that carries a tile, and adds to it products of what is loaded along one axis and what is loaded along
//! another, loads each of these once for a whole block of the tile if the block is unrolled: as many vectors as the
//! processor has registers for.

use super::{Bit, Group, LoopId, Map, ONE, Part, Plan, Role, SinkId};
use tilefuse_block::OpKind;

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
        // Processors with vectors of 512 bits have 32 registers, others 16; half of them hold sums.
        let room = if self.width > 3 { 4 } else { 3 } - usize::from(self.is_wide(sinks));
        let rows = other.len().min(room.div_ceil(2).max(room.saturating_sub(along.len())));
        along.into_iter().take(room - rows).chain(other.into_iter().take(rows)).collect()
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
                let load = self.pure_op(value).is_some_and(|op| matches!(op.kind, OpKind::Load { .. }));
                if load && self.encloses(id + 1, self.home[value.index()]) {
                    let deps = self.deps[value.index()];
                    let bits = map.iter().enumerate().filter(|(i, b)| deps >> i & 1 == 1 && **b > ONE);
                    out.push(bits.map(|(_, &b)| self.classes.find(b)).collect());
                }
            });
        }
        out
    }
}
