//! Operators of one's own: kernels written by hand, under a name, with a rule for the shapes of their results.
//!
//! A model calls an operator as it calls libtorch's. A capture sees one call of it, and the planner makes a kernel of the
//! plan of that, with its pointwise neighbours in its loads and stores.
//!
//! ```no_run
//! use tch::{Device, Kind, Tensor};
//! use tilefuse::{Operator, grid};
//!
//! #[tilefuse::kernel]
//! fn swiglu(gate: Ptr<f32>, up: Ptr<f32>, y: Ptr<f32>, n: i64, #[constant] BLOCK: usize) {
//!     let at = program_id(0) * BLOCK + range(0, BLOCK);
//!     let g = load(gate + at, at.lt(n), 0);
//!     store(y + at, g / (1.0 + exp(-g)) * load(up + at, at.lt(n), 0), at.lt(n));
//! }
//!
//! let operator = Operator::new(
//!     "my::swiglu",
//!     |inputs| Ok(vec![inputs[0].clone()]),
//!     |inputs, outputs| {
//!         let n = outputs[0].numel() as i64;
//!         swiglu.launch(grid![(n + 1023) / 1024], (&inputs[0], &inputs[1], &outputs[0], n, 1024))
//!     },
//! )?;
//! let x = Tensor::randn([8, 64], (Kind::Float, Device::Cpu));
//! let y = operator.call(&[&x, &x])?;
//! # Ok::<(), tilefuse::Error>(())
//! ```

mod custom;
mod launch;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustc_hash::FxHashMap;
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::torch::{self, Call, Flags, GlobalState, Meta};

pub(crate) use custom::custom_kernel;
use launch::observe;
pub(crate) use launch::{Given, Launched, collecting, note};

/// The shape, element kind and device of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Sizes, outermost dimension first.
    pub shape: Vec<i64>,
    /// The element kind.
    pub kind: Kind,
    /// The device.
    pub device: Device,
}

impl TensorSpec {
    /// Of a tensor.
    pub fn of(tensor: &Tensor) -> TensorSpec {
        TensorSpec { shape: tensor.size(), kind: tensor.kind(), device: tensor.device() }
    }

    /// The same with another shape.
    pub fn with_shape(&self, shape: &[i64]) -> TensorSpec {
        TensorSpec { shape: shape.to_vec(), ..self.clone() }
    }

    /// The same with another element kind.
    pub fn with_kind(&self, kind: Kind) -> TensorSpec {
        TensorSpec { kind, ..self.clone() }
    }

    /// Number of elements.
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }
}

type Rule = dyn Fn(&[TensorSpec]) -> Result<Vec<TensorSpec>, String> + Send + Sync;
type Launch = dyn Fn(&[Tensor], &[Tensor]) -> Result<(), Error> + Send + Sync;

/// What was registered under a name.
pub(crate) struct Definition {
    name: String,
    rule: Box<Rule>,
    launch: Box<Launch>,
}

/// An operator that a kernel computes. A handle: cloning it is cheap, and threads may share it.
#[derive(Clone)]
pub struct Operator {
    definition: Arc<Definition>,
    /// The call by number of inputs.
    calls: Arc<RwLock<FxHashMap<usize, Arc<Call>>>>,
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operator({})", self.name())
    }
}

/// Registered operators by name.
fn known() -> &'static RwLock<FxHashMap<String, Arc<Definition>>> {
    static KNOWN: std::sync::OnceLock<RwLock<FxHashMap<String, Arc<Definition>>>> =
        std::sync::OnceLock::new();
    KNOWN.get_or_init(RwLock::default)
}

/// The operator that was registered under a name.
pub(crate) fn definition(name: &str) -> Option<Arc<Definition>> {
    known().read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
}

impl Operator {
    /// Registers an operator under a name like `my::swiglu`, for the rest of the process.
    ///
    /// `rule` gives, for the inputs' shapes, kinds and devices, those of the outputs, or says what is wrong with the
    /// inputs. `launch` launches the kernel on inputs and outputs, all of them row-major without gaps; the outputs'
    /// memory is not initialised. What it launches, and the numbers that it passes, depend on shapes, kinds and devices
    /// alone. It writes outputs only.
    ///
    /// In a fused model, a `launch` that launches one kernel on nothing but inputs and outputs, and does nothing else
    /// with them, becomes a kernel of the plan. Any other is called as it is, each time.
    ///
    /// # Errors
    /// [`Error::Operator`] where the name is not of this form or is taken.
    pub fn new(
        name: &str,
        rule: impl Fn(&[TensorSpec]) -> Result<Vec<TensorSpec>, String> + Send + Sync + 'static,
        launch: impl Fn(&[Tensor], &[Tensor]) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Result<Operator, Error> {
        if !is_name(name) {
            return Err(refuse(name, "a name has the form `space::name`, in letters, digits and `_`"));
        }
        let definition =
            Arc::new(Definition { name: name.to_owned(), rule: Box::new(rule), launch: Box::new(launch) });
        let mut known = known().write().unwrap_or_else(PoisonError::into_inner);
        let body = Arc::clone(&definition);
        torch::register(name, Box::new(move |inputs| body.run(inputs)))
            .map_err(|error| refuse(name, error))?;
        known.insert(name.to_owned(), Arc::clone(&definition));
        Ok(Operator { definition, calls: Arc::default() })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.definition.name
    }

    /// The output of an operator that has one.
    ///
    /// # Errors
    /// As for [`Operator::call_all`]; [`Error::Operator`] where there is not exactly one output.
    pub fn call(&self, inputs: &[&Tensor]) -> Result<Tensor, Error> {
        let outputs = self.call_all(inputs)?;
        let count = outputs.len();
        match <[Tensor; 1]>::try_from(outputs) {
            Ok([output]) => Ok(output),
            Err(_) => Err(refuse(self.name(), format!("it has {count} outputs, not one"))),
        }
    }

    /// The outputs for these inputs. Inputs that are not row-major without gaps are copied first.
    ///
    /// # Errors
    /// [`Error::Operator`] where the shape rule refuses the inputs, where they require a gradient that would be
    /// recorded, or where an input was written; and what the launch reports.
    pub fn call_all(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, Error> {
        let mut dense = Vec::with_capacity(inputs.len());
        let grad = GlobalState::now()?.grad();
        for (position, input) in inputs.iter().enumerate() {
            let meta = Meta::of(input)?;
            if grad && meta.flags.contains(Flags::REQUIRES_GRAD) {
                let problem = format!(
                    "input {position} requires a gradient, which kernels do not record; call within tch::no_grad"
                );
                return Err(refuse(self.name(), problem));
            }
            let ready = meta.flags.contains(Flags::CONTIGUOUS);
            dense.push(if ready {
                input.shallow_clone()
            } else {
                input.f_contiguous().map_err(torch_error)?
            });
        }
        if !torch::is_capturing() {
            return self.definition.run(&dense);
        }
        let outputs = self.recorded(dense.len())?.run(&dense.iter().collect::<Vec<_>>())?;
        Ok(outputs.into_iter().collect())
    }

    /// The call through libtorch's dispatcher, which a capture sees.
    fn recorded(&self, inputs: usize) -> Result<Arc<Call>, Error> {
        if let Some(call) = self.calls.read().unwrap_or_else(PoisonError::into_inner).get(&inputs) {
            return Ok(Arc::clone(call));
        }
        let holes = torch::Arg::Tensors((0..inputs).map(|i| Some(i as u32)).collect());
        let call = Arc::new(Call::new(self.name(), "", &[holes])?);
        self.calls.write().unwrap_or_else(PoisonError::into_inner).insert(inputs, Arc::clone(&call));
        Ok(call)
    }
}

impl Definition {
    /// Allocates the outputs and launches.
    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let outputs = self.outputs(inputs)?;
        let versions = || inputs.iter().map(|t| Ok(Meta::of(t)?.version)).collect::<Result<Vec<_>, Error>>();
        let before = versions()?;
        if inputs.iter().chain(&outputs).all(|t| Meta::of(t).is_ok_and(|m| m.flags.contains(Flags::META))) {
            return Ok(outputs);
        }
        (self.launch)(inputs, &outputs)?;
        match before.iter().zip(versions()?).position(|(&a, b)| a != b) {
            Some(position) => Err(refuse(&self.name, format!("it wrote input {position}"))),
            None => Ok(outputs),
        }
    }

    /// New outputs for these inputs.
    fn outputs(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        if inputs.is_empty() {
            return Err(refuse(&self.name, "there are no inputs"));
        }
        let specs: Vec<TensorSpec> = inputs.iter().map(TensorSpec::of).collect();
        let outputs = (self.rule)(&specs).map_err(|problem| refuse(&self.name, problem))?;
        let empty = |spec: &TensorSpec| Tensor::f_empty(&spec.shape, (spec.kind, spec.device));
        outputs.iter().map(|spec| empty(spec).map_err(torch_error)).collect()
    }

    /// What a call with these inputs and outputs would launch, which nothing runs.
    fn launched(&self, inputs: &[Tensor], outputs: &[Tensor]) -> Result<Launched, String> {
        observe(inputs, outputs, || (self.launch)(inputs, outputs))
    }
}

fn is_name(name: &str) -> bool {
    let word = |w: &str| {
        w.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && w.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    name.split_once("::").is_some_and(|(space, name)| word(space) && word(name) && space != "aten")
}

fn refuse(name: &str, problem: impl fmt::Display) -> Error {
    Error::Operator { name: name.to_owned(), problem: problem.to_string() }
}

fn torch_error(error: tch::TchError) -> Error {
    Error::Torch(error.to_string())
}
