//! The interpreter: slow, obvious, and the oracle for every target.
//!
//! Instances run one after the other, `x` fastest. Checked: addresses, reads of elements that nothing has written,
//! races, assertions and assumptions. A race is an element that one instance writes and another reads, or an element
//! that two writes, of two instances or of one store, give different bits, unless atomic operations with acquire and
//! release order put one before the other; [`Options::races`] turns that check off. Atomic operations on one element
//! are no race among themselves.

mod exec;
mod memory;
mod ops;

use std::ops::Range;

use thiserror::Error;

use crate::data::Data;
use crate::program::{Program, Value};
use crate::types::{Elem, Kind, Literal};
use crate::verify::{VerifyError, verify};

use memory::Memory;

/// An argument of a program.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// For a scalar parameter.
    Scalar(Literal),
    /// For a pointer parameter, which points to its first element. No two arguments overlap.
    Buffer(Buffer),
}

/// Memory that a pointer argument points to.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// The element kind.
    pub elem: Elem,
    /// The elements, little-endian, without padding.
    pub bytes: Vec<u8>,
    /// For each element whether it has a value; reading one that has none is an error. `None` where all have one.
    pub written: Option<Vec<bool>>,
}

impl Buffer {
    /// A buffer that holds these elements.
    pub fn new(data: impl Into<Data>) -> Buffer {
        let data = data.into();
        Buffer { elem: data.elem(), bytes: data.to_bytes(), written: None }
    }

    /// A buffer of zeros.
    pub fn zeros(elem: Elem, len: usize) -> Buffer {
        Buffer { elem, bytes: vec![0; len * elem.bytes() as usize], written: None }
    }

    /// A buffer of elements that have no value yet. The bytes are 0xAA.
    pub fn uninit(elem: Elem, len: usize) -> Buffer {
        let bytes = vec![0xAA; len * elem.bytes() as usize];
        Buffer { elem, bytes, written: Some(vec![false; len]) }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.elem.bytes() as usize
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements.
    pub fn data(&self) -> Data {
        Data::from_bytes(self.elem, &self.bytes)
    }
}

impl Arg {
    /// A buffer that holds these elements.
    pub fn buffer(data: impl Into<Data>) -> Arg {
        Arg::Buffer(Buffer::new(data))
    }

    /// A scalar integer or boolean.
    pub fn int(elem: Elem, value: i64) -> Arg {
        Arg::Scalar(Literal::int(elem, value))
    }

    /// A scalar float.
    pub fn float(elem: Elem, value: f64) -> Arg {
        Arg::Scalar(Literal::float(elem, value))
    }

    /// The elements of a buffer argument.
    pub fn data(&self) -> Option<Data> {
        match self {
            Arg::Buffer(buffer) => Some(buffer.data()),
            Arg::Scalar(_) => None,
        }
    }
}

/// What the interpreter checks, and where it prints to.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether to look for races. Takes 16 bytes an element of every buffer, and where atomic operations order instances,
    /// 4 more for each of several that read it.
    pub races: bool,
    /// How much work is allowed: the number of elements of all results, and one more for each operation.
    pub fuel: Option<u64>,
    /// Called with each line that an [`OpKind::Print`](crate::OpKind::Print) makes.
    pub print: fn(&str),
}

impl Default for Options {
    fn default() -> Options {
        Options { races: true, fuel: None, print: |line| println!("{line}") }
    }
}

/// Why a program did not run to its end.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum InterpError {
    /// The program is not valid.
    #[error("{0}")]
    Invalid(#[from] VerifyError),
    /// The arguments do not fit the parameters, or the grid is too large.
    #[error("{0}")]
    Args(String),
    /// An operation failed.
    #[error("{fault}, in instance {instance:?} at `{op}`")]
    Fault {
        /// The operation, as text.
        op: String,
        /// The instance.
        instance: [u32; 3],
        /// What is wrong.
        fault: Fault,
    },
}

/// What went wrong in one operation.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Fault {
    /// An element that is not masked off lies outside of its buffer.
    #[error(
        "offset {offset} (element {element} of the tile) is out of range for %{pointer} of {len} elements"
    )]
    OutOfBounds {
        /// The pointer.
        pointer: String,
        /// The offset.
        offset: i64,
        /// Position in the tile, row-major.
        element: usize,
        /// Elements that may be addressed.
        len: usize,
    },
    /// An element that nothing has written is read.
    #[error("%{pointer}[{offset}] (element {element} of the tile) is read before it is written")]
    Uninitialized {
        /// The pointer.
        pointer: String,
        /// The offset.
        offset: i64,
        /// Position in the tile, row-major.
        element: usize,
    },
    /// The result depends on the order of instances or of the elements of one store.
    #[error("race on %{pointer}[{offset}] (element {element} of the tile): {conflict}")]
    Race {
        /// The pointer.
        pointer: String,
        /// The offset.
        offset: i64,
        /// Position in the tile, row-major.
        element: usize,
        /// What collides.
        conflict: Conflict,
    },
    /// The step of a loop is not positive.
    #[error("the step {0} is not positive")]
    Step(i32),
    /// An [`OpKind::Assert`](crate::OpKind::Assert) does not hold.
    #[error("assertion failed (element {element} of the tile): {message}")]
    Assertion {
        /// Position in the tile, row-major.
        element: usize,
        /// Its message.
        message: String,
    },
    /// An [`OpKind::Assume`](crate::OpKind::Assume) does not hold.
    #[error("what is assumed does not hold for {value} (element {element} of the tile)")]
    Assumption {
        /// Position in the tile, row-major.
        element: usize,
        /// Its value.
        value: i128,
    },
    /// [`Options::fuel`] is used up.
    #[error("out of fuel")]
    Fuel,
    /// The operation has operands that the verifier would have refused.
    #[error("malformed operation")]
    Malformed,
}

/// The two sides of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Conflict {
    /// Another instance writes what this one reads.
    #[error("another instance writes what this one reads")]
    ReadOfWritten,
    /// Another instance reads what this one writes.
    #[error("another instance reads what this one writes")]
    WriteOfRead,
    /// Another instance wrote other bits.
    #[error("another instance writes other bits")]
    WriteOfWritten,
    /// The same store writes other bits.
    #[error("the same store writes other bits")]
    SameStore,
}

/// Runs every instance of a grid, checking everything.
pub fn run(program: &Program, args: &mut [Arg], grid: [u32; 3]) -> Result<(), InterpError> {
    run_with(program, args, grid, &Options::default())
}

/// Runs every instance of a grid. After an error, the buffers hold what was written until then.
pub fn run_with(
    program: &Program,
    args: &mut [Arg],
    grid: [u32; 3],
    options: &Options,
) -> Result<(), InterpError> {
    start(program, args, (grid, grid.map(|extent| 0..extent)), options, None)
}

/// Runs the instances of a grid whose numbers along each axis are in `part`.
pub fn run_part(
    program: &Program,
    args: &mut [Arg],
    grid: [u32; 3],
    part: [Range<u32>; 3],
    options: &Options,
) -> Result<(), InterpError> {
    start(program, args, (grid, part), options, None)
}

/// Called with a value and its elements.
pub type Observer<'a> = &'a mut dyn FnMut(Value, &Data);

/// Runs every instance of a grid and shows each number whenever it is computed: scalar parameters once, then, for
/// each instance in turn, results, and before each iteration the arguments of a loop.
pub fn run_observed<'a>(
    program: &'a Program,
    args: &'a mut [Arg],
    grid: [u32; 3],
    options: &Options,
    observe: Observer<'a>,
) -> Result<(), InterpError> {
    start(program, args, (grid, grid.map(|extent| 0..extent)), options, Some(observe))
}

fn start<'a>(
    program: &'a Program,
    args: &'a mut [Arg],
    (grid, part): ([u32; 3], [Range<u32>; 3]),
    options: &Options,
    observe: Option<Observer<'a>>,
) -> Result<(), InterpError> {
    verify(program)?;
    check_args(program, args)?;
    let instances: u128 = grid.iter().map(|&g| u128::from(g)).product();
    if instances >= u128::from(u32::MAX) {
        return Err(InterpError::Args(format!("a grid of {grid:?} has too many instances to interpret")));
    }
    let memory = Memory::new(program, args, options.races);
    exec::Machine::new(program, memory, options, observe).run(grid, part)
}

fn check_args(program: &Program, args: &[Arg]) -> Result<(), InterpError> {
    if args.len() != program.params.len() {
        let (expected, found) = (program.params.len(), args.len());
        return Err(InterpError::Args(format!("{expected} arguments expected, {found} given")));
    }
    for (index, (param, arg)) in program.params.iter().zip(args).enumerate() {
        let ty = program.ty(param.value);
        let fits = match (ty.kind, arg) {
            (Kind::Elem(elem), Arg::Scalar(literal)) => literal.elem == elem,
            (Kind::Ptr(elem), Arg::Buffer(buffer)) => {
                let written = buffer.written.as_ref().is_none_or(|w| w.len() == buffer.len());
                buffer.elem == elem && buffer.len() as u64 >= param.len.unwrap_or(0) && written
            }
            _ => false,
        };
        if !fits {
            let len = param.len.map_or(String::new(), |n| format!(" to {n} elements"));
            return Err(InterpError::Args(format!("argument {index} does not fit a parameter {ty}{len}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
