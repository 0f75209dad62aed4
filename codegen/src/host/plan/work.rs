//! How long an instance takes, about.

use tilefuse_block::{Op, OpKind, Value};

use super::{Group, Part, Plan, RegionId, SinkKind};

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
            // One of two regions runs.
            Part::Loop(l) if self.loops[l].op.kind == OpKind::If => self.groups_work(&self.loops[l].body) / 2,
            Part::Loop(l) => self.groups_work(&self.loops[l].body) * TRIPS,
        };
        groups.iter().flat_map(|g| &g.parts).map(part).sum()
    }

    fn region_work(&self, region: RegionId) -> u64 {
        let sinks = self.regions[region].sinks.iter();
        let work = |&s: &usize| {
            let elements = 1u64 << self.sinks[s].bits.len();
            match self.sinks[s].kind {
                SinkKind::Whole(op) => self.whole_work(op),
                // Lane after lane, some nanoseconds each.
                SinkKind::Atomic(_) => elements * 16,
                _ => (elements >> self.width).max(1) * (2 + u64::from(self.sink_cost(s))),
            }
        };
        sinks.map(work).sum()
    }

    fn whole_work(&self, op: &Op) -> u64 {
        let elements =
            |values: &[Value]| values.iter().map(|&v| self.program.ty(v).numel()).max().unwrap_or(1);
        match op.kind {
            OpKind::Dot { .. } => {
                let depth =
                    op.args.first().and_then(|&a| self.program.ty(a).shape.last().copied()).unwrap_or(1);
                // Where groups are multiplied, an instruction makes several products for each sum.
                let right = op.args.get(1).and_then(|right| self.direct.get(right));
                let group = right.map_or(0, |direct| direct.group.trailing_zeros());
                (elements(&op.results) * u64::from(depth)) >> (self.width + group)
            }
            _ => elements(&op.args) * 2,
        }
    }
}
