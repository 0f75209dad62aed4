//! Reads at indices that are data.

use tilefuse_block::{Elem, Literal, ScalarFn};

use super::cx::{Call, Cx};
use super::registry::Registry;
use crate::args::wrap;
use crate::graph::ValueRef;

pub(super) fn register(r: &mut Registry) {
    r.one(&["embedding"], embedding);
    r.one(&["index_select"], index_select);
    r.one(&["gather"], gather);
    r.one(&["take_along_dim"], take_along_dim);
    r.one(&["index"], index);
}

/// Elements of `source` along `dim` at each of `indices`, whose dimensions replace `dim`.
fn take(cx: &mut Cx, source: ValueRef, dim: usize, indices: ValueRef) -> Option<ValueRef> {
    let (shape, index_shape) = (cx.shape(source), cx.shape(indices));
    let count = cx.graph.ty(indices).numel();
    let mut column = vec![1; shape.len()];
    *column.get_mut(dim)? = count;
    let mut wide = shape.clone();
    wide[dim] = count;
    let column = cx.reshape(indices, &column)?;
    let column = cx.broadcast(column, &wide)?;
    let found = cx.gather(source, dim, column)?;
    let mut result = shape[..dim].to_vec();
    result.extend_from_slice(&index_shape);
    result.extend_from_slice(&shape[dim + 1..]);
    cx.reshape(found, &result)
}

fn embedding(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    take(cx, call.tensor("weight")?, 0, call.tensor("indices")?)
}

fn index_select(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let dim = wrap(call.args.int("dim")?, cx.rank(x)).filter(|&d| d < cx.rank(x))?;
    let value = take(cx, x, dim, call.tensor("index")?)?;
    cx.reshape(value, &call.out().shape)
}

/// The index may be smaller than the source in the other dimensions.
fn gather(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    along(cx, x, call.args.int("dim")?, index)
}

fn along(cx: &mut Cx, mut x: ValueRef, dim: i64, index: ValueRef) -> Option<ValueRef> {
    let shape = cx.shape(index);
    if shape.len() != cx.rank(x) || shape.is_empty() {
        return None;
    }
    let dim = wrap(dim, shape.len())?;
    for (d, &length) in shape.iter().enumerate().filter(|&(d, _)| d != dim) {
        x = cx.slice(x, d, 0, length, 1)?;
    }
    cx.gather(x, dim, index)
}

/// Indices count modulo the length, so that none is out of range.
fn take_along_dim(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (x, index, dim) = (call.tensor("self")?, call.tensor("indices")?, call.args.int("dim")?);
    let shape = call.out().shape.clone();
    let mut source = shape.clone();
    let at = wrap(dim, shape.len())?;
    *source.get_mut(at)? = *cx.shape(x).get(at)?;
    let (x, index) = (cx.broadcast(x, &source)?, cx.broadcast(index, &shape)?);
    let length = *source.get(at).filter(|&&length| length > 0)?;
    let length = cx.literal(Literal::int(cx.elem(index)?, length));
    let index = cx.map(ScalarFn::RemFloor, &[index, length])?;
    along(cx, x, dim, index)
}

/// One tensor of integers among the indices; negative ones count from the end.
fn index(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let list = call.args.tensors("indices")?;
    let mut present = list.iter().enumerate().filter_map(|(dim, slot)| slot.map(|t| (dim, t)));
    let (dim, position) = present.next()?;
    let indices = *call.operands.get(usize::from(position))?;
    let elem = cx.elem(indices)?;
    if present.next().is_some() || !matches!(elem, Elem::I64 | Elem::I32) {
        return None;
    }
    let size = *cx.shape(x).get(dim)?;
    let size = cx.literal(Literal::int(elem, size));
    let negative = cx.map_number(ScalarFn::Lt, indices, 0.0)?;
    let wrapped = cx.map(ScalarFn::Add, &[indices, size])?;
    let indices = cx.select(negative, wrapped, indices)?;
    take(cx, x, dim, indices)
}
