//! Products whose operands' rows begin at no multiples of 16 bytes, padded with zeros along the sum.
//!
//! ```text
//! %2 = contract sum[1]x[1](%0, %1)          %3 = view pad[0,0]=0.0(%0) : bf16[49152,200]
//!        : f32[49152,384]             ->    %4 = view pad[0,0]=0.0(%1) : bf16[384,200]
//!                                           %2 = contract sum[1]x[1](%3, %4) : f32[49152,384]
//! ```
//!
//! Matrix units of a GPU read 16 bytes at a time, and libtorch's products of other rows, which copy elements one by one, take several
//! times as long. Both operands are padded, and products of zeros add nothing, whatever the others are.

#[cfg(test)]
mod tests;

use tilefuse_block::{Elem, Literal};

use super::Form;
use crate::contract::price::{ComputedBy, FormWork};
use crate::contract::product::COPIED;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::place::strides_in_base;
use crate::types::{Dims, TensorType};

/// The operands of a product with more elements along the sum.
struct AlignedSum {
    contract: NodeId,
    operands: [(ValueRef, TensorType); 2],
    /// Elements of the padded sum.
    depth: i64,
    fill: Literal,
}

/// The form of a contraction, where it is legal.
pub(super) fn legal(graph: &Graph, contract: NodeId) -> Option<Box<dyn Form>> {
    let Op::Contract(contraction) = &graph.node(contract).op else { return None };
    let &[(left, right)] = contraction.sum.as_slice() else { return None };
    let &[a, b] = graph.operands(contract).as_slice() else { return None };
    // libtorch's products of other types are not of matrix units.
    let elem = graph.ty(a).dtype.elem().filter(|elem| matches!(elem, Elem::F16 | Elem::Bf16))?;
    let operands = [(a, usize::from(left)), (b, usize::from(right))];
    if !operands.iter().any(|&(value, dim)| has_unaligned_rows(graph, value, dim)) {
        return None;
    }
    let depth = (graph.ty(a).shape[usize::from(left)] + COPIED - 1) / COPIED * COPIED;
    let padded = operands.map(|(value, dim)| {
        let ty = graph.ty(value);
        let mut shape = ty.shape.clone();
        shape[dim] = depth;
        let aligned = shape.last().is_some_and(|&last| last % COPIED == 0);
        aligned.then(|| (value, TensorType::contiguous(ty.dtype, &shape, ty.device)))
    });
    let [Some(a), Some(b)] = padded else { return None };
    Some(Box::new(AlignedSum { contract, operands: [a, b], depth, fill: Literal::of(elem, 0.0) }))
}

impl Form for AlignedSum {
    fn name(&self) -> &'static str {
        "align-sums"
    }

    fn work(&self, graph: &Graph) -> FormWork {
        let [(_, a), (_, b)] = &self.operands;
        let copies = vec![a.bytes() as f64, b.bytes() as f64];
        let call = FormWork::of_call(graph.ty(self.contract.into()), [a, b], self.depth);
        FormWork { by: ComputedBy::CallOrKernel, copies, ..call }
    }

    fn apply(self: Box<Self>, graph: &mut Graph) {
        let origin = graph.node(self.contract).origin;
        for (position, (value, ty)) in self.operands.into_iter().enumerate() {
            let low = Dims::from_elem(0, ty.rank());
            let pad = Op::View(View::Pad { interior: low.clone(), low, fill: self.fill });
            let padded = graph.add(pad, &[value], [ty], origin);
            graph.set_operand(self.contract, position as u16, padded.into());
        }
    }
}

/// Whether elements along a dimension are neighbours in memory, and rows of them begin at no multiples of 16 bytes.
fn has_unaligned_rows(graph: &Graph, value: ValueRef, dim: usize) -> bool {
    let ty = graph.ty(value);
    let strides = strides_in_base(graph, value).unwrap_or_else(|| crate::types::row_major(&ty.shape));
    let others = (0..ty.rank()).filter(|&other| other != dim && ty.shape[other] > 1);
    strides.get(dim) == Some(&1) && others.into_iter().any(|other| strides[other] % COPIED != 0)
}
