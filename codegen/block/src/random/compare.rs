//! Comparing what two runs have left in their buffers.

use thiserror::Error;

use crate::data::Data;
use crate::interp::Arg;
use crate::types::Literal;

/// Where two runs differ.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("argument {argument}, element {element}: expected {expected}, found {found}")]
pub struct Difference {
    /// Position of the buffer among the arguments.
    pub argument: usize,
    /// Position in the buffer.
    pub element: usize,
    /// What it should be.
    pub expected: Literal,
    /// What it is.
    pub found: Literal,
}

/// Compares buffers element by element; the first difference is the error, and so are buffers of different kinds
/// or lengths. Floats may differ by `tolerance * (1 + |expected|)`; for a tolerance of 0 they have to be equal bit
/// by bit. One NaN is as good as another.
pub fn compare_args(expected: &[Arg], found: &[Arg], tolerance: f64) -> Result<(), Difference> {
    for (argument, pair) in expected.iter().zip(found).enumerate() {
        let (Some(a), Some(b)) = (pair.0.data(), pair.1.data()) else { continue };
        let difference = first_difference(&a, &b, tolerance);
        if let Some((element, expected, found)) = difference {
            return Err(Difference { argument, element, expected, found });
        }
    }
    Ok(())
}

fn first_difference(a: &Data, b: &Data, tolerance: f64) -> Option<(usize, Literal, Literal)> {
    let nothing = Literal { elem: b.elem(), bits: 0 };
    if a.elem() != b.elem() || a.len() != b.len() {
        let element = a.len().min(b.len());
        return Some((element, a.get(element).unwrap_or(nothing), b.get(element).unwrap_or(nothing)));
    }
    let pairs = a.literals().into_iter().zip(b.literals());
    pairs.enumerate().find(|(_, (x, y))| !is_close(*x, *y, tolerance)).map(|(i, (x, y))| (i, x, y))
}

fn is_close(expected: Literal, found: Literal, tolerance: f64) -> bool {
    if expected == found || !expected.elem.is_float() {
        return expected == found;
    }
    let (x, y) = (expected.as_f64(), found.as_f64());
    let within = tolerance > 0.0 && (x - y).abs() <= tolerance * (1.0 + x.abs());
    (x.is_nan() && y.is_nan()) || (tolerance > 0.0 && x == y) || within
}
