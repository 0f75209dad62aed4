//! Gathers of a product's columns as products of the columns that are gathered.
//!
//! ```text
//! %2 = contract %0 %1 : f32[128,50257]            %4 = gather 0(%1, %3) : f32[128,768]
//! %5 = gather 1(%2, %3) : f32[128,1]       ->     %5 = reduce sum [1] (map mul(%0, %4)) : f32[128,1]
//! ```
//!
//! Where all else that is computed of the product are reductions of its rows, these can be its epilogue, and it need not be
//! stored: cross-entropy behind the last linear layer of a language model.

#[cfg(test)]
mod tests;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tilefuse_block::{ReduceFn, ScalarFn};

use crate::contraction::{Contraction, accumulator};
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::machine::Profile;
use crate::rewrite_limit::Rewrites;
use crate::types::{DType, Dims, TensorType};

/// Rewrites gathers along the columns of products that nothing needs but these and reductions of rows, and that take longer to store
/// and to read than the kernel of the gathered columns takes to launch; returns how many.
pub(crate) fn gather_products(graph: &mut Graph, profile: &Profile, rewrites: &Rewrites) -> usize {
    let (mut made, mut tried) = (0, false);
    let is_moved = |id: NodeId| {
        2.0 * graph.ty(id.into()).bytes() as f64 / profile.bandwidth / 1000.0 > profile.launch_us
    };
    let is_product = |id: NodeId| matches!(graph.node(id).op, Op::Contract(_));
    let products: Vec<NodeId> = graph.ids().filter(|&id| is_product(id) && is_moved(id)).collect();
    for product in products {
        for gather in gathers_of(graph, product).unwrap_or_default() {
            tried = true;
            if !rewrites.is_spent() && rewrite(graph, product, gather).is_some() {
                made += usize::from(rewrites.allow("gather-products"));
            }
        }
    }
    if tried {
        // What was added before a value turned out not to be computable in this way, too.
        graph.remove_unused();
    }
    made
}

/// Columns of a product for each one that is picked, at least: a picked column takes as long as several of a product in blocks.
const MIN_COLUMNS_PER_PICK: i64 = 16;

/// The gathers along the columns of a product, where all else that is computed of it are reductions along these.
fn gathers_of(graph: &Graph, product: NodeId) -> Option<Vec<NodeId>> {
    let ty = graph.ty(product.into());
    let (&columns, size) = (ty.shape.last()?, ty.numel());
    let needed = |node: NodeId| {
        graph.outputs.iter().any(|v| v.node == node) || graph.updates.iter().any(|u| u.value.node == node)
    };
    let along = |value: ValueRef, dim: usize| {
        let shape = &graph.ty(value).shape;
        dim + 1 == shape.len() && shape[dim] == columns
    };
    let (mut found, mut stack, mut seen) = (Vec::new(), vec![product], FxHashSet::default());
    while let Some(at) = stack.pop() {
        if needed(at) {
            return None;
        }
        for (user, edge) in graph.users(at) {
            match &graph.node(user).op {
                Op::Map(_) | Op::Cast | Op::View(View::Reshape) if graph.ty(user.into()).numel() == size => {
                    if seen.insert(user) {
                        stack.push(user);
                    }
                }
                Op::Gather { dim } if edge.operand == 0 && along(at.into(), usize::from(*dim)) => {
                    found.push(user);
                }
                Op::Reduce { dims, .. } if dims.len() == 1 && along(at.into(), usize::from(dims[0])) => {}
                _ => return None,
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Some(found)
}

fn rewrite(graph: &mut Graph, product: NodeId, gather: NodeId) -> Option<()> {
    let &[source, index] = &graph.operands(gather)[..] else { return None };
    let (from, to) = (graph.ty(source).shape.clone(), graph.ty(index).shape.clone());
    let (columns, rows) = from.split_last()?;
    let (picked, lines) = to.split_last()?;
    if lines != rows || picked.saturating_mul(MIN_COLUMNS_PER_PICK) > *columns {
        return None;
    }
    let mut known = FxHashMap::default();
    let value = Gathering { graph, product, origin: None }.of(source, index, &mut known)?;
    let strides = graph.ty(gather.into()).strides.clone();
    if graph.ty(value).strides != strides {
        return None;
    }
    graph.replace_uses(gather.into(), value);
    Some(())
}

type Known = FxHashMap<ValueRef, ValueRef>;

struct Gathering<'g> {
    graph: &'g mut Graph,
    product: NodeId,
    origin: Option<u32>,
}

impl Gathering<'_> {
    fn add(&mut self, op: Op, operands: &[ValueRef], like: ValueRef, shape: &[i64]) -> ValueRef {
        let ty = self.graph.ty(like);
        let ty = TensorType::contiguous(ty.dtype, shape, ty.device);
        self.graph.add(op, operands, [ty], self.origin).into()
    }

    fn shape(&self, value: ValueRef) -> Dims {
        self.graph.ty(value).shape.clone()
    }

    /// The elements of a source along its last dimension.
    fn of(&mut self, source: ValueRef, index: ValueRef, known: &mut Known) -> Option<ValueRef> {
        if let Some(&value) = known.get(&source) {
            return Some(value);
        }
        let node = self.graph.node(source.node).clone();
        self.origin = node.origin;
        let operands = self.graph.operands(source.node);
        let to = self.shape(index);
        let last = to.len() - 1;
        let value = match &node.op {
            Op::Map(_) | Op::Cast => {
                let mut args: SmallVec<[ValueRef; 3]> = SmallVec::new();
                for &operand in &operands {
                    args.push(self.of(operand, index, known)?);
                }
                self.origin = node.origin;
                self.add(node.op, &args, source, &to)
            }
            Op::View(View::Expand) if self.shape(operands[0])[last] == 1 => {
                self.add(Op::View(View::Expand), &operands, source, &to)
            }
            Op::View(View::Reshape) if source.node != self.product && self.is_of_product(source) => {
                let inner = self.shape(operands[0]);
                let columns = self.shape(source)[last];
                let (&own, rows) = inner.split_last()?;
                if own != columns {
                    return None;
                }
                let wanted: Dims = rows.iter().copied().chain([to[last]]).collect();
                let inner_index = self.add(Op::View(View::Reshape), &[index], index, &wanted);
                let value = self.of(operands[0], inner_index, &mut Known::default())?;
                self.add(Op::View(View::Reshape), &[value], source, &to)
            }
            Op::Contract(contraction) if source.node == self.product => {
                let contraction = contraction.clone();
                self.product_of(&contraction, source, [operands[0], operands[1]], index)?
            }
            _ => self.add(Op::Gather { dim: last as u8 }, &[source, index], source, &to),
        };
        known.insert(source, value);
        Some(value)
    }

    /// Whether a value is computed of the product element by element.
    fn is_of_product(&self, value: ValueRef) -> bool {
        let mut stack = vec![value.node];
        while let Some(at) = stack.pop() {
            if at == self.product {
                return true;
            }
            if matches!(self.graph.node(at).op, Op::Map(_) | Op::Cast | Op::View(View::Reshape)) {
                stack.extend(self.graph.operands(at).iter().map(|operand| operand.node));
            }
        }
        false
    }

    /// The products of the left operand's rows and those columns of the right one that the index says.
    fn product_of(
        &mut self,
        contraction: &Contraction,
        product: ValueRef,
        [left, right]: [ValueRef; 2],
        index: ValueRef,
    ) -> Option<ValueRef> {
        let ranks = [left, right].map(|v| self.graph.ty(v).rank());
        let elem = self.graph.ty(product).dtype.elem().filter(|elem| elem.is_float())?;
        let columns = contraction.others(1, ranks[1]);
        if !contraction.batch.is_empty() || contraction.sum.len() != 1 || columns.len() != 1 {
            return None;
        }
        let left = self.ordered(left, contraction.order(0, ranks[0]));
        let right = self.ordered(right, contraction.order(1, ranks[1]));
        let depth = *self.shape(right).last()?;
        let to = self.shape(index);
        let (&each, rows) = to.split_last()?;
        let (rows, count): (i64, i64) = (rows.iter().product(), to.iter().product());
        let positions = self.add(Op::View(View::Reshape), &[index], index, &[count, 1]);
        let positions = self.add(Op::View(View::Expand), &[positions], index, &[count, depth]);
        let picked = self.add(Op::Gather { dim: 0 }, &[right, positions], right, &[count, depth]);
        let lines = self.add(Op::View(View::Reshape), &[left], left, &[rows, 1, depth]);
        let lines = self.add(Op::View(View::Expand), &[lines], left, &[rows, each, depth]);
        let lines = self.add(Op::View(View::Reshape), &[lines], left, &[count, depth]);
        let wide = DType::Elem(accumulator(elem)?);
        let [picked, lines] = [picked, lines].map(|value| self.cast(value, wide));
        let products = self.add(Op::Map(ScalarFn::Mul), &[lines, picked], lines, &[count, depth]);
        let sum = Op::Reduce { combine: ReduceFn::Sum.into(), dims: SmallVec::from_slice(&[1]) };
        let sum = self.add(sum, &[products], lines, &[count]);
        // A product is rounded once.
        let sum = self.cast(sum, DType::Elem(elem));
        Some(self.add(Op::View(View::Reshape), &[sum], product, &to))
    }

    fn ordered(&mut self, value: ValueRef, order: SmallVec<[u8; 6]>) -> ValueRef {
        if order.iter().enumerate().all(|(at, &dim)| at == usize::from(dim)) {
            return value;
        }
        let shape = self.shape(value);
        let shape: Dims = order.iter().map(|&d| shape[usize::from(d)]).collect();
        self.add(Op::View(View::Permute(order)), &[value], value, &shape)
    }

    fn cast(&mut self, value: ValueRef, dtype: DType) -> ValueRef {
        let ty = self.graph.ty(value);
        if ty.dtype == dtype {
            return value;
        }
        let ty = TensorType::contiguous(dtype, &ty.shape, ty.device);
        self.graph.add(Op::Cast, &[value], [ty], self.origin).into()
    }
}
