//! Inputs and outputs as models have them: a structure of tensors, flattened into a list of them and back.

mod collections;
mod script;

use tch::Tensor;

use crate::Error;
/// Makes [`Values`] of a struct whose fields are.
///
/// ```
/// use tch::Tensor;
///
/// #[derive(tilefuse::Values)]
/// struct Batch {
///     tokens: Tensor,
///     mask: Option<Tensor>,
///     causal: bool,
/// }
/// ```
///
/// Type parameters have to be `Values` too. A struct that borrows cannot be made of results, and an enum has no fixed
/// structure: both are errors of the compiler.
pub use tilefuse_macros::Values;

/// A structure of tensors that goes into a model or comes out of it.
///
/// Tensors, options, vectors, arrays, tuples, maps, [`tch::IValue`], and structs by `#[derive(tilefuse::Values)]`. A plan
/// is for one structure: whether an option is there, how long a vector is, which keys a map has, and every number, truth
/// value and text in it are part of the signature, as shapes are. A number that differs in every call belongs in a
/// 0-dimensional tensor, else each has a plan of its own. Numbers in an output are those of the call that was captured; where
/// an audit finds others, the signature runs eager from then on.
///
/// ```
/// use tch::{Kind, Tensor};
///
/// let model = |(x, mask): &(Tensor, Option<Tensor>)| match mask {
///     Some(mask) => x.masked_fill(mask, 0.0).relu(),
///     None => x.relu(),
/// };
/// let fused = tilefuse::fuse(model);
/// let x = Tensor::from_slice(&[-1.0f32, 2.0]);
/// let y = fused.call(&(x.shallow_clone(), None))?;
/// let z = fused.call(&(x.shallow_clone(), Some(x.gt(0.0))))?;
/// assert_eq!((y.sum(Kind::Float).double_value(&[]), z.sum(Kind::Float).double_value(&[])), (2.0, 0.0));
/// # Ok::<(), tilefuse::Error>(())
/// ```
pub trait Values: 'static {
    /// Takes the structure apart, in a fixed order.
    fn flatten_into(&self, parts: &mut Flattener);

    /// Makes the structure again of parts in the order in which [`Values::flatten_into`] gave them.
    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<Self, Error>
    where
        Self: Sized;

    /// Whether it is a tensor.
    #[doc(hidden)]
    const IS_TENSOR: bool = false;

    /// Whether it is a tensor, or a vector of tensors: tensors in a row, which say by themselves how to make it again.
    #[doc(hidden)]
    const IS_TENSORS: bool = false;

    /// The tensors, where they lie in a row and there is nothing else.
    #[doc(hidden)]
    fn as_tensors(&self) -> Option<&[Tensor]> {
        None
    }

    /// The tensors, where these are.
    #[doc(hidden)]
    fn all_as_tensors(_: &[Self]) -> Option<&[Tensor]>
    where
        Self: Sized,
    {
        None
    }

    /// What these tensors are, where nothing else is needed to make it.
    #[doc(hidden)]
    fn from_tensors(_: Vec<Tensor>) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// The same of many.
    #[doc(hidden)]
    fn all_from_tensors(_: Vec<Tensor>) -> Option<Vec<Self>>
    where
        Self: Sized,
    {
        None
    }
}

/// A part of a structure: a place of a tensor, or a value that belongs to the signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Tensor,
    Count(usize),
    Bool(bool),
    Int(i128),
    /// Its bits.
    Float(u64),
    Text(Box<str>),
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Part::Tensor => f.write_str("a tensor"),
            Part::Count(count) => write!(f, "a length of {count}"),
            Part::Bool(value) => write!(f, "{value}"),
            Part::Int(value) => write!(f, "{value}"),
            Part::Float(bits) => write!(f, "{:?}", f64::from_bits(*bits)),
            Part::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// Takes a structure apart: its tensors, and what else it is made of.
#[derive(Debug, Default)]
pub struct Flattener {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) parts: Vec<Part>,
    /// Why a plan cannot stand for it.
    pub(crate) refusal: Option<String>,
}

impl Flattener {
    /// The parts of a structure.
    pub(crate) fn of<T: Values + ?Sized>(values: &T) -> Flattener {
        let mut parts = Flattener::default();
        values.flatten_into(&mut parts);
        parts
    }

    /// Adds a tensor.
    pub fn tensor(&mut self, tensor: &Tensor) {
        self.tensors.push(tensor.shallow_clone());
        self.parts.push(Part::Tensor);
    }

    /// Adds a length, or the number of the alternative that follows.
    pub fn count(&mut self, count: usize) {
        self.parts.push(Part::Count(count));
    }

    /// Adds a truth value.
    pub fn bool(&mut self, value: bool) {
        self.parts.push(Part::Bool(value));
    }

    /// Adds a whole number.
    pub fn int(&mut self, value: i128) {
        self.parts.push(Part::Int(value));
    }

    /// Adds a number; two are the same where their bits are.
    pub fn float(&mut self, value: f64) {
        self.parts.push(Part::Float(value.to_bits()));
    }

    /// Adds a text.
    pub fn text(&mut self, text: &str) {
        self.parts.push(Part::Text(text.into()));
    }

    /// Says that there is a part that cannot be flattened: calls with it run the model itself, for this reason.
    pub fn refuse(&mut self, reason: impl Into<String>) {
        self.refusal.get_or_insert(reason.into());
    }
}

/// Gives the parts of a structure in order, to make it again.
#[derive(Debug)]
pub struct Unflattener<'a> {
    parts: std::slice::Iter<'a, Part>,
    tensors: std::vec::IntoIter<Tensor>,
}

impl<'a> Unflattener<'a> {
    pub(crate) fn new(parts: &'a [Part], tensors: Vec<Tensor>) -> Unflattener<'a> {
        Unflattener { parts: parts.iter(), tensors: tensors.into_iter() }
    }

    fn next<T>(&mut self, what: &str, read: impl Fn(&Part) -> Option<T>) -> Result<T, Error> {
        self.parts.next().and_then(read).ok_or_else(|| mismatch(what))
    }

    /// The next part, a tensor.
    pub fn tensor(&mut self) -> Result<Tensor, Error> {
        self.next("a tensor", |part| matches!(part, Part::Tensor).then_some(()))?;
        self.tensors.next().ok_or_else(|| mismatch("a tensor"))
    }

    /// The next part, a length or the number of an alternative.
    pub fn count(&mut self) -> Result<usize, Error> {
        self.next("a length", |part| if let Part::Count(count) = part { Some(*count) } else { None })
    }

    /// The next part, a truth value.
    pub fn bool(&mut self) -> Result<bool, Error> {
        self.next("a truth value", |part| if let Part::Bool(value) = part { Some(*value) } else { None })
    }

    /// The next part, a whole number.
    pub fn int(&mut self) -> Result<i128, Error> {
        self.next("a whole number", |part| if let Part::Int(value) = part { Some(*value) } else { None })
    }

    /// The next part, a number.
    pub fn float(&mut self) -> Result<f64, Error> {
        let bits = |part: &Part| if let Part::Float(bits) = part { Some(*bits) } else { None };
        self.next("a number", bits).map(f64::from_bits)
    }

    /// The next part, a text.
    pub fn text(&mut self) -> Result<String, Error> {
        self.next("a text", |part| if let Part::Text(text) = part { Some(text.to_string()) } else { None })
    }

    /// Whether every part was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.len() == 0 && self.tensors.len() == 0
    }
}

/// A `flatten_into` and a `unflatten_from` that do not belong together.
pub(crate) fn mismatch(what: &str) -> Error {
    Error::Values(format!("`unflatten_from` takes {what} where `flatten_into` gave something else"))
}

impl Values for Tensor {
    fn flatten_into(&self, parts: &mut Flattener) {
        parts.tensor(self);
    }

    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<Tensor, Error> {
        parts.tensor()
    }

    const IS_TENSOR: bool = true;
    const IS_TENSORS: bool = true;

    fn as_tensors(&self) -> Option<&[Tensor]> {
        Some(std::slice::from_ref(self))
    }

    fn all_as_tensors(all: &[Tensor]) -> Option<&[Tensor]> {
        Some(all)
    }

    fn from_tensors(mut tensors: Vec<Tensor>) -> Option<Tensor> {
        tensors.pop().filter(|_| tensors.is_empty())
    }

    fn all_from_tensors(tensors: Vec<Tensor>) -> Option<Vec<Tensor>> {
        Some(tensors)
    }
}

impl Values for bool {
    fn flatten_into(&self, parts: &mut Flattener) {
        parts.bool(*self);
    }

    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<bool, Error> {
        parts.bool()
    }
}

impl Values for String {
    fn flatten_into(&self, parts: &mut Flattener) {
        parts.text(self);
    }

    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<String, Error> {
        parts.text()
    }
}

macro_rules! whole_numbers {
    ($($number:ty)*) => {$(
        impl Values for $number {
            fn flatten_into(&self, parts: &mut Flattener) {
                parts.int(*self as i128);
            }

            fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<$number, Error> {
                parts.int()?.try_into().map_err(|_| mismatch(stringify!($number)))
            }
        }
    )*};
}

whole_numbers! { i8 i16 i32 i64 isize u8 u16 u32 u64 usize }

impl Values for f64 {
    fn flatten_into(&self, parts: &mut Flattener) {
        parts.float(*self);
    }

    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<f64, Error> {
        parts.float()
    }
}

impl Values for f32 {
    fn flatten_into(&self, parts: &mut Flattener) {
        parts.int(i128::from(self.to_bits()));
    }

    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<f32, Error> {
        u32::unflatten_from(parts).map(f32::from_bits)
    }
}
