//! Products of a matrix and one row, on a GPU.
//!
//! ```text
//! %2 = aten::linear(input=%0, weight=%1) : bf16[1,3072]   ->   %2 = cast %0 : f32[1,768]; %3 = cast %1 : f32[3072,768]
//!                                                              %4 = map mul(%2 broadcast, %3) : f32[3072,768]
//!                                                              %5 = reduce sum %4 [1] : f32[3072]
//! ```
//!
//! Such a product reads its weight once and does little else: it is a reduction of rows, bound by memory, which takes
//! bias, activation and residual with it. The library's kernels for it are made for more rows.

use tilefuse_block::{ReduceFn, ScalarFn};

use super::Registry;
use super::cx::{Call, Cx};
use crate::graph::ValueRef;
use crate::types::Device;

pub(super) fn register(r: &mut Registry) {
    r.one(&["linear"], linear);
}

/// `x wᵀ + b` for one row `x`; declines on a processor, where products have kernels of their own.
fn linear(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (x, weight, bias) = (call.tensor("input")?, call.tensor("weight")?, call.optional("bias")?);
    let elem = call.elem()?;
    let &[columns, depth] = &cx.shape(weight)[..] else { return None };
    let rows: i64 = call.out().shape.split_last()?.1.iter().product();
    let one = rows == 1 && columns > 1 && depth > 1;
    let along = cx.graph.ty(weight).strides.last() == Some(&1);
    let same = [Some(x), Some(weight), bias].into_iter().flatten().all(|v| cx.elem(v) == Some(elem));
    if !matches!(cx.device, Device::Cuda(_)) || !one || !along || !same || !elem.is_float() {
        return None;
    }
    let x = cx.reshape(x, &[1, depth])?;
    let x = cx.widen(x)?;
    let x = cx.broadcast(x, &[columns, depth])?;
    let weight = cx.widen(weight)?;
    let products = cx.map(ScalarFn::Mul, &[x, weight])?;
    let mut sum = cx.reduce(ReduceFn::Sum, products, &[1], false)?;
    if let Some(bias) = bias {
        let bias = cx.widen(bias)?;
        sum = cx.map(ScalarFn::Add, &[sum, bias])?;
    }
    let sum = cx.reshape(sum, &call.out().shape)?;
    cx.cast(sum, elem)
}
