//! Activations, and dropout where it does nothing.

use tilefuse_block::{Elem, Literal, ScalarFn};

use super::arith::bounded;
use super::cx::{Call, Cx, wide};
use super::registry::Registry;
use crate::args::{Number, wrap};
use crate::graph::ValueRef;
use crate::types::Device;

pub(super) fn register(r: &mut Registry) {
    r.one(&["relu"], relu);
    r.one(&["relu6"], |cx, call| clamped(cx, call, Number::Int(0), Number::Int(6)));
    r.one(&["hardtanh"], hardtanh);
    r.one(&["gelu"], gelu);
    r.one(&["silu"], |cx, call| computed(cx, call, silu));
    r.one(&["mish"], |cx, call| computed(cx, call, mish));
    r.one(&["log_sigmoid"], |cx, call| computed(cx, call, log_sigmoid));
    r.one(&["hardswish"], |cx, call| computed(cx, call, hardswish));
    r.one(&["hardsigmoid"], |cx, call| computed(cx, call, hardsigmoid));
    r.one(&["elu"], elu);
    r.one(&["selu"], |cx, call| computed(cx, call, |cx, x| exponential(cx, x, SELU_ALPHA, SELU_SCALE, 1.0)));
    r.one(&["celu"], celu);
    r.one(&["leaky_relu"], leaky_relu);
    r.one(&["rrelu"], rrelu);
    r.one(&["prelu", "_prelu_kernel"], prelu);
    r.one(&["softplus"], softplus);
    r.one(&["threshold"], threshold);
    r.one(&["glu"], glu);
    r.one(&["hardshrink"], hardshrink);
    r.one(&["softshrink"], softshrink);
    r.one(&["dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"], dropout);
}

const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// Computes in the wide type and rounds to the result's.
fn computed(
    cx: &mut Cx,
    call: &Call<'_>,
    body: impl FnOnce(&mut Cx, ValueRef) -> Option<ValueRef>,
) -> Option<ValueRef> {
    let elem = call.elem()?;
    if !elem.is_float() {
        return None;
    }
    let x = cx.cast(call.tensor("self")?, wide(elem))?;
    let value = body(cx, x)?;
    cx.cast(value, elem)
}

/// 0 below 0, else the operand itself: NaN stays, and on the CPU -0.
fn relu(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let elem = cx.elem(x)?;
    if elem == Elem::Bool {
        return None;
    }
    let zero = cx.number(elem, 0.0);
    bounded(cx, x, zero, true)
}

fn clamped(cx: &mut Cx, call: &Call<'_>, low: Number, high: Number) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let elem = cx.elem(x)?;
    let [low, high] = [low, high].map(|limit| match limit {
        Number::Int(n) if elem.is_int() => cx.literal(Literal::int(elem, n)),
        limit => cx.number(elem, limit.as_f64()),
    });
    let x = bounded(cx, x, low, true)?;
    bounded(cx, x, high, false)
}

fn hardtanh(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let low = call.args.number("min_val").unwrap_or(Number::Int(-1));
    let high = call.args.number("max_val").unwrap_or(Number::Int(1));
    clamped(cx, call, low, high)
}

fn gelu(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    match call.args.str("approximate").unwrap_or("none") {
        "none" => computed(cx, call, |cx, x| {
            let scaled = cx.map_number(ScalarFn::Mul, x, std::f64::consts::FRAC_1_SQRT_2)?;
            let inner = cx.map(ScalarFn::Erf, &[scaled])?;
            gelu_of(cx, x, inner)
        }),
        "tanh" => computed(cx, call, |cx, x| {
            let square = cx.map(ScalarFn::Mul, &[x, x])?;
            let cube = cx.map(ScalarFn::Mul, &[square, x])?;
            let small = cx.map_number(ScalarFn::Mul, cube, 0.044_715)?;
            let sum = cx.map(ScalarFn::Add, &[x, small])?;
            let factor = std::f64::consts::SQRT_2 * std::f64::consts::FRAC_2_SQRT_PI;
            if cx.elem(x) == Some(Elem::F64) {
                // As eager, whose zeros for negative x nothing more precise corrects.
                let argument = cx.map_number(ScalarFn::Mul, sum, 0.5 * factor)?;
                let inner = cx.map(ScalarFn::Tanh, &[argument])?;
                return gelu_of(cx, x, inner);
            }
            // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)): one exponential, and no cancellation for negative x.
            gated(cx, x, sum, factor)
        }),
        _ => None,
    }
}

/// `0.5 * x * (1 + inner)`.
fn gelu_of(cx: &mut Cx, x: ValueRef, inner: ValueRef) -> Option<ValueRef> {
    let half = cx.map_number(ScalarFn::Mul, x, 0.5)?;
    let above = cx.map_number(ScalarFn::Add, inner, 1.0)?;
    cx.map(ScalarFn::Mul, &[half, above])
}

/// `x / (1 + exp(-x))`.
fn silu(cx: &mut Cx, x: ValueRef) -> Option<ValueRef> {
    gated(cx, x, x, 1.0)
}

/// `x / (1 + exp(-factor * v))`.
fn gated(cx: &mut Cx, x: ValueRef, v: ValueRef, factor: f64) -> Option<ValueRef> {
    let negative = match factor {
        1.0 => cx.map(ScalarFn::Neg, &[v])?,
        _ => cx.map_number(ScalarFn::Mul, v, -factor)?,
    };
    let exponential = cx.map(ScalarFn::Exp, &[negative])?;
    let below = cx.map_number(ScalarFn::Add, exponential, 1.0)?;
    cx.map(ScalarFn::Div, &[x, below])
}

/// `x * tanh(log1p(exp(x)))`.
fn mish(cx: &mut Cx, x: ValueRef) -> Option<ValueRef> {
    let exponential = cx.map(ScalarFn::Exp, &[x])?;
    let softplus = cx.map(ScalarFn::Log1p, &[exponential])?;
    let gate = cx.map(ScalarFn::Tanh, &[softplus])?;
    cx.map(ScalarFn::Mul, &[x, gate])
}

/// `min(x, 0) - log1p(exp(-|x|))`.
pub(super) fn log_sigmoid(cx: &mut Cx, x: ValueRef) -> Option<ValueRef> {
    let magnitude = cx.map(ScalarFn::Abs, &[x])?;
    let negative = cx.map(ScalarFn::Neg, &[magnitude])?;
    let exponential = cx.map(ScalarFn::Exp, &[negative])?;
    let rest = cx.map(ScalarFn::Log1p, &[exponential])?;
    let low = cx.map_number(ScalarFn::Min, x, 0.0)?;
    cx.map(ScalarFn::Sub, &[low, rest])
}

/// `min(max(x + 3, 0), 6)`.
fn hard_gate(cx: &mut Cx, x: ValueRef) -> Option<ValueRef> {
    let shifted = cx.map_number(ScalarFn::Add, x, 3.0)?;
    let low = cx.map_number(ScalarFn::Max, shifted, 0.0)?;
    cx.map_number(ScalarFn::Min, low, 6.0)
}

/// A sixth; on a GPU libtorch multiplies by that of `f32`, in `f64` too.
fn sixth(cx: &mut Cx, x: ValueRef) -> Option<ValueRef> {
    match cx.device {
        Device::Cpu => cx.map_number(ScalarFn::Div, x, 6.0),
        _ => cx.map_number(ScalarFn::Mul, x, f64::from(1.0f32 / 6.0)),
    }
}

fn hardswish(cx: &mut Cx, x: ValueRef) -> Option<ValueRef> {
    let gate = hard_gate(cx, x)?;
    let product = cx.map(ScalarFn::Mul, &[x, gate])?;
    sixth(cx, product)
}

fn hardsigmoid(cx: &mut Cx, x: ValueRef) -> Option<ValueRef> {
    let gate = hard_gate(cx, x)?;
    sixth(cx, gate)
}

/// `x * scale` from 0 on, `expm1(x * input_scale) * alpha * scale` below.
fn exponential(cx: &mut Cx, x: ValueRef, alpha: f64, scale: f64, input_scale: f64) -> Option<ValueRef> {
    let times = |cx: &mut Cx, v: ValueRef, factor: f64| {
        if factor == 1.0 { Some(v) } else { cx.map_number(ScalarFn::Mul, v, factor) }
    };
    let inner = times(cx, x, input_scale)?;
    let curve = cx.map(ScalarFn::Expm1, &[inner])?;
    let low = times(cx, curve, alpha * scale)?;
    let high = times(cx, x, scale)?;
    if cx.device != Device::Cpu {
        // 0 is on the curve.
        let above = cx.map_number(ScalarFn::Gt, x, 0.0)?;
        return cx.select(above, high, low);
    }
    let below = cx.map_number(ScalarFn::Lt, x, 0.0)?;
    cx.select(below, low, high)
}

fn elu(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let number = |name| call.args.float(name).unwrap_or(1.0);
    let (alpha, scale, input_scale) = (number("alpha"), number("scale"), number("input_scale"));
    computed(cx, call, |cx, x| exponential(cx, x, alpha, scale, input_scale))
}

fn celu(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let alpha = call.args.float("alpha").unwrap_or(1.0);
    computed(cx, call, |cx, x| exponential(cx, x, alpha, 1.0, 1.0 / alpha))
}

/// `x` above 0, else `x * slope`.
fn sloped(cx: &mut Cx, x: ValueRef, slope: ValueRef) -> Option<ValueRef> {
    let low = cx.map(ScalarFn::Mul, &[x, slope])?;
    let above = cx.map_number(ScalarFn::Gt, x, 0.0)?;
    cx.select(above, x, low)
}

fn leaky_relu(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let slope = call.args.float("negative_slope").unwrap_or(0.01);
    computed(cx, call, |cx, x| {
        let slope = cx.elem(x).map(|elem| cx.number(elem, slope))?;
        sloped(cx, x, slope)
    })
}

/// Outside of training the slope is the middle of its range.
fn rrelu(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let slope = (call.args.float("lower")? + call.args.float("upper")?) / 2.0;
    if call.args.bool("training") != Some(false) {
        return None;
    }
    computed(cx, call, |cx, x| {
        let slope = cx.elem(x).map(|elem| cx.number(elem, slope))?;
        sloped(cx, x, slope)
    })
}

/// One slope per channel (dimension 1), or one for all.
fn prelu(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let weight = call.tensor("weight")?;
    computed(cx, call, |cx, x| {
        let weight = cx.widen(weight)?;
        let slope = match (call.name, cx.graph.ty(weight).numel(), cx.rank(x)) {
            ("_prelu_kernel", ..) => weight,
            (_, 1, _) => cx.reshape(weight, &[])?,
            (_, _, rank) if rank >= 2 => {
                let mut shape = vec![1; rank];
                shape[1] = cx.shape(x)[1];
                cx.reshape(weight, &shape)?
            }
            _ => return None,
        };
        sloped(cx, x, slope)
    })
}

fn softplus(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let beta = call.args.float("beta").unwrap_or(1.0);
    let limit = call.args.float("threshold").unwrap_or(20.0);
    computed(cx, call, |cx, x| {
        let scaled = cx.map_number(ScalarFn::Mul, x, beta)?;
        let exponential = cx.map(ScalarFn::Exp, &[scaled])?;
        let curve = cx.map(ScalarFn::Log1p, &[exponential])?;
        let curve = cx.map_number(ScalarFn::Div, curve, beta)?;
        let linear = cx.map_number(ScalarFn::Gt, scaled, limit)?;
        cx.select(linear, x, curve)
    })
}

fn threshold(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let elem = cx.elem(x)?;
    let value = cx.operand(call, "value", elem)?;
    let limit = cx.operand(call, "threshold", elem)?;
    let low = cx.map(ScalarFn::Le, &[x, limit])?;
    cx.select(low, value, x)
}

/// The first half times the logistic function of the second half.
fn glu(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let dim = wrap(call.args.int("dim").unwrap_or(-1), cx.rank(x))?;
    let half = *cx.shape(x).get(dim)? / 2;
    let (a, b) = (cx.slice(x, dim, 0, half, 1)?, cx.slice(x, dim, half, half, 1)?);
    let (a, b) = (cx.widen(a)?, cx.widen(b)?);
    let gate = cx.map(ScalarFn::Sigmoid, &[b])?;
    let value = cx.map(ScalarFn::Mul, &[a, gate])?;
    cx.cast(value, call.elem()?)
}

fn hardshrink(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let lambd = call.args.float("lambd").unwrap_or(0.5);
    let (above, below) = (cx.map_number(ScalarFn::Ge, x, -lambd)?, cx.map_number(ScalarFn::Le, x, lambd)?);
    let inside = cx.map(ScalarFn::And, &[above, below])?;
    let zero = cx.elem(x).map(|elem| cx.number(elem, 0.0))?;
    cx.select(inside, zero, x)
}

/// `x - lambd` above `lambd`, `x + lambd` below `-lambd`, else 0 (NaN for NaN).
fn softshrink(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let lambd = call.args.float("lambd").unwrap_or(0.5);
    computed(cx, call, |cx, x| {
        let (less, more) = (cx.map_number(ScalarFn::Sub, x, lambd)?, cx.map_number(ScalarFn::Add, x, lambd)?);
        let (above, below) =
            (cx.map_number(ScalarFn::Gt, x, lambd)?, cx.map_number(ScalarFn::Lt, x, -lambd)?);
        let mut middle = cx.map_number(ScalarFn::Mul, x, 0.0)?;
        if cx.device != Device::Cpu {
            // 0 without a sign; NaN stays.
            middle = cx.map_number(ScalarFn::Add, middle, 0.0)?;
        }
        let low = cx.select(below, more, middle)?;
        cx.select(above, less, low)
    })
}

fn dropout(_: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let idle = call.args.bool("train") == Some(false) || call.args.float("p") == Some(0.0);
    if idle { call.first() } else { None }
}
