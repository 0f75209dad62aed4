//! The kernel language over tiles whose kinds are known at run time.
//!
//! ```
//! use tilefuse_block::Elem;
//! use tilefuse_block::dynamic::*;
//!
//! // y = a b, of row-major matrices of any kind of floats, as in Triton's tutorials.
//! let product = |elem: Elem, [m, n, k]: [i64; 3]| {
//!     program("product", |kernel| {
//!         let pointer = |name: &str, len: i64| kernel.ptr(name, elem, len.unsigned_abs());
//!         let (a, b, y) = (pointer("a", m * k), pointer("b", k * n), pointer("y", m * n));
//!         let rows = blocked(program_id(0), 32, m);
//!         let cols = blocked(program_id(1), 64, n);
//!         let sum = for_range(0, k, 16, zeros(Elem::F32, [32, 64]), |first, sum| {
//!             let depth = axis(first, 16).below(k);
//!             let a = a.block(&[(rows, k), (depth, 1)]).load();
//!             let b = b.block(&[(depth, n), (cols, 1)]).load();
//!             dot(a, b, sum)
//!         });
//!         y.block(&[(rows, n), (cols, 1)]).store(sum.cast(elem));
//!     })
//! };
//! assert!(product(Elem::F16, [100, 200, 300]).is_ok());
//! # Ok::<(), BuildError>(())
//! ```
//!
//! Programs that the compiler makes for itself are written in it, and [`crate::tiles`], in which people write theirs, is the
//! same with kinds that the Rust compiler checks. Rust numbers, `if`, `for` and functions work while the program is written
//! down; the first expression that does not fit is the error, with its place in the source.
//!
//! Operands of an operator take one kind and one shape, by the rules of [`crate::tiles`]. A number beside a tile takes its
//! kind and shape, and one that changes nothing, as in `x * 1` or `x + 0` of integers, adds no operation.

mod control;
mod memory;
mod operand;
mod ops;
mod shape;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::builder::Builder;
use crate::infer::TypeError;
use crate::program::{Program, Value};
use crate::types::{Elem, Type};

pub use control::*;
pub use memory::*;
pub use operand::{Number, Operand, promote};
pub use ops::*;
pub use shape::*;

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

type Result<T> = std::result::Result<T, TypeError>;

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
#[derive(Clone, Copy, Debug)]
pub struct Scope(());

/// The program that `body` writes down.
///
/// # Errors
/// The first expression whose kinds or shapes do not fit.
pub fn program(name: &str, body: impl FnOnce(&Scope)) -> std::result::Result<Program, BuildError> {
    program_and(name, body).map(|(program, ())| program)
}

/// The program that `body` writes down, and what it returns.
///
/// # Errors
/// The first expression whose kinds or shapes do not fit.
pub fn program_and<R>(
    name: &str,
    body: impl FnOnce(&Scope) -> R,
) -> std::result::Result<(Program, R), BuildError> {
    static PROGRAMS: AtomicU32 = AtomicU32::new(1);
    let state = State {
        builder: Builder::new(name),
        program: PROGRAMS.fetch_add(1, Ordering::Relaxed),
        open: vec![0],
        regions: 0,
        error: None,
    };
    let outer = Outer(CURRENT.replace(Some(state)));
    let returned = body(&Scope(()));
    let made = CURRENT.take();
    drop(outer);
    match made {
        Some(State { error: Some(error), .. }) => Err(error),
        Some(state) => Ok((state.builder.finish(), returned)),
        None => Ok((Builder::new(name).finish(), returned)),
    }
}

/// A tile of elements; a scalar is one of rank 0.
///
/// Tiles are values: what changes a tile makes another one. They belong to the program, and to the loop or branch, that
/// they are made in.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    value: Value,
    program: u32,
    region: u32,
}

impl Scope {
    /// A pointer parameter to at least `len` elements, aligned to its elements.
    pub fn ptr(&self, name: &str, elem: Elem, len: u64) -> Ptr {
        self.ptr_to(name, elem, elem.bytes(), Some(len))
    }

    /// A pointer parameter, aligned to `align` bytes, to at least `len` elements where that is promised.
    pub fn ptr_to(&self, name: &str, elem: Elem, align: u32, len: Option<u64>) -> Ptr {
        Ptr::new(make([], |b, []| Ok(b.ptr_param(name, elem, align, len))))
    }

    /// A scalar parameter.
    pub fn scalar(&self, name: &str, elem: Elem) -> Tile {
        make([], |b, []| Ok(b.scalar_param(name, elem)))
    }
}

/// Sets the number of warps of an instance on a GPU; see [`Program::warps`].
pub fn num_warps(warps: u32) {
    with(|state| state.builder.set_warps(warps));
}

/// Sets how many iterations of a loop a GPU has under way together; see [`Program::stages`].
pub fn num_stages(stages: u32) {
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

/// The result of operations, of which the first that does not fit is kept as the program's error. Outside of a program
/// nothing is recorded.
#[track_caller]
pub(crate) fn make<const N: usize>(
    args: [Tile; N],
    make: impl FnOnce(&mut Builder, [Value; N]) -> Result<Value>,
) -> Tile {
    make_masked(args, None, |b, args, _| make(b, args))
}

/// [`make`] of operations that may have a mask.
#[track_caller]
pub(crate) fn make_masked<const N: usize>(
    args: [Tile; N],
    mask: Option<Tile>,
    make: impl FnOnce(&mut Builder, [Value; N], Option<Value>) -> Result<Value>,
) -> Tile {
    let place = Location::caller();
    let made = with(|state| {
        let known = state.values(args).and_then(|args| Ok((args, mask.map(|m| state.value(m)).transpose()?)));
        let value = known.and_then(|(args, mask)| make(&mut state.builder, args, mask));
        let value = value.unwrap_or_else(|error| state.fail(place, error));
        state.tile(value)
    });
    made.unwrap_or(Tile { value: Value(0), program: 0, region: 0 })
}

impl State {
    /// The value of a tile, if it is of this program and can be used here.
    fn value(&self, tile: Tile) -> Result<Value> {
        let wrong = |message: &str| TypeError::Attribute { op: "tile", message: message.to_owned() };
        match tile {
            t if t.program != self.program => Err(wrong("a tile of another kernel")),
            t if !self.open.contains(&t.region) => Err(wrong(
                "made inside a loop or branch that is over, or outside of a combiner; a variable that was declared before \
                 a loop or branch carries values out of it",
            )),
            t => Ok(t.value),
        }
    }

    fn values<const N: usize>(&self, tiles: [Tile; N]) -> Result<[Value; N]> {
        let mut values = [Value(0); N];
        for (value, tile) in values.iter_mut().zip(tiles) {
            *value = self.value(tile)?;
        }
        Ok(values)
    }

    fn all(&self, tiles: &[Tile]) -> Result<Vec<Value>> {
        tiles.iter().map(|&tile| self.value(tile)).collect()
    }

    /// Keeps the first error; a value that stands for what could not be made.
    fn fail(&mut self, place: &'static Location<'static>, error: TypeError) -> Value {
        self.error.get_or_insert(BuildError { place, error });
        self.builder.value(Type::scalar(Elem::I32))
    }

    fn tile(&self, value: Value) -> Tile {
        Tile { value, program: self.program, region: self.open.last().copied().unwrap_or(0) }
    }
}

impl Tile {
    /// The value in the program.
    pub fn value(self) -> Value {
        self.value
    }

    /// Names the value for the text form.
    pub fn named(self, name: &str) -> Tile {
        with(|state| {
            if let Ok(value) = state.value(self) {
                state.builder.name(value, name);
            }
        });
        self
    }

    /// Another value that was made with this one.
    pub(crate) fn beside(self, value: Value) -> Tile {
        Tile { value, ..self }
    }

    /// The kind of the elements; a pointer has none.
    pub fn elem(self) -> Option<Elem> {
        with(|state| state.value(self).ok().and_then(|value| state.builder.ty(value).elem())).flatten()
    }

    /// The extents; empty for a scalar.
    pub fn shape(self) -> Vec<u32> {
        let shape = with(|state| state.value(self).ok().map(|value| state.builder.ty(value).shape.to_vec()));
        shape.flatten().unwrap_or_default()
    }

    /// Says that something is wrong at the place of the caller.
    #[track_caller]
    pub(crate) fn refuse(self, op: &'static str, message: String) -> Tile {
        make([self], |_, _| Err(TypeError::Attribute { op, message }))
    }
}
