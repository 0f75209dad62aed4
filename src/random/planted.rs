//! How many planted faults random programs find.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};
use tch::Device;

use super::tally::run_with_fault;
use super::{Fault, Outcome, Planting, Program, Rng, generate};
use crate::Error;
use crate::faults::Stage;

/// Most elements of the programs that faults are planted in, for the time that they take.
const MAX_ELEMENTS: i64 = 20_000;

/// Programs that are looked at for one in which a fault can be.
const MAX_TRIED: usize = 4_000;

/// What became of one planted fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Found {
    /// The seed of the program that differs from eager, and the programs with the fault before it that do not.
    By(u64, Vec<u64>),
    /// One of the programs, or several together, ended the process.
    ByCrash,
    /// The programs with the fault, all of which equal eager.
    Not(Vec<u64>),
}

/// Plants a fault of a kind in programs, each at one of the places where it changes what the plan does, until one of at
/// most `within` programs finds it: its result differs from eager's by more than rounding, or a call fails.
pub fn find(fault: Fault, seed: u64, within: usize, device: Device) -> Found {
    tch::set_num_threads(1);
    let mut rng = Rng::new(seed);
    let mut missed = Vec::new();
    for _ in 0..MAX_TRIED {
        if missed.len() >= within {
            break;
        }
        let program_seed = rng.bits() >> 16;
        match finds(fault, program_seed, device) {
            Some(true) => return Found::By(program_seed, missed),
            Some(false) => missed.push(program_seed),
            None => {}
        }
    }
    Found::Not(missed)
}

/// Whether the program of a seed finds a fault; `None` where no plan has it.
pub fn finds(fault: Fault, seed: u64, device: Device) -> Option<bool> {
    let program = generate(seed);
    if !may_have(&program, fault) {
        return None;
    }
    let planting = Planting { fault, choice: seed };
    let run = || run_with_fault(&program, seed, device, planting);
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(ran)) => match (ran.outcome, ran.eager) {
            (Outcome::Different(_), _) => Some(true),
            (Outcome::BothFail, _) | (_, Some(_)) => None,
            (Outcome::Same { .. } | Outcome::Rounding(_) | Outcome::Unjudged(_), None) => Some(false),
        },
        Ok(Err(Error::NotPlanted)) => None,
        Ok(Err(_)) | Err(_) => Some(true),
    }
}

fn may_have(program: &Program, fault: Fault) -> bool {
    let small = program.storages.iter().map(|s| s.len).sum::<i64>() <= MAX_ELEMENTS;
    small && (!fault.needs_writes() || program.ops.iter().any(super::OpCall::writes))
}

/// Counts of one kind of fault.
#[derive(Clone, Debug, Serialize)]
pub struct Plantings {
    /// The fault.
    pub fault: Fault,
    /// The stage that has it.
    pub stage: Stage,
    /// How often it was planted.
    pub planted: usize,
    /// How often it was found.
    pub found: usize,
    /// How often the first program with it found it.
    pub found_by_first: usize,
    /// How often it ended the process.
    pub crashes: usize,
    /// Programs that ran with it, those of ended processes left out.
    pub programs: usize,
    /// Seeds of programs with it that equal eager.
    pub missed: Vec<u64>,
}

impl Plantings {
    /// No counts of a kind.
    pub fn new(fault: Fault) -> Plantings {
        Plantings {
            fault,
            stage: fault.stage(),
            planted: 0,
            found: 0,
            found_by_first: 0,
            crashes: 0,
            programs: 0,
            missed: Vec::new(),
        }
    }

    /// Counts one.
    pub fn add(&mut self, found: Found) {
        let (by, missed) = match found {
            Found::By(_, missed) => (1, missed),
            Found::Not(missed) => (0, missed),
            Found::ByCrash => {
                self.planted += 1;
                self.found += 1;
                self.crashes += 1;
                return;
            }
        };
        self.planted += 1;
        self.found += by;
        self.found_by_first += usize::from(by == 1 && missed.is_empty());
        self.programs += by + missed.len();
        self.missed.extend(missed);
    }

    /// Whether at least 95 of 100 were found.
    pub fn suffices(&self) -> bool {
        self.found * 100 >= self.planted * 95
    }
}

impl std::fmt::Display for Plantings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Plantings { fault, planted, found, found_by_first, crashes, programs, missed, .. } = self;
        write!(
            f,
            "{fault}: {found} of {planted} found, {found_by_first} by the first of {programs} programs"
        )?;
        if *crashes > 0 {
            write!(f, ", {crashes} by the end of the process")?;
        }
        if missed.is_empty() { Ok(()) } else { write!(f, "; not by the programs of seeds {missed:?}") }
    }
}
