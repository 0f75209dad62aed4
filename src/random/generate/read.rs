//! Reads by index, and operators that stay libtorch's.

use super::{Fact, Generator, t};
use crate::random::program::is_float;
use crate::torch::Arg;

pub(super) fn read(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| g.rank(id) > 0 && g.tensor(id).numel() > 0)?;
    let fact = g.fact(x);
    let dim = g.dim(x)?;
    let size = g.size(x);
    let end = size[dim as usize];
    match g.rng.below(5) {
        4 => {
            let mut shape = size.clone();
            shape[dim as usize] = g.rng.range(0, 9);
            let index = g.indices(&shape, end)?;
            g.emit("take_along_dim", vec![t(x), t(index), Arg::Int(dim)], fact)?
        }
        0 => {
            let mut shape = size.clone();
            shape[dim as usize] = g.rng.range(0, 9);
            let index = g.indices(&shape, end)?;
            g.emit("gather", vec![t(x), Arg::Int(dim), t(index)], fact)?
        }
        1 => {
            let count = g.rng.range(1, 9);
            let index = g.indices(&[count], end)?;
            g.emit("index_select", vec![t(x), Arg::Int(dim), t(index)], fact)?
        }
        2 => {
            let count = g.rng.range(1, 9);
            let index = g.indices(&[count], end)?;
            let list = (0..=dim).map(|d| (d == dim).then_some(index)).collect();
            g.emit("index.Tensor", vec![t(x), Arg::Tensors(list)], fact)?
        }
        _ => {
            if size.len() != 2 {
                return None;
            }
            let shape: Vec<i64> = (0..g.rng.below(3)).map(|_| g.rng.range(1, 9)).collect();
            let index = g.indices(&shape, size[0])?;
            g.emit("embedding", vec![t(x), t(index)], fact)?
        }
    };
    Some(())
}

/// Running sums, which are not lowered.
pub(super) fn library(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| is_float(g.kind(id)) && g.rank(id) > 0)?;
    let dim = g.dim(x)?;
    g.emit("cumsum", vec![t(x), Arg::Int(dim)], Fact::ROUNDED)?;
    Some(())
}
