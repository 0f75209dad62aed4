//! Contractions between other operators: what stands in front of one may become its prologue, and what stands behind it its epilogue.
//!
//! ```text
//! layer norm, view   ->   product, convolution or attention   ->   bias, gelu, residual, sum over other dimensions
//! ```

use tch::Kind;

use super::attention::attention_of;
use super::conv::convolution_of;
use super::pooling::image;
use super::product::product_of;
use super::reduce::{normalize_of, reduce_of, softmax_of};
use super::shape::rearrange_of;
use super::{Fact, Generator, t};
use crate::random::program::code_of;
use crate::torch::Arg;

/// A contraction of what neighbours make of a value, and what neighbours make of its result.
pub(super) fn contraction(g: &mut Generator) -> Option<()> {
    const OF: [fn(&mut Generator, u32) -> Option<()>; 3] = [product_of, convolution_of, attention_of];
    let at = g.rng.below(OF.len());
    let of = OF[at];
    let x = match at == 1 && g.rng.chance(0.5) {
        true => image(g)?,
        false => {
            let least = if at == 0 { 1 } else { 2 };
            g.value(|g, id| g.is_float(id) && g.rank(id) >= least && g.tensor(id).numel() > 0)?
        }
    };
    let in_front = g.rng.below(3);
    let x = g.neighbours(x, in_front);
    let y = g.made(|g| of(g, x)).or_else(|| g.made(|g| product_of(g, x)))?;
    let behind = 1 + g.rng.below(3);
    g.neighbours(y, behind);
    Some(())
}

impl Generator {
    /// What up to so many neighbours in turn make of a value.
    fn neighbours(&mut self, x: u32, count: usize) -> u32 {
        (0..count).fold(x, |x, _| self.neighbour(x).unwrap_or(x))
    }

    /// What one neighbour makes of a value of rank above 0.
    fn neighbour(&mut self, x: u32) -> Option<u32> {
        if !self.is_float(x) || self.rank(x) == 0 {
            return None;
        }
        match self.rng.weighted(&[3, 5, 3, 2, 2]) {
            0 if self.rng.chance(0.4) => {
                let last = self.rank(x) as i64 - 1;
                self.made(|g| softmax_of(g, x, last))
            }
            0 => self.made(|g| normalize_of(g, x)),
            1 => chain(self, x),
            2 => self.made(|g| rearrange_of(g, x)),
            3 => cast(self, x),
            _ => self.made(|g| reduce_of(g, x)),
        }
    }
}

/// One to three pointwise operators, perhaps with a residual: the value itself, or another of its shape.
fn chain(g: &mut Generator, x: u32) -> Option<u32> {
    let mut y = x;
    for _ in 0..1 + g.rng.below(3) {
        y = match g.rng.below(6) {
            0 => g.emit("relu", vec![t(y)], g.fact(y))?,
            1 => g.emit("gelu", vec![t(y), Arg::Str("none".into())], Fact::ROUNDED)?,
            2 => g.emit("silu", vec![t(y)], Fact::ROUNDED)?,
            3 => g.emit("mul.Scalar", vec![t(y), Arg::Float(0.5)], Fact::ROUNDED)?,
            along => {
                // A vector along the rows or the channels.
                let (size, kind) = (g.size(y), g.kind(y));
                let d = if size.len() > 2 && g.rng.chance(0.5) { 1 } else { size.len() - 1 };
                let mut shape = vec![1; size.len() - d];
                shape[0] = size[d];
                let vector = g.plain_input(&shape, kind)?;
                match along {
                    4 => g.emit("add.Tensor", vec![t(y), t(vector), Arg::Int(1)], Fact::ROUNDED)?,
                    _ => g.emit("mul.Tensor", vec![t(y), t(vector)], Fact::ROUNDED)?,
                }
            }
        };
    }
    if !g.rng.chance(0.5) {
        return Some(y);
    }
    let (size, kind) = (g.size(y), g.kind(y));
    let residual = if g.rng.chance(0.5) { x } else { g.plain_operand(&size, kind)? };
    g.emit("add.Tensor", vec![t(y), t(residual), Arg::Int(1)], Fact::ROUNDED)
}

/// A conversion to another floating-point type.
fn cast(g: &mut Generator, x: u32) -> Option<u32> {
    let to = *g.rng.pick(&[Kind::Float, Kind::BFloat16, Kind::Half]);
    if to == g.kind(x) {
        return None;
    }
    let args = vec![t(x), Arg::DType(code_of(to)), Arg::Bool(false), Arg::Bool(false)];
    g.emit("to.dtype", args, Fact::ROUNDED)
}
