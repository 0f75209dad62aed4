//! Gives calls the kernels that were chosen for them, with the constants and kernels that lay out their operands.

use std::sync::Arc;

use super::call_kernels::{OperandKernel, Template};
use super::prepack::{Panels, Prepacked};
use crate::block_kernel::BlockKernel;
use crate::graph::{Graph, NodeId, Op, ValueRef};
use crate::rewrite::channels_last;

/// What calls of a graph with kernels share.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// The number of the first constant.
    first: u32,
    packed: Vec<(Prepacked, NodeId)>,
    /// What a kernel made of some values before a call.
    made: Vec<(Vec<ValueRef>, OperandKernel, NodeId)>,
}

impl Applied {
    /// None yet, in a graph that has so many constants.
    pub(super) fn starting(first: u32) -> Applied {
        Applied { first, ..Applied::default() }
    }

    /// The constants that hold weights, in the order of their numbers.
    pub(super) fn prepacked(self) -> Vec<Prepacked> {
        self.packed.into_iter().map(|(packed, _)| packed).collect()
    }

    /// Computes a call by a kernel, for a reason.
    pub(super) fn apply(
        &mut self,
        graph: &mut Graph,
        node: NodeId,
        template: Template,
        reason: Option<String>,
    ) {
        let Template { kernel, panels, operand_kernels, result_layout, repeated_heads, .. } = template;
        if let Some(heads) = repeated_heads {
            heads.apply(graph, node);
        }
        if let Some(result_layout) = result_layout {
            channels_last::apply(graph, node, &result_layout);
        }
        if let Some(panels) = panels {
            let constant = self.constant(graph, node, panels);
            graph.add_operand(node, constant.into());
        }
        for own in operand_kernels {
            let made = self.made(graph, node, own);
            graph.add_operand(node, made.into());
        }
        graph.node_mut(node).kernel = Some(Ok(Arc::new(BlockKernel { note: reason, ..kernel })));
    }

    /// The constant that holds the panels of a weight of a node, a new one where there is none yet.
    fn constant(&mut self, graph: &mut Graph, node: NodeId, panels: Panels) -> NodeId {
        if let Some((_, known)) = self.packed.iter().find(|(known, _)| known.panels == panels) {
            return *known;
        }
        // Of the operands' kind, which is not that of every result.
        let like = graph.operands(node).first().copied().unwrap_or_else(|| node.into());
        let ty = panels.ty(graph.ty(like));
        let constant = self.first + self.packed.len() as u32;
        let id = graph.add(Op::Const(constant), &[], [ty.clone()], None);
        self.packed.push((Prepacked { constant, ty, panels }, id));
        id
    }

    /// The node that makes what a kernel reads of operands of a node, a new one where there is none yet.
    fn made(&mut self, graph: &mut Graph, node: NodeId, own: OperandKernel) -> NodeId {
        let operands = graph.operands(node);
        let values: Vec<ValueRef> = own.positions.iter().map(|&at| operands[usize::from(at)]).collect();
        let mut known = self.made.iter();
        if let Some((.., found)) = known.find(|(of, known, _)| *of == values && known.kernel == own.kernel) {
            return *found;
        }
        let origin = graph.node(node).origin;
        let id = graph.add(Op::Kernel(own.kernel.kind), &values, [own.ty.clone()], origin);
        graph.node_mut(id).kernel = Some(Ok(Arc::new(own.kernel.clone())));
        self.made.push((values, own, id));
        id
    }
}
