//! Where the operands of a product lie.

use crate::block_kernel::Layout;
use crate::graph::{Graph, ValueRef};
use crate::place::operand_place;
use crate::types::{Dims, row_major};

/// How a program reads an operand.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Source {
    /// Position among the call's operands.
    pub(super) position: u16,
    /// Sizes.
    pub(super) shape: Dims,
    /// Elements between neighbours along each dimension, as the program reads it.
    pub(super) strides: Dims,
    /// The first element.
    pub(super) offset: i64,
    /// Elements that the program's pointer reaches.
    pub(super) span: i64,
    /// Row-major elements, which may be computed by neighbours, or memory at strides.
    pub(super) layout: Layout,
}

/// How the operand at a position is read.
pub(super) fn source(graph: &Graph, value: ValueRef, position: u16) -> Source {
    let shape = graph.ty(value).shape.clone();
    let place = operand_place(graph, value);
    let wanted = row_major(&shape);
    let dense = (0..shape.len()).all(|d| shape[d] == 1 || place.strides[d] == wanted[d]);
    // A kernel's loads would compute the places of a view's elements again and again.
    if dense && place.offset == 0 && !place.is_materialized(graph) {
        let span = shape.iter().product();
        return Source { position, shape, strides: wanted, offset: 0, span, layout: Layout::Elements };
    }
    in_memory(graph, value, position)
}

/// As [`source`], of an operand that is read from the memory in which it lies, at whatever strides.
pub(super) fn in_memory(graph: &Graph, value: ValueRef, position: u16) -> Source {
    let place = operand_place(graph, value);
    let shape = graph.ty(value).shape.clone();
    let layout = Layout::Strided { strides: place.strides.clone(), offset: place.offset };
    Source { position, shape, strides: place.strides, offset: place.offset, span: place.span, layout }
}

impl Source {
    /// Puts its dimensions in another order.
    pub(super) fn reorder(&mut self, order: &[u8]) {
        let picked = |dims: &Dims| order.iter().map(|&d| dims[usize::from(d)]).collect();
        (self.shape, self.strides) = (picked(&self.shape), picked(&self.strides));
    }

    /// The operand spread over a shape of at least its rank: strides of 0 where it is repeated.
    pub(super) fn spread(&self, shape: &[i64]) -> Option<Dims> {
        let lead = shape.len().checked_sub(self.shape.len())?;
        let stride = |d: usize| match d.checked_sub(lead) {
            None => Some(0),
            Some(own) if self.shape[own] == shape[d] && shape[d] != 1 => Some(self.strides[own]),
            Some(own) if self.shape[own] == 1 => Some(0),
            Some(_) => None,
        };
        (0..shape.len()).map(stride).collect()
    }
}
