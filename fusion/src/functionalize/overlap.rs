//! Which elements of tensors share memory.

use std::collections::HashSet;

use smallvec::SmallVec;

use crate::recording::TensorInfo;
use crate::types::{TensorType, dense};

/// Offset of the last element from the first.
pub(super) fn span(ty: &TensorType) -> i64 {
    let steps = ty.shape.iter().zip(&ty.strides).map(|(&n, &s)| (n - 1).saturating_mul(s));
    steps.fold(0, i64::saturating_add)
}

/// Whether the elements fill their memory without gaps and none is addressed twice.
pub(super) fn is_dense(ty: &TensorType) -> bool {
    let mut dims: SmallVec<[(i64, i64); 6]> =
        ty.strides.iter().copied().zip(ty.shape.iter().copied()).filter(|&(_, n)| n != 1).collect();
    dims.sort_unstable();
    let mut expected = 1;
    for (stride, n) in dims {
        if stride != expected {
            return false;
        }
        expected *= n;
    }
    true
}

/// The type of a computed value in place of a tensor of type `ty`: its strides where they are dense, else dense ones in their order,
/// by which operators of libtorch order their results.
pub(super) fn computed(ty: &TensorType) -> TensorType {
    if ty.numel() == 0 || is_dense(ty) {
        return ty.clone();
    }
    TensorType { strides: dense(&ty.shape, &ty.strides), ..ty.clone() }
}

/// Whether one element may be addressed twice: some dimension's elements are no further apart than the extent of the
/// dimensions of smaller stride.
pub(super) fn repeats(ty: &TensorType) -> bool {
    let dims = ty.shape.iter().zip(&ty.strides).filter(|&(&n, _)| n > 1);
    let mut dims: Vec<(i64, i64)> = dims.map(|(&n, &s)| (s, n)).collect();
    dims.sort_unstable();
    let mut extent = 0;
    let apart = dims.iter().all(|&(stride, n)| {
        let fits = stride > extent;
        extent += (n - 1) * stride;
        fits
    });
    ty.numel() > 0 && !apart
}

/// Elements up to which views are compared one by one.
const MAX_COMPARED: i64 = 1 << 20;

/// Extents and strides of a tensor but for dimensions of one element.
fn dims(t: &TensorInfo) -> Vec<(i64, i64)> {
    let all = t.ty.shape.iter().copied().zip(t.ty.strides.iter().copied());
    all.filter(|&(n, _)| n != 1).collect()
}

/// Bytes of an element, or 1 where that is not known.
fn width(t: &TensorInfo) -> i64 {
    t.ty.dtype.bytes().max(1) as i64
}

/// Whether two views of one storage have the same elements at the same indices.
pub(super) fn same_view(a: &TensorInfo, b: &TensorInfo) -> bool {
    width(a) == width(b) && a.storage_offset == b.storage_offset && dims(a) == dims(b)
}

/// Whether two views of one storage, which are not the same, share elements. Large ones whose extents meet are taken to,
/// and those of elements of different sizes.
pub(super) fn collide(a: &TensorInfo, b: &TensorInfo) -> bool {
    let (x, y) = (dims(a), dims(b));
    let extent = |d: &[(i64, i64)]| d.iter().map(|&(n, s)| (n - 1) * s).sum::<i64>();
    let bytes = |t: &TensorInfo, d: &[(i64, i64)]| {
        let last = t.storage_offset + extent(d);
        (t.storage_offset * width(t), (last + 1) * width(t))
    };
    let ((a_start, a_end), (b_start, b_end)) = (bytes(a, &x), bytes(b, &y));
    let apart = a_end <= b_start || b_end <= a_start;
    if apart || a.ty.numel() == 0 || b.ty.numel() == 0 {
        return false;
    }
    if width(a) != width(b) || a.ty.numel().max(b.ty.numel()) > MAX_COMPARED {
        return true;
    }
    let addresses = |dims: &[(i64, i64)], start: i64| {
        let mut all = vec![start];
        for &(n, stride) in dims {
            all = all.iter().flat_map(|&at| (0..n).map(move |i| at + i * stride)).collect();
        }
        all
    };
    let written: HashSet<i64> = addresses(&x, a.storage_offset).into_iter().collect();
    addresses(&y, b.storage_offset).iter().any(|at| written.contains(at))
}
