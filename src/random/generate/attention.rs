//! Attention, by libtorch's operator and written out.

use tch::Kind;

use super::{Fact, Generator, t};
use crate::torch::Arg;

/// Attention whose queries are a value.
pub(super) fn attention(g: &mut Generator) -> Option<()> {
    let query = g.value(fits)?;
    attention_of(g, query)
}

fn fits(g: &Generator, id: u32) -> bool {
    let small = (1..g.traits.most_operand).contains(&g.tensor(id).numel());
    // Larger scores leave each row one key, and their rounding decides which.
    g.is_float(id) && (2..5).contains(&g.rank(id)) && small && g.magnitude(id) < 8.0
}

/// The same with these queries.
pub(super) fn attention_of(g: &mut Generator, query: u32) -> Option<()> {
    if !fits(g, query) {
        return None;
    }
    let (size, kind) = (g.size(query), g.kind(query));
    let (&[queries, width], batch) = (size.last_chunk::<2>()?, &size[..size.len() - 2]);
    let causal = g.rng.chance(0.3);
    let keys = if causal && g.rng.chance(0.7) { queries } else { g.extent() };
    let depth = if g.rng.chance(0.7) { width } else { g.extent() };
    let written_out = g.rng.chance(0.6);
    let heads = batch.last().copied().filter(|&n| n > 1 && !written_out && g.rng.chance(0.3));
    let of = |rows: &[i64]| {
        let mut shape = [batch, rows].concat();
        if heads.is_some() {
            shape[batch.len() - 1] = 1;
        }
        shape
    };
    let key = g.plain_operand(&of(&[keys, width]), kind)?;
    let value = g.plain_operand(&of(&[keys, depth]), kind)?;
    if written_out {
        return in_steps(g, [query, key, value], [queries, keys], causal);
    }
    // libtorch's kernels for a GPU take rows of whole vectors of 16 bytes to be aligned, and do not check that.
    let elements = if kind == Kind::Float { 4 } else { 8 };
    let in_vectors = width % elements == 0 || depth % elements == 0;
    let aligned =
        |g: &mut Generator, x: u32| if in_vectors { g.emit("clone", vec![t(x)], g.fact(x)) } else { Some(x) };
    let (query, key, value) = (aligned(g, query)?, aligned(g, key)?, aligned(g, value)?);
    // cuDNN's kernels for types of 16 bits end with a misaligned address where one number is the mask of all keys.
    let narrow = matches!(kind, Kind::Half | Kind::BFloat16);
    let mask = if causal { Arg::None } else { mask(g, &[batch, &[queries, keys]].concat(), kind, narrow)? };
    let mask = if let Arg::Tensor(mask) = mask { t(aligned(g, mask)?) } else { mask };
    let scale = if g.rng.chance(0.5) { Arg::None } else { Arg::Float(*g.rng.pick(&[0.3, 1.0, -0.5])) };
    let args = vec![t(query), t(key), t(value), mask, Arg::Float(0.0), Arg::Bool(causal), scale];
    let args = args.into_iter().chain([Arg::Bool(heads.is_some())]).collect();
    g.emit("scaled_dot_product_attention", args, Fact::ROUNDED)?;
    Some(())
}

/// A mask of scores that broadcasts, of truth values or added; or none. It has a number of each key of its own if `each_key`.
fn mask(g: &mut Generator, scores: &[i64], kind: Kind, each_key: bool) -> Option<Arg<u32>> {
    let cut = if g.rng.chance(0.5) { scores.len() - 2 } else { 0 };
    let mut shape: Vec<i64> = scores[cut..].iter().map(|&n| if g.rng.chance(0.2) { 1 } else { n }).collect();
    if each_key {
        *shape.last_mut()? = *scores.last()?;
    }
    match g.rng.below(3) {
        0 => Some(Arg::None),
        1 => g.operand(&shape, Kind::Bool).map(t),
        _ => g.plain_operand(&shape, kind).map(t),
    }
}

/// Products, factor, mask and softmax as models write them.
fn in_steps(g: &mut Generator, [query, key, value]: [u32; 3], sizes: [i64; 2], causal: bool) -> Option<()> {
    let fact = Fact::ROUNDED;
    let rank = g.rank(query);
    let scale = Arg::Float(*g.rng.pick(&[0.125, 0.3, -0.5]));
    let place = g.rng.below(4);
    let scaled = |g: &mut Generator, x: u32| g.emit("mul.Scalar", vec![t(x), scale.clone()], fact);
    let query = if place == 0 { scaled(g, query)? } else { query };
    let key = if place == 1 { scaled(g, key)? } else { key };
    let labels = ["", "b", "bh"][rank - 2];
    let mut scores = if g.rng.chance(0.3) {
        let equation = Arg::Str(format!("{labels}qd,{labels}kd->{labels}qk"));
        g.emit("einsum", vec![equation, Arg::Tensors(vec![Some(query), Some(key)])], fact)?
    } else {
        let turned = g.emit("transpose.int", vec![t(key), Arg::Int(-2), Arg::Int(-1)], g.fact(key))?;
        product(g, query, turned)?
    };
    if place == 2 {
        scores = scaled(g, scores)?;
    }
    scores = masked(g, scores, sizes, causal)?;
    let weights = g.emit("softmax.int", vec![t(scores), Arg::Int(-1)], fact)?;
    product(g, weights, value)?;
    Some(())
}

/// A product of two batches of matrices.
fn product(g: &mut Generator, lhs: u32, rhs: u32) -> Option<u32> {
    let name = if g.rng.chance(0.5) { ["mm", "bmm", "matmul"][g.rank(lhs) - 2] } else { "matmul" };
    g.emit(name, vec![t(lhs), t(rhs)], Fact::ROUNDED)
}

/// Scores with a mask, by one of the operators that apply it. What is excluded is of no size that other operators take.
fn masked(g: &mut Generator, scores: u32, sizes: [i64; 2], causal: bool) -> Option<u32> {
    let (size, kind) = (g.size(scores), g.kind(scores));
    let lowest = Arg::Float(*g.rng.pick(&[f64::NEG_INFINITY, -6e4]));
    if !causal {
        return match mask(g, &size, kind, false)? {
            Arg::Tensor(mask) if g.kind(mask) == Kind::Bool => {
                g.emit_hidden("masked_fill.Scalar", vec![t(scores), t(mask), lowest])
            }
            Arg::Tensor(mask) => g.emit("add.Tensor", vec![t(scores), t(mask), Arg::Int(1)], Fact::ROUNDED),
            _ => Some(scores),
        };
    }
    let ones = vec![t(scores), Arg::Ints(sizes.to_vec()), Arg::DType(11)];
    let ones = g.emit("new_ones", ones, Fact::EXACT)?;
    if g.rng.chance(0.5) {
        let future = g.emit("triu", vec![t(ones), Arg::Int(1)], Fact::EXACT)?;
        g.emit_hidden("masked_fill.Scalar", vec![t(scores), t(future), lowest])
    } else {
        let past = g.emit("tril", vec![t(ones), Arg::Int(0)], Fact::EXACT)?;
        g.emit_hidden("where.ScalarOther", vec![t(past), t(scores), lowest])
    }
}
