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

use crate::contraction::Contraction;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::machine::Profile;
use crate::place::strides_in_base;
use crate::rewrite_limit::Rewrites;
use crate::types::{Dims, TensorType};

/// Bytes at whose multiples rows begin.
const ALIGNMENT: i64 = 16;

/// Pads the sums of products where that is expected to take less than unaligned rows; returns how many.
pub(crate) fn align_sums(graph: &mut Graph, profile: &Profile, rewrites: &Rewrites) -> usize {
    let nodes: Vec<NodeId> = graph.ids().collect();
    let mut made = 0;
    for id in nodes {
        let Op::Contract(contraction) = &graph.node(id).op else { continue };
        let Some(padded) = Padded::of(graph, id, contraction, profile) else { continue };
        if rewrites.allow("align-sums") {
            padded.apply(graph, id);
            made += 1;
        }
    }
    made
}

/// The operands of a product with more elements along the sum.
struct Padded {
    operands: [(ValueRef, TensorType); 2],
    fill: Literal,
}

impl Padded {
    fn of(graph: &Graph, id: NodeId, contraction: &Contraction, profile: &Profile) -> Option<Padded> {
        let &[(left, right)] = contraction.sum.as_slice() else { return None };
        let &[a, b] = graph.operands(id).as_slice() else { return None };
        // The rates are those of halves.
        let elem = graph.ty(a).dtype.elem().filter(|elem| matches!(elem, Elem::F16 | Elem::Bf16))?;
        let step = ALIGNMENT / i64::from(elem.bytes());
        let operands = [(a, usize::from(left)), (b, usize::from(right))];
        if !operands.iter().any(|&(value, dim)| has_unaligned_rows(graph, value, dim, step)) {
            return None;
        }
        let padded = operands.map(|(value, dim)| {
            let ty = graph.ty(value);
            let mut shape = ty.shape.clone();
            shape[dim] = (shape[dim] + step - 1) / step * step;
            let aligned = shape.last().is_some_and(|&last| last % step == 0);
            aligned.then(|| (value, TensorType::contiguous(ty.dtype, &shape, ty.device)))
        });
        let [Some(a), Some(b)] = padded else { return None };
        let moved = 2 * (a.1.bytes() + b.1.bytes());
        let padding_us = moved as f64 / profile.bandwidth / 1000.0 + 2.0 * profile.launch_us;
        let size = graph.ty(operands[0].0).shape.get(operands[0].1).copied()?;
        let flops = 2.0 * graph.ty(id.into()).numel() as f64 * size as f64;
        let us = |rate: f64| flops / rate / 1000.0;
        let saved_us = us(profile.products.unaligned) - us(profile.products.aligned);
        (saved_us > padding_us).then(|| Padded { operands: [a, b], fill: Literal::of(elem, 0.0) })
    }

    fn apply(self, graph: &mut Graph, id: NodeId) {
        let origin = graph.node(id).origin;
        for (position, (value, ty)) in self.operands.into_iter().enumerate() {
            let low = Dims::from_elem(0, ty.rank());
            let pad = Op::View(View::Pad { interior: low.clone(), low, fill: self.fill });
            let padded = graph.add(pad, &[value], [ty], origin);
            graph.set_operand(id, position as u16, padded.into());
        }
    }
}

/// Whether elements along a dimension are neighbours in memory, and rows of them begin at no multiples of so many elements.
fn has_unaligned_rows(graph: &Graph, value: ValueRef, dim: usize, step: i64) -> bool {
    let ty = graph.ty(value);
    let strides = strides_in_base(graph, value).unwrap_or_else(|| crate::types::row_major(&ty.shape));
    let others = (0..ty.rank()).filter(|&other| other != dim && ty.shape[other] > 1);
    strides.get(dim) == Some(&1) && others.into_iter().any(|other| strides[other] % step != 0)
}
