//! Contractions of windows, read as convolutions.

use tilefuse_block::Elem;

use super::geometry::{Conv, Image};
use crate::contract::match_failure::MatchFailure;
use crate::contract::operand::Source;
use crate::contract::window_axis::WindowAxis;
use crate::convolution::ConvArgs;
use crate::graph::{Graph, NodeId};
use crate::library_form::ContractionForm;
use crate::rewrite::channels_last::ResultLayout;
use crate::types::fits_i32;

/// A convolution and the positions of its operands: images, weights, and the bias if there is one.
pub(in crate::contract) struct ConvCall {
    pub(in crate::contract) conv: Conv,
    pub(in crate::contract) operands: Vec<u16>,
    /// Whether all operands and the result are row-major.
    pub(in crate::contract) row_major: bool,
    /// Whether the images have a dimension for the batch.
    pub(in crate::contract) batched: bool,
}

impl ConvCall {
    /// Where the images of a call lie.
    pub(super) fn image(&self, lie: &Source) -> Option<Image> {
        let skip = usize::from(self.batched);
        Some(Image {
            batch: if self.batched { *lie.strides.first()? } else { 0 },
            channel: *lie.strides.get(skip)?,
            axes: lie.strides.get(skip + 1..)?.to_vec(),
            offset: lie.offset,
            span: lie.span,
        })
    }

    /// The order of a result with the filters innermost.
    pub(super) fn channels_last_layout(&self, shape: &[i64]) -> Option<ResultLayout> {
        ResultLayout::channels_last(shape, self.batched)
    }
}

/// The convolution that a node's contraction is.
///
/// # Errors
/// Why there is no kernel for it.
pub(in crate::contract) fn read(
    graph: &Graph,
    node: NodeId,
    form: &ContractionForm,
) -> Result<ConvCall, MatchFailure> {
    known(graph, node, form).ok_or_else(|| unknown(graph, node))
}

/// Why no template knows a convolution.
fn unknown(graph: &Graph, node: NodeId) -> MatchFailure {
    let out = graph.ty(node.into()).dtype;
    let floats = matches!(out.elem(), Some(Elem::F32 | Elem::F64 | Elem::F16 | Elem::Bf16));
    let operands = graph.operands(node);
    let tensors = || operands.iter().copied().chain([node.into()]).map(|value| graph.ty(value));
    match () {
        () if !floats || tensors().any(|ty| ty.dtype != out) => MatchFailure::ElementTypes,
        () if tensors().any(|ty| ty.numel() == 0) => MatchFailure::Small,
        () if tensors().any(|ty| !fits_i32(ty.numel())) => MatchFailure::Sizes,
        () => MatchFailure::NoTemplate,
    }
}

/// The convolution that a node's contraction is; `None` for those that the templates do not know, such as those whose tensors
/// are not floats of one type.
pub(super) fn known(graph: &Graph, node: NodeId, form: &ContractionForm) -> Option<ConvCall> {
    let ConvArgs { stride, padding, dilation, groups, transposed, .. } = form.window.as_ref()?;
    let (groups, transposed) = (*groups, *transposed);
    let values = graph.operands(node);
    let (input, weight) = (form.lhs, form.rhs);
    let bias = form.addend.map(|(at, _)| at);
    let operands: Vec<u16> = [input, weight].into_iter().chain(bias).collect();
    let [out] = &graph.node(node).outs[..] else { return None };
    let mut row_major = out.is_contiguous();
    for &position in &operands {
        let ty = graph.ty(*values.get(usize::from(position))?);
        if ty.dtype != out.dtype || ty.device != out.device {
            return None;
        }
        row_major &= ty.is_contiguous();
    }
    let shape = |position: u16| values.get(usize::from(position)).map(|&v| graph.ty(v).shape.clone());
    let (x, w) = (shape(input)?, shape(weight)?);
    let axes = w.len().checked_sub(2)?;
    // A single image may come without a batch.
    let batched = x.len() == axes + 2;
    let (batch, x, y) = match x.len().checked_sub(axes)? {
        1 => (1, &x[..], &out.shape[..]),
        2 => (*x.first()?, x.get(1..)?, out.shape.get(1..)?),
        _ => return None,
    };
    if y.len() != axes + 1 {
        return None;
    }
    let natural = |n: i64| u64::try_from(n).ok();
    let mut extents = Vec::new();
    for d in 0..axes {
        extents.push(WindowAxis {
            image: natural(x[d + 1])?,
            kernel: natural(w[d + 2])?,
            stride: natural(stride[d])?,
            padding: natural(padding[d][0])?,
            dilation: natural(dilation[d])?,
            out: natural(y[d + 1])?,
            transposed,
        });
    }
    let conv = Conv {
        elem: out.dtype.elem()?,
        batch: natural(batch)?,
        channels: natural(x[0])?,
        filters: if transposed { natural(w[1])?.checked_mul(natural(groups)?)? } else { natural(w[0])? },
        groups: natural(groups)?,
        axes: extents,
        bias: bias.is_some(),
    };
    conv.check().ok()?;
    let weights = match transposed {
        true => natural(w[0])? == conv.channels && conv.axes.iter().all(WindowAxis::is_reached),
        false => natural(w[1])? == conv.depth(),
    };
    let fits = weights && natural(y[0])? == conv.filters;
    fits.then_some(ConvCall { conv, operands, row_major, batched })
}
