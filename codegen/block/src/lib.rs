//! The block IR of Tilefuse: programs over tiles.
//!
//! A [`Program`] is one instance of a grid; its values are tiles and scalars, its loads and stores take masks.
//! One program serves every target: the interpreter of this crate, host code and PTX.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod affine;
mod annotate;
pub mod bounds;
mod builder;
mod data;
pub mod dynamic;
pub mod eval;
mod expand;
mod float8;
mod infer;
pub mod interp;
pub mod math;
mod parse;
pub mod passes;
mod print;
mod program;
#[cfg(any(test, feature = "testing"))]
pub mod random;
mod reference;
mod scalar_fn;
mod table;
pub mod tiles;
mod triton;
mod types;
mod verify;

pub use builder::Builder;
pub use data::{Data, Element};
pub use expand::expand_operations;
pub use float8::{F8E4M3, F8E5M2};
pub use infer::{MAX_TILE, RegionTypes, TypeError, Types};
pub use math::{expand_math, expand_math_except};
pub use parse::{ParseError, parse_valid};
pub use program::{
    Assumption, AtomicFn, CacheHint, DotPrecision, Loc, MemoryOrder, MemoryScope, Op, OpKind, Param, Program,
    Region, Value, ValueData,
};
pub use reference::reference;
pub use scalar_fn::{BaseFn, Level, MathFn, ReduceFn, ScalarFn, TypeRule};
pub use table::{Family, OPERATIONS, Operation};
pub use types::{Elem, Kind, Literal, Shape, Type};
pub use verify::{MAX_DEPTH, MAX_OPS, Problem, VerifyError, verify};
