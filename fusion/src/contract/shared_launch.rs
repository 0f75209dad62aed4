//! Products of one left operand that a GPU may compute in one launch, as queries, keys and values are.
//!
//! ```text
//! %3 = aten::linear(%0, %1)      12 blocks on 132 multiprocessors
//! %4 = aten::linear(%0, %2)      12                                   one launch of 36 blocks in the time of one of them
//! %5 = aten::linear(%0, %6)      12
//! ```
//!
//! Horizontal fusion makes one launch of their kernels. Which kernels there are is decided here, before that: a product has a kernel
//! rather than libtorch's call where it pays with those of the others beside it, and all have the blocks that are best for all.

use super::product::{self, Product};
use crate::graph::{Graph, NodeId, Op, ValueRef};

/// Products that are taken together at most: those of a time embedding in the blocks of a U-Net. What a launch of each copies by is a
/// map of 128 bytes among the parameters, of which there are 4096.
const MAX_PRODUCTS: usize = 20;

/// Operators that are looked through for what a weight is made of.
const MAX_WEIGHT: usize = 32;

/// The columns of the products that may share a launch with a node's, itself among them, in the order of the graph: of as many rows and
/// as long sums, with the same left operand and others that need no product. Empty where there is no other.
pub(super) fn columns(graph: &Graph, node: NodeId, own: &Product) -> Vec<i64> {
    let Some(left) = left_operand(graph, node) else { return Vec::new() };
    let mut readers: Vec<NodeId> = graph.users(left.node).into_iter().map(|(user, _)| user).collect();
    readers.dedup();
    if readers.len() < 2 || !readers.contains(&node) {
        return Vec::new();
    }
    let alike = |&reader: &NodeId| columns_of(graph, reader, left, own);
    let all: Vec<i64> = readers.iter().filter_map(alike).collect();
    let independent = own.batch.is_empty() && needs_no_product(graph, node, left);
    if independent && (2..=MAX_PRODUCTS).contains(&all.len()) { all } else { Vec::new() }
}

/// The left operand of a node's product.
fn left_operand(graph: &Graph, node: NodeId) -> Option<ValueRef> {
    let Op::Aten(call) = &graph.node(node).op else { return None };
    let form = call.contraction().filter(|form| form.window.is_none())?;
    graph.operands(node).get(usize::from(form.lhs)).copied()
}

/// The columns of a node's product, if it is one like another of this left operand.
fn columns_of(graph: &Graph, node: NodeId, left: ValueRef, like: &Product) -> Option<i64> {
    let Op::Aten(call) = &graph.node(node).op else { return None };
    if left_operand(graph, node) != Some(left) || !needs_no_product(graph, node, left) {
        return None;
    }
    let product = product::of(graph, node, call.contraction()?).ok()?;
    let sizes = |product: &Product| (product.m, product.k, product.elem, product.batch.is_empty());
    (sizes(&product) == sizes(like)).then_some(product.n)
}

/// Whether all operands of a node but this one are made of the model's tensors without products, reductions and gathers.
fn needs_no_product(graph: &Graph, node: NodeId, left: ValueRef) -> bool {
    let mut seen: Vec<NodeId> = graph.operands(node).iter().filter(|&&v| v != left).map(|v| v.node).collect();
    let mut at = 0;
    while let Some(&value) = seen.get(at) {
        at += 1;
        match graph.node(value).op {
            Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::Scalar(_) => {}
            Op::View(_) | Op::Cast | Op::Map(_) if seen.len() < MAX_WEIGHT => {
                for operand in graph.operands(value) {
                    if !seen.contains(&operand.node) {
                        seen.push(operand.node);
                    }
                }
            }
            _ => return false,
        }
    }
    true
}
