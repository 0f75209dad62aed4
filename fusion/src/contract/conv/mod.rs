//! Convolutions as block programs.
//!
//! A convolution reads images as they lie, `[batch, channels, ..image]`, and weights `[filters, channels / groups,
//! ..kernel]`; nothing is copied to another order first, so that its pointwise neighbours fuse by element.
//!
//! An instance computes a *block* of some filters at some pixels in registers. It goes through the taps of the kernel
//! and the channels; at each, pixels of the image, which are vectors, are multiplied by weights, which are scalars.
//! What lies outside of the image is masked off and counts as an exact zero. Where each filter reads one channel
//! (`depthwise`), an instance computes some pixels of several filters, one filter after the other.
//!
//! In `packed`, vectors are of filters, which are weights that may be packed (`filter_panels`): it reads images at any strides, and
//! writes results with the filters innermost where all that read them can take that. `unaligned_gemm` computes products of matrices in
//! the same way.
//!
//! Transposed convolutions are computed so too: a `WindowAxis` says which taps reach a pixel of the result. `packed_filter` makes
//! panels of their filters before each call where these are no weights. `transposed` computes them by vectors of pixels.
//!
//! `schedule` lists those that a convolution may be computed by on a host, and what each is expected to take.
//!
//! Sums are in `f32`, of `f64` in `f64`, in an order that depends on nothing but the shapes.

mod block;
mod call;
mod dense;
mod depthwise;
mod filter_panels;
mod geometry;
mod implicit_gemm;
mod ops;
mod packed;
mod packed_filter;
#[cfg(test)]
mod packed_tests;
mod schedule;
#[cfg(test)]
mod schedule_tests;
#[cfg(test)]
mod tests;
mod tile;
mod transposed;
#[cfg(test)]
mod transposed_tests;
mod unaligned_gemm;

use tilefuse_block::dynamic::BuildError;

use super::host::Vectors;
use crate::channels_last;
use crate::graph::{Graph, NodeId};

use block::Block;
use filter_panels::takes_any_strides;
use geometry::{Conv, ConvProgram};
pub(super) use implicit_gemm::as_product;
pub(super) use schedule::on_host;
pub(super) use unaligned_gemm::UnalignedGemm;

/// Whether all that read a node's result take it with its filters innermost: convolutions whose templates read images at any
/// strides among them.
pub(super) fn may_be_channels_last(graph: &Graph, node: NodeId, vectors: Vectors) -> bool {
    channels_last::may_be_channels_last(graph, node, &|user, form, position| {
        call::read(graph, user, form)
            .is_some_and(|read| takes_any_strides(graph, user, &read, position, vectors))
    })
}

impl Conv {
    /// The program.
    ///
    /// # Errors
    /// A defect of this module, where the operations do not fit each other.
    fn program(&self, block: &Block) -> Result<ConvProgram, BuildError> {
        match self.depth() {
            1 => depthwise::program(self, block),
            _ => dense::program(self, block),
        }
    }
}
