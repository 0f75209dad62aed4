//! Views of views become one view.

use smallvec::SmallVec;

use super::strides::replace;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::rewrite_limit::Rewrites;
use crate::types::TensorType;

pub(super) fn fold_views(graph: &mut Graph, rewrites: &Rewrites) -> usize {
    let Some(order) = graph.topological() else { return 0 };
    let mut folded = |&id: &NodeId| !rewrites.is_spent() && fold(graph, id) && rewrites.allow("fold-views");
    order.iter().filter(|id| folded(id)).count()
}

fn fold(graph: &mut Graph, id: NodeId) -> bool {
    let Op::View(view) = graph.node(id).op.clone() else { return false };
    let Some(&operand) = graph.operands(id).first() else { return false };
    if graph.users(id).is_empty() && !graph.outputs.contains(&id.into()) {
        return false;
    }
    if is_identity(&view, graph.ty(operand), graph.ty(id.into())) {
        return replace(graph, id, operand);
    }
    let Op::View(inner) = graph.node(operand.node).op.clone() else { return false };
    let Some(&base) = graph.operands(operand.node).first() else { return false };
    let Some((composed, from)) = compose(graph, &view, &inner, operand, base) else { return false };
    let (ty, origin) = (graph.ty(id.into()).clone(), graph.node(id).origin);
    let new = graph.add(Op::View(composed), &[from], [ty], origin);
    graph.replace_uses(id.into(), new.into());
    true
}

fn is_identity(view: &View, from: &TensorType, to: &TensorType) -> bool {
    match view {
        View::Reshape | View::Expand => from.shape == to.shape,
        View::Permute(perm) => perm.iter().enumerate().all(|(i, &d)| i == usize::from(d)),
        View::Slice { start, step, dim } => {
            let dim = usize::from(*dim);
            from.shape == to.shape && *start == 0 && (*step == 1 || to.shape[dim] <= 1)
        }
        View::Flip(dims) => dims.iter().all(|&d| from.shape[usize::from(d)] <= 1),
        View::Pad { .. } => from.shape == to.shape,
        View::Window(windows) => windows.is_empty(),
    }
}

/// One view that does what `outer` does after `inner`, and what it is a view of.
fn compose(
    graph: &Graph,
    outer: &View,
    inner: &View,
    middle: ValueRef,
    base: ValueRef,
) -> Option<(View, ValueRef)> {
    match (outer, inner) {
        (View::Reshape, View::Reshape) => Some((View::Reshape, base)),
        (View::Expand, View::Expand) => Some((View::Expand, base)),
        (View::Permute(outer), View::Permute(inner)) => {
            let perm = outer.iter().map(|&d| inner.get(usize::from(d)).copied());
            Some((View::Permute(perm.collect::<Option<SmallVec<_>>>()?), base))
        }
        (View::Slice { dim, start, step }, View::Slice { dim: inner_dim, start: first, step: by })
            if dim == inner_dim =>
        {
            let start = first.checked_add(start.checked_mul(*by)?)?;
            Some((View::Slice { dim: *dim, start, step: step.checked_mul(*by)? }, base))
        }
        (View::Flip(outer), View::Flip(inner)) => {
            let once = |d: &u8| outer.contains(d) != inner.contains(d);
            let rank = graph.ty(middle).rank() as u8;
            Some((View::Flip((0..rank).filter(once).collect()), base))
        }
        _ => None,
    }
}
