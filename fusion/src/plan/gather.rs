//! Sources of gathers: each must be in memory, with its elements along the gathered dimension at a fixed distance.
//!
//! ```text
//! %1 = view pad %0 ...              %1 = view pad %0 ...
//! %3 = gather %1 %2 0        ->     %4 = cast %1
//!                                   %3 = gather %4 %2 0
//! ```

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::index::{Indices, Var};
use crate::kernel::{Layouts, view_index};
use crate::place::Strides;
use crate::rewrite_limit::Rewrites;
use crate::types::TensorType;

/// The pass `store-gathered`: stores copies of sources that cannot be read as they are.
pub(crate) fn store_sources(graph: &mut Graph, rewrites: &Rewrites) {
    let ids: Vec<NodeId> = graph.ids().collect();
    for id in ids {
        let Op::Gather { dim } = graph.node(id).op else { continue };
        let operands = graph.operands(id);
        if base(graph, operands[0], usize::from(dim)).is_some() {
            continue;
        }
        rewrites.require("store-source");
        let node = graph.node(id).clone();
        let ty = graph.ty(operands[0]);
        let dense = TensorType::contiguous(ty.dtype, &ty.shape, ty.device);
        let copy = graph.add(Op::Cast, &operands[..1], [dense], node.origin);
        let again = graph.add(node.op, &[copy.into(), operands[1]], node.outs, node.origin);
        graph.replace_uses(id.into(), again.into());
        graph.remove(id);
    }
}

/// The nodes that gathers read, through views; they are stored, never computed where they are used.
pub(super) fn bases(graph: &Graph) -> FxHashSet<NodeId> {
    let gathers = graph.ids().filter_map(|id| match graph.node(id).op {
        Op::Gather { dim } => base(graph, graph.operands(id)[0], usize::from(dim)),
        _ => None,
    });
    gathers.map(|value| value.node).collect()
}

/// The value in memory whose elements a source's are, if those along `dim` lie at a fixed distance in it.
fn base(graph: &Graph, source: ValueRef, dim: usize) -> Option<ValueRef> {
    let shape = &graph.ty(source).shape;
    let mut indices = Indices::new(shape);
    let mut index: SmallVec<[_; 6]> = (0..shape.len()).map(|d| indices.var(Var(d as u32))).collect();
    let mut at = source;
    loop {
        match &graph.node(at.node).op {
            Op::View(View::Pad { .. }) | Op::Scalar(_) | Op::Iota { .. } => return None,
            Op::View(view) => {
                let operand = graph.operands(at.node)[0];
                index = view_index(&mut indices, view, &graph.ty(operand).shape, &graph.ty(at).shape, &index);
                at = operand;
            }
            _ => break,
        }
    }
    let mut address = indices.constant(0);
    for (&i, &s) in index.iter().zip(&Strides(graph).strides(at).0) {
        address = indices.add_scaled(address, i, s);
    }
    indices.split_var(address, Var(dim as u32))?;
    Some(at)
}
