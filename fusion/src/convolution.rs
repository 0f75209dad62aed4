//! Convolutions: the arguments of libtorch's calls, and the contraction that each of them is.
//!
//! ```text
//! images   [N, C, image]           windows of them   [N, (G, C/G | C), positions, kernel]
//! weight   [F, C/G, kernel]        per group         [(G,) F/G, C/G, kernel]
//!                                  their contraction [(G,) N, positions, F/G]
//! ```
//!
//! The dimension of the images, `N`, may be missing. A transposed convolution is one of images with zeros between their elements,
//! with a flipped weight `[C, F/G, kernel]`.

use smallvec::SmallVec;

use crate::args::Args;
use crate::contraction::{Contraction, Window};
use crate::types::Dims;

/// Numbers by axis of an image.
pub(crate) type PerAxis = SmallVec<[i64; 3]>;

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

/// The largest of strides, paddings and dilations.
const MAX_ARGUMENT: i64 = 1 << 31;

/// Whether a call of a convolution is that of a transposed one.
fn is_transposed(op: &str, args: Args<'_, u16>) -> bool {
    op.starts_with("aten::conv_transpose") || args.bool("transposed") == Some(true)
}

/// The arguments of a convolution beside its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConvArgs {
    /// Distance of neighbouring windows; of a transposed convolution, of neighbouring elements of the image in the result.
    pub(crate) stride: PerAxis,
    /// Zeros before and behind the image; of a transposed convolution, what is cut off the result.
    pub(crate) padding: SmallVec<[[i64; 2]; 3]>,
    /// Distance of neighbouring elements of the kernel.
    pub(crate) dilation: PerAxis,
    /// What a transposed convolution has behind its result.
    pub(crate) output_padding: PerAxis,
    /// Channels are divided into so many.
    pub(crate) groups: i64,
    /// Whether it is a transposed convolution.
    pub(crate) transposed: bool,
}

impl ConvArgs {
    /// Those of a call whose kernel has these sizes; `None` where they are not understood.
    pub(crate) fn of(op: &str, args: Args<'_, u16>, kernel: &[i64]) -> Option<ConvArgs> {
        let (_, axes) = OPERATORS.iter().find(|(name, _)| *name == op)?;
        if kernel.is_empty() || axes.is_some_and(|axes| axes != kernel.len()) {
            return None;
        }
        let list = |name: &str, default: i64| -> Option<PerAxis> {
            let list = if args.absent(name) { vec![default] } else { args.ints(name)? };
            let list = match list[..] {
                [one] => SmallVec::from_elem(one, kernel.len()),
                _ => PerAxis::from_vec(list),
            };
            let valid = list.len() == kernel.len() && list.iter().all(|n| (0..MAX_ARGUMENT).contains(n));
            valid.then_some(list)
        };
        let (stride, dilation) = (list("stride", 1)?, list("dilation", 1)?);
        let transposed = is_transposed(op, args);
        let output_padding =
            if transposed { list("output_padding", 0)? } else { SmallVec::from_elem(0, kernel.len()) };
        let padding = match args.str("padding") {
            Some("same") => kernel.iter().zip(&dilation).map(|(&k, &d)| same(k, d)).collect::<Option<_>>()?,
            Some("valid") => SmallVec::from_elem([0, 0], kernel.len()),
            Some(_) => return None,
            None => list("padding", 0)?.into_iter().map(|n| [n, n]).collect(),
        };
        let groups = if args.absent("groups") { 1 } else { args.int("groups")? };
        let positive = stride.iter().chain(&dilation).chain([&groups]).all(|&n| n >= 1);
        positive.then_some(ConvArgs { stride, padding, dilation, output_padding, groups, transposed })
    }

    /// The shape of the result of images and a weight; `None` where they do not fit.
    pub(crate) fn result(&self, images: &[i64], weight: &[i64]) -> Option<Dims> {
        let (&[first, second], kernel) = weight.split_first_chunk::<2>()?;
        let axes = kernel.len();
        let (lead, images) = images.split_at_checked(images.len().checked_sub(axes + 1)?)?;
        let (&channels, sizes) = images.split_first()?;
        let lists = [&self.stride, &self.dilation, &self.output_padding];
        let complete = lists.iter().all(|list| list.len() == axes) && self.padding.len() == axes;
        let (inner, filters) = match self.transposed {
            true => (first, second.checked_mul(self.groups)?),
            false => (second.checked_mul(self.groups)?, first),
        };
        let divided = self.groups >= 1 && filters % self.groups == 0 && channels % self.groups == 0;
        let fits = complete && divided && inner == channels;
        let positions = (0..axes).map(|d| self.positions(d, sizes[d], kernel[d]));
        let positions = fits.then(|| positions.collect::<Option<Dims>>())??;
        Some(lead.iter().chain([&filters]).chain(&positions).copied().collect())
    }

    /// The size of a result along an axis of an image and a kernel of these sizes.
    fn positions(&self, axis: usize, size: i64, kernel: i64) -> Option<i64> {
        let (stride, dilation) = (self.stride[axis], self.dilation[axis]);
        let padding = self.padding[axis][0].checked_add(self.padding[axis][1])?;
        if self.transposed {
            let apart = size.checked_sub(1)?.checked_mul(stride)?;
            let reach =
                dilation.checked_mul(kernel.checked_sub(1)?)?.checked_add(self.output_padding[axis])?;
            return apart.checked_add(reach)?.checked_sub(padding)?.checked_add(1);
        }
        let window = Window { dim: 0, kernel, stride, dilation };
        window.positions(size.checked_add(padding)?)
    }

    /// Whether result and image have the same size by what libtorch pads for that.
    pub(crate) fn is_same(&self, kernel: &[i64]) -> bool {
        let padding = kernel.iter().zip(&self.dilation).map(|(&k, &d)| same(k, d));
        self.stride.iter().all(|&n| n == 1) && padding.eq(self.padding.iter().map(|&p| Some(p)))
    }
}

/// Zeros before and behind an image for a result of its size: more of an odd number lie behind it.
fn same(kernel: i64, dilation: i64) -> Option<[i64; 2]> {
    let total = dilation.checked_mul(kernel.checked_sub(1)?)?;
    Some([total / 2, total - total / 2])
}

/// The dimensions of the contraction that a convolution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConvDims {
    /// Dimensions of the images before their channels: 0 or 1.
    pub(crate) lead: usize,
    /// Whether there are groups.
    pub(crate) grouped: bool,
    /// Axes of an image.
    pub(crate) axes: usize,
    /// Whether the weight's channels come before its filters.
    pub(crate) transposed: bool,
}

impl ConvDims {
    /// Dimensions of windows, as left operand, and of the weight.
    pub(crate) fn pairs(&self) -> Contraction {
        let pair = |l: usize, r: usize| (l as u8, r as u8);
        let group = usize::from(self.grouped);
        let channel = self.lead + group;
        let channels = pair(channel, group + usize::from(!self.transposed));
        let kernel = (0..self.axes).map(|d| pair(channel + 1 + self.axes + d, group + 2 + d));
        Contraction {
            batch: (0..group).map(|_| pair(self.lead, 0)).collect(),
            sum: [channels].into_iter().chain(kernel).collect(),
        }
    }

    /// For each dimension of a result `[N, (G,) F/G, positions]` that of the contraction.
    pub(crate) fn order(&self) -> SmallVec<[u8; 6]> {
        let (group, lead) = (usize::from(self.grouped), self.lead);
        let filters = group + lead + self.axes;
        let order = (group..group + lead).chain(0..group).chain([filters]).chain(group + lead..filters);
        order.map(|d| d as u8).collect()
    }
}
