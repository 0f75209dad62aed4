//! Functions on `f32` with formulas of their own.
//!
//! Polynomials are minimax fits made with Sollya's `fpminimax` for coefficients of 24 bits (53 where a formula
//! computes in `f64`); the comments name the function and the interval of each fit.

mod erf;
mod inverse;
mod pow;
mod trig;

pub(super) use erf::{erf, erfc};
pub(super) use inverse::{acosh, asinh, atanh};
pub(super) use pow::pow;
pub(super) use trig::{cos, sin, sine_cosine, tan};
