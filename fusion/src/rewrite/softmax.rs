//! The softmax that a value is, however it is spelled, behind
//! [`tuple_reductions`](crate::rewrite::tuple_reductions::tuple_reductions).
//!
//! ```text
//! m, s = max_sumexp (x, 1)      exp(x - m) / s, or exp(x - m) * (1 / s)      softmax of x
//!                               0 where m is -inf, else one of these         safe softmax of x
//! ```

#[cfg(test)]
mod tests;

use tilefuse_block::{Literal, ScalarFn};

use crate::combiner::Combiner;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::rewrite::simplify::known;
use crate::rewrite::tuple_reductions::{Axes, mapped, row_of, unexpanded};

/// A softmax, as it was found.
pub(super) struct Softmax {
    /// What it is the softmax of.
    pub(super) scores: ValueRef,
    /// Along these dimensions.
    pub(super) dims: Axes,
    /// Whether rows that are -inf throughout give 0.
    pub(super) safe: bool,
    /// The nodes that compute it from scores, without literals.
    pub(super) inner: Vec<NodeId>,
}

/// The softmax that a value is.
pub(super) fn softmax(graph: &Graph, value: ValueRef) -> Option<Softmax> {
    let guarded = mapped(graph, value, ScalarFn::Select);
    let (weights, closed) = match guarded.as_deref() {
        Some(&[closed, zero, open]) if number(graph, zero) == Some(0.0) => (open, Some(closed)),
        Some(_) => return None,
        None => (value, None),
    };
    let (exponential, sum) = normalised(graph, weights)?;
    let &[difference] = &mapped(graph, exponential, ScalarFn::Exp)?[..] else { return None };
    let &[scores, base] = &mapped(graph, difference, ScalarFn::Sub)?[..] else { return None };
    let (sum, dims) = statistic(graph, sum)?;
    let largest = ValueRef { out: 0, ..sum };
    let is_largest = |value: ValueRef| row_of(graph, value, dims) == Some(largest);
    let operands = graph.operands(sum.node);
    let same = operands[0] == scores && number(graph, operands[1]) == Some(1.0);
    let tests = |closed| lowest(graph, closed).is_some_and(is_largest);
    (same && sum.out == 1 && is_largest(base) && closed.is_none_or(tests)).then(|| Softmax {
        scores,
        dims: dims.clone(),
        safe: closed.is_some(),
        inner: between(graph, scores, value),
    })
}

/// What is divided by a sum, and the sum.
fn normalised(graph: &Graph, value: ValueRef) -> Option<(ValueRef, ValueRef)> {
    if let Some(operands) = mapped(graph, value, ScalarFn::Div) {
        return Some((*operands.first()?, *operands.get(1)?));
    }
    let &[a, b] = &mapped(graph, value, ScalarFn::Mul)?[..] else { return None };
    let (exponential, inverse) = if mapped(graph, a, ScalarFn::Exp).is_some() { (a, b) } else { (b, a) };
    let &[one, sum] = &mapped(graph, unexpanded(graph, inverse), ScalarFn::Div)?[..] else { return None };
    (number(graph, one) == Some(1.0)).then_some((exponential, sum))
}

/// The value that a condition compares with -inf.
fn lowest(graph: &Graph, condition: ValueRef) -> Option<ValueRef> {
    let &[a, b] = &mapped(graph, unexpanded(graph, condition), ScalarFn::Eq)?[..] else { return None };
    match [a, b].map(|value| number(graph, value)) {
        [None, Some(f64::NEG_INFINITY)] => Some(a),
        [Some(f64::NEG_INFINITY), None] => Some(b),
        _ => None,
    }
}

/// The statistic of rows that a value repeats, and the dimensions along which these lie.
fn statistic(graph: &Graph, value: ValueRef) -> Option<(ValueRef, &Axes)> {
    let kept = unexpanded(graph, value);
    let Op::View(View::Reshape) = graph.node(kept.node).op else { return None };
    let row = *graph.operands(kept.node).first()?;
    let Op::Reduce { combine: Combiner::MaxSumExp, dims } = &graph.node(row.node).op else { return None };
    (row_of(graph, value, dims) == Some(row)).then_some((row, dims))
}

/// The nodes that compute one value from another, without literals.
fn between(graph: &Graph, from: ValueRef, to: ValueRef) -> Vec<NodeId> {
    let (mut inner, mut at) = (vec![to.node], 0);
    while let Some(&node) = inner.get(at) {
        at += 1;
        for operand in graph.operands(node) {
            let outside = operand == from || known(graph, operand).is_some();
            if !outside && !inner.contains(&operand.node) {
                inner.push(operand.node);
            }
        }
    }
    inner
}

fn number(graph: &Graph, value: ValueRef) -> Option<f64> {
    known(graph, value).map(Literal::as_f64)
}
