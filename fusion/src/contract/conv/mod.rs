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
//! Which of these a convolution may be computed by on a host is in `contract/search_space.rs`. On a GPU convolutions are products
//! (`implicit_gemm`).
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

use super::call_kernels::Template;
use super::target::Vectors;
use crate::block_kernel::Tied;
use crate::graph::{Graph, NodeId};
use crate::rewrite::channels_last;

pub(super) use block::Block;
pub(super) use call::{ConvCall, read};
pub(super) use filter_panels::FilterVectors;
pub(super) use geometry::Conv;
pub(super) use implicit_gemm::as_product;
pub(super) use transposed::Phases;
pub(super) use unaligned_gemm::UnalignedGemm;

use filter_panels::takes_any_strides;
use geometry::{ConvProgram, whole};

/// Whether all that read a node's result take it with its filters innermost: convolutions whose templates read images at any
/// strides among them.
pub(super) fn may_be_channels_last(graph: &Graph, node: NodeId, vectors: Vectors) -> bool {
    channels_last::may_be_channels_last(graph, node, &|user, form, position| {
        call::known(graph, user, form)
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

impl Block {
    /// The template of a convolution by vectors of pixels, over images and filters in row-major order.
    pub(super) fn template(&self, call: &ConvCall) -> Option<Template> {
        let made = call.conv.program(self).ok()?;
        let tied = call.operands.iter().map(|&at| Tied::Operand(at)).chain([Tied::Result(0)]).collect();
        let schedule = call.conv.schedule([self.area().into(), self.filters.into()]);
        Some(whole(&call.conv, made, tied, Vec::new(), schedule))
    }
}
