//! Merging loop variables: adjacent dimensions that every access walks as one become one variable.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::build::{Domain, Group};
use super::{KNode, Kernel, Layouts, Refusal, build};
use crate::graph::Graph;
use crate::index::{Atom, Expr, Indices, Var};
use crate::types::MAX_POINTS;

/// The kernel of a group over as few variables as its accesses allow; variables of extent 1 are dropped.
pub fn collapse(graph: &Graph, group: &Group, layouts: &dyn Layouts) -> Result<Kernel, Refusal> {
    let fine = build(graph, group, layouts, None)?;
    let domain = merged(&fine, group);
    if domain == Domain::of(group) {
        return Ok(fine);
    }
    over(fine, group, &domain)
}

/// A kernel that has a variable for each dimension, over another domain: its accesses in terms of that one's variables.
fn over(mut kernel: Kernel, group: &Group, domain: &Domain) -> Result<Kernel, Refusal> {
    let fine = Arc::clone(&kernel.indices);
    let mut indices = Indices::new(&domain.extents);
    let mut vars: SmallVec<[Expr; 6]> =
        domain.reference(&mut indices, &group.space.shape).iter().map(|&(_, expr)| expr).collect();
    for &extent in &fine.extents()[vars.len()..] {
        let var = indices.add_var(extent);
        vars.push(indices.var(var));
    }
    let mut substitution = Substitution { fine: &fine, vars, indices, known: FxHashMap::default() };
    for node in &mut kernel.exprs {
        match node {
            KNode::Index(expr, _) | KNode::InRange(expr, ..) | KNode::Load { addr: expr, .. } => {
                *expr = substitution.expr(*expr);
            }
            KNode::Const(_) | KNode::Map(..) | KNode::Cast(..) | KNode::Reduce(_) => {}
        }
    }
    for store in &mut kernel.stores {
        store.addr = substitution.expr(store.addr);
    }
    let bits = |dims: &[u8]| dims.iter().fold(0, |set, &d| set | 1u64 << d.min(63));
    let merged: SmallVec<[u64; 6]> = domain.dims.iter().map(|dims| bits(dims)).collect();
    for info in &mut kernel.info {
        let vars = merged.iter().enumerate().filter(|&(_, dims)| info.vars & dims != 0);
        info.vars = vars.fold(0, |set, (var, _)| set | 1 << var.min(63));
    }
    kernel.indices = Arc::new(substitution.indices);
    kernel.reduced.clone_from(&domain.reduced);
    kernel.mix_order = domain.mix_order(group)?;
    Ok(kernel)
}

/// Index expressions in which expressions of other variables take the place of variables.
struct Substitution<'a> {
    fine: &'a Indices,
    /// What takes the place of each.
    vars: SmallVec<[Expr; 6]>,
    indices: Indices,
    known: FxHashMap<Expr, Expr>,
}

impl Substitution<'_> {
    fn expr(&mut self, expr: Expr) -> Expr {
        if let Some(&known) = self.known.get(&expr) {
            return known;
        }
        let linear = self.fine.linear(expr);
        let mut sum = self.indices.constant(linear.constant);
        for &(atom, coefficient) in &linear.terms {
            let part = match atom {
                Atom::Var(var) => self.vars[var.0 as usize],
                Atom::Div(inner, divisor) => {
                    let inner = self.expr(inner);
                    self.indices.div(inner, divisor)
                }
                Atom::Mod(inner, divisor) => {
                    let inner = self.expr(inner);
                    self.indices.rem(inner, divisor)
                }
            };
            sum = self.indices.add_scaled(sum, part, coefficient);
        }
        self.known.insert(expr, sum);
        sum
    }
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
