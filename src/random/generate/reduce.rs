//! Reductions, and what is made of them.

use tch::Kind;

use super::{Fact, Generator, t};
use crate::random::program::is_float;
use crate::torch::Arg;

/// Some dimensions of a value, ascending; never none unless its rank is 0.
fn dims(g: &mut Generator, x: u32) -> Vec<i64> {
    let rank = g.rank(x);
    let mut list: Vec<i64> = (0..rank as i64).filter(|_| g.rng.chance(0.4)).collect();
    if list.is_empty() && rank > 0 {
        list.push(g.rng.below(rank) as i64);
    }
    if g.rng.chance(0.3) {
        list.iter_mut().for_each(|d| *d -= rank as i64);
    }
    list
}

fn along(g: &Generator, x: u32, dims: &[i64]) -> i64 {
    let (size, rank) = (g.size(x), g.rank(x) as i64);
    dims.iter().map(|&d| size[(if d < 0 { d + rank } else { d }) as usize]).product()
}

fn number(g: &mut Generator) -> Option<u32> {
    if g.rng.chance(0.8) { g.float() } else { g.any() }
}

pub(super) fn reduce(g: &mut Generator) -> Option<()> {
    let x = number(g)?;
    if g.rng.chance(0.2) { whole(g, x) } else { reduce_of(g, x) }
}

/// A reduction of this value along some dimensions.
pub(super) fn reduce_of(g: &mut Generator, x: u32) -> Option<()> {
    let dims = dims(g, x);
    let count = along(g, x, &dims);
    let keep = Arg::Bool(g.rng.chance(0.5));
    let list = Arg::Ints(dims.clone());
    let fact = g.fact(x);
    let sum = Fact::integers(fact.bound.map(|b| b * count.max(1) as f64));
    match g.rng.below(12) {
        0 | 1 => g.emit("sum.dim_IntList", vec![t(x), list, keep], sum)?,
        2 | 3 => g.emit("mean.dim", vec![t(x), list, keep], Fact::ROUNDED)?,
        4 => g.emit("amax", vec![t(x), list, keep], fact)?,
        5 => g.emit("amin", vec![t(x), list, keep], fact)?,
        6 => {
            let ord = *g.rng.pick(&[1.0, 2.0, f64::INFINITY, 2.0]);
            g.emit("linalg_vector_norm", vec![t(x), Arg::Float(ord), list, keep], Fact::ROUNDED)?
        }
        8 => g.emit("nansum", vec![t(x), list, keep], sum)?,
        9 => {
            let ord = *g.rng.pick(&[1.0, 2.0, f64::INFINITY]);
            g.emit("norm.ScalarOpt_dim", vec![t(x), Arg::Float(ord), list, keep], Fact::ROUNDED)?
        }
        10 => {
            let dim = Arg::Int(*dims.first()?);
            return g.emit_all("aminmax", vec![t(x), dim, keep], &[fact, fact]).map(drop);
        }
        7 => g.emit("logsumexp", vec![t(x), list, keep], Fact::ROUNDED)?,
        _ => {
            let dim = *dims.first()?;
            if along(g, x, &[dim]) > 16 {
                return None;
            }
            let x = g.emit(
                "clamp",
                vec![t(x), Arg::Float(-1.25), Arg::Float(1.25)],
                Fact { bound: None, ..fact },
            )?;
            g.emit("prod.dim_int", vec![t(x), Arg::Int(dim), keep], Fact::ROUNDED)?
        }
    };
    Some(())
}

/// Reductions of all elements.
fn whole(g: &mut Generator, x: u32) -> Option<()> {
    let fact = g.fact(x);
    let count = g.tensor(x).numel().max(1) as f64;
    match g.rng.below(4) {
        0 => g.emit("sum", vec![t(x)], Fact::integers(fact.bound.map(|b| b * count)))?,
        1 => g.emit("mean", vec![t(x)], Fact::ROUNDED)?,
        2 => g.emit("max", vec![t(x)], fact)?,
        _ => g.emit("min", vec![t(x)], fact)?,
    };
    Some(())
}

/// Reductions whose result jumps: positions and truth values.
pub(super) fn indexed(g: &mut Generator) -> Option<()> {
    let x = g.value(Generator::exact)?;
    let dim = g.dim(x)?;
    let keep = Arg::Bool(g.rng.chance(0.5));
    let fact = g.fact(x);
    let args = vec![t(x), Arg::Int(dim), keep];
    let single = |g: &mut Generator, name: &str| g.emit(name, args.clone(), Fact::EXACT).map(|_| ());
    match g.rng.below(9) {
        8 => g.emit("count_nonzero.dim_IntList", vec![t(x), Arg::Ints(vec![dim])], Fact::EXACT).map(drop),
        0 => single(g, "argmax"),
        1 => single(g, "argmin"),
        2 => single(g, "any.dim"),
        3 => single(g, "all.dim"),
        4 => g.emit("any", vec![t(x)], Fact::EXACT).map(|_| ()),
        5 => g.emit("all", vec![t(x)], Fact::EXACT).map(|_| ()),
        6 => g.emit_all("max.dim", args, &[fact, Fact::EXACT]).map(|_| ()),
        _ => g.emit_all("min.dim", args, &[fact, Fact::EXACT]).map(|_| ()),
    }
}

/// Variance and standard deviation.
pub(super) fn spread(g: &mut Generator) -> Option<()> {
    let x = g.float()?;
    let dims = dims(g, x);
    let keep = g.rng.chance(0.5);
    if along(g, x, &dims) < 2 {
        return None;
    }
    let list = Arg::Ints(dims);
    let name = *g.rng.pick(&["var", "std"]);
    if g.rng.chance(0.5) {
        let unbiased = g.rng.chance(0.5);
        g.emit(
            &format!("{name}.dim"),
            vec![t(x), list, Arg::Bool(unbiased), Arg::Bool(keep)],
            Fact::ROUNDED,
        )?;
    } else {
        let correction = Arg::Int(g.rng.range(0, 2));
        g.emit(&format!("{name}.correction"), vec![t(x), list, correction, Arg::Bool(keep)], Fact::ROUNDED)?;
    }
    Some(())
}

pub(super) fn softmax(g: &mut Generator) -> Option<()> {
    let x = g.float()?;
    let dim = g.dim(x)?;
    softmax_of(g, x, dim)
}

/// Softmax, or its logarithm, of a value.
pub(super) fn softmax_of(g: &mut Generator, x: u32, dim: i64) -> Option<()> {
    let name = *g.rng.pick(&["softmax.int", "softmax.int", "log_softmax.int"]);
    g.emit(name, vec![t(x), Arg::Int(dim)], Fact::ROUNDED)?;
    Some(())
}

/// A parameter of the type of `x`, or nothing.
fn parameter(g: &mut Generator, x: u32, shape: &[i64]) -> Arg<u32> {
    if g.rng.chance(0.2) {
        return Arg::None;
    }
    let kind = g.kind(x);
    g.plain_input(shape, kind).map_or(Arg::None, t)
}

/// Numbers of at least a half, of a new input.
pub(super) fn positive(g: &mut Generator, shape: &[i64], kind: Kind) -> Option<u32> {
    let x = g.plain_input(shape, kind)?;
    let x = g.emit("abs", vec![t(x)], Fact::EXACT)?;
    g.emit("clamp_min", vec![t(x), Arg::Float(0.5)], Fact::EXACT)
}

pub(super) fn normalize(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| is_float(g.kind(id)) && g.rank(id) > 0)?;
    normalize_of(g, x)
}

/// A norm of this value.
pub(super) fn normalize_of(g: &mut Generator, x: u32) -> Option<()> {
    match g.rng.below(7) {
        0 | 1 => layer_norm(g, x),
        2 => group_norm(g, x),
        3 => batch_norm(g, x),
        4 => instance_norm(g, x),
        5 => own_rms_norm(g, x),
        _ => rms_norm(g, x),
    }
}

/// Whether squares of a value's finite elements stay in `f32`. Where they do not, libtorch's layer and group norms give 0 or NaN by
/// how they divide a row into the vectors of a processor, and sums of products are finite, infinite or NaN by their order.
pub(super) fn has_squares(g: &Generator, x: u32) -> bool {
    let x = g.tensor(x).to_kind(Kind::Double).abs();
    let finite = x.masked_select(&x.isfinite());
    finite.numel() == 0 || finite.max().double_value(&[]) < 1e18
}

pub(super) fn layer_norm(g: &mut Generator, x: u32) -> Option<()> {
    if !has_squares(g, x) {
        return None;
    }
    let size = g.size(x);
    let from = size.len() - 1 - g.rng.below(size.len().min(2));
    let shape = &size[from..];
    if shape.iter().product::<i64>() < 2 {
        return None;
    }
    let (weight, bias) = (parameter(g, x, shape), parameter(g, x, shape));
    g.emit(
        "layer_norm",
        vec![t(x), Arg::Ints(shape.to_vec()), weight, bias, Arg::Float(1e-5)],
        Fact::ROUNDED,
    )?;
    Some(())
}

fn group_norm(g: &mut Generator, x: u32) -> Option<()> {
    if !has_squares(g, x) {
        return None;
    }
    let size = g.size(x);
    let channels = *size.get(1)?;
    let groups: Vec<i64> = (1..=channels.min(8)).filter(|n| channels % n == 0).collect();
    if groups.is_empty() {
        return None;
    }
    let groups = *g.rng.pick(&groups);
    if size.iter().product::<i64>() / size[0].max(1) / groups < 2 {
        return None;
    }
    let (weight, bias) = (parameter(g, x, &[channels]), parameter(g, x, &[channels]));
    g.emit("group_norm", vec![t(x), Arg::Int(groups), weight, bias, Arg::Float(1e-5)], Fact::ROUNDED)?;
    Some(())
}

fn batch_norm(g: &mut Generator, x: u32) -> Option<()> {
    let channels = *g.size(x).get(1)?;
    let kind = g.kind(x);
    let (weight, bias) = (parameter(g, x, &[channels]), parameter(g, x, &[channels]));
    let mean = g.plain_input(&[channels], kind)?;
    let var = positive(g, &[channels], kind)?;
    let (no, yes) = (Arg::Bool(false), Arg::Bool(true));
    let args = vec![t(x), weight, bias, t(mean), t(var), no, Arg::Float(0.1), Arg::Float(1e-5), yes];
    g.emit("batch_norm", args, Fact::ROUNDED)?;
    Some(())
}

/// A norm of each image of one channel by its own statistics.
fn instance_norm(g: &mut Generator, x: u32) -> Option<()> {
    let size = g.size(x);
    if size.len() < 3 || size[2..].iter().product::<i64>() < 2 || !has_squares(g, x) {
        return None;
    }
    let (weight, bias) = (parameter(g, x, &size[1..2]), parameter(g, x, &size[1..2]));
    let (none, yes) = (Arg::None, Arg::Bool(true));
    let args =
        vec![t(x), weight, bias, none.clone(), none, yes.clone(), Arg::Float(0.1), Arg::Float(1e-5), yes];
    g.emit("instance_norm", args, Fact::ROUNDED)?;
    Some(())
}

/// RMS norm by libtorch's operator.
fn own_rms_norm(g: &mut Generator, x: u32) -> Option<()> {
    let last = *g.size(x).last()?;
    if last == 0 || !has_squares(g, x) {
        return None;
    }
    let weight = parameter(g, x, &[last]);
    g.emit("rms_norm", vec![t(x), Arg::Ints(vec![last]), weight, Arg::Float(1e-2)], Fact::ROUNDED)?;
    Some(())
}

/// RMS norm as models spell it.
fn rms_norm(g: &mut Generator, x: u32) -> Option<()> {
    let last = *g.size(x).last()?;
    let kind = g.kind(x);
    let mut wide = x;
    if matches!(kind, Kind::Half | Kind::BFloat16) && g.rng.chance(0.7) {
        wide = g.emit("to.dtype", vec![t(x), Arg::DType(6)], g.fact(x))?;
    }
    let square = g.emit("pow.Tensor_Scalar", vec![t(wide), Arg::Int(2)], Fact::ROUNDED)?;
    let mean = g.emit("mean.dim", vec![t(square), Arg::Ints(vec![-1]), Arg::Bool(true)], Fact::ROUNDED)?;
    let mean = g.emit("add.Scalar", vec![t(mean), Arg::Float(1e-2)], Fact::ROUNDED)?;
    let scale = g.emit("rsqrt", vec![t(mean)], Fact::ROUNDED)?;
    let y = g.emit("mul.Tensor", vec![t(wide), t(scale)], Fact::ROUNDED)?;
    let weight = g.input(&[last], kind)?;
    g.emit("mul.Tensor", vec![t(y), t(weight)], Fact::ROUNDED)?;
    Some(())
}
