//! Linear layouts: which register of which thread holds which element of a tile, as maps over GF(2).

mod linear;
mod mma;
mod text;
mod tile;

pub use linear::Linear;
pub use mma::Accumulator;
pub use tile::{Blocked, LANE_BITS, Layout, LogShape, axis_bits};
