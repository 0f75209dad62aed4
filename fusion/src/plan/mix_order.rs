//! Rows and columns of one tensor in one kernel: sums of columns become sums over a few rows each, which the kernel that
//! reduces the rows makes on its way, and a second reduction over those.
//!
//! ```text
//! %1 = reduce sum %0 [1] : f32[8192]           with %0 : f32[8192,4096]
//! %2 = reduce sum %0 [0] : f32[4096]
//! ```
//! becomes
//! ```text
//! %1 = reduce sum %0 [1] : f32[8192]
//! %3 = view reshape %0 : f32[256,32,4096]
//! %4 = reduce sum %3 [1] : f32[256,4096]
//! %2 = reduce sum %4 [0] : f32[4096]
//! ```
//! where `%1` and `%4` are one kernel, whose instances have 32 rows each: see
//! [`Kernel::mix_order`](crate::kernel::Kernel::mix_order).

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::split::two_steps;
use crate::graph::{Graph, NodeId, Op, ValueRef};
use crate::kernel::Space;
use crate::machine::{HOST_PARTS, Profile};
use crate::rewrite::simplify::known;
use crate::types::Dims;

/// Most rows of an instance.
const MAX_ROWS: i64 = 128;
/// Elements of an instance that are read once, whatever needs them.
const MAX_RESIDENT_ELEMENTS: i64 = 16384;
/// Fewest rows of an instance: what is kept of fewer is no longer small beside what is read.
const MIN_ROWS: i64 = 8;
/// Elements of a tensor that is worth it.
const MIN_ELEMENTS: i64 = 1 << 16;
/// Operations between a reduction and what it shares with another one.
const MAX_SEARCHED: usize = 64;

/// Forms of a graph in which reductions of columns whose operand's rows are reduced as well are divided: with many rows to an
/// instance, and with so few that a tile holds them whole.
pub(super) fn divided(graph: &Graph, profile: &Profile) -> SmallVec<[Graph; 2]> {
    let mut forms: SmallVec<[Graph; 2]> = SmallVec::new();
    let reductions = reductions(graph);
    let mut columns = reductions.iter().filter(|(_, dims, shape)| leading(dims, shape).is_some());
    if !columns.any(|columns| reductions.iter().any(|rows| are_crossed(columns, rows))) {
        return forms;
    }
    // On a GPU an instance walks along its rows.
    let elements: &[i64] =
        if profile.machine.is_gpu() { &[i64::MAX] } else { &[i64::MAX, MAX_RESIDENT_ELEMENTS] };
    for &elements in elements {
        let mut form = graph.clone();
        if divide_columns(&mut form, profile, elements) {
            forms.push(form);
        }
    }
    forms
}

/// Divides them into instances of at most so many elements. Whether there were any.
pub(super) fn divide_columns(graph: &mut Graph, profile: &Profile, elements: i64) -> bool {
    let reductions = reductions(graph);
    let mut any = false;
    for columns in &reductions {
        let (id, dims, shape) = columns;
        let Some(rows) = leading(dims, shape) else { continue };
        let across = |other: &Reduced| are_crossed(columns, other) && share(graph, *id, other.0);
        let cols = shape.iter().product::<i64>() / rows.max(1);
        let most = MAX_ROWS.min(elements / cols.max(1));
        let Some(each) = rows_of_instance(rows, most, profile) else { continue };
        if shape.iter().product::<i64>() >= MIN_ELEMENTS && reductions.iter().any(across) {
            any |= two_steps(graph, *id, dims.len(), [rows / each, each]).is_some();
        }
    }
    any
}

/// A reduction, its dimensions and the shape of its operand.
type Reduced = (NodeId, SmallVec<[u8; 6]>, Dims);

fn reductions(graph: &Graph) -> Vec<Reduced> {
    graph.ids().filter_map(|id| of(graph, id)).collect()
}

/// Whether a reduction is of the dimensions of a shape that another one leaves.
fn are_crossed((_, dims, shape): &Reduced, (_, others, other): &Reduced) -> bool {
    let complement = (0..shape.len() as u8).filter(|d| !dims.contains(d));
    other == shape && others.iter().copied().eq(complement)
}

fn of(graph: &Graph, id: NodeId) -> Option<Reduced> {
    let Op::Reduce { dims, .. } = &graph.node(id).op else { return None };
    let operand = *graph.operands(id).first()?;
    let mut dims: SmallVec<[u8; 6]> = dims.iter().copied().collect();
    dims.sort_unstable();
    Some((id, dims, graph.ty(operand).shape.clone()))
}

/// The elements of the dimensions that are reduced, if these are the first ones, and not all.
fn leading(dims: &[u8], shape: &[i64]) -> Option<i64> {
    let first = dims.iter().copied().eq(0..dims.len() as u8);
    (first && !dims.is_empty() && dims.len() < shape.len()).then(|| shape[..dims.len()].iter().product())
}

/// How many rows an instance takes: as many as divide them all and leave instances enough. On a processor not by its
/// threads, for sums of other parts are rounded otherwise.
fn rows_of_instance(rows: i64, most: i64, profile: &Profile) -> Option<i64> {
    let instances = if profile.machine.is_gpu() { profile.workers as i64 * 3 / 2 } else { HOST_PARTS };
    (MIN_ROWS..=most).rev().filter(|each| rows % each == 0 && rows / each >= instances).max_by_key(|each| {
        // Tiles have powers of two rows: one that is not leaves threads idle.
        (*each & (*each - 1) == 0, *each)
    })
}

/// Whether two reductions read one large tensor, or something that is computed element by element of it.
fn share(graph: &Graph, a: NodeId, b: NodeId) -> bool {
    let [a, b] = [a, b].map(|id| sources(graph, id));
    a.iter().any(|value| b.contains(value))
}

/// What a reduction's operands are computed of, element by element, with as many elements; not literals.
fn sources(graph: &Graph, id: NodeId) -> FxHashSet<ValueRef> {
    let mut stack: Vec<ValueRef> =
        graph.operands(id).into_iter().filter(|&v| known(graph, v).is_none()).collect();
    let numel = stack.first().map_or(0, |&v| graph.ty(v).numel());
    let mut seen = FxHashSet::default();
    while let Some(value) = stack.pop() {
        if seen.len() > MAX_SEARCHED || graph.ty(value).numel() != numel || !seen.insert(value) {
            continue;
        }
        if matches!(graph.node(value.node).op, Op::Map(_) | Op::Cast) {
            stack.extend(graph.operands(value.node));
        }
    }
    seen
}

/// The space of a kernel that reduces the rows of `rows` and, a few rows at a time, the columns of `columns`.
pub(super) fn space(rows: &Space, columns: &Space) -> Option<Space> {
    let plain = rows.mix_order.is_none() && columns.mix_order.is_none();
    let second = columns.reduced.iter().enumerate().all(|(d, &reduced)| reduced == (d == 1));
    let kept = rows.reduced.iter().take_while(|&&reduced| !reduced).count();
    let trailing = kept > 0 && kept < rows.shape.len() && rows.reduced[kept..].iter().all(|&reduced| reduced);
    if !plain
        || !second
        || columns.shape.len() < 3
        || !trailing
        || !(2..=MAX_ROWS).contains(&columns.shape[1])
    {
        return None;
    }
    let points = |dims: &[i64]| dims.iter().product::<i64>();
    let same = points(&rows.shape[..kept]) == points(&columns.shape[..2])
        && points(&rows.shape[kept..]) == points(&columns.shape[2..]);
    let reduced = (0..columns.shape.len()).map(|d| d > 1).collect();
    same.then(|| Space { shape: columns.shape.clone(), reduced, mix_order: Some(1) })
}
