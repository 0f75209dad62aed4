//! Reductions that depend on each other as one reduction of tuples.
//!
//! ```text
//! online-softmax   m = max x, s = sum exp(x - m)                    -> m, s = max_sumexp (x, 1)
//! log-sum-exp      the same with 0 for an infinite m                -> s, or exp(m) where m is infinite
//! welford          mean = sum x / n, q = sum (x - mean)^2           -> n, mean, q = moments (1, x, 0)
//! arg-max          m = max x, i = min (position where x is m)       -> m, i = argmax (x, position)
//! arg-min          the same of the minimum                          -> m, i = argmin (x, position)
//! ```
//!
//! All are over the same dimensions. Schedules make the members in as many walks as before, or in one: see
//! [`combiner`](crate::combiner).

#[cfg(test)]
mod tests;

use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, ReduceFn, ScalarFn};

use crate::combiner::{Combiner, Members};
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::rewrite::simplify::known;
use crate::rewrite_limit::Rewrites;
use crate::types::{DType, Dims, TensorType};

/// A rewrite of the graph around a reduction; `None` where it does not apply.
struct Rewrite {
    name: &'static str,
    run: fn(&mut Graph, NodeId) -> Option<()>,
}

const REWRITES: &[Rewrite] = &[
    Rewrite { name: "online-softmax", run: online_softmax },
    Rewrite { name: "log-sum-exp", run: log_sum_exp },
    Rewrite { name: "welford", run: welford },
    Rewrite { name: "arg-max", run: |graph, id| position_of(graph, id, Combiner::ArgMax) },
    Rewrite { name: "arg-min", run: |graph, id| position_of(graph, id, Combiner::ArgMin) },
];

/// Makes reductions of tuples; returns how many.
pub(crate) fn tuple_reductions(graph: &mut Graph, rewrites: &Rewrites) -> usize {
    let mut made = 0;
    for id in graph.topological().unwrap_or_default() {
        for rewrite in REWRITES {
            if !rewrites.is_spent() && (rewrite.run)(graph, id).is_some() {
                made += usize::from(rewrites.allow(rewrite.name));
            }
        }
    }
    if made > 0 {
        graph.remove_unused();
    }
    made
}

/// A sum of exponentials below the maximum.
fn online_softmax(graph: &mut Graph, id: NodeId) -> Option<()> {
    let (x, base, dims) = exponentials(graph, id)?;
    let most = row_of(graph, base, &dims)?;
    let [_, sum] = max_sumexp(graph, id, most, x, dims)?;
    replace(graph, id.into(), sum);
    Some(())
}

/// A sum of exponentials below the maximum, or below 0 where that is infinite.
fn log_sum_exp(graph: &mut Graph, id: NodeId) -> Option<()> {
    let (x, base, dims) = exponentials(graph, id)?;
    let base = unexpanded(graph, base);
    let &[condition, zero, largest] = &mapped(graph, base, ScalarFn::Select)?[..] else { return None };
    let infinite = mapped(graph, condition, ScalarFn::IsInf)?[..] == [largest];
    let most = row_of(graph, largest, &dims)?;
    if !infinite || known(graph, zero)?.as_f64() != 0.0 {
        return None;
    }
    let [largest, sum] = max_sumexp(graph, id, most, x, dims)?;
    let ty = graph.ty(sum).clone();
    let origin = graph.node(id).origin;
    let truth = TensorType::contiguous(DType::Elem(Elem::Bool), &ty.shape, ty.device);
    let infinite = graph.add(Op::Map(ScalarFn::IsInf), &[largest], [truth], origin);
    let limit = graph.add(Op::Map(ScalarFn::Exp), &[largest], [ty.clone()], origin);
    let all = [infinite.into(), limit.into(), sum];
    let chosen = graph.add(Op::Map(ScalarFn::Select), &all, [ty], origin);
    replace(graph, id.into(), chosen.into());
    Some(())
}

/// `x`, `base` and the dimensions of a sum of `exp(x - base)`.
fn exponentials(graph: &Graph, id: NodeId) -> Option<(ValueRef, ValueRef, Axes)> {
    let (below, dims) = reduced(graph, id.into(), ReduceFn::Sum)?;
    let &[difference] = &mapped(graph, below, ScalarFn::Exp)?[..] else { return None };
    let &[x, base] = &mapped(graph, difference, ScalarFn::Sub)?[..] else { return None };
    (is_wide(graph, x) && known(graph, x).is_none()).then_some((x, base, dims))
}

/// The maximum of `x` and the sum of exponentials below it as one reduction, where `most` is that maximum: the one that another sum
/// of the same has made of it already, if there is such a sum.
fn max_sumexp(
    graph: &mut Graph,
    id: NodeId,
    most: ValueRef,
    x: ValueRef,
    dims: Axes,
) -> Option<[ValueRef; 2]> {
    let operands = graph.operands(most.node);
    if let Op::Reduce { combine: Combiner::MaxSumExp, dims: over } = &graph.node(most.node).op {
        let same = most.out == 0 && operands[0] == x && *over == dims;
        let counts_one = known(graph, operands[1]).is_some_and(|one| one.as_f64() == 1.0);
        return (same && counts_one).then_some([most, ValueRef { out: 1, ..most }]);
    }
    reduction_of(graph, most, ReduceFn::Max, x, &dims)?;
    let ones = filled(graph, x, 1.0, id)?;
    let results = tuple(graph, id, Combiner::MaxSumExp, &[x, ones], dims);
    replace(graph, most, results[0]);
    Some([results[0], results[1]])
}

/// A sum of squared deviations from the mean, where the sum is used for nothing else.
fn welford(graph: &mut Graph, id: NodeId) -> Option<()> {
    let (square, dims) = reduced(graph, id.into(), ReduceFn::Sum)?;
    let &[deviation, same] = &mapped(graph, square, ScalarFn::Mul)?[..] else { return None };
    let &[x, base] = &mapped(graph, deviation, ScalarFn::Sub)?[..] else { return None };
    // What a mean of nothing is, its division says.
    let counted = count(graph, x, &dims);
    if deviation != same || !is_wide(graph, x) || known(graph, x).is_some() || counted == 0 {
        return None;
    }
    let mean = unexpanded(graph, base);
    let sum = dividend(graph, mean, counted)?;
    let all = reduction_of(graph, row_of(graph, sum, &dims)?, ReduceFn::Sum, x, &dims)?;
    let unread = |value: ValueRef| {
        let kept = graph.outputs.contains(&value) || graph.updates.iter().any(|u| u.value == value);
        graph.users(value.node).len() == 1 && !kept
    };
    if ![all, unexpanded(graph, sum), sum].into_iter().all(unread) {
        return None;
    }
    let (ones, zeros) = (filled(graph, x, 1.0, id)?, filled(graph, x, 0.0, id)?);
    let results = tuple(graph, id, Combiner::Moments, &[ones, x, zeros], dims);
    let middle = spread(graph, results[1], unexpanded(graph, sum), mean);
    replace(graph, mean, middle);
    replace(graph, id.into(), results[2]);
    Some(())
}

/// The sum that a mean is a quotient or a multiple of.
fn dividend(graph: &Graph, mean: ValueRef, count: i64) -> Option<ValueRef> {
    let Op::Map(function @ (ScalarFn::Div | ScalarFn::Mul)) = graph.node(mean.node).op else { return None };
    let &[sum, number] = &graph.operands(mean.node)[..] else { return None };
    let literal = known(graph, number)?;
    let wanted = if function == ScalarFn::Div { count as f64 } else { 1.0 / count as f64 };
    (literal == Literal::float(literal.elem, wanted)).then_some(sum)
}

/// The least position along one dimension where a value is its maximum or minimum, or the first NaN.
fn position_of(graph: &mut Graph, id: NodeId, combine: Combiner) -> Option<()> {
    let (candidates, dims) = reduced(graph, id.into(), ReduceFn::Min)?;
    let &[found, position, none] = &mapped(graph, candidates, ScalarFn::Select)?[..] else { return None };
    let is_position = matches!(graph.node(position.node).op, Op::Iota { dim } if dims[..] == [dim]);
    let last = count(graph, candidates, &dims) - 1;
    if !is_position || last < 0 || known(graph, none)?.as_i64()? < last {
        return None;
    }
    let (same, nan) = match mapped(graph, found, ScalarFn::Or) {
        Some(either) => (*either.first()?, Some(*either.get(1)?)),
        None => (found, None),
    };
    let &[x, best] = &mapped(graph, same, ScalarFn::Eq)?[..] else { return None };
    let checked = match nan {
        Some(nan) => mapped(graph, nan, ScalarFn::IsNan)?[..] == [x],
        None => !graph.ty(x).dtype.is_float(),
    };
    let function = if combine == Combiner::ArgMax { ReduceFn::Max } else { ReduceFn::Min };
    let extreme = reduction_of(graph, row_of(graph, best, &dims)?, function, x, &dims)?;
    if !checked {
        return None;
    }
    let results = tuple(graph, id, combine, &[x, position], dims);
    replace(graph, extreme, results[0]);
    replace(graph, id.into(), results[1]);
    Some(())
}

/// Dimensions that are reduced.
pub(super) type Axes = SmallVec<[u8; 6]>;

/// The operand and the dimensions of a reduction by a scalar function.
fn reduced(graph: &Graph, value: ValueRef, function: ReduceFn) -> Option<(ValueRef, Axes)> {
    let Op::Reduce { combine, dims } = &graph.node(value.node).op else { return None };
    let operand = *graph.operands(value.node).first()?;
    (*combine == function.into()).then(|| (operand, dims.clone()))
}

/// The operands of a scalar function.
pub(super) fn mapped(graph: &Graph, value: ValueRef, function: ScalarFn) -> Option<SmallVec<[ValueRef; 4]>> {
    (graph.node(value.node).op == Op::Map(function)).then(|| graph.operands(value.node))
}

/// The value, where it is a reduction of `x` over these dimensions by this function.
fn reduction_of(
    graph: &Graph,
    value: ValueRef,
    function: ReduceFn,
    x: ValueRef,
    dims: &[u8],
) -> Option<ValueRef> {
    let (operand, over) = reduced(graph, value, function)?;
    (operand == x && over[..] == *dims).then_some(value)
}

/// What is expanded.
pub(super) fn unexpanded(graph: &Graph, value: ValueRef) -> ValueRef {
    match graph.node(value.node).op {
        Op::View(View::Expand) => graph.operands(value.node).first().copied().unwrap_or(value),
        _ => value,
    }
}

/// What there is one of for each row: without the dimensions that are reduced, which `value` has with size 1, expanded or not.
pub(super) fn row_of(graph: &Graph, value: ValueRef, dims: &[u8]) -> Option<ValueRef> {
    let kept = unexpanded(graph, value);
    let shape = &graph.ty(kept).shape;
    let rest: Dims = (0..shape.len()).filter(|&d| !dims.contains(&(d as u8))).map(|d| shape[d]).collect();
    let is_kept = dims.iter().all(|&d| shape.get(usize::from(d)) == Some(&1));
    match graph.node(kept.node).op {
        Op::View(View::Reshape) if is_kept => {
            let row = *graph.operands(kept.node).first()?;
            (graph.ty(row).shape == rest).then_some(row)
        }
        _ => None,
    }
}

/// What there is one of for each row, in the shape of `like`; `kept` has the dimensions that are reduced with size 1.
fn spread(graph: &mut Graph, row: ValueRef, kept: ValueRef, like: ValueRef) -> ValueRef {
    let (ones, ty, origin) = (graph.ty(kept).clone(), graph.ty(like).clone(), graph.node(like.node).origin);
    let same = ones.shape == ty.shape;
    let ones = if same { ty.clone() } else { ones };
    let value = graph.add(Op::View(View::Reshape), &[row], [ones], origin).into();
    if same { value } else { graph.add(Op::View(View::Expand), &[value], [ty], origin).into() }
}

/// Makes uses of a value uses of a new one, which takes its strides.
fn replace(graph: &mut Graph, from: ValueRef, to: ValueRef) {
    let strides = graph.ty(from).strides.clone();
    graph.node_mut(to.node).outs[usize::from(to.out)].strides = strides;
    graph.replace_uses(from, to);
}

fn count(graph: &Graph, value: ValueRef, dims: &[u8]) -> i64 {
    dims.iter().map(|&d| graph.ty(value).shape[usize::from(d)]).product()
}

fn is_wide(graph: &Graph, value: ValueRef) -> bool {
    matches!(graph.ty(value).dtype.elem(), Some(Elem::F32 | Elem::F64))
}

/// A number in every element of a value's shape.
fn filled(graph: &mut Graph, like: ValueRef, number: f64, id: NodeId) -> Option<ValueRef> {
    let ty = graph.ty(like);
    let ty = TensorType::contiguous(ty.dtype, &ty.shape, ty.device);
    let literal = Literal::float(ty.dtype.elem()?, number);
    Some(graph.add_filled(literal, &ty, graph.node(id).origin))
}

/// A reduction of tuples in the place of one of its members.
fn tuple(
    graph: &mut Graph,
    id: NodeId,
    combine: Combiner,
    operands: &[ValueRef],
    dims: Axes,
) -> Members<ValueRef> {
    let node = graph.node(id);
    let (shape, origin) = (node.outs[0].shape.clone(), node.origin);
    let out = |&operand: &ValueRef| {
        let ty = graph.ty(operand);
        TensorType::contiguous(ty.dtype, &shape, ty.device)
    };
    let outs: Members<TensorType> = operands.iter().map(out).collect();
    let node = graph.add(Op::Reduce { combine, dims }, operands, outs, origin);
    (0..operands.len() as u16).map(|out| ValueRef { node, out }).collect()
}
