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
//! Parts of tuples are tuples, which the second reduction combines like elements.
//!
//! Groups of channels that lie next to each other, a few at a time, are split into channels: see `interleaved.rs`.
//!
//! Rows that a block program stores in blocks of columns are split into these, where nothing else needs them: the first
//! reduction can then be an epilogue of that program.

use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal};

use super::interleaved;
use crate::block_kernel::Block;
use crate::combiner::{Combiner, Members};
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::machine::{HOST_PARTS, Profile};
use crate::rewrite::simplify::known;
use crate::rewrite_limit::Rewrites;
use crate::types::{DType, Dims, TensorType};

/// A part is at least this many elements.
const MIN_PART: i64 = 2048;

/// Splits reductions whose rows are too few to keep the machine busy.
pub fn split_reductions(graph: &mut Graph, profile: &Profile) {
    split_counted(graph, profile, &Rewrites::default());
}

/// The pass `split-reductions`: [`split_reductions`] with no more of them than rewrites may be made.
pub(crate) fn split_counted(graph: &mut Graph, profile: &Profile, rewrites: &Rewrites) {
    let nodes: Vec<NodeId> = graph.ids().collect();
    for id in nodes {
        if let Op::Reduce { combine, dims } = &graph.node(id).op {
            let (combine, dims) = (*combine, dims.clone());
            let split = |graph: &mut Graph| {
                let apart = interleaved::split(graph, id, &dims, profile);
                apart.or_else(|| split(graph, id, combine, &dims, profile))
            };
            if !rewrites.is_spent() && split(graph).is_some() {
                rewrites.allow("split-reductions");
            }
        }
    }
}

fn split(graph: &mut Graph, id: NodeId, combine: Combiner, dims: &[u8], profile: &Profile) -> Option<()> {
    let operand = *graph.operands(id).first()?;
    let ty = graph.ty(operand).clone();
    let reduced: i64 = dims.iter().map(|&d| ty.shape[usize::from(d)]).product();
    let rows = ty.numel() / reduced.max(1);
    // Where neighbours in memory are kept apart, one instance takes many adjacent rows.
    let inner_is_kept = ty.rank() > 0 && !dims.contains(&(ty.rank() as u8 - 1));
    let workers = profile.workers as i64;
    let (beside, least, wanted) = match (inner_is_kept, profile.machine.is_gpu()) {
        (false, true) => (1, MIN_PART, workers * 4),
        (false, false) => (1, MIN_PART, HOST_PARTS),
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
    in_parts(graph, id, combine, dims, (dim, parts, length))
}

/// The form of a graph in which reductions of rows that block programs store in blocks of columns, and that nothing else needs,
/// are split into those of these blocks; `None` where there are none.
pub(super) fn in_blocks(graph: &Graph) -> Option<Graph> {
    let mut form = graph.clone();
    let mut any = false;
    for id in graph.ids() {
        let Some(Ok(kernel)) = &graph.node(id).kernel else { continue };
        let Some(block) = kernel.coordinates.iter().find_map(|c| c.block) else { continue };
        for reduction in reductions_of(graph, id, &block).unwrap_or_default() {
            any |= split_in_blocks(&mut form, reduction, &block).is_some();
        }
    }
    any.then_some(form)
}

/// The reductions of the rows of a node's result, where all that is computed of it are these.
fn reductions_of(graph: &Graph, id: NodeId, block: &Block) -> Option<Vec<NodeId>> {
    let size = block.matrix.iter().product::<i64>();
    let [_, columns] = block.matrix;
    let needed = |node: NodeId| {
        graph.outputs.iter().any(|v| v.node == node) || graph.updates.iter().any(|u| u.value.node == node)
    };
    let (mut found, mut stack, mut seen) = (Vec::new(), vec![id], FxHashSet::default());
    while let Some(at) = stack.pop() {
        if needed(at) {
            return None;
        }
        for (user, _) in graph.users(at) {
            let ty = graph.ty(user.into());
            match &graph.node(user).op {
                Op::Map(_) | Op::Cast | Op::View(View::Reshape) if ty.numel() == size => {
                    if seen.insert(user) {
                        stack.push(user);
                    }
                }
                Op::Reduce { dims, .. } => {
                    let operand = graph.ty(*graph.operands(user).first()?);
                    let last = operand.rank().checked_sub(1)?;
                    let rows = dims[..] == [last as u8] && operand.shape[last] == columns;
                    if !rows {
                        return None;
                    }
                    found.push(user);
                }
                _ => return None,
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Some(found)
}

fn split_in_blocks(graph: &mut Graph, id: NodeId, block: &Block) -> Option<()> {
    let Op::Reduce { combine, dims } = &graph.node(id).op else { return None };
    let (combine, dims, length) = (*combine, dims.clone(), i64::from(block.columns));
    let [_, columns] = block.matrix;
    let parts = (columns + length - 1) / length;
    (parts > 1).then(|| in_parts(graph, id, combine, &dims, (*dims.first()?, parts, length)))?
}

/// Splits a reduction along one of its dimensions into so many parts of a length.
fn in_parts(
    graph: &mut Graph,
    id: NodeId,
    combine: Combiner,
    dims: &[u8],
    (dim, parts, length): (u8, i64, i64),
) -> Option<()> {
    let ty = graph.ty(*graph.operands(id).first()?).clone();
    let padded = pad(graph, id, usize::from(dim), parts * length, combine)?;
    let mut shape = ty.shape.clone();
    shape[usize::from(dim)] = length;
    shape.insert(usize::from(dim), parts);
    let inner: SmallVec<[u8; 6]> = dims.iter().map(|&d| if d >= dim { d + 1 } else { d }).collect();
    let at = (0..dim).filter(|d| !dims.contains(d)).count() as u8;
    replace(graph, id, &padded, &shape, inner, at)
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
    let operands = graph.operands(id);
    replace(graph, id, &operands, &shape, SmallVec::from_slice(&[1]), 0)
}

/// A reduction in two steps.
pub(super) struct Steps<'a> {
    /// The shape of the operands, and the dimensions of it that the first step reduces.
    pub(super) shape: &'a [i64],
    pub(super) inner: SmallVec<[u8; 6]>,
    /// The same of what that leaves.
    pub(super) parts: Dims,
    pub(super) outer: SmallVec<[u8; 6]>,
}

/// Puts a reduction of `operands` in `shape` over `inner`, and one of its results over `at`, in the place of one.
fn replace(
    graph: &mut Graph,
    id: NodeId,
    operands: &[ValueRef],
    shape: &[i64],
    inner: SmallVec<[u8; 6]>,
    at: u8,
) -> Option<()> {
    let parts = (0..shape.len()).filter(|&d| !inner.contains(&(d as u8))).map(|d| shape[d]).collect();
    in_steps(graph, id, operands, Steps { shape, inner, parts, outer: SmallVec::from_slice(&[at]) })
}

/// Puts a reduction of `operands` in two steps in the place of one.
pub(super) fn in_steps(graph: &mut Graph, id: NodeId, operands: &[ValueRef], steps: Steps<'_>) -> Option<()> {
    let Steps { shape, inner, parts, outer } = steps;
    let node = graph.node(id).clone();
    let (Op::Reduce { combine, .. }, origin) = (node.op, node.origin) else { return None };
    let positions = matches!(combine, Combiner::ArgMax | Combiner::ArgMin);
    let views = operands.iter().map(|&operand| parted(graph, operand, shape, (positions, origin)));
    let views = views.collect::<Option<Members<ValueRef>>>()?;
    let kept: Dims = (0..shape.len()).filter(|&d| !inner.contains(&(d as u8))).map(|d| shape[d]).collect();
    let form = |ty: &TensorType, shape: &[i64]| TensorType::contiguous(ty.dtype, shape, ty.device);
    let partial: Members<TensorType> = views.iter().map(|&view| form(graph.ty(view), &kept)).collect();
    let results =
        partial.iter().zip(&node.outs).map(|(part, out)| TensorType { dtype: part.dtype, ..out.clone() });
    let results: Members<TensorType> = results.collect();
    let partial = graph.add(Op::Reduce { combine, dims: inner }, &views, partial, origin);
    let mut partial: Members<ValueRef> = graph.results(partial).collect();
    if parts != kept {
        for part in &mut partial {
            let ty = form(graph.ty(*part), &parts);
            *part = graph.add(Op::View(View::Reshape), &[*part], [ty], origin).into();
        }
    }
    let total = graph.add(Op::Reduce { combine, dims: outer }, &partial, results, origin);
    for (value, out) in graph.results(total).zip(node.outs) {
        let from = ValueRef { node: id, out: value.out };
        let narrow = graph.ty(value).dtype != out.dtype;
        let result = if narrow { graph.add(Op::Cast, &[value], [out], origin).into() } else { value };
        graph.replace_uses(from, result);
    }
    graph.remove(id);
    Some(())
}

/// An operand in another shape. Parts of a narrow float are kept wide, so that splitting rounds no more than one reduction
/// does; not where positions of the largest or smallest are reduced, which are those in the operand's type.
fn parted(
    graph: &mut Graph,
    operand: ValueRef,
    shape: &[i64],
    (positions, origin): (bool, Option<u32>),
) -> Option<ValueRef> {
    let ty = graph.ty(operand).clone();
    let view = TensorType::contiguous(ty.dtype, shape, ty.device);
    let view = graph.add(Op::View(View::Reshape), &[operand], [view], origin).into();
    let dtype = DType::Elem(wide(ty.dtype.elem()?));
    if positions || dtype == ty.dtype {
        return Some(view);
    }
    let ty = TensorType::contiguous(dtype, shape, ty.device);
    Some(graph.add(Op::Cast, &[view], [ty], origin).into())
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

/// The operands of a reduction with `size` elements along a dimension, the further ones of which change nothing.
fn pad(graph: &mut Graph, id: NodeId, dim: usize, size: i64, combine: Combiner) -> Option<Members<ValueRef>> {
    let operands = graph.operands(id);
    let elems = operands.iter().map(|&v| graph.ty(v).dtype.elem()).collect::<Option<Members<Elem>>>()?;
    let fills = combine.identity(&elems);
    let padded = operands.iter().zip(fills).enumerate().map(|(member, (&value, fill))| {
        let ty = graph.ty(value).clone();
        if ty.shape[dim] == size {
            return value;
        }
        let mut shape = ty.shape.clone();
        shape[dim] = size;
        let out = TensorType::contiguous(ty.dtype, &shape, ty.device);
        match known(graph, value).filter(|&literal| literal == fill || combine.ignores(member)) {
            Some(literal) => graph.add_filled(literal, &out, None),
            None => padded(graph, value, fill, out),
        }
    });
    Some(padded.collect())
}

fn padded(graph: &mut Graph, value: ValueRef, fill: Literal, out: TensorType) -> ValueRef {
    let low = Dims::from_elem(0, out.rank());
    graph.add(Op::View(View::Pad { interior: low.clone(), low, fill }), &[value], [out], None).into()
}
