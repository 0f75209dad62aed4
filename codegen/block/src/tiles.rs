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
mod random;
mod shape;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::builder::Builder;
use crate::data::Element;
use crate::infer::TypeError;
use crate::program::{Program, Value};
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Type};

pub use crate::program::DotPrecision;
pub use combine::*;
pub use control::{Carried, Condition, ForLoop, ValueOf, WhileCondition, branch, for_loop, while_loop};
pub use half::{bf16, f16};
pub use hint::*;
pub use kinds::{Accepts, Binary, Bits, Extent, Float, Int, Num, Number, Operand, Promote};
pub use library::*;
pub use memory::{
    Descriptor, Dims, Mask, Ptr, atomic_add, atomic_and, atomic_cas, atomic_max, atomic_min, atomic_or,
    atomic_xchg, atomic_xor, load, make_descriptor, store,
};
pub use ops::*;
pub use random::*;
pub use shape::*;

/// 8-bit floats with 4 bits of exponent, for storage and products.
#[allow(non_camel_case_types)]
pub type f8e4m3 = crate::small::F8E4M3;
/// 8-bit floats with 5 bits of exponent, for storage and products.
#[allow(non_camel_case_types)]
pub type f8e5m2 = crate::small::F8E5M2;

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

/// The program that a thread is writing down.
struct State {
    builder: Builder,
    /// Tells the tiles of this program from those of others.
    program: u32,
    /// The regions that are open, by number: the body is 0.
    open: Vec<u32>,
    /// Regions so far.
    regions: u32,
    error: Option<BuildError>,
}

thread_local! {
    static CURRENT: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// What a thread was writing down before, which it returns to.
struct Outer(Option<State>);

impl Drop for Outer {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Declares the parameters of a program.
pub struct Scope(());

/// The program that `body` writes down.
///
/// # Errors
/// The first expression whose shapes do not fit.
pub fn program(name: &str, body: impl FnOnce(&Scope)) -> Result<Program, BuildError> {
    static PROGRAMS: AtomicU32 = AtomicU32::new(1);
    let state = State {
        builder: Builder::new(name),
        program: PROGRAMS.fetch_add(1, Ordering::Relaxed),
        open: vec![0],
        regions: 0,
        error: None,
    };
    let outer = Outer(CURRENT.replace(Some(state)));
    body(&Scope(()));
    let made = CURRENT.take();
    drop(outer);
    match made {
        Some(State { error: Some(error), .. }) => Err(error),
        Some(state) => Ok(state.builder.finish()),
        None => Ok(Builder::new(name).finish()),
    }
}

/// A value of some program, made in some region of it.
#[derive(Clone, Copy, Debug)]
struct Handle {
    value: Value,
    program: u32,
    region: u32,
}

/// A tile of elements of type `T`; a scalar is one of rank 0.
///
/// Tiles are values: what changes a tile makes another one. They belong to the kernel, and to the loop or branch, that
/// they are made in.
pub struct Tile<T> {
    handle: Handle,
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
        write!(f, "Tile(%{})", self.handle.value.0)
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
        Ptr::new(record(&[], |b, _| Ok(b.ptr_param(name, T::ELEM, align, len))))
    }

    /// A scalar parameter.
    pub fn scalar<T: Element>(&self, name: &str) -> Tile<T> {
        tile(record(&[], |b, _| Ok(b.scalar_param(name, T::ELEM))))
    }
}

/// Sets the number of warps of an instance on a GPU: a power of two from 1 to 32. It is 4 where nothing is said.
/// Triton's launch option `num_warps`.
pub fn num_warps(warps: impl Extent) {
    let warps = u32::try_from(warps.get()).unwrap_or(0);
    with(|state| state.builder.set_warps(warps));
}

/// Sets how many iterations of a loop a GPU has under way together, loading operands of products for later ones: from 1
/// to 8, fewer where that does not fit. The target chooses where nothing is said. Triton's launch option `num_stages`.
pub fn num_stages(stages: impl Extent) {
    let stages = u32::try_from(stages.get()).unwrap_or(0);
    with(|state| state.builder.set_stages(stages));
}

/// Lets a GPU start the kernel before the work before it on its stream has ended, for which it then waits itself. Pays for
/// kernels of few instances that run one after the other. CUDA's programmatic dependent launch.
pub fn start_early() {
    with(|state| state.builder.set_early());
}

fn with<R>(f: impl FnOnce(&mut State) -> R) -> Option<R> {
    CURRENT.with_borrow_mut(|state| state.as_mut().map(f))
}

fn tile<T>(handle: Handle) -> Tile<T> {
    Tile { handle, elem: PhantomData }
}

/// The result of operations, of which the first that does not fit is kept as the program's error. Outside of a program
/// nothing is recorded.
#[track_caller]
fn record(args: &[Handle], make: impl FnOnce(&mut Builder, &[Value]) -> Result<Value, TypeError>) -> Handle {
    let place = Location::caller();
    let made = with(|state| {
        let value = state.values(args).and_then(|values| make(&mut state.builder, &values));
        let value = value.unwrap_or_else(|error| state.fail(place, error));
        state.handle(value)
    });
    made.unwrap_or(Handle { value: Value(0), program: 0, region: 0 })
}

/// [`record`] of operations whose result is of kind `T`.
#[track_caller]
fn make<T: Element>(
    args: &[Handle],
    make: impl FnOnce(&mut Builder, &[Value]) -> Result<Value, TypeError>,
) -> Tile<T> {
    let place = Location::caller();
    let made = with(|state| {
        let value = state.values(args).and_then(|values| make(&mut state.builder, &values));
        let value = value.unwrap_or_else(|error| {
            state.fail(place, error);
            state.builder.value(Type::scalar(T::ELEM))
        });
        state.handle(value)
    });
    tile(made.unwrap_or(Handle { value: Value(0), program: 0, region: 0 }))
}

impl State {
    /// The values of handles, if they are of this program and can be used here.
    fn values(&self, args: &[Handle]) -> Result<Vec<Value>, TypeError> {
        let wrong = |message: &str| TypeError::Attribute { op: "tile", message: message.to_owned() };
        let value = |handle: &Handle| match handle {
            h if h.program != self.program => Err(wrong("a tile of another kernel")),
            h if !self.open.contains(&h.region) => Err(wrong(
                "made inside a loop or branch that is over, or outside of a combiner; a variable that was declared before \
                 a loop or branch carries values out of it",
            )),
            h => Ok(h.value),
        };
        args.iter().map(value).collect()
    }

    /// Keeps the first error; a value that stands for what could not be made.
    fn fail(&mut self, place: &'static Location<'static>, error: TypeError) -> Value {
        self.error.get_or_insert(BuildError { place, error });
        self.builder.value(Type::scalar(Elem::I32))
    }

    fn handle(&self, value: Value) -> Handle {
        Handle { value, program: self.program, region: self.open.last().copied().unwrap_or(0) }
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
        let of = |&v: &Value| {
            let own = (axis + b.ty(v).rank()).checked_sub(rank);
            own.and_then(|at| b.ty(v).shape.get(at).copied()).unwrap_or(1)
        };
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

impl<T: Element> Tile<T> {
    /// The value in the program.
    pub fn value(self) -> Value {
        self.handle.value
    }

    /// Names the value for the text form.
    pub fn named(self, name: &str) -> Self {
        with(|state| {
            if state.values(&[self.handle]).is_ok() {
                state.builder.name(self.handle.value, name);
            }
        });
        self
    }

    /// Another value that was made with this one.
    fn beside(self, value: Value) -> Self {
        tile(Handle { value, ..self.handle })
    }

    /// The extents; empty for a scalar.
    pub fn shape(self) -> Vec<usize> {
        let shape = with(|state| {
            let known = state.values(&[self.handle]).is_ok();
            known.then(|| state.builder.ty(self.handle.value).shape.iter().map(|&d| d as usize).collect())
        });
        shape.flatten().unwrap_or_default()
    }

    /// Says that something is wrong at the place of the caller.
    #[track_caller]
    fn refuse(self, op: &'static str, message: String) -> Self {
        make(&[self.handle], |_, _| Err(TypeError::Attribute { op, message }))
    }
}
