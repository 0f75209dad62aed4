//! Kernels of `#[tilefuse::kernel]`: built, compiled and kept for each form of arguments that they are launched with.
//!
//! A form is the kinds of generic tensors, which tensors are there, which are aligned to 16 bytes, which integers are 1
//! or divisible by 4, 8 or 16, which may be sizes of tensors, and the constants. A kernel may rely on what its form says.

use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError, RwLock};

use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;
use tch::Tensor;
use tilefuse_block::tiles::{BuildError, Int, Ptr, Scope, Tile, assume_between, multiple_of, scalar};
use tilefuse_block::{Elem, Element, Program};
use tilefuse_fusion::DType;

use super::arg::{Seen, tensor_name};
use super::tune::Candidate;
use super::{Arg, Grid, Kernel, LaunchError};
use crate::Error;

/// What tells kernels apart that are made of one function.
pub type Key = SmallVec<[u64; 16]>;

/// A Rust value that a kernel is specialised for. Two values with the same key make the same kernel.
pub trait Constant: Copy {
    /// Adds what tells values of the type apart.
    fn key(&self, key: &mut Key);
}

macro_rules! constants {
    ($($t:ty: $value:ident => $bits:expr;)*) => {$(
        impl Constant for $t {
            fn key(&self, key: &mut Key) {
                let $value = *self;
                key.push($bits);
            }
        }
    )*};
}

constants! {
    bool: b => b.into();
    u8: n => n.into();
    u16: n => n.into();
    u32: n => n.into();
    u64: n => n;
    usize: n => n as u64;
    i8: n => n as u64;
    i16: n => n as u64;
    i32: n => n as u64;
    i64: n => n as u64;
    f32: x => x.to_bits().into();
    f64: x => x.to_bits();
    Elem: e => e as u64;
}

macro_rules! functions {
    ($($arg:ident)*) => {
        impl<R, $($arg),*> Constant for fn($($arg),*) -> R {
            fn key(&self, key: &mut Key) {
                key.push(*self as usize as u64);
            }
        }
    };
}

functions!(A);
functions!(A B);
functions!(A B C);

impl<C: Constant, const N: usize> Constant for [C; N] {
    fn key(&self, key: &mut Key) {
        self.iter().for_each(|c| c.key(key));
    }
}

impl<C: Constant> Constant for Option<C> {
    fn key(&self, key: &mut Key) {
        key.push(self.is_some().into());
        if let Some(value) = self {
            value.key(key);
        }
    }
}

/// Extents of a grid.
pub fn extent(n: impl TryInto<i64>) -> i64 {
    n.try_into().unwrap_or(i64::MAX)
}

/// What is given for a parameter; nothing for an optional tensor.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a>(Option<Arg<'a>>);

impl<'a, A: Into<Arg<'a>>> From<A> for Given<'a> {
    fn from(arg: A) -> Self {
        Given(Some(arg.into()))
    }
}

impl<'a> From<Option<&'a Tensor>> for Given<'a> {
    fn from(tensor: Option<&'a Tensor>) -> Self {
        Given(tensor.map(Arg::Tensor))
    }
}

/// What a kernel may rely on about an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// No tensor.
    Absent,
    /// A tensor, and whether it is aligned to [`ALIGN`] bytes.
    Tensor { aligned: bool },
    /// A number that is no integer.
    Any,
    /// An integer: a power of two that divides it, at most [`ALIGN`], and whether it may be a [`SIZE`].
    Integer { divisor: u8, size: bool },
    /// The integer 1.
    One,
}

/// Bytes of a vector access, and the divisor of integers that lets accesses be vectors.
const ALIGN: usize = 16;

/// Sizes and strides that the GPU's copies of boxes of tensors take.
const SIZE: RangeInclusive<i64> = 1..=i32::MAX as i64;

impl Form {
    fn of(seen: Option<&Seen<'_>>) -> Form {
        match seen {
            None => Form::Absent,
            Some(Seen::Tensor(_, memory)) => Form::Tensor { aligned: memory.data.is_multiple_of(ALIGN) },
            Some(Seen::Scalar(literal)) => match literal.as_i64() {
                Some(_) if literal.elem == Elem::Bool => Form::Any,
                Some(1) => Form::One,
                Some(n) => {
                    let zeros = n.trailing_zeros().min(ALIGN.trailing_zeros());
                    // Pairs are no vectors.
                    let divisor = if zeros > 1 { 1 << zeros } else { 1 };
                    Form::Integer { divisor, size: literal.elem == Elem::I64 && SIZE.contains(&n) }
                }
                None => Form::Any,
            },
        }
    }
}

/// What a kernel may rely on about its arguments.
#[derive(Clone, Debug, Default)]
pub struct Forms {
    forms: SmallVec<[Form; 8]>,
    kinds: SmallVec<[Elem; 2]>,
}

impl Forms {
    /// The kind that a type parameter stands for.
    pub fn kind(&self, index: usize) -> Option<Elem> {
        self.kinds.get(index).copied()
    }

    fn form(&self, index: usize) -> Form {
        self.forms.get(index).copied().unwrap_or(Form::Any)
    }
}

/// Declares the parameters of a program in a form.
#[derive(Clone, Copy)]
pub struct Declare<'a> {
    scope: &'a Scope,
    forms: &'a Forms,
}

impl<'a> Declare<'a> {
    /// Declares into a program.
    pub fn new(scope: &'a Scope, forms: &'a Forms) -> Declare<'a> {
        Declare { scope, forms }
    }

    /// The tensor of the argument at this position.
    pub fn ptr<T: Element>(self, index: usize, name: &str) -> Ptr<T> {
        let own = T::ELEM.bytes();
        let align = match self.forms.form(index) {
            Form::Tensor { aligned: true } => own.max(ALIGN as u32),
            _ => own,
        };
        self.scope.ptr_to(name, align, None)
    }

    /// The tensor of the argument at this position, if there is one.
    pub fn optional<T: Element>(self, index: usize, name: &str) -> Option<Ptr<T>> {
        (self.forms.form(index) != Form::Absent).then(|| self.ptr(index, name))
    }

    /// The number of the argument at this position.
    pub fn scalar<T: Element>(self, index: usize, name: &str) -> Tile<T> {
        let value = self.scope.scalar::<T>(name);
        match self.forms.form(index) {
            Form::One => scalar::<i64>(1).cast(),
            Form::Integer { divisor, size } => match T::ELEM {
                Elem::I32 => known(value.cast::<i32>(), divisor, size).cast(),
                Elem::I64 => known(value.cast::<i64>(), divisor, size).cast(),
                _ => value,
            },
            _ => value,
        }
    }
}

/// An integer with what is known of it.
fn known<T: Int>(value: Tile<T>, divisor: u8, size: bool) -> Tile<T> {
    let value = if divisor > 1 { multiple_of(value, i64::from(divisor)) } else { value };
    if size { assume_between(value, *SIZE.start(), *SIZE.end()) } else { value }
}

type Made = FxHashMap<Key, Arc<Kernel>>;

/// A kernel before it is specialised.
#[derive(Debug)]
pub struct Template {
    name: &'static str,
    params: &'static [&'static str],
    /// For each type parameter the position of a tensor that tells it, and the kinds that it may be.
    generics: &'static [(usize, &'static [Elem])],
    made: RwLock<Made>,
}

impl Template {
    /// A kernel of this name and parameters.
    pub const fn new(
        name: &'static str,
        params: &'static [&'static str],
        generics: &'static [(usize, &'static [Elem])],
    ) -> Template {
        let made = FxHashMap::with_hasher(FxBuildHasher);
        Template { name, params, generics, made: RwLock::new(made) }
    }

    fn refuse(&self, problem: LaunchError) -> Error {
        Error::Launch { kernel: self.name.to_owned(), problem: Box::new(problem) }
    }

    fn forms(&self, args: &[Option<Seen<'_>>]) -> Result<Forms, Error> {
        let forms = args.iter().map(|arg| Form::of(arg.as_ref())).collect();
        let kind = |&(position, expected): &(usize, &'static [Elem])| {
            let Some(Some(Seen::Tensor(_, memory))) = args.get(position) else {
                return Err(Error::Internal(String::from("a kind that no tensor tells")));
            };
            match DType::from_scalar_type(memory.dtype) {
                DType::Elem(elem) if expected.contains(&elem) => Ok(elem),
                _ => {
                    let param = self.params.get(position).copied().unwrap_or_default().to_owned();
                    Err(self.refuse(LaunchError::Kind { param, expected, found: tensor_name(memory.dtype) }))
                }
            }
        };
        Ok(Forms { forms, kinds: self.generics.iter().map(kind).collect::<Result<_, Error>>()? })
    }
}

type Build<'a> = &'a dyn Fn(&Forms) -> Result<Program, BuildError>;

/// A launch of a kernel before it is specialised.
pub struct Call<'c, 'a> {
    template: &'static Template,
    args: &'c [Given<'a>],
    constants: Key,
    build: Build<'c>,
}

impl<'c, 'a> Call<'c, 'a> {
    /// A call with arguments, constants, and what builds the program for them.
    pub fn new(
        template: &'static Template,
        args: &'c [Given<'a>],
        constants: Key,
        build: Build<'c>,
    ) -> Call<'c, 'a> {
        Call { template, args, constants, build }
    }

    /// The launch of the kernel for these arguments, to be measured.
    pub fn candidate(&self, grid: Grid) -> Result<Candidate<'a>, Error> {
        let (kernel, args) = self.resolve()?;
        let args: Vec<Arg<'a>> = args.iter().map(Seen::arg).collect();
        Ok(Candidate::new(kernel, grid, &args))
    }

    /// [`Kernel::launch`] of the kernel for these arguments.
    pub fn launch(&self, grid: Grid) -> Result<(), Error> {
        let (kernel, args) = self.resolve()?;
        kernel.launch_seen(grid, &args)
    }

    /// [`Kernel::launch_unchecked`] of the kernel for these arguments.
    ///
    /// # Safety
    /// As for [`Kernel::launch_unchecked`].
    pub unsafe fn launch_unchecked(&self, grid: Grid) -> Result<(), Error> {
        let (kernel, args) = self.resolve()?;
        // SAFETY: passed on to the caller.
        unsafe { kernel.launch_seen_unchecked(grid, &args) }
    }

    /// [`Kernel::interpret`] of the kernel for these arguments.
    pub fn interpret(&self, grid: Grid) -> Result<(), Error> {
        let (kernel, args) = self.resolve()?;
        kernel.interpret_seen(grid, &args)
    }

    /// The kernel for these arguments.
    pub fn specialize(&self) -> Result<Arc<Kernel>, Error> {
        Ok(self.resolve()?.0)
    }

    fn resolve(&self) -> Result<(Arc<Kernel>, SmallVec<[Seen<'a>; 8]>), Error> {
        let seen: SmallVec<[Option<Seen<'a>>; 8]> =
            self.args.iter().map(|arg| arg.0.map(Seen::of).transpose()).collect::<Result<_, Error>>()?;
        let forms = self.template.forms(&seen)?;
        let kernel = self.kernel(&forms)?;
        Ok((kernel, seen.into_iter().flatten().collect()))
    }

    fn kernel(&self, forms: &Forms) -> Result<Arc<Kernel>, Error> {
        let form = |f: &Form| match f {
            Form::Absent => 0,
            Form::Tensor { aligned } => 1 + u64::from(*aligned),
            Form::Any => 3,
            Form::One => 4,
            Form::Integer { divisor, size } => u64::from(*divisor) << 9 | u64::from(*size) << 8,
        };
        let key: Key = (forms.forms.iter().map(form))
            .chain(forms.kinds.iter().map(|&k| k as u64))
            .chain(self.constants.iter().copied())
            .collect();
        let made = &self.template.made;
        if let Some(kernel) = made.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Arc::clone(kernel));
        }
        let kernel = Arc::new(Kernel::from_program((self.build)(forms)?)?);
        let mut made = made.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(made.entry(key).or_insert(kernel)))
    }
}
