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
//!
//! Where a program stores two results at the same offsets, as one that was made of two products does, an expression of both is
//! computed at the second store.
//!
//! Where a program stores a result in blocks of rows, row reductions are epilogues as well: of whole rows, if a block has them,
//! else of the part of each row that a block has. `rows.rs` computes what there is one of for each row once for each.
//!
//! ```text
//! %p = reduce max %y'[128,786,64] [2]    with    store %out, %at, %w, mask %m     becomes   %r = reduce max %w axis 1
//!                                                                                           store %p, %row 786 + %block, %r
//! ```

mod rewrite;
mod rows;
mod splice;
mod uses;

pub(crate) use rewrite::{LoopAxis, Part, Rewrite};
pub(crate) use rows::domain;
pub(crate) use uses::{Uses, uses};
