//! The functions on `f32`.
//!
//! Polynomials are minimax fits made with Sollya's `fpminimax` for coefficients of 24 bits (53 where a formula
//! computes in `f64`); the comments name the function and the interval of each fit.

mod error;
mod exp;
mod log;
mod pow;
mod trig;

pub(super) use error::erf;
pub(super) use exp::{exp, exp2, sigmoid, tanh};
pub(super) use log::log;
pub(super) use pow::{pow, rsqrt};
pub(super) use trig::{cos, sin};
