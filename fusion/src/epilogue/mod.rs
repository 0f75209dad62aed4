//! Prologue and epilogue fusion: pointwise neighbours in the loads and stores of a kernel that is a block program, one that a
//! person wrote or that a template made.
//!
//! Where an input is computed by pointwise operators from values of its own number of
//! elements, each load of it becomes loads of what those read, at the same elements under the same mask, and their
//! expression. Where an output is read by pointwise operators, each store of it becomes stores of what they compute.
//!
//! ```text
//! %y = relu(f(2 x) + b)     with     %v = load %in, %at, mask %m      becomes   %a = load %x, %at, mask %m
//!                                    ...                                        %v = map mul %a, %two
//!                                    store %out, %at, %w, mask %m               ...
//!                                                                               %c = load %b, %at, mask %m
//!                                                                               %d = map add %w, %c
//!                                                                               %e = map max %d, %zero
//!                                                                               store %y, %at, %e, mask %m
//! ```

mod rewrite;
mod splice;
mod uses;

pub(crate) use rewrite::{Part, Rewrite, rewrite};
pub(crate) use uses::{Uses, uses};
