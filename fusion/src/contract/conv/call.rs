//! Calls of convolutions.

use super::{Axis, Conv};
use crate::args::Args;
use crate::graph::{AtenCall, Graph, NodeId};

/// A convolution and the positions of its operands: images, weights, and the bias if there is one.
pub(in crate::contract) struct Read {
    pub(in crate::contract) conv: Conv,
    pub(in crate::contract) operands: Vec<u16>,
    /// Whether all operands and the result are row-major.
    pub(in crate::contract) row_major: bool,
    /// Whether the images have a dimension for the batch.
    pub(in crate::contract) batched: bool,
}

/// Operators that are convolutions, with the number of axes where the name says it.
const OPERATORS: [(&str, Option<usize>); 8] = [
    ("aten::conv1d", Some(1)),
    ("aten::conv2d", Some(2)),
    ("aten::conv3d", Some(3)),
    ("aten::conv_transpose1d", Some(1)),
    ("aten::conv_transpose2d", Some(2)),
    ("aten::conv_transpose3d", Some(3)),
    ("aten::convolution", None),
    ("aten::_convolution", None),
];

/// Whether an operator is a convolution.
pub(in crate::contract) fn is_known(op: &str) -> bool {
    OPERATORS.iter().any(|(name, _)| *name == op)
}

/// Why a convolution that a call computes has no kernel, where that is for what it is and not for its sizes.
pub(in crate::contract) fn refusal(call: &AtenCall) -> Option<&'static str> {
    is_transposed(call).then_some(
        "this transposed convolution has no kernel: its kinds, sizes or strides are none that kernels take",
    )
}

/// Whether a call computes a transposed convolution.
fn is_transposed(call: &AtenCall) -> bool {
    call.op.starts_with("aten::conv_transpose")
        || (is_known(&call.op) && Args(&call.args).bool("transposed") == Some(true))
}

/// The convolution that a call computes; `None` for calls that the templates do not know, such as those whose tensors are
/// not floats of one type.
pub(in crate::contract) fn read(graph: &Graph, node: NodeId, call: &AtenCall) -> Option<Read> {
    let (_, rank) = OPERATORS.iter().find(|(name, _)| *name == call.op)?;
    let args = Args(&call.args);
    let values = graph.operands(node);
    let (input, weight) = (args.tensor("input")?, args.tensor("weight")?);
    let bias = if args.absent("bias") { None } else { Some(args.tensor("bias")?) };
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
    let transposed = is_transposed(call);
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
    if rank.is_some_and(|rank| rank != axes) || y.len() != axes + 1 {
        return None;
    }
    let list = |name: &str, default: i64| -> Option<Vec<i64>> {
        let list = if args.absent(name) { vec![default] } else { args.ints(name)? };
        match list.len() {
            1 => Some(vec![*list.first()?; axes]),
            n if n == axes => Some(list),
            _ => None,
        }
    };
    let (stride, dilation) = (list("stride", 1)?, list("dilation", 1)?);
    let padding = match args.str("padding") {
        // More of an odd number of zeros lie behind the image.
        Some("same") => (0..axes).map(|d| dilation[d] * (w[d + 2] - 1) / 2).collect(),
        Some("valid") => vec![0; axes],
        Some(_) => return None,
        None => list("padding", 0)?,
    };
    let natural = |n: i64| u64::try_from(n).ok();
    let mut extents = Vec::new();
    for d in 0..axes {
        extents.push(Axis {
            image: natural(x[d + 1])?,
            kernel: natural(w[d + 2])?,
            stride: natural(stride[d])?,
            padding: natural(padding[d])?,
            dilation: natural(dilation[d])?,
            out: natural(y[d + 1])?,
        });
    }
    let groups = if args.absent("groups") { 1 } else { args.int("groups")? };
    let conv = Conv {
        elem: out.dtype.elem()?,
        batch: natural(batch)?,
        channels: natural(x[0])?,
        filters: if transposed { natural(w[1])?.checked_mul(natural(groups)?)? } else { natural(w[0])? },
        groups: natural(groups)?,
        axes: extents,
        bias: bias.is_some(),
        transposed,
    };
    conv.check().ok()?;
    let weights = match transposed {
        true => natural(w[0])? == conv.channels && conv.axes.iter().all(Axis::is_transposed),
        false => natural(w[1])? == conv.depth(),
    };
    let fits = weights && natural(y[0])? == conv.filters;
    fits.then_some(Read { conv, operands, row_major, batched })
}
