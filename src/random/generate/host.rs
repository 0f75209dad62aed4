//! What a model computes on the host beside a GPU.

use super::{Fact, Generator, t};
use crate::torch::Arg;

/// Elements of a value that goes to the host.
const MAX_ELEMENTS: usize = 1 << 12;

/// A few operators on a copy of a value on the host, and the result back where the value is.
pub(super) fn on_the_host(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| g.is_float(id) && g.tensor(id).numel() < MAX_ELEMENTS)?;
    let host = Arg::Device { kind: 0, index: -1 };
    let copy = vec![t(x), Arg::None, Arg::None, host, Arg::None, Arg::Bool(false), Arg::None];
    let mut there = g.emit_hidden("_to_copy", copy)?;
    for _ in 0..=g.rng.below(4) {
        there = match g.rng.below(if g.rank(x) > 0 { 7 } else { 5 }) {
            0 => g.emit_hidden("relu", vec![t(there)])?,
            1 => g.emit_hidden("sigmoid", vec![t(there)])?,
            2 => g.emit_hidden("mul.Scalar", vec![t(there), Arg::Float(0.5)])?,
            3 => g.emit_hidden("add.Tensor", vec![t(there), t(there), Arg::Int(1)])?,
            4 => g.emit_hidden("reshape", vec![t(there), Arg::Ints(vec![-1, 1])])?,
            5 => g.emit_hidden("softmax.int", vec![t(there), Arg::Int(0)])?,
            _ => g.emit_hidden("sum.dim_IntList", vec![t(there), Arg::Ints(vec![0]), Arg::Bool(true)])?,
        };
    }
    g.emit("to.other", vec![t(there), t(x), Arg::Bool(false), Arg::Bool(false)], Fact::ROUNDED)?;
    Some(())
}
