//! Random tensor programs: generated from a seed, run through libtorch, compared fused with eager, and shrunk.

mod check;
mod generate;
mod layouts;
mod planted;
mod program;
mod sequence;
mod shrink;
mod tally;
mod text;

pub use crate::faults::{Fault, Planting, Stage};
pub use crate::rng::Rng;
pub use check::{Model, Outcome, Rounding, Subject, check, check_on};
pub use generate::generate;
pub use planted::{Found, Plantings, find, finds};
pub use program::{Input, Layout, Mode, Named, OpCall, Program, Storage, Values, copies};
pub use shrink::shrink;
pub use tally::{
    Failed, Ran, Tally, gpu_programs_of, keep_panics, plan_of, run_fused, run_given, run_given_eager,
};
pub(crate) use tally::{general, panicked, works};
pub use text::ParseError;
