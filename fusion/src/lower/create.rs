//! Tensors made of literals and positions.

use tilefuse_block::{Elem, Literal, ScalarFn};

use super::cx::{Call, Cx, literal};
use super::registry::Registry;
use crate::args::{Number, wrap};
use crate::graph::ValueRef;
use crate::recording::Arg;

pub(super) fn register(r: &mut Registry) {
    r.one(&["zeros", "zeros_like", "new_zeros", "zero"], |cx, call| filled(cx, call, Number::Int(0)));
    r.one(&["ones", "ones_like", "new_ones"], |cx, call| filled(cx, call, Number::Int(1)));
    r.one(&["full", "full_like", "new_full"], |cx, call| filled(cx, call, call.args.number("fill_value")?));
    r.one(&["scalar_tensor"], |cx, call| filled(cx, call, call.args.number("s")?));
    r.one(&["fill"], fill);
    r.one(&["arange"], arange);
    r.one(&["eye"], eye);
    r.one(&["tril"], |cx, call| triangle(cx, call, ScalarFn::Le));
    r.one(&["triu"], |cx, call| triangle(cx, call, ScalarFn::Ge));
}

fn filled(cx: &mut Cx, call: &Call<'_>, number: Number) -> Option<ValueRef> {
    let literal = literal(call.elem()?, number)?;
    cx.full(literal, &call.out().shape)
}

fn fill(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    match call.args.get("value")? {
        Arg::Tensor(_) => {
            let value = cx.operand(call, "value", call.elem()?)?;
            let value = cx.reshape(value, &[])?;
            cx.broadcast(value, &call.out().shape)
        }
        _ => filled(cx, call, call.args.number("value")?),
    }
}

/// `start + step * i`; in `f64` where the numbers are not integers. For integers libtorch cuts both numbers first.
fn arange(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = call.elem()?;
    let shape = call.out().shape.clone();
    let number = |name: &str, default: f64| {
        let number = call.args.float(name).unwrap_or(default);
        if elem.is_float() { number } else { number.trunc() }
    };
    let (start, step) = (number("start", 0.0), number("step", 1.0));
    let whole = start.fract() == 0.0 && step.fract() == 0.0 && start.abs() < 1e15 && step.abs() < 1e15;
    // Numbers of 64 bits that f64 does not hold.
    if !whole && !elem.is_float() {
        return None;
    }
    let index = cx.iota(Elem::I64, &shape, 0);
    let mut value = if whole { index } else { cx.cast(index, Elem::F64)? };
    if step != 1.0 {
        value = cx.map_number(ScalarFn::Mul, value, step)?;
    }
    if start != 0.0 {
        value = cx.map_number(ScalarFn::Add, value, start)?;
    }
    cx.cast(value, elem)
}

/// Row and column numbers of the last two dimensions.
fn positions(cx: &mut Cx, shape: &[i64]) -> Option<(ValueRef, ValueRef)> {
    let row = wrap(-2, shape.len()).filter(|_| shape.len() >= 2)?;
    Some((cx.iota(Elem::I64, shape, row), cx.iota(Elem::I64, shape, row + 1)))
}

fn eye(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let (row, column) = positions(cx, &call.out().shape)?;
    let diagonal = cx.map(ScalarFn::Eq, &[row, column])?;
    cx.cast(diagonal, call.elem()?)
}

/// Elements whose column, less the row, compares to `diagonal`; 0 elsewhere.
fn triangle(cx: &mut Cx, call: &Call<'_>, keep: ScalarFn) -> Option<ValueRef> {
    let x = call.tensor("self")?;
    let (row, column) = positions(cx, &call.out().shape)?;
    let distance = cx.map(ScalarFn::Sub, &[column, row])?;
    let inside = cx.map_number(keep, distance, call.args.int("diagonal").unwrap_or(0) as f64)?;
    let zero = cx.literal(Literal::of(call.elem()?, 0.0));
    cx.select(inside, x, zero)
}
