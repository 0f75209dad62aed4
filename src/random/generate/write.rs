//! Operators that write their argument, often through a view.

use tch::Kind;

use super::{Args, Fact, Generator, t};
use crate::random::program::is_float;
use crate::torch::Arg;

pub(super) fn write(g: &mut Generator) -> Option<()> {
    let base = g.any()?;
    let target = if g.rng.chance(0.6) { view_of(g, base)? } else { base };
    // libtorch lets some operators write elements that overlap, in no certain order.
    if overlaps(g, target) {
        return None;
    }
    if g.rng.chance(0.25) {
        return super::overlap::overlap(g, target);
    }
    let fact = g.fact(target);
    let (name, args, fact) = match g.rng.below(16) {
        0 | 1 => {
            let other = operand(g, target)?;
            let name = *g.rng.pick(&["add_.Tensor", "sub_.Tensor", "mul_.Tensor"]);
            (name, vec![t(target), t(other)], Fact::ROUNDED)
        }
        2 | 3 => {
            let other = operand(g, target)?;
            ("copy_", vec![t(target), t(other)], g.fact(other))
        }
        4 => ("fill_.Scalar", vec![t(target), Arg::Int(1)], Fact { exact: true, bound: Some(1.0) }),
        5 => ("zero_", vec![t(target)], Fact { exact: true, bound: Some(0.0) }),
        6 => ("add_.Scalar", vec![t(target), Arg::Int(1)], Fact::integers(fact.bound.map(|b| b + 1.0))),
        7 => ("mul_.Scalar", vec![t(target), Arg::Int(-1)], fact),
        8 => ("relu_", vec![t(target)], fact),
        9 => {
            let name = *g.rng.pick(&["sigmoid_", "tanh_", "silu_"]);
            (name, vec![t(target)], Fact::ROUNDED)
        }
        10 => (
            "clamp_",
            vec![t(target), Arg::Int(-1), Arg::Int(1)],
            Fact { bound: fact.bound.map(|b| b.max(1.0)), ..fact },
        ),
        11 | 12 => draw(g, target)?,
        13 | 14 => out(g, target)?,
        _ => {
            let mask = g.input(&g.size(target), Kind::Bool)?;
            // libtorch does not find that a mask may be written while it is read.
            if g.storage_of(mask) == g.storage_of(target) {
                return None;
            }
            (
                "masked_fill_.Scalar",
                vec![t(target), t(mask), Arg::Int(2)],
                Fact { bound: fact.bound.map(|b| b.max(2.0)), ..fact },
            )
        }
    };
    store(g, target, name, args, fact)
}

/// Whether some elements of a value may lie at one address.
pub(super) fn overlaps(g: &Generator, id: u32) -> bool {
    let t = g.tensor(id);
    let mut dims: Vec<(i64, i64)> = t.stride().into_iter().zip(t.size()).filter(|&(_, n)| n > 1).collect();
    dims.sort_unstable();
    let mut extent = 0;
    dims.iter().any(|&(stride, n)| {
        let within = stride <= extent;
        extent += (n - 1) * stride;
        within
    })
}

/// Random numbers in place: equal seeds give equal bits.
fn draw(g: &mut Generator, target: u32) -> Option<(&'static str, Args, Fact)> {
    let two = |a, b| vec![t(target), Arg::Float(a), Arg::Float(b)];
    let (name, args) = match g.rng.below(5) {
        _ if !is_float(g.kind(target)) => ("random_.from", vec![t(target), Arg::Int(0), Arg::Int(2)]),
        0 => ("normal_", two(0.0, 1.0)),
        1 => ("uniform_", two(-1.0, 1.0)),
        2 => ("bernoulli_.float", vec![t(target), Arg::Float(0.5)]),
        3 => ("exponential_", vec![t(target), Arg::Float(1.0)]),
        _ => ("dropout_", vec![t(target), Arg::Float(0.5), Arg::Bool(true)]),
    };
    let fact = if name == "dropout_" { Fact::ROUNDED } else { Fact::EXACT };
    Some((name, args, fact))
}

/// An operator whose result is written where its last argument says.
fn out(g: &mut Generator, target: u32) -> Option<(&'static str, Args, Fact)> {
    let (kind, size) = (g.kind(target), g.size(target));
    let storage = g.storage_of(target);
    let same = |g: &Generator, id: u32| {
        g.kind(id) == kind && g.size(id) == size && (id == target || g.storage_of(id) != storage)
    };
    let (x, y) = (g.value(same)?, g.value(same)?);
    Some(match g.rng.below(4) {
        0 if is_float(kind) => ("sigmoid.out", vec![t(x), t(target)], Fact::ROUNDED),
        1 if kind != Kind::Bool => {
            let fact = g.joined(&[x, y]);
            ("maximum.out", vec![t(x), t(y), t(target)], fact)
        }
        2 => ("mul.out", vec![t(x), t(y), t(target)], Fact::ROUNDED),
        _ => ("add.out", vec![t(x), t(y), Arg::Int(1), t(target)], Fact::ROUNDED),
    })
}

/// A part of a value that shares its memory.
pub(super) fn view_of(g: &mut Generator, base: u32) -> Option<u32> {
    let dim = g.dim(base)?;
    let size = g.size(base)[dim as usize];
    let fact = g.fact(base);
    match g.rng.below(4) {
        0 if size > 0 => {
            let at = g.rng.range(0, size);
            g.emit("select.int", vec![t(base), Arg::Int(dim), Arg::Int(at)], fact)
        }
        1 => g.emit("transpose.int", vec![t(base), Arg::Int(0), Arg::Int(dim)], fact),
        2 => g.emit("view", vec![t(base), Arg::Ints(vec![-1])], fact),
        _ => {
            let start = g.rng.range(0, size + 1);
            let end = g.rng.range(start, size + 1);
            let step = *g.rng.pick(&[1, 1, 2]);
            g.emit(
                "slice.Tensor",
                vec![t(base), Arg::Int(dim), Arg::Int(start), Arg::Int(end), Arg::Int(step)],
                fact,
            )
        }
    }
}

/// Another value that broadcasts into the target's shape and whose type may be written to it.
fn operand(g: &mut Generator, target: u32) -> Option<u32> {
    let other = g.partner(target)?;
    if other != target && g.storage_of(other) == g.storage_of(target) {
        return None;
    }
    let fits = super::pointwise::broadcast(&g.size(other), &g.size(target))? == g.size(target);
    let rounded = is_float(g.kind(other)) && !is_float(g.kind(target));
    (fits && !(rounded && (!g.exact(other) || g.traits.special))).then_some(other)
}

/// Adds a call that writes a value; where its result is not acceptable, what it wrote is undone.
pub(super) fn store(g: &mut Generator, target: u32, name: &str, args: Args, fact: Fact) -> Option<()> {
    store_all(g, &[target], name, args, fact, &[fact])
}

/// As [`store`], of several values, with as many results as facts.
pub(super) fn store_all(
    g: &mut Generator,
    targets: &[u32],
    name: &str,
    args: Args,
    fact: Fact,
    results: &[Fact],
) -> Option<()> {
    let before: Vec<_> = targets.iter().map(|&id| g.tensor(id).copy()).collect();
    let done = g.emit_all(name, args, results);
    if done.is_none() || targets.iter().any(|&id| !g.acceptable(g.tensor(id))) {
        if let Some(results) = done {
            g.program.ops.pop();
            g.values.retain(|id| !results.contains(id));
        }
        // The call was rejected before it wrote, or wrote what is too large.
        for (&id, before) in targets.iter().zip(&before) {
            let _ = g.tensor(id).shallow_clone().f_copy_(before);
        }
        return None;
    }
    for &target in targets {
        let kind = g.kind(target);
        let storage = g.storage_of(target);
        let aliases: Vec<u32> = g.values.iter().copied().filter(|&id| g.storage_of(id) == storage).collect();
        for id in aliases {
            let joined = g.fact(id).join(fact.settle(kind));
            g.facts.insert(id, joined.settle(kind));
        }
    }
    Some(())
}
