//! Comparisons, logic, bits, and selection.

use tilefuse_block::{Elem, ScalarFn};

use super::cx::{Call, Cx};
use super::registry::Registry;
use crate::args::Number;
use crate::graph::ValueRef;
use crate::promote::{Category, promote};
use crate::recording::Arg;

pub(super) fn register(r: &mut Registry) {
    r.one(&["eq"], |cx, call| compare(cx, call, ScalarFn::Eq));
    r.one(&["ne", "not_equal"], |cx, call| compare(cx, call, ScalarFn::Ne));
    r.one(&["lt", "less"], |cx, call| compare(cx, call, ScalarFn::Lt));
    r.one(&["le", "less_equal"], |cx, call| compare(cx, call, ScalarFn::Le));
    r.one(&["gt", "greater"], |cx, call| compare(cx, call, ScalarFn::Gt));
    r.one(&["ge", "greater_equal"], |cx, call| compare(cx, call, ScalarFn::Ge));
    r.one(&["logical_and"], |cx, call| logical(cx, call, ScalarFn::And));
    r.one(&["logical_or"], |cx, call| logical(cx, call, ScalarFn::Or));
    r.one(&["logical_xor"], |cx, call| logical(cx, call, ScalarFn::Xor));
    r.one(&["logical_not"], logical_not);
    r.one(&["bitwise_and", "__and__"], |cx, call| bits(cx, call, ScalarFn::And));
    r.one(&["bitwise_or", "__or__"], |cx, call| bits(cx, call, ScalarFn::Or));
    r.one(&["bitwise_xor", "__xor__"], |cx, call| bits(cx, call, ScalarFn::Xor));
    r.one(&["bitwise_left_shift", "__lshift__"], |cx, call| bits(cx, call, ScalarFn::Shl));
    r.one(&["bitwise_right_shift", "__rshift__"], |cx, call| bits(cx, call, ScalarFn::Shr));
    r.one(&["where"], choose);
    r.one(&["masked_fill"], masked_fill);
}

/// The type in which two arguments are compared.
fn common(cx: &Cx, call: &Call<'_>, names: &[&str]) -> Option<Elem> {
    let mut operands = Vec::new();
    for name in names {
        operands.push(match call.args.get(name)? {
            Arg::Tensor(_) => {
                let value = call.tensor(name)?;
                let category = if cx.rank(value) == 0 { Category::ZeroDim } else { Category::Dim };
                (cx.elem(value)?, category)
            }
            _ => match call.args.number(name)? {
                Number::Bool(_) => (Elem::Bool, Category::Number),
                Number::Int(_) => (Elem::I64, Category::Number),
                Number::Float(_) => (Elem::F64, Category::Number),
            },
        });
    }
    promote(&operands)
}

fn compare(cx: &mut Cx, call: &Call<'_>, function: ScalarFn) -> Option<ValueRef> {
    let elem = common(cx, call, &["self", "other"])?;
    let (a, b) = (cx.operand(call, "self", elem)?, cx.operand(call, "other", elem)?);
    cx.map(function, &[a, b])
}

/// An argument as a truth value.
fn truth(cx: &mut Cx, call: &Call<'_>, name: &str) -> Option<ValueRef> {
    cx.cast(call.tensor(name)?, Elem::Bool)
}

fn logical(cx: &mut Cx, call: &Call<'_>, function: ScalarFn) -> Option<ValueRef> {
    let (a, b) = (truth(cx, call, "self")?, truth(cx, call, "other")?);
    let value = cx.map(function, &[a, b])?;
    cx.cast(value, call.elem()?)
}

fn logical_not(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let x = truth(cx, call, "self")?;
    let value = cx.map(ScalarFn::Not, &[x])?;
    cx.cast(value, call.elem()?)
}

fn bits(cx: &mut Cx, call: &Call<'_>, function: ScalarFn) -> Option<ValueRef> {
    let elem = call.elem()?;
    let (a, b) = (cx.operand(call, "self", elem)?, cx.operand(call, "other", elem)?);
    cx.map(function, &[a, b])
}

fn choose(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = call.elem()?;
    let condition = truth(cx, call, "condition")?;
    let (a, b) = (cx.operand(call, "self", elem)?, cx.operand(call, "other", elem)?);
    cx.select(condition, a, b)
}

fn masked_fill(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let elem = call.elem()?;
    let mask = truth(cx, call, "mask")?;
    let (x, value) = (cx.operand(call, "self", elem)?, cx.operand(call, "value", elem)?);
    cx.select(mask, value, x)
}
