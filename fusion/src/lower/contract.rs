//! Products of matrices and tensors: contractions, with factor, addend and rounding as maps behind them.
//!
//! ```text
//! %3 = aten::linear(input=%0, weight=%1, bias=%2)   ->   %3 = contract sum[1]x[1](%0, %1) : f32[8,16]
//!      : bf16[8,16]                                       %4 = cast(%2) : f32[16]
//!                                                         %5 = map add(%3, %4 broadcast) : f32[8,16]
//!                                                         %6 = cast(%5) : bf16[8,16]
//! ```

use tilefuse_block::{ReduceFn, ScalarFn};

use super::Registry;
use super::cx::{Call, Cx};
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
    r.one(&["einsum"], einsum);
}

/// Pairs of dimensions of the left and the right operand.
type Pairs<'a> = &'a [(usize, usize)];

/// `alpha` times the contraction of two arguments, and `beta` times an addend, in the result's type. An overload names the
/// type of the result (`mm.dtype`), which libtorch's call alone gives without widening the operands: it stays.
fn product(
    cx: &mut Cx,
    call: &Call<'_>,
    operands: [&str; 2],
    [batch, sum]: [Pairs<'_>; 2],
    addend: Option<&str>,
) -> Option<ValueRef> {
    if !call.overload.is_empty() {
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

/// Of two operands whose labels are letters, each of them once in an operand and with one size.
fn einsum(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let equation: String = call.args.str("equation")?.chars().filter(|c| !c.is_whitespace()).collect();
    let &[mut lhs, mut rhs] = &call.tensors("tensors")?[..] else { return None };
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (equation.as_str(), None),
    };
    let (left, right) = inputs.split_once(',')?;
    let labels = |text: &str| -> Option<Vec<char>> {
        let labels: Vec<char> = text.chars().collect();
        let once = (1..labels.len()).all(|at| !labels[..at].contains(&labels[at]));
        (once && labels.iter().all(char::is_ascii_alphabetic)).then_some(labels)
    };
    let (mut left, mut right) = (labels(left)?, labels(right)?);
    let output = match output {
        Some(output) => labels(output)?,
        // Those that are in one operand alone, upper case first.
        None => {
            let mut alone: Vec<char> = left.iter().filter(|l| !right.contains(l)).copied().collect();
            alone.extend(right.iter().filter(|l| !left.contains(l)));
            alone.sort_unstable();
            alone
        }
    };
    let known = output.iter().all(|l| left.contains(l) || right.contains(l));
    if !known || left.len() != cx.rank(lhs) || right.len() != cx.rank(rhs) {
        return None;
    }
    let others = [right.clone(), left.clone()];
    for ((value, own), other) in [(&mut lhs, &mut left), (&mut rhs, &mut right)].into_iter().zip(&others) {
        let lone = |l: &char| !other.contains(l) && !output.contains(l);
        let dims: Vec<usize> = (0..own.len()).filter(|&d| lone(&own[d])).collect();
        // libtorch rounds these sums.
        if !dims.is_empty() && cx.elem(*value) != call.elem().filter(|&e| super::cx::wide(e) == e) {
            return None;
        }
        *value = cx.reduce(ReduceFn::Sum, *value, &dims, false)?;
        own.retain(|l| !lone(l));
    }
    let place = |l: &char| right.iter().position(|r| r == l);
    let shared: Vec<(char, (usize, usize))> =
        left.iter().enumerate().filter_map(|(at, l)| Some((*l, (at, place(l)?)))).collect();
    let (batch, sum): (Vec<_>, Vec<_>) = shared.into_iter().partition(|(l, _)| output.contains(l));
    let pairs = |list: &[(char, (usize, usize))]| list.iter().map(|&(_, pair)| pair).collect::<Vec<_>>();
    let value = cx.contract(lhs, rhs, &pairs(&batch), &pairs(&sum))?;
    let value = cx.cast(value, call.elem()?)?;
    let of_batch = batch.iter().map(|&(l, _)| l);
    let alone = left.iter().filter(|l| !right.contains(l)).chain(right.iter().filter(|l| !left.contains(l)));
    let found: Vec<char> = of_batch.chain(alone.copied()).collect();
    let order = output.iter().map(|l| found.iter().position(|f| f == l)).collect::<Option<Vec<_>>>()?;
    cx.permute(value, &order)
}
