//! Operators that arrange elements: views, joins, splits, padding, and writes into a part.

use tilefuse_block::{Literal, ScalarFn};

use super::cx::{Call, Cx, literal};
use super::registry::Registry;
use crate::args::{Number, movedim, slice_start, swapped, wrap, wrap_all};
use crate::graph::ValueRef;
use crate::types::index_elem;

pub(super) fn register(r: &mut Registry) {
    r.one(
        &[
            "view",
            "reshape",
            "_unsafe_view",
            "view_as",
            "reshape_as",
            "_reshape_alias",
            "flatten",
            "unflatten",
            "ravel",
            "squeeze",
            "unsqueeze",
            "atleast_1d",
            "atleast_2d",
            "atleast_3d",
        ],
        reshape,
    );
    r.one(&["expand", "expand_as", "broadcast_to"], expand);
    r.one(&["permute"], |cx, call| permuted(cx, call, |rank| wrap_all(&call.args.ints("dims")?, rank)));
    r.one(&["transpose", "swapdims"], |cx, call| swap(cx, call, "dim0", "dim1"));
    r.one(&["swapaxes"], |cx, call| swap(cx, call, "axis0", "axis1"));
    r.one(&["t", "numpy_T"], |cx, call| permuted(cx, call, |rank| Some((0..rank).rev().collect())));
    r.one(&["mT", "mH", "matrix_H", "adjoint"], |cx, call| permuted(cx, call, |rank| swapped(-1, -2, rank)));
    r.one(&["movedim", "moveaxis"], |cx, call| {
        permuted(cx, call, |rank| movedim(&call.args.ints("source")?, &call.args.ints("destination")?, rank))
    });
    r.one(&["slice", "narrow"], slice);
    r.one(&["select"], select);
    r.many(
        &[
            "split",
            "split_with_sizes",
            "chunk",
            "tensor_split",
            "unsafe_split",
            "unsafe_chunk",
            "unsafe_split_with_sizes",
        ],
        |cx, call| {
            let rank = call.first().map(|x| cx.rank(x))?;
            parts(cx, call, wrap(call.args.int("dim").unwrap_or(0), rank)?)
        },
    );
    r.many(&["unbind"], unbind);
    r.one(&["diagonal"], diagonal);
    r.one(&["cat", "concat", "concatenate"], cat);
    r.one(&["stack"], stack);
    r.one(&["constant_pad_nd", "pad"], pad);
    r.one(&["flip"], |cx, call| {
        let x = call.tensor("self")?;
        let dims = wrap_all(&call.args.ints("dims")?, cx.rank(x))?;
        cx.flip(x, dims)
    });
    r.one(&["fliplr"], |cx, call| cx.flip(call.tensor("self")?, vec![1]));
    r.one(&["flipud"], |cx, call| cx.flip(call.tensor("self")?, vec![0]));
    r.one(&["roll"], roll);
    r.one(&["repeat"], |cx, call| repeated(cx, call, "repeats"));
    r.one(&["tile"], |cx, call| repeated(cx, call, "dims"));
    r.one(&["repeat_interleave"], repeat_interleave);
    r.one(&["pixel_shuffle"], pixel_shuffle);
    r.one(&["pixel_unshuffle"], pixel_unshuffle);
    r.many(&["meshgrid"], meshgrid);
    r.one(&["upsample_nearest1d", "upsample_nearest2d"], upsample_nearest);
    r.one(&["slice_scatter", "select_scatter"], scatter);
    r.one(&["diagonal_scatter"], diagonal_scatter);
}

fn reshape(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    if call.overload == "dtype" || call.operands.len() > 2 {
        return None;
    }
    let x = call.first()?;
    if cx.elem(x)? != call.elem()? { None } else { cx.reshape(x, &call.out().shape) }
}

fn expand(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    cx.broadcast(call.tensor("self")?, &call.out().shape)
}

fn permuted(
    cx: &mut Cx,
    call: &Call<'_>,
    perm: impl FnOnce(usize) -> Option<Vec<usize>>,
) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let perm = perm(cx.rank(x))?;
    cx.permute(x, &perm)
}

fn swap(cx: &mut Cx, call: &Call<'_>, first: &str, second: &str) -> Option<ValueRef> {
    let (first, second) = (call.args.int(first)?, call.args.int(second)?);
    permuted(cx, call, |rank| swapped(first, second, rank))
}

/// The dimension argument.
fn dimension(cx: &Cx, call: &Call<'_>, x: ValueRef) -> Option<usize> {
    wrap(call.args.int("dim").unwrap_or(0), cx.rank(x)).filter(|&d| d < cx.rank(x))
}

fn slice(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let dim = dimension(cx, call, x)?;
    // The start of `narrow.Tensor` is no number.
    if call.overload == "Tensor" && call.name == "narrow" {
        return None;
    }
    let start = slice_start(call.args.int("start"), cx.shape(x)[dim]);
    let length = call.out().shape[dim];
    cx.slice(x, dim, start, length, call.args.int("step").unwrap_or(1))
}

fn select(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let dim = dimension(cx, call, x)?;
    let index = call.args.int("index")?;
    let index = if index < 0 { index + cx.shape(x)[dim] } else { index };
    cx.select_index(x, dim, index)
}

/// Parts follow each other; their sizes are those of the results.
fn parts(cx: &mut Cx, call: &Call<'_>, dim: usize) -> Option<Vec<ValueRef>> {
    let x = call.first()?;
    let mut start = 0;
    let mut all = Vec::new();
    for ty in call.outs {
        let length = *ty.shape.get(dim)?;
        all.push(cx.slice(x, dim, start, length, 1)?);
        start += length;
    }
    Some(all)
}

fn unbind(cx: &mut Cx, call: &Call<'_>) -> Option<Vec<ValueRef>> {
    let x = call.tensor("self")?;
    let dim = dimension(cx, call, x)?;
    (0..call.outs.len()).map(|i| cx.select_index(x, dim, i as i64)).collect()
}

/// The dimensions of a call's diagonal, and its offset.
fn diagonal_dims(cx: &Cx, call: &Call<'_>, x: ValueRef) -> Option<([usize; 2], i64)> {
    let dim = |name: &str, default: i64| wrap(call.args.int(name).unwrap_or(default), cx.rank(x));
    Some(([dim("dim1", 0)?, dim("dim2", 1)?], call.args.int("offset").unwrap_or(0)))
}

/// Two dimensions moved to the end and read as one: the permutation, the flat value, and start and step of the diagonal.
fn flattened(
    cx: &mut Cx,
    x: ValueRef,
    [first, second]: [usize; 2],
    offset: i64,
) -> Option<(Vec<usize>, ValueRef, i64, i64)> {
    let rank = cx.rank(x);
    let perm = (0..rank).filter(|&d| d != first && d != second).chain([first, second]).collect::<Vec<_>>();
    let moved = cx.permute(x, &perm)?;
    let shape = cx.shape(moved);
    let (rows, columns) = (shape[rank - 2], shape[rank - 1]);
    let mut flat = shape[..rank - 2].to_vec();
    flat.push(rows * columns);
    let flat = cx.reshape(moved, &flat)?;
    // Of a diagonal outside of the matrix no element is taken.
    let below = || offset.checked_neg().and_then(|row| row.checked_mul(columns)).unwrap_or(0);
    Some((perm, flat, if offset >= 0 { offset } else { below() }, columns + 1))
}

fn diagonal(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let (dims, offset) = diagonal_dims(cx, call, x)?;
    diagonal_of(cx, x, dims, offset, *call.out().shape.last()?)
}

/// The diagonal of two dimensions, of this length, as the last one.
pub(super) fn diagonal_of(
    cx: &mut Cx,
    x: ValueRef,
    dims: [usize; 2],
    offset: i64,
    length: i64,
) -> Option<ValueRef> {
    let (_, flat, start, step) = flattened(cx, x, dims, offset)?;
    cx.slice(flat, cx.rank(x) - 2, if length == 0 { 0 } else { start }, length, step)
}

fn diagonal_scatter(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (x, source) = (call.tensor("self")?, call.tensor("src")?);
    let (dims, offset) = diagonal_dims(cx, call, x)?;
    let (perm, flat, start, step) = flattened(cx, x, dims, offset)?;
    let source = cx.cast(source, call.elem()?)?;
    let written = written(cx, flat, source, cx.rank(flat) - 1, start, step)?;
    let shape = cx.shape(x);
    let moved: Vec<i64> = perm.iter().map(|&d| shape[d]).collect();
    let moved = cx.reshape(written, &moved)?;
    let mut inverse = vec![0; perm.len()];
    for (i, &d) in perm.iter().enumerate() {
        inverse[d] = i;
    }
    cx.permute(moved, &inverse)
}

/// Operands in the result's element type; legacy empty vectors do not count.
fn joined(cx: &mut Cx, call: &Call<'_>) -> Option<Vec<ValueRef>> {
    let elem = call.elem()?;
    let rank = call.out().rank();
    let mut all = Vec::new();
    for value in call.tensors("tensors")? {
        if call.name != "stack" && cx.shape(value).as_slice() == [0] && rank != 1 {
            continue;
        }
        all.push(cx.cast(value, elem)?);
    }
    Some(all)
}

fn cat(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let all = joined(cx, call)?;
    let dim = wrap(call.args.int("dim").unwrap_or(0), call.out().rank())?;
    cx.concat(&all, dim)
}

fn stack(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let all = joined(cx, call)?;
    let dim = wrap(call.args.int("dim").unwrap_or(0), call.out().rank())?;
    let mut shape = call.out().shape.clone();
    shape[dim] = 1;
    let all = all.into_iter().map(|v| cx.reshape(v, &shape)).collect::<Option<Vec<_>>>()?;
    cx.concat(&all, dim)
}

/// Constant padding; sizes are given from the last dimension on, and may be negative.
fn pad(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    if call.args.str("mode").is_some_and(|mode| mode != "constant") {
        return None;
    }
    let x = call.tensor("self")?;
    let amounts = call.args.ints("pad")?;
    let fill = literal(call.elem()?, call.args.number("value").unwrap_or(Number::Int(0)))?;
    let mut value = x;
    let rank = cx.rank(x);
    let mut low = vec![0; rank];
    for (i, pair) in amounts.chunks(2).enumerate() {
        let &[before, after] = pair else { return None };
        let dim = rank.checked_sub(i + 1)?;
        let size = cx.shape(value)[dim];
        let (cut_before, cut_after) = ((-before).max(0), (-after).max(0));
        value = cx.slice(value, dim, cut_before, size - cut_before - cut_after, 1)?;
        low[dim] = before.max(0);
    }
    cx.pad(value, &low, &call.out().shape, fill)
}

/// The last `shift` elements move to the front.
fn roll(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let (shifts, dims) = (call.args.ints("shifts")?, call.args.ints("dims").unwrap_or_default());
    let shape = cx.shape(x);
    if cx.graph.ty(x).numel() == 0 {
        return Some(x);
    }
    if dims.is_empty() {
        let flat = cx.reshape(x, &[cx.graph.ty(x).numel()])?;
        let rolled = rolled(cx, flat, 0, *shifts.first()?)?;
        return cx.reshape(rolled, &shape);
    }
    let mut value = x;
    for (&shift, dim) in shifts.iter().zip(wrap_all(&dims, shape.len())?) {
        value = rolled(cx, value, dim, shift)?;
    }
    Some(value)
}

fn rolled(cx: &mut Cx, x: ValueRef, dim: usize, shift: i64) -> Option<ValueRef> {
    let size = *cx.shape(x).get(dim)?;
    let shift = shift.rem_euclid(size);
    if shift == 0 {
        return Some(x);
    }
    let (tail, head) = (cx.slice(x, dim, size - shift, shift, 1)?, cx.slice(x, dim, 0, size - shift, 1)?);
    cx.concat(&[tail, head], dim)
}

/// Whole repetitions along each dimension.
fn repeated(cx: &mut Cx, call: &Call<'_>, name: &str) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let mut times = call.args.ints(name)?;
    let mut shape = cx.shape(x).to_vec();
    while times.len() < shape.len() {
        times.insert(0, 1);
    }
    while shape.len() < times.len() {
        shape.insert(0, 1);
    }
    let split: Vec<i64> = shape.iter().flat_map(|&n| [1, n]).collect();
    let wide: Vec<i64> = times.iter().zip(&shape).flat_map(|(&t, &n)| [t, n]).collect();
    let value = cx.reshape(x, &split)?;
    let value = cx.broadcast(value, &wide)?;
    cx.reshape(value, &call.out().shape)
}

/// Each element repeated a fixed number of times.
fn repeat_interleave(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let times = call.args.int("repeats")?;
    let (x, dim) = match call.args.int("dim") {
        Some(dim) => (x, wrap(dim, cx.rank(x)).filter(|&d| d < cx.rank(x))?),
        None => (cx.reshape(x, &[cx.graph.ty(x).numel()])?, 0),
    };
    let mut shape = cx.shape(x);
    shape.insert(dim + 1, 1);
    let value = cx.reshape(x, &shape)?;
    shape[dim + 1] = times;
    let value = cx.broadcast(value, &shape)?;
    cx.reshape(value, &call.out().shape)
}

/// Each vector along its own dimension; the first two change places for `xy`.
fn meshgrid(cx: &mut Cx, call: &Call<'_>) -> Option<Vec<ValueRef>> {
    let swap = call.args.str("indexing") == Some("xy");
    let values = call.tensors("tensors")?;
    let mut all = Vec::new();
    for (i, (value, ty)) in values.into_iter().zip(call.outs).enumerate() {
        let dim = if swap && i < 2 && ty.rank() >= 2 { 1 - i } else { i };
        let mut shape = vec![1; ty.rank()];
        *shape.get_mut(dim)? = cx.graph.ty(value).numel();
        let value = cx.reshape(value, &shape)?;
        all.push(cx.broadcast(value, &ty.shape)?);
    }
    Some(all)
}

/// Enlargement by a power of two, for which libtorch's scales are exact.
fn upsample_nearest(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.first()?;
    let (from, to) = (cx.shape(x), &call.out().shape);
    let (mut split, mut wide) = (from[..2].to_vec(), from[..2].to_vec());
    for (&n, &m) in from[2..].iter().zip(&to[2..]) {
        let factor = m.checked_div(n).filter(|&f| f * n == m && f.count_ones() == 1)?;
        split.extend([n, 1]);
        wide.extend([n, factor]);
    }
    let factor = wide[3..].first().copied()? as f64;
    let given = call
        .args
        .get("scale_factors")
        .or_else(|| call.args.get("scales_h"))
        .or_else(|| call.args.get("scales"));
    let exact = match given {
        None => true,
        Some(crate::recording::Arg::Floats(list)) => list.iter().all(|&s| s == factor),
        Some(crate::recording::Arg::Float(s)) => *s == factor,
        Some(_) => false,
    };
    if !exact
        || !call.args.absent("scales_w") && call.args.float("scales_w") != wide.last().map(|&f| f as f64)
    {
        return None;
    }
    let value = cx.reshape(x, &split)?;
    let value = cx.broadcast(value, &wide)?;
    cx.reshape(value, to)
}

fn pixel_shuffle(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let factor = call.args.int("upscale_factor").filter(|&f| f > 0)?;
    let shape = cx.shape(x);
    let batch = shape.len().checked_sub(3)?;
    let (channels, height, width) = (shape[batch], shape[batch + 1], shape[batch + 2]);
    let mut split = shape[..batch].to_vec();
    split.extend([channels / (factor * factor), factor, factor, height, width]);
    let value = cx.reshape(x, &split)?;
    let perm: Vec<usize> = (0..batch).chain([0, 3, 1, 4, 2].map(|d| batch + d)).collect();
    let value = cx.permute(value, &perm)?;
    cx.reshape(value, &call.out().shape)
}

fn pixel_unshuffle(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let factor = call.args.int("downscale_factor").filter(|&f| f > 0)?;
    let shape = cx.shape(x);
    let batch = shape.len().checked_sub(3)?;
    let (channels, height, width) = (shape[batch], shape[batch + 1], shape[batch + 2]);
    let mut split = shape[..batch].to_vec();
    split.extend([channels, height / factor, factor, width / factor, factor]);
    let value = cx.reshape(x, &split)?;
    let perm: Vec<usize> = (0..batch).chain([0, 2, 4, 1, 3].map(|d| batch + d)).collect();
    let value = cx.permute(value, &perm)?;
    cx.reshape(value, &call.out().shape)
}

/// `src` where the position along `dim` is one of the slice's, `self` elsewhere.
fn scatter(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (x, source) = (call.tensor("self")?, call.tensor("src")?);
    let dim = dimension(cx, call, x)?;
    let shape = cx.shape(x);
    let size = shape[dim];
    let mut source_shape = shape.clone();
    let (start, step) = if call.name == "select_scatter" {
        let index = call.args.int("index")?;
        source_shape[dim] = 1;
        (if index < 0 { index + size } else { index }, 1)
    } else {
        source_shape[dim] = *cx.shape(source).get(dim)?;
        (slice_start(call.args.int("start"), size), call.args.int("step").unwrap_or(1))
    };
    let source = cx.cast(source, call.elem()?)?;
    let source = cx.reshape(source, &source_shape)?;
    written(cx, x, source, dim, start, step)
}

/// `source` at `start`, `start + step`, ... along a dimension, `x` elsewhere.
fn written(
    cx: &mut Cx,
    x: ValueRef,
    source: ValueRef,
    dim: usize,
    start: i64,
    step: i64,
) -> Option<ValueRef> {
    let (shape, count) = (cx.shape(x), *cx.shape(source).get(dim)?);
    if count == shape[dim] && step == 1 {
        return Some(source);
    }
    if count == 0 {
        return Some(x);
    }
    let spread = spread(cx, source, dim, start, step, &shape)?;
    let inside = inside(cx, dim, start, step, count, &shape)?;
    cx.select(inside, spread, x)
}

/// The elements of `source` at `start`, `start + step`, ... along a dimension of a larger shape, 0 elsewhere.
fn spread(
    cx: &mut Cx,
    source: ValueRef,
    dim: usize,
    start: i64,
    step: i64,
    shape: &[i64],
) -> Option<ValueRef> {
    let zero = Literal::of(cx.elem(source)?, 0.0);
    let mut value = source;
    if step > 1 {
        let mut split = cx.shape(source);
        let count = split[dim];
        split.insert(dim + 1, 1);
        value = cx.reshape(value, &split)?;
        split[dim + 1] = step;
        value = cx.pad(value, &vec![0; split.len()], &split, zero)?;
        let mut flat = cx.shape(source);
        flat[dim] = count * step;
        value = cx.reshape(value, &flat)?;
        let fits = (count * step).min(shape[dim] - start);
        value = cx.slice(value, dim, 0, fits, 1)?;
    }
    let mut low = vec![0; shape.len()];
    low[dim] = start;
    cx.pad(value, &low, shape, zero)
}

/// Whether the position along a dimension is `start`, `start + step`, ..., `count` of them.
fn inside(cx: &mut Cx, dim: usize, start: i64, step: i64, count: i64, shape: &[i64]) -> Option<ValueRef> {
    let elem = index_elem(shape[dim]);
    let position = cx.iota(elem, shape, dim);
    if count == 1 {
        return cx.map_number(ScalarFn::Eq, position, start as f64);
    }
    let number = |cx: &mut Cx, n: i64| cx.literal(Literal::int(elem, n));
    let (first, last) = (number(cx, start), number(cx, start + (count - 1) * step));
    let mut conditions = Vec::new();
    if start > 0 {
        conditions.push(cx.map(ScalarFn::Ge, &[position, first])?);
    }
    if start + count * step < shape[dim] || step > 1 {
        conditions.push(cx.map(ScalarFn::Le, &[position, last])?);
    }
    if step > 1 {
        let distance = cx.map(ScalarFn::Sub, &[position, first])?;
        let step = number(cx, step);
        let rest = cx.map(ScalarFn::RemTrunc, &[distance, step])?;
        conditions.push(cx.map_number(ScalarFn::Eq, rest, 0.0)?);
    }
    let mut all = conditions.into_iter();
    let first = all.next()?;
    all.try_fold(first, |a, b| cx.map(ScalarFn::And, &[a, b]))
}
