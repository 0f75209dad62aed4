//! What a capture saw, as data.

use tch::Tensor;

use super::ffi::{self, make_tensor, raw};
use super::source_lines::CallSite;
use super::{Call, Flags, Meta, view_of};
use crate::Error;

/// A tensor of a trace, by identity: an index into [`Trace::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

/// A storage of a trace: an index into [`Trace::storages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StorageId(pub u32);

/// A stored call of a trace: an index into [`Trace::calls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u32);

/// An argument or a result of an operator. `T` is how a tensor is named.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg<T = TensorId> {
    /// An absent optional argument, or an undefined tensor.
    None,
    /// A tensor.
    Tensor(T),
    /// A list of tensors, some absent.
    Tensors(Vec<Option<T>>),
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A complex number.
    Complex(f64, f64),
    /// A string.
    Str(String),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A list of floating-point numbers.
    Floats(Vec<f64>),
    /// A list of truth values.
    Bools(Vec<bool>),
    /// An element type, as `c10::ScalarType`.
    DType(i8),
    /// A layout, as `c10::Layout`.
    Layout(i8),
    /// A memory format, as `c10::MemoryFormat`.
    MemoryFormat(i8),
    /// A device: `c10::DeviceType` (0 is the CPU, 1 is CUDA) and index, −1 for the current one.
    Device {
        /// The kind of device.
        kind: i8,
        /// Which of them.
        index: i8,
    },
    /// A random number generator.
    Generator,
    /// Something else, by libtorch's name for its type.
    Other(String),
}

/// A result of an operator.
pub type OutArg = Arg;

impl<T: Copy> Arg<T> {
    /// The tensors in this argument, in order.
    pub fn tensors(&self) -> impl Iterator<Item = T> + '_ {
        let one = if let Arg::Tensor(t) = self { Some(*t) } else { None };
        let list: &[Option<T>] = if let Arg::Tensors(list) = self { list } else { &[] };
        one.into_iter().chain(list.iter().flatten().copied())
    }

    /// The same argument with its tensors named otherwise.
    pub fn map<U>(&self, mut f: impl FnMut(T) -> U) -> Arg<U> {
        match self {
            Arg::Tensor(t) => Arg::Tensor(f(*t)),
            Arg::Tensors(list) => Arg::Tensors(list.iter().map(|t| t.map(&mut f)).collect()),
            Arg::None => Arg::None,
            Arg::Bool(b) => Arg::Bool(*b),
            Arg::Int(i) => Arg::Int(*i),
            Arg::Float(x) => Arg::Float(*x),
            Arg::Complex(re, im) => Arg::Complex(*re, *im),
            Arg::Str(s) => Arg::Str(s.clone()),
            Arg::Ints(list) => Arg::Ints(list.clone()),
            Arg::Floats(list) => Arg::Floats(list.clone()),
            Arg::Bools(list) => Arg::Bools(list.clone()),
            Arg::DType(d) => Arg::DType(*d),
            Arg::Layout(l) => Arg::Layout(*l),
            Arg::MemoryFormat(m) => Arg::MemoryFormat(*m),
            Arg::Device { kind, index } => Arg::Device { kind: *kind, index: *index },
            Arg::Generator => Arg::Generator,
            Arg::Other(s) => Arg::Other(s.clone()),
        }
    }
}

/// An operator as libtorch's dispatcher declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// Name with namespace, `aten::add`.
    pub op: String,
    /// Overload, `Tensor`; empty for the default one.
    pub overload: String,
    /// Arguments in order.
    pub args: Vec<SchemaArg>,
    /// Of each result: the argument that it may alias.
    pub alias_of: Vec<Option<usize>>,
    /// Takes a generator, or is tagged as drawing random numbers.
    pub seeded: bool,
    /// Tagged as returning host values that depend on data (`item`).
    pub data_dependent: bool,
    /// Tagged as returning shapes that depend on data (`nonzero`).
    pub dynamic_shape: bool,
}

/// An argument of a [`Schema`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaArg {
    /// Its name.
    pub name: String,
    /// Whether the operator writes it.
    pub written: bool,
}

/// Where a tensor comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The example input of this index.
    Input(usize),
    /// A tensor of the model that was there before and after the call: read it again at every call.
    Param,
    /// A host value that became a tensor on the way (a size, a number) and was dropped: a constant.
    Transient,
    /// First returned by the event of this index.
    Event(usize),
    /// Made outside the dispatcher on the storage of this tensor, which was there before.
    Alias(TensorId),
}

/// What is known of a tensor, when first seen.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Where it comes from.
    pub origin: Origin,
    /// Its storage. A tensor without one has an entry of its own.
    pub storage: StorageId,
    /// Everything else.
    pub meta: Meta,
}

/// A storage, and how its contents change over the trace.
#[derive(Debug)]
pub struct StorageInfo {
    /// The events that write it, ascending.
    pub writes: Vec<usize>,
    /// Up to and including the arguments of this event, the contents are constant: they depend on nothing but
    /// constants and sizes. `None` where they never are, `usize::MAX` where they always are.
    pub constant_until: Option<usize>,
    /// Contents as bytes after the given number of writes.
    pub(super) snapshots: Vec<(usize, Tensor)>,
}

/// One operator call.
#[derive(Clone, Debug)]
pub struct Event {
    /// Operator with namespace, `aten::add`.
    pub op: String,
    /// Overload, `Tensor`; empty for the default one.
    pub overload: String,
    /// Arguments in schema order.
    pub args: Vec<Arg>,
    /// Results in schema order.
    pub outs: Vec<OutArg>,
    /// Positions of the arguments that are written: by the schema, or seen to have changed.
    pub writes: Vec<usize>,
    /// Draws random numbers, with these arguments.
    pub random: bool,
    /// Depends on nothing but constants, sizes and [`Trace::assumed`], and need not run again: who reads its results finds them with
    /// [`Trace::constant`].
    pub constant: bool,
    /// The [`scope`](crate::scope) in which it was called.
    pub scope: String,
    /// The modules of a TorchScript file in which it was called, joined by dots, without those that nobody calls, as lists of modules.
    pub script: String,
    /// Where it was called, if that was asked for.
    pub site: CallSite,
    /// The call, to be made again.
    pub call: CallId,
    /// Index into [`Trace::schemas`].
    pub schema: usize,
}

/// Why a trace must not be compiled as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The event at which it showed; the number of events where it showed at the end.
    pub event: usize,
    /// The operator, `aten::item`; empty where there is none.
    pub op: String,
    /// The tensor, `f32[4, 8]`; empty where none is known.
    pub tensor: String,
    /// The kind.
    pub kind: RefusalKind,
}

/// The kinds of [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalKind {
    /// A host value was computed from data of inputs, or of something that the model writes.
    DataRead,
    /// The shape of a result depends on such data.
    DataShape,
    /// Memory is shared until it is written.
    CopyOnWrite,
    /// Memory of a computed tensor or an input was touched outside operators.
    MemoryAccess,
    /// Sizes, strides or storage of an existing tensor were changed.
    MetadataChange,
    /// A tensor came from outside the dispatcher and belongs to nobody.
    UnknownOrigin,
    /// A result is no tensor.
    Undefined,
    /// A call failed, and the model went on, as it may for other data only.
    Failed,
    /// The gradient of an input, which another input in its place does not have.
    InputGradient,
    /// The model says itself which tensors require gradients, which no call shows.
    RequiresGrad,
    /// A computed tensor is kept by the model after the call.
    Escapes,
    /// An input is kept by the model after the call.
    KeepsInput,
    /// A generator of random numbers was seeded.
    Seeds,
    /// Operators were called on other threads.
    OtherThread,
    /// A kernel was launched by hand.
    Kernel,
    /// The recorder failed.
    Internal,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, advice) = self.kind.texts();
        match (self.op.as_str(), self.tensor.as_str()) {
            ("", "") => write!(f, "{what}: {advice}"),
            (op, "") => write!(f, "{op} {what}: {advice}"),
            ("", tensor) => write!(f, "{tensor} {what}: {advice}"),
            (op, tensor) => write!(f, "{tensor}, an argument of {op}, {what}: {advice}"),
        }
    }
}

impl RefusalKind {
    /// What it is, and what to change in the model so that it can be compiled.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            RefusalKind::DataRead => (
                "reads a value out of computed data",
                "keep the value in a tensor, or read it before or after the fused part",
            ),
            RefusalKind::DataShape => (
                "has a result whose shape depends on data",
                "use a mask or `where` instead, or call it before or after the fused part",
            ),
            RefusalKind::CopyOnWrite => {
                ("shares memory until the first write to it", "use `copy`, which copies at once")
            }
            RefusalKind::MemoryAccess => (
                "the model touches the memory of an input or of a computed tensor",
                "use operators instead of data pointers, or read the tensor after the fused part",
            ),
            RefusalKind::MetadataChange => (
                "changes the shape or storage of an existing tensor",
                "use the operator that returns a new tensor (`unsqueeze` for `unsqueeze_`, `t.reshape(..)` for `resize_`)",
            ),
            RefusalKind::UnknownOrigin => (
                "is a tensor that no operator made",
                "keep it in the model, pass it as an input, or make it with operators",
            ),
            RefusalKind::Undefined => (
                "the model returns an undefined tensor",
                "return an `Option<Tensor>`, `None` where there is no result",
            ),
            RefusalKind::Escapes => (
                "makes a tensor that the model keeps",
                "return it as a result, or write it into a buffer of the model with `copy_`",
            ),
            RefusalKind::KeepsInput => (
                "is an input that the model keeps",
                "write it into a buffer of the model with `copy_`, or keep it where the model is called",
            ),
            RefusalKind::Seeds => (
                "draws random numbers, and the model seeds their generator",
                "seed before the call, or pass the random numbers as an input",
            ),
            RefusalKind::OtherThread => (
                "the model calls operators on other threads",
                "call all operators on the thread that calls the model",
            ),
            RefusalKind::Kernel => (
                "the model launches a kernel of its own",
                "register the launch as an operator with `tilefuse::Operator`",
            ),
            RefusalKind::Failed => {
                ("failed, and the model went on", "call what may fail before or after the fused part")
            }
            RefusalKind::InputGradient => {
                ("is the gradient of an input", "pass the gradient as an input of its own")
            }
            RefusalKind::RequiresGrad => (
                "the model changes whether a tensor requires gradients",
                "call `set_requires_grad` before or after the fused part",
            ),
            RefusalKind::Internal => (
                "could not be recorded",
                "call this part outside the fused model, and report it as a defect of Tilefuse",
            ),
        }
    }
}

/// A recorded run of a model. It keeps inputs, the model's tensors and constants alive, but no computed tensor.
#[derive(Debug)]
pub struct Trace {
    /// All tensors in the order in which they were seen, inputs first.
    pub tensors: Vec<TensorInfo>,
    /// All storages.
    pub storages: Vec<StorageInfo>,
    /// The calls in order.
    pub events: Vec<Event>,
    /// The example inputs in order.
    pub inputs: Vec<TensorId>,
    /// The results of the model in order.
    pub outputs: Vec<TensorId>,
    /// The model's own tensors that were used, with the name under which they were given.
    pub params: Vec<(TensorId, Option<String>)>,
    /// The model's own tensors whose values went into the trace (as a size, a branch, or a constant computed from
    /// them), with the versions that they had. The trace holds as long as [`super::check_versions`] says so.
    pub assumed: Vec<(TensorId, i64)>,
    /// Constants that the model made and keeps after the call: what it makes once and reads in later calls.
    pub cached: Vec<TensorId>,
    /// Whether nothing is known of the computed tensors that the model keeps: gradients were recorded, which keep them, too.
    pub keeps_unknown: bool,
    /// Why the trace must not be compiled; empty where it may be.
    pub refusals: Vec<Refusal>,
    /// The schemas of the operators that were called.
    pub schemas: Vec<Schema>,
    /// The calls, by [`CallId`].
    pub calls: Vec<Call>,
    pub(super) kept: Vec<Option<Tensor>>,
}

impl Trace {
    /// The tensor itself, if it is an input, a tensor of the model, or was made from constants.
    pub fn tensor(&self, id: TensorId) -> Option<&Tensor> {
        self.kept.get(id.0 as usize)?.as_ref()
    }

    /// What is known of a tensor.
    pub fn info(&self, id: TensorId) -> Option<&TensorInfo> {
        self.tensors.get(id.0 as usize)
    }

    /// The schema of an event's operator.
    pub fn schema(&self, event: &Event) -> Option<&Schema> {
        self.schemas.get(event.schema)
    }

    /// The argument of an event by its schema name.
    pub fn arg<'a>(&'a self, event: &'a Event, name: &str) -> Option<&'a Arg> {
        let at = self.schema(event)?.args.iter().position(|a| a.name == name)?;
        event.args.get(at)
    }

    /// Identifies the contents of constant `tensor` as the arguments of `event` see them: equal tensors with equal
    /// versions hold equal values. `None` where the contents are not constant there. The number of events stands
    /// for the end of the call.
    pub fn constant_version(&self, tensor: TensorId, event: usize) -> Option<usize> {
        let storage = self.storage(tensor)?;
        (event <= storage.constant_until?).then(|| storage.writes.partition_point(|&w| w < event))
    }

    /// The value of constant `tensor` as the arguments of `event` (not itself constant) see it, with the tensor's
    /// own sizes and strides; `None` where it is not constant there. A constant that the model keeps alive shares
    /// its memory. The tensor must not be written: who needs to write it clones it.
    pub fn constant(&self, tensor: TensorId, event: usize) -> Result<Option<Tensor>, Error> {
        let Some(version) = self.constant_version(tensor, event) else { return Ok(None) };
        let (Some(handle), Some(info), Some(storage)) =
            (self.tensor(tensor), self.info(tensor), self.storage(tensor))
        else {
            return Ok(None);
        };
        match storage.snapshots.iter().find(|(v, _)| *v >= version) {
            None => Ok(Some(handle.shallow_clone())),
            Some((_, bytes)) => {
                let m = &info.meta;
                let offset = m.offset * super::element_size(m.dtype) as i64;
                let value = view_of(bytes, offset, m.dtype, m.sizes(), m.strides())?;
                let value = if m.flags.contains(Flags::CONJ) { value.f_conj() } else { Ok(value) };
                let value = match value {
                    Ok(value) if m.flags.contains(Flags::NEG) => value.f_internal_neg_view(),
                    value => value,
                };
                value.map(Some).map_err(|error| Error::Torch(error.to_string()))
            }
        }
    }

    fn storage(&self, tensor: TensorId) -> Option<&StorageInfo> {
        self.storages.get(self.info(tensor)?.storage.0 as usize)
    }
}

/// A copy of the whole storage of `t`, as a flat tensor of bytes.
pub(super) fn snapshot(t: &Tensor) -> Result<Tensor, Error> {
    // SAFETY: `t` is a live tensor.
    make_tensor(|out| unsafe { ffi::tf_snapshot(raw(t), out) })
}
