//! Convolutions of one tap over images in channels-last as products: a row is a pixel of an image, a column a filter.
//!
//! ```text
//! images [N,C,H,W]{HWC,1,WC,C}, weight [F,C,1,1]     ->     [NHW, C] x [C, F]
//! ```

use smallvec::smallvec;

use super::call;
use crate::channels_last::ResultLayout;
use crate::contract::declined::Declined;
use crate::contract::operand::{in_memory, source};
use crate::contract::product::{self, Product};
use crate::graph::{Graph, NodeId};
use crate::library_form::ContractionForm;
use crate::types::Dims;

/// The product that a convolution is, and the order of its result.
pub(in crate::contract) fn as_product(
    graph: &Graph,
    node: NodeId,
    form: &ContractionForm,
) -> Result<(Product, ResultLayout), Declined> {
    let read = call::read(graph, node, form).ok_or_else(|| call::declined(graph, node, form))?;
    let conv = &read.conv;
    let out = graph.ty(node.into());
    let of_pixels = conv.axes.iter().all(|axis| axis.kernel == 1 && axis.padding == 0 && axis.is_same());
    if !of_pixels || conv.groups != 1 || conv.transposed {
        return Err(Declined::Device);
    }
    let layout = ResultLayout::channels_last(&out.shape, read.batched).ok_or(Declined::Sizes)?;
    if !layout.is_order_of(&out.strides, &out.shape) {
        return Err(Declined::Strides);
    }
    let operands = graph.operands(node);
    let operand = |at: usize| {
        let position = *read.operands.get(at)?;
        Some((position, *operands.get(usize::from(position))?))
    };
    let missing = Declined::Strides;
    let (position, value) = operand(0).ok_or(missing)?;
    let mut images = in_memory(graph, value, position);
    images.reorder(&layout.inverse);
    let (position, value) = operand(1).ok_or(missing)?;
    let mut weight = in_memory(graph, value, position);
    let &[across, down, ..] = &weight.strides[..] else { return Err(missing) };
    let (&[.., m, n], [.., k]) = (&layout.shape[..], &images.shape[..]) else { return Err(missing) };
    let k = *k;
    (weight.shape, weight.strides) = (smallvec![k, n], smallvec![down, across]);
    let batch = Dims::from_slice(layout.shape.split_last_chunk::<2>().ok_or(missing)?.0);
    let access = |source, matrix| product::access(source, &batch, matrix).ok_or(Declined::Sizes);
    let bias = operand(2).map(|(position, value)| access(source(graph, value, position), [m, n]));
    let bias = bias.transpose()?;
    let product = Product {
        m,
        n,
        k,
        a: access(images, [m, k])?,
        b: access(weight, [k, n])?,
        beta: if bias.is_some() { 1.0 } else { 0.0 },
        c: bias,
        alpha: 1.0,
        elem: conv.elem,
        out: conv.elem,
        batch: batch.clone(),
    };
    Ok((product.folded(), layout))
}
