//! Strides over a flat tensor, as `as_strided` has them over a storage:
//!
//! ```text
//! as_strided(x, size=[2,3], stride=[4,1], storage_offset=1)
//!   ->   the elements 1.. of x, as many as two rows of four; in rows of four; the first three of each
//! ```
//!
//! Where dimensions do not lie within each other, as in windows that overlap, the elements are gathered.

use tilefuse_block::{Elem, Literal, ScalarFn};

use super::cx::{Call, Cx};
use super::registry::Registry;
use crate::graph::ValueRef;
use crate::types::index_elem;

pub(super) fn register(r: &mut Registry) {
    r.one(&["as_strided"], as_strided);
    r.one(&["as_strided_scatter"], as_strided_scatter);
}

/// A dimension of more than one element.
#[derive(Clone, Copy)]
struct Axis {
    stride: i64,
    size: i64,
    /// Its position among the dimensions.
    dim: usize,
}

/// Strides and sizes of a call over a flat tensor.
struct Strides {
    /// From the largest stride to the smallest.
    axes: Vec<Axis>,
    offset: i64,
}

impl Strides {
    /// Those of a call; `None` where they are not understood.
    fn of(call: &Call<'_>) -> Option<Strides> {
        let (size, stride) = (call.args.ints("size")?, call.args.ints("stride")?);
        if size.len() != stride.len() || stride.iter().any(|&s| s < 0) {
            return None;
        }
        let all = (0..size.len()).map(|dim| Axis { stride: stride[dim], size: size[dim], dim });
        let mut axes: Vec<Axis> = all.filter(|axis| axis.size > 1 && axis.stride > 0).collect();
        axes.sort_by_key(|axis| std::cmp::Reverse(axis.stride));
        Some(Strides { axes, offset: call.args.int("storage_offset").filter(|&offset| offset >= 0)? })
    }

    /// Whether each dimension lies within one step of the next larger one.
    fn are_nested(&self) -> bool {
        let within = |pair: &[Axis]| {
            let [outer, inner] = pair else { return false };
            let extent = inner.stride.checked_mul(inner.size);
            outer.stride % inner.stride == 0 && extent.is_some_and(|extent| extent <= outer.stride)
        };
        self.axes.windows(2).all(within)
    }

    /// Sizes, from the largest stride to the smallest.
    fn sizes(&self) -> Vec<i64> {
        self.axes.iter().map(|axis| axis.size).collect()
    }

    /// The axes in the order of their dimensions, as positions in that of their strides.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.axes.len()).collect();
        order.sort_by_key(|&at| self.axes[at].dim);
        order
    }
}

fn as_strided(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let (shape, elem) = (&call.out().shape, call.elem()?);
    if call.out().numel() == 0 {
        return cx.full(Literal::of(elem, 0.0), shape);
    }
    let strides = Strides::of(call)?;
    let flat = cx.reshape(x, &[cx.graph.ty(x).numel()])?;
    let value = match strides.are_nested() {
        true => nested(cx, flat, &strides)?,
        false => gathered(cx, flat, &strides)?,
    };
    let repeats = |dim: usize| strides.axes.iter().all(|axis| axis.dim != dim);
    let once: Vec<i64> = (0..shape.len()).map(|dim| if repeats(dim) { 1 } else { shape[dim] }).collect();
    let value = cx.reshape(value, &once)?;
    cx.broadcast(value, shape)
}

/// The elements as slices of rows within rows, in the order of the dimensions.
fn nested(cx: &mut Cx, flat: ValueRef, strides: &Strides) -> Option<ValueRef> {
    let length = *cx.shape(flat).first()?;
    if let [axis] = strides.axes[..] {
        return cx.slice(flat, 0, strides.offset, axis.size, axis.stride);
    }
    let mut value = cx.slice(flat, 0, strides.offset, length - strides.offset, 1)?;
    let mut shape = Vec::new();
    for axis in &strides.axes {
        value = fitted(cx, value, axis.stride.checked_mul(axis.size)?)?;
        shape.push(axis.size);
        let rows: Vec<i64> = shape.iter().copied().chain([axis.stride]).collect();
        value = cx.reshape(value, &rows)?;
    }
    value = cx.slice(value, shape.len(), 0, 1, 1)?;
    value = cx.reshape(value, &shape)?;
    cx.permute(value, &strides.order())
}

/// As many elements along the last dimension: some left out, or zeros after them.
fn fitted(cx: &mut Cx, value: ValueRef, length: i64) -> Option<ValueRef> {
    let mut shape = cx.shape(value);
    let last = shape.len().checked_sub(1)?;
    if shape[last] >= length {
        return cx.slice(value, last, 0, length, 1);
    }
    shape[last] = length;
    let zero = Literal::of(cx.elem(value)?, 0.0);
    cx.pad(value, &vec![0; shape.len()], &shape, zero)
}

/// The elements by their positions, in the order of the dimensions.
fn gathered(cx: &mut Cx, flat: ValueRef, strides: &Strides) -> Option<ValueRef> {
    let length = *cx.shape(flat).first()?;
    let elem = index_elem(length);
    let axes: Vec<Axis> = strides.order().into_iter().map(|at| strides.axes[at]).collect();
    let shape: Vec<i64> = axes.iter().map(|axis| axis.size).collect();
    let mut position = cx.literal(Literal::int(elem, strides.offset));
    for (dim, axis) in axes.iter().enumerate() {
        let (steps, stride) = (cx.iota(elem, &shape, dim), cx.literal(Literal::int(elem, axis.stride)));
        let distance = cx.map(ScalarFn::Mul, &[steps, stride])?;
        position = cx.map(ScalarFn::Add, &[position, distance])?;
    }
    let index = cx.reshape(position, &[shape.iter().product()])?;
    let value = cx.gather(flat, 0, index)?;
    cx.reshape(value, &shape)
}

fn as_strided_scatter(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (x, source) = (call.tensor("self")?, call.tensor("src")?);
    let elem = call.elem()?;
    if cx.graph.ty(source).numel() == 0 {
        return Some(x);
    }
    let strides = Strides::of(call)?;
    let written: i64 = strides.sizes().iter().product();
    if !strides.are_nested() || written != cx.graph.ty(source).numel() {
        return None;
    }
    let length = cx.graph.ty(x).numel();
    let flat = cx.reshape(x, &[length])?;
    let source = cx.cast(source, elem)?;
    let ordered: Vec<i64> = strides.order().iter().map(|&at| strides.axes[at].size).collect();
    let source = cx.reshape(source, &ordered)?;
    let mut by_stride = vec![0; ordered.len()];
    strides.order().iter().enumerate().for_each(|(i, &at)| by_stride[at] = i);
    let source = cx.permute(source, &by_stride)?;
    let everywhere = cx.full(Literal::int(Elem::Bool, 1), &strides.sizes())?;
    let (spread, inside) = (spread(cx, source, &strides, length)?, spread(cx, everywhere, &strides, length)?);
    let value = cx.select(inside, spread, flat)?;
    let shape = cx.shape(x);
    cx.reshape(value, &shape)
}

/// Elements at their positions in a flat tensor of this length, zeros elsewhere.
fn spread(cx: &mut Cx, value: ValueRef, strides: &Strides, length: i64) -> Option<ValueRef> {
    let mut shape = strides.sizes();
    shape.push(1);
    let mut value = cx.reshape(value, &shape)?;
    for axis in strides.axes.iter().rev() {
        value = fitted(cx, value, axis.stride)?;
        shape.pop();
        *shape.last_mut()? = axis.stride.checked_mul(axis.size)?;
        value = cx.reshape(value, &shape)?;
    }
    let zero = Literal::of(cx.elem(value)?, 0.0);
    let rest = length.checked_sub(strides.offset)?;
    let value = if *shape.first()? > rest { fitted(cx, value, rest)? } else { value };
    cx.pad(value, &[strides.offset], &[length], zero)
}
