//! Conversions between the kinds of elements.

use inkwell::values::InstructionOpcode as Op;
use inkwell::{FloatPredicate, IntPredicate};
use tilefuse_block::Elem;

use super::{LlvmTarget, Ty, is_narrow};
use crate::Result;

/// Conversion of a number, as [`tilefuse_block::OpKind::Cast`] defines it.
pub(crate) fn cast<T: LlvmTarget>(t: &mut T, from: Elem, to: Elem, a: &T::Value) -> Result<T::Value> {
    if from == to {
        return Ok(a.clone());
    }
    if to == Elem::Bool {
        return is_nonzero(t, from, a);
    }
    match (from.is_float(), to.is_float()) {
        (true, true) => float_to_float(t, from, to, a),
        (true, false) => float_to_int(t, from, to, a),
        (false, true) => int_to_float(t, from, to, a),
        (false, false) => int_to_int(t, from, to, a),
    }
}

/// The same bits as another kind, as [`tilefuse_block::OpKind::Bitcast`] defines it.
pub(crate) fn bitcast<T: LlvmTarget>(t: &mut T, from: Elem, to: Elem, a: &T::Value) -> Result<T::Value> {
    if from == to {
        return Ok(a.clone());
    }
    let mut bits = t.to_bits(from, a)?;
    if from.is_float() && to.is_float() {
        bits = t.between_floats(&bits)?;
    }
    t.with_bits(to, &bits)
}

fn is_nonzero<T: LlvmTarget>(t: &mut T, from: Elem, a: &T::Value) -> Result<T::Value> {
    let ty = t.register(from);
    if from.is_float() {
        let zero = t.float(ty, 0.0)?;
        return t.fcmp(FloatPredicate::UNE, ty, a, &zero);
    }
    let zero = t.int(ty, 0)?;
    t.icmp(IntPredicate::NE, ty, a, &zero)
}

/// Numbers of 16 bits by way of `f32`.
fn float_to_float<T: LlvmTarget>(t: &mut T, from: Elem, to: Elem, a: &T::Value) -> Result<T::Value> {
    let single = match from {
        Elem::F64 => t.convert(Op::FPTrunc, Ty::Double, Ty::Float, a)?,
        _ if is_narrow(from) && to == Elem::F32 => t.extend(from, a)?,
        _ if is_narrow(from) => t.widen(from, a)?,
        _ => a.clone(),
    };
    match to {
        Elem::F64 => t.convert(Op::FPExt, Ty::Float, Ty::Double, &single),
        _ if is_narrow(to) => t.narrow(&single, to),
        _ => Ok(single),
    }
}

/// Truncation through `i32` or `i64`: what does not fit is the smallest integer of that width, and narrower kinds keep its
/// low bits. For `u64`, 2^63 is taken off values that are not below it, and put back.
fn float_to_int<T: LlvmTarget>(t: &mut T, from: Elem, to: Elem, a: &T::Value) -> Result<T::Value> {
    let a = if is_narrow(from) { t.widen(from, a)? } else { a.clone() };
    let ty = if from == Elem::F64 { Ty::Double } else { Ty::Float };
    if to == Elem::U64 {
        return float_to_u64(t, ty, &a);
    }
    // The lowest byte of what does not fit `i32` is 0 where it is no `f64`, either way.
    let is_wide = matches!(to, Elem::I64 | Elem::U32) || (from, to) == (Elem::F64, Elem::U8);
    let bits = if is_wide { 64 } else { 32 };
    let value = truncate(t, ty, &a, bits)?;
    match to.bits() < bits {
        true => t.convert(Op::Trunc, Ty::Int(bits), Ty::Int(to.bits()), &value),
        false => Ok(value),
    }
}

fn float_to_u64<T: LlvmTarget>(t: &mut T, ty: Ty, a: &T::Value) -> Result<T::Value> {
    let (word, half) = (Ty::Int(64), t.float(ty, 63f64.exp2())?);
    let large = t.fcmp(FloatPredicate::OGE, ty, a, &half)?;
    let less = t.binary(Op::FSub, ty, a, &half)?;
    let rest = t.select(ty, &large, &less, a)?;
    let value = truncate(t, ty, &rest, 64)?;
    let smallest = t.int(word, i64::MIN)?;
    let back = t.binary(Op::Add, word, &value, &smallest)?;
    t.select(word, &large, &back, &value)
}

/// Truncation to an integer of so many bits, or the smallest one for NaN and what is out of range.
fn truncate<T: LlvmTarget>(t: &mut T, ty: Ty, a: &T::Value, bits: u32) -> Result<T::Value> {
    let limit = f64::from(bits - 1).exp2();
    // A double holds numbers between the smallest 32-bit integer and the one below, which truncate to the former.
    let (is, low) = match (bits, ty) {
        (32, Ty::Double) => (FloatPredicate::OGT, -limit - 1.0),
        _ => (FloatPredicate::OGE, -limit),
    };
    let (low, high) = (t.float(ty, low)?, t.float(ty, limit)?);
    let above = t.fcmp(is, ty, a, &low)?;
    let below = t.fcmp(FloatPredicate::OLT, ty, a, &high)?;
    let inside = t.binary(Op::And, Ty::Int(1), &above, &below)?;
    let number = t.convert(Op::FPToSI, ty, Ty::Int(bits), a)?;
    let smallest = t.int(Ty::Int(bits), i64::MIN >> (64 - bits))?;
    t.select(Ty::Int(bits), &inside, &number, &smallest)
}

fn int_to_float<T: LlvmTarget>(t: &mut T, from: Elem, to: Elem, a: &T::Value) -> Result<T::Value> {
    let op = if from.is_signed_int() { Op::SIToFP } else { Op::UIToFP };
    let ty = if to == Elem::F64 { Ty::Double } else { Ty::Float };
    let number = t.convert(op, Ty::of(from), ty, a)?;
    if is_narrow(to) { t.narrow(&number, to) } else { Ok(number) }
}

fn int_to_int<T: LlvmTarget>(t: &mut T, from: Elem, to: Elem, a: &T::Value) -> Result<T::Value> {
    let op = match from.bits().cmp(&to.bits()) {
        std::cmp::Ordering::Equal => return Ok(a.clone()),
        std::cmp::Ordering::Greater => Op::Trunc,
        std::cmp::Ordering::Less if from.is_signed_int() => Op::SExt,
        std::cmp::Ordering::Less => Op::ZExt,
    };
    t.convert(op, Ty::of(from), Ty::of(to), a)
}
