//! Keys and values that a model repeats for the heads of queries that share them.
//!
//! ```text
//! %k: [batch, 2, keys, width]                          %k: [batch, 2, keys, width]
//! %e = expand (reshape %k) : [batch, 2, 4, ..]    ->
//! %r = reshape %e : [batch, 8, keys, width]
//! %y = scaled_dot_product_attention %q, %r, ..         %y = scaled_dot_product_attention %q, %k, .., enable_gqa
//! ```
//!
//! The kernel reads them where they lie, and what repeats them is not computed. libtorch's call wants them repeated: where
//! that is used, all is left as it was.

use crate::args::Args;
use crate::graph::{AtenCall, Graph, NodeId, Op, ValueRef, View};
use crate::plan::repeated_strides;
use crate::recording::Arg;
use crate::types::{Device, TensorType};

/// Attention that was made one of heads that share keys and values.
pub(in crate::contract) struct Grouped {
    node: NodeId,
    call: AtenCall,
    /// Keys and values: their positions, what was there, and what is there.
    operands: [(u16, ValueRef, NodeId); 2],
    /// How many heads of queries share a key.
    pub(in crate::contract) shared: i64,
}

/// Gives attention the keys and values that are repeated for it, as they were before.
pub(in crate::contract) fn group(graph: &mut Graph, node: NodeId) -> Option<Grouped> {
    let Op::Aten(call) = &graph.node(node).op else { return None };
    if call.op != "aten::scaled_dot_product_attention" || graph.ty(node.into()).device != Device::Cpu {
        return None;
    }
    let (call, args) = (AtenCall::clone(call), Args(&call.args));
    let values = graph.operands(node);
    let operand = |name: &str| {
        let position = args.tensor(name)?;
        Some((position, *values.get(usize::from(position))?))
    };
    let [query, key, value] = [operand("query")?, operand("key")?, operand("value")?];
    let heads = |graph: &Graph, value: ValueRef| graph.ty(value).shape.iter().nth_back(2).copied();
    let many = heads(graph, query.1)?;
    let grouped = args.bool("enable_gqa") == Some(true);
    if grouped || key.0 == value.0 || [key, value].iter().any(|&(_, v)| heads(graph, v) != Some(many)) {
        return None;
    }
    // As few heads as there are.
    let strides = |shared: i64| {
        let of = |v: ValueRef| repeated_strides(graph, v, graph.ty(v).rank() - 3, shared);
        Some((shared, [of(key.1)?, of(value.1)?]))
    };
    let (shared, strides) = (2..=many).rev().filter(|n| many % n == 0).find_map(strides)?;
    let origin = graph.node(node).origin;
    let [keys, values] = strides;
    let operands = [(key, keys), (value, values)].map(|((position, before), strides)| {
        let TensorType { mut shape, dtype, device, .. } = graph.ty(before).clone();
        let dim = shape.len() - 3;
        shape[dim] = many / shared;
        let first = View::Slice { dim: dim as u8, start: 0, step: shared };
        let ty = TensorType { dtype, shape, strides, device };
        let view = graph.add(Op::View(first), &[before], [ty], origin);
        graph.set_operand(node, position, view.into());
        (position, before, view)
    });
    if let Op::Aten(call) = &mut graph.node_mut(node).op {
        call.args.retain(|(name, _)| name != "enable_gqa");
        call.args.push(("enable_gqa".to_owned(), Arg::Bool(true)));
    }
    Some(Grouped { node, call, operands, shared })
}

impl Grouped {
    /// Makes it undone.
    pub(in crate::contract) fn undo(self, graph: &mut Graph) {
        for (position, before, view) in self.operands {
            graph.set_operand(self.node, position, before);
            graph.remove(view);
        }
        if let Op::Aten(call) = &mut graph.node_mut(self.node).op {
            **call = self.call;
        }
    }
}
