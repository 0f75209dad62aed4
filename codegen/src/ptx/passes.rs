//! The passes of this target, by name, and what a program looks like after each.
//!
//! The first rewrites the program, with the passes of the block IR; the others decide about it, and leave tables that the
//! code generator follows. [`after`] shows what they decided as notes beside the program's lines.

use tilefuse_block::{Op, Program, Value};

use super::assign::Assignment;
use super::decisions::Decisions;
use super::lower::Lowered;
use super::{
    Target, assign_layouts, axis, barrier, coalesce, convert_layout, fitting_plan, lowered, prepare,
    pressure, shared, software_pipeline, vectorize,
};
use crate::error::Result;

/// A pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Functions and operations that the target has not, in terms of others, and the block passes on the result.
    Expand,
    /// What is known of integers: divisible, contiguous, constant, not negative.
    Facts,
    /// Which thread holds which element.
    Layout,
    /// In which layout memory is accessed.
    Coalesce,
    /// How many elements one instruction moves.
    Vectorize,
    /// Which loads run ahead of their loop.
    Pipeline,
    /// Which operands change layout, and how.
    Convert,
    /// Which shared memory an operation uses.
    Shared,
    /// Where threads wait for each other, and why.
    Barriers,
}

/// What a pass decided about an operation.
type Notes = fn(&Seen<'_>, &Op) -> Vec<String>;

impl Pass {
    /// All passes, in order.
    pub const ALL: [Pass; 9] = [
        Pass::Expand,
        Pass::Facts,
        Pass::Layout,
        Pass::Coalesce,
        Pass::Vectorize,
        Pass::Pipeline,
        Pass::Convert,
        Pass::Shared,
        Pass::Barriers,
    ];

    /// Its name for users.
    pub const fn name(self) -> &'static str {
        match self {
            Pass::Expand => "expand",
            Pass::Facts => "facts",
            Pass::Layout => "layout",
            Pass::Coalesce => "coalesce",
            Pass::Vectorize => "vectorize",
            Pass::Pipeline => "pipeline",
            Pass::Convert => "convert",
            Pass::Shared => "shared",
            Pass::Barriers => "barriers",
        }
    }

    /// The pass of a name.
    pub fn from_name(name: &str) -> Option<Pass> {
        Pass::ALL.into_iter().find(|pass| pass.name() == name)
    }

    fn notes(self) -> Notes {
        match self {
            Pass::Expand => |_, _| Vec::new(),
            Pass::Facts => axis::notes,
            Pass::Layout => assign_layouts::notes,
            Pass::Coalesce => coalesce::notes,
            Pass::Vectorize => vectorize::notes,
            Pass::Pipeline => software_pipeline::notes,
            Pass::Convert => convert_layout::notes,
            Pass::Shared => shared::notes,
            Pass::Barriers => barrier::notes,
        }
    }

    /// Whether it decides while code is generated, or shows what the size of all shared memory decided.
    fn is_late(self) -> bool {
        self >= Pass::Pipeline
    }
}

/// The program as the target compiles it, with what the passes up to `pass` decided as notes beside its lines. It reads
/// back as a program.
pub fn after(program: &Program, target: Target, pass: Pass) -> Result<String> {
    crate::stack::with_room(program, || shown(program, target, &Pass::ALL[..=pass as usize]))
}

/// The program with the notes of some passes.
fn shown(program: &Program, target: Target, passes: &[Pass]) -> Result<String> {
    let program = prepare(program)?;
    if passes == [Pass::Expand] {
        return Ok(program.to_string());
    }
    let plan = fitting_plan(&program, target)?;
    let late = passes.iter().any(|pass| pass.is_late());
    let lowered = if late { Some(lowered(&plan, target, false)?) } else { None };
    let seen = Seen { plan: &plan, target, lowered, names: program.value_names() };
    let notes = |op: &Op| {
        let of = |pass: &Pass| {
            let tagged = |note| format!("{}: {note}", pass.name());
            pass.notes()(&seen, op).into_iter().map(tagged).collect::<Vec<String>>()
        };
        passes.iter().flat_map(of).collect()
    };
    let mut about = seen.about();
    about.extend(shared::about(&seen).filter(|_| passes.contains(&Pass::Shared)));
    Ok(program.annotated(&about, &notes))
}

/// A program that has been through the passes.
pub(super) struct Seen<'a> {
    pub(super) plan: &'a Assignment<'a>,
    pub(super) target: Target,
    /// The code, if it was generated.
    pub(super) lowered: Option<Lowered>,
    names: Vec<String>,
}

impl Seen<'_> {
    /// A value's name in the text form.
    pub(super) fn name(&self, value: Value) -> &str {
        self.names.get(value.index()).map_or("", String::as_str)
    }

    /// What was decided while code was generated, if it was.
    pub(super) fn decisions(&self) -> Option<&Decisions> {
        self.lowered.as_ref().map(|lowered| &lowered.decisions)
    }

    /// What holds for the whole program.
    fn about(&self) -> Vec<String> {
        let (warps, blocks) = (1u32 << self.plan.warps, 1u32 << self.plan.cluster);
        let registers = pressure::registers(self.plan);
        let blocks = if blocks > 1 { format!(" in a cluster of {blocks} blocks") } else { String::new() };
        let s = if warps == 1 { "" } else { "s" };
        vec![format!("{}: {warps} warp{s}{blocks}, about {registers} registers a thread", self.target)]
    }
}

/// One note for all values that have the same; without the values' names where `alone`.
pub(super) fn unique(seen: &Seen<'_>, all: Vec<(Value, String)>, alone: bool) -> Vec<String> {
    if alone {
        return all.into_iter().map(|(_, note)| note).collect();
    }
    let mut groups: Vec<(Vec<String>, String)> = Vec::new();
    for (value, note) in all {
        let name = format!("%{}", seen.name(value));
        match groups.iter_mut().find(|(_, other)| *other == note) {
            Some((names, _)) => names.push(name),
            None => groups.push((vec![name], note)),
        }
    }
    groups.into_iter().map(|(names, note)| format!("{} {note}", names.join(", "))).collect()
}

#[cfg(test)]
mod tests;
