//! The scalar functions.

use inkwell::values::InstructionOpcode as Op;
use inkwell::{FloatPredicate, IntPredicate};
use tilefuse_block::{Elem, ScalarFn};

use super::Emitter;
use super::ir::{V, lanes_of, llvm, widen};
use crate::Result;

impl<'c> Emitter<'c, '_> {
    /// A scalar function of operands of kind `elem` (the kind of the last operand). Narrow floats are rounded.
    pub(super) fn map(&self, function: ScalarFn, elem: Elem, args: &[V<'c>]) -> Result<V<'c>> {
        let result = match (function, args) {
            (ScalarFn::Select, [c, a, b]) => return self.ir.select(*c, *a, *b),
            (ScalarFn::Fma, [_, _, _]) => self.ir.call_same("llvm.fma", args)?,
            (_, [a]) if elem.is_float() => self.float_unary(function, *a)?,
            (_, [a]) => return self.int_unary(function, elem, *a),
            (_, [a, b]) if is_comparison(function) => return self.compare(function, elem, *a, *b),
            (_, [a, b]) if elem.is_float() => self.float_binary(function, *a, *b)?,
            (_, [a, b]) => return self.int_binary(function, elem, *a, *b),
            _ => return Err(llvm(format!("{} with {} operands", function.name(), args.len()))),
        };
        match function {
            // The result is a truth value, an operand, or as narrow as the operands.
            ScalarFn::IsNan
            | ScalarFn::IsInf
            | ScalarFn::Neg
            | ScalarFn::Abs
            | ScalarFn::Max
            | ScalarFn::Min => Ok(result),
            _ => self.round(result, elem),
        }
    }

    fn float_unary(&self, function: ScalarFn, a: V<'c>) -> Result<V<'c>> {
        let ir = &self.ir;
        let name = match function {
            ScalarFn::Neg => return ir.fneg(a),
            ScalarFn::IsNan => return ir.fcmp(FloatPredicate::UNO, a, a),
            ScalarFn::IsInf => {
                let size = ir.call_same("llvm.fabs", &[a])?;
                return ir.fcmp(FloatPredicate::OEQ, size, ir.float_like(a, f64::INFINITY));
            }
            ScalarFn::Abs => "llvm.fabs",
            ScalarFn::Floor => "llvm.floor",
            ScalarFn::Ceil => "llvm.ceil",
            ScalarFn::Trunc => "llvm.trunc",
            ScalarFn::RoundEven => "llvm.roundeven",
            ScalarFn::Sqrt => "llvm.sqrt",
            other => return Err(self.unsupported(other)),
        };
        ir.call_same(name, &[a])
    }

    fn unsupported(&self, function: ScalarFn) -> crate::Error {
        let message = format!("the function {} in {}", function.name(), self.plan.program.name);
        crate::Error::Unsupported { target: "host".to_owned(), message }
    }

    fn float_binary(&self, function: ScalarFn, a: V<'c>, b: V<'c>) -> Result<V<'c>> {
        let ir = &self.ir;
        match function {
            ScalarFn::Add => ir.bin(Op::FAdd, a, b),
            ScalarFn::Sub => ir.bin(Op::FSub, a, b),
            ScalarFn::Mul => ir.bin(Op::FMul, a, b),
            ScalarFn::Div => ir.bin(Op::FDiv, a, b),
            ScalarFn::RemTrunc => ir.bin(Op::FRem, a, b),
            ScalarFn::RemFloor => {
                let rem = ir.bin(Op::FRem, a, b)?;
                let zero = ir.float_like(rem, 0.0);
                let signs = ir.bin(
                    Op::Xor,
                    ir.fcmp(FloatPredicate::OLT, b, zero)?,
                    ir.fcmp(FloatPredicate::OLT, rem, zero)?,
                )?;
                let wrong = ir.bin(Op::And, signs, ir.fcmp(FloatPredicate::UNE, rem, zero)?)?;
                ir.select(wrong, ir.bin(Op::FAdd, rem, b)?, rem)
            }
            ScalarFn::Max | ScalarFn::Min => self.extremum(function, a, b),
            ScalarFn::FMax | ScalarFn::FMin => {
                let both = self.extremum(function, a, b)?;
                let first = ir.select(ir.fcmp(FloatPredicate::UNO, b, b)?, a, both)?;
                ir.select(ir.fcmp(FloatPredicate::UNO, a, a)?, b, first)
            }
            ScalarFn::CopySign => ir.call_same("llvm.copysign", &[a, b]),
            other => Err(self.unsupported(other)),
        }
    }

    fn int_unary(&self, function: ScalarFn, elem: Elem, a: V<'c>) -> Result<V<'c>> {
        let ir = &self.ir;
        match function {
            ScalarFn::Abs if elem.is_signed_int() => {
                ir.call("llvm.abs", &[a.get_type()], &[a, ir.cx.bool_type().const_zero().into()])
            }
            ScalarFn::Abs => Ok(a),
            ScalarFn::Neg => ir.bin(Op::Sub, ir.int_like(a, 0), a),
            ScalarFn::Not => ir.not(a),
            other => Err(self.unsupported(other)),
        }
    }

    fn compare(&self, function: ScalarFn, elem: Elem, a: V<'c>, b: V<'c>) -> Result<V<'c>> {
        if elem.is_float() {
            let predicate = match function {
                ScalarFn::Eq => FloatPredicate::OEQ,
                ScalarFn::Ne => FloatPredicate::UNE,
                ScalarFn::Lt => FloatPredicate::OLT,
                ScalarFn::Le => FloatPredicate::OLE,
                ScalarFn::Gt => FloatPredicate::OGT,
                _ => FloatPredicate::OGE,
            };
            return self.ir.fcmp(predicate, a, b);
        }
        let predicate = match (function, elem.is_signed_int()) {
            (ScalarFn::Eq, _) => IntPredicate::EQ,
            (ScalarFn::Ne, _) => IntPredicate::NE,
            (ScalarFn::Lt, true) => IntPredicate::SLT,
            (ScalarFn::Le, true) => IntPredicate::SLE,
            (ScalarFn::Gt, true) => IntPredicate::SGT,
            (_, true) => IntPredicate::SGE,
            (ScalarFn::Lt, false) => IntPredicate::ULT,
            (ScalarFn::Le, false) => IntPredicate::ULE,
            (ScalarFn::Gt, false) => IntPredicate::UGT,
            (_, false) => IntPredicate::UGE,
        };
        self.ir.icmp(predicate, a, b)
    }

    fn int_binary(&self, function: ScalarFn, elem: Elem, a: V<'c>, b: V<'c>) -> Result<V<'c>> {
        let ir = &self.ir;
        let signed = elem.is_signed_int();
        match function {
            ScalarFn::Add => ir.bin(Op::Add, a, b),
            ScalarFn::Sub => ir.bin(Op::Sub, a, b),
            ScalarFn::Mul => ir.bin(Op::Mul, a, b),
            ScalarFn::MulHi => self.upper_product(elem, a, b),
            ScalarFn::And => ir.bin(Op::And, a, b),
            ScalarFn::Or => ir.bin(Op::Or, a, b),
            ScalarFn::Xor => ir.bin(Op::Xor, a, b),
            ScalarFn::Max => ir.call_same(if signed { "llvm.smax" } else { "llvm.umax" }, &[a, b]),
            ScalarFn::Min => ir.call_same(if signed { "llvm.smin" } else { "llvm.umin" }, &[a, b]),
            ScalarFn::DivTrunc | ScalarFn::DivFloor | ScalarFn::RemTrunc | ScalarFn::RemFloor => {
                self.divide(function, elem, a, b)
            }
            ScalarFn::Shl | ScalarFn::Shr => self.shift(function, elem, a, b),
            other => Err(self.unsupported(other)),
        }
    }

    fn upper_product(&self, elem: Elem, a: V<'c>, b: V<'c>) -> Result<V<'c>> {
        let ir = &self.ir;
        let mut operands = [a, b];
        ir.match_lanes(&mut operands);
        let [a, b] = operands;
        let double = if elem.bits() == 64 { ir.cx.i128_type() } else { ir.int_type(2 * elem.bits()) };
        let wide = widen(double.into(), lanes_of(a));
        let extend = if elem.is_signed_int() { Op::SExt } else { Op::ZExt };
        let product = ir.bin(Op::Mul, ir.cast(extend, a, wide)?, ir.cast(extend, b, wide)?)?;
        let upper = ir.bin(Op::LShr, product, ir.int_like(product, i64::from(elem.bits())))?;
        ir.cast(Op::Trunc, upper, a.get_type())
    }

    /// Division by 1 in place of 0 and of -1 under the smallest integer, whose results are then right or replaced.
    fn divide(&self, function: ScalarFn, elem: Elem, a: V<'c>, b: V<'c>) -> Result<V<'c>> {
        let ir = &self.ir;
        let zero = ir.int_like(b, 0);
        let by_zero = ir.icmp(IntPredicate::EQ, b, zero)?;
        let mut bad = by_zero;
        if elem.is_signed_int() {
            let smallest = ir.int_like(a, i64::MIN >> (64 - elem.bits()));
            let lowest = ir.icmp(IntPredicate::EQ, a, smallest)?;
            let minus_one = ir.icmp(IntPredicate::EQ, b, ir.int_like(b, -1))?;
            bad = ir.bin(Op::Or, bad, ir.bin(Op::And, lowest, minus_one)?)?;
        }
        let divisor = ir.select(bad, ir.int_like(b, 1), b)?;
        if !elem.is_signed_int() {
            return match function {
                ScalarFn::DivTrunc | ScalarFn::DivFloor => {
                    ir.select(by_zero, zero, ir.bin(Op::UDiv, a, divisor)?)
                }
                _ => ir.bin(Op::URem, a, divisor),
            };
        }
        let rem = ir.bin(Op::SRem, a, divisor)?;
        let signs = ir.icmp(IntPredicate::SLT, ir.bin(Op::Xor, rem, divisor)?, zero)?;
        let inexact = ir.icmp(IntPredicate::NE, rem, zero)?;
        let below = ir.bin(Op::And, signs, inexact)?;
        match function {
            ScalarFn::RemTrunc => Ok(rem),
            ScalarFn::RemFloor => ir.select(below, ir.bin(Op::Add, rem, divisor)?, rem),
            _ => {
                let mut quotient = ir.bin(Op::SDiv, a, divisor)?;
                if function == ScalarFn::DivFloor {
                    let lower = ir.bin(Op::Sub, quotient, ir.int_like(quotient, 1))?;
                    quotient = ir.select(below, lower, quotient)?;
                }
                ir.select(by_zero, zero, quotient)
            }
        }
    }

    fn shift(&self, function: ScalarFn, elem: Elem, a: V<'c>, b: V<'c>) -> Result<V<'c>> {
        let ir = &self.ir;
        let fits = ir.icmp(IntPredicate::ULT, b, ir.int_like(b, i64::from(elem.bits())))?;
        let last = ir.int_like(b, i64::from(elem.bits()) - 1);
        let amount = ir.select(fits, b, last)?;
        match function {
            ScalarFn::Shr if elem.is_signed_int() => ir.bin(Op::AShr, a, amount),
            ScalarFn::Shr => ir.select(fits, ir.bin(Op::LShr, a, amount)?, ir.int_like(a, 0)),
            _ => ir.select(fits, ir.bin(Op::Shl, a, amount)?, ir.int_like(a, 0)),
        }
    }
}

fn is_comparison(function: ScalarFn) -> bool {
    use ScalarFn::*;
    matches!(function, Eq | Ne | Lt | Le | Gt | Ge)
}
