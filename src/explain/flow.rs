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
        let name = self.outside(value.node).unwrap_or_else(|| self.operator(value.node));
        TensorReport { name, ty: ty.to_string(), bytes: ty.bytes(), step }
    }

    /// What a node that computes nothing is called: an input, or a tensor of the model.
    fn outside(&self, node: NodeId) -> Option<String> {
        let own = self.params.name(node);
        match self.plan.graph.node(node).op {
            Op::Input(position) => Some(format!("input {position}")),
            Op::Param(position) => Some(own.map_or_else(|| format!("parameter {position}"), String::from)),
            Op::Const(position) => {
                Some(own.map_or_else(|| format!("constant {position}"), |name| format!("{name}, prepacked")))
            }
            _ => None,
        }
    }

    /// The captured operator that a node comes from. What a pass adds has none, and is called after what it copies.
    pub(super) fn operator(&self, node: NodeId) -> String {
        let graph = &self.plan.graph;
        if let Some(origin) = graph.origin(node) {
            return String::from(origin);
        }
        let mut source = node;
        while is_copy(&graph.node(source).op)
            && let &[operand] = &graph.operands(source)[..]
        {
            source = operand.node;
        }
        let copied = (source != node).then(|| self.outside(source)).flatten();
        copied.map_or_else(|| format!("%{}", node.index()), |name| format!("copy of {name}"))
    }
}

/// Whether an operator gives the elements of its operand as they are, elsewhere or in another type.
fn is_copy(op: &Op) -> bool {
    matches!(op, Op::View(_) | Op::Cast)
}

fn written(plan: &Plan, step: &StepKind) -> Vec<ValueRef> {
    match step {
        StepKind::Kernel(kernel) => kernel.buffers.iter().filter(|b| b.1).map(|b| b.0).collect(),
        StepKind::Extern(call) => plan.graph.results(call.node).collect(),
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};
    use tilefuse_fusion::pipeline::plan;
    use tilefuse_fusion::{Profile, parse_graph};

    use super::*;

    #[test]
    fn copies_are_named_after_what_they_copy() {
        let text = "graph {
          %0 = input 0 : f32[4,8]
          %1 = param 0 : f32[8,4]
          %2 = view permute[1,0](%1) : f32[4,8]
          %3 = map add(%0, %2) : f32[4,8]
          outputs %3
        }";
        let plan = plan(&parse_graph(text).unwrap(), &Profile::host(2)).unwrap();
        let weight = Tensor::zeros([8, 4], (Kind::Float, Device::Cpu));
        let names = [(String::from("head.weight"), weight.shallow_clone())];
        let params = Parameters::new(&plan.graph, &[weight], &names, (0, Vec::new()));
        let flow = Flow::of(&plan, &params);
        for id in plan.graph.ids() {
            let expected = match plan.graph.node(id).op {
                Op::View(_) => String::from("copy of head.weight"),
                _ => format!("%{}", id.index()),
            };
            assert_eq!(flow.operator(id), expected);
        }
    }
}
