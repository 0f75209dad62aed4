//! Operators on corresponding elements.

use tch::Kind;

use super::{Fact, Generator, t};
use crate::random::program::{code_of, is_float};
use crate::torch::Arg;

/// Where a function's argument must lie for its result to be well conditioned.
#[derive(Clone, Copy)]
enum Domain {
    Any,
    Within(f64),
    AtLeast(f64),
}
use Domain::{Any, AtLeast, Within};

/// Further arguments of a function of one tensor.
#[derive(Clone, Copy)]
enum Extra {
    F(f64),
    S(&'static str),
}
use Extra::{F, S};

/// Functions whose result is rounded.
const ROUNDED: &[(&str, Domain, &[Extra])] = &[
    ("sigmoid", Any, &[]),
    ("tanh", Any, &[]),
    ("silu", Any, &[]),
    ("gelu", Any, &[S("none")]),
    ("gelu", Any, &[S("tanh")]),
    ("elu", Any, &[F(0.75)]),
    ("celu", Any, &[F(0.75)]),
    ("selu", Any, &[]),
    ("leaky_relu", Any, &[F(0.01)]),
    ("hardswish", Any, &[]),
    ("hardsigmoid", Any, &[]),
    ("softplus", Any, &[]),
    ("mish", Any, &[]),
    ("log_sigmoid", Any, &[]),
    ("exp", Within(6.0), &[]),
    ("exp2", Within(6.0), &[]),
    ("expm1", Within(6.0), &[]),
    ("log", AtLeast(0.5), &[]),
    ("log2", AtLeast(0.5), &[]),
    ("log10", AtLeast(0.5), &[]),
    ("log1p", AtLeast(0.0), &[]),
    ("sqrt", AtLeast(0.125), &[]),
    ("rsqrt", AtLeast(0.25), &[]),
    ("reciprocal", AtLeast(0.25), &[]),
    ("square", Within(30.0), &[]),
    ("sin", Within(30.0), &[]),
    ("cos", Within(30.0), &[]),
    ("tan", Within(1.25), &[]),
    ("asin", Within(0.875), &[]),
    ("acos", Within(0.875), &[]),
    ("atan", Any, &[]),
    ("sinh", Within(5.0), &[]),
    ("cosh", Within(5.0), &[]),
    ("asinh", Any, &[]),
    ("acosh", AtLeast(1.5), &[]),
    ("atanh", Within(0.875), &[]),
    ("erf", Any, &[]),
    ("erfc", Within(3.0), &[]),
    ("sinc", Within(3.0), &[]),
    ("softshrink", Any, &[F(0.5)]),
    ("logit", Any, &[F(0.1)]),
    ("deg2rad", Any, &[]),
    ("rad2deg", Within(30.0), &[]),
];

/// Functions that select or negate: exact on any argument.
const SELECTING: &[(&str, &[Extra])] = &[
    ("relu", &[]),
    ("abs", &[]),
    ("neg", &[]),
    ("hardtanh", &[F(-1.0), F(1.0)]),
    ("relu6", &[]),
    ("positive", &[]),
    ("clone", &[]),
    ("hardshrink", &[F(0.5)]),
    ("threshold", &[F(1.0), F(2.0)]),
];

/// Functions that jump: their argument must be exact.
const JUMPING: &[&str] = &[
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "sign",
    "sgn",
    "isnan",
    "isinf",
    "isfinite",
    "isposinf",
    "isneginf",
    "logical_not",
    "signbit",
];

fn extras(list: &[Extra]) -> impl Iterator<Item = Arg<u32>> + '_ {
    list.iter().map(|e| match e {
        F(x) => Arg::Float(*x),
        S(s) => Arg::Str((*s).to_owned()),
    })
}

/// A value that fits a range, mostly from the program's own type.
fn operand(g: &mut Generator) -> Option<u32> {
    let wanted = g.traits.kind;
    if g.rng.chance(0.8) { g.value(move |g, id| g.kind(id) == wanted) } else { g.any() }
}

pub(super) fn unary(g: &mut Generator) -> Option<()> {
    let x = operand(g)?;
    if g.rng.chance(0.25) {
        let &(name, more) = g.rng.pick(SELECTING);
        let fact =
            if matches!(name, "hardshrink" | "threshold") && !g.exact(x) { return None } else { g.fact(x) };
        let bound = fact.bound.map(|b| if name == "relu6" { b.max(6.0) } else { b.max(2.0) });
        g.emit(name, [t(x)].into_iter().chain(extras(more)).collect(), Fact { bound, ..fact })?;
        return Some(());
    }
    let &(name, domain, more) = g.rng.pick(ROUNDED);
    let x = guard(g, x, domain)?;
    let fact = if name == "square" { Fact::integers(g.bound(x).map(|b| b * b)) } else { Fact::ROUNDED };
    g.emit(name, [t(x)].into_iter().chain(extras(more)).collect(), fact)?;
    Some(())
}

/// Moves a value into a domain by operators that do not round.
fn guard(g: &mut Generator, x: u32, domain: Domain) -> Option<u32> {
    let kind = g.kind(x);
    let number = |v: f64| if is_float(kind) { Arg::Float(v) } else { Arg::Int(v.ceil() as i64) };
    let limited = |b: Option<f64>, v: f64| b.filter(|_| v.fract() == 0.0).map(|b| b.max(v));
    let Fact { exact, bound } = g.fact(x);
    match domain {
        Any => Some(x),
        Within(_) if g.kind(x) == Kind::Bool => Some(x),
        Within(limit) if g.rng.chance(0.7) && g.magnitude(x) < 0.6 * limit => Some(x),
        Within(limit) => {
            let (low, high) = if g.kind(x) == Kind::Uint8 {
                (number(0.0), number(limit))
            } else {
                (number(-limit), number(limit))
            };
            let bound = limited(bound, limit);
            g.emit("clamp", vec![t(x), low, high], Fact { exact, bound })
        }
        AtLeast(_) if g.kind(x) == Kind::Bool => {
            let other = g.emit("logical_not", vec![t(x)], Fact::EXACT)?;
            g.emit("logical_or", vec![t(x), t(other)], Fact::EXACT)
        }
        AtLeast(limit) => {
            let limit = if is_float(g.kind(x)) { limit } else { limit.ceil() };
            let least = number(limit);
            let positive = g.emit("abs", vec![t(x)], Fact { exact, bound })?;
            g.emit("clamp_min", vec![t(positive), least], Fact { exact, bound: limited(bound, limit) })
        }
    }
}

impl Generator {
    /// A second operand for `x`: of the same shape, or one that broadcasts with it.
    pub(super) fn partner(&mut self, x: u32) -> Option<u32> {
        let shape = self.size(x);
        if self.rng.chance(0.55) {
            let most = self.traits.most_elements;
            let fits = |g: &Generator, id: u32| {
                broadcast(&g.size(id), &shape).is_some_and(|s| s.iter().product::<i64>() <= most)
            };
            if let Some(found) = self.value(fits) {
                return Some(found);
            }
        }
        let shape = self.partner_shape(shape);
        let kind = self.some_kind();
        self.input(&shape, kind)
    }

    fn partner_shape(&mut self, mut shape: Vec<i64>) -> Vec<i64> {
        let often = if self.traits.broadcast { 0.8 } else { 0.15 };
        if !self.rng.chance(often) {
            return shape;
        }
        for n in &mut shape {
            match self.rng.below(5) {
                0 | 1 => *n = 1,
                2 if *n == 1 => *n = *self.rng.pick(&[1, 2, 3, 7]),
                _ => {}
            }
        }
        let leading = if self.rng.chance(0.4) { self.rng.below(shape.len() + 1) } else { 0 };
        shape.drain(..leading);
        if shape.len() < 4 && self.traits.broadcast && self.rng.chance(0.2) {
            shape.insert(0, 2);
        }
        shape
    }
}

/// The shape of a broadcast, if the shapes fit.
pub(super) fn broadcast(a: &[i64], b: &[i64]) -> Option<Vec<i64>> {
    let rank = a.len().max(b.len());
    let size = |s: &[i64], d: usize| (d + s.len()).checked_sub(rank).map_or(1, |at| s[at]);
    (0..rank)
        .map(|d| match (size(a, d), size(b, d)) {
            (x, y) if x == y || y == 1 => Some(x),
            (1, y) => Some(y),
            _ => None,
        })
        .collect()
}

pub(super) fn binary(g: &mut Generator) -> Option<()> {
    let a = operand(g)?;
    let b = g.partner(a)?;
    let joined = g.joined(&[a, b]);
    let sum = g.bound(a).zip(g.bound(b)).map(|(x, y)| x + y);
    let product = g.bound(a).zip(g.bound(b)).map(|(x, y)| x * y);
    match g.rng.weighted(&[30, 15, 25, 6, 6, 3, 3, 3, 3, 2, 2, 2]) {
        0 => {
            let alpha = *g.rng.pick(&[1, 1, 1, 2]);
            let bound = sum.map(|s| s * alpha as f64);
            g.emit("add.Tensor", vec![t(a), t(b), Arg::Int(alpha)], Fact::integers(bound))?
        }
        1 => g.emit("sub.Tensor", vec![t(a), t(b)], Fact::integers(sum))?,
        2 => g.emit("mul.Tensor", vec![t(a), t(b)], Fact::integers(product))?,
        3 => g.emit("maximum", vec![t(a), t(b)], joined)?,
        4 => g.emit("minimum", vec![t(a), t(b)], joined)?,
        5 => g.emit("fmax", vec![t(a), t(b)], joined)?,
        6 => g.emit("fmin", vec![t(a), t(b)], joined)?,
        7 => {
            let b = guard(g, b, AtLeast(0.5))?;
            g.emit("atan2", vec![t(a), t(b)], Fact::ROUNDED)?
        }
        9 => g.emit("logaddexp", vec![t(a), t(b)], Fact::ROUNDED)?,
        10 => {
            let b = guard(g, b, AtLeast(0.5))?;
            g.emit("xlogy.Tensor", vec![t(a), t(b)], Fact::ROUNDED)?
        }
        11 if g.exact(a) => {
            let bound = g.bound(b).map(|b| b.max(1.0));
            g.emit("heaviside", vec![t(a), t(b)], Fact { bound, ..g.fact(b) })?
        }
        _ if g.exact(b) && g.is_float(a) => {
            let b = signed(g, b)?;
            g.emit("copysign.Tensor", vec![t(a), t(b)], joined)?
        }
        _ => g.emit("hypot", vec![t(a), t(b)], Fact::ROUNDED)?,
    };
    Some(())
}

/// A number, as the type of `x` takes it without promotion or, rarely, with.
fn scalar(g: &mut Generator, x: u32) -> (Arg<u32>, Option<f64>) {
    let int = g.rng.range(-3, 4);
    if is_float(g.kind(x)) && g.rng.chance(0.6) {
        (Arg::Float(*g.rng.pick(&[0.5, 1.5, -0.25, 0.1, 3.7, -1.3])), None)
    } else {
        (Arg::Int(int), Some(int.abs() as f64))
    }
}

pub(super) fn with_scalar(g: &mut Generator) -> Option<()> {
    let x = operand(g)?;
    let (number, size) = scalar(g, x);
    let fact = g.fact(x);
    let of = |f: fn(f64, f64) -> f64| Fact::integers(fact.bound.zip(size).map(|(a, b)| f(a, b)));
    let selected = Fact { exact: fact.exact, bound: fact.bound.zip(size).map(|(a, b)| a.max(b)) };
    match g.rng.below(8) {
        0 | 1 => g.emit("add.Scalar", vec![t(x), number], of(|a, b| a + b))?,
        2 => g.emit("sub.Scalar", vec![t(x), number], of(|a, b| a + b))?,
        3 | 4 => g.emit("mul.Scalar", vec![t(x), number], of(|a, b| a * b))?,
        5 => g.emit("rsub.Scalar", vec![t(x), number], of(|a, b| a + b))?,
        6 => g.emit("clamp_min", vec![t(x), number], selected)?,
        _ => g.emit("clamp_max", vec![t(x), number], selected)?,
    };
    Some(())
}

pub(super) fn divide(g: &mut Generator) -> Option<()> {
    let a = operand(g)?;
    if g.rng.chance(0.3) {
        let divisor = *g.rng.pick(&[2.0, 3.0, 0.7]);
        g.emit("div.Scalar", vec![t(a), Arg::Float(divisor)], Fact::ROUNDED)?;
        return Some(());
    }
    let b = g.partner(a)?;
    let b = guard(g, b, AtLeast(0.5))?;
    let half = |k: Kind| matches!(k, Kind::Half | Kind::BFloat16);
    let steps = g.exact(a) && g.exact(b) && !half(g.kind(a)) && !half(g.kind(b));
    let fact = Fact { exact: true, bound: None };
    match g.rng.below(if steps { 7 } else { 2 }) {
        0 | 1 => g.emit("div.Tensor", vec![t(a), t(b)], Fact::ROUNDED)?,
        2 => g.emit("fmod.Tensor", vec![t(a), t(b)], fact)?,
        3 => g.emit("remainder.Tensor", vec![t(a), t(b)], Fact::ROUNDED)?,
        4 => g.emit("floor_divide", vec![t(a), t(b)], fact)?,
        5 => g.emit("div.Tensor_mode", vec![t(a), t(b), Arg::Str("trunc".into())], fact)?,
        _ => g.emit("div.Tensor_mode", vec![t(a), t(b), Arg::Str("floor".into())], fact)?,
    };
    Some(())
}

pub(super) fn power(g: &mut Generator) -> Option<()> {
    let x = operand(g)?;
    match g.rng.below(4) {
        0 | 1 => {
            let exponent = g.rng.range(2, 4);
            let x = guard(g, x, Within(8.0))?;
            let bound = g.bound(x).map(|b| b.powi(exponent as i32));
            g.emit("pow.Tensor_Scalar", vec![t(x), Arg::Int(exponent)], Fact::integers(bound))?
        }
        2 => {
            let x = guard(g, x, AtLeast(0.5))?;
            let x = guard(g, x, Within(8.0))?;
            let exponent = *g.rng.pick(&[0.5, -0.5, -1.0, 2.5, -2.0]);
            g.emit("pow.Tensor_Scalar", vec![t(x), Arg::Float(exponent)], Fact::ROUNDED)?
        }
        _ => {
            let y = g.partner(x).filter(|&y| g.is_float(y))?;
            let x = guard(g, x, AtLeast(0.5))?;
            let (x, y) = (guard(g, x, Within(4.0))?, guard(g, y, Within(3.0))?);
            g.emit("pow.Tensor_Tensor", vec![t(x), t(y)], Fact::ROUNDED)?
        }
    };
    Some(())
}

/// Activations with a weight, or a half of the values as the other half's gate.
pub(super) fn gated(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| is_float(g.kind(id)) && g.rank(id) > 0)?;
    if g.rng.chance(0.5) {
        let dim = g.dim(x)?;
        g.emit("glu", vec![t(x), Arg::Int(dim)], Fact::ROUNDED)?;
    } else {
        let channels = g.size(x).get(1).copied().filter(|_| g.rng.chance(0.7)).unwrap_or(1);
        let weight = g.plain_input(&[channels], g.kind(x))?;
        g.emit("prelu", vec![t(x), t(weight)], Fact::ROUNDED)?;
    }
    Some(())
}

pub(super) fn ternary(g: &mut Generator) -> Option<()> {
    let a = g.float()?;
    let b = g.partner(a).filter(|&b| g.is_float(b))?;
    let c = g.partner(a).filter(|&c| g.is_float(c))?;
    match g.rng.below(4) {
        0 => g.emit("addcmul", vec![t(a), t(b), t(c), Arg::Float(0.5)], Fact::ROUNDED)?,
        1 => {
            let c = guard(g, c, AtLeast(0.5))?;
            g.emit("addcdiv", vec![t(a), t(b), t(c), Arg::Float(0.5)], Fact::ROUNDED)?
        }
        2 => g.emit("lerp.Tensor", vec![t(a), t(b), t(c)], Fact::ROUNDED)?,
        _ => g.emit("lerp.Scalar", vec![t(a), t(b), Arg::Float(0.3)], Fact::ROUNDED)?,
    };
    Some(())
}

pub(super) fn compare(g: &mut Generator) -> Option<()> {
    condition(g).map(|_| ())
}

/// A truth value from comparing exact values.
fn condition(g: &mut Generator) -> Option<u32> {
    let a = g.value(Generator::exact)?;
    let op = *g.rng.pick(&["eq", "ne", "lt", "le", "gt", "ge"]);
    if g.rng.chance(0.5) {
        let number = if is_float(g.kind(a)) && g.rng.chance(0.5) {
            Arg::Float(0.5)
        } else {
            Arg::Int(g.rng.range(-1, 3))
        };
        return g.emit(&format!("{op}.Scalar"), vec![t(a), number], Fact::EXACT);
    }
    let b = g.partner(a).filter(|&b| g.exact(b))?;
    g.emit(&format!("{op}.Tensor"), vec![t(a), t(b)], Fact::EXACT)
}

pub(super) fn discontinuous(g: &mut Generator) -> Option<()> {
    let x = g.value(Generator::exact)?;
    let name = *g.rng.pick(JUMPING);
    let x = if name == "signbit" { signed(g, x)? } else { x };
    let bound = g.bound(x).map(|b| b.max(1.0));
    g.emit(name, vec![t(x)], Fact { exact: true, bound })?;
    Some(())
}

/// A value of which each element has a sign: that of NaN is another in libtorch's vectors than in what is left over. Infinities
/// become no largest numbers, whose sums are infinite in one order and finite in another.
fn signed(g: &mut Generator, x: u32) -> Option<u32> {
    let may_be_nan = g.traits.special && g.is_float(x);
    if may_be_nan {
        g.emit("nan_to_num", vec![t(x), Arg::Float(0.0), Arg::Float(4.0), Arg::Float(-4.0)], g.fact(x))
    } else {
        Some(x)
    }
}

pub(super) fn choose(g: &mut Generator) -> Option<()> {
    let x = operand(g)?;
    let mask = match g.value(|g, id| g.kind(id) == Kind::Bool && broadcast(&g.size(id), &g.size(x)).is_some())
    {
        Some(mask) if g.rng.chance(0.6) => mask,
        _ => {
            let shape = g.size(x);
            let shape = g.partner_shape(shape);
            g.input(&shape, Kind::Bool)?
        }
    };
    if g.rng.chance(0.3) {
        let (number, size) = scalar(g, x);
        let bound = g.bound(x).zip(size).map(|(a, b)| a.max(b));
        g.emit("masked_fill.Scalar", vec![t(x), t(mask), number], Fact { exact: g.exact(x), bound })?;
        return Some(());
    }
    if g.rng.chance(0.2) {
        let (number, size) = scalar(g, x);
        let bound = g.bound(x).zip(size).map(|(a, b)| a.max(b));
        g.emit("where.ScalarOther", vec![t(mask), t(x), number], Fact { exact: g.exact(x), bound })?;
        return Some(());
    }
    let y = g.partner(x)?;
    g.emit("where.self", vec![t(mask), t(x), t(y)], g.joined(&[x, y]))?;
    Some(())
}

pub(super) fn cast(g: &mut Generator) -> Option<()> {
    let x = g.any()?;
    let kind = *g.rng.pick(&[
        Kind::Float,
        Kind::Float,
        Kind::BFloat16,
        Kind::Half,
        Kind::Double,
        Kind::Int64,
        Kind::Int,
        Kind::Uint8,
        Kind::Int8,
        Kind::Bool,
    ]);
    let mut x = x;
    if is_float(g.kind(x)) && !is_float(kind) {
        if !g.exact(x) || g.traits.special {
            return None;
        }
        if kind == Kind::Uint8 {
            let fact = g.fact(x);
            x = g.emit("abs", vec![t(x)], fact)?;
        }
        x = guard(g, x, Within(100.0))?;
    }
    let fact = g.fact(x);
    g.emit("to.dtype", vec![t(x), Arg::DType(code_of(kind)), Arg::Bool(false), Arg::Bool(false)], fact)?;
    Some(())
}

pub(super) fn bits(g: &mut Generator) -> Option<()> {
    let a = g.value(|g, id| !is_float(g.kind(id)))?;
    if g.rng.chance(0.25) {
        let name = *g.rng.pick(&["bitwise_not", "logical_not"]);
        g.emit(name, vec![t(a)], Fact::EXACT)?;
        return Some(());
    }
    if g.rng.chance(0.25) {
        let name = *g.rng.pick(&["bitwise_left_shift.Tensor_Scalar", "bitwise_right_shift.Tensor_Scalar"]);
        let amount = g.rng.range(0, 7);
        g.emit(name, vec![t(a), Arg::Int(amount)], Fact::EXACT)?;
        return Some(());
    }
    let b = g.partner(a).filter(|&b| g.exact(b))?;
    let name = *g.rng.pick(&[
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_and.Tensor",
        "bitwise_or.Tensor",
        "bitwise_xor.Tensor",
    ]);
    g.emit(name, vec![t(a), t(b)], Fact::EXACT)?;
    Some(())
}
