//! Literals are computed with, and functions that a literal makes trivial disappear.

use tilefuse_block::eval::{cast_literal, map_literals};
use tilefuse_block::{Elem, Literal, ScalarFn};

use super::strides::replace;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::rewrite_limit::Rewrites;
use crate::types::{DType, TensorType};

pub(super) fn fold_literals(graph: &mut Graph, rewrites: &Rewrites) -> usize {
    let Some(order) = graph.topological() else { return 0 };
    let mut folded =
        |&id: &NodeId| !rewrites.is_spent() && fold(graph, id) && rewrites.allow("fold-literals");
    order.iter().filter(|id| folded(id)).count()
}

/// The literal that every element of a value is.
pub(crate) fn known(graph: &Graph, value: ValueRef) -> Option<Literal> {
    let mut at = value;
    loop {
        match &graph.node(at.node).op {
            Op::Scalar(literal) => return Some(*literal),
            Op::View(View::Pad { .. }) => return None,
            Op::View(_) => at = *graph.operands(at.node).first()?,
            _ => return None,
        }
    }
}

fn fold(graph: &mut Graph, id: NodeId) -> bool {
    if graph.node(id).outs.len() != 1 || is_canonical(graph, id) {
        return false;
    }
    let operands = graph.operands(id);
    match graph.node(id).op.clone() {
        Op::View(_) => match known(graph, id.into()) {
            Some(literal) => become_literal(graph, id, literal),
            None => false,
        },
        Op::Cast => {
            let (Some(&operand), Some(elem)) = (operands.first(), graph.ty(id.into()).dtype.elem()) else {
                return false;
            };
            match known(graph, operand) {
                Some(literal) => become_literal(graph, id, cast_literal(literal, elem)),
                None => fold_cast(graph, id, operand, elem),
            }
        }
        Op::Map(function) => fold_map(graph, id, function, &operands),
        _ => false,
    }
}

/// Whether the node is a literal, or one expanded from a reshaped literal: the form that folding makes.
fn is_canonical(graph: &Graph, id: NodeId) -> bool {
    let operand = || graph.operands(id).first().map(|v| v.node);
    let is_scalar = |id: NodeId| matches!(graph.node(id).op, Op::Scalar(_));
    match graph.node(id).op {
        Op::Scalar(_) => true,
        Op::View(View::Reshape) => operand().is_some_and(is_scalar),
        Op::View(View::Expand) => operand().is_some_and(|from| {
            matches!(graph.node(from).op, Op::View(View::Reshape))
                && graph.operands(from).first().is_some_and(|v| is_scalar(v.node))
        }),
        _ => false,
    }
}

/// Makes a node a literal in its shape.
fn become_literal(graph: &mut Graph, id: NodeId, literal: Literal) -> bool {
    let (ty, origin) = (graph.ty(id.into()).clone(), graph.node(id).origin);
    let value = graph.add_filled(literal, &ty, origin);
    graph.replace_uses(id.into(), value);
    true
}

/// Whether every value of `from` is one of `to`.
fn widens(from: Elem, to: Elem) -> bool {
    matches!(
        (from, to),
        (Elem::F16 | Elem::Bf16, Elem::F32 | Elem::F64) | (Elem::F32, Elem::F64) | (Elem::Bool, _)
    )
}

/// A cast of a cast that loses nothing.
fn fold_cast(graph: &mut Graph, id: NodeId, operand: ValueRef, elem: Elem) -> bool {
    if !matches!(graph.node(operand.node).op, Op::Cast) {
        return false;
    }
    let Some(&base) = graph.operands(operand.node).first() else { return false };
    let (Some(first), Some(middle)) = (graph.ty(base).dtype.elem(), graph.ty(operand).dtype.elem()) else {
        return false;
    };
    if !widens(first, middle)
        || elem == Elem::Bool
        || !(middle.is_float() && elem.is_float() || first == elem)
    {
        return false;
    }
    if first == elem {
        return replace(graph, id, base);
    }
    let (ty, origin) = (graph.ty(id.into()).clone(), graph.node(id).origin);
    let new = graph.add(Op::Cast, &[base], [ty], origin);
    graph.replace_uses(id.into(), new.into());
    true
}

fn fold_map(graph: &mut Graph, id: NodeId, function: ScalarFn, operands: &[ValueRef]) -> bool {
    let literals: Vec<Option<Literal>> = operands.iter().map(|&v| known(graph, v)).collect();
    if let Some(all) = literals.iter().copied().collect::<Option<Vec<_>>>() {
        return match map_literals(function, &all) {
            Some(literal) => become_literal(graph, id, literal),
            None => false,
        };
    }
    if let Some(same) = neutral(function, operands, &literals) {
        return replace(graph, id, same);
    }
    if let (ScalarFn::Div, &[x, _], [_, Some(divisor)]) = (function, operands, literals.as_slice())
        && let Some(factor) = exact_reciprocal(*divisor)
    {
        return multiply(graph, id, x, factor);
    }
    false
}

/// The operand that the result equals in every bit.
fn neutral(function: ScalarFn, operands: &[ValueRef], literals: &[Option<Literal>]) -> Option<ValueRef> {
    let is = |i: usize, n: f64| {
        literals.get(i).copied().flatten().is_some_and(|l| {
            l.as_f64() == n
                && (l.elem.is_float() || l.as_i64() == Some(n as i64))
                && l.as_f64().is_sign_negative() == n.is_sign_negative()
        })
    };
    let is_int = literals.iter().flatten().all(|l| !l.elem.is_float());
    let &[a, b] = operands else {
        let &[_, a, b] = operands else { return None };
        return match (function, literals[0]) {
            (ScalarFn::Select, Some(condition)) => Some(if condition.bits != 0 { a } else { b }),
            (ScalarFn::Select, None) if a == b => Some(a),
            _ => None,
        };
    };
    match function {
        ScalarFn::Mul if is(1, 1.0) => Some(a),
        ScalarFn::Mul if is(0, 1.0) => Some(b),
        ScalarFn::Div | ScalarFn::DivTrunc | ScalarFn::DivFloor if is(1, 1.0) => Some(a),
        ScalarFn::Sub if is(1, 0.0) => Some(a),
        ScalarFn::Add if is(1, if is_int { 0.0 } else { -0.0 }) => Some(a),
        ScalarFn::Add if is(0, if is_int { 0.0 } else { -0.0 }) => Some(b),
        ScalarFn::And | ScalarFn::Or if a == b => Some(a),
        _ => None,
    }
}

/// `1 / x` where that is a power of two and neither is denormal.
fn exact_reciprocal(literal: Literal) -> Option<Literal> {
    let x = literal.as_f64();
    let inverse = Literal::float(literal.elem, 1.0 / x);
    let limit = if literal.elem == Elem::F16 { 14 } else { 126 };
    let mantissa = x.to_bits() & ((1 << 52) - 1);
    let power = x.is_normal() && mantissa == 0 && x.abs().log2().abs() <= f64::from(limit);
    power.then_some(inverse)
}

fn multiply(graph: &mut Graph, id: NodeId, x: ValueRef, factor: Literal) -> bool {
    let (ty, origin) = (graph.ty(id.into()).clone(), graph.node(id).origin);
    let place = TensorType::contiguous(DType::Elem(factor.elem), &ty.shape, ty.device);
    let value = graph.add_filled(factor, &place, origin);
    let new = graph.add(Op::Map(ScalarFn::Mul), &[x, value], [ty], origin);
    graph.replace_uses(id.into(), new.into());
    true
}
