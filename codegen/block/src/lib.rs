//! The block IR of Tilefuse: programs over tiles.
//!
//! A [`Program`] is one instance of a grid; its values are tiles and scalars, its loads and stores take masks.
//! One program serves every target: the interpreter of this crate, host code and PTX.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod affine;
mod builder;
mod data;
pub mod eval;
mod infer;
pub mod interp;
pub mod math;
mod parse;
pub mod passes;
mod print;
mod program;
#[cfg(any(test, feature = "testing"))]
pub mod random;
mod scalar_fn;
pub mod tiles;
mod types;
mod verify;

pub use builder::Builder;
pub use data::{Data, Element};
pub use infer::{MAX_TILE, TypeError};
pub use math::expand_math;
pub use parse::{ParseError, parse_valid};
pub use program::{CacheHint, Op, OpKind, Param, Program, Region, Value, ValueData};
pub use scalar_fn::{Level, ReduceFn, ScalarFn, TypeRule};
pub use types::{Elem, Kind, Literal, Shape, Type};
pub use verify::{MAX_DEPTH, Problem, VerifyError, verify};
