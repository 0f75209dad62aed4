//! Merging loop variables: adjacent dimensions that every access walks as one become one variable.

use smallvec::SmallVec;

use super::build::{Domain, Group};
use super::{Kernel, Layouts, Refusal, build};
use crate::graph::Graph;
use crate::index::Var;
use crate::types::MAX_POINTS;

/// The kernel of a group over as few variables as its accesses allow; variables of extent 1 are dropped.
pub fn collapse(graph: &Graph, group: &Group, layouts: &dyn Layouts) -> Result<Kernel, Refusal> {
    let fine = build(graph, group, layouts, None)?;
    let domain = merged(&fine, group);
    if domain == Domain::of(group) {
        return Ok(fine);
    }
    build(graph, group, layouts, Some(&domain))
}

fn merged(kernel: &Kernel, group: &Group) -> Domain {
    let mut domain = Domain { extents: Vec::new(), reduced: Vec::new(), dims: Vec::new() };
    for reduced in [false, true] {
        let mut last: Option<u8> = None;
        for d in 0..group.space.shape.len() as u8 {
            let at = usize::from(d);
            if group.space.reduced[at] != reduced || group.space.shape[at] == 1 {
                continue;
            }
            let apart = |dim: u8| group.space.mix_order == Some(dim);
            if let Some(outer) = last
                && !apart(outer)
                && !apart(d)
                && mergeable(kernel, u32::from(outer), u32::from(d), reduced)
                && let (Some(extent), Some(dims)) = (domain.extents.last_mut(), domain.dims.last_mut())
                && let points = extent.saturating_mul(group.space.shape[at])
                && points <= MAX_POINTS
            {
                *extent = points;
                dims.push(d);
            } else {
                domain.extents.push(group.space.shape[at]);
                domain.reduced.push(reduced);
                domain.dims.push(SmallVec::from_slice(&[d]));
            }
            last = Some(d);
        }
    }
    domain
}

/// Whether every access steps from the end of `inner` to the next of `outer` as within `inner`. Where both are reduced, a vector along
/// `outer` may be read beside what does: rows are walked as one then, as where a group norm's channels have a weight each.
fn mergeable(kernel: &Kernel, outer: u32, inner: u32, reduced: bool) -> bool {
    let indices = &kernel.indices;
    let extent = indices.extents()[inner as usize];
    let mut walks = false;
    kernel.accesses().iter().all(|&(expr, _)| {
        if indices.nested_vars(expr) & (1 << outer.min(63) | 1 << inner.min(63)) != 0 {
            return false;
        }
        let [across, along] = [outer, inner].map(|v| indices.coefficient(expr, Var(v)));
        walks |= along != 0;
        across == along * extent || (reduced && along == 0)
    }) && (walks || !reduced)
}
