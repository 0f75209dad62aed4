//! Arguments of a launch, and their comparison with a program's parameters.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;
use tch::Tensor;
use tilefuse_block::{Elem, Element, Kind, Literal, Param, Program, Type};
use tilefuse_fusion::DType;

use crate::Error;
use crate::engine::Target;
use crate::torch::{DeviceId, Flags, Meta};

/// An argument of a kernel: a tensor for a pointer parameter, or a number for a scalar one.
///
/// A pointer parameter gets the address of the tensor's first element. Shape and strides are the kernel's business.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// For a pointer parameter.
    Tensor(&'a Tensor),
    /// For a scalar parameter of the literal's kind.
    Scalar(Literal),
}

impl<'a> From<&'a Tensor> for Arg<'a> {
    fn from(tensor: &'a Tensor) -> Arg<'a> {
        Arg::Tensor(tensor)
    }
}

impl From<Literal> for Arg<'_> {
    fn from(literal: Literal) -> Self {
        Arg::Scalar(literal)
    }
}

macro_rules! scalars {
    ($($t:ty)*) => {$(
        impl From<$t> for Arg<'_> {
            fn from(value: $t) -> Self {
                Arg::Scalar(value.literal())
            }
        }
    )*};
}

scalars!(bool i8 i16 i32 i64 u8 u16 u32 u64 half::f16 half::bf16 f32 f64);

/// Arguments of a launch, each a `&Tensor`, a number of the parameter's kind, a `bool` or a
/// [`Literal`](crate::block::Literal).
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => {
        [$($crate::Arg::from($arg)),*]
    };
}

/// Why a kernel was not launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The number of arguments.
    #[error("{expected} arguments are needed, {found} were given")]
    Count {
        /// Parameters.
        expected: usize,
        /// Arguments.
        found: usize,
    },
    /// A tensor for a scalar parameter, a number for a pointer, or another dtype.
    #[error("%{param} is {expected}, the argument is {found}")]
    Type {
        /// The parameter.
        param: String,
        /// Its type.
        expected: Type,
        /// What was given.
        found: String,
    },
    /// Two tensors on different devices.
    #[error("%{param} is on {found}, the tensors before it are on {expected}")]
    DeviceMix {
        /// The parameter.
        param: String,
        /// The device of the tensors before it.
        expected: String,
        /// Its device.
        found: String,
    },
    /// A device that kernels do not run on.
    #[error("there are no kernels for {device}")]
    NoTarget {
        /// The device.
        device: String,
    },
    /// A tensor that spans fewer elements than the parameter promises.
    #[error("%{param} needs {needed} elements, the tensor spans {found}")]
    TooShort {
        /// The parameter.
        param: String,
        /// Elements that it promises.
        needed: u64,
        /// Elements from the tensor's first to its last, gaps included.
        found: u64,
    },
    /// A tensor that is less aligned than the parameter promises.
    #[error("%{param} must be aligned to {needed} bytes, the tensor is aligned to {found}")]
    Misaligned {
        /// The parameter.
        param: String,
        /// Bytes that it promises.
        needed: u32,
        /// The largest power of two that divides the tensor's address.
        found: u64,
    },
    /// A tensor that requires a gradient, outside of `no_grad`: a kernel has none.
    #[error("%{param} requires a gradient, which kernels do not record; launch within tch::no_grad")]
    RequiresGrad {
        /// The parameter.
        param: String,
    },
    /// A tensor that is not plain memory: sparse, quantised, nested, on the meta device, a conjugate or negation that
    /// was not carried out, or copied on write.
    #[error("%{param} is no plain tensor: it has no memory of its own that kernels can address")]
    NotPlain {
        /// The parameter.
        param: String,
    },
    /// A tensor that is written and shares memory with another argument, other than by being the same.
    #[error("%{param} is written and overlaps %{other}")]
    Overlap {
        /// The parameter that is written.
        param: String,
        /// The other one.
        other: String,
    },
    /// An access that a mask did not exclude lay outside of a tensor. What the launch writes is not determined then, but
    /// nothing is read or written outside of the tensors. On CUDA the launch returns before the kernel runs, and a later
    /// call of libtorch or CUDA reports an illegal address instead.
    #[error("an access through %{param} is out of bounds of its tensor")]
    OutOfBounds {
        /// The parameter.
        param: String,
    },
    /// A tensor of a kind that the kernel is not written for.
    #[error("%{param} has elements of {found}, the kernel takes {}", list(.expected))]
    Kind {
        /// The parameter.
        param: String,
        /// Kinds that the kernel takes.
        expected: &'static [Elem],
        /// What was given.
        found: String,
    },
    /// A grid with a negative or too large extent.
    #[error("a grid of {grid:?} instances cannot be launched: the extents are from 0 to {most:?}")]
    Grid {
        /// The extents.
        grid: [i64; 3],
        /// The largest.
        most: [i64; 3],
    },
}

fn list(kinds: &[Elem]) -> String {
    let names: Vec<&str> = kinds.iter().map(|k| k.name()).collect();
    names.join(", ")
}

/// What a launch compares of a tensor. It is copied from place to place on the way to a launch, and is a fifth of a
/// [`Meta`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) flags: Flags,
    pub(super) dtype: i8,
    pub(super) device: DeviceId,
    /// The address of the first element.
    pub(super) data: usize,
    /// As [`Meta::extent`] has them.
    start: usize,
    bytes: usize,
}

impl Memory {
    fn of(tensor: &Tensor) -> Result<Memory, Error> {
        let meta = Meta::of(tensor)?;
        let extent = meta.extent();
        Ok(Memory {
            flags: meta.flags,
            dtype: meta.dtype,
            device: meta.device,
            data: meta.data,
            start: extent.start,
            bytes: extent.len(),
        })
    }

    /// The bytes from the first element to the last.
    pub(super) fn extent(&self) -> Range<usize> {
        self.start..self.start + self.bytes
    }
}

/// An argument and what a tensor looks like.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen<'a> {
    Tensor(&'a Tensor, Memory),
    Scalar(Literal),
}

impl<'a> Seen<'a> {
    pub(super) fn of(arg: Arg<'a>) -> Result<Seen<'a>, Error> {
        Ok(match arg {
            Arg::Tensor(tensor) => Seen::Tensor(tensor, Memory::of(tensor)?),
            Arg::Scalar(literal) => Seen::Scalar(literal),
        })
    }

    pub(super) fn arg(&self) -> Arg<'a> {
        match self {
            Seen::Tensor(tensor, _) => Arg::Tensor(tensor),
            Seen::Scalar(literal) => Arg::Scalar(*literal),
        }
    }

    fn describe(&self) -> String {
        match self {
            Seen::Tensor(_, memory) => tensor_name(memory.dtype),
            Seen::Scalar(literal) => format!("{literal} of kind {}", literal.elem),
        }
    }
}

/// Arguments that fit a program's parameters.
#[derive(Debug, Default)]
pub(super) struct Bound {
    /// For each argument 64 bits: an address, or a number in the lowest bytes.
    pub(super) words: SmallVec<[u64; 16]>,
    /// The device of the tensors.
    device: Option<DeviceId>,
    spans: SmallVec<[Span; 8]>,
}

impl Bound {
    /// The number of elements from the first to the last of the tensor that is given for a parameter.
    pub(super) fn elements(&self, param: usize) -> u64 {
        self.spans.iter().find(|s| s.param == param).map_or(0, |s| s.elements)
    }
}

/// The memory of a tensor.
#[derive(Debug)]
struct Span {
    param: usize,
    bytes: Range<usize>,
    elements: u64,
}

impl Bound {
    /// What the kernel has to be compiled for.
    pub(super) fn target(&self) -> Result<Target, LaunchError> {
        match self.device {
            None => Ok(Target::Host),
            Some(device) if device.is_cpu() => Ok(Target::Host),
            Some(device) if device.is_cuda() => Ok(Target::Cuda(device.index.max(0) as u32)),
            Some(device) => Err(LaunchError::NoTarget { device: device_name(device) }),
        }
    }

    /// The first overlap of a written tensor with another argument; the same memory counts where `same` is set.
    pub(super) fn overlap(&self, program: &Program, written: &[bool], same: bool) -> Option<LaunchError> {
        let meets = |a: &Span, b: &Span| {
            let touch = a.bytes.start.max(b.bytes.start) < a.bytes.end.min(b.bytes.end);
            a.param != b.param && touch && (same || a.bytes != b.bytes)
        };
        let name = |span: &Span| name(program, span.param);
        let written = self.spans.iter().filter(|s| written.get(s.param) == Some(&true));
        written
            .flat_map(|a| self.spans.iter().map(move |b| (a, b)))
            .find(|(a, b)| meets(a, b))
            .map(|(a, b)| LaunchError::Overlap { param: name(a), other: name(b) })
    }
}

/// Compares arguments with parameters.
pub(super) fn bind(
    program: &Program,
    written: &[bool],
    args: &[Seen<'_>],
    grad: bool,
) -> Result<Bound, LaunchError> {
    let (expected, found) = (program.params.len(), args.len());
    if expected != found {
        return Err(LaunchError::Count { expected, found });
    }
    let mut bound = Bound::default();
    for (index, (param, arg)) in program.params.iter().zip(args).enumerate() {
        match (program.ty(param.value).kind, arg) {
            (Kind::Elem(elem), Seen::Scalar(literal)) if literal.elem == elem => {
                bound.words.push(word(*literal))
            }
            (Kind::Ptr(elem), Seen::Tensor(_, memory)) => {
                tensor_arg(&mut bound, program, index, (param, elem), memory, grad)?;
            }
            (_, arg) => return Err(wrong_type(program, index, arg.describe())),
        }
    }
    match bound.overlap(program, written, false) {
        Some(problem) => Err(problem),
        None => Ok(bound),
    }
}

fn tensor_arg(
    bound: &mut Bound,
    program: &Program,
    index: usize,
    (param, elem): (&Param, Elem),
    memory: &Memory,
    grad: bool,
) -> Result<(), LaunchError> {
    let name = || name(program, index);
    if !memory.flags.is_plain() {
        return Err(LaunchError::NotPlain { param: name() });
    }
    if DType::from_scalar_type(memory.dtype) != DType::Elem(elem) {
        return Err(wrong_type(program, index, tensor_name(memory.dtype)));
    }
    let device = *bound.device.get_or_insert(memory.device);
    if device != memory.device {
        let (expected, found) = (device_name(device), device_name(memory.device));
        return Err(LaunchError::DeviceMix { param: name(), expected, found });
    }
    if grad && memory.flags.contains(Flags::REQUIRES_GRAD) {
        return Err(LaunchError::RequiresGrad { param: name() });
    }
    let bytes = memory.extent();
    let found = (bytes.len() / elem.bytes() as usize) as u64;
    if let Some(needed) = param.len.filter(|&needed| needed > found) {
        return Err(LaunchError::TooShort { param: name(), needed, found });
    }
    if !memory.data.is_multiple_of(param.align as usize) {
        let found = 1 << memory.data.trailing_zeros();
        return Err(LaunchError::Misaligned { param: name(), needed: param.align, found });
    }
    bound.words.push(memory.data as u64);
    bound.spans.push(Span { param: index, bytes, elements: found });
    Ok(())
}

/// A number in the lowest bytes of a word.
fn word(literal: Literal) -> u64 {
    match literal.elem {
        Elem::F16 => half::f16::from_literal(literal).to_bits64(),
        Elem::Bf16 => half::bf16::from_literal(literal).to_bits64(),
        Elem::F32 => f32::from_literal(literal).to_bits64(),
        _ => literal.bits,
    }
}

fn wrong_type(program: &Program, index: usize, found: String) -> LaunchError {
    let ty = program.params.get(index).map(|p| program.ty(p.value).clone());
    let expected = ty.unwrap_or_else(|| Type::scalar(Elem::Bool));
    LaunchError::Type { param: name(program, index), expected, found }
}

/// The name of a parameter, or its position where it has none.
pub(crate) fn name(program: &Program, index: usize) -> String {
    let value = program.params.get(index).and_then(|p| program.values.get(p.value.index()));
    value.and_then(|v| v.name.clone()).unwrap_or_else(|| index.to_string())
}

/// A tensor of a `c10::ScalarType`.
pub(super) fn tensor_name(dtype: i8) -> String {
    match DType::from_scalar_type(dtype) {
        DType::Elem(elem) => format!("a tensor of {elem}"),
        DType::Other(number) => format!("a tensor of libtorch's dtype {number}"),
    }
}

fn device_name(device: DeviceId) -> String {
    match device {
        d if d.is_cpu() => String::from("cpu"),
        d if d.is_cuda() => format!("cuda:{}", d.index),
        d => format!("a device of libtorch's type {}", d.kind),
    }
}

impl fmt::Display for Arg<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Seen::of(*self) {
            Ok(seen) => f.write_str(&seen.describe()),
            Err(_) => f.write_str("a tensor"),
        }
    }
}
