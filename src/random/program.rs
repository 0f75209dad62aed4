//! Tensor programs as data, and running them through libtorch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::rng::Rng;
use crate::torch::{Arg, Call, DeviceId, Flags, Meta, Results, as_strided_of, empty_strided};

/// What the elements of a storage are drawn from.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// About standard normal, of magnitude below 3.5.
    Normal,
    /// Integers of `low..end`.
    Ints(i64, i64),
    /// As `Normal`, with a few NaN, infinities, zeros of both signs and denormals.
    Special,
    /// One value throughout.
    Fill(f64),
    /// These bytes, the elements of the storage in native byte order.
    Data(Arc<[u8]>),
}

/// Memory that inputs view.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// Element type.
    pub kind: Kind,
    /// Number of elements.
    pub len: i64,
    /// What they are drawn from.
    pub values: Values,
}

/// A view of a storage that the program reads: an argument of the model, or a parameter that it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// The value's name.
    pub id: u32,
    /// The storage.
    pub storage: usize,
    /// Held by the model instead of passed to it.
    pub param: bool,
    /// Sizes.
    pub sizes: Vec<i64>,
    /// Strides, in elements.
    pub strides: Vec<i64>,
    /// First element.
    pub offset: i64,
    /// Whether the elements are the complex conjugates of the memory's.
    pub conj: bool,
    /// Whether the elements are the negatives of the memory's.
    pub neg: bool,
    /// How the tensor holds them.
    pub layout: Layout,
}

/// How an input holds its elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// In its storage.
    #[default]
    Strided,
    /// As a sparse copy of them, by coordinates.
    Coo,
    /// As a sparse copy of them, by compressed rows.
    Csr,
}

/// The name of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Unique in the program.
    pub id: u32,
    /// Whether every correct implementation computes the same bits: data movement, integers, comparisons of such
    /// values, and floating-point arithmetic that does not round.
    pub exact: bool,
}

/// A call of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct OpCall {
    /// Operator and overload: `add.Tensor`, `relu`; with its namespace where that is not `aten`.
    pub name: String,
    /// Leading arguments in schema order; tensors by name.
    pub args: Vec<Arg<u32>>,
    /// Results that are tensors, in order.
    pub results: Vec<Named>,
}

impl OpCall {
    /// Whether it writes arguments: the first, the last, which its overload then names, or running statistics.
    pub fn writes(&self) -> bool {
        let (op, overload) = self.name.split_once('.').unwrap_or((&self.name, ""));
        let training = op == "batch_norm" && self.args.get(5) == Some(&Arg::Bool(true));
        op.ends_with('_') || overload == "out" || op == "set_data" || training
    }

    /// Whether it is given two factors, both of them 0.
    fn is_scaled_by_zeros(&self) -> bool {
        let zero = |arg: &&Arg<u32>| matches!(arg, Arg::Int(0)) || **arg == Arg::Float(0.0);
        self.args.iter().filter(zero).count() == 2
    }

    /// Whether it draws random numbers.
    pub(super) fn draws(&self) -> bool {
        let name = self.name.split('.').next().unwrap_or_default();
        RANDOM.contains(&name) && self.args.last() != Some(&Arg::Bool(false))
    }

    /// Whether its results are the largest or smallest of numbers.
    fn is_extremum(&self) -> bool {
        let name = self.name.split('.').next().unwrap_or_default();
        EXTREMA.contains(&name) || BOUNDS.contains(&self.name.as_str())
    }

    /// Operands, by position, with 0 for subnormal numbers of `bf16`, if it is a product.
    fn without_subnormals(&self, tensors: &[&Tensor], kinds: &HashMap<u32, Kind>) -> HashMap<usize, Tensor> {
        let name = self.name.split('.').next().unwrap_or_default();
        if !PRODUCTS.contains(&name) && !name.contains("conv") {
            return HashMap::new();
        }
        let flushed = |(at, (id, t)): (usize, (u32, &&Tensor))| {
            let is_strided = Meta::of(t).is_ok_and(|meta| meta.flags.contains(Flags::STRIDED));
            let is_bf16 = is_strided && kinds.get(&id) == Some(&Kind::BFloat16) && t.is_floating_point();
            is_bf16.then(|| (at, t.zeros_like().where_self(&t.abs().lt(f64::from(f32::MIN_POSITIVE)), t)))
        };
        self.reads().into_iter().zip(tensors).enumerate().filter_map(flushed).collect()
    }

    /// Copies of operands, by position, that share memory with what it writes, where it writes elements in no certain order beside reading
    /// them: on a GPU.
    fn operands_apart(&self, tensors: &[&Tensor]) -> Result<HashMap<usize, Tensor>, Error> {
        let (op, overload) = self.name.split_once('.').unwrap_or((&self.name, ""));
        let written = match overload {
            "out" => self.args.len().saturating_sub(1)..self.args.len(),
            // The running statistics.
            _ if op == "batch_norm" && self.writes() => 3..5,
            _ if UNORDERED.contains(&op) => 0..1,
            _ => return Ok(HashMap::new()),
        };
        let arguments = self.args.iter().enumerate();
        let is_written =
            arguments.flat_map(|(at, arg)| arg.tensors().map(move |_| at)).map(|at| written.contains(&at));
        let mut memory = Vec::new();
        let mut operands = Vec::new();
        for ((at, &tensor), is_written) in tensors.iter().enumerate().zip(is_written) {
            if !tensor.defined() || !tensor.device().is_cuda() {
                continue;
            }
            let storage = Meta::of(tensor)?.storage;
            if is_written { memory.push(storage) } else { operands.push((at, tensor, storage)) }
        }
        operands.retain(|(.., storage)| *storage != 0 && memory.contains(storage));
        operands
            .into_iter()
            .map(|(at, tensor, _)| Ok((at, tensor.f_detach_copy().map_err(|e| Error::Torch(e.to_string()))?)))
            .collect()
    }

    /// The values that it reads.
    pub fn reads(&self) -> Vec<u32> {
        self.args.iter().flat_map(|a| a.tensors().collect::<Vec<_>>()).collect()
    }
}

/// A function from tensors to tensors in single-assignment form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Memory of the inputs.
    pub storages: Vec<Storage>,
    /// Inputs and parameters.
    pub inputs: Vec<Input>,
    /// Calls in order.
    pub ops: Vec<OpCall>,
    /// Results.
    pub outputs: Vec<Named>,
    /// The call that the model makes instead of the one with the same results once its state, which is in no tensor, has
    /// changed.
    pub other: Option<OpCall>,
}

/// How a program is run.
#[derive(Clone, Copy, Debug)]
pub enum Mode<'a> {
    /// As it is written.
    Native,
    /// All floating-point types replaced by `f64`, of a program whose values have these types in a native run.
    Double(&'a HashMap<u32, Kind>),
    /// As `Double`, and each rounded result is changed by a random relative error of the type that it has in a native
    /// run: how large the rounding errors of a correct implementation may be.
    Noisy(&'a HashMap<u32, Kind>),
    /// As `Noisy`, a result beyond the range of that type is infinite, and subnormal `bf16` operands of products are 0, as
    /// instructions for such products take them.
    Bounded(&'a HashMap<u32, Kind>),
    /// As it is written, and zeros and NaN that are a maximum or minimum get this number's sign: that of the larger or smaller
    /// of two zeros with different signs, and that of NaN, depends on where in a tensor they are.
    Signs(f64),
}

impl Mode<'_> {
    fn kind(self, kind: Kind) -> Kind {
        match self {
            Mode::Native | Mode::Signs(_) => kind,
            _ if is_float(kind) => Kind::Double,
            _ if matches!(kind, Kind::ComplexHalf | Kind::ComplexFloat) => Kind::ComplexDouble,
            _ => kind,
        }
    }
}

impl Program {
    /// Draws the storages; equal seeds give equal values.
    pub fn draw(&self, seed: u64, device: Device) -> Vec<Tensor> {
        let mut rng = Rng::new(seed);
        self.storages.iter().map(|s| draw(s, &mut rng.fork()).to_device(device)).collect()
    }

    /// As [`Program::draw`], with the elements of each input of given data in another order.
    pub fn draw_shuffled(&self, seed: u64, device: Device) -> Result<Vec<Tensor>, Error> {
        let mut rng = Rng::new(seed);
        let storages = self.draw(seed, device);
        let held = |at: usize| self.inputs.iter().any(|i| i.storage == at && i.param);
        for input in &self.inputs {
            let (Some(storage), Some(memory)) =
                (self.storages.get(input.storage), storages.get(input.storage))
            else {
                continue;
            };
            if matches!(storage.values, Values::Data(_)) && !held(input.storage) {
                let mut view = as_strided_of(memory, &input.sizes, &input.strides, input.offset)?;
                let order = rng.permutation(view.numel());
                let order: Vec<i64> = order.into_iter().map(|at| at as i64).collect();
                let order = Tensor::from_slice(&order).to_device(device);
                let shuffled = view.flatten(0, -1).index_select(0, &order).view_as(&view);
                // Elements that an input has several times stay where they are.
                let _ = view.f_copy_(&shuffled);
            }
        }
        Ok(storages)
    }

    /// The inputs and parameters in these storages.
    pub fn views(&self, storages: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let view = |input: &Input| match storages.get(input.storage) {
            Some(storage) => {
                let view = as_strided_of(storage, &input.sizes, &input.strides, input.offset)?;
                let view = if input.conj { view.f_conj() } else { Ok(view) };
                let view = view.and_then(|v| if input.neg { v.f_internal_neg_view() } else { Ok(v) });
                let view = view.and_then(|v| match input.layout {
                    Layout::Strided => Ok(v),
                    Layout::Coo => v.f_to_sparse_sparse_dim(v.dim() as i64),
                    Layout::Csr => v.f_to_sparse_csr(None),
                });
                view.map_err(|e| Error::Torch(e.to_string()))
            }
            None => Err(Error::Torch(format!("%{} is in no storage", input.id))),
        };
        self.inputs.iter().map(view).collect()
    }

    /// The program that the model is once its state has changed.
    pub fn changed(&self) -> Option<Program> {
        let other = self.other.as_ref()?;
        let mut changed = Program { other: None, ..self.clone() };
        let call = changed.ops.iter_mut().find(|op| op.results == other.results)?;
        *call = other.clone();
        Some(changed)
    }

    /// Runs the program on its inputs and parameters, in the order of [`Program::inputs`].
    pub fn run(&self, views: &[Tensor], mode: Mode<'_>) -> Result<Vec<Tensor>, Error> {
        let env = self.values(views, mode, false)?;
        let output = |o: &Named| match env.get(&o.id) {
            Some(tensor) => Ok(tensor.shallow_clone()),
            None if matches!(mode, Mode::Double(_)) => Ok(Tensor::new()),
            None => Err(unknown(o.id)),
        };
        self.outputs.iter().map(output).collect()
    }

    /// As [`Program::run`], and returns every value.
    pub fn run_all(&self, views: &[Tensor], mode: Mode<'_>) -> Result<HashMap<u32, Tensor>, Error> {
        self.values(views, mode, true)
    }

    /// The values that a run ends with: all, or those that are not read for the last time within it. In `f64`, what libtorch
    /// does not compute in it is absent, and outputs that depend on it are undefined.
    fn values(&self, views: &[Tensor], mode: Mode<'_>, all: bool) -> Result<HashMap<u32, Tensor>, Error> {
        let mut last: HashMap<u32, usize> = HashMap::new();
        for (at, op) in self.ops.iter().enumerate() {
            last.extend(op.reads().into_iter().map(|id| (id, at)));
        }
        last.extend(self.outputs.iter().map(|output| (output.id, usize::MAX)));
        let ids = self.inputs.iter().map(|i| i.id);
        let mut env: HashMap<u32, Tensor> = ids.zip(views.iter().map(Tensor::shallow_clone)).collect();
        for (at, op) in self.ops.iter().enumerate() {
            let operand = op.reads().first().filter(|_| op.cancels()).and_then(|id| env.get(id));
            let operand = operand.map(Tensor::shallow_clone);
            let results = match op.run(&env, mode) {
                Err(_) if matches!(mode, Mode::Double(_)) && !op.writes() => continue,
                results => results?,
            };
            if !all {
                env.retain(|id, _| last.get(id).is_some_and(|&last| last > at));
            }
            for (named, tensor) in op.results.iter().zip(results) {
                // Integers become `f32` where an operator promotes them.
                let kind = known_kind(&tensor).map(|kind| (kind, mode.kind(kind)));
                let tensor = match kind {
                    // Not every layout has `f64`.
                    Some((from, to)) if from != to => tensor.f_to_kind(to).unwrap_or(tensor),
                    _ => tensor,
                };
                match mode {
                    Mode::Noisy(kinds) | Mode::Bounded(kinds) if !named.exact => {
                        let bounded = matches!(mode, Mode::Bounded(_));
                        disturb(op, (&tensor, operand.as_ref()), kinds.get(&named.id), bounded);
                    }
                    Mode::Signs(sign) if op.is_extremum() && tensor.is_floating_point() => {
                        let mut tensor = tensor.shallow_clone();
                        // Filling with a number would lose the sign of NaN in 16 bits.
                        let signed = tensor.copysign(&Tensor::from(sign).to_device(tensor.device()));
                        let open = tensor.eq(0.0).logical_or(&tensor.isnan());
                        let _ = tensor.f_copy_(&signed.to_kind(tensor.kind()).where_self(&open, &tensor));
                    }
                    _ => {}
                }
                env.insert(named.id, tensor);
            }
        }
        Ok(env)
    }

    /// Whether results may hold memory that nobody wrote.
    pub fn leaves_values_open(&self) -> bool {
        let open = |op: &OpCall| {
            let name = op.name.split('.').next().unwrap_or_default();
            UNWRITTEN.contains(&name) || (SCALED_SUMS.contains(&name) && op.is_scaled_by_zeros())
        };
        self.ops.iter().any(open)
    }

    /// Whether results may depend on the sign of a zero or NaN that is a maximum or minimum.
    pub(super) fn has_extrema(&self) -> bool {
        self.ops.iter().any(OpCall::is_extremum)
    }

    /// The type with the largest rounding errors of those that a value is computed in, where `kinds` are the values'.
    pub(super) fn coarsest(&self, id: u32, kinds: &HashMap<u32, Kind>) -> Option<Kind> {
        let mut reads: HashSet<u32> = HashSet::from([id]);
        for op in self.ops.iter().rev() {
            if op.results.iter().any(|r| reads.contains(&r.id)) {
                reads.extend(op.reads());
            }
        }
        let kinds = reads.iter().filter_map(|id| kinds.get(id).copied()).filter(|k| is_float(*k));
        kinds.max_by(|a, b| epsilon(*a).total_cmp(&epsilon(*b)))
    }

    /// Number of calls.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether a call draws random numbers.
    pub fn draws(&self) -> bool {
        self.ops.iter().any(OpCall::draws)
    }

    /// Whether libtorch sums in no fixed order for a call, on a GPU.
    pub(super) fn sums_atomically(&self, device: Device) -> bool {
        device.is_cuda() && self.ops.iter().any(|op| ATOMIC.iter().any(|name| op.name.contains(name)))
    }

    /// Whether it may draw random numbers: one with given data calls any operator.
    pub(super) fn takes_seed(&self) -> bool {
        let given = |s: &Storage| matches!(s.values, Values::Data(_));
        let seeded = |op: &OpCall| ["rand", "normal", "bernoulli"].iter().any(|part| op.name.contains(part));
        self.draws() || self.storages.iter().any(given) || self.ops.iter().any(seeded)
    }

    /// Whether there are no calls.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

impl OpCall {
    /// Calls an operator that libtorch has not in `f64` in `f32`: one that quantises, for one.
    fn run_narrow(&self, tensors: &[&Tensor]) -> Result<Results, Error> {
        let narrow = |t: &&Tensor| match known_kind(t) {
            Some(Kind::Double) => t.to_kind(Kind::Float),
            _ => t.shallow_clone(),
        };
        let tensors: Vec<Tensor> = tensors.iter().map(narrow).collect();
        let tensors: Vec<&Tensor> = tensors.iter().collect();
        self.call(&self.args)?.run(&tensors)
    }

    fn call(&self, args: &[Arg<u32>]) -> Result<Call, Error> {
        let (op, overload) = self.name.split_once('.').unwrap_or((&self.name, ""));
        let op = if op.contains("::") { op.to_owned() } else { format!("aten::{op}") };
        Call::new(&op, overload, args)
    }

    /// Whether its error is relative to its operand.
    fn cancels(&self) -> bool {
        CANCELLING.contains(&self.name.as_str())
    }

    /// Whether it is a conversion that gives a new tensor in a native run, though all types are `f64` in this mode.
    fn converts(&self, mode: Mode<'_>) -> bool {
        let (Mode::Double(kinds) | Mode::Noisy(kinds) | Mode::Bounded(kinds)) = mode else { return false };
        match &self.args[..] {
            [Arg::Tensor(x), Arg::DType(to), ..] if self.name == "to.dtype" => {
                kinds.get(x).is_some_and(|&from| kind_of(*to) != Some(from))
            }
            _ => false,
        }
    }

    /// Calls the operator on values of `env`.
    pub fn run(&self, env: &HashMap<u32, Tensor>, mode: Mode<'_>) -> Result<Vec<Tensor>, Error> {
        let mut args: Vec<Arg<u32>> = self.args.iter().map(|a| in_mode(a, mode)).collect();
        if self.converts(mode)
            && let Some(copy) = args.get_mut(3)
        {
            *copy = Arg::Bool(true);
        }
        let call = self.call(&args)?;
        let tensors = self
            .reads()
            .iter()
            .map(|id| env.get(id).ok_or_else(|| unknown(*id)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut apart = self.operands_apart(&tensors)?;
        if let Mode::Bounded(kinds) = mode
            && !self.writes()
        {
            apart.extend(self.without_subnormals(&tensors, kinds));
        }
        let tensors: Vec<&Tensor> =
            tensors.into_iter().enumerate().map(|(at, tensor)| apart.get(&at).unwrap_or(tensor)).collect();
        let results = match (call.run(&tensors), mode) {
            // What a call writes to narrow copies would be lost.
            (Err(error), Mode::Double(_) | Mode::Noisy(_) | Mode::Bounded(_)) if !self.writes() => {
                self.run_narrow(&tensors).map_err(|_| error)?
            }
            (results, _) => results?,
        };
        if results.len() != self.results.len() {
            let message = format!("{} has {} results, not {}", self.name, results.len(), self.results.len());
            return Err(Error::Torch(message));
        }
        Ok(results.into_vec())
    }
}

/// A tensor's type, if it is one that programs compute in.
fn known_kind(tensor: &Tensor) -> Option<Kind> {
    tensor.defined().then(|| Meta::of(tensor).ok().and_then(|m| kind_of(m.dtype)))?
}

fn unknown(id: u32) -> Error {
    Error::Torch(format!("%{id} is not defined"))
}

fn in_mode(arg: &Arg<u32>, mode: Mode<'_>) -> Arg<u32> {
    match arg {
        Arg::DType(code) => Arg::DType(kind_of(*code).map_or(*code, |k| code_of(mode.kind(k)))),
        other => other.clone(),
    }
}

/// Changes a fresh or written floating-point result by a relative error of its native type, or of the operand's where the
/// operator cancels, and by the range of that type if it is `bounded`.
fn disturb(op: &OpCall, (tensor, operand): (&Tensor, Option<&Tensor>), native: Option<&Kind>, bounded: bool) {
    let rounds = tensor.is_floating_point() || tensor.is_complex();
    let view = !op.writes() && rounds && is_view(op);
    let strided = Meta::of(tensor).is_ok_and(|meta| meta.flags.contains(Flags::STRIDED));
    if view || !strided || !rounds || tensor.numel() == 0 {
        return;
    }
    let epsilon = native.map_or(0.0, |k| epsilon(*k));
    // Of a complex number, either part has an error relative to the number.
    let error = || match tensor.is_complex() {
        true => ((tensor.rand_like().view_as_real() - 0.5) * (2.0 * epsilon)).view_as_complex(),
        false => (tensor.rand_like() - 0.5) * (2.0 * epsilon),
    };
    let factor = error() + 1.0;
    let absolute = operand.map(|operand| operand * error());
    let mut tensor = tensor.shallow_clone();
    let _ = tensor.f_mul_(&factor);
    if let Some(absolute) = absolute {
        let _ = tensor.f_add_(&absolute.where_self(&absolute.isfinite(), &absolute.zeros_like()));
    }
    if let Some(&native) = native.filter(|native| bounded && is_float(**native)) {
        let narrow = tensor.to_kind(native).to_kind(tensor.kind());
        let _ = tensor.f_copy_(&narrow.where_self(&narrow.isinf(), &tensor));
    }
}

/// Operators in whose formula a sum that cancels is a factor of the operand.
const CANCELLING: &[&str] = &["gelu"];

/// Whether the operator's result may be a view of its argument.
pub(super) fn is_view(op: &OpCall) -> bool {
    let name = op.name.split('.').next().unwrap_or_default();
    VIEWS.contains(&name)
}

/// Operators that draw random numbers; where their last argument is `training`, if that is on.
const RANDOM: &[&str] =
    &["normal_", "uniform_", "bernoulli_", "exponential_", "random_", "dropout_", "rand_like", "dropout"];

/// Parts of the names of operators that libtorch computes by atomic additions on a GPU: of its list of those that are not
/// deterministic, and what puts together the elements of sparse tensors; and convolutions, for which cuDNN chooses an
/// algorithm anew in each call.
const ATOMIC: &[&str] = &[
    "sparse",
    "to_dense",
    "index_add",
    "index_put",
    "scatter",
    "put_",
    "cumsum",
    "bincount",
    "nll_loss",
    "cross_entropy_loss",
    "conv",
];

/// Operators that write their first argument, and read others at other elements than they write.
const UNORDERED: &[&str] =
    &["copy_", "masked_scatter_", "index_put_", "index_add_", "index_copy_", "scatter_", "addmm_"];

/// Operators whose results are maxima and minima.
const EXTREMA: &[&str] = &[
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "max",
    "min",
    "amax",
    "amin",
    "aminmax",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
];

/// The same where bounds are tensors; a zero that equals a number keeps its sign.
const BOUNDS: &[&str] = &["clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor"];

/// Operators that leave elements of their result as they find them; attention without dropout, its random state.
const UNWRITTEN: &[&str] = &[
    "_flash_attention_forward",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
];

/// Products, but for convolutions.
const PRODUCTS: &[&str] = &[
    "linear",
    "mm",
    "bmm",
    "matmul",
    "addmm",
    "addbmm",
    "baddbmm",
    "mv",
    "addmv",
    "addr",
    "dot",
    "vdot",
    "inner",
    "tensordot",
    "einsum",
    "bilinear",
    "linalg_multi_dot",
    "chain_matmul",
    "scaled_dot_product_attention",
];

/// Products with an addend. Where both factors are 0, oneDNN multiplies memory that nobody wrote by 0.
const SCALED_SUMS: &[&str] = &["addmm", "addbmm", "baddbmm", "addmv"];

const VIEWS: &[&str] = &[
    "view",
    "reshape",
    "permute",
    "transpose",
    "t",
    "expand",
    "slice",
    "select",
    "narrow",
    "unsqueeze",
    "squeeze",
    "flatten",
    "split",
    "split_with_sizes",
    "chunk",
    "unbind",
    "contiguous",
    "to",
    "dropout",
    "movedim",
    "diagonal",
    "expand_as",
    "view_as",
    "alias",
    "detach",
    "unflatten",
    "swapaxes",
    "conj",
    "real",
    "imag",
    "resolve_conj",
    "resolve_neg",
    "as_strided",
    "unfold",
    "meshgrid",
];

/// Distance of 1 to the next number.
fn epsilon(kind: Kind) -> f64 {
    match kind {
        Kind::Half | Kind::ComplexHalf => 2f64.powi(-10),
        Kind::BFloat16 => 2f64.powi(-7),
        Kind::Float | Kind::ComplexFloat => 2f64.powi(-23),
        _ => 2f64.powi(-52),
    }
}

/// Whether the type is one of `f16`, `bf16`, `f32`, `f64`.
pub(super) fn is_float(kind: Kind) -> bool {
    matches!(kind, Kind::Half | Kind::BFloat16 | Kind::Float | Kind::Double)
}

/// The types that programs compute in, by the name in their text and libtorch's number.
pub(super) const KINDS: &[(&str, Kind, i8)] = &[
    ("u8", Kind::Uint8, 0),
    ("i8", Kind::Int8, 1),
    ("i16", Kind::Int16, 2),
    ("i32", Kind::Int, 3),
    ("i64", Kind::Int64, 4),
    ("f16", Kind::Half, 5),
    ("f32", Kind::Float, 6),
    ("f64", Kind::Double, 7),
    ("c32", Kind::ComplexHalf, 8),
    ("c64", Kind::ComplexFloat, 9),
    ("c128", Kind::ComplexDouble, 10),
    ("bool", Kind::Bool, 11),
    ("bf16", Kind::BFloat16, 15),
];

/// libtorch's number of a type.
pub(super) fn code_of(kind: Kind) -> i8 {
    KINDS.iter().find(|k| k.1 == kind).map_or(6, |k| k.2)
}

/// The type of libtorch's number.
pub(super) fn kind_of(code: i8) -> Option<Kind> {
    KINDS.iter().find(|k| k.2 == code).map(|k| k.1)
}

/// Copies of storages, as the mode has them.
pub fn copies(storages: &[Tensor], mode: Mode<'_>) -> Vec<Tensor> {
    let copy = |t: &Tensor| match (t.kind(), mode.kind(t.kind())) {
        (from, to) if from == to => t.copy(),
        (_, to) => t.to_kind(to),
    };
    storages.iter().map(copy).collect()
}

fn draw(storage: &Storage, rng: &mut Rng) -> Tensor {
    let kind = storage.kind;
    let tensor = match &storage.values {
        Values::Data(bytes) => Tensor::from_data_size(bytes, &[storage.len], kind),
        values => {
            let len = usize::try_from(storage.len).unwrap_or(0);
            Tensor::from_slice(&(0..len).map(|_| element(values, rng)).collect::<Vec<f64>>())
        }
    };
    // Drawn into memory of its own, so that its alignment is the allocator's.
    match empty_strided(&[storage.len], &[1], code_of(kind), DeviceId::CPU) {
        Ok(mut fresh) => {
            fresh.copy_(&tensor);
            fresh
        }
        Err(_) => tensor.to_kind(kind),
    }
}

fn element(values: &Values, rng: &mut Rng) -> f64 {
    match values {
        Values::Normal => normal(rng),
        Values::Ints(low, end) => rng.range(*low, *end) as f64,
        Values::Fill(x) => *x,
        Values::Data(_) => 0.0,
        Values::Special if rng.chance(0.9) => normal(rng),
        Values::Special => {
            *rng.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e-40, -1e-40, 1.0, -1.0])
        }
    }
}

/// A sum of four uniform numbers, scaled to variance 1: bounded, and the same on every machine.
fn normal(rng: &mut Rng) -> f64 {
    let bits = rng.bits();
    let part = |shift: u32| f64::from((bits >> shift) as u16) / 65536.0;
    (part(0) + part(16) + part(32) + part(48) - 2.0) * 3f64.sqrt()
}
