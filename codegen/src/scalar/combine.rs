//! What combines two elements: reductions, atomic operations, and regions of a program's own.

use rustc_hash::FxHashMap;
use tilefuse_block::{AtomicFn, Elem, Op, OpKind, Program, ReduceFn, Region, Value};

use super::{LlvmTarget, bitcast, cast, is_narrow, map};
use crate::{Error, Result};

/// The kind in which elements are accumulated: those of 16 bits in `f32`, rounded once.
pub(crate) fn accumulator(elem: Elem) -> Elem {
    if is_narrow(elem) { Elem::F32 } else { elem }
}

/// Two partial results of a reduction as one.
pub(crate) fn combine<T: LlvmTarget>(
    t: &mut T,
    combine: ReduceFn,
    elem: Elem,
    a: &T::Value,
    b: &T::Value,
) -> Result<T::Value> {
    map(t, combine.combine(), elem, &[a.clone(), b.clone()])
}

/// An element of a reduction, or what changes nothing where `mask` does not hold.
pub(crate) fn masked<T: LlvmTarget>(
    t: &mut T,
    combine: ReduceFn,
    elem: Elem,
    value: &T::Value,
    mask: &T::Value,
) -> Result<T::Value> {
    let (ty, neutral) = (t.register(elem), t.literal(combine.neutral(elem))?);
    t.select(ty, mask, value, &neutral)
}

/// What takes the place of `old` in memory.
pub(crate) fn atomic<T: LlvmTarget>(
    t: &mut T,
    function: AtomicFn,
    elem: Elem,
    old: &T::Value,
    operand: &T::Value,
) -> Result<T::Value> {
    match function.combine() {
        Some(combine) => map(t, combine, elem, &[old.clone(), operand.clone()]),
        None => Ok(operand.clone()),
    }
}

/// An operation that computes an element of the corresponding ones.
pub(crate) fn operation<T: LlvmTarget>(
    t: &mut T,
    program: &Program,
    op: &Op,
    args: &[T::Value],
) -> Result<T::Value> {
    let invalid = |what: &str| Error::Invalid { program: program.name.clone(), message: what.to_owned() };
    let from = op.args.last().and_then(|&a| program.ty(a).elem());
    let from = from.ok_or_else(|| invalid("a pointer where a number is expected"))?;
    match (&op.kind, args) {
        (OpKind::Map(function), _) => map(t, *function, from, args),
        (OpKind::Cast(to), [a]) => cast(t, from, *to, a),
        (OpKind::Bitcast(to), [a]) => bitcast(t, from, *to, a),
        (kind, _) => Err(invalid(&format!("{} is not element by element", kind.name()))),
    }
}

/// What a region that combines elements yields for these.
pub(crate) fn region<T: LlvmTarget>(
    t: &mut T,
    program: &Program,
    region: &Region,
    args: &[T::Value],
) -> Result<Vec<T::Value>> {
    let invalid = |what: &str| Error::Invalid { program: program.name.clone(), message: what.to_owned() };
    let mut known: FxHashMap<Value, T::Value> =
        region.args.iter().copied().zip(args.iter().cloned()).collect();
    for op in &region.ops {
        let operands: Option<Vec<T::Value>> = op.args.iter().map(|a| known.get(a).cloned()).collect();
        let operands = operands.ok_or_else(|| invalid("a combiner that uses what is not its own"))?;
        let Some(&result) = op.results.first() else { return Ok(operands) };
        let value = match &op.kind {
            OpKind::Const(literal) => t.literal(*literal)?,
            _ => operation(t, program, op, &operands)?,
        };
        known.insert(result, value);
    }
    Err(invalid("a combiner without yield"))
}
