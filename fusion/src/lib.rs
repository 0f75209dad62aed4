//! The tensor graph of Tilefuse: from a recording of libtorch calls to block programs.
//!
//! A [`Recording`] is made functional, lowered to primitive operators, planned into groups, and each group is
//! scheduled into a block program. Nothing here knows libtorch, LLVM or CUDA.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod block_kernel;
pub mod combiner;
pub mod contract;
mod contraction;
mod convolution;
#[cfg(test)]
mod enum_variants;
mod epilogue;
pub mod eval;
mod functionalize;
mod graph;
mod hints;
pub mod index;
pub mod kernel;
mod library_form;
mod lower;
mod machine;
pub mod pipeline;
mod place;
pub mod plan;
mod promote;
mod recording;
pub mod rewrite;
mod rewrite_limit;
pub mod schedule;
mod taken;
mod text;
mod types;
mod verify;

pub use block_kernel::{
    Block, BlockKernel, BlockKernelKind, Compared, Coordinate, Coordinates, Declined, Layout, MaybeKernel,
    Tied,
};
pub use contract::{ComparedForms, Panels, Prepacked, Products, choose_products};
pub use contraction::{Contraction, Window, accumulator};
pub use functionalize::{FunctionalizeError, functionalize};
pub use graph::{AliasTarget, AtenCall, Edge, Graph, Node, NodeId, Op, OutputAlias, Update, ValueRef, View};
pub use hints::Hints;
pub use lower::{LowerError, lower, lowered_operators};
pub use machine::{Machine, ProductRates, Profile};
pub use place::{Alignments, Place, written_strides};
pub use recording::{Arg, Call, Recording, Source, TensorId, TensorInfo};
pub use rewrite::simplify::simplify;
pub use rewrite_limit::Rewrites;
pub use text::{ParseError, parse_graph, parse_recording};
pub use types::{DType, Device, Dims, TensorType, row_major};
pub use verify::{VerifyError, verify};
