//! Products of matrices and tensors: contractions, with factor, addend and rounding as maps behind them.
//!
//! ```text
//! %3 = aten::linear(input=%0, weight=%1, bias=%2)   ->   %3 = contract sum[1]x[1](%0, %1) : f32[8,16]
//!      : bf16[8,16]                                       %4 = cast(%2) : f32[16]
//!                                                         %5 = map add(%3, %4 broadcast) : f32[8,16]
//!                                                         %6 = cast(%5) : bf16[8,16]
//! ```

use tilefuse_block::{Elem, ScalarFn};

use super::cx::{Call, Cx};
use super::registry::Registry;
use crate::graph::ValueRef;
use crate::types::broadcast_shape;

pub(super) fn register(r: &mut Registry) {
    r.one(&["linear"], linear);
    r.one(&["mm", "_int_mm"], |cx, call| product(cx, call, ["self", "mat2"], [&[], &[(1, 0)]], None));
    r.one(&["addmm"], |cx, call| product(cx, call, ["mat1", "mat2"], [&[], &[(1, 0)]], Some("self")));
    r.one(&["bmm"], |cx, call| product(cx, call, ["self", "mat2"], [&[(0, 0)], &[(2, 1)]], None));
    r.one(&["baddbmm"], |cx, call| {
        product(cx, call, ["batch1", "batch2"], [&[(0, 0)], &[(2, 1)]], Some("self"))
    });
    r.one(&["addbmm"], |cx, call| {
        product(cx, call, ["batch1", "batch2"], [&[], &[(0, 0), (2, 1)]], Some("self"))
    });
    r.one(&["mv"], |cx, call| product(cx, call, ["self", "vec"], [&[], &[(1, 0)]], None));
    r.one(&["addmv"], |cx, call| product(cx, call, ["mat", "vec"], [&[], &[(1, 0)]], Some("self")));
    r.one(&["dot"], |cx, call| product(cx, call, ["self", "tensor"], [&[], &[(0, 0)]], None));
    r.one(&["vdot"], |cx, call| product(cx, call, ["self", "other"], [&[], &[(0, 0)]], None));
    r.one(&["matmul"], matmul);
    r.one(&["tensordot"], tensordot);
    r.one(&["inner"], inner);
    r.one(&["linalg_multi_dot"], |cx, call| chain(cx, call, "tensors"));
    r.one(&["chain_matmul"], |cx, call| chain(cx, call, "matrices"));
    r.one(&["bilinear"], bilinear);
    r.one(&["einsum"], super::einsum::einsum);
}

/// Pairs of dimensions of the left and the right operand.
type Pairs<'a> = &'a [(usize, usize)];

/// `alpha` times the contraction of two arguments, and `beta` times an addend, in the result's type, which may be that of the
/// sums (`mm.dtype`).
fn product(
    cx: &mut Cx,
    call: &Call<'_>,
    operands: [&str; 2],
    [batch, sum]: [Pairs<'_>; 2],
    addend: Option<&str>,
) -> Option<ValueRef> {
    if !matches!(call.overload, "" | "dtype") {
        return None;
    }
    let (lhs, rhs) = (call.tensor(operands[0])?, call.tensor(operands[1])?);
    let value = cx.contract(lhs, rhs, batch, sum)?;
    let value = match addend {
        Some(name) if !call.args.absent(name) => scaled_sum(cx, call, value, name)?,
        _ => value,
    };
    cx.cast(value, call.elem()?)
}

/// `alpha value + beta addend`. A `beta` of 0 leaves the addend out, NaN or not. An `alpha` of 0 leaves out the product in
/// some of libtorch's kernels and multiplies by 0 in others: the call stays.
fn scaled_sum(cx: &mut Cx, call: &Call<'_>, value: ValueRef, addend: &str) -> Option<ValueRef> {
    let elem = cx.elem(value)?;
    let factor = |name: &str| call.args.float(name).unwrap_or(1.0);
    let (alpha, beta) = (factor("alpha"), factor("beta"));
    if alpha == 0.0 || (!elem.is_float() && (alpha, beta) != (1.0, 1.0)) {
        return None;
    }
    let value = if alpha == 1.0 { value } else { cx.map_number(ScalarFn::Mul, value, alpha)? };
    if beta == 0.0 {
        return Some(value);
    }
    let addend = call.tensor(addend).filter(|&v| cx.elem(v) == call.elem())?;
    let addend = cx.cast(addend, elem)?;
    let addend = if beta == 1.0 { addend } else { cx.map_number(ScalarFn::Mul, addend, beta)? };
    cx.map(ScalarFn::Add, &[value, addend])
}

fn linear(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (input, weight, bias) = (call.tensor("input")?, call.tensor("weight")?, call.optional("bias")?);
    let last = cx.rank(input).checked_sub(1)?;
    if bias.is_some_and(|bias| cx.rank(bias) != 1) || cx.rank(weight) != 2 {
        return None;
    }
    product(cx, call, ["input", "weight"], [&[], &[(last, 1)]], Some("bias"))
}

fn matmul(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (lhs, rhs) = (call.tensor("self")?, call.tensor("other")?);
    let (left, right) = (cx.shape(lhs), cx.shape(rhs));
    let last = left.len().checked_sub(1)?;
    let inner = right.len().saturating_sub(2);
    if left.len() == 1 || right.len() <= 2 {
        // The dimensions of one operand alone are followed by the last one of the other: there is no batch.
        let value = cx.contract(lhs, rhs, &[], &[(last, inner)])?;
        return cx.cast(value, call.elem()?);
    }
    let batch = broadcast_shape(&[&left[..last - 1], &right[..inner]])?;
    let mut wide = |value: ValueRef, shape: &[i64]| {
        let matrix = shape.len() - 2;
        let shape: Vec<i64> = batch.iter().chain(&shape[matrix..]).copied().collect();
        cx.broadcast(value, &shape)
    };
    let (lhs, rhs) = (wide(lhs, &left)?, wide(rhs, &right)?);
    let pairs: Vec<(usize, usize)> = (0..batch.len()).map(|d| (d, d)).collect();
    let value = cx.contract(lhs, rhs, &pairs, &[(batch.len() + 1, batch.len())])?;
    cx.cast(value, call.elem()?)
}

fn tensordot(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let dims = |name: &str, operand: &str| -> Option<Vec<usize>> {
        let rank = cx.rank(call.tensor(operand)?);
        call.args.ints(name)?.into_iter().map(|d| crate::args::wrap(d, rank)).collect()
    };
    let (left, right) = (dims("dims_self", "self")?, dims("dims_other", "other")?);
    if left.len() != right.len() || left.is_empty() {
        return None;
    }
    let sum: Vec<(usize, usize)> = left.into_iter().zip(right).collect();
    product(cx, call, ["self", "other"], [&[], &sum], None)
}

/// Sums along the last dimensions of both, or products with a number.
fn inner(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (lhs, rhs) = (call.tensor("self")?, call.tensor("other")?);
    let last = [lhs, rhs].map(|value| cx.rank(value).checked_sub(1));
    match last {
        [Some(left), Some(right)] => product(cx, call, ["self", "other"], [&[], &[(left, right)]], None),
        _ if cx.elem(lhs) == cx.elem(rhs) => cx.map(ScalarFn::Mul, &[lhs, rhs]),
        _ => None,
    }
}

/// Products of matrices in a row, of which the first one may be a row and the last one a column, in the order of fewest
/// multiplications, each rounded.
fn chain(cx: &mut Cx, call: &Call<'_>, name: &str) -> Option<ValueRef> {
    let factors = call.tensors(name)?;
    let ends = [0, factors.len().checked_sub(1)?];
    let rank =
        |(at, &value): (usize, &ValueRef)| cx.rank(value) == 2 || ends.contains(&at) && cx.rank(value) == 1;
    if factors.len() < 2 || !factors.iter().enumerate().all(rank) {
        return None;
    }
    // A row has one row, and a column one column.
    let mut sizes = vec![if cx.rank(factors[0]) == 1 { 1 } else { cx.shape(factors[0])[0] }];
    sizes.extend(factors.iter().enumerate().map(|(at, &value)| match cx.shape(value)[..] {
        [rows] if at == 0 => rows,
        [_] => 1,
        ref shape => shape[shape.len() - 1],
    }));
    let split = splits(&sizes)?;
    let value = chained(cx, call.elem()?, &factors, &split, 0, factors.len())?;
    cx.cast(value, call.elem()?)
}

/// Where to divide the products `[from, to)` of matrices `sizes[i] x sizes[i + 1]` for fewest multiplications, by `from` and `to`
/// (Cormen et al., Introduction to Algorithms, matrix-chain multiplication). Where several places are as good, it is libtorch's:
/// the last one of three factors, the first one of more.
fn splits(sizes: &[i64]) -> Option<Vec<Vec<usize>>> {
    let count = sizes.len() - 1;
    let mut cost = vec![vec![0i64; count + 1]; count + 1];
    let mut split = vec![vec![0; count + 1]; count + 1];
    for length in 2..=count {
        for from in 0..=count - length {
            let to = from + length;
            let of = |at: usize| -> Option<i64> {
                let own = sizes[from].checked_mul(sizes[at])?.checked_mul(sizes[to])?;
                cost[from][at].checked_add(cost[at][to])?.checked_add(own)
            };
            let all: Option<Vec<(i64, usize)>> = (from + 1..to).map(|at| Some((of(at)?, at))).collect();
            let least = |&(cost, at): &(i64, usize)| (cost, if count == 3 { usize::MAX - at } else { at });
            (cost[from][to], split[from][to]) = all?.into_iter().min_by_key(least)?;
        }
    }
    Some(split)
}

fn chained(
    cx: &mut Cx,
    elem: Elem,
    factors: &[ValueRef],
    split: &[Vec<usize>],
    from: usize,
    to: usize,
) -> Option<ValueRef> {
    if to - from == 1 {
        return factors.get(from).copied();
    }
    let at = split[from][to];
    let lhs = chained(cx, elem, factors, split, from, at)?;
    let rhs = chained(cx, elem, factors, split, at, to)?;
    let value = cx.contract(lhs, rhs, &[], &[(cx.rank(lhs).checked_sub(1)?, 0)])?;
    cx.cast(value, elem)
}

/// `input1 weight[o] input2 + bias[o]` for each row of both inputs and each matrix of the weight.
fn bilinear(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (left, right) = (call.tensor("input1")?, call.tensor("input2")?);
    let (weight, bias) = (call.tensor("weight")?, call.optional("bias")?);
    let last = cx.rank(left).checked_sub(1).filter(|_| cx.rank(weight) == 3)?;
    let elem = call.elem()?;
    // In libtorch's order, on which it depends what becomes of infinities.
    let rows = cx.contract(left, weight, &[], &[(last, 1)])?;
    let rows = cx.cast(rows, elem)?;
    let batch: Vec<(usize, usize)> = (0..last).map(|d| (d, d)).collect();
    let mut value = cx.contract(rows, right, &batch, &[(last + 1, last)])?;
    if let Some(bias) = bias {
        let bias = cx.cast(bias, cx.elem(value)?)?;
        value = cx.map(ScalarFn::Add, &[value, bias])?;
    }
    cx.cast(value, elem)
}
