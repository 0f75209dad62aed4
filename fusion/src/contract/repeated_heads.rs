//! Keys and values that a model repeats for the heads of queries that share them.
//!
//! ```text
//! %k: [batch, 2, keys, width]                              %k: [batch, 2, keys, width]
//! %e = expand (reshape %k) : [batch, 2, 4, ..]        ->
//! %r = reshape %e : [batch, 8, keys, width]                %s = slice %r along heads, step 4
//! %y = call (%q, %r, ..) attends(0, 1, ..) shared 4        %y = kernel (%q, %s, ..)
//! ```
//!
//! A kernel reads one of the heads that are alike, where it lies, and what repeats them is not computed. libtorch's call takes
//! them repeated: it has nothing as fast for heads that share keys on a processor.

use super::operand::Source;
use crate::block_kernel::Layout;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::library_form::AttentionForm;
use crate::place::{OperandPlace, repeated_place};
use crate::types::{Dims, TensorType};

/// Heads of keys and values of which several in a row are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedHeads {
    /// The positions of keys and values.
    pub(crate) positions: [u16; 2],
    /// So many heads are alike.
    pub(crate) shared: i64,
}

impl RepeatedHeads {
    /// Those of a node, where views repeat them.
    pub(super) fn of(graph: &Graph, node: NodeId, form: &AttentionForm) -> Option<RepeatedHeads> {
        let found = RepeatedHeads { positions: [form.key, form.value], shared: form.shared };
        let operands = graph.operands(node);
        let of = |position: u16| operands.get(usize::from(position)).copied();
        let many = of(form.query).and_then(|query| heads(graph, query))?;
        let repeated = |position: u16| {
            let value = of(position)?;
            (heads(graph, value) == Some(many)).then(|| found.place(graph, value)).flatten()
        };
        (form.shared > 1 && found.positions.iter().all(|&at| repeated(at).is_some())).then_some(found)
    }

    /// Where one of the heads that are alike is found.
    fn place(&self, graph: &Graph, value: ValueRef) -> Option<OperandPlace> {
        repeated_place(graph, value, graph.ty(value).rank().checked_sub(3)?, self.shared)
    }

    /// The type of one of the heads that are alike, where it lies.
    pub(crate) fn ty(&self, graph: &Graph, value: ValueRef) -> Option<TensorType> {
        let strides = self.place(graph, value)?.strides;
        let mut ty = TensorType { strides, ..graph.ty(value).clone() };
        let dim = ty.rank().checked_sub(3)?;
        ty.shape[dim] /= self.shared;
        Some(ty)
    }

    /// How a kernel reads one of the heads that are alike.
    pub(super) fn source(&self, graph: &Graph, value: ValueRef, position: u16) -> Option<Source> {
        let OperandPlace { strides, offset, span, .. } = self.place(graph, value)?;
        let shape = self.ty(graph, value)?.shape;
        let layout = Layout::Strided { strides: strides.clone(), offset };
        Some(Source { position, shape, strides, offset, span, layout })
    }

    /// Gives a node one of the heads that are alike.
    pub(in crate::contract) fn apply(&self, graph: &mut Graph, node: NodeId) {
        for position in self.positions {
            let Some(&value) = graph.operands(node).get(usize::from(position)) else { continue };
            let Some(ty) = self.ty(graph, value) else { continue };
            let first = View::Slice { dim: (ty.rank() - 3) as u8, start: 0, step: self.shared };
            let view = graph.add(Op::View(first), &[value], [ty], graph.node(node).origin);
            graph.set_operand(node, position, view.into());
        }
    }

    /// In another graph, an input of one of the heads that are alike, as it lies, and the value in which views repeat it.
    pub(in crate::contract) fn input(
        &self,
        from: &Graph,
        value: ValueRef,
        graph: &mut Graph,
        slot: u32,
    ) -> Option<ValueRef> {
        let (few, whole) = (self.ty(from, value)?, from.ty(value).clone());
        let behind = few.rank() - 2;
        let form = |shape: Dims| TensorType::contiguous(whole.dtype, &shape, whole.device);
        let (mut one, mut all) = (few.shape.clone(), few.shape.clone());
        one.insert(behind, 1);
        all.insert(behind, self.shared);
        let mut repeated: ValueRef = graph.add(Op::Input(slot), &[], [few], None).into();
        for (view, ty) in
            [(View::Reshape, form(one)), (View::Expand, form(all)), (View::Reshape, whole.clone())]
        {
            repeated = graph.add(Op::View(view), &[repeated], [ty], None).into();
        }
        Some(repeated)
    }
}

fn heads(graph: &Graph, value: ValueRef) -> Option<i64> {
    graph.ty(value).shape.iter().nth_back(2).copied()
}
