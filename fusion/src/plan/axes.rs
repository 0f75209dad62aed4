//! The axes along which a program accesses a tensor as loops over its elements.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::index::{Expr, Indices, Var};

/// The order in which axes, an extent and a stride each, number the elements of a tensor of this shape row by row: that in which a kernel
/// over them computes it. `None` where its elements at these strides do not lie along the axes.
///
/// ```text
/// [2, 12, 128, 64] at strides [98304, 64, 768, 1], along [2 x 98304, 128 x 768, 12 x 64, 64 x 1]:    0, 2, 1, 3
/// ```
pub(super) fn row_major_order(
    shape: &[i64],
    strides: &[i64],
    axes: &[[i64; 2]],
) -> Option<SmallVec<[usize; 4]>> {
    // An axis may be a part of a dimension, or several of them, of which the last has its stride.
    let dim_of = |stride: i64| {
        let dims = shape.iter().zip(strides).enumerate();
        let below = dims.filter(|&(_, (&size, &own))| size > 1 && own > 0 && own <= stride);
        below.max_by_key(|&(_, (_, &own))| own).map(|(dim, _)| dim)
    };
    let mut order: SmallVec<[usize; 4]> = (0..axes.len()).collect();
    order.sort_by_key(|&at| (dim_of(axes[at][1]), Reverse(axes[at][1])));
    let extents: Vec<i64> = order.iter().map(|&at| axes[at][0]).collect();
    // Which of two axes of one stride is which cannot be told.
    let repeated = |(at, axis): (usize, &[i64; 2])| {
        axis[0] > 1 && axes[..at].iter().any(|other| other[0] > 1 && other[1] == axis[1])
    };
    if axes.iter().enumerate().any(repeated) {
        return None;
    }
    if extents.iter().any(|&extent| extent < 1) || extents.iter().product::<i64>() != shape.iter().product() {
        return None;
    }
    let mut indices = Indices::new(&extents);
    let variables: SmallVec<[Expr; 4]> = (0..extents.len()).map(|v| indices.var(Var(v as u32))).collect();
    let number = indices.linearize(&variables, &extents);
    let mut offset = indices.constant(0);
    for (index, &stride) in indices.delinearize(number, shape).into_iter().zip(strides) {
        offset = indices.add_scaled(offset, index, stride);
    }
    let (found, constant) = indices.affine(offset)?;
    let mut wanted =
        order.iter().zip(&extents).map(|(&at, &extent)| if extent > 1 { axes[at][1] } else { 0 });
    (constant == 0 && found.iter().all(|&stride| wanted.next() == Some(stride))).then_some(order)
}

#[cfg(test)]
mod tests {
    use super::row_major_order;

    fn order(shape: &[i64], strides: &[i64], axes: &[[i64; 2]]) -> Option<Vec<usize>> {
        row_major_order(shape, strides, axes).map(|order| order.to_vec())
    }

    #[test]
    fn axes_are_those_of_the_tensor() {
        let axes = [[2, 98304], [128, 768], [12, 64], [64, 1]];
        assert_eq!(order(&[2, 12, 128, 64], &[98304, 64, 768, 1], &axes), Some(vec![0, 2, 1, 3]));
        assert_eq!(order(&[2, 128, 768], &[98304, 768, 1], &[[256, 768], [768, 1]]), Some(vec![0, 1]));
        // Heads of queries in groups that share keys.
        let axes = [[2, 256], [4, 64], [64, 1]];
        assert_eq!(order(&[8, 64], &[64, 1], &axes), Some(vec![0, 1, 2]));
        assert_eq!(order(&[3, 1, 5], &[1, 7, 3], &[[5, 3], [3, 1]]), Some(vec![1, 0]));
    }

    #[test]
    fn other_axes_are_none() {
        assert_eq!(order(&[4, 6], &[6, 1], &[[4, 7], [6, 1]]), None, "another stride");
        assert_eq!(order(&[4, 6], &[6, 1], &[[4, 6], [5, 1]]), None, "fewer elements");
        assert_eq!(order(&[4, 6], &[0, 1], &[[6, 1]]), None, "repeated elements");
        assert_eq!(order(&[4, 4], &[1, 1], &[[4, 1], [4, 1]]), None, "elements that overlap");
        assert_eq!(order(&[6, 4], &[1, 6], &[[24, 1]]), None, "another order within an axis");
        assert_eq!(
            order(&[2, 3, 4], &[3, 1, 6], &[[8, 3], [3, 1]]),
            None,
            "dimensions that are not adjacent"
        );
    }
}
