//! Pooling over windows: as many strided slices as a window has elements, combined element by element.
//!
//! ```text
//! aten::max_pool2d %0, kernel [1, 2]   ->   map max (slice %0 from 0 step 2), (slice %0 from 1 step 2)
//! ```
//!
//! What reads such a result reads each element of a window where it lies, so that pooling needs no memory of its own.
//! Averages are sums of these, divided by how many elements count, which is a number unless windows leave the image.

use tilefuse_block::{Elem, Literal, ScalarFn};

use super::cx::{Call, Cx, wide};
use super::registry::Registry;
use crate::graph::ValueRef;

/// Elements of a window above which libtorch's loops are left to it.
const MAX_WINDOW: i64 = 16;

pub(super) fn register(r: &mut Registry) {
    r.one(&["max_pool1d", "max_pool2d", "max_pool3d"], max_pool);
    r.one(&["avg_pool1d", "avg_pool2d", "avg_pool3d"], average_pool);
}

/// An axis of a window.
struct Axis {
    kernel: i64,
    stride: i64,
    padding: i64,
    dilation: i64,
    out: i64,
}

impl Axis {
    /// How many elements of each window lie in an image of this size, those of the padding among them or not.
    fn counts(&self, size: i64, padded: bool) -> Vec<i64> {
        let window = |at: i64| {
            let first = at * self.stride - self.padding;
            let end = (first + self.kernel).min(size + self.padding);
            if padded { end - first } else { end.min(size) - first.max(0) }
        };
        (0..self.out).map(window).collect()
    }
}

fn max_pool(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let elem = call.elem().filter(|e| e.is_float() && cx.elem(x) == Some(*e))?;
    let axes = axes(cx, x, call)?;
    windows(cx, x, call, &axes, ScalarFn::Max, Literal::float(elem, f64::NEG_INFINITY))
}

fn average_pool(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let elem = call.elem().filter(|e| e.is_float() && cx.elem(x) == Some(*e))?;
    let axes = axes(cx, x, call).filter(|axes| axes.iter().all(|axis| axis.dilation == 1))?;
    let padded = call.args.absent("count_include_pad") || call.args.bool("count_include_pad")?;
    let divisor = match call.args.absent("divisor_override") {
        true => None,
        false => Some(call.args.int("divisor_override").filter(|&n| n != 0)?),
    };
    let x = cx.widen(x)?;
    let sum = windows(cx, x, call, &axes, ScalarFn::Add, Literal::float(wide(elem), 0.0))?;
    let (shape, size) = (cx.shape(sum), cx.shape(x));
    let lead = shape.len().checked_sub(axes.len())?;
    let counts: Vec<Vec<i64>> =
        axes.iter().zip(&size[lead..]).map(|(axis, &size)| axis.counts(size, padded)).collect();
    let same =
        counts.iter().map(|counts| counts.first().copied().filter(|first| counts.iter().all(|n| n == first)));
    let number = divisor.or_else(|| same.collect::<Option<Vec<i64>>>().map(|all| all.iter().product()));
    let average = match number {
        Some(number) => cx.map_number(ScalarFn::Div, sum, number as f64)?,
        None => {
            let mut all = None;
            for (d, (axis, &size)) in axes.iter().zip(&size[lead..]).enumerate() {
                let counts = counted(cx, axis, size, padded, (&shape, lead + d))?;
                all = Some(match all {
                    Some(others) => cx.map(ScalarFn::Mul, &[others, counts])?,
                    None => counts,
                });
            }
            let all = cx.cast(all?, wide(elem))?;
            cx.map(ScalarFn::Div, &[sum, all])?
        }
    };
    cx.cast(average, elem)
}

/// [`Axis::counts`] along a dimension of a shape.
fn counted(
    cx: &mut Cx,
    axis: &Axis,
    size: i64,
    padded: bool,
    (shape, dim): (&[i64], usize),
) -> Option<ValueRef> {
    let at = cx.iota(Elem::I64, shape, dim);
    let first = cx.map_number(ScalarFn::Mul, at, axis.stride as f64)?;
    let first = cx.map_number(ScalarFn::Sub, first, axis.padding as f64)?;
    let end = cx.map_number(ScalarFn::Add, first, axis.kernel as f64)?;
    let last = if padded { size + axis.padding } else { size };
    let end = cx.map_number(ScalarFn::Min, end, last as f64)?;
    let first = if padded { first } else { cx.map_number(ScalarFn::Max, first, 0.0)? };
    cx.map(ScalarFn::Sub, &[end, first])
}

/// The elements of each window combined, first ones first; what lies outside of the image is one number.
fn windows(
    cx: &mut Cx,
    x: ValueRef,
    call: &Call<'_>,
    axes: &[Axis],
    combine: ScalarFn,
    outside: Literal,
) -> Option<ValueRef> {
    let taps = axes.iter().try_fold(1i64, |all, axis| all.checked_mul(axis.kernel))?;
    if taps > MAX_WINDOW || call.out().numel() == 0 {
        return None;
    }
    let shape = cx.shape(x);
    let lead = shape.len().checked_sub(axes.len())?;
    // Windows may reach beyond the padding, where they are rounded up.
    let (mut low, mut padded) = (vec![0; lead], shape.to_vec());
    for (axis, size) in axes.iter().zip(&mut padded[lead..]) {
        low.push(axis.padding);
        let reach = (axis.out - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1;
        *size = (*size + axis.padding).max(reach);
    }
    let x = cx.pad(x, &low, &padded, outside)?;
    let mut found = None;
    for tap in 0..taps {
        let (mut part, mut rest) = (x, tap);
        for (d, axis) in axes.iter().enumerate().rev() {
            let start = rest % axis.kernel * axis.dilation;
            rest /= axis.kernel;
            part = cx.slice(part, lead + d, start, axis.out, axis.stride)?;
        }
        found = Some(match found {
            Some(all) => cx.map(combine, &[all, part])?,
            None => part,
        });
    }
    found
}

/// The axes of a call's windows, outermost first.
fn axes(cx: &Cx, x: ValueRef, call: &Call<'_>) -> Option<Vec<Axis>> {
    let rank = match call.name {
        "max_pool1d" | "avg_pool1d" => 1,
        "max_pool2d" | "avg_pool2d" => 2,
        _ => 3,
    };
    let list = |name: &str, default: &[i64]| -> Option<Vec<i64>> {
        let given = if call.args.get(name).is_none() { Vec::new() } else { call.args.ints(name)? };
        let list = if given.is_empty() { default.to_vec() } else { given };
        match list.len() {
            1 => Some(vec![list[0]; rank]),
            n if n == rank => Some(list),
            _ => None,
        }
    };
    let kernel = list("kernel_size", &[])?;
    let (stride, padding, dilation) =
        (list("stride", &kernel)?, list("padding", &[0])?, list("dilation", &[1])?);
    let (shape, out) = (cx.shape(x), &call.out().shape);
    let lead = shape.len().checked_sub(rank).filter(|lead| (1..=2).contains(lead))?;
    if out.len() != shape.len() || out[..lead] != shape[..lead] {
        return None;
    }
    let axis = |d: usize| {
        let axis = Axis {
            kernel: kernel[d],
            stride: stride[d],
            padding: padding[d],
            dilation: dilation[d],
            out: out[lead + d],
        };
        let sizes = [axis.kernel, axis.stride, axis.dilation];
        (sizes.iter().all(|&n| (1..1 << 20).contains(&n)) && (0..1 << 20).contains(&axis.padding))
            .then_some(axis)
    };
    (0..rank).map(axis).collect()
}
