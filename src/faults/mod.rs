//! Faults planted into what one stage of the compiler hands to the next, to measure what random programs find.
//!
//! A fault is planted only where it changes what a plan does: a fault of capture or functionalization where the primitive
//! graph without what nothing reads is another one for it, a fault of scheduling where a block program has the function, a fault of
//! planning where a step reads memory that it spoils.

mod capture;
mod functional;
mod meaning;
mod planning;
mod scheduling;

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;
use tilefuse_block::Program;
use tilefuse_fusion::plan::Plan;
use tilefuse_fusion::{Graph, Recording, functionalize};

use crate::Error;
use crate::rng::Rng;
use meaning::{meaning, recorded};

/// A defect that a stage could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Fault {
    /// Capture: a call is not known to write its argument.
    WriteMissed,
    /// Capture: two operands of a call are swapped.
    OperandsSwapped,
    /// Capture: a number among the arguments of a call is another.
    NumberChanged,
    /// Capture: a view is taken for memory of its own.
    ViewMissed,
    /// Capture: a result is taken for a view of the call's operand.
    ViewInvented,
    /// Capture: a result of the model is another tensor of the same type.
    OutputMistaken,
    /// Functionalization: a write-back is lost.
    UpdateMissed,
    /// Functionalization: a write-back has the value from before the last write.
    UpdateStale,
    /// Functionalization: an output shares no memory where eager's does.
    AliasMissed,
    /// Functionalization: an output begins an element off in the memory that it shares.
    AliasShifted,
    /// Functionalization: a use reads the value from before a write.
    UseStale,
    /// Scheduling: block programs compute another function.
    FunctionMistaken,
    /// Memory planning: a value of the arena lies where another one is still needed.
    ArenaOverlap,
    /// Memory planning: all values of the arena that are as large lie at one place.
    ArenaOverlaps,
    /// Memory planning: memory is freed before the last step that reads it.
    FreedEarly,
    /// Memory planning: two results of one type are found in each other's place.
    OutputsSwapped,
    /// Planning: a kernel runs before the one whose result it reads.
    StepsSwapped,
}

/// The part of the compiler that has a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Stage {
    /// What a recording says of a call.
    Capture,
    /// From a recording to a graph without writes and views of memory.
    Functionalization,
    /// From groups to block programs.
    Scheduling,
    /// The order of steps, and where values lie in memory.
    Planning,
}

impl Fault {
    /// All faults.
    pub const ALL: &[Fault] = &[
        Fault::WriteMissed,
        Fault::OperandsSwapped,
        Fault::NumberChanged,
        Fault::ViewMissed,
        Fault::ViewInvented,
        Fault::OutputMistaken,
        Fault::UpdateMissed,
        Fault::UpdateStale,
        Fault::AliasMissed,
        Fault::AliasShifted,
        Fault::UseStale,
        Fault::FunctionMistaken,
        Fault::ArenaOverlap,
        Fault::ArenaOverlaps,
        Fault::FreedEarly,
        Fault::OutputsSwapped,
        Fault::StepsSwapped,
    ];

    /// The stage that has it.
    pub fn stage(self) -> Stage {
        match self {
            Fault::WriteMissed
            | Fault::OperandsSwapped
            | Fault::NumberChanged
            | Fault::ViewMissed
            | Fault::ViewInvented
            | Fault::OutputMistaken => Stage::Capture,
            Fault::UpdateMissed
            | Fault::UpdateStale
            | Fault::AliasMissed
            | Fault::AliasShifted
            | Fault::UseStale => Stage::Functionalization,
            Fault::FunctionMistaken => Stage::Scheduling,
            Fault::ArenaOverlap
            | Fault::ArenaOverlaps
            | Fault::FreedEarly
            | Fault::OutputsSwapped
            | Fault::StepsSwapped => Stage::Planning,
        }
    }

    /// Whether it can only be in a program that writes what it was given or made.
    pub(crate) fn needs_writes(self) -> bool {
        matches!(self, Fault::WriteMissed | Fault::UpdateMissed | Fault::UpdateStale | Fault::UseStale)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A fault at one of the places of a program where it changes what the plan does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planting {
    /// The fault.
    pub fault: Fault,
    /// Which of the places.
    pub choice: u64,
}

impl Planting {
    /// The places of a list in the order in which they are tried.
    fn shuffled<T: Copy>(self, places: &[T]) -> Vec<T> {
        Rng::new(self.choice).permutation(places.len()).into_iter().map(|at| places[at]).collect()
    }

    /// Plants a fault of capture or functionalization; `primitive` makes the primitive graph that the planner gets.
    pub(crate) fn in_graph(
        self,
        recording: &mut Recording,
        functional: &mut Graph,
        primitive: &dyn Fn(Graph) -> Result<Graph, Error>,
    ) -> Result<(), Error> {
        if !matches!(self.fault.stage(), Stage::Capture | Stage::Functionalization) {
            return Ok(());
        }
        let right = primitive(functional.clone())?;
        let (calls, right) = (recorded(&right), meaning(&right));
        // A stage that refuses what it gets makes no plan of it, and a call that is not lowered for the fault runs as it was
        // recorded.
        let differs = |wrong: Graph| recorded(&wrong).is_subset(&calls) && meaning(&wrong) != right;
        let planted = self
            .changed(recording, functional)
            .find(|(_, graph)| primitive(graph.clone()).is_ok_and(differs));
        (*recording, *functional) = planted.ok_or(Error::NotPlanted)?;
        Ok(())
    }

    /// Recordings and their graphs with the fault, one at each place.
    fn changed<'a>(
        self,
        recording: &'a Recording,
        functional: &'a Graph,
    ) -> Box<dyn Iterator<Item = (Recording, Graph)> + 'a> {
        let fault = self.fault;
        if fault.stage() == Stage::Capture {
            let places = self.shuffled(&capture::places(fault, recording));
            return Box::new(places.into_iter().filter_map(move |place| {
                let changed = capture::with_fault(fault, recording, place)?;
                let graph = functionalize(&changed).ok()?;
                Some((changed, graph))
            }));
        }
        let places = self.shuffled(&functional::places(fault, functional));
        Box::new(places.into_iter().filter_map(move |place| {
            let graph = functional::with_fault(fault, functional, place)?;
            Some((recording.clone(), graph))
        }))
    }

    /// Plants a fault of scheduling.
    pub(crate) fn in_programs(self, programs: &[Program]) -> Result<Cow<'_, [Program]>, Error> {
        if self.fault.stage() != Stage::Scheduling {
            return Ok(Cow::Borrowed(programs));
        }
        let place = self.shuffled(&scheduling::places(programs)).first().copied().ok_or(Error::NotPlanted)?;
        scheduling::with_fault(programs, place).map(Cow::Owned)
    }

    /// Plants a fault of planning.
    pub(crate) fn in_plan(self, plan: &mut Plan) -> Result<(), Error> {
        if self.fault.stage() != Stage::Planning {
            return Ok(());
        }
        let places = planning::places(self.fault, plan);
        let place = self.shuffled(&places).first().copied().ok_or(Error::NotPlanted)?;
        planning::plant(self.fault, plan, place);
        Ok(())
    }
}
