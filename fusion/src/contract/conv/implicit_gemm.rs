//! Convolutions over images in channels-last as products (implicit GEMM): a row is a pixel of the result, a column a filter, and
//! what is summed over are the channels under each tap.
//!
//! ```text
//! images [N,C,H,W]{HWC,1,WC,C}, weight [F,C,1,1]                     ->     [NHW, C] x [C, F]
//! images [N,C,H,W]{HWC,1,WC,C}, weight [F,C,3,3]{9C,1,3C,C}          ->     windows [NHW, 9C] x [9C, F]
//! ```

use smallvec::smallvec;

use super::call;
use super::geometry::Conv;
use crate::contract::blocks::LINE_DEPTH;
use crate::contract::match_failure::MatchFailure;
use crate::contract::operand::{Source, in_memory, source};
use crate::contract::product::{self, Access, Product};
use crate::contract::windows::Windows;
use crate::graph::{Graph, NodeId};
use crate::library_form::ContractionForm;
use crate::rewrite::channels_last::ResultLayout;
use crate::taken::taken;
use crate::types::Dims;

/// The product that a convolution is.
pub(in crate::contract) fn as_product(
    graph: &Graph,
    node: NodeId,
    form: &ContractionForm,
) -> Result<Product, MatchFailure> {
    let read = call::read(graph, node, form)?;
    let conv = &read.conv;
    let out = graph.ty(node.into());
    if conv.groups != 1 || conv.is_transposed() {
        return Err(MatchFailure::Device);
    }
    let layout = ResultLayout::channels_last(&out.shape, read.batched).ok_or(MatchFailure::NoTemplate)?;
    if !layout.is_order_of(&out.strides, &out.shape) {
        return Err(MatchFailure::ImageStrides);
    }
    let operands = graph.operands(node);
    let operand = |at: usize| {
        let position = *read.operands.get(at)?;
        Some((position, *operands.get(usize::from(position))?))
    };
    let missing = MatchFailure::ImageStrides;
    let (position, value) = operand(0).ok_or(missing)?;
    let mut images = in_memory(graph, value, position);
    images.reorder(&layout.inverse);
    let (position, value) = operand(1).ok_or(missing)?;
    let weight = filters(in_memory(graph, value, position)).ok_or(missing)?;
    let &[k, n] = &weight.shape[..] else { return Err(missing) };
    taken!("implicit GEMM");
    let of_pixels = conv.axes.iter().all(|axis| axis.kernel == 1 && axis.padding == 0 && axis.is_same());
    let windows = (!of_pixels).then(|| windows(conv, &images, read.batched).ok_or(missing)).transpose()?;
    let depth = windows.as_ref().map_or(Some(k), Windows::depth).ok_or(MatchFailure::Sizes)?;
    // Rows are pixels of all images; without windows, those of each row of an image for now.
    let (batch, m) = match (&windows, layout.shape.split_last_chunk::<2>()) {
        (Some(_), _) => {
            (Dims::new(), layout.shape.split_last().map_or(1, |(_, pixels)| pixels.iter().product()))
        }
        (None, Some((batch, &[m, _]))) => (Dims::from_slice(batch), m),
        (None, None) => return Err(missing),
    };
    let access = |source, matrix| product::access(source, &batch, matrix).ok_or(MatchFailure::NoTemplate);
    let bias = operand(2).map(|(position, value)| access(source(graph, value, position), [m, n]));
    let bias = bias.transpose()?;
    let a = match &windows {
        Some(_) => Access { source: images, batch: Dims::new(), matrix: [0, 1] },
        None => access(images, [m, k])?,
    };
    let product = Product {
        m,
        n,
        k: depth,
        a,
        windows,
        b: access(weight, [k, n])?,
        beta: if bias.is_some() { 1.0 } else { 0.0 },
        c: bias,
        alpha: 1.0,
        elem: conv.elem,
        out: conv.elem,
        batch: batch.clone(),
        result_layout: Some(layout),
    };
    Ok(product.folded())
}

/// Filters `[F, C, ..taps]` as a matrix of what is summed over and filters; `None` where a filter is not one run of channels
/// tap by tap.
fn filters(mut weight: Source) -> Option<Source> {
    let ([filters, channels, taps @ ..], [across, down, steps @ ..]) =
        (&weight.shape[..], &weight.strides[..])
    else {
        return None;
    };
    let mut depth = *channels;
    // One channel lies beside none.
    let down = if *channels == 1 { 1 } else { *down };
    for (&size, &step) in taps.iter().zip(steps).rev() {
        if size != 1 && step != depth * down {
            return None;
        }
        depth *= size;
    }
    let is_run = down == 1 || depth == *channels;
    (weight.shape, weight.strides) = (smallvec![depth, *filters], smallvec![down, *across]);
    is_run.then_some(weight)
}

/// The windows of a convolution in images `[..batch, ..pixels, channels]`; `None` where channels are not contiguous.
fn windows(conv: &Conv, images: &Source, batched: bool) -> Option<Windows> {
    let (&channel, strides) = images.strides.split_last()?;
    let (stride, steps) = if batched { strides.split_first()? } else { (&0, strides) };
    let integer = |n: u64| i64::try_from(n).ok();
    let channels = integer(conv.channels)?;
    let contiguous = channel == 1 || channels == 1;
    let depth = i64::from(LINE_DEPTH);
    let (axes, steps) = (conv.axes.clone(), steps.to_vec());
    let images = integer(conv.batch)?;
    let windows = Windows { images, stride: *stride, channels, filled: channels, axes, steps, part: 0 };
    if contiguous { windows.in_steps(depth) } else { None }
}
