//! Accuracy of the formulas against `f64` functions, and of the table's columns.

mod accuracy;
mod accuracy_f64;
mod expansion;
mod exponents;

use crate::scalar_fn::ScalarFn;

/// The functions that are expanded.
fn math_functions() -> impl Iterator<Item = ScalarFn> {
    ScalarFn::ALL.iter().copied().filter(|f| f.is_math())
}
