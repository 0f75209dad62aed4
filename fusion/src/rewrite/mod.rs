//! Rewrites of the primitive graph: each replaces nodes by others of the same meaning, which are computed faster or which later passes
//! know better.
//!
//! In the order of the [pipeline](crate::pipeline), which says where each is made:
//!
//! ```text
//! simplify            what simplify::PASSES lists                -> until nothing changes, also behind select_library
//! sliced_products     slices of products                         -> products of slices
//! gathered_products   columns of products, picked                -> products of these
//! tuple_reductions    reductions that need each other            -> one of tuples
//! select_attention    contraction, softmax, contraction          -> scaled_dot_product_attention
//! select_library      contractions                               -> calls of libtorch, or products and their sums
//! ```
//!
//! `softmax` finds the softmax that `select_attention` reads, and `channels_last` gives results of calls that order for whoever chooses it.

pub(crate) mod channels_last;
pub(crate) mod gathered_products;
pub mod select_attention;
pub(crate) mod select_library;
pub mod simplify;
pub(crate) mod sliced_products;
mod softmax;
pub(crate) mod tuple_reductions;
