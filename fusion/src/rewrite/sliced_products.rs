//! Slices of products as products of slices.
//!
//! ```text
//! %2 = contract %0 %1 : f32[1,128,50257]          %4 = view slice(%0, dim 1, 127) : f32[1,1,768]
//! %3 = view slice(%2, dim 1, 127)           ->    %5 = contract %4 %1 : f32[1,1,50257]
//!    : f32[1,1,50257]
//! ```
//!
//! A language model's last layer is computed for the last token alone where nothing reads what it gives for others. Maps, casts
//! and reshapes between the product and the slice are of the slice, too. One operand is a weight: what attention, which is found
//! later, is made of stays as it is.

#[cfg(test)]
mod tests;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::contraction::Contraction;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::rewrite::simplify::strides_are_free;
use crate::rewrite_limit::Rewrites;
use crate::types::{Dims, TensorType};

/// Rewrites slices of products that nothing else reads; returns how many.
pub(crate) fn slice_products(graph: &mut Graph, rewrites: &Rewrites) -> usize {
    let mut made = 0;
    // The last slice first: what it is a slice of may be one.
    for id in graph.topological().unwrap_or_default().into_iter().rev() {
        let Op::View(View::Slice { dim, start, step }) = graph.node(id).op else { continue };
        let Some(&of) = graph.operands(id).first() else { continue };
        let size = graph.ty(id.into()).shape[usize::from(dim)];
        let part = Part { dim: usize::from(dim), start, step, size };
        let mut reached = FxHashSet::default();
        if size == graph.ty(of).shape[part.dim]
            || !strides_are_free(graph, id.into())
            || !reaches(graph, of, part, MAX_DEPTH, &mut reached)
        {
            continue;
        }
        if !rewrites.allow("slice-products") {
            break;
        }
        let value = sliced(graph, of, part, &reached);
        graph.replace_uses(id.into(), value);
        made += 1;
    }
    if made > 0 {
        graph.remove_unused();
    }
    made
}

/// Operators between a product and the slice of it.
const MAX_DEPTH: usize = 16;

/// Elements along a dimension.
#[derive(Clone, Copy, Debug)]
struct Part {
    dim: usize,
    start: i64,
    step: i64,
    size: i64,
}

/// Whether a value that is read once is a product of which a part can be computed alone, or is made of one element by element.
/// Adds all of these, down to the products.
fn reaches(graph: &Graph, value: ValueRef, part: Part, depth: usize, found: &mut FxHashSet<NodeId>) -> bool {
    let needed = graph.outputs.contains(&value) || graph.updates.iter().any(|update| update.value == value);
    if needed || depth == 0 || graph.users(value.node).len() != 1 {
        return false;
    }
    let operands = graph.operands(value.node);
    let reached = match &graph.node(value.node).op {
        // All of them, also behind the first that is reached.
        Op::Map(_) | Op::Cast => {
            operands.iter().filter(|&&operand| reaches(graph, operand, part, depth - 1, found)).count() > 0
        }
        Op::View(View::Reshape) => before_reshape(graph, value, part)
            .is_some_and(|part| reaches(graph, operands[0], part, depth - 1, found)),
        Op::Contract(contraction) => {
            let weight = operands.iter().any(|&operand| is_weight(graph, operand));
            let windows = operands.iter().any(|&operand| has_windows(graph, operand));
            weight && !windows && !sources(graph, contraction, &operands, part.dim).is_empty()
        }
        _ => false,
    };
    if reached {
        found.insert(value.node);
    }
    reached
}

/// A part of a value, which takes the place of what [`reaches`] found.
fn sliced(graph: &mut Graph, value: ValueRef, part: Part, found: &FxHashSet<NodeId>) -> ValueRef {
    let operands = graph.operands(value.node);
    let op = graph.node(value.node).op.clone();
    let reached = found.contains(&value.node);
    let args: SmallVec<[ValueRef; 3]> = match &op {
        Op::Map(_) | Op::Cast if reached => {
            operands.iter().map(|&operand| sliced(graph, operand, part, found)).collect()
        }
        Op::View(View::Reshape) if reached => match before_reshape(graph, value, part) {
            Some(part) => SmallVec::from_slice(&[sliced(graph, operands[0], part, found)]),
            None => return slice(graph, value, part),
        },
        Op::Contract(contraction) if reached => {
            let mut args = SmallVec::from_slice(&operands);
            for (operand, dim) in sources(graph, contraction, &operands, part.dim) {
                args[operand] = slice(graph, operands[operand], Part { dim, ..part });
            }
            args
        }
        Op::View(View::Expand) if graph.ty(operands[0]).shape[part.dim] == 1 => {
            SmallVec::from_slice(&operands)
        }
        _ => return slice(graph, value, part),
    };
    let (ty, origin) = (graph.ty(value), graph.node(value.node).origin);
    let mut shape = ty.shape.clone();
    shape[part.dim] = part.size;
    let ty = TensorType::contiguous(ty.dtype, &shape, ty.device);
    graph.add(op, &args, [ty], origin).into()
}

/// A view of a part of a value.
fn slice(graph: &mut Graph, value: ValueRef, part: Part) -> ValueRef {
    let Part { dim, start, step, size } = part;
    let mut ty = graph.ty(value).clone();
    ty.shape[dim] = size;
    ty.strides[dim] = ty.strides[dim].saturating_mul(step);
    let origin = graph.node(value.node).origin;
    graph.add(Op::View(View::Slice { dim: dim as u8, start, step }), &[value], [ty], origin).into()
}

/// The part of a reshape's operand that is a part of its result; `None` where the dimension is not one of the operand's.
fn before_reshape(graph: &Graph, value: ValueRef, part: Part) -> Option<Part> {
    let (to, from) = (&graph.ty(value).shape, &graph.ty(*graph.operands(value.node).first()?).shape);
    let outer = |shape: &Dims, dim: usize| shape[..dim].iter().product::<i64>();
    let same = |&dim: &usize| from[dim] == to[part.dim] && outer(from, dim) == outer(to, part.dim);
    let dim = (0..from.len()).find(same)?;
    Some(Part { dim, ..part })
}

/// The operands of a contraction that have a dimension of the result, and which it is of each.
fn sources(
    graph: &Graph,
    contraction: &Contraction,
    operands: &[ValueRef],
    dim: usize,
) -> SmallVec<[(usize, usize); 2]> {
    let others = |operand: usize| contraction.others(operand, graph.ty(operands[operand]).rank());
    if let Some(&(left, right)) = contraction.batch.get(dim) {
        return SmallVec::from_slice(&[(0, usize::from(left)), (1, usize::from(right))]);
    }
    let at = dim - contraction.batch.len();
    let (left, right) = (others(0), others(1));
    let found = match left.get(at) {
        Some(&dim) => Some((0, usize::from(dim))),
        None => right.get(at - left.len()).map(|&dim| (1, usize::from(dim))),
    };
    found.into_iter().collect()
}

/// What a value is a view or conversion of.
fn base(graph: &Graph, value: ValueRef, also: fn(&View) -> bool) -> NodeId {
    let mut at = value.node;
    while let (Op::View(_) | Op::Cast, Some(&operand)) = (&graph.node(at).op, graph.operands(at).first()) {
        if let Op::View(view) = &graph.node(at).op
            && also(view)
        {
            break;
        }
        at = operand.node;
    }
    at
}

fn is_weight(graph: &Graph, value: ValueRef) -> bool {
    matches!(graph.node(base(graph, value, |_| false)).op, Op::Param(_) | Op::Const(_))
}

/// Whether a value is made of windows: a convolution's image is read as a whole.
fn has_windows(graph: &Graph, value: ValueRef) -> bool {
    matches!(
        graph.node(base(graph, value, |view| matches!(view, View::Window(_)))).op,
        Op::View(View::Window(_))
    )
}
