//! Checks of accesses: none where the grid and the arguments of a launch prove that it stays within its tensors.

use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tilefuse_block::Program;
use tilefuse_block::bounds::{Given, Proof, decisive, prove};
use tilefuse_block::passes::{guard, optimize};

use super::Compiled;
use crate::Error;

/// The most launches of a kernel of which it is remembered what holds.
const MAX_REMEMBERED: usize = 256;

/// A program with checks of the accesses that nothing proves.
#[derive(Debug)]
pub(super) struct Guarded {
    pub(super) program: Program,
    /// Positions of the parameters whose lengths follow the arguments, and the status word after them.
    pub(super) lengths: Vec<usize>,
    pub(super) compiled: Compiled,
}

/// What tells launches apart.
type Launch = ([u32; 3], SmallVec<[Given; 16]>);

/// What is known of the launches of a program.
#[derive(Debug, Default)]
pub(super) struct Checks(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The program for a launch; nothing where the program needs no checks.
    launches: FxHashMap<Launch, Option<Arc<Guarded>>>,
    /// For each parameter whether its number matters; nothing before the first launch.
    decisive: Vec<bool>,
    /// The program for what holds.
    guarded: FxHashMap<Proof, Arc<Guarded>>,
}

impl Checks {
    /// The program with checks for a launch, or nothing where it needs none.
    pub(super) fn of(
        &self,
        program: &Program,
        grid: [u32; 3],
        mut given: SmallVec<[Given; 16]>,
    ) -> Result<Option<Arc<Guarded>>, Error> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.decisive.is_empty() {
            known.decisive = decisive(program);
        }
        for (given, _) in given.iter_mut().zip(&known.decisive).filter(|(_, decides)| !**decides) {
            if let Given::Number(literal) = given {
                literal.bits = 0;
            }
        }
        let launch = (grid, given);
        if let Some(guarded) = known.launches.get(&launch) {
            return Ok(guarded.clone());
        }
        let proof = prove(program, grid, &launch.1);
        let guarded = match proof.is_complete() {
            true => None,
            false => Some(known.guarded(program, proof)?),
        };
        if known.launches.len() >= MAX_REMEMBERED {
            known.launches.clear();
        }
        known.launches.insert(launch, guarded.clone());
        Ok(guarded)
    }
}

impl Known {
    fn guarded(&mut self, program: &Program, proof: Proof) -> Result<Arc<Guarded>, Error> {
        if let Some(guarded) = self.guarded.get(&proof) {
            return Ok(Arc::clone(guarded));
        }
        let mut program = program.clone();
        let lengths = guard(&mut program, &proof).lengths;
        optimize(&mut program).map_err(|e| Error::Internal(e.to_string()))?;
        let guarded = Arc::new(Guarded { program, lengths, compiled: Compiled::default() });
        self.guarded.insert(proof, Arc::clone(&guarded));
        Ok(guarded)
    }
}
