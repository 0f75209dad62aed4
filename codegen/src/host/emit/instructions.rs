//! LLVM's instructions on scalars and vectors, and what this target puts in their place.

use inkwell::FloatPredicate;
use inkwell::types::BasicTypeEnum;
use tilefuse_block::{Elem, Level, ScalarFn};

use super::Emitter;
use super::ir::{Ir, V, llvm};
use crate::Result;
use crate::scalar::{Instruction, LlvmTarget, Ty};

impl<'c> LlvmTarget for Emitter<'c, '_> {
    type Value = V<'c>;
    const NAME: &'static str = "host";

    fn build(&mut self, instruction: Instruction, _: Ty, args: &[V<'c>]) -> Result<V<'c>> {
        let ir = &self.ir;
        match (instruction, args) {
            (Instruction::Binary(op), &[a, b]) => ir.bin(op, a, b),
            (Instruction::Negate, &[a]) => ir.fneg(a),
            (Instruction::ICmp(is), &[a, b]) => ir.icmp(is, a, b),
            (Instruction::FCmp(is), &[a, b]) => ir.fcmp(is, a, b),
            (Instruction::Select, &[c, a, b]) => ir.select(c, a, b),
            (Instruction::Convert(op, to), &[a]) => ir.cast(op, a, ir.lane(to)),
            (Instruction::Call(name), _) => ir.call_same(name, args),
            (Instruction::Abs, &[a]) => {
                ir.call("llvm.abs", &[a.get_type()], &[a, ir.cx.bool_type().const_zero().into()])
            }
            _ => Err(llvm(format!("{instruction} of {} operands", args.len()))),
        }
    }

    fn int(&mut self, ty: Ty, value: i64) -> Result<V<'c>> {
        Ok(self.ir.int_of(self.ir.lane(ty), 0, value))
    }

    fn float(&mut self, ty: Ty, value: f64) -> Result<V<'c>> {
        match self.ir.lane(ty) {
            BasicTypeEnum::FloatType(ty) => Ok(ty.const_float(value).into()),
            other => Err(llvm(format!("a float of type {other}"))),
        }
    }

    /// Numbers of 16 bits are held as `f32`, which processors compute with.
    fn register(&self, elem: Elem) -> Ty {
        if matches!(elem, Elem::F16 | Elem::Bf16) { Ty::Float } else { Ty::of(elem) }
    }

    fn widen(&mut self, _: Elem, value: &V<'c>) -> Result<V<'c>> {
        Ok(*value)
    }

    fn narrow(&mut self, value: &V<'c>, to: Elem) -> Result<V<'c>> {
        self.round(*value, to)
    }

    fn to_bits(&mut self, elem: Elem, value: &V<'c>) -> Result<V<'c>> {
        match elem {
            Elem::F16 | Elem::Bf16 => self.narrowed(*value, elem),
            _ => self.ir.bits(*value, Ty::Int(elem.bits())),
        }
    }

    fn with_bits(&mut self, elem: Elem, bits: &V<'c>) -> Result<V<'c>> {
        match elem {
            Elem::F16 | Elem::Bf16 => self.widened(*bits, elem),
            _ => self.ir.bits(*bits, Ty::of(elem)),
        }
    }

    /// Mathematical functions by instructions for exponents, and maxima by one that orders zeros. LLVM makes longer code of
    /// maxima of numbers alone (`maximumnum`) than of these and two selections.
    fn native(&mut self, function: ScalarFn, elem: Elem, args: &[V<'c>]) -> Result<Option<V<'c>>> {
        use ScalarFn::*;
        match (function, args) {
            (Max | Min, &[a, b]) if elem.is_float() => self.extremum(function, a, b).map(Some),
            (FMax | FMin, &[a, b]) => {
                let both = self.extremum(function, a, b)?;
                let ir = &self.ir;
                let first = ir.select(ir.fcmp(FloatPredicate::UNO, b, b)?, a, both)?;
                ir.select(ir.fcmp(FloatPredicate::UNO, a, a)?, b, first).map(Some)
            }
            (_, &[x]) if matches!(function.level(), Level::Math(_)) => self.formula(function, x).map(Some),
            _ => Ok(None),
        }
    }
}

impl<'c> Ir<'c> {
    /// The type of one lane.
    fn lane(&self, ty: Ty) -> BasicTypeEnum<'c> {
        match ty {
            Ty::Int(128) => self.cx.i128_type().into(),
            Ty::Int(bits) => self.int_type(bits).into(),
            Ty::Half => self.cx.f16_type().into(),
            Ty::BFloat => self.cx.bf16_type().into(),
            Ty::Float => self.cx.f32_type().into(),
            Ty::Double => self.cx.f64_type().into(),
        }
    }

    /// The same bits as another type.
    fn bits(&self, v: V<'c>, ty: Ty) -> Result<V<'c>> {
        self.cast(inkwell::values::InstructionOpcode::BitCast, v, self.lane(ty))
    }
}
