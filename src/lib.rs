//! Tilefuse.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
pub mod torch;

pub use error::Error;
