//! The kernel language: programs written as Rust expressions over typed tiles.
//!
//! ```
//! use tilefuse_block::tiles::*;
//!
//! let softmax = program("softmax", |k| {
//!     let (x, y) = (k.ptr::<f32>("x"), k.ptr::<f32>("y"));
//!     let (stride, n) = (k.scalar::<i64>("stride"), k.scalar::<i32>("n"));
//!     let row = program_id(0);
//!     let cols = range(0, 1024);
//!     let v = load(x + row * stride + cols, cols.lt(n), -f32::INFINITY);
//!     let e = exp(v - max(v, 0));
//!     store(y + row * stride + cols, e / sum(e, 0), cols.lt(n));
//! })?;
//! assert_eq!(softmax.name, "softmax");
//! # Ok::<(), BuildError>(())
//! ```
//!
//! A body runs once for each specialisation and writes down what it computes. Element kinds are Rust types and checked
//! by the compiler; shapes are checked while the body runs, and the first expression that does not fit is the error,
//! with its place in the source. Rust numbers, `if`, `for` and functions work at that time: a Rust loop writes its body
//! down as often as it runs.
//!
//! # Shapes
//!
//! Operands of an operator take one shape: the shorter list of extents gets extents of 1 in front, and an extent of 1
//! is repeated. A reduction's axis disappears; [`Tile::col`] and [`Tile::row`] bring an axis back.
//!
//! # Kinds
//!
//! Tiles of two kinds meet in a third, as [`Promote`] says:
//!
//! | operands | result |
//! |---|---|
//! | the same kind | that kind |
//! | `bool` and another kind | the other kind |
//! | two signed or two unsigned integers | the wider |
//! | a signed and an unsigned integer | the unsigned one if it is at least as wide, else the signed one |
//! | an integer and a float | the float |
//! | `f16` and `bf16` | `f32` |
//! | two floats otherwise | the wider |
//!
//! A Rust number takes the tile's kind, whatever its own is; an integer that the kind does not hold is an error, and
//! so, for the compiler, is a float beside integers. `/` and `%` of integers round toward zero. These are Triton's rules
//! but for three: `/` of integers is an integer, integers do not meet Rust floats, and `f16` with `bf16` is `f32`.

mod combine;
mod control;
mod hint;
mod kinds;
mod library;
mod memory;
mod ops;
mod philox;
mod shape;
#[cfg(test)]
mod tests;

use std::fmt;
use std::marker::PhantomData;

use crate::data::Element;
use crate::dynamic;
use crate::program::{Program, Value};

pub use crate::dynamic::{BuildError, Carried, start_early};
pub use crate::program::DotPrecision;
pub use combine::*;
pub use control::{Condition, ForLoop, WhileCondition, branch, for_loop, while_loop};
pub use half::{bf16, f16};
pub use hint::*;
pub use kinds::{Accepts, Binary, Bits, Extent, Float, Int, Num, Number, Operand, Promote};
pub use library::*;
pub use memory::{
    Descriptor, Dims, Mask, Ptr, atomic_add, atomic_and, atomic_cas, atomic_max, atomic_min, atomic_or,
    atomic_xchg, atomic_xor, load, make_descriptor, store,
};
pub use ops::*;
pub use philox::*;
pub use shape::*;

/// 8-bit floats with 4 bits of exponent, for storage and products.
#[allow(non_camel_case_types)]
pub type f8e4m3 = crate::float8::F8E4M3;
/// 8-bit floats with 5 bits of exponent, for storage and products.
#[allow(non_camel_case_types)]
pub type f8e5m2 = crate::float8::F8E5M2;

/// Declares the parameters of a program.
pub struct Scope(dynamic::Scope);

/// The program that `body` writes down.
///
/// # Errors
/// The first expression whose shapes do not fit.
pub fn program(name: &str, body: impl FnOnce(&Scope)) -> Result<Program, BuildError> {
    dynamic::program(name, |scope| body(&Scope(*scope)))
}

/// A tile of elements of type `T`; a scalar is one of rank 0.
///
/// Tiles are values: what changes a tile makes another one. They belong to the kernel, and to the loop or branch, that
/// they are made in.
pub struct Tile<T> {
    tile: dynamic::Tile,
    elem: PhantomData<T>,
}

impl<T> Clone for Tile<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Tile<T> {}

impl<T> fmt::Debug for Tile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tile(%{})", self.tile.value().0)
    }
}

impl Scope {
    /// Sets the number of warps of an instance on a GPU.
    pub fn warps(&self, warps: u32) {
        num_warps(warps);
    }

    /// A pointer parameter, aligned to its elements.
    pub fn ptr<T: Element>(&self, name: &str) -> Ptr<T> {
        self.ptr_to(name, T::ELEM.bytes(), None)
    }

    /// A pointer parameter, aligned to `align` bytes, to at least `len` elements where that is promised.
    pub fn ptr_to<T: Element>(&self, name: &str, align: u32, len: Option<u64>) -> Ptr<T> {
        Ptr::of(self.0.ptr_to(name, T::ELEM, align, len))
    }

    /// A scalar parameter.
    pub fn scalar<T: Element>(&self, name: &str) -> Tile<T> {
        typed(self.0.scalar(name, T::ELEM))
    }
}

/// Sets the number of warps of an instance on a GPU: a power of two from 1 to 32. It is 4 where nothing is said.
/// Triton's launch option `num_warps`.
pub fn num_warps(warps: impl Extent) {
    dynamic::num_warps(u32::try_from(warps.get()).unwrap_or(0));
}

/// Sets how many iterations of a loop a GPU has under way together, loading operands of products for later ones: from 1
/// to 8, fewer where that does not fit. The target chooses where nothing is said. Triton's launch option `num_stages`.
pub fn num_stages(stages: impl Extent) {
    dynamic::num_stages(u32::try_from(stages.get()).unwrap_or(0));
}

/// A tile as one of kind `T`, which it has.
fn typed<T>(tile: dynamic::Tile) -> Tile<T> {
    Tile { tile, elem: PhantomData }
}

impl<T: Element> Tile<T> {
    /// The value in the program.
    pub fn value(self) -> Value {
        self.tile.value()
    }

    /// Names the value for the text form.
    pub fn named(self, name: &str) -> Self {
        typed(self.tile.named(name))
    }

    /// The extents; empty for a scalar.
    pub fn shape(self) -> Vec<usize> {
        self.tile.shape().into_iter().map(|extent| extent as usize).collect()
    }

    /// Says that something is wrong at the place of the caller.
    #[track_caller]
    fn refuse(self, op: &'static str, message: String) -> Self {
        typed(self.tile.refuse(op, message))
    }
}
