//! What scalar functions, conversions, atomic operations and combiners of reductions mean, for every target of LLVM.
//!
//! They are written once, in LLVM's instructions for one element. A target implements [`LlvmTarget`]: it builds the
//! instructions, on one element or on vectors of them, says how numbers of 16 bits lie in registers, and puts instructions
//! of its own in the place of what it has better ones for. A test lists by name what a target lacks.

mod cast;
mod combine;
mod function;
#[cfg(test)]
mod tests;

use std::fmt;

use inkwell::values::InstructionOpcode as Opcode;
use inkwell::{FloatPredicate, IntPredicate};
use tilefuse_block::{Elem, Literal, ScalarFn};

use crate::{Error, Result};

pub(crate) use cast::{bitcast, cast};
pub(crate) use combine::{accumulator, atomic, combine, masked, operation, region};
pub(crate) use function::{map, shift};

/// The type of one element in LLVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ty {
    /// An integer of so many bits.
    Int(u32),
    Half,
    BFloat,
    Float,
    Double,
}

impl Ty {
    /// The type with the bits of an element.
    pub(crate) fn of(elem: Elem) -> Ty {
        match elem {
            Elem::F16 => Ty::Half,
            Elem::Bf16 => Ty::BFloat,
            Elem::F32 => Ty::Float,
            Elem::F64 => Ty::Double,
            _ => Ty::Int(elem.bits()),
        }
    }
}

impl fmt::Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ty::Int(bits) => write!(f, "i{bits}"),
            Ty::Half => f.write_str("half"),
            Ty::BFloat => f.write_str("bfloat"),
            Ty::Float => f.write_str("float"),
            Ty::Double => f.write_str("double"),
        }
    }
}

/// An instruction of LLVM, on operands of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Instruction {
    /// An arithmetic operation on two operands.
    Binary(Opcode),
    /// `fneg`.
    Negate,
    ICmp(IntPredicate),
    FCmp(FloatPredicate),
    /// The first operand is a truth value, the others have the type.
    Select,
    /// A conversion to another type.
    Convert(Opcode, Ty),
    /// An intrinsic whose operands and result have the type.
    Call(&'static str),
    /// `llvm.abs`, which leaves the smallest integer as it is.
    Abs,
}

impl fmt::Display for Instruction {
    /// As the text of LLVM's IR spells it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lower = |name: &dyn fmt::Debug| format!("{name:?}").to_lowercase();
        match self {
            Instruction::Binary(opcode) | Instruction::Convert(opcode, _) => f.write_str(&lower(opcode)),
            Instruction::Negate => f.write_str("fneg"),
            Instruction::ICmp(predicate) => write!(f, "icmp {}", lower(predicate)),
            Instruction::FCmp(predicate) => write!(f, "fcmp {}", lower(predicate)),
            Instruction::Select => f.write_str("select"),
            Instruction::Call(name) => f.write_str(name),
            Instruction::Abs => f.write_str("llvm.abs"),
        }
    }
}

/// What a target provides so that code for it can be built.
///
/// The first three functions are what it must provide; as long as it does not, they report what is missing. The others
/// are what it may know better: what stands here is right for every target.
pub(crate) trait LlvmTarget {
    /// An element in a register, or a vector of elements.
    type Value: Clone;

    /// The target's name for people.
    const NAME: &'static str;

    /// Builds an instruction on operands of a type.
    fn build(&mut self, instruction: Instruction, ty: Ty, _args: &[Self::Value]) -> Result<Self::Value> {
        Err(self.lacks(match instruction {
            Instruction::Convert(_, to) => format!("{instruction} {ty} to {to}"),
            _ => format!("{instruction} {ty}"),
        }))
    }

    /// An integer constant; the higher bits of `value` are those of its sign.
    fn int(&mut self, ty: Ty, _value: i64) -> Result<Self::Value> {
        Err(self.lacks(format!("constant {ty}")))
    }

    /// A floating-point constant.
    fn float(&mut self, ty: Ty, _value: f64) -> Result<Self::Value> {
        Err(self.lacks(format!("constant {ty}")))
    }

    /// The type in which an element lies in a register.
    fn register(&self, elem: Elem) -> Ty {
        Ty::of(elem)
    }

    /// The `f32` of a number of 16 bits that a function is computed in.
    fn widen(&mut self, from: Elem, value: &Self::Value) -> Result<Self::Value> {
        let ty = self.register(from);
        self.convert(Opcode::FPExt, ty, Ty::Float, value)
    }

    /// The `f32` of a number of 16 bits that a program asks for.
    fn extend(&mut self, from: Elem, value: &Self::Value) -> Result<Self::Value> {
        self.widen(from, value)
    }

    /// An `f32` rounded to a number of 16 bits, to nearest even.
    fn narrow(&mut self, value: &Self::Value, to: Elem) -> Result<Self::Value> {
        let ty = self.register(to);
        self.convert(Opcode::FPTrunc, Ty::Float, ty, value)
    }

    /// The bits of an element, as an integer.
    fn to_bits(&mut self, elem: Elem, value: &Self::Value) -> Result<Self::Value> {
        match elem.is_float() {
            true => self.convert(Opcode::BitCast, Ty::of(elem), Ty::Int(elem.bits()), value),
            false => Ok(value.clone()),
        }
    }

    /// The element of which an integer has the bits.
    fn with_bits(&mut self, elem: Elem, bits: &Self::Value) -> Result<Self::Value> {
        match elem.is_float() {
            true => self.convert(Opcode::BitCast, Ty::Int(elem.bits()), Ty::of(elem), bits),
            false => Ok(bits.clone()),
        }
    }

    /// The bits of a float that become another one.
    fn between_floats(&mut self, bits: &Self::Value) -> Result<Self::Value> {
        Ok(bits.clone())
    }

    /// A function of operands of a kind (of `select`, the second and third) by what the target has of its own; nothing where
    /// it has nothing better than what all targets do.
    fn native(
        &mut self,
        _function: ScalarFn,
        _elem: Elem,
        _args: &[Self::Value],
    ) -> Result<Option<Self::Value>> {
        Ok(None)
    }

    /// A conversion.
    fn convert(&mut self, opcode: Opcode, from: Ty, to: Ty, value: &Self::Value) -> Result<Self::Value> {
        self.build(Instruction::Convert(opcode, to), from, std::slice::from_ref(value))
    }

    /// An arithmetic operation on two operands.
    fn binary(&mut self, op: Opcode, ty: Ty, a: &Self::Value, b: &Self::Value) -> Result<Self::Value> {
        self.build(Instruction::Binary(op), ty, &[a.clone(), b.clone()])
    }

    fn icmp(&mut self, is: IntPredicate, ty: Ty, a: &Self::Value, b: &Self::Value) -> Result<Self::Value> {
        self.build(Instruction::ICmp(is), ty, &[a.clone(), b.clone()])
    }

    fn fcmp(&mut self, is: FloatPredicate, ty: Ty, a: &Self::Value, b: &Self::Value) -> Result<Self::Value> {
        self.build(Instruction::FCmp(is), ty, &[a.clone(), b.clone()])
    }

    /// `a` where `condition` holds, else `b`.
    fn select(
        &mut self,
        ty: Ty,
        condition: &Self::Value,
        a: &Self::Value,
        b: &Self::Value,
    ) -> Result<Self::Value> {
        self.build(Instruction::Select, ty, &[condition.clone(), a.clone(), b.clone()])
    }

    /// A literal in a register.
    fn literal(&mut self, literal: Literal) -> Result<Self::Value> {
        let ty = self.register(literal.elem);
        match literal.elem.is_float() {
            true => self.float(ty, literal.as_f64()),
            false => self.int(ty, literal.bits as i64),
        }
    }

    /// The error of a target that does not have something.
    fn lacks(&self, what: String) -> Error {
        Error::Unsupported { target: Self::NAME.to_owned(), message: what }
    }
}

/// Whether numbers of a kind are computed with as `f32`.
fn is_narrow(elem: Elem) -> bool {
    matches!(elem, Elem::F16 | Elem::Bf16)
}
