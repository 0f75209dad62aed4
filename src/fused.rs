//! Fused models: what [`fuse`] returns.

mod call;
pub(crate) mod forward;
mod profile;
mod strict;
mod table;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use tch::Tensor;
use tch::nn;

use crate::engine::{
    Addresses, Audits, Call, CompileReport, Compiled, GuardMiss, OwnTensor, PrepackCache, Signature, Stop,
    Tensors, WorkspacePool, audit_reason, compile, forget_dropped, grad_needed,
};
use crate::explain::{Explanation, counted};
use crate::torch::{self, GlobalState, Meta, Trace};
use crate::{Error, Options, Prepack, Strict};

pub(crate) use strict::{Unfused, left_to_libtorch};
use table::{Entry, Outcome, Table};

/// Why a call ran eager, or how often calls ran fused.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Calls that ran a compiled plan.
    pub fused_calls: u64,
    /// Those of them that launched a CUDA graph.
    pub graph_calls: u64,
    /// Calls that ran the model itself in order to capture it.
    pub captures: u64,
    /// Calls that ran the model itself in order to compare what it does with what was captured, see
    /// [`Options::audit`](crate::Options::audit).
    pub audits: u64,
    /// Signatures that were dropped because others were used since, see
    /// [`Options::max_signatures`](crate::Options::max_signatures).
    pub evictions: u64,
    /// Plans that were compiled.
    pub compiles: u64,
    /// Microseconds that compiling them took, without the captures.
    pub compile_us: u64,
    /// Plans that did not stand for the model any more when they were called, so that it was captured again, by reason.
    pub recaptures: BTreeMap<String, u64>,
    /// Guards that calls did not pass, so that they were captured although there were plans: by what they look at, "size 1 of
    /// input 0".
    pub guard_misses: BTreeMap<String, GuardMiss>,
    /// Calls that ran the model itself for another reason, by reason.
    pub eager_calls: BTreeMap<String, u64>,
    /// Calls whose plan failed, by error. [`Fused::call`] returns it, and `forward` of a module runs the model itself.
    pub failed_calls: BTreeMap<String, u64>,
}

impl Stats {
    fn missed(&mut self, (guard, expected, found): (String, String, String)) {
        let calls = self.guard_misses.get(&guard).map_or(0, |miss| miss.calls) + 1;
        self.guard_misses.insert(guard, GuardMiss { calls, expected, found });
    }
}

/// Plans by signature and everything else that does not depend on the model's type.
struct Engine {
    table: Table,
    compiling: Mutex<()>,
    stats: Mutex<Stats>,
    /// Names of the tensors in `named`.
    names: Vec<String>,
    named: Tensors,
    options: Options,
    /// Whether weights were found to be written too often to prepack them, or where that cannot be seen.
    unpacked: AtomicBool,
    /// The prepacked weights.
    packs: Arc<PrepackCache>,
    /// Memory for intermediates, which the plans share.
    workspaces: Arc<WorkspacePool>,
}

/// A model whose calls run through compiled plans.
///
/// The first call for a signature captures the model (that call is an eager call), compiles a plan, and later calls run
/// it, but for audits, which are eager calls too. Whatever cannot be compiled runs as the model itself, counted in [`Fused::stats`] with the reason. Plans are
/// made for inference: where gradients are recorded for an input or parameter, the model runs eager.
///
/// # What a plan stands for
///
/// A capture sees every operator that the model calls on the calling thread, with its arguments. Inputs, parameters and
/// buffers are read anew in each call, and random numbers are drawn anew. Everything else that the model's code reads is
/// seen only as what it made the code do then: a flag that chooses a branch, a counter, a clock, a number that is computed
/// in Rust, which of several weights was taken. A plan repeats that. [`Options::audit`] records some later calls as well,
/// and where the model does something else, that signature runs eager from then on, with the difference as the reason;
/// calls between two audits are not compared. A model that reads such state takes it as an input, or as a tensor that it
/// keeps, or [`Fused::clear`] is called after a change. What a model reads or writes through raw pointers cannot be seen.
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
        table: Table::default(),
        compiling: Mutex::default(),
        stats: Mutex::default(),
        names: Vec::new(),
        named: Tensors::default(),
        options,
        unpacked: AtomicBool::new(false),
        packs: Arc::default(),
        workspaces: Arc::default(),
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

    /// Drops all compiled plans and gives the memory that they kept back to the system.
    pub fn clear(&self) {
        self.engine.table.clear();
        self.engine.workspaces.clear();
        forget_dropped();
        torch::trim_memory();
        torch::empty_cuda_cache();
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

    /// The plan for these inputs, compiled now if it is not yet, with `forward` as in [`Fused::run_with`]: that runs the model once, with
    /// what it writes and draws.
    pub fn explain_with(
        &self,
        inputs: &[Tensor],
        forward: impl Fn(&M, &[Tensor]) -> Vec<Tensor>,
    ) -> Result<Explanation, Error> {
        self.explain_call(inputs, (false, false), |model, inputs| Ok(forward(model, inputs)))
    }

    /// As [`Fused::explain_with`], with times as in [`Fused::profile`].
    pub fn profile_with(
        &self,
        inputs: &[Tensor],
        forward: impl Fn(&M, &[Tensor]) -> Vec<Tensor>,
    ) -> Result<Explanation, Error> {
        self.explain_call(inputs, (false, true), |model, inputs| Ok(forward(model, inputs)))
    }
}

impl<M: nn::Module> nn::Module for Fused<M> {
    fn forward(&self, xs: &Tensor) -> Tensor {
        let inputs = [xs.shallow_clone()];
        let run = self.run_with(&inputs, |model, inputs| inputs.iter().map(|x| model.forward(x)).collect());
        self.engine.first(run).unwrap_or_else(|| self.model.forward(xs))
    }
}

impl<M: nn::ModuleT> Fused<M> {
    /// Calls a model that behaves differently in training.
    pub fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        if train {
            self.engine.count(String::from(
                "the model is in training mode: call `forward_t` with `train` false to infer",
            ));
            return self.model.forward_t(xs, true);
        }
        let inputs = [xs.shallow_clone()];
        let run = self
            .run_with(&inputs, |model, inputs| inputs.iter().map(|x| model.forward_t(x, false)).collect());
        self.engine.first(run).unwrap_or_else(|| self.model.forward_t(xs, false))
    }
}

/// Why inputs without a tensor in them keep a call eager.
fn undefined(inputs: &[Tensor]) -> Option<String> {
    let at = inputs.iter().position(|t| !t.defined())?;
    Some(format!("input {at} is an undefined tensor: leave it out, or make an `Option` of it"))
}

impl<M> std::fmt::Debug for Fused<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fused").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

type Forward<'a> = &'a Call<'a>;

impl Engine {
    fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an eager call; whether it is the first for this reason.
    fn count(&self, reason: String) -> bool {
        let mut stats = self.stats();
        let calls = stats.eager_calls.entry(reason).or_default();
        *calls += 1;
        *calls == 1
    }

    fn eager(&self, reason: String, inputs: &[Tensor], forward: Forward<'_>) -> Result<Vec<Tensor>, Error> {
        self.refuses_eager(&reason)?;
        self.count(reason);
        Ok(forward(inputs))
    }

    /// The result of a call of a model with one; `None` where the model has to run itself, which is counted, and said
    /// once for each reason.
    fn first(&self, run: Result<Vec<Tensor>, Error>) -> Option<Tensor> {
        const ADVICE: &str =
            "where the model fails by itself, too, mend it, else report it as a defect of Tilefuse";
        let reason = match run.map(|outputs| outputs.into_iter().next()) {
            Ok(Some(output)) => return Some(output),
            Ok(None) => format!("the plan has no result: {}", crate::error::DEFECT),
            Err(error) => format!("the plan failed: {error}: {ADVICE}"),
        };
        if self.count(reason.clone()) {
            tracing::warn!("the model runs itself: {reason}");
        }
        None
    }

    fn run(&self, inputs: &[Tensor], forward: Forward<'_>) -> Result<Vec<Tensor>, Error> {
        let state = GlobalState::now()?;
        if torch::is_capturing() {
            // Whatever is asked for: the model around it is what runs.
            self.count(String::from("another model is being captured: fuse one of them only"));
            return Ok(forward(inputs));
        }
        if let Some(reason) = self.eager_reason(state, inputs) {
            return self.eager(reason, inputs, forward);
        }
        let mut data = Addresses::new();
        match self.table.find(inputs, state, forward, &mut data) {
            Some(entry) => self.run_entry(entry, inputs, state, &data, forward),
            None => match self.crowded() {
                Some(reason) => self.eager(reason, inputs, forward),
                None => self.capture(inputs, state, forward, 0),
            },
        }
    }

    /// Why a call of a new signature is not compiled though it could be.
    fn crowded(&self) -> Option<String> {
        let most = self.options.max_signatures;
        let is_strict = self.options.strict != Strict::Off;
        let reason = || {
            format!(
                "more signatures are called in turn than the {most} that are kept: pad inputs to fewer sizes, or raise \
                 `Options::max_signatures`"
            )
        };
        (most > 0 && !is_strict && !self.table.admits(most)).then(reason)
    }

    /// Why a call cannot run a plan whatever the model is.
    fn eager_reason(&self, state: GlobalState, inputs: &[Tensor]) -> Option<String> {
        let reason = if state.autocast() {
            "autocast is on: convert the model's weights and inputs instead"
        } else if state.inference() {
            "inference mode is on: use `tch::no_grad` instead"
        } else {
            return self.grad_reason(state, inputs).map(String::from);
        };
        Some(String::from(reason))
    }

    /// Why a call cannot run a plan because of gradients.
    fn grad_reason(&self, state: GlobalState, inputs: &[Tensor]) -> Option<&'static str> {
        if grad_needed(state, inputs) {
            Some("gradients are recorded for an input: call it under `tch::no_grad` for inference")
        } else if state.grad() && grad_needed(state, &self.named) {
            Some(PARAMETER_GRADIENTS)
        } else {
            None
        }
    }

    fn run_entry(
        &self,
        entry: Arc<Entry>,
        inputs: &[Tensor],
        state: GlobalState,
        data: &[*mut std::ffi::c_void],
        forward: Forward<'_>,
    ) -> Result<Vec<Tensor>, Error> {
        let (compiled, audits) = match &entry.outcome {
            Outcome::Eager(reason) => return self.eager(reason.clone(), inputs, forward),
            Outcome::Unfused(unfused) => return Err(unfused.error()),
            Outcome::Plan(compiled, audits) => (compiled, audits),
        };
        if state.grad() && grad_needed(state, &compiled.params) {
            return self.eager(String::from(PARAMETER_GRADIENTS), inputs, forward);
        }
        let has_new_input = audits.has_new_input(inputs);
        if (audits.is_due() || has_new_input)
            && let Some(outputs) = self.audit(&entry, compiled, audits, (inputs, has_new_input), forward)?
        {
            return Ok(outputs);
        }
        match compiled.run(inputs, data, state.threads()) {
            Ok(outputs) => {
                let mut stats = self.stats();
                stats.fused_calls += 1;
                if compiled.is_on_gpu() {
                    stats.graph_calls += compiled.graph_calls.swap(0, Ordering::Relaxed);
                }
                entry.count_call();
                forward.ran_plan(&entry.signature);
                Ok(outputs)
            }
            Err(Stop::Stale(reason)) => {
                tracing::debug!("{reason}");
                *self.stats().recaptures.entry(reason.to_string()).or_default() += 1;
                if compiled.packs.given_up().is_some() {
                    self.unpacked.store(true, Ordering::Relaxed);
                }
                let (short_lived, signature) = (entry.short_lived(), entry.signature.clone());
                self.table.forget(entry, &self.named);
                if short_lived < Entry::MAX_SHORT_LIVED {
                    return self.capture(inputs, state, forward, short_lived);
                }
                let reason = changes_often(&reason);
                self.insert(signature, Outcome::Eager(reason.clone()), None, 0);
                self.eager(reason, inputs, forward)
            }
            Err(Stop::Unfit(reason)) => self.eager(reason.into_owned(), inputs, forward),
            Err(Stop::Failed(error)) => {
                *self.stats().failed_calls.entry(error.to_string()).or_default() += 1;
                Err(error)
            }
        }
    }

    /// Runs the model itself and compares what it does with what the plan was made of. `None` where that cannot be done
    /// now; the plan is to run then. Where an input is new (see [`Audits::has_new_input`]), a guard failed, and the plan will stop as well.
    fn audit(
        &self,
        entry: &Arc<Entry>,
        compiled: &Compiled,
        audits: &Audits,
        (inputs, has_new_input): (&[Tensor], bool),
        forward: Forward<'_>,
    ) -> Result<Option<Vec<Tensor>>, Error> {
        let alone = match self.compiling.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if has_new_input => {
                Some(self.compiling.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Err(TryLockError::WouldBlock) => None,
        };
        if has_new_input && !self.table.has(entry) {
            // Another thread has found out meanwhile.
            drop(alone);
            return self.run(inputs, forward).map(Some);
        }
        if has_new_input && !audits.has_new_input(inputs) {
            return Ok(None);
        }
        let possible = alone.is_some() && compiled.can_audit(inputs);
        audits.set_done(possible);
        if !possible {
            const REASON: &str = "captured while gradients were recorded, so that what the model keeps is not known: \
                                  make the first call under `tch::no_grad`";
            drop(alone);
            let eager = || self.eager(String::from(REASON), inputs, forward);
            return audits.is_unchecked().then(eager).transpose();
        }
        self.stats().audits += 1;
        let _span = tracing::info_span!("audit").entered();
        let (outputs, trace, report) = self.record(inputs, forward)?;
        if forward.failed() {
            return Ok(Some(outputs));
        }
        let returned = || entry.signature.output_difference(forward);
        let metas = inputs.iter().map(Meta::of).collect::<Result<Vec<_>, _>>()?;
        let own = self.own_inputs(&metas);
        let Some(difference) = audits.difference(&trace, &own).or_else(returned) else {
            audits.confirm(inputs);
            return Ok(Some(outputs));
        };
        let mut signature = entry.signature.clone().returning(forward);
        // The recorded call was one with an input that the model holds itself, or the one in which the model made what it keeps: this one
        // is like those that follow.
        let reason = if audits.had_as_input(&trace) {
            Some("an input of the recorded call is a tensor of the model")
        } else {
            compiled.has_cached(&trace).then_some("the model keeps what it made in the recorded call")
        };
        let (mut short_lived, reason) = (0, reason.filter(|_| trace.refusals.is_empty()));
        let outcome = if let Some(reason) = reason {
            *self.stats().recaptures.entry(reason.to_owned()).or_default() += 1;
            short_lived = entry.short_lived();
            if short_lived < Entry::MAX_SHORT_LIVED {
                self.outcome(trace, report, forward, &mut signature)
            } else {
                Outcome::Eager(changes_often(reason))
            }
        } else {
            Outcome::Eager(audit_reason(&difference))
        };
        let is_found = matches!(outcome, Outcome::Eager(_));
        self.insert(signature, outcome, Some(entry), short_lived);
        if is_found {
            self.table.audit_all();
        }
        Ok(Some(outputs))
    }

    /// Inputs, each with its position, as a recording would name them if the model held them.
    fn own_inputs<'a>(&'a self, metas: &'a [Meta]) -> Vec<(usize, OwnTensor<'a>)> {
        let identity = |t: &Tensor| Meta::of(t).map_or(0, |m| m.tensor_impl);
        let name = |meta: &Meta| {
            let at = self.named.iter().position(|t| identity(t) == meta.tensor_impl)?;
            self.names.get(at).map(String::as_str)
        };
        metas.iter().enumerate().map(|(at, meta)| (at, OwnTensor { name: name(meta), meta })).collect()
    }

    /// Captures and compiles; the capturing call is the eager call. So many plans of the signature before it were of little use.
    fn capture(
        &self,
        inputs: &[Tensor],
        state: GlobalState,
        forward: Forward<'_>,
        short_lived: u64,
    ) -> Result<Vec<Tensor>, Error> {
        // No signature matches such an input, so that every call with one comes here.
        if let Some(reason) = undefined(inputs) {
            return self.eager(reason, inputs, forward);
        }
        let one_at_a_time = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut data = Addresses::new();
        if let Some(entry) = self.table.find(inputs, state, forward, &mut data) {
            drop(one_at_a_time);
            return self.run_entry(entry, inputs, state, &data, forward);
        }
        if let Some(reason) = self.capture_obstacle(inputs) {
            return self.eager(reason, inputs, forward);
        }
        let signature = Signature::of(inputs, state, forward)?;
        let missed = self.table.missed(inputs, state, forward);
        let mut stats = self.stats();
        stats.captures += 1;
        if let Some(miss) = missed {
            stats.missed(miss);
        }
        drop(stats);
        let (outputs, trace, report) = self.record(inputs, forward)?;
        if forward.failed() {
            return Ok(outputs);
        }
        let mut signature = signature.returning(forward);
        let outcome = self.outcome(trace, report, forward, &mut signature);
        let returned = self.captured(&outcome).map(|()| outputs);
        self.insert(signature, outcome, None, short_lived);
        returned
    }

    /// Why a call cannot be captured.
    fn capture_obstacle(&self, inputs: &[Tensor]) -> Option<String> {
        if self.options.max_signatures == 0 {
            return Some(String::from("no signatures are compiled: raise `Options::max_signatures`"));
        }
        let identity = |t: &Tensor| Meta::of(t).map_or(0, |m| m.tensor_impl);
        let given: Vec<usize> = inputs.iter().map(identity).collect();
        if self.named.iter().any(|param| given.contains(&identity(param))) {
            return Some(String::from("an input is a parameter of the model: pass a copy in the first call"));
        }
        Signature::indescribable(inputs)
    }

    /// Names of parameters and buffers.
    fn all_names(&self) -> Vec<(String, Tensor)> {
        self.names.iter().cloned().zip(self.named.iter().map(Tensor::shallow_clone)).collect()
    }

    /// Runs the model itself and records what it does.
    fn record(
        &self,
        inputs: &[Tensor],
        forward: Forward<'_>,
    ) -> Result<(Vec<Tensor>, Trace, CompileReport), Error> {
        self.record_timed(inputs, forward, None)
    }

    /// The same, with someone who times each operator.
    fn record_timed(
        &self,
        inputs: &[Tensor],
        forward: Forward<'_>,
        clock: Option<Rc<RefCell<dyn torch::CallClock>>>,
    ) -> Result<(Vec<Tensor>, Trace, CompileReport), Error> {
        let _span = tracing::info_span!("capture").entered();
        let start = Instant::now();
        let names = self.all_names();
        let _lines = self.options.source_lines.then(torch::SourceLines::keep);
        let (outputs, trace) = torch::capture_timed(
            inputs,
            &names,
            clock,
            || catch_unwind(AssertUnwindSafe(|| forward(inputs))),
            |result| match result {
                Ok(outputs) => outputs.iter().map(Tensor::shallow_clone).collect(),
                Err(_) => Vec::new(),
            },
        )?;
        let outputs = outputs.unwrap_or_else(|panic| resume_unwind(panic));
        let capture_ms = start.elapsed().as_secs_f64() * 1e3;
        Ok((outputs, trace, CompileReport { capture_ms, ..CompileReport::default() }))
    }

    /// What a trace compiles to.
    fn outcome(
        &self,
        trace: Trace,
        report: CompileReport,
        forward: Forward<'_>,
        signature: &mut Signature,
    ) -> Outcome {
        let eager = |reason: String| {
            tracing::info!("runs eager: {reason}");
            Outcome::Eager(reason)
        };
        let refusal = trace.refusals.first().map(ToString::to_string);
        if let Some(refusal) = forward.refusal().or(refusal) {
            return eager(refusal);
        }
        let audits = match Audits::new(self.options.audit, &trace) {
            Ok(audits) => audits,
            Err(error) => return eager(error.reason()),
        };
        let start = Instant::now();
        let compiled = compile(trace, signature, &self.options_now(), &self.packs, &self.workspaces, report);
        let mut stats = self.stats();
        stats.compiles += u64::from(compiled.is_ok());
        stats.compile_us += start.elapsed().as_micros() as u64;
        drop(stats);
        match compiled {
            Ok(compiled) => match self.unfused(&compiled) {
                Some(unfused) => Outcome::Unfused(unfused),
                None => Outcome::Plan(Box::new(compiled), audits),
            },
            Err(error) => eager(error.reason()),
        }
    }

    fn insert(&self, signature: Signature, outcome: Outcome, old: Option<&Arc<Entry>>, short_lived: u64) {
        let entry = Entry::new(signature, outcome, short_lived);
        let evicted = self.table.insert(entry, old, self.options.max_signatures, &self.named);
        if evicted > 0 {
            // It may be as large as a plan needed that is gone.
            self.workspaces.clear();
            torch::trim_memory();
            self.stats().evictions += evicted as u64;
        }
    }

    /// The options, without prepacked weights where these were given up.
    fn options_now(&self) -> Options {
        let prepack_weights = match self.unpacked.load(Ordering::Relaxed) {
            true => Prepack::Never,
            false => self.options.prepack_weights,
        };
        Options { prepack_weights, ..self.options.clone() }
    }

    /// How many calls of plans have failed, and what one of them failed with.
    fn failures(&self) -> Option<String> {
        let stats = self.stats();
        let calls: u64 = stats.failed_calls.values().sum();
        let first = stats.failed_calls.keys().next()?;
        Some(format!("{} of plans failed, as with: {first}", counted(calls, "call")))
    }

    fn explain(&self, inputs: &[Tensor], forward: Forward<'_>) -> Result<Explanation, Error> {
        let state = GlobalState::now()?;
        if let Some(reason) = self.grad_reason(state, inputs) {
            let plan = tch::no_grad(|| self.explain(inputs, forward))?;
            return Ok(plan.with_note(reason));
        }
        if let Some(reason) = self.eager_reason(state, inputs).or_else(|| undefined(inputs)) {
            return Err(Error::RunsEager(reason));
        }
        let mut data = Addresses::new();
        if self.table.find(inputs, state, forward, &mut data).is_none() {
            match self.capture(inputs, state, forward, 0) {
                // The plan is there to be looked at.
                Ok(_) | Err(Error::Unfused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        match self.table.find(inputs, state, forward, &mut data).as_deref() {
            Some(Entry { outcome: Outcome::Plan(compiled, _), .. }) => {
                let plan = Explanation::of(compiled, &self.all_names());
                let needs_grad = state.grad() && grad_needed(state, &compiled.params);
                let note = needs_grad.then(|| String::from(PARAMETER_GRADIENTS)).or_else(|| self.failures());
                Ok(match note {
                    Some(note) => plan.with_note(&note),
                    None => plan,
                })
            }
            Some(Entry { outcome: Outcome::Unfused(unfused), .. }) => Ok(unfused.plan.clone()),
            Some(Entry { outcome: Outcome::Eager(reason), .. }) => Err(Error::RunsEager(reason.clone())),
            None => {
                let reason = self.capture_obstacle(inputs);
                Err(Error::RunsEager(
                    reason.unwrap_or_else(|| String::from("the plan was dropped meanwhile")),
                ))
            }
        }
    }
}

/// The reason for a signature whose plans never stood for the model for long.
fn changes_often(reason: &str) -> String {
    format!(
        "{reason}, {} times in turn after few calls: keep what changes in tensors (no `.item()`, no new parameters), or pass it as an input",
        Entry::MAX_SHORT_LIVED
    )
}

/// The reason for calls with parameters that a gradient is recorded for.
const PARAMETER_GRADIENTS: &str =
    "gradients are recorded for a parameter: call it under `tch::no_grad` for inference";
