//! How long an instance takes, about.

use super::{Group, Part, Plan, RegionId};

/// Iterations that a loop is taken to have.
const TRIPS: u64 = 8;

impl Plan<'_> {
    /// Approximate nanoseconds of one instance.
    pub(crate) fn nanoseconds(&self) -> u64 {
        self.groups_work(&self.body) / 2 + 1
    }

    /// Vector instructions.
    fn groups_work(&self, groups: &[Group]) -> u64 {
        let part = |part: &Part| match *part {
            Part::Region(r) => self.region_work(r),
            Part::Loop(l) => self.groups_work(&self.loops[l].body) * TRIPS,
        };
        groups.iter().flat_map(|g| &g.parts).map(part).sum()
    }

    fn region_work(&self, region: RegionId) -> u64 {
        let sinks = self.regions[region].sinks.iter();
        let work = |&s: &usize| {
            let elements = 1u64 << self.sinks[s].bits.len();
            (elements >> self.width).max(1) * (2 + u64::from(self.sink_cost(s)))
        };
        sinks.map(work).sum()
    }
}
