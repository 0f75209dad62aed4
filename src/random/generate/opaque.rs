//! Tensors that are no plain strided memory, on the way from plain values to plain values: sparse, quantised, in the
//! layouts of oneDNN, complex and lazily conjugated or negated.

use tch::Kind;

use super::{Fact, Generator, t};
use crate::random::program::Layout;
use crate::torch::Arg;

/// `c10::ScalarType` of unsigned quantised bytes.
const QUINT8: i8 = 13;

pub(super) fn opaque(g: &mut Generator) -> Option<()> {
    match g.rng.below(6) {
        0 => sparse(g),
        1 | 2 => sparse_input(g),
        3 => quantized(g),
        4 => onednn(g),
        _ => complex(g),
    }
}

/// A sparse matrix that is an input, made dense or multiplied by a dense one.
fn sparse_input(g: &mut Generator) -> Option<()> {
    let kind = *g.rng.pick(&[Kind::Float, Kind::Float, Kind::Double]);
    let (rows, columns) = (g.rng.range(1, 9), g.rng.range(1, 9));
    let layout = *g.rng.pick(&[Layout::Coo, Layout::Coo, Layout::Csr]);
    let mut at = g.sparse_input(&[rows, columns], kind, layout)?;
    if g.rng.chance(0.4) {
        at = g.emit_hidden("mul.Scalar", vec![t(at), Arg::Int(2)])?;
    }
    if g.rng.chance(0.4) {
        let count = g.rng.range(1, 9);
        let dense = g.input(&[columns, count], kind)?;
        g.emit("mm", vec![t(at), t(dense)], Fact::ROUNDED)?;
    } else {
        g.emit("to_dense", vec![t(at)], Fact::EXACT)?;
    }
    Some(())
}

/// A sparse matrix of a vector's elements, at random places.
fn sparse(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| {
        let full = matches!(g.kind(id), Kind::Float | Kind::Double);
        full && g.rank(id) == 1 && (1..=64).contains(&g.tensor(id).numel())
    })?;
    let (rows, columns) = (g.rng.range(1, 9), g.rng.range(1, 9));
    let count = g.tensor(x).numel() as i64;
    let indices = g.indices(&[2, count], rows.min(columns))?;
    let sizes = Arg::Ints(vec![rows, columns]);
    let mut at = g.emit_hidden("sparse_coo_tensor.indices_size", vec![t(indices), t(x), sizes])?;
    if g.rng.chance(0.5) {
        at = g.emit_hidden("mul.Scalar", vec![t(at), Arg::Int(2)])?;
    }
    g.emit("to_dense", vec![t(at)], Fact::ROUNDED)?;
    Some(())
}

/// Rounds values that all implementations agree on to quantised bytes.
fn quantized(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| g.kind(id) == Kind::Float && g.exact(id))?;
    let args = vec![t(x), Arg::Float(0.25), Arg::Int(128), Arg::DType(QUINT8)];
    let at = g.emit_hidden("quantize_per_tensor", args)?;
    g.emit("dequantize.self", vec![t(at)], Fact::EXACT)?;
    Some(())
}

fn onednn(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| g.kind(id) == Kind::Float && g.rank(id) > 0 && g.tensor(id).numel() > 0)?;
    let mut at = g.emit_hidden("to_mkldnn", vec![t(x)])?;
    if g.rng.chance(0.5) {
        at = g.emit_hidden("relu", vec![t(at)])?;
    }
    let fact = g.fact(x);
    g.emit("to_dense", vec![t(at)], fact)?;
    Some(())
}

/// A part of a complex number: of a lazy conjugate, the imaginary part is lazily negated.
fn complex(g: &mut Generator) -> Option<()> {
    let full = |kind| matches!(kind, Kind::Float | Kind::Double);
    let x = g.value(|g, id| full(g.kind(id)))?;
    let (kind, size) = (g.kind(x), g.size(x));
    let y = g.value(|g, id| g.kind(id) == kind && g.size(id) == size)?;
    let fact = g.joined(&[x, y]);
    let mut at = g.emit_hidden("complex", vec![t(x), t(y)])?;
    if g.rng.chance(0.6) {
        at = g.emit_hidden("conj", vec![t(at)])?;
    }
    if g.rng.chance(0.3) {
        at = g.emit_hidden("resolve_conj", vec![t(at)])?;
    }
    let part = *g.rng.pick(&["real", "imag", "imag"]);
    let at = g.emit(part, vec![t(at)], fact)?;
    if g.rng.chance(0.3) {
        g.emit("resolve_neg", vec![t(at)], fact)?;
    }
    Some(())
}
