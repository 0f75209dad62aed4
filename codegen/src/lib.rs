//! Host and PTX code generation for Tilefuse block programs.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cache;
pub mod cuda;
mod disjoint;
mod error;
#[cfg(test)]
mod examples;
pub mod host;
pub mod layout;
mod listing;
mod llvm;
pub mod ptx;
mod scalar;
mod stack;
pub mod stages;
pub mod timing;

pub use error::{Error, Result};
pub use listing::{Line, Listing};

/// The version of LLVM that this program is linked with.
pub fn llvm_version() -> String {
    let (major, minor, patch) = inkwell::support::get_llvm_version();
    format!("{major}.{minor}.{patch}")
}
