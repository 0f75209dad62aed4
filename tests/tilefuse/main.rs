//! Tests of the whole path: models wrapped, captured, compiled and run.

#![allow(clippy::unwrap_used)]

mod attention;
mod cli;
mod common;
mod fused;
mod kernels;
mod random;
