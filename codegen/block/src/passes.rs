//! Passes: each rewrites a valid program into a valid one that computes the same.
//!
//! "The same" is bit by bit, except for which NaN a function gives, for the accuracy of constant folding, which uses
//! the reference of [`crate::eval`], and for products of floats that become part of a matrix product: these are no longer
//! rounded before they are added. An explicit cast that rounds is never removed.

mod approximate;
mod bounds_guard;
mod canonicalize;
mod cse;
mod dce;
mod licm;
mod narrow;
mod raise_to_dot;
mod ranges;
mod renumber;
mod strength;

use thiserror::Error;

use crate::program::Program;
use crate::verify::{VerifyError, verify};

pub use approximate::approximate;
pub use bounds_guard::{Guards, guard};
pub use canonicalize::{canonicalize, reorder_broadcast};
pub use cse::cse;
pub use dce::dce;
pub use licm::licm;
pub use narrow::narrow;
pub use raise_to_dot::raise_to_dot;
pub use ranges::ranges;
pub use renumber::renumber;
pub use strength::strength;

/// Extents that no grid exceeds.
pub const ANY_GRID: [u32; 3] = [1 << 31; 3];

/// A pass: its name and its function, which is told the extents that the grid does not exceed.
pub type Pass = (&'static str, fn(&mut Program, [u32; 3]));

/// What [`optimize`] does, in order.
pub const PASSES: &[Pass] = &[
    ("canonicalize", |program, _| canonicalize(program)),
    ("cse", |program, _| cse(program)),
    ("raise-to-dot", |program, _| raise_to_dot(program)),
    ("licm", |program, _| licm(program)),
    ("strength", |program, _| strength(program)),
    ("ranges", ranges),
    ("canonicalize-again", |program, _| canonicalize(program)),
    ("cse-again", |program, _| cse(program)),
    ("licm-again", |program, _| licm(program)),
    ("dce", |program, _| dce(program)),
    ("renumber", |program, _| renumber(program)),
];

/// A pass made an invalid program: a defect of the pass.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("after pass {pass}: {error}")]
pub struct PassError {
    /// The pass, or `input` where the program was not valid to begin with.
    pub pass: &'static str,
    /// What is wrong with the program.
    pub error: Box<VerifyError>,
}

/// Called with the name of a pass and the program after it.
pub type Observer<'a> = &'a mut dyn FnMut(&'static str, &Program);

/// How passes are run and watched.
pub struct PassOptions<'a> {
    /// Extents that the grid never exceeds: what comes out may be wrong for a larger one.
    pub grid: [u32; 3],
    /// Stop after the pass of this name.
    pub stop_after: Option<&'a str>,
    /// Called after each pass.
    pub observe: Option<Observer<'a>>,
}

impl Default for PassOptions<'_> {
    fn default() -> Self {
        PassOptions { grid: ANY_GRID, stop_after: None, observe: None }
    }
}

/// Runs [`PASSES`], for any grid.
pub fn optimize(program: &mut Program) -> Result<(), PassError> {
    run_passes(program, PASSES, &mut PassOptions::default())
}

/// Runs [`PASSES`] for grids of at most these extents: masks that hold for all instances go. What comes out may be
/// wrong for a larger grid.
pub fn optimize_for_grid(program: &mut Program, grid: [u32; 3]) -> Result<(), PassError> {
    run_passes(program, PASSES, &mut PassOptions { grid, ..PassOptions::default() })
}

/// Runs passes. The verifier checks the input, and in debug builds what each pass makes.
pub fn run_passes(
    program: &mut Program,
    passes: &[Pass],
    options: &mut PassOptions<'_>,
) -> Result<(), PassError> {
    let check =
        |pass, program: &Program| verify(program).map_err(|error| PassError { pass, error: Box::new(error) });
    check("input", program)?;
    for &(pass, function) in passes {
        function(program, options.grid);
        if cfg!(debug_assertions) {
            check(pass, program)?;
        }
        if let Some(observe) = &mut options.observe {
            observe(pass, program);
        }
        if options.stop_after == Some(pass) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
