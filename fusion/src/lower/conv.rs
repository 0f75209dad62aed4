//! Convolutions: contractions of windows and a weight, with bias and rounding as maps behind them.
//!
//! ```text
//! %3 = aten::conv2d(input=%0, weight=%1, bias=%2,   ->   %3 = view pad[0,0,1,1]=0.0(%0) : f32[2,3,10,10]
//!      padding=[1,1], ...) : f32[2,4,8,8]                %4 = view window[2,3] kernel[3,3] ...(%3) : f32[2,3,8,8,3,3]
//!                                                        %5 = contract sum[1,4,5]x[1,2,3](%4, %1) : f32[2,8,8,4]
//!                                                        %6 = view permute[0,3,1,2](%5) : f32[2,4,8,8]
//!                                                        %7 = map add(%6, %2 broadcast) : f32[2,4,8,8]
//! ```
//!
//! A transposed convolution has zeros between the elements of its images, and a flipped weight; what it cuts off its result is
//! not windowed. Empty tensors and tensors of different types, which libtorch treats by rules of its own, are left to it.

use tilefuse_block::{Elem, Literal, ScalarFn};

use super::cx::{Call, Cx};
use super::registry::Registry;
use crate::contraction::{Window, accumulator};
use crate::convolution::{ConvArgs, ConvDims};
use crate::graph::ValueRef;
use crate::types::{Device, Dims};

pub(super) fn register(r: &mut Registry) {
    r.one(&["conv1d", "conv2d", "conv3d", "convolution"], convolution);
    r.one(&["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"], convolution);
    // What TorchScript's traces call.
    r.one(&["_convolution"], |cx, call| if is_plain(call) { convolution(cx, call) } else { None });
}

/// Whether a call asks for no other convolution of cuDNN than libtorch takes by itself: on a GPU it may exclude cuDNN, kernels
/// whose sums are in another order each time, and TF32.
fn is_plain(call: &Call<'_>) -> bool {
    let says = |name: &str, value: bool| call.args.absent(name) || call.args.bool(name) == Some(value);
    let tf32 = call.elem() != Some(Elem::F32) || says("allow_tf32", true);
    !matches!(call.out().device, Device::Cuda(_))
        || (tf32 && says("cudnn_enabled", true) && says("deterministic", false))
}

fn convolution(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (images, weight, bias) = (call.tensor("input")?, call.tensor("weight")?, call.optional("bias")?);
    let elem = call.elem().filter(|&elem| elem.is_float() || accumulator(elem) == Some(elem))?;
    let tensors = [Some(images), Some(weight), bias];
    let plain = |value: &ValueRef| cx.elem(*value) == Some(elem) && cx.graph.ty(*value).numel() > 0;
    if !tensors.iter().flatten().all(plain)
        || !matches!(call.overload, "" | "padding" | "input" | "deprecated")
    {
        return None;
    }
    let (shape, kernel) = (cx.shape(images), cx.shape(weight).get(2..)?.to_vec());
    let args = ConvArgs::of(&format!("aten::{}", call.name), call.args, &kernel)?;
    let lead = shape.len().checked_sub(kernel.len() + 1).filter(|&lead| lead <= 1)?;
    let grouped = args.groups > 1;
    let dims = ConvDims { lead, grouped, axes: kernel.len(), transposed: args.transposed };
    let windows = windows(cx, call, images, &kernel, lead, &args)?;
    let windows = in_groups(cx, windows, lead, args.groups)?;
    let weight = match args.transposed {
        true => cx.flip(weight, (2..kernel.len() + 2).collect())?,
        false => weight,
    };
    let weight = in_groups(cx, weight, 0, args.groups)?;
    let sums = cx.contract_pairs(windows, weight, dims.pairs())?;
    result(cx, call, sums, &dims, bias)
}

/// The windows of the images.
fn windows(
    cx: &mut Cx,
    call: &Call<'_>,
    images: ValueRef,
    kernel: &[i64],
    lead: usize,
    args: &ConvArgs,
) -> Option<ValueRef> {
    let image = match args.transposed {
        true => spread(cx, call, images, kernel, lead, args)?,
        false => {
            let mut shape = cx.shape(images);
            let mut low = Dims::from_elem(0, shape.len());
            for (d, [before, behind]) in args.padding.iter().enumerate() {
                low[lead + 1 + d] = *before;
                shape[lead + 1 + d] = shape[lead + 1 + d].checked_add(before + behind)?;
            }
            cx.pad(images, &low, &shape, Literal::of(call.elem()?, 0.0))?
        }
    };
    let window = |d: usize| Window {
        dim: (lead + 1 + d) as u8,
        kernel: kernel[d],
        stride: if args.transposed { 1 } else { args.stride[d] },
        dilation: args.dilation[d],
    };
    cx.windows(image, &(0..kernel.len()).map(window).collect::<Vec<_>>())
}

/// The images with zeros between their elements, and as many around them as the windows of the result take.
fn spread(
    cx: &mut Cx,
    call: &Call<'_>,
    images: ValueRef,
    kernel: &[i64],
    lead: usize,
    args: &ConvArgs,
) -> Option<ValueRef> {
    let mut shape = cx.shape(images);
    let mut low = Dims::from_elem(0, shape.len());
    let mut interior = low.clone();
    // What begins before the images' first zero, and where the windows end.
    let mut cut = Vec::new();
    for (axis, dim) in (lead + 1..shape.len()).enumerate() {
        let reach = args.dilation[axis].checked_mul(kernel[axis] - 1)?;
        let [before, behind] = args.padding[axis].map(|n| reach - n);
        let behind = behind + args.output_padding[axis];
        let length = (shape[dim] - 1).checked_mul(args.stride[axis])?.checked_add(1)?;
        low[dim] = before.max(0);
        interior[dim] = args.stride[axis] - 1;
        shape[dim] = length.checked_add(low[dim])?.checked_add(behind.max(0))?;
        cut.push((dim, (-before).max(0), length.checked_add(before)?.checked_add(behind)?));
    }
    let zero = Literal::of(call.elem()?, 0.0);
    let mut image = cx.pad_apart(images, &low, &interior, &shape, zero)?;
    for (dim, start, length) in cut {
        image = cx.slice(image, dim, start, length, 1)?;
    }
    Some(image)
}

/// A value with a dimension of its channels split into groups, if there are several.
fn in_groups(cx: &mut Cx, value: ValueRef, dim: usize, groups: i64) -> Option<ValueRef> {
    let mut shape = cx.shape(value);
    if groups == 1 {
        return Some(value);
    }
    let channels = shape.get_mut(dim).filter(|n| **n % groups == 0)?;
    *channels /= groups;
    shape.insert(dim, groups);
    cx.reshape(value, &shape)
}

/// The sums in the order of a convolution's result, with the bias, in the result's type.
fn result(
    cx: &mut Cx,
    call: &Call<'_>,
    sums: ValueRef,
    dims: &ConvDims,
    bias: Option<ValueRef>,
) -> Option<ValueRef> {
    let out = call.out();
    let (order, grouped) = (dims.order(), usize::from(dims.grouped));
    let filters = cx.shape(sums).last()? * if dims.grouped { cx.shape(sums)[0] } else { 1 };
    // They lie in memory as the result does.
    let mut strides = out.strides.clone();
    if dims.grouped {
        let of_group = strides.get(dims.lead)? * cx.shape(sums).last()?;
        strides.insert(dims.lead, of_group);
    }
    if strides.len() != order.len() {
        return None;
    }
    for (&dim, &stride) in order.iter().zip(&strides) {
        cx.graph.node_mut(sums.node).outs[0].strides[usize::from(dim)] = stride;
    }
    let mut value = cx.permute(sums, &order.iter().map(|&d| usize::from(d)).collect::<Vec<_>>())?;
    let mut shape = cx.shape(value);
    shape.drain(dims.lead..dims.lead + grouped);
    shape[dims.lead] = filters;
    if shape != out.shape {
        return None;
    }
    value = cx.reshape(value, &shape)?;
    if let Some(bias) = bias {
        if cx.shape(bias).as_slice() != [filters] {
            return None;
        }
        let ones = std::iter::repeat_n(1, dims.axes);
        let bias = cx.reshape(bias, &[filters].into_iter().chain(ones).collect::<Dims>())?;
        let bias = cx.cast(bias, cx.elem(value)?)?;
        value = cx.map(ScalarFn::Add, &[value, bias])?;
    }
    cx.cast(value, call.elem()?)
}
