//! The functions on `f32`.
//!
//! Polynomials are minimax fits made with Sollya's `fpminimax` for coefficients of 24 bits (53 where a formula
//! computes in `f64`); the comments name the function and the interval of each fit.

mod error;
mod exp;
mod inverse;
mod log;
mod pow;
mod trig;

pub(super) use error::{erf, erfc};
pub(super) use exp::{cosh, exp, exp2, expm1, sigmoid, sinh, tanh};
pub(super) use inverse::{acos, acosh, asin, asinh, atan, atan2, atanh};
pub(super) use log::{log, log1p, log2, log10};
pub(super) use pow::{pow, rsqrt};
pub(super) use trig::{cos, sin, tan};
