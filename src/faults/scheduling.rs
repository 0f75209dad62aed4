//! Faults of scheduling: what block programs compute.

use tilefuse_block::{Program, parse_valid};

use crate::Error;

/// A function, and the one in its place.
pub(super) type Mistaken = (&'static str, &'static str);

/// All of one operand, which is no index.
const MISTAKEN: [Mistaken; 6] = [
    ("rsqrt", "sqrt"),
    ("exp", "expm1"),
    ("exp2", "expm1"),
    ("tanh", "sin"),
    ("erf", "tanh"),
    ("sigmoid", "tanh"),
];

/// The functions that some of these programs compute.
pub(super) fn places(programs: &[Program]) -> Vec<Mistaken> {
    let texts: Vec<String> = programs.iter().map(Program::to_string).collect();
    let is_computed = |(function, _): &Mistaken| texts.iter().any(|text| text.contains(&mapped(function)));
    MISTAKEN.into_iter().filter(is_computed).collect()
}

/// The programs with another function in the place of one.
pub(super) fn with_fault(programs: &[Program], (right, wrong): Mistaken) -> Result<Vec<Program>, Error> {
    let changed = |program: &Program| {
        let text = program.to_string();
        if !text.contains(&mapped(right)) {
            return Ok(program.clone());
        }
        let text = text.replace(&mapped(right), &mapped(wrong));
        parse_valid(&text).map_err(|error| Error::Internal(error.to_string()))
    };
    programs.iter().map(changed).collect()
}

/// How the text of a program applies a function.
fn mapped(function: &str) -> String {
    format!(" = map {function} ")
}
