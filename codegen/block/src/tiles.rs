//! Programs written as Rust expressions over typed tiles.
//!
//! ```
//! use tilefuse_block::tiles::program;
//!
//! let softmax = program("softmax", |k| {
//!     let (x, y) = (k.ptr::<f32>("x"), k.ptr::<f32>("y"));
//!     let (stride, n) = (k.scalar::<i64>("stride"), k.scalar::<i32>("n"));
//!     let cols = k.range(0, 1024);
//!     let at = k.program_id(0) * stride + cols;
//!     let v = (x + at).load_where(cols.lt(n), f32::NEG_INFINITY);
//!     let e = (v - v.max(0)).exp();
//!     (y + at).store_where(e / e.sum(0), cols.lt(n));
//! })?;
//! assert_eq!(softmax.name, "softmax");
//! # Ok::<(), tilefuse_block::tiles::BuildError>(())
//! ```
//!
//! Element kinds are Rust types and checked by the compiler; shapes are checked while the program is made, and the
//! first expression that does not fit is the error, with its place in the source.
//!
//! Operands of an operator take one shape: the shorter list of extents gets extents of 1 in front, and an extent of 1
//! is repeated. Their kinds are the same, except that `i32` with `i64` gives `i64`. A Rust number is a constant of the
//! tile's kind. `/` and `%` of integers round toward zero.

mod ops;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

use crate::builder::Builder;
use crate::data::Element;
use crate::infer::TypeError;
use crate::program::{CacheHint, Program, Value};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::{Elem, Type};

/// Element kinds with arithmetic: integers and floats.
pub trait Number: Element {}
/// Integer kinds.
pub trait Int: Number {}
/// Floating-point kinds.
pub trait Float: Number {}
/// Integers and truth values.
pub trait Bits: Element {}

macro_rules! mark {
    ($($mark:ident: $($t:ty)*;)*) => { $($(impl $mark for $t {})*)* };
}

mark! {
    Number: i8 i16 i32 i64 u8 u16 u32 u64 half::f16 half::bf16 f32 f64;
    Int: i8 i16 i32 i64 u8 u16 u32 u64;
    Float: half::f16 half::bf16 f32 f64;
    Bits: bool i8 i16 i32 i64 u8 u16 u32 u64;
}

/// An expression that does not fit its operands, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// Where the expression stands in the source.
    pub place: &'static Location<'static>,
    /// What is wrong.
    pub error: TypeError,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.error)
    }
}

impl std::error::Error for BuildError {}

/// A program in the making.
pub struct Scope {
    state: RefCell<State>,
}

struct State {
    builder: Builder,
    error: Option<BuildError>,
}

/// The program that `body` writes down.
///
/// # Errors
/// The first expression whose shapes do not fit.
pub fn program(name: &str, body: impl FnOnce(&Scope)) -> Result<Program, BuildError> {
    let scope = Scope { state: RefCell::new(State { builder: Builder::new(name), error: None }) };
    body(&scope);
    let State { builder, error } = scope.state.into_inner();
    error.map_or_else(|| Ok(builder.finish()), Err)
}

/// A tile of elements of type `T`; a scalar is one of rank 0.
#[derive(Clone, Copy)]
pub struct Tile<'k, T> {
    scope: &'k Scope,
    value: Value,
    elem: PhantomData<T>,
}

/// The address of elements of type `T`: a pointer parameter and offsets, of which there are none to begin with.
#[derive(Clone, Copy)]
pub struct Ptr<'k, T> {
    scope: &'k Scope,
    param: Value,
    offsets: Option<Tile<'k, i64>>,
    elem: PhantomData<T>,
}

impl Scope {
    /// Sets the number of warps of an instance on a GPU.
    pub fn warps(&self, warps: u32) {
        self.state.borrow_mut().builder.set_warps(warps);
    }

    /// A pointer parameter, aligned to its elements.
    pub fn ptr<T: Element>(&self, name: &str) -> Ptr<'_, T> {
        self.ptr_to(name, T::ELEM.bytes(), None)
    }

    /// A pointer parameter, aligned to `align` bytes, to at least `len` elements where that is promised.
    pub fn ptr_to<T: Element>(&self, name: &str, align: u32, len: Option<u64>) -> Ptr<'_, T> {
        let param = self.state.borrow_mut().builder.ptr_param(name, T::ELEM, align, len);
        Ptr { scope: self, param, offsets: None, elem: PhantomData }
    }

    /// A scalar parameter.
    pub fn scalar<T: Element>(&self, name: &str) -> Tile<'_, T> {
        let value = self.state.borrow_mut().builder.scalar_param(name, T::ELEM);
        self.tile(value)
    }

    /// The instance's index along a grid axis.
    #[track_caller]
    pub fn program_id(&self, axis: u8) -> Tile<'_, i32> {
        self.record(|b| b.program_id(axis))
    }

    /// `start, start + 1, ...`, `len` of them, a power of two.
    #[track_caller]
    pub fn range(&self, start: i32, len: u32) -> Tile<'_, i32> {
        self.record(|b| b.range(start, len))
    }

    /// A number.
    pub fn constant<T: Element>(&self, number: T) -> Tile<'_, T> {
        let value = self.state.borrow_mut().builder.constant(number.literal(), &[]);
        self.tile(value)
    }

    fn tile<T>(&self, value: Value) -> Tile<'_, T> {
        Tile { scope: self, value, elem: PhantomData }
    }

    /// The result of operations, of which one that does not fit is kept as the program's error.
    #[track_caller]
    fn record<T: Element>(&self, make: impl FnOnce(&mut Builder) -> Result<Value, TypeError>) -> Tile<'_, T> {
        let place = Location::caller();
        let state = &mut *self.state.borrow_mut();
        let value = make(&mut state.builder).unwrap_or_else(|error| {
            state.error.get_or_insert(BuildError { place, error });
            state.builder.value(Type::scalar(T::ELEM))
        });
        self.tile(value)
    }
}

/// Repeats a value over a shape: extents of 1 in front, then repetition of extents of 1.
fn spread(b: &mut Builder, value: Value, shape: &[u32]) -> Result<Value, TypeError> {
    if b.ty(value).shape[..] == *shape {
        return Ok(value);
    }
    if b.ty(value).rank() == 0 {
        return b.splat(value, shape);
    }
    let mut value = value;
    while b.ty(value).rank() < shape.len() {
        value = b.expand_dims(value, 0)?;
    }
    if b.ty(value).shape[..] == *shape { Ok(value) } else { b.broadcast(value, shape) }
}

/// The shape that values take together: the longest, with the larger of two extents.
fn common(b: &Builder, values: &[Value]) -> Vec<u32> {
    let rank = values.iter().map(|&v| b.ty(v).rank()).max().unwrap_or(0);
    let extent = |axis: usize| {
        let of = |&v: &Value| (axis + b.ty(v).rank()).checked_sub(rank).map_or(1, |at| b.ty(v).shape[at]);
        values.iter().map(of).max().unwrap_or(1)
    };
    (0..rank).map(extent).collect()
}

/// A scalar function of operands that are brought to one shape.
fn map(b: &mut Builder, function: ScalarFn, args: &[Value]) -> Result<Value, TypeError> {
    let shape = common(b, args);
    let args = args.iter().map(|&v| spread(b, v, &shape)).collect::<Result<Vec<_>, _>>()?;
    b.map(function, &args)
}

impl<'k, T: Element> Tile<'k, T> {
    /// The value in the program.
    pub fn value(self) -> Value {
        self.value
    }

    /// Names the value for the text form.
    pub fn named(self, name: &str) -> Self {
        self.scope.state.borrow_mut().builder.name(self.value, name);
        self
    }

    #[track_caller]
    fn map<R: Element>(self, function: ScalarFn, others: &[Value]) -> Tile<'k, R> {
        let args: Vec<Value> = std::iter::once(self.value).chain(others.iter().copied()).collect();
        self.scope.record(|b| map(b, function, &args))
    }

    /// Conversion to another kind, as [`OpKind::Cast`](crate::OpKind::Cast) says.
    #[track_caller]
    pub fn cast<R: Element>(self) -> Tile<'k, R> {
        self.scope.record(|b| b.cast(self.value, R::ELEM))
    }

    /// Inserts an extent of 1 at an axis.
    #[track_caller]
    pub fn expand_dims(self, axis: u8) -> Self {
        self.scope.record(|b| b.expand_dims(self.value, axis))
    }

    /// The same elements in row-major order in another shape.
    #[track_caller]
    pub fn reshape(self, shape: &[u32]) -> Self {
        self.scope.record(|b| b.reshape(self.value, shape))
    }

    /// Permutes axes: axis `i` of the result is axis `perm[i]`.
    #[track_caller]
    pub fn permute(self, perm: &[u8]) -> Self {
        self.scope.record(|b| b.permute(self.value, perm))
    }

    #[track_caller]
    fn reduce(self, combine: ReduceFn, axis: u8, mask: Option<Tile<'k, bool>>) -> Self {
        self.scope.record(|b| {
            let shape = b.ty(self.value).shape.clone();
            let mask = mask.map(|m| spread(b, m.value, &shape)).transpose()?;
            b.reduce(combine, self.value, axis, mask)
        })
    }
}

impl<'k> Tile<'k, bool> {
    /// `yes` where this is true, else `no`.
    #[track_caller]
    pub fn select<T: Element>(self, yes: Tile<'k, T>, no: Tile<'k, T>) -> Tile<'k, T> {
        self.map(ScalarFn::Select, &[yes.value, no.value])
    }
}

impl<'k, T: Element> Ptr<'k, T> {
    /// The parameter in the program.
    pub fn value(self) -> Value {
        self.param
    }

    #[track_caller]
    fn shifted(self, by: Tile<'k, i64>) -> Self {
        let offsets = match self.offsets {
            Some(offsets) => offsets + by,
            None => by,
        };
        Ptr { offsets: Some(offsets), ..self }
    }

    fn offsets(self, b: &mut Builder) -> Value {
        self.offsets.map_or_else(|| b.constant(0i64.literal(), &[]), |o| o.value)
    }

    /// Reads elements.
    #[track_caller]
    pub fn load(self) -> Tile<'k, T> {
        self.scope.record(|b| {
            let offsets = self.offsets(b);
            b.load(self.param, offsets, None, None, CacheHint::Default)
        })
    }

    /// Reads the elements where the mask is true; the others are `other`.
    #[track_caller]
    pub fn load_where(self, mask: Tile<'k, bool>, other: T) -> Tile<'k, T> {
        self.scope.record(|b| {
            let offsets = self.offsets(b);
            let shape = common(b, &[offsets, mask.value]);
            let (offsets, mask) = (spread(b, offsets, &shape)?, spread(b, mask.value, &shape)?);
            let other = b.constant(other.literal(), &shape);
            b.load(self.param, offsets, Some(mask), Some(other), CacheHint::Default)
        })
    }

    /// Writes elements.
    #[track_caller]
    pub fn store(self, tile: Tile<'k, T>) {
        self.write(tile, None);
    }

    /// Writes elements where the mask is true.
    #[track_caller]
    pub fn store_where(self, tile: Tile<'k, T>, mask: Tile<'k, bool>) {
        self.write(tile, Some(mask));
    }

    /// The offsets' shape is the one written: what is larger is an error, since elements would meet in one place.
    #[track_caller]
    fn write(self, tile: Tile<'k, T>, mask: Option<Tile<'k, bool>>) {
        let _: Tile<'k, T> = self.scope.record(|b| {
            let offsets = self.offsets(b);
            let shape = b.ty(offsets).shape.clone();
            let value = spread(b, tile.value, &shape)?;
            let mask = mask.map(|m| spread(b, m.value, &shape)).transpose()?;
            b.store(self.param, offsets, value, mask, CacheHint::Default)?;
            Ok(value)
        });
    }
}

/// Whether `/` and `%` are those of floats.
const fn quotient(elem: Elem) -> ScalarFn {
    if elem.is_float() { ScalarFn::Div } else { ScalarFn::DivTrunc }
}
