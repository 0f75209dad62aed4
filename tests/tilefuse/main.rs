//! Tests of the whole path: models wrapped, captured, compiled and run.

#![allow(clippy::unwrap_used)]

mod random;
