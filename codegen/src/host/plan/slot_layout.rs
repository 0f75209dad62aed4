//! Where slots lie: the values that one region leaves for others.
//!
//! Small ones are variables, without the bits of loops around all that read them; others are in the thread's scratch
//! memory.
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
//!   %max = reduce max %v axis 0  // slots: %max: a variable of 1 x f32
//!   %top = splat %max [512]
//!   %d = map sub %v, %top
//!   %e = map div %v, %d          // slots: %e: 512 x f32 at 0 of scratch memory
//!   %sum = reduce sum %e axis 0  // slots: %sum: a variable of 1 x f32
//!   %all = splat %sum [512]
//!   %out = map div %e, %all
//!   store %y, %i, %out
//! }
//! ```

use smallvec::SmallVec;
use tilefuse_block::{Op, Value};

use super::{Bit, Group, Part, Place, Plan, RegionId, SlotId};
use crate::host::passes::Seen;

/// Largest number of elements of a slot that is a local variable.
const LOCAL: u32 = 256;

/// Alignment of slots in scratch memory, in bytes.
const ALIGN: u64 = 64;

impl Plan<'_> {
    /// Lays out every slot: lanes first, without the bits of loops around the producer and all readers.
    pub(super) fn lay_out(&mut self) {
        let regions = self.region_of_sinks();
        let uses: Vec<Vec<SlotId>> =
            (0..self.sinks.len()).map(|s| self.slot_uses(s).into_iter().map(|u| u.0).collect()).collect();
        for slot in 0..self.slots.len() {
            let makers: Vec<RegionId> =
                self.regions_where(&regions, |s| self.sinks[s].made().any(|m| m == slot));
            let readers: Vec<RegionId> = self.regions_where(&regions, |s| uses[s].contains(&slot));
            self.place(slot, &makers, &readers);
        }
    }

    /// The region of each sink.
    fn region_of_sinks(&self) -> Vec<Option<RegionId>> {
        let mut out = vec![None; self.sinks.len()];
        for (id, region) in self.regions.iter().enumerate() {
            for &sink in &region.sinks {
                out[sink] = Some(id);
            }
        }
        out
    }

    fn regions_where(&self, regions: &[Option<RegionId>], wanted: impl Fn(usize) -> bool) -> Vec<RegionId> {
        (0..self.sinks.len()).filter(|&s| wanted(s)).filter_map(|s| regions[s]).collect()
    }

    fn place(&mut self, slot: SlotId, makers: &[RegionId], readers: &[RegionId]) {
        let all = || makers.iter().chain(readers);
        let shared = |bit: Bit| {
            let owner = makers.first().and_then(|&r| self.regions[r].context.iter().find(|c| c.1 == bit));
            owner.is_some_and(|c| all().all(|&r| self.regions[r].context.contains(c)))
        };
        let lanes = makers.first().map(|&r| self.lanes_at(r)).unwrap_or_default();
        let bits = self.slots[slot].bits.clone();
        let mut weights: SmallVec<[Option<u8>; 12]> = SmallVec::from_elem(None, bits.len());
        let mut next = 0u8;
        let lane_positions = lanes.iter().filter_map(|l| bits.iter().position(|b| b == l));
        let row_major = self.slots[slot].row_major;
        let lane_positions = lane_positions.filter(|_| !row_major);
        let order: Vec<usize> = lane_positions
            .chain((0..bits.len()).filter(|&i| row_major || !lanes.contains(&bits[i])))
            .collect();
        for position in order {
            let is_lane = lanes.contains(&bits[position]);
            if is_lane || row_major || !shared(bits[position]) {
                weights[position] = Some(next);
                next += 1;
            }
        }
        let count = 1u32 << next;
        let place = if count <= LOCAL { Place::Local(count) } else { self.reserve(slot, count) };
        self.slots[slot].weights = weights;
        self.slots[slot].place = place;
    }

    fn reserve(&mut self, slot: SlotId, count: u32) -> Place {
        let bytes = u64::from(count) * u64::from(self.slots[slot].elem.bytes().max(4));
        let place = Place::Scratch(self.scratch);
        self.scratch += bytes.next_multiple_of(ALIGN);
        place
    }

    /// The lanes in effect in a region: its own, or those of the groups around it.
    fn lanes_at(&self, region: RegionId) -> super::Map {
        let own = &self.regions[region].nest.lanes;
        if !own.is_empty() {
            return own.clone();
        }
        let mut found = super::Map::new();
        self.find_lanes(&self.body, region, &super::Map::new(), &mut found);
        found
    }

    fn find_lanes(&self, groups: &[Group], wanted: RegionId, outer: &super::Map, found: &mut super::Map) {
        for group in groups {
            let lanes = if group.nest.lanes.is_empty() { outer } else { &group.nest.lanes };
            for part in &group.parts {
                match *part {
                    Part::Region(r) if r == wanted => *found = lanes.clone(),
                    Part::Region(_) => {}
                    Part::Loop(l) => self.find_lanes(&self.loops[l].body, wanted, lanes, found),
                }
            }
        }
    }
}

/// Where the results of an operation lie that others read.
pub(in crate::host) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let inside = op.regions.iter().flat_map(|region| &region.args);
    let slot = |&value: &Value| {
        let slot = &seen.plan.slots[*seen.plan.slot_of.get(&value)?];
        let place = match slot.place {
            Place::Local(count) => format!("a variable of {count} x {}", slot.elem),
            Place::Scratch(at) => {
                format!("{} x {} at {at} of scratch memory", seen.elements(value), slot.elem)
            }
        };
        Some(format!("{}: {place}", seen.name(value)))
    };
    op.results.iter().chain(inside).filter_map(slot).collect()
}
