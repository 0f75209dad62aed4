//! How a view's elements lie in the tensor that it is a view of, so that a write through it can be undone into it.

use crate::args::{Args, movedim, slice_start, swapped, wrap, wrap_all};
use crate::recording::Arg;
use crate::types::TensorType;

/// The relation of a view to its parent.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Relation {
    /// The same elements in the same shape.
    Identity,
    /// The same elements in row-major order.
    Reshape,
    /// View dimension `i` is parent dimension `perm[i]`.
    Permute(Vec<usize>),
    /// Every `step`-th element along a dimension, from `start`.
    Slice { dim: usize, start: i64, step: i64 },
    /// One index along a dimension.
    Select { dim: usize, index: i64 },
    /// A diagonal.
    Diagonal { offset: i64, dim1: i64, dim2: i64 },
    /// Elements of the parent repeated.
    Expand,
    /// Arbitrary strides over the root's storage: of operators that are given them, and of those that no other relation describes.
    Strided,
    /// One that is read but cannot be written through: bits read as another type.
    Opaque,
}

/// A view call, as far as relations need it.
pub(super) struct ViewCall<'a, T> {
    /// Operator without namespace.
    pub(super) name: &'a str,
    /// Overload.
    pub(super) overload: &'a str,
    /// Arguments.
    pub(super) args: Args<'a, T>,
    /// Type of the parent.
    pub(super) parent: &'a TensorType,
    /// Types of all results.
    pub(super) results: &'a [&'a TensorType],
}

/// The relation of result `index` to the parent.
pub(super) fn relation<T: Copy>(call: &ViewCall<'_, T>, index: usize) -> Relation {
    let Some(child) = call.results.get(index) else { return Relation::Opaque };
    // The start of `narrow.Tensor` is no number.
    let unknown = call.name == "narrow" && call.overload == "Tensor";
    if child.dtype != call.parent.dtype || call.overload == "dtype" || unknown {
        return Relation::Opaque;
    }
    named(call, child, index).unwrap_or(Relation::Strided)
}

fn named<T: Copy>(call: &ViewCall<'_, T>, child: &TensorType, index: usize) -> Option<Relation> {
    let (args, rank) = (call.args, call.parent.rank());
    let dim = || wrap(args.int("dim").unwrap_or(0), rank);
    match call.name {
        "as_strided" | "_reshape_alias" => None,
        "permute" => Some(Relation::Permute(wrap_all(&args.ints("dims")?, rank)?)),
        "transpose" | "transpose_" => {
            Some(Relation::Permute(swapped(args.int("dim0")?, args.int("dim1")?, rank)?))
        }
        "swapdims" | "swapdims_" => {
            Some(Relation::Permute(swapped(args.int("dim0")?, args.int("dim1")?, rank)?))
        }
        "swapaxes" | "swapaxes_" => {
            Some(Relation::Permute(swapped(args.int("axis0")?, args.int("axis1")?, rank)?))
        }
        "t" | "t_" | "numpy_T" => Some(Relation::Permute((0..rank).rev().collect())),
        "mT" | "mH" | "matrix_H" | "adjoint" => Some(Relation::Permute(swapped(-1, -2, rank)?)),
        "movedim" | "moveaxis" => {
            Some(Relation::Permute(movedim(&args.ints("source")?, &args.ints("destination")?, rank)?))
        }
        "select" => {
            let dim = dim()?;
            let index = args.int("index")?;
            let size = *call.parent.shape.get(dim)?;
            Some(Relation::Select { dim, index: if index < 0 { index + size } else { index } })
        }
        "slice" => {
            let dim = dim()?;
            let start = slice_start(args.int("start"), *call.parent.shape.get(dim)?);
            Some(Relation::Slice { dim, start, step: args.int("step").unwrap_or(1) })
        }
        "narrow" => {
            let dim = dim()?;
            Some(Relation::Slice {
                dim,
                start: slice_start(args.int("start"), *call.parent.shape.get(dim)?),
                step: 1,
            })
        }
        "split"
        | "split_with_sizes"
        | "chunk"
        | "tensor_split"
        | "unsafe_split"
        | "unsafe_chunk"
        | "unsafe_split_with_sizes" => part(call, dim()?, index),
        "hsplit" => part(call, usize::from(rank > 1), index),
        "vsplit" => part(call, 0, index),
        "dsplit" => part(call, 2, index),
        "unbind" => Some(Relation::Select { dim: dim()?, index: index as i64 }),
        "diagonal" | "linalg_diagonal" => Some(Relation::Diagonal {
            offset: args.int("offset").unwrap_or(0),
            dim1: args.int("dim1").unwrap_or(if call.name == "diagonal" { 0 } else { -2 }),
            dim2: args.int("dim2").unwrap_or(if call.name == "diagonal" { 1 } else { -1 }),
        }),
        "view" | "reshape" | "flatten" | "unflatten" | "squeeze" | "unsqueeze" | "_unsafe_view"
        | "view_as" | "reshape_as" | "ravel" | "expand" | "expand_as" | "broadcast_to" | "atleast_1d"
        | "atleast_2d" | "atleast_3d" | "squeeze_" | "unsqueeze_" => {
            Some(if child.numel() != call.parent.numel() {
                Relation::Expand
            } else if child.shape == call.parent.shape {
                Relation::Identity
            } else {
                Relation::Reshape
            })
        }
        _ => (child.shape == call.parent.shape && child.strides == call.parent.strides)
            .then_some(Relation::Identity),
    }
}

/// A part of a split: it starts where the sizes of the parts before it end.
fn part<T>(call: &ViewCall<'_, T>, dim: usize, index: usize) -> Option<Relation> {
    let sizes = call.results.get(..index)?.iter().map(|r| r.shape.get(dim).copied());
    let start = sizes.into_iter().try_fold(0i64, |sum, size| sum.checked_add(size?))?;
    Some(Relation::Slice { dim, start, step: 1 })
}

/// A call that addresses the storage of its argument.
pub(super) struct Strided<T> {
    /// What it is called with [`Strided::args_of`].
    pub(super) op: &'static str,
    /// The argument.
    pub(super) tensor: T,
    /// What is written there.
    pub(super) source: Option<T>,
    /// Sizes.
    pub(super) size: Vec<i64>,
    /// Strides.
    pub(super) stride: Vec<i64>,
    /// Offset into the storage; `None` for the argument's own.
    pub(super) offset: Option<i64>,
}

/// The call as one that addresses a storage, if it is.
pub(super) fn strided<T: Copy>(op: &str, args: Args<'_, T>) -> Option<Strided<T>> {
    let op = match op.strip_prefix("aten::")? {
        "as_strided" | "as_strided_copy" | "_reshape_alias" | "_reshape_alias_copy" => "aten::as_strided",
        "as_strided_scatter" => "aten::as_strided_scatter",
        _ => return None,
    };
    Some(Strided {
        op,
        tensor: args.tensor("self")?,
        source: args.tensor("src"),
        size: args.ints("size")?,
        stride: args.ints("stride")?,
        offset: args.int("storage_offset"),
    })
}

impl<T: Copy> Strided<T> {
    /// The arguments of the call on another tensor, at an offset from that one's first element.
    pub(super) fn args_of(&self, tensor: T, offset: i64) -> Vec<(String, Arg<T>)> {
        let mut args = vec![("self".into(), Arg::Tensor(tensor))];
        args.extend(self.source.map(|source| ("src".into(), Arg::Tensor(source))));
        args.push(("size".into(), Arg::Ints(self.size.clone())));
        args.push(("stride".into(), Arg::Ints(self.stride.clone())));
        args.push(("storage_offset".into(), Arg::Int(offset)));
        args
    }
}

/// The type of a tensor after `name` (`transpose`, `t`, `squeeze`, ...) changed its metadata in place.
pub(super) fn metadata_type<T: Copy>(
    name: &str,
    args: Args<'_, T>,
    before: &TensorType,
) -> Option<TensorType> {
    let rank = before.rank();
    let permuted = |perm: Vec<usize>| {
        let pick = |list: &[i64]| perm.iter().map(|&d| list[d]).collect();
        Some(TensorType { shape: pick(&before.shape), strides: pick(&before.strides), ..before.clone() })
    };
    match name {
        "t" => permuted((0..rank).rev().collect()),
        "transpose" | "swapdims" => permuted(swapped(args.int("dim0")?, args.int("dim1")?, rank)?),
        "swapaxes" => permuted(swapped(args.int("axis0")?, args.int("axis1")?, rank)?),
        "squeeze" => {
            let dims = match args.get("dim") {
                None => (0..rank).collect(),
                Some(_) => wrap_all(&args.ints("dim")?, rank)?,
            };
            permuted((0..rank).filter(|d| !dims.contains(d) || before.shape[*d] != 1).collect())
        }
        "unsqueeze" => {
            let dim = wrap(args.int("dim")?, rank + 1)?;
            let mut ty = before.clone();
            let stride = before.shape.get(dim).map_or(1, |&n| n.saturating_mul(before.strides[dim]));
            ty.shape.insert(dim, 1);
            ty.strides.insert(dim, stride);
            Some(ty)
        }
        _ => None,
    }
}
