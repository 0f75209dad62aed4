//! Normalisations: layer, group, instance, batch (with given statistics) and RMS.

use tilefuse_block::{Elem, Literal, ReduceFn, ScalarFn};

use super::cx::{Call, Cx, wide};
use super::reduce::{Moments, mean_and_variance, mean_of, widest};
use super::registry::Registry;
use crate::graph::ValueRef;
use crate::types::Device;

pub(super) fn register(r: &mut Registry) {
    r.many(&["layer_norm", "native_layer_norm"], layer_norm);
    r.many(&["group_norm", "native_group_norm"], group_norm);
    r.one(&["instance_norm"], instance_norm);
    r.many(&["batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training"], batch_norm);
    r.one(&["rms_norm"], rms_norm);
}

/// Results of a normalisation: the value, and the statistics where the call returns them.
fn results(cx: &mut Cx, call: &Call<'_>, value: ValueRef, statistics: &[ValueRef]) -> Option<Vec<ValueRef>> {
    let mut all = vec![cx.cast(value, call.elem()?)?];
    for (ty, &statistic) in call.outs.iter().skip(1).zip(statistics) {
        let shaped = cx.reshape(statistic, &ty.shape)?;
        all.push(cx.cast(shaped, ty.dtype.elem()?)?);
    }
    (all.len() == call.outs.len()).then_some(all)
}

/// `1 / sqrt(variance + eps)`.
fn inverse_deviation(cx: &mut Cx, variance: ValueRef, eps: f64) -> Option<ValueRef> {
    let sum = cx.map_number(ScalarFn::Add, variance, eps)?;
    cx.map(ScalarFn::Rsqrt, &[sum])
}

/// Mean, inverse deviation and deviations over dimensions, as a layer or group norm has them.
///
/// Where the squares of deviations leave their type, the inverse of an infinite deviation would make 0 of everything. Eager on
/// the host gives NaN, since it subtracts infinite moments of parts of a row from each other; on a GPU it gives 0.
fn statistics(cx: &mut Cx, call: &Call<'_>, x: ValueRef, dims: &[usize], eps: f64) -> Option<[ValueRef; 3]> {
    let Moments { mean, mut variance, deviation } = mean_and_variance(cx, call, x, dims, 0.0)?;
    if cx.device == Device::Cpu {
        variance = finite(cx, variance)?;
    }
    Some([mean, inverse_deviation(cx, variance, eps)?, deviation])
}

/// NaN in the place of an infinite variance.
fn finite(cx: &mut Cx, variance: ValueRef) -> Option<ValueRef> {
    let nothing = cx.map_number(ScalarFn::Mul, variance, 0.0)?;
    cx.map(ScalarFn::Add, &[variance, nothing])
}

/// `value * weight + bias`; both are in the given shape, in the value's type.
fn affine(
    cx: &mut Cx,
    mut value: ValueRef,
    weight: Option<ValueRef>,
    bias: Option<ValueRef>,
    shape: &[i64],
) -> Option<ValueRef> {
    for (function, parameter) in [(ScalarFn::Mul, weight), (ScalarFn::Add, bias)] {
        if let Some(parameter) = parameter {
            let parameter = cx.cast(parameter, cx.elem(value)?)?;
            let parameter = cx.reshape(parameter, shape)?;
            value = cx.map(function, &[value, parameter])?;
        }
    }
    Some(value)
}

/// The trailing dimensions that `normalized_shape` names.
fn trailing(cx: &Cx, call: &Call<'_>, x: ValueRef) -> Option<(Vec<usize>, Vec<i64>)> {
    let sizes = call.args.ints("normalized_shape")?;
    let rank = cx.rank(x);
    let first = rank.checked_sub(sizes.len())?;
    (cx.shape(x)[first..] == sizes[..]).then(|| ((first..rank).collect(), sizes))
}

fn layer_norm(cx: &mut Cx, call: &Call<'_>) -> Option<Vec<ValueRef>> {
    let x = call.tensor("input")?;
    let (dims, sizes) = trailing(cx, call, x)?;
    let eps = call.args.float("eps").unwrap_or(1e-5);
    let x = cx.widen(x)?;
    if cx.graph.ty(x).numel() == 0 && call.outs.len() > 1 {
        // The mean of nothing is 0 here.
        return None;
    }
    let [mean, inverse, deviation] = statistics(cx, call, x, &dims, eps)?;
    let normal = cx.map(ScalarFn::Mul, &[deviation, inverse])?;
    let value = affine(cx, normal, call.optional("weight")?, call.optional("bias")?, &sizes)?;
    results(cx, call, value, &[mean, inverse])
}

/// Channels are dimension 1; those of a group and all positions are normalised together.
fn group_norm(cx: &mut Cx, call: &Call<'_>) -> Option<Vec<ValueRef>> {
    let x = call.tensor("input")?;
    let groups = call.args.int("num_groups").or_else(|| call.args.int("group")).filter(|&g| g > 0)?;
    let eps = call.args.float("eps").unwrap_or(1e-5);
    let shape = cx.shape(x);
    let (&n, &channels) = (shape.first()?, shape.get(1)?);
    let x = cx.widen(x)?;
    if channels % groups != 0 || cx.graph.ty(x).numel() == 0 {
        return None;
    }
    // Positions apart from channels, which may lie the other way round in memory.
    let positions = cx.graph.ty(x).numel() / (n * channels);
    let grouped = cx.reshape(x, &[n, groups, channels / groups, positions])?;
    let [mean, inverse, deviation] = statistics(cx, call, grouped, &[2, 3], eps)?;
    let normal = cx.map(ScalarFn::Mul, &[deviation, inverse])?;
    let normal = cx.reshape(normal, &shape)?;
    let value = affine(cx, normal, call.optional("weight")?, call.optional("bias")?, &per_channel(&shape))?;
    results(cx, call, value, &[mean, inverse])
}

/// The shape in which a vector of channels meets a tensor.
fn per_channel(shape: &[i64]) -> Vec<i64> {
    (0..shape.len()).map(|d| if d == 1 { shape[1] } else { 1 }).collect()
}

/// Each channel of each sample by its own statistics.
fn instance_norm(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("input")?;
    let own = call.args.bool("use_input_stats") == Some(true) && call.args.absent("running_mean");
    let shape = cx.shape(x);
    if !own || shape.len() < 2 {
        return None;
    }
    let dims: Vec<usize> = (2..shape.len()).collect();
    let x = cx.widen(x)?;
    let elem = call.elem()?;
    // Eager takes the statistics of a batch norm, on the host in the wider type.
    let summed = widest(cx, x)?;
    let Moments { mean, mut variance, .. } = mean_and_variance(cx, call, summed, &dims, 0.0)?;
    if cx.device != Device::Cpu {
        variance = finite(cx, variance)?;
    }
    let eps = call.args.float("eps")?;
    let mut inverse = inverse_deviation(cx, variance, eps)?;
    if eps == 0.0 && cx.device == Device::Cpu {
        // There the statistics of a batch norm have 0 for the inverse of no deviation; on a GPU it is infinite.
        let none = cx.map_number(ScalarFn::Eq, variance, 0.0)?;
        let zero = cx.elem(inverse).map(|elem| cx.number(elem, 0.0))?;
        inverse = cx.select(none, zero, inverse)?;
    }
    let (mean, inverse) = (cx.cast(mean, wide(elem))?, cx.cast(inverse, wide(elem))?);
    let deviation = cx.map(ScalarFn::Sub, &[x, mean])?;
    let normal = cx.map(ScalarFn::Mul, &[deviation, inverse])?;
    let value = affine(cx, normal, call.optional("weight")?, call.optional("bias")?, &per_channel(&shape))?;
    cx.cast(value, call.elem()?)
}

/// With given statistics: `x * scale + shift`, where both are made per channel first.
fn batch_norm(cx: &mut Cx, call: &Call<'_>) -> Option<Vec<ValueRef>> {
    let x = call.tensor("input")?;
    let fixed =
        call.name == "_native_batch_norm_legit_no_training" || call.args.bool("training") == Some(false);
    let (mean, variance) = (call.tensor("running_mean")?, call.tensor("running_var")?);
    let eps = call.args.float("eps")?;
    let shape = cx.shape(x);
    if !fixed || shape.len() < 2 {
        return None;
    }
    let x = cx.widen(x)?;
    let elem = cx.elem(x)?;
    let (mean, variance) = (cx.cast(mean, elem)?, cx.cast(variance, elem)?);
    let mut scale = inverse_deviation(cx, variance, eps)?;
    if let Some(weight) = call.optional("weight")? {
        let weight = cx.cast(weight, elem)?;
        scale = cx.map(ScalarFn::Mul, &[scale, weight])?;
    }
    let moved = cx.map(ScalarFn::Mul, &[mean, scale])?;
    let mut shift = cx.map(ScalarFn::Neg, &[moved])?;
    if let Some(bias) = call.optional("bias")? {
        let bias = cx.cast(bias, elem)?;
        shift = cx.map(ScalarFn::Sub, &[bias, moved])?;
    }
    let value = affine(cx, x, Some(scale), Some(shift), &per_channel(&shape))?;
    let mut all = vec![cx.cast(value, call.elem()?)?];
    for ty in &call.outs[1..] {
        if ty.numel() != 0 {
            return None;
        }
        all.push(cx.full(Literal::of(ty.dtype.elem()?, 0.0), &ty.shape)?);
    }
    Some(all)
}

/// `x / sqrt(mean(x²) + eps) * weight`.
fn rms_norm(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("input")?;
    let (dims, sizes) = trailing(cx, call, x)?;
    let eps = match (call.args.float("eps"), cx.elem(x)?) {
        (Some(eps), _) => eps,
        (None, Elem::F32) => f64::from(f32::EPSILON),
        (None, Elem::F64) => f64::EPSILON,
        (None, _) => return None,
    };
    let x = cx.cast(x, wide(call.elem()?))?;
    let square = cx.map(ScalarFn::Mul, &[x, x])?;
    let mean = if cx.device == Device::Cpu {
        mean_of(cx, square, &dims, true)?
    } else {
        // libtorch's mean of squares is within the type wherever they are, and NaN where one is infinite, but for rows of vectors of four.
        let count: i64 = dims.iter().map(|&d| cx.shape(x)[d]).product();
        let part = cx.map_number(ScalarFn::Mul, square, 1.0 / count.max(1) as f64)?;
        let mean = cx.reduce(ReduceFn::Sum, part, &dims, true)?;
        if count % 4 == 0 && call.elem()? != Elem::F64 { mean } else { finite(cx, mean)? }
    };
    let inverse = inverse_deviation(cx, mean, eps)?;
    let normal = cx.map(ScalarFn::Mul, &[x, inverse])?;
    let value = affine(cx, normal, call.optional("weight")?, None, &sizes)?;
    cx.cast(value, call.elem()?)
}
