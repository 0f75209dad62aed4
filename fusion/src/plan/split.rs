//! Split reductions: few long rows become many shorter ones and a second reduction over the parts.
//!
//! ```text
//! %1 = reduce sum %0 [0] : f32[]        with %0 : f32[4194304]
//! ```
//! becomes
//! ```text
//! %1 = view reshape %0 : f32[64,65536]
//! %2 = reduce sum %1 [1] : f32[64]
//! %3 = reduce sum %2 [0] : f32[]
//! ```

use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, ReduceFn};

use super::Profile;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::rewrites::Rewrites;
use crate::types::{DType, Dims, TensorType};

/// A part is at least this many elements.
const LEAST_PART: i64 = 2048;
/// Instances that there should be on a processor. Not by its threads: sums of other parts are rounded otherwise, and a result
/// must not depend on how many threads there are.
pub(crate) const HOST_PARTS: i64 = 16;

/// Splits reductions whose rows are too few to keep the machine busy.
pub fn split_reductions(graph: &mut Graph, profile: &Profile) {
    split_counted(graph, profile, &Rewrites::default());
}

/// [`split_reductions`] with no more of them than rewrites may be made.
pub(super) fn split_counted(graph: &mut Graph, profile: &Profile, rewrites: &Rewrites) {
    let nodes: Vec<NodeId> = graph.ids().collect();
    for id in nodes {
        if let Op::Reduce { combine, dims } = &graph.node(id).op {
            let (combine, dims) = (*combine, dims.clone());
            if !rewrites.is_spent() && split(graph, id, combine, &dims, profile).is_some() {
                rewrites.allow("split-reductions");
            }
        }
    }
}

fn split(graph: &mut Graph, id: NodeId, combine: ReduceFn, dims: &[u8], profile: &Profile) -> Option<()> {
    let operand = *graph.operands(id).first()?;
    let ty = graph.ty(operand).clone();
    let reduced: i64 = dims.iter().map(|&d| ty.shape[usize::from(d)]).product();
    let rows = ty.numel() / reduced.max(1);
    // Where neighbours in memory are kept apart, one instance takes many rows side by side.
    let inner_is_kept = ty.rank() > 0 && !dims.contains(&(ty.rank() as u8 - 1));
    let workers = profile.workers as i64;
    let (beside, least, wanted) = match (inner_is_kept, profile.machine.is_gpu()) {
        (false, true) => (1, LEAST_PART, workers * 4),
        (false, false) => (1, LEAST_PART, HOST_PARTS),
        // One round of instances: each ends with parts to exchange and to store.
        (true, true) => (1024, 64, workers),
        (true, false) => (256, (16384 / rows.clamp(1, 256)).max(64), HOST_PARTS),
    };
    let instances = (rows / beside).max(1);
    // On a GPU a row has many threads: a row for each processor keeps it busy, and stays in one kernel with its norm.
    let enough = match profile.machine.is_gpu() && !inner_is_kept {
        true => profile.workers as i64 / 2,
        false => wanted / 2 + 1,
    };
    if instances >= enough || reduced < 2 * least {
        return None;
    }
    let most = (reduced / least).min((wanted + instances - 1) / instances);
    let dim = *dims.iter().find(|&&d| ty.shape[usize::from(d)] >= 2)?;
    let size = ty.shape[usize::from(dim)];
    let parts = parts_of(size, most.min(size))?;
    let length = (size + parts - 1) / parts;
    let padded = pad(graph, operand, usize::from(dim), parts * length, combine)?;
    let mut shape = ty.shape.clone();
    shape[usize::from(dim)] = length;
    shape.insert(usize::from(dim), parts);
    let inner: SmallVec<[u8; 6]> = dims.iter().map(|&d| if d >= dim { d + 1 } else { d }).collect();
    let at = (0..dim).filter(|d| !dims.contains(d)).count() as u8;
    replace(graph, id, padded, &shape, inner, at)
}

/// Reduces the first `leading` dimensions, and these alone are reduced, in two steps: `each` elements in the first one, and
/// the `parts` of these in the second.
pub(super) fn two_steps(
    graph: &mut Graph,
    id: NodeId,
    leading: usize,
    [parts, each]: [i64; 2],
) -> Option<()> {
    let operand = *graph.operands(id).first()?;
    let shape: Dims =
        [parts, each].into_iter().chain(graph.ty(operand).shape.iter().copied().skip(leading)).collect();
    replace(graph, id, operand, &shape, SmallVec::from_slice(&[1]), 0)
}

/// Puts a reduction of `operand` in `shape` over `inner`, and one of its result over `at`, in the place of one.
fn replace(
    graph: &mut Graph,
    id: NodeId,
    operand: ValueRef,
    shape: &[i64],
    inner: SmallVec<[u8; 6]>,
    at: u8,
) -> Option<()> {
    let Op::Reduce { combine, .. } = graph.node(id).op else { return None };
    let ty = graph.ty(operand).clone();
    let origin = graph.node(id).origin;
    let split_ty = TensorType::contiguous(ty.dtype, shape, ty.device);
    let view = graph.add(Op::View(View::Reshape), &[operand], [split_ty], origin);
    let kept: Dims = (0..shape.len()).filter(|&d| !inner.contains(&(d as u8))).map(|d| shape[d]).collect();
    // Parts of a narrow float are kept wide, so that splitting rounds no more than one reduction does.
    let dtype = DType::Elem(wide(ty.dtype.elem()?));
    let part_ty = TensorType::contiguous(dtype, &kept, ty.device);
    let view = ValueRef::from(view);
    let widened = match dtype == ty.dtype {
        true => view,
        false => {
            graph.add(Op::Cast, &[view], [TensorType::contiguous(dtype, shape, ty.device)], origin).into()
        }
    };
    let partial = graph.add(Op::Reduce { combine, dims: inner }, &[widened], [part_ty], origin);
    let out = graph.node(id).outs.first()?.clone();
    let total_ty = TensorType { dtype, ..out.clone() };
    let op = Op::Reduce { combine, dims: SmallVec::from_slice(&[at]) };
    let total = graph.add(op, &[partial.into()], [total_ty], origin);
    let result = if dtype == out.dtype { total } else { graph.add(Op::Cast, &[total.into()], [out], origin) };
    graph.replace_uses(id.into(), result.into());
    graph.remove(id);
    Some(())
}

fn wide(elem: Elem) -> Elem {
    match elem {
        Elem::F16 | Elem::Bf16 => Elem::F32,
        other => other,
    }
}

/// A number of parts up to `most`: one that divides `size` if there is one of at least half of `most`.
fn parts_of(size: i64, most: i64) -> Option<i64> {
    if most < 2 {
        return None;
    }
    let exact = ((most + 1) / 2..=most).rev().find(|p| size % p == 0);
    Some(exact.unwrap_or(most))
}

fn pad(graph: &mut Graph, value: ValueRef, dim: usize, size: i64, combine: ReduceFn) -> Option<ValueRef> {
    let ty = graph.ty(value).clone();
    if ty.shape[dim] == size {
        return Some(value);
    }
    let fill: Literal = combine.neutral(ty.dtype.elem()?);
    let mut shape = ty.shape.clone();
    shape[dim] = size;
    let zeros = Dims::from_elem(0, shape.len());
    let pad = View::Pad { low: zeros.clone(), interior: zeros, fill };
    let out = TensorType::contiguous(ty.dtype, &shape, ty.device);
    Some(graph.add(Op::View(pad), &[value], [out], None).into())
}
