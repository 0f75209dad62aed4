//! What the steps of a plan read and write, and which step computes what another reads.

use indexmap::IndexMap;
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tilefuse_fusion::plan::{Decision, Plan, StepKind};
use tilefuse_fusion::{NodeId, Op, Place, ValueRef};

use super::modules::Parameters;
use crate::engine::nodes_of;

/// A tensor that a step reads or writes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TensorReport {
    /// The input, the model's tensor by its name, or the operator that computes it.
    pub name: String,
    /// Its type, with shape, and strides where it is not contiguous.
    #[serde(rename = "type")]
    pub ty: String,
    /// Its bytes.
    pub bytes: u64,
    /// The position of the step that computes it; none of inputs and of the model's tensors.
    pub step: Option<usize>,
}

/// Which steps compute what.
pub(super) struct Flow<'a> {
    plan: &'a Plan,
    params: &'a Parameters<'a>,
    writers: FxHashMap<ValueRef, Vec<usize>>,
    nodes: FxHashMap<NodeId, Vec<usize>>,
}

impl<'a> Flow<'a> {
    pub(super) fn of(plan: &'a Plan, params: &'a Parameters<'a>) -> Flow<'a> {
        let mut flow = Flow { plan, params, writers: FxHashMap::default(), nodes: FxHashMap::default() };
        for (at, step) in plan.steps.iter().enumerate() {
            for value in written(plan, &step.kind) {
                flow.writers.entry(value).or_default().push(at);
            }
            for &node in nodes_of(step) {
                flow.nodes.entry(node).or_default().push(at);
            }
        }
        flow
    }

    /// What a step reads.
    pub(super) fn reads(&self, at: usize) -> Vec<TensorReport> {
        let values: Vec<ValueRef> = match &self.plan.steps[at].kind {
            StepKind::Kernel(kernel) => kernel.buffers.iter().filter(|b| !b.1).map(|b| b.0).collect(),
            StepKind::Extern(call) => call.operands.iter().map(Place::base).collect(),
        };
        let mut found: IndexMap<ValueRef, TensorReport> = IndexMap::new();
        for value in values {
            found.entry(value).or_insert_with(|| self.tensor(value, self.writer(value, at)));
        }
        found.into_values().collect()
    }

    /// What a step writes.
    pub(super) fn writes(&self, at: usize) -> Vec<TensorReport> {
        let values = written(self.plan, &self.plan.steps[at].kind);
        values.into_iter().map(|value| self.tensor(value, Some(at))).collect()
    }

    /// The steps of the ends of an edge, where they are in steps: of several that compute the producer, the one that the consumer
    /// is in, else the last one before it.
    pub(super) fn ends(&self, decision: &Decision) -> (Option<usize>, Option<usize>) {
        let producers = self.steps_of(decision.producer);
        let consumers = self.nodes.get(&decision.consumer).map_or(&[][..], Vec::as_slice);
        let shared = consumers.iter().find(|at| producers.contains(at));
        let consumer = shared.or(consumers.first()).copied();
        let before = producers.iter().filter(|&&at| consumer.is_none_or(|consumer| at <= consumer)).max();
        (before.or(producers.first()).copied(), consumer)
    }

    /// The steps that compute a node, or what it is a view of.
    fn steps_of(&self, mut node: NodeId) -> &[usize] {
        loop {
            match (self.nodes.get(&node), &self.plan.graph.node(node).op) {
                (Some(steps), _) => return steps,
                (None, Op::View(_)) => match self.plan.graph.operands(node).first() {
                    Some(operand) => node = operand.node,
                    None => return &[],
                },
                (None, _) => return &[],
            }
        }
    }

    /// The last step before another that writes a value, or what it is a view of.
    fn writer(&self, mut value: ValueRef, before: usize) -> Option<usize> {
        loop {
            if let Some(steps) = self.writers.get(&value) {
                return steps.iter().copied().filter(|&at| at < before).max();
            }
            match &self.plan.graph.node(value.node).op {
                Op::View(_) => value = *self.plan.graph.operands(value.node).first()?,
                _ => return None,
            }
        }
    }

    fn tensor(&self, value: ValueRef, step: Option<usize>) -> TensorReport {
        let ty = self.plan.graph.ty(value);
        let name = match self.plan.graph.node(value.node).op {
            Op::Input(position) => format!("input {position}"),
            Op::Param(position) => match self.params.name(value.node) {
                Some(name) => String::from(name),
                None => format!("parameter {position}"),
            },
            Op::Const(position) => match self.params.name(value.node) {
                Some(name) => format!("{name}, prepacked"),
                None => format!("constant {position}"),
            },
            _ => self
                .plan
                .graph
                .origin(value.node)
                .map_or_else(|| format!("%{}", value.node.index()), String::from),
        };
        TensorReport { name, ty: ty.to_string(), bytes: ty.bytes(), step }
    }
}

fn written(plan: &Plan, step: &StepKind) -> Vec<ValueRef> {
    match step {
        StepKind::Kernel(kernel) => kernel.buffers.iter().filter(|b| b.1).map(|b| b.0).collect(),
        StepKind::Extern(call) => plan.graph.results(call.node).collect(),
    }
}
