//! Hints of a tolerance: whether parts of a model, as a plan computes them, are within it of eager, and what becomes of those that
//! are not.
//!
//! What a part gives to others is an output of the plan while it is compiled. The plan runs on the inputs of the captured call, and
//! so do libtorch's operators one by one. A part that differs by more is left to libtorch in the next attempt, and then with all that
//! it is computed from, which is eager's own way.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::Tensor;
use tilefuse_fusion::{Declined, Graph, NodeId, Op, ValueRef};

use super::compile::Compiled;
use super::convert::Converted;
use super::evaluate::apply;
use super::exec::{Stop, device_id};
use super::steps::call_of;
use crate::Error;
use crate::hints::{Hint, Tolerated, tolerances};
use crate::judge::difference_to_largest;
use crate::torch::{Call, GeneratorState, GlobalState, Trace, addresses_of};

/// A part of the model whose results must be within a tolerance of eager's, see [`Hint::tolerance`](crate::Hint::tolerance).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToleranceReport {
    /// The module, or the operator.
    pub part: String,
    /// What was asked for, relative to the largest element of each result.
    pub relative: f64,
    /// What it differs by in the plan, with the inputs of the captured call; none where nothing was compared.
    pub difference: Option<f64>,
    /// What was found, and what libtorch computes for it.
    pub reason: String,
}

/// How much of a part is left to libtorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    Nothing,
    /// Its own operators.
    Part,
    /// With those that it is computed from.
    WithSources,
}

/// A part of the model that has a tolerance.
#[derive(Debug)]
struct Part {
    hint: Tolerated,
    left: Left,
    /// What its results differed by in the last attempt; none where nothing can be compared.
    difference: Option<f64>,
    /// What was found, and what is left to libtorch for it.
    reason: String,
    /// Its results, as positions among the outputs that were added.
    results: Vec<usize>,
}

/// The parts of a model that have a tolerance, over the attempts to compile it.
#[derive(Debug, Default)]
pub(super) struct Tolerances {
    /// None before the first attempt.
    parts: Option<Vec<Part>>,
    /// What the parts give to others.
    added: Vec<ValueRef>,
    /// The same as libtorch's operators compute it.
    eager: Vec<Tensor>,
    /// Whether nothing can be compared.
    writes: bool,
    attempts: u32,
}

impl Tolerances {
    /// Leaves to libtorch what attempts before have found, and adds the outputs that are compared.
    pub(super) fn prepare(
        &mut self,
        hints: &[Hint],
        graph: &mut Graph,
        modules: &[String],
        (trace, converted, calls): (&Trace, &Converted, &[Arc<Call>]),
    ) -> Result<(), Error> {
        if self.parts.is_none() {
            let found = tolerances(hints, graph, modules);
            self.writes = !graph.updates.is_empty();
            let parts: Vec<Part> = found.into_iter().map(|hint| self.part(hint, graph)).collect();
            if !self.added.is_empty() && !self.writes {
                self.eager = eager_values(graph, &self.added, (trace, converted, calls))?;
            }
            self.parts = Some(parts);
        }
        self.attempts += 1;
        for part in self.parts.iter().flatten() {
            part.keep_calls(graph);
        }
        if !self.writes {
            for &value in &self.added {
                let ty = graph.ty(value).clone();
                graph.outputs.push(value);
                graph.buffers.push(ty);
            }
            if !graph.aliases.is_empty() {
                graph.aliases.resize(graph.outputs.len(), None);
            }
        }
        Ok(())
    }

    /// A part with its results, which are added to those that are compared.
    fn part(&mut self, hint: Tolerated, graph: &Graph) -> Part {
        let is_own = |id: NodeId| graph.node(id).origin.is_some_and(|origin| hint.origins.contains(&origin));
        let returned: FxHashSet<ValueRef> = graph.outputs.iter().copied().collect();
        let mut results = Vec::new();
        for id in graph.ids().filter(|&id| is_own(id)) {
            let used: BTreeSet<u16> =
                graph.users(id).iter().filter(|(user, _)| !is_own(*user)).map(|(_, edge)| edge.out).collect();
            for out in 0..graph.node(id).outs.len() as u16 {
                let value = ValueRef { node: id, out };
                if used.contains(&out) || returned.contains(&value) {
                    let known = self.added.iter().position(|&added| added == value);
                    results.push(known.unwrap_or(self.added.len()));
                    if known.is_none() {
                        self.added.push(value);
                    }
                }
            }
        }
        let mut part = Part { hint, left: Left::Nothing, difference: None, reason: String::new(), results };
        if self.writes {
            let found = "its results cannot be compared, since the model writes inputs or parameters";
            part.leave(Left::WithSources, found);
        }
        part
    }

    /// Compares the results of a plan, whose added outputs are no longer its outputs then. Whether all parts are as they were asked to
    /// be; otherwise more is left to libtorch in the next attempt.
    ///
    /// # Errors
    /// [`Error::Tolerance`] where nothing more can be.
    pub(super) fn are_met(&mut self, compiled: &mut Compiled, trace: &Trace) -> Result<bool, Error> {
        if !self.writes && !self.added.is_empty() {
            let ours = self.results(compiled, trace)?;
            compiled.forget_last_outputs(self.added.len());
            let differences: Vec<f64> = tch::no_grad(|| {
                self.eager.iter().zip(&ours).map(|(eager, ours)| difference_to_largest(eager, ours)).collect()
            });
            let mut met = true;
            for part in self.parts.iter_mut().flatten() {
                met &= part.is_met(&differences, self.attempts)?;
            }
            if !met {
                return Ok(false);
            }
        }
        compiled.tolerances = self.parts.iter().flatten().map(|part| part.report()).collect();
        Ok(true)
    }

    /// The added outputs of a call of the plan with the inputs of the captured one.
    fn results(&self, compiled: &mut Compiled, trace: &Trace) -> Result<Vec<Tensor>, Error> {
        let missing = || Error::Internal(String::from("an input of the trace is gone"));
        let input = |&id| trace.tensor(id).map(Tensor::shallow_clone).ok_or_else(missing);
        let inputs = trace.inputs.iter().map(input).collect::<Result<Vec<_>, _>>()?;
        let data = addresses_of(&inputs)?;
        let generators: Vec<GeneratorState> =
            compiled.draws_on.iter().map(|&device| GeneratorState::of(device)).collect::<Result<_, _>>()?;
        // All outputs are returned, for this call.
        let buffers = std::mem::take(&mut compiled.plan.graph.buffers);
        let results = compiled.run(&inputs, &data, GlobalState::now()?.threads());
        compiled.plan.graph.buffers = buffers;
        generators.iter().try_for_each(GeneratorState::restore)?;
        let mut results = results.map_err(|stop| match stop {
            Stop::Failed(error) => error,
            Stop::Stale(reason) | Stop::Unfit(reason) => Error::RunsEager(reason.into_owned()),
        })?;
        Ok(results.split_off(results.len().saturating_sub(self.added.len())))
    }
}

impl Part {
    /// Whether its results are as they were asked to be; else more of it is left to libtorch.
    fn is_met(&mut self, differences: &[f64], attempts: u32) -> Result<bool, Error> {
        let of = |&at: &usize| differences.get(at).copied().unwrap_or(f64::INFINITY);
        let difference = self.results.iter().map(of).fold(0.0, f64::max);
        self.difference = Some(difference);
        let by = match difference.is_finite() {
            true => format!("differs from eager's by {difference:.1e}"),
            false => String::from("differs from eager's in NaN, infinities or integers"),
        };
        let met = difference <= self.hint.relative;
        let as_what = match self.left {
            Left::Nothing if met => "in the plan it",
            Left::Nothing => "as kernels it",
            _ => "in libtorch, too, it",
        };
        let found = format!("{as_what} {by}");
        if met {
            if self.left == Left::Nothing {
                self.leave(Left::Nothing, &found);
            }
            return Ok(true);
        }
        match self.left {
            // Parts that depend on each other could take turns.
            Left::Nothing if attempts < 3 => self.leave(Left::Part, &found),
            Left::Nothing | Left::Part => self.leave(Left::WithSources, &found),
            Left::WithSources => {
                let Tolerated { of, part, relative, .. } = self.hint.clone();
                return Err(Error::Tolerance { of, part, difference, relative });
            }
        }
        Ok(false)
    }

    /// Leaves so much to libtorch, for what was found.
    fn leave(&mut self, left: Left, found: &str) {
        let Tolerated { of, part, relative, .. } = &self.hint;
        let then = match left {
            Left::Nothing => "",
            Left::Part => ": libtorch computes it",
            Left::WithSources => ": libtorch computes it and what it is computed from",
        };
        self.reason =
            format!("the hint `tolerance` for {of} asks for {relative:.1e} of {part}, and {found}{then}");
        self.left = left;
    }

    fn keep_calls(&self, graph: &mut Graph) {
        if self.left == Left::Nothing {
            return;
        }
        let own: Vec<NodeId> = graph
            .ids()
            .filter(|&id| graph.node(id).origin.is_some_and(|origin| self.hint.origins.contains(&origin)))
            .collect();
        let mut kept: FxHashSet<NodeId> = own.iter().copied().collect();
        if self.left == Left::WithSources {
            let mut next = own;
            while let Some(id) = next.pop() {
                next.extend(
                    graph.operands(id).iter().map(|value| value.node).filter(|&node| kept.insert(node)),
                );
            }
        }
        for id in graph.ids().filter(|id| kept.contains(id)).collect::<Vec<_>>() {
            // Where a hint keeps it there already, that is why.
            if matches!(graph.node(id).op, Op::Aten(_)) && !matches!(graph.node(id).kernel, Some(Err(_))) {
                let remedy =
                    format!("a larger tolerance than {:.1e} of {}", self.hint.relative, self.hint.part);
                graph.keep_call(id, Declined::new(self.reason.clone(), remedy));
            }
        }
    }

    fn report(&self) -> ToleranceReport {
        // Data as JSON has no infinity.
        let difference = self.difference.filter(|difference| difference.is_finite());
        let Tolerated { part, relative, .. } = &self.hint;
        ToleranceReport { part: part.clone(), relative: *relative, difference, reason: self.reason.clone() }
    }
}

/// Values of a functional graph as libtorch's operators compute them, on the inputs of the captured call.
fn eager_values(
    graph: &Graph,
    wanted: &[ValueRef],
    (trace, converted, calls): (&Trace, &Converted, &[Arc<Call>]),
) -> Result<Vec<Tensor>, Error> {
    let missing = || Error::Internal(String::from("a value of the recorded run is not known"));
    let order = graph.topological().ok_or_else(missing)?;
    let mut last: FxHashMap<ValueRef, usize> = FxHashMap::default();
    for (at, &id) in order.iter().enumerate() {
        last.extend(graph.operands(id).iter().map(|&value| (value, at)));
    }
    last.extend(wanted.iter().map(|&value| (value, order.len())));
    let generators = generators(graph, &order)?;
    let mut values: FxHashMap<ValueRef, Tensor> = FxHashMap::default();
    for (at, &id) in order.iter().enumerate() {
        let tensor = |value: &ValueRef| values.get(value).map(Tensor::shallow_clone).ok_or_else(missing);
        let results = match &graph.node(id).op {
            Op::Input(at) => vec![
                trace.inputs.get(*at as usize).and_then(|&id| trace.tensor(id)).map(Tensor::shallow_clone),
            ],
            Op::Param(at) => vec![converted.params.get(*at as usize).map(Tensor::shallow_clone)],
            Op::Const(at) => vec![converted.consts.get(*at as usize).map(Tensor::shallow_clone)],
            op => {
                let operands = graph.operands(id).iter().map(tensor).collect::<Result<Vec<_>, _>>()?;
                match op {
                    Op::Aten(aten) => call(aten, operands, calls)?.into_iter().map(Some).collect(),
                    op => vec![tch::no_grad(|| apply(op, &operands, graph.ty(id.into()), 0))],
                }
            }
        };
        for (out, result) in results.into_iter().enumerate() {
            let value = ValueRef { node: id, out: out as u16 };
            if last.contains_key(&value) {
                values.insert(value, result.ok_or_else(missing)?);
            }
        }
        for value in graph.operands(id) {
            if last.get(&value) == Some(&at) {
                values.remove(&value);
            }
        }
    }
    generators.iter().try_for_each(GeneratorState::restore)?;
    wanted.iter().map(|value| values.get(value).map(Tensor::shallow_clone).ok_or_else(missing)).collect()
}

/// The results of a call, and behind them what it writes, which are copies of its operands.
fn call(
    aten: &tilefuse_fusion::AtenCall,
    mut operands: Vec<Tensor>,
    calls: &[Arc<Call>],
) -> Result<Vec<Tensor>, Error> {
    let args = aten.writes.iter().filter_map(|&at| aten.args.get(usize::from(at)));
    let written: Vec<usize> = args.flat_map(|(_, arg)| arg.tensors()).map(usize::from).collect();
    for &at in &written {
        operands[at] = tch::no_grad(|| operands[at].copy());
    }
    let count = aten.operand_count().min(operands.len());
    let mut results = call_of(aten, calls)?.run(&operands[..count].iter().collect::<Vec<_>>())?;
    results.extend(written.iter().map(|&at| operands[at].shallow_clone()));
    Ok(results.into_vec())
}

/// The generators of the devices on which a graph draws random numbers.
fn generators(graph: &Graph, order: &[NodeId]) -> Result<Vec<GeneratorState>, Error> {
    let random = order.iter().filter(|&&id| matches!(&graph.node(id).op, Op::Aten(call) if call.random));
    let mut devices = Vec::new();
    for device in random.flat_map(|&id| &graph.node(id).outs).map(|ty| device_id(ty.device)) {
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    devices.into_iter().map(GeneratorState::of).collect()
}
