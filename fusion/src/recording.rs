//! The captured level: calls in the order in which a model made them, as plain data.
//!
//! Calls may write their arguments and alias them; functionalisation turns a recording into a functional
//! [`crate::Graph`].

use indexmap::IndexMap;
use tilefuse_block::Literal;

use crate::block_kernel::MaybeKernel;
use crate::types::{DType, Device, TensorType};

/// A tensor of a recording, by identity: an index into [`Recording::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

/// Where a tensor of a recording comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// The example input of this index.
    Input(u32),
    /// A live tensor of the model (parameter, buffer, or captured by the model's code): slot and name.
    Param(u32, String),
    /// A value that depends on nothing but constants and sizes: slot in the owner's pool of constants.
    Const(u32),
    /// A result of the call of this index.
    Call(u32),
}

/// What is known of a tensor of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its type when first seen.
    pub ty: TensorType,
    /// Where it comes from.
    pub source: Source,
    /// Identity of its storage: tensors that share it alias.
    pub storage: u64,
    /// Offset into the storage, in elements.
    pub storage_offset: i64,
    /// Strided, not sparse, nested, quantised, conjugated or negated: one that kernels may address.
    pub plain: bool,
}

/// An argument of a call. `T` is how tensors are named: [`TensorId`] in a recording, an operand position in a graph.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg<T> {
    /// An absent optional argument.
    None,
    /// A tensor.
    Tensor(T),
    /// A list of tensors, some absent.
    Tensors(Vec<Option<T>>),
    /// A truth value.
    Bool(bool),
    /// An integer (also memory formats, layouts).
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A string.
    Str(String),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A list of floating-point numbers.
    Floats(Vec<f64>),
    /// A list of truth values.
    Bools(Vec<bool>),
    /// An element type.
    DType(DType),
    /// A device.
    Device(Device),
    /// Something else (a generator, a complex number, ...), in words.
    Other(String),
}

impl<T: Copy> Arg<T> {
    /// The tensors in the argument, in order.
    pub fn tensors(&self) -> impl Iterator<Item = T> + '_ {
        let one = if let Arg::Tensor(t) = self { Some(*t) } else { None };
        let list: &[Option<T>] = if let Arg::Tensors(list) = self { list } else { &[] };
        one.into_iter().chain(list.iter().flatten().copied())
    }
}

/// One operator call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Operator with namespace, `aten::add`.
    pub op: String,
    /// Overload, `Tensor`; empty for the default one.
    pub overload: String,
    /// Arguments in schema order with their schema names.
    pub args: Vec<(String, Arg<TensorId>)>,
    /// Results in order; `None` for one that is no tensor (or an undefined one).
    pub results: Vec<Option<TensorId>>,
    /// Positions of arguments that the schema marks as written.
    pub writes: Vec<usize>,
    /// Whether the call draws random numbers.
    pub random: bool,
    /// The owner's handle for calling the operator again with these arguments.
    pub replay: u32,
}

/// A captured run of a model.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Recording {
    /// All tensors.
    pub tensors: Vec<TensorInfo>,
    /// The calls that do not depend on constants alone, in order.
    pub calls: Vec<Call>,
    /// The example inputs in order.
    pub inputs: Vec<TensorId>,
    /// The results of the model in order.
    pub outputs: Vec<TensorId>,
    /// Values of constants of rank 0 by slot, where they are known: kernels need not read them.
    pub literals: IndexMap<u32, Literal>,
    /// Kernels of calls whose operator has one of its author's, by [`Call::replay`]; no part of the text form.
    pub kernels: IndexMap<u32, MaybeKernel>,
}
