//! The scalar functions.

use inkwell::values::InstructionOpcode as Op;
use inkwell::{FloatPredicate, IntPredicate};
use tilefuse_block::{BaseFn, Elem, Level, ScalarFn, TypeRule};

use super::{Instruction, LlvmTarget, Ty, is_narrow};
use crate::Result;

/// A function of operands of kind `elem` (of `select`, the second and third).
///
/// # Errors
/// Where the function does not take the kind, or is a mathematical one that the target does not compute itself.
pub(crate) fn map<T: LlvmTarget>(
    t: &mut T,
    function: ScalarFn,
    elem: Elem,
    args: &[T::Value],
) -> Result<T::Value> {
    let of = |i| if i == 0 && function.rule() == TypeRule::Select { Elem::Bool } else { elem };
    let kinds: Vec<Elem> = (0..args.len()).map(of).collect();
    if function.result(&kinds).is_none() {
        return Err(t.lacks(format!("{} of {elem} with {} operands", function.name(), args.len())));
    }
    if let Some(value) = t.native(function, elem, args)? {
        return Ok(value);
    }
    match function.level() {
        Level::Base(base) if is_narrow(elem) => narrow(t, base, elem, args),
        Level::Base(base) => {
            let ty = t.register(elem);
            compute(t, base, elem, ty, args)
        }
        Level::Math(_) => Err(t.lacks(format!("{} of {elem} that is not expanded", function.name()))),
    }
}

/// Functions of numbers of 16 bits: sign and selection as they are, the rest in `f32`, rounded once.
fn narrow<T: LlvmTarget>(t: &mut T, function: BaseFn, elem: Elem, args: &[T::Value]) -> Result<T::Value> {
    use BaseFn::*;
    let ty = t.register(elem);
    match function {
        Select | Neg | Abs | CopySign | Max | Min => compute(t, function, elem, ty, args),
        Eq | Ne | Lt | Le | Gt | Ge | IsNan | IsInf => {
            let wide = widened(t, elem, args)?;
            compute(t, function, Elem::F32, Ty::Float, &wide)
        }
        Add | Sub | Mul | Div | Fma | MulHi | DivTrunc | DivFloor | RemTrunc | RemFloor | FMax | FMin
        | Floor | Ceil | Trunc | RoundEven | And | Or | Xor | Not | Shl | Shr | Sqrt => {
            let wide = widened(t, elem, args)?;
            let result = match t.native(function.into(), Elem::F32, &wide)? {
                Some(result) => result,
                None => compute(t, function, Elem::F32, Ty::Float, &wide)?,
            };
            t.narrow(&result, elem)
        }
    }
}

fn widened<T: LlvmTarget>(t: &mut T, elem: Elem, args: &[T::Value]) -> Result<Vec<T::Value>> {
    args.iter().map(|a| t.widen(elem, a)).collect()
}

/// A function of a kind that is not narrow, or that does not round.
fn compute<T: LlvmTarget>(
    t: &mut T,
    function: BaseFn,
    elem: Elem,
    ty: Ty,
    args: &[T::Value],
) -> Result<T::Value> {
    use BaseFn::*;
    use Instruction::{Binary, Call};
    let (float, signed) = (elem.is_float(), elem.is_signed_int());
    let a = &args[0];
    let b = args.get(1).unwrap_or(a);
    let instruction = match function {
        Add => Binary(if float { Op::FAdd } else { Op::Add }),
        Sub => Binary(if float { Op::FSub } else { Op::Sub }),
        Mul => Binary(if float { Op::FMul } else { Op::Mul }),
        Div => Binary(Op::FDiv),
        Fma => Call("llvm.fma"),
        Neg if float => Instruction::Negate,
        Neg => {
            let zero = t.int(ty, 0)?;
            return t.binary(Op::Sub, ty, &zero, a);
        }
        Abs if float => Call("llvm.fabs"),
        Abs if signed => Instruction::Abs,
        Abs => return Ok(a.clone()),
        MulHi => return upper_product(t, elem, a, b),
        DivTrunc => return quotient(t, elem, a, b),
        DivFloor => return floor_quotient(t, elem, a, b),
        RemTrunc if float => Binary(Op::FRem),
        RemTrunc => return remainder(t, elem, a, b),
        RemFloor if float => return float_rem_floor(t, elem, ty, args),
        RemFloor => return floor_remainder(t, elem, a, b),
        Max if float => Call("llvm.maximum"),
        Max => Call(if signed { "llvm.smax" } else { "llvm.umax" }),
        Min if float => Call("llvm.minimum"),
        Min => Call(if signed { "llvm.smin" } else { "llvm.umin" }),
        FMax => Call("llvm.maximumnum"),
        FMin => Call("llvm.minimumnum"),
        CopySign => Call("llvm.copysign"),
        Floor => Call("llvm.floor"),
        Ceil => Call("llvm.ceil"),
        Trunc => Call("llvm.trunc"),
        RoundEven => Call("llvm.roundeven"),
        Sqrt => Call("llvm.sqrt"),
        And => Binary(Op::And),
        Or => Binary(Op::Or),
        Xor => Binary(Op::Xor),
        Not => {
            let ones = t.int(ty, -1)?;
            return t.binary(Op::Xor, ty, a, &ones);
        }
        Shl | Shr => return shift(t, function.into(), elem, a, b),
        Eq => comparison(elem, FloatPredicate::OEQ, IntPredicate::EQ, IntPredicate::EQ),
        Ne => comparison(elem, FloatPredicate::UNE, IntPredicate::NE, IntPredicate::NE),
        Lt => comparison(elem, FloatPredicate::OLT, IntPredicate::SLT, IntPredicate::ULT),
        Le => comparison(elem, FloatPredicate::OLE, IntPredicate::SLE, IntPredicate::ULE),
        Gt => comparison(elem, FloatPredicate::OGT, IntPredicate::SGT, IntPredicate::UGT),
        Ge => comparison(elem, FloatPredicate::OGE, IntPredicate::SGE, IntPredicate::UGE),
        IsNan => return t.fcmp(FloatPredicate::UNO, ty, a, a),
        IsInf => {
            let magnitude = t.build(Call("llvm.fabs"), ty, args)?;
            let infinity = t.float(ty, f64::INFINITY)?;
            return t.fcmp(FloatPredicate::OEQ, ty, &magnitude, &infinity);
        }
        Select => Instruction::Select,
    };
    t.build(instruction, ty, args)
}

fn comparison(
    elem: Elem,
    float: FloatPredicate,
    signed: IntPredicate,
    unsigned: IntPredicate,
) -> Instruction {
    match (elem.is_float(), elem.is_signed_int()) {
        (true, _) => Instruction::FCmp(float),
        (_, true) => Instruction::ICmp(signed),
        _ => Instruction::ICmp(unsigned),
    }
}

/// Python's remainder: C's, moved by the divisor where the signs differ.
fn float_rem_floor<T: LlvmTarget>(t: &mut T, elem: Elem, ty: Ty, args: &[T::Value]) -> Result<T::Value> {
    let b = &args[1];
    let rem = map(t, ScalarFn::RemTrunc, elem, args)?;
    let zero = t.float(ty, 0.0)?;
    let divisor_negative = t.fcmp(FloatPredicate::OLT, ty, b, &zero)?;
    let negative = t.fcmp(FloatPredicate::OLT, ty, &rem, &zero)?;
    let differ = t.binary(Op::Xor, Ty::Int(1), &divisor_negative, &negative)?;
    let nonzero = t.fcmp(FloatPredicate::UNE, ty, &rem, &zero)?;
    let moves = t.binary(Op::And, Ty::Int(1), &differ, &nonzero)?;
    let moved = t.binary(Op::FAdd, ty, &rem, b)?;
    t.select(ty, &moves, &moved, &rem)
}

/// The upper half of a product, which has twice the bits.
fn upper_product<T: LlvmTarget>(t: &mut T, elem: Elem, a: &T::Value, b: &T::Value) -> Result<T::Value> {
    let (ty, wide) = (Ty::Int(elem.bits()), Ty::Int(2 * elem.bits()));
    let extend = if elem.is_signed_int() { Op::SExt } else { Op::ZExt };
    let a = t.convert(extend, ty, wide, a)?;
    let b = t.convert(extend, ty, wide, b)?;
    let product = t.binary(Op::Mul, wide, &a, &b)?;
    let bits = t.int(wide, i64::from(elem.bits()))?;
    let upper = t.binary(Op::LShr, wide, &product, &bits)?;
    t.convert(Op::Trunc, wide, ty, &upper)
}

/// A divisor that LLVM's divisions are defined for, and where it took the place of 0 and of -1. These are undefined for a
/// zero divisor and for the smallest integer by -1, so that both are divided by 1.
struct Divisor<V> {
    divisor: V,
    is_zero: V,
    /// Of signed integers.
    is_minus_one: Option<V>,
}

fn divisor<T: LlvmTarget>(t: &mut T, elem: Elem, b: &T::Value) -> Result<Divisor<T::Value>> {
    let ty = Ty::Int(elem.bits());
    let (zero, one) = (t.int(ty, 0)?, t.int(ty, 1)?);
    let is_zero = t.icmp(IntPredicate::EQ, ty, b, &zero)?;
    if !elem.is_signed_int() {
        let divisor = t.select(ty, &is_zero, &one, b)?;
        return Ok(Divisor { divisor, is_zero, is_minus_one: None });
    }
    let ones = t.int(ty, -1)?;
    let is_minus_one = t.icmp(IntPredicate::EQ, ty, b, &ones)?;
    let special = t.binary(Op::Or, Ty::Int(1), &is_zero, &is_minus_one)?;
    let divisor = t.select(ty, &special, &one, b)?;
    Ok(Divisor { divisor, is_zero, is_minus_one: Some(is_minus_one) })
}

/// The quotient rounded toward zero; 0 for a zero divisor.
fn quotient<T: LlvmTarget>(t: &mut T, elem: Elem, a: &T::Value, b: &T::Value) -> Result<T::Value> {
    let by = divisor(t, elem, b)?;
    quotient_by(t, elem, a, &by)
}

fn quotient_by<T: LlvmTarget>(
    t: &mut T,
    elem: Elem,
    a: &T::Value,
    by: &Divisor<T::Value>,
) -> Result<T::Value> {
    let ty = Ty::Int(elem.bits());
    let zero = t.int(ty, 0)?;
    let op = if elem.is_signed_int() { Op::SDiv } else { Op::UDiv };
    let mut quotient = t.binary(op, ty, a, &by.divisor)?;
    if let Some(is_minus_one) = &by.is_minus_one {
        let negated = t.binary(Op::Sub, ty, &zero, a)?;
        quotient = t.select(ty, is_minus_one, &negated, &quotient)?;
    }
    t.select(ty, &by.is_zero, &zero, &quotient)
}

/// The remainder with the sign of the dividend; 0 for a zero divisor.
fn remainder<T: LlvmTarget>(t: &mut T, elem: Elem, a: &T::Value, b: &T::Value) -> Result<T::Value> {
    let by = divisor(t, elem, b)?;
    remainder_by(t, elem, a, &by)
}

fn remainder_by<T: LlvmTarget>(
    t: &mut T,
    elem: Elem,
    a: &T::Value,
    by: &Divisor<T::Value>,
) -> Result<T::Value> {
    let op = if elem.is_signed_int() { Op::SRem } else { Op::URem };
    t.binary(op, Ty::Int(elem.bits()), a, &by.divisor)
}

/// The quotient rounded toward minus infinity; 0 for a zero divisor.
fn floor_quotient<T: LlvmTarget>(t: &mut T, elem: Elem, a: &T::Value, b: &T::Value) -> Result<T::Value> {
    let by = divisor(t, elem, b)?;
    let quotient = quotient_by(t, elem, a, &by)?;
    if !elem.is_signed_int() {
        return Ok(quotient);
    }
    let ty = Ty::Int(elem.bits());
    let rem = remainder_by(t, elem, a, &by)?;
    let below = is_below(t, ty, &rem, b)?;
    let one = t.int(ty, 1)?;
    let lower = t.binary(Op::Sub, ty, &quotient, &one)?;
    t.select(ty, &below, &lower, &quotient)
}

/// The remainder with the sign of the divisor; 0 for a zero divisor.
fn floor_remainder<T: LlvmTarget>(t: &mut T, elem: Elem, a: &T::Value, b: &T::Value) -> Result<T::Value> {
    let rem = remainder(t, elem, a, b)?;
    if !elem.is_signed_int() {
        return Ok(rem);
    }
    let ty = Ty::Int(elem.bits());
    let below = is_below(t, ty, &rem, b)?;
    let higher = t.binary(Op::Add, ty, &rem, b)?;
    t.select(ty, &below, &higher, &rem)
}

/// Whether a remainder is not zero and its sign is not the divisor's.
fn is_below<T: LlvmTarget>(t: &mut T, ty: Ty, rem: &T::Value, b: &T::Value) -> Result<T::Value> {
    let zero = t.int(ty, 0)?;
    let nonzero = t.icmp(IntPredicate::NE, ty, rem, &zero)?;
    let mixed = t.binary(Op::Xor, ty, rem, b)?;
    let differ = t.icmp(IntPredicate::SLT, ty, &mixed, &zero)?;
    t.binary(Op::And, Ty::Int(1), &nonzero, &differ)
}

/// A shift, to the left or to the right; amounts that are negative or not below the width shift everything out.
pub(crate) fn shift<T: LlvmTarget>(
    t: &mut T,
    function: ScalarFn,
    elem: Elem,
    a: &T::Value,
    b: &T::Value,
) -> Result<T::Value> {
    let op = match (function, elem.is_signed_int()) {
        (ScalarFn::Shl, _) => Op::Shl,
        (_, true) => Op::AShr,
        (_, false) => Op::LShr,
    };
    let (ty, width) = (Ty::Int(elem.bits()), i64::from(elem.bits()));
    let bits = t.int(ty, width)?;
    let fits = t.icmp(IntPredicate::ULT, ty, b, &bits)?;
    let last = t.int(ty, width - 1)?;
    let amount = t.select(ty, &fits, b, &last)?;
    let shifted = t.binary(op, ty, a, &amount)?;
    if op == Op::AShr {
        return Ok(shifted);
    }
    let zero = t.int(ty, 0)?;
    t.select(ty, &fits, &shifted, &zero)
}
