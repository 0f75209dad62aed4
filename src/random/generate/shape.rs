//! Operators that move elements.

use super::{Fact, Generator, t};
use crate::random::program::is_float;
use crate::torch::Arg;
use crate::torch::Meta;

/// Views: another arrangement of the same elements, or of some of them.
pub(super) fn rearrange(g: &mut Generator) -> Option<()> {
    let x = g.any()?;
    rearrange_of(g, x)
}

/// A view of this value.
pub(super) fn rearrange_of(g: &mut Generator, x: u32) -> Option<()> {
    let fact = g.fact(x);
    let rank = g.rank(x);
    let (name, args) = match g.rng.below(12) {
        0 | 1 => {
            let shape = regroup(g, x);
            let name = *g.rng.pick(&["view", "reshape"]);
            (name, vec![t(x), Arg::Ints(shape)])
        }
        2 | 3 => {
            let order = g.rng.permutation(rank).into_iter().map(|d| d as i64).collect();
            ("permute", vec![t(x), Arg::Ints(order)])
        }
        4 => ("transpose.int", vec![t(x), Arg::Int(g.dim(x)?), Arg::Int(g.dim(x)? - rank as i64)]),
        5 if rank <= 2 => ("t", vec![t(x)]),
        5 | 6 => {
            let dim = g.dim(x)?;
            let size = g.size(x)[dim as usize];
            let (start, end) = (g.rng.range(0, size + 1), g.rng.range(0, size + 2));
            let (start, end) = (start.min(end), start.max(end));
            let step = *g.rng.pick(&[1, 1, 1, 2, 3]);
            ("slice.Tensor", vec![t(x), Arg::Int(dim), Arg::Int(start), Arg::Int(end), Arg::Int(step)])
        }
        7 => {
            let dim = g.dim(x)?;
            let size = g.size(x)[dim as usize];
            ("select.int", vec![t(x), Arg::Int(dim), Arg::Int(g.rng.range(-size, size))])
        }
        8 => ("unsqueeze", vec![t(x), Arg::Int(g.rng.range(0, rank as i64 + 1))]),
        9 => ("squeeze.dim", vec![t(x), Arg::Int(g.dim(x)?)]),
        10 => ("flatten.using_ints", vec![t(x), Arg::Int(g.rng.range(0, 2)), Arg::Int(-1)]),
        _ => return expand(g, x),
    };
    g.emit(name, args, fact)?;
    Some(())
}

/// The same elements in another shape: neighbouring dimensions joined, or one split.
fn regroup(g: &mut Generator, x: u32) -> Vec<i64> {
    let mut shape = g.size(x);
    if shape.len() >= 2 && g.rng.chance(0.6) {
        let at = g.rng.below(shape.len() - 1);
        let joined = shape[at] * shape[at + 1];
        shape.splice(at..at + 2, [joined]);
    } else if shape.len() < 5 && !shape.is_empty() {
        let at = g.rng.below(shape.len());
        let n = shape[at];
        let factors: Vec<i64> = (1..=n.min(64)).filter(|f| n % f == 0).collect();
        if !factors.is_empty() {
            let factor = *g.rng.pick(&factors);
            shape.splice(at..=at, [factor, n / factor]);
        }
    }
    if !shape.contains(&0) && !shape.is_empty() && g.rng.chance(0.2) {
        let at = g.rng.below(shape.len());
        shape[at] = -1;
    }
    shape
}

fn expand(g: &mut Generator, x: u32) -> Option<()> {
    let fact = g.fact(x);
    let mut shape = g.size(x);
    for n in &mut shape {
        if *n == 1 && g.rng.chance(0.6) {
            *n = *g.rng.pick(&[2, 3, 8, 17]);
        } else if g.rng.chance(0.3) {
            *n = -1;
        }
    }
    if shape.len() < 4 && g.rng.chance(0.4) {
        shape.insert(0, *g.rng.pick(&[1, 2, 3]));
    }
    g.emit("expand", vec![t(x), Arg::Ints(shape)], fact)?;
    Some(())
}

/// Operators that reorder or pad.
pub(super) fn resize(g: &mut Generator) -> Option<()> {
    let x = g.any()?;
    let fact = g.fact(x);
    let rank = g.rank(x);
    match g.rng.below(5) {
        0 => {
            let dims: Vec<i64> = (0..rank as i64).filter(|_| g.rng.chance(0.5)).collect();
            g.emit("flip", vec![t(x), Arg::Ints(dims)], fact)?
        }
        1 => {
            let dim = g.dim(x)?;
            let shift = g.rng.range(-5, 9);
            g.emit("roll", vec![t(x), Arg::Ints(vec![shift]), Arg::Ints(vec![dim])], fact)?
        }
        2 => {
            let low = if g.rng.chance(0.2) { -1 } else { 0 };
            let sides = 2 * (1 + g.rng.below(rank.min(2))).min(rank);
            let pad: Vec<i64> = (0..sides).map(|_| g.rng.range(low, 4)).collect();
            let fill = *g.rng.pick(&[0.0, 1.0, -2.0]);
            let bound = fact.bound.map(|b| b.max(2.0));
            let fill = if is_float(g.kind(x)) { Arg::Float(fill) } else { Arg::Int(fill as i64) };
            g.emit("constant_pad_nd", vec![t(x), Arg::Ints(pad), fill], Fact { bound, ..fact })?
        }
        3 => g.emit("contiguous", vec![t(x)], fact)?,
        _ if rank == 4 => g.emit("contiguous", vec![t(x), Arg::MemoryFormat(2)], fact)?,
        _ => g.emit("dropout", vec![t(x), Arg::Float(0.5), Arg::Bool(false)], fact)?,
    };
    Some(())
}

/// Strides over the memory of a value, within its elements.
pub(super) fn strided(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| g.tensor(id).numel() > 0)?;
    let meta = Meta::of(g.tensor(x)).ok()?;
    let span: i64 = meta.sizes().iter().zip(meta.strides()).map(|(n, s)| (n - 1) * s).sum();
    let start = g.rng.range(0, span.min(6) + 1);
    let mut left = span - start;
    let (mut size, mut stride) = (Vec::new(), Vec::new());
    for _ in 0..g.rng.below(4) {
        let step = *g.rng.pick(&[0, 1, 1, 2, 3, 4, 8, 16]);
        let most = if step == 0 { 3 } else { (left / step + 1).min(17) };
        let count = g.rng.range(1, most + 1);
        left -= (count - 1) * step;
        size.push(count);
        stride.push(step);
    }
    let offset = match g.rng.below(3) {
        0 if start == 0 => Arg::None,
        _ => Arg::Int(meta.offset + start),
    };
    // Between the elements of a view lie those of other views.
    let storage = g.storage_of(x);
    let aliases: Vec<u32> = g.values.iter().copied().filter(|&id| g.storage_of(id) == storage).collect();
    let fact = g.joined(&aliases);
    g.emit("as_strided", vec![t(x), Arg::Ints(size), Arg::Ints(stride), offset], fact)?;
    Some(())
}

/// Windows along a dimension, of a value or of a copy of it.
pub(super) fn windows(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| g.rank(id) > 0 && g.tensor(id).numel() > 0)?;
    let fact = g.fact(x);
    let x = if g.rng.chance(0.5) { g.emit("clone", vec![t(x)], fact)? } else { x };
    let dim = g.dim(x)?;
    let size = g.rng.range(1, g.size(x)[dim as usize].min(4) + 1);
    let step = g.rng.range(1, 3);
    g.emit("unfold", vec![t(x), Arg::Int(dim), Arg::Int(size), Arg::Int(step)], fact)?;
    Some(())
}

/// Operators that take a dimension, of a value that has none.
pub(super) fn of_rank_zero(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| g.rank(id) == 0)?;
    let dim = *g.rng.pick(&[0, -1]);
    let fact = g.fact(x);
    let one = |name, fact| (name, vec![t(x), Arg::Int(dim)], fact);
    let list = |name, fact| (name, vec![t(x), Arg::Ints(vec![dim])], fact);
    let (name, args, fact) = match g.rng.below(9) {
        0 => list("flip", fact),
        1 => one("squeeze.dim", fact),
        2 => one("unsqueeze", fact),
        3 => ("transpose.int", vec![t(x), Arg::Int(0), Arg::Int(-1)], fact),
        4 => list("sum.dim_IntList", fact),
        5 => list("amax", fact),
        6 => one("argmax", Fact { exact: true, bound: Some(0.0) }),
        7 if is_float(g.kind(x)) => one("softmax.int", Fact::ROUNDED),
        8 if is_float(g.kind(x)) => one("cumsum", fact),
        _ => ("movedim.int", vec![t(x), Arg::Int(dim), Arg::Int(0)], fact),
    };
    g.emit(name, args, fact)?;
    Some(())
}

/// `cat` and `stack`.
pub(super) fn join(g: &mut Generator) -> Option<()> {
    let x = g.any()?;
    let size = g.size(x);
    let mixed = g.traits.mixed;
    let kind = g.kind(x);
    let stack = g.rng.chance(0.35);
    let dim = if stack { g.rng.below(size.len() + 1) } else { usize::try_from(g.dim(x)?).ok()? };
    let mut list = vec![x];
    for _ in 0..1 + g.rng.below(2) {
        let fits = |g: &Generator, id: u32| {
            let other = g.size(id);
            let same = |d: usize| (d == dim && !stack) || other[d] == size[d];
            other.len() == size.len() && (0..other.len()).all(same) && (mixed || g.kind(id) == kind)
        };
        list.push(g.value(fits)?);
    }
    if g.rng.chance(0.3) {
        list.reverse();
    }
    let fact = g.joined(&list);
    let tensors = Arg::Tensors(list.into_iter().map(Some).collect());
    g.emit(if stack { "stack" } else { "cat" }, vec![tensors, Arg::Int(dim as i64)], fact)?;
    Some(())
}

/// Coordinates of a grid: each vector along a dimension of its own.
pub(super) fn grid(g: &mut Generator) -> Option<()> {
    let kind = g.some_kind();
    let mut list = Vec::new();
    for _ in 0..1 + g.rng.below(3) {
        let fits = |g: &Generator, id: u32| g.rank(id) < 2 && g.kind(id) == kind && g.tensor(id).numel() < 64;
        let known = if g.rng.chance(0.5) { g.value(fits) } else { None };
        let count = g.rng.range(1, 10);
        list.push(known.or_else(|| g.input(&[count], kind))?);
    }
    let facts: Vec<Fact> = list.iter().map(|&id| g.fact(id)).collect();
    let tensors = Arg::Tensors(list.into_iter().map(Some).collect());
    match g.rng.below(3) {
        0 => g.emit_all("meshgrid", vec![tensors], &facts)?,
        order => {
            let order = Arg::Str(["ij", "xy"][order - 1].into());
            g.emit_all("meshgrid.indexing", vec![tensors, order], &facts)?
        }
    };
    Some(())
}

/// `split` and `chunk`.
pub(super) fn divide(g: &mut Generator) -> Option<()> {
    let x = g.any()?;
    let dim = g.dim(x)?;
    let size = g.size(x)[dim as usize];
    let fact = g.fact(x);
    let parts = 2 + g.rng.below(3) as i64;
    let each = (size + parts - 1) / parts;
    if each == 0 {
        return None;
    }
    let count = ((size + each - 1) / each) as usize;
    let (name, number) = if g.rng.chance(0.5) { ("chunk", parts) } else { ("split.Tensor", each) };
    g.emit_all(name, vec![t(x), Arg::Int(number), Arg::Int(dim)], &vec![fact; count])?;
    Some(())
}
