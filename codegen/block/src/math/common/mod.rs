//! Formulas that serve `f32` and `f64` alike, with the constants of a [`Format`].

mod exp;
mod format;
mod inverse;
mod log;
mod pow;

pub(super) use exp::{cosh, exp, exp_factors, exp2, exp2_factors, expm1, sigmoid, sinh, tanh};
pub(super) use format::{DOUBLE, Format, SINGLE};
pub(super) use inverse::{acos, asin, atan, atan2};
pub(super) use log::{log, log_of, log1p, log2, log2_of, log10};
pub(super) use pow::{rsqrt, signed_power};
