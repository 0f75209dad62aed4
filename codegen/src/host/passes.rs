//! The passes of this target, by name, and what a program looks like after each.
//!
//! The first two rewrite the program; the others make the plan of its loops, step by step. [`after`] shows what they decided
//! as notes beside the program's lines.

use std::collections::BTreeMap;

use tilefuse_block::{Op, Program, Value};

use super::plan::{Def, Group, Part, Plan, RegionId, SinkId, SinkKind, shape_bits};
use super::target::Target;
use super::{HostOptions, plan, rewritten};
use crate::error::Result;

/// A pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Functions and operations that the target has not, in terms of others.
    Expand,
    /// Products that are added to a sum start from it.
    Accumulate,
    /// Which operations run in the same loops.
    Groups,
    /// Which values are computed once and kept.
    Materialize,
    /// Which masks hold for whole loops.
    Guards,
    /// Which loops there are, what is unrolled, and what are vector lanes.
    Lanes,
    /// Where materialized values lie.
    Slots,
}

impl Pass {
    /// All passes, in order.
    pub const ALL: [Pass; 7] = [
        Pass::Expand,
        Pass::Accumulate,
        Pass::Groups,
        Pass::Materialize,
        Pass::Guards,
        Pass::Lanes,
        Pass::Slots,
    ];

    /// Its name for users.
    pub const fn name(self) -> &'static str {
        match self {
            Pass::Expand => "expand",
            Pass::Accumulate => "accumulate",
            Pass::Groups => "groups",
            Pass::Materialize => "materialize",
            Pass::Guards => "guards",
            Pass::Lanes => "lanes",
            Pass::Slots => "slots",
        }
    }

    /// The pass of a name.
    pub fn from_name(name: &str) -> Option<Pass> {
        Pass::ALL.into_iter().find(|pass| pass.name() == name)
    }

    fn notes(self) -> fn(&Seen<'_>, &Op) -> Vec<String> {
        match self {
            Pass::Expand | Pass::Accumulate => |_, _| Vec::new(),
            Pass::Groups => plan::loop_groups::notes,
            Pass::Materialize => plan::materialize::notes,
            Pass::Guards => plan::demanded::notes,
            Pass::Lanes => plan::lanes::notes,
            Pass::Slots => plan::slot_layout::notes,
        }
    }
}

/// The program as the target compiles it, with what the passes up to `pass` decided as notes beside its lines. It reads
/// back as a program.
///
/// # Errors
/// As [`super::HostKernel::compile`].
pub fn after(program: &Program, options: &HostOptions, pass: Pass) -> Result<String> {
    crate::stack::with_room(program, || shown(program, options, &Pass::ALL[..=pass as usize]))
}

/// The program with the notes of some passes, in order.
fn shown(program: &Program, options: &HostOptions, passes: &[Pass]) -> Result<String> {
    let target = Target::new(options.isa);
    let last = passes.last().copied().unwrap_or(Pass::Expand);
    let program = rewritten(program, &target, last)?;
    if last <= Pass::Accumulate {
        return Ok(program.to_string());
    }
    let registers = target.registers();
    let width = registers.width;
    let seen = Seen::new(Plan::until(&program, registers, last)?, program.value_names());
    let notes = |op: &Op| {
        let of = |pass: &Pass| {
            let tagged = |note| format!("{}: {note}", pass.name());
            pass.notes()(&seen, op).into_iter().map(tagged).collect::<Vec<String>>()
        };
        passes.iter().flat_map(of).collect()
    };
    Ok(program.annotated(&[format!("host: vectors of {} x 32 bits", 1u32 << width)], &notes))
}

/// The plan of a program, as far as it has come.
pub(super) struct Seen<'p> {
    pub(super) plan: Plan<'p>,
    names: Vec<String>,
    /// By region: the number of the innermost group around it, and the loops of all.
    sites: BTreeMap<RegionId, Site>,
}

/// Where a region is.
#[derive(Clone, Default)]
pub(super) struct Site {
    /// The number of the group.
    pub(super) group: usize,
    /// Iterations of the parallel loops around it, outermost first.
    pub(super) around: Vec<u64>,
    /// Bits of the lanes that the groups around it have.
    pub(super) lanes: usize,
    /// The values of the masks that hold in the groups around it.
    pub(super) guards: Vec<Value>,
}

impl<'p> Seen<'p> {
    fn new(plan: Plan<'p>, names: Vec<String>) -> Seen<'p> {
        let mut sites = BTreeMap::new();
        let mut count = 0;
        number(&plan, &plan.body, &Site::default(), &mut count, &mut sites);
        Seen { plan, names, sites }
    }

    /// A value's name in the text form, with the `%`.
    pub(super) fn name(&self, value: Value) -> String {
        format!("%{}", self.names.get(value.index()).map_or("", String::as_str))
    }

    /// What runs through elements for an operation: sinks, with their regions and where these are.
    pub(super) fn sinks(&self, op: &Op) -> Vec<(SinkId, RegionId, &Site)> {
        let is_own = |sink: SinkId| self.owner(sink).is_some_and(|owner| std::ptr::eq(owner, op));
        let mut out = Vec::new();
        for (&region, site) in &self.sites {
            let own = self.plan.regions[region].sinks.iter().filter(|&&sink| is_own(sink));
            out.extend(own.map(|&sink| (sink, region, site)));
        }
        out
    }

    /// The operation that a sink belongs to.
    fn owner(&self, sink: SinkId) -> Option<&'p Op> {
        let sink = &self.plan.sinks[sink];
        match sink.kind {
            SinkKind::Store(op) | SinkKind::Reduce(op) | SinkKind::Atomic(op) | SinkKind::Whole(op) => {
                Some(op)
            }
            SinkKind::Materialize | SinkKind::Copy(_) => {
                let root = sink.roots.first()?;
                let Def::Op(op) = self.plan.defs[root.index()] else { return None };
                Some(op)
            }
        }
    }

    /// What the number of a region's iterations is written as: `8 x 4`.
    pub(super) fn extents(bits: impl Iterator<Item = usize>) -> String {
        let extents: Vec<String> = bits.map(|bits| (1u64 << bits).to_string()).collect();
        if extents.is_empty() { "1".to_owned() } else { extents.join(" x ") }
    }

    /// Elements of a value.
    pub(super) fn elements(&self, value: Value) -> u64 {
        1 << shape_bits(&self.plan.program.ty(value).shape)
    }
}

/// Numbers groups in the order in which they run, and finds out where their regions are.
fn number(
    plan: &Plan<'_>,
    groups: &[Group],
    outer: &Site,
    count: &mut usize,
    sites: &mut BTreeMap<RegionId, Site>,
) {
    for group in groups {
        let mut site = Site { group: *count, ..outer.clone() };
        *count += 1;
        site.around.extend(group.nest.loops.iter().map(|bits| 1u64 << bits.len()));
        site.lanes += group.nest.lanes.len();
        site.guards.extend(group.guard.iter().map(|atom| atom.value));
        for part in &group.parts {
            match *part {
                Part::Region(region) => {
                    sites.insert(region, site.clone());
                }
                Part::Loop(id) => number(plan, &plan.loops[id].body, &site, count, sites),
            }
        }
    }
}

/// The examples are those of an x86 processor.
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
