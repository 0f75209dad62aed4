//! Random valid programs with arguments, to test targets, passes and analyses against the interpreter.
//!
//! A case is decoded from a seed or from bytes, always the same one. No instance addresses memory outside of its
//! buffers, no two instances race, and a result that could depend on which NaN a function gives, on the sign of a
//! zero sum or on the order of a reduction is made not to. So what a target writes has to equal what the
//! interpreter writes bit by bit, with any NaN for a NaN: [`compare_args`] with a tolerance of 0. Mathematical
//! functions, which [`Options::math`] adds, have to be expanded first, or compared with a tolerance.

mod choices;
mod compare;
mod functions;
mod generate;
mod hostile;
mod index;
mod language;
mod memory;
mod overlap;

use crate::interp::Arg;
use crate::program::Program;

pub use choices::Choices;
pub use compare::{Difference, compare_args};
pub use hostile::{almost_program, almost_text, any_program, any_text};

/// A program with arguments and a grid.
#[derive(Clone, Debug)]
pub struct Case {
    /// The program, valid.
    pub program: Program,
    /// Arguments for its parameters.
    pub args: Vec<Arg>,
    /// The instances.
    pub grid: [u32; 3],
}

/// What cases may hold.
#[derive(Clone, Debug)]
pub struct Options {
    /// Functions of [`Level::Math`](crate::Level::Math).
    pub math: bool,
    /// The operations of hand-written kernels besides those that the planner makes.
    pub language: bool,
    /// Loads from what the instance itself has stored before.
    pub reread: bool,
    /// Several accesses of one buffer, in loops too, at elements that are the same, overlap or have nothing in common.
    pub overlap: bool,
    /// The most operations that are drawn; what they need comes on top.
    pub max_ops: usize,
    /// The most elements of a tile.
    pub max_tile: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { math: false, language: false, reread: true, overlap: true, max_ops: 24, max_tile: 4096 }
    }
}

/// The case of a seed.
pub fn random_case(seed: u64) -> Case {
    case(&mut Choices::from_seed(seed), &Options::default())
}

/// The case that choices lead to.
///
/// # Panics
/// If the generator is at fault and makes an operation that does not take its operands.
pub fn case(choices: &mut Choices<'_>, options: &Options) -> Case {
    match generate::case(choices, options) {
        Ok(case) => case,
        Err(error) => panic!("the generator is at fault: {error}"),
    }
}

/// A case of integer arithmetic on ranges, constants, grid indices and scalar parameters, as offsets and masks are
/// made of it, with strides and bounds of which some are small and some such that sums wrap.
///
/// # Panics
/// As [`case`].
pub fn index_case(choices: &mut Choices<'_>) -> Case {
    match index::case(choices) {
        Ok(case) => case,
        Err(error) => panic!("the generator is at fault: {error}"),
    }
}

#[cfg(test)]
mod tests;
