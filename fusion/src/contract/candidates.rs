//! The candidates for a contraction: kernels of ours that may take the place of libtorch's call, as each is timed beside it.

use super::apply::Applied;
use super::backend::Products;
use super::call_kernels::Template;
use super::epilogue::has_epilogue;
use super::match_failure::MatchFailure;
use super::price::predict;
use super::product::has_unaligned_rows;
use super::scheduler::templates;
use super::target::Target;
use crate::graph::{AtenCall, Graph, NodeId, Op};
use crate::machine::Profile;
use crate::place::operand_place;
use crate::types::{Device, TensorType};

/// A call that may be a kernel of ours.
#[derive(Clone, Debug)]
pub struct Candidate<'g> {
    /// The graph.
    pub graph: &'g Graph,
    /// The node of the call.
    pub node: NodeId,
    /// The call.
    pub call: &'g AtenCall,
    /// The kernel.
    pub template: Template,
}

impl Candidate<'_> {
    /// Whether the operand at a position lies in a parameter, which need not be read as it lies.
    pub fn is_weight(&self, position: usize) -> bool {
        let value = self.graph.operands(self.node).get(position).copied();
        let place = value.map(|value| operand_place(self.graph, value));
        place.is_some_and(|place| matches!(self.graph.node(place.base.node).op, Op::Param(_)))
    }

    /// A graph of the call alone, and its node. Operands are inputs as they lie here, weights that are packed parameters, and the
    /// result lies in the order in which the kernel writes it.
    pub fn alone(&self) -> (Graph, NodeId) {
        let (mut graph, from) = (Graph::new(), self.graph);
        let mut operands = Vec::new();
        for (slot, value) in from.operands(self.node).into_iter().enumerate() {
            let weight = self.template.panels.is_some() && self.is_weight(slot);
            let heads = self.template.repeated_heads.as_ref();
            let heads = heads.filter(|heads| heads.positions.iter().any(|&at| usize::from(at) == slot));
            let slot = slot as u32;
            let repeated = heads.and_then(|heads| heads.input(from, value, &mut graph, slot));
            operands.push(repeated.unwrap_or_else(|| {
                let op = if weight { Op::Param(slot) } else { Op::Input(slot) };
                graph.add(op, &[], [from.ty(value).clone()], None).into()
            }));
        }
        let mut outs = from.node(self.node).outs.clone();
        if let (Some(out), Some(layout)) = (outs.first_mut(), &self.template.result_layout) {
            out.strides = layout.strides();
        }
        let node = graph.add(Op::Aten(Box::new(self.call.clone())), &operands, outs, None);
        graph.outputs = vec![node.into()];
        (graph, node)
    }

    /// [`Candidate::alone`] with the kernel as the node's.
    pub fn computed(&self) -> (Graph, NodeId) {
        let (mut graph, node) = self.alone();
        Applied::default().apply(&mut graph, node, self.template.clone(), None);
        (graph, node)
    }

    /// Whether the call is a convolution.
    pub(super) fn is_convolution(&self) -> bool {
        self.call.contraction().is_some_and(|form| form.window.is_some())
    }

    /// Whether a measurement may change what is chosen: on a GPU libtorch's product is as quick, and a kernel pays where it saves
    /// another one, or where rows begin at no multiples of 16 bytes. Its convolutions take 1.0 to 1.6 times as long as their products
    /// would, measured on an H200. What a shared launch saves is not seen of one product.
    pub fn is_open(&self, profile: &Profile) -> bool {
        if self.template.shared_launch < 1.0 {
            return false;
        }
        let Some(form) = self.call.contraction().filter(|_| profile.machine.is_gpu()) else { return true };
        form.window.is_some()
            || has_unaligned_rows(self.graph, self.node, form)
            || has_epilogue(self.graph, self.node, &self.template, profile.machine)
    }

    /// What kernel and call take by the cost model.
    pub fn predicted(&self, profile: &Profile) -> Times {
        predict(&self.template, profile)
    }
}

/// How long a call takes, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Of our kernel, without its neighbours.
    pub generated_us: f64,
    /// Of libtorch's call.
    pub library_us: f64,
    /// Whether this was measured.
    pub measured: bool,
}

/// Bytes of operands that may be packed always: libtorch's products take as much for their own.
const FREE_BYTES: u64 = 1 << 20;

/// The kernels that may compute a call, or why there are none; nothing for a node that is no call of the machine's.
pub(super) fn kernels(
    graph: &Graph,
    node: NodeId,
    target: Target<'_>,
    (products, most_bytes): (Products, u64),
) -> Option<Result<Vec<Template>, MatchFailure>> {
    let Op::Aten(call) = &graph.node(node).op else { return None };
    let here = |ty: &TensorType| (ty.device != Device::Cpu) == target.profile.machine.is_gpu();
    let here = graph.node(node).outs.iter().all(here);
    if !here || graph.node(node).kernel.is_some() || !call.writes.is_empty() || call.random {
        return None;
    }
    let most_bytes = most_bytes.max(FREE_BYTES);
    let limits = (products == Products::Measured, most_bytes);
    let all = templates(graph, node, call.form.as_ref()?, target, limits);
    Some(all.and_then(|all| within(all, most_bytes)))
}

/// The kernels for which others make operands of at most so many bytes, or why there is none.
fn within(all: Vec<Template>, most_bytes: u64) -> Result<Vec<Template>, MatchFailure> {
    let least = all.iter().map(Template::operand_bytes).min().unwrap_or(0);
    if least > most_bytes {
        return Err(MatchFailure::Memory { least, most: most_bytes });
    }
    Ok(all.into_iter().filter(|template| template.operand_bytes() <= most_bytes).collect())
}

/// What kernels of a convolution on a GPU are predicted to take of the call's time, at most, where no measurement is needed: on an H200 none
/// of a U-Net's and ResNet-50's takes longer than libtorch's call where 0.75 of that is predicted.
const SURE: f64 = 0.75;

/// Whether a convolution's kernels are surely quicker than libtorch's call.
pub(super) fn is_sure(all: &[Candidate<'_>], profile: &Profile) -> bool {
    let least = |us: fn(&Times) -> f64| {
        let times = all.iter().map(|candidate| us(&candidate.predicted(profile)));
        times.fold(f64::INFINITY, f64::min)
    };
    profile.machine.is_gpu()
        && all.iter().all(Candidate::is_convolution)
        && least(|times| times.generated_us) < SURE * least(|times| times.library_us)
}
