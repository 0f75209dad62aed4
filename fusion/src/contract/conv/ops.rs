//! What programs of convolutions have in common.

use tilefuse_block::Elem;
use tilefuse_block::dynamic::{Ptr, Scope, Tile, fma, load, scalar, select, store};

use super::geometry::Conv;

/// The parameters of a program.
#[derive(Clone, Copy)]
pub(super) struct Params {
    pub(super) images: Ptr,
    pub(super) weights: Ptr,
    pub(super) bias: Option<Ptr>,
    pub(super) result: Ptr,
}

impl Params {
    /// Images and weights of so many elements, by name, the bias if there is one, and the result.
    pub(super) fn of(kernel: &Scope, conv: &Conv, [images, weights]: [(&str, u64); 2]) -> Params {
        let pointer = |name: &str, len: u64| kernel.ptr(name, conv.elem, len);
        let [_, _, bias, result] = conv.lengths();
        Params {
            images: pointer(images.0, images.1),
            weights: pointer(weights.0, weights.1),
            bias: conv.bias.then(|| pointer("bias", bias)),
            result: pointer("result", result),
        }
    }
}

/// The same number in 64 bits. Sums of these fold into addresses.
pub(super) fn wide(x: Tile) -> Tile {
    x.cast(Elem::I64)
}

/// A number as an index.
pub(super) fn int(value: u64) -> Tile {
    scalar(Elem::I32, value)
}

/// What lies at offsets, in the kind of the sum.
pub(super) fn read(ptr: Ptr, offsets: Tile, mask: Option<Tile>, sum: Elem) -> Tile {
    load(ptr + offsets, mask, None).cast(sum)
}

/// Writes a sum.
pub(super) fn write(ptr: Ptr, offsets: Tile, value: Tile, mask: Option<Tile>) {
    store(ptr + offsets, value.cast(ptr.elem()), mask);
}

/// `x w + sum` where the mask holds.
pub(super) fn multiply_add(x: Tile, w: Tile, sum: Tile, mask: Option<Tile>) -> Tile {
    let next = fma(x, w, sum);
    mask.map_or(next, |mask| select(mask, next, sum))
}

/// The fewest products of a transposed convolution that are summed by themselves before they are added to others: those of all
/// channels at a tap, or of all taps at a channel. One long sum errs more than libtorch, which adds up products of matrices.
pub(super) const PART: u64 = 8;
