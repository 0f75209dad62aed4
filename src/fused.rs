//! Fused models: what [`fuse`] returns.

mod call;
pub(crate) mod forward;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use tch::Tensor;
use tch::nn;
pub use tilefuse_fusion::Products;

use crate::Error;
use crate::engine::{
    CompileReport, Compiled, CudaGraphs, PackStore, Signature, Stop, Tensors, compile, grad_needed,
};
use crate::explain::Explanation;
use crate::torch::{self, GlobalState};

pub(crate) use call::{Call, Structure};

/// How a fused model compiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Most signatures (shapes, types, strides of the inputs, and libtorch's modes) that are compiled; further ones
    /// run eager.
    pub max_signatures: usize,
    /// Which products on the host are kernels of ours: by itself as the variable `TILEFUSE_PRODUCTS` says (`measured`,
    /// `predicted`, `generated` or `library`), and those that measure faster where it says nothing of these.
    pub products: Products,
    /// Whether plans are launched as CUDA graphs.
    pub cuda_graphs: CudaGraphs,
    /// Whether weights of products on the host are kept a second time, in the order in which kernels read them: that
    /// takes as much memory again, once for all signatures. They are laid out anew after a write that the weight's
    /// version counts, as every operator's does. One that goes around it, through a raw pointer or `Tensor::data`, is
    /// noticed where it changes one of some elements that are looked at, as an optimiser's step or a load does. By itself
    /// as the variable `TILEFUSE_PACKING` says (`on` or `off`), else on.
    pub packs_weights: bool,
    /// Whether the schedules of a plan's kernels are measured where the cost model cannot decide between them: by itself
    /// where the variable `TILEFUSE_TUNE` is `1`. What was measured is kept on disk; compiling a plan for the first time takes
    /// some seconds longer.
    pub tune: bool,
    /// Bytes of intermediates that a plan may hold beyond what eager holds at its peak, where that makes it faster: parts of
    /// sums of columns, for a kernel that reads a tensor once for its rows and its columns. By itself as the variable
    /// `TILEFUSE_WORKSPACE` says, in bytes, else 0. Without it such a tensor is read twice where eager holds nothing else.
    pub workspace_bytes: u64,
    /// A defect to be planted in every plan, to measure what tests find.
    #[doc(hidden)]
    pub fault: Option<crate::random::Fault>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_signatures: 64,
            products: products(),
            cuda_graphs: CudaGraphs::from_env(),
            packs_weights: packs_weights(),
            tune: tune(),
            workspace_bytes: workspace_bytes(),
            fault: None,
        }
    }
}

/// What the environment says of packed weights.
fn packs_weights() -> bool {
    match std::env::var("TILEFUSE_PACKING").unwrap_or_default().as_str() {
        "off" => false,
        "" | "on" => true,
        other => {
            tracing::warn!("TILEFUSE_PACKING: `{other}` is neither on nor off");
            true
        }
    }
}

/// What the environment says of measuring schedules.
fn tune() -> bool {
    let text = std::env::var("TILEFUSE_TUNE").unwrap_or_default();
    match text.as_str() {
        "1" => true,
        "" | "0" => false,
        other => {
            tracing::warn!("TILEFUSE_TUNE: {other:?} is neither 0 nor 1");
            false
        }
    }
}

/// What the environment says of memory beyond eager's.
fn workspace_bytes() -> u64 {
    let text = std::env::var("TILEFUSE_WORKSPACE").unwrap_or_default();
    if text.is_empty() {
        return 0;
    }
    text.parse().unwrap_or_else(|error| {
        tracing::warn!("TILEFUSE_WORKSPACE: {text:?} is no number of bytes: {error}");
        0
    })
}

/// What the environment says of products.
fn products() -> Products {
    let text = std::env::var("TILEFUSE_PRODUCTS").unwrap_or_default();
    text.parse().unwrap_or_else(|error| {
        if !text.is_empty() {
            tracing::warn!("TILEFUSE_PRODUCTS: {error}");
        }
        Products::Measured
    })
}

/// Why a call ran eager, or how often calls ran fused.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Calls that ran a compiled plan.
    pub fused_calls: u64,
    /// Those of them that launched a CUDA graph.
    pub graph_calls: u64,
    /// Calls that ran the model itself in order to capture it.
    pub captures: u64,
    /// Calls that ran the model itself for another reason, by reason.
    pub eager_calls: BTreeMap<String, u64>,
}

/// What a signature compiled to.
enum Entry {
    Compiled(Box<Compiled>),
    /// It runs eager, for this reason.
    Eager(Signature, String),
}

impl Entry {
    fn signature(&self) -> &Signature {
        match self {
            Entry::Compiled(compiled) => &compiled.signature,
            Entry::Eager(signature, _) => signature,
        }
    }
}

/// Plans by signature and everything else that does not depend on the model's type.
struct Engine {
    entries: RwLock<Vec<Arc<Entry>>>,
    compiling: Mutex<()>,
    stats: Mutex<Stats>,
    /// Names of the tensors in `named`.
    names: Vec<String>,
    named: Tensors,
    options: Options,
    /// Whether weights were found to be written too often to pack them.
    unpacked: AtomicBool,
    /// The weights that are packed.
    packs: Arc<PackStore>,
}

/// A model whose calls run through compiled plans.
///
/// The first call for a signature captures the model (that call is an eager call), compiles a plan, and later calls run
/// it. Whatever cannot be compiled runs as the model itself, counted in [`Fused::stats`] with the reason. Plans are
/// made for inference: where gradients are recorded for an input or parameter, the model runs eager.
///
/// Values that the model's code reads out of tensors through raw pointers cannot be seen by a capture; everything that
/// goes through libtorch's operators is.
pub struct Fused<M> {
    model: M,
    engine: Engine,
}

/// Wraps a model: an [`nn::Module`], an [`nn::ModuleT`] (then call [`Fused::forward_t`]), or a function or model from any
/// [`Values`](crate::Values) to others (then call [`Fused::call`]; see [`Forward`](crate::Forward)).
pub fn fuse<M>(model: M) -> Fused<M> {
    fuse_with(model, Options::default())
}

/// As [`fuse`], with options.
pub fn fuse_with<M>(model: M, options: Options) -> Fused<M> {
    let engine = Engine {
        entries: RwLock::default(),
        compiling: Mutex::default(),
        stats: Mutex::default(),
        names: Vec::new(),
        named: Tensors::default(),
        options,
        unpacked: AtomicBool::new(false),
        packs: Arc::default(),
    };
    Fused { model, engine }
}

impl<M> Fused<M> {
    /// Takes the names of parameters and buffers for explanations from a `VarStore`.
    pub fn named(self, vs: &nn::VarStore) -> Fused<M> {
        let mut names: Vec<(String, Tensor)> = vs.variables().into_iter().collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        self.with_names(names)
    }

    /// Names parameters and buffers for explanations.
    pub fn with_names(mut self, names: Vec<(String, Tensor)>) -> Fused<M> {
        let (names, tensors) = names.into_iter().unzip();
        (self.engine.names, self.engine.named) = (names, Tensors(tensors));
        self
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The model, to change; compiled plans are dropped, since they may not stand for it any more.
    pub fn model_mut(&mut self) -> &mut M {
        self.clear();
        &mut self.model
    }

    /// Drops all compiled plans.
    pub fn clear(&self) {
        self.engine.entries.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Counts of fused and eager calls.
    pub fn stats(&self) -> Stats {
        self.engine.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs `model` through the engine: `forward` calls the model itself on the inputs.
    pub fn run_with(
        &self,
        inputs: &[Tensor],
        forward: impl Fn(&M, &[Tensor]) -> Vec<Tensor>,
    ) -> Result<Vec<Tensor>, Error> {
        self.call_with(inputs, false, |model, inputs| Ok(forward(model, inputs)))
    }

    /// The plan for these inputs, compiled now if it is not yet, with `forward` as in [`Fused::run_with`].
    pub fn explain_with(
        &self,
        inputs: &[Tensor],
        forward: impl Fn(&M, &[Tensor]) -> Vec<Tensor>,
    ) -> Result<Explanation, Error> {
        self.explain_call(inputs, false, |model, inputs| Ok(forward(model, inputs)))
    }
}

impl<M: nn::Module> nn::Module for Fused<M> {
    fn forward(&self, xs: &Tensor) -> Tensor {
        let inputs = [xs.shallow_clone()];
        let run = self.run_with(&inputs, |model, inputs| inputs.iter().map(|x| model.forward(x)).collect());
        first(run).unwrap_or_else(|| self.model.forward(xs))
    }
}

impl<M: nn::ModuleT> Fused<M> {
    /// Calls a model that behaves differently in training.
    pub fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        if train {
            self.engine.count(String::from("the model is in training mode"));
            return self.model.forward_t(xs, true);
        }
        let inputs = [xs.shallow_clone()];
        let run = self
            .run_with(&inputs, |model, inputs| inputs.iter().map(|x| model.forward_t(x, false)).collect());
        first(run).unwrap_or_else(|| self.model.forward_t(xs, false))
    }
}

fn first(run: Result<Vec<Tensor>, Error>) -> Option<Tensor> {
    match run {
        Ok(outputs) => outputs.into_iter().next(),
        Err(error) => {
            tracing::warn!("{error}; the model runs itself");
            None
        }
    }
}

impl<M> std::fmt::Debug for Fused<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fused").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

type Forward<'a> = &'a Call<'a>;

impl Engine {
    fn count(&self, reason: String) {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        *stats.eager_calls.entry(reason).or_default() += 1;
    }

    fn eager(&self, reason: String, inputs: &[Tensor], forward: Forward<'_>) -> Vec<Tensor> {
        self.count(reason);
        forward(inputs)
    }

    fn run(&self, inputs: &[Tensor], forward: Forward<'_>) -> Result<Vec<Tensor>, Error> {
        let state = GlobalState::now()?;
        if let Some(reason) = self.eager_reason(state, inputs) {
            return Ok(self.eager(reason, inputs, forward));
        }
        let mut data = Vec::new();
        match self.find(inputs, state, forward, &mut data) {
            Some(entry) => self.run_entry(&entry, inputs, state, &data, forward),
            None => self.capture(inputs, state, forward),
        }
    }

    /// Why a call cannot run a plan whatever the model is.
    fn eager_reason(&self, state: GlobalState, inputs: &[Tensor]) -> Option<String> {
        let reason = if torch::is_capturing() {
            "another model is being captured"
        } else if state.autocast() {
            "autocast is on"
        } else if state.inference() {
            "inference mode is on"
        } else if grad_needed(state, inputs) {
            "gradients are recorded for an input"
        } else if state.grad() && grad_needed(state, &self.named) {
            "gradients are recorded for a parameter"
        } else {
            return None;
        };
        Some(String::from(reason))
    }

    fn find(
        &self,
        inputs: &[Tensor],
        state: GlobalState,
        forward: Forward<'_>,
        data: &mut Vec<*mut std::ffi::c_void>,
    ) -> Option<Arc<Entry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.iter().find(|e| e.signature().matches(inputs, state, forward, data)).cloned()
    }

    fn run_entry(
        &self,
        entry: &Arc<Entry>,
        inputs: &[Tensor],
        state: GlobalState,
        data: &[*mut std::ffi::c_void],
        forward: Forward<'_>,
    ) -> Result<Vec<Tensor>, Error> {
        let compiled = match &**entry {
            Entry::Eager(_, reason) => return Ok(self.eager(reason.clone(), inputs, forward)),
            Entry::Compiled(compiled) => compiled,
        };
        if state.grad() && grad_needed(state, &compiled.params) {
            let reason = String::from("gradients are recorded for a parameter");
            return Ok(self.eager(reason, inputs, forward));
        }
        match compiled.run(inputs, data, state.threads()) {
            Ok(outputs) => {
                let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
                stats.fused_calls += 1;
                stats.graph_calls += compiled.graph_calls.swap(0, Ordering::Relaxed);
                forward.ran_plan(&compiled.signature);
                Ok(outputs)
            }
            Err(Stop::Stale(reason)) => {
                tracing::debug!("{reason}; capturing again");
                if compiled.packs.are_written_often() {
                    self.unpacked.store(true, Ordering::Relaxed);
                }
                self.forget(entry);
                self.capture(inputs, state, forward)
            }
            Err(Stop::Unfit(reason)) => Ok(self.eager(String::from(reason), inputs, forward)),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn forget(&self, entry: &Arc<Entry>) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|e| !Arc::ptr_eq(e, entry));
        self.count_handles(&entries);
    }

    fn count_handles(&self, entries: &[Arc<Entry>]) {
        let plans = entries.iter().filter_map(|entry| match &**entry {
            Entry::Compiled(compiled) => Some(&**compiled),
            Entry::Eager(..) => None,
        });
        Compiled::count_handles(plans, &self.named);
    }

    /// Captures and compiles; the capturing call is the eager call.
    fn capture(
        &self,
        inputs: &[Tensor],
        state: GlobalState,
        forward: Forward<'_>,
    ) -> Result<Vec<Tensor>, Error> {
        let one_at_a_time = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut data = Vec::new();
        if let Some(entry) = self.find(inputs, state, forward, &mut data) {
            drop(one_at_a_time);
            return self.run_entry(&entry, inputs, state, &data, forward);
        }
        if self.entries.read().unwrap_or_else(PoisonError::into_inner).len() >= self.options.max_signatures {
            let reason = format!("more than {} signatures", self.options.max_signatures);
            return Ok(self.eager(reason, inputs, forward));
        }
        let signature = Signature::of(inputs, state, forward)?;
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).captures += 1;
        let start = Instant::now();
        let named = self.named.iter().map(Tensor::shallow_clone);
        let names: Vec<(String, Tensor)> = self.names.iter().cloned().zip(named).collect();
        let (outputs, trace) = torch::capture(
            inputs,
            &names,
            || catch_unwind(AssertUnwindSafe(|| forward(inputs))),
            |result| match result {
                Ok(outputs) => outputs.iter().map(Tensor::shallow_clone).collect(),
                Err(_) => Vec::new(),
            },
        )?;
        let outputs = outputs.unwrap_or_else(|panic| resume_unwind(panic));
        if forward.failed() {
            return Ok(outputs);
        }
        let signature = signature.returning(forward);
        let report =
            CompileReport { capture_ms: start.elapsed().as_secs_f64() * 1e3, ..CompileReport::default() };
        let refusal = forward.refusal().or_else(|| trace.refusals.first().map(ToString::to_string));
        let entry = match refusal {
            Some(refusal) => Entry::Eager(signature, refusal),
            None => match compile(trace, signature.clone(), &self.options_now(), &self.packs, report) {
                Ok(compiled) => Entry::Compiled(Box::new(compiled)),
                Err(error) => Entry::Eager(signature, error.to_string()),
            },
        };
        if let Entry::Eager(_, reason) = &entry {
            tracing::info!("runs eager: {reason}");
        }
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.push(Arc::new(entry));
        self.count_handles(&entries);
        Ok(outputs)
    }

    /// The options, without packed weights where they are written often.
    fn options_now(&self) -> Options {
        let packs_weights = self.options.packs_weights && !self.unpacked.load(Ordering::Relaxed);
        Options { packs_weights, ..self.options.clone() }
    }

    fn explain(&self, inputs: &[Tensor], forward: Forward<'_>) -> Result<Explanation, Error> {
        let state = GlobalState::now()?;
        if let Some(reason) = self.eager_reason(state, inputs) {
            return Err(Error::RunsEager(reason));
        }
        let mut data = Vec::new();
        if self.find(inputs, state, forward, &mut data).is_none() {
            self.capture(inputs, state, forward)?;
        }
        match self.find(inputs, state, forward, &mut data).as_deref() {
            Some(Entry::Compiled(compiled)) => Ok(Explanation::of(compiled)),
            Some(Entry::Eager(_, reason)) => Err(Error::RunsEager(reason.clone())),
            None => Err(Error::RunsEager(String::from("too many signatures"))),
        }
    }
}
