//! LLVM's instructions on one element as text, and what this target puts in their place.

use inkwell::IntPredicate;
use tilefuse_block::{Elem, Literal, ScalarFn};

use super::fmod;
use super::ir::{Ir, Val, literal};
use crate::Result;
use crate::scalar::{self, Instruction, LlvmTarget, Ty};

impl LlvmTarget for Ir {
    type Value = Val;
    const NAME: &'static str = "PTX";

    fn build(&mut self, instruction: Instruction, ty: Ty, args: &[Val]) -> Result<Val> {
        use Instruction::*;
        Ok(match (instruction, args) {
            (Binary(_) | ICmp(_) | FCmp(_), [a, b]) => self.def(format_args!("{instruction} {ty} {a}, {b}")),
            (Negate, [a]) => self.def(format_args!("{instruction} {ty} {a}")),
            (Select, [c, a, b]) => self.def(format_args!("select i1 {c}, {ty} {a}, {ty} {b}")),
            (Convert(_, to), [a]) => self.def(format_args!("{instruction} {ty} {a} to {to}")),
            (Call(name), _) => {
                let operands: Vec<&Val> = args.iter().collect();
                self.intrinsic(&format!("{name}.{}", suffix(ty)), &ty.to_string(), &operands)
            }
            (Abs, [a]) => {
                self.declare(&format!("{ty} @llvm.abs.{ty}({ty}, i1)"));
                self.def(format_args!("call {ty} @llvm.abs.{ty}({ty} {a}, i1 false)"))
            }
            _ => return Err(self.lacks(format!("{instruction} of {} operands", args.len()))),
        })
    }

    fn int(&mut self, _: Ty, value: i64) -> Result<Val> {
        Ok(value.to_string().into())
    }

    fn float(&mut self, ty: Ty, value: f64) -> Result<Val> {
        let elem = match ty {
            Ty::Half => Elem::F16,
            Ty::BFloat => Elem::Bf16,
            Ty::Float => Elem::F32,
            Ty::Double | Ty::Int(_) => Elem::F64,
        };
        Ok(literal(Literal::float(elem, value)))
    }

    /// A `bf16` is the upper half of an `f32`: no conversion, and where it was loaded as a half of a word, not even the
    /// half is taken out of it. What functions are computed in is converted, for LLVM makes one instruction of 16 bits of
    /// that and the rounding behind it.
    fn extend(&mut self, from: Elem, value: &Val) -> Result<Val> {
        if from != Elem::Bf16 {
            return self.widen(from, value);
        }
        let bits = match self.half_of(value) {
            Some((word, true)) => self.def(format_args!("and i32 {word}, -65536")),
            Some((word, false)) => self.def(format_args!("shl i32 {word}, 16")),
            None => {
                let bits = self.def(format_args!("bitcast bfloat {value} to i16"));
                let wide = self.def(format_args!("zext i16 {bits} to i32"));
                self.def(format_args!("shl i32 {wide}, 16"))
            }
        };
        Ok(self.def(format_args!("bitcast i32 {bits} to float")))
    }

    /// Out of LLVM's sight: InstCombine takes the operand of a cast from a float to another for an integer where the result
    /// is compared with zero, and makes code that is not valid.
    fn between_floats(&mut self, bits: &Val) -> Result<Val> {
        Ok(self.def(format_args!("call i16 asm \"mov.b16 $0, $1;\", \"=h,h\"(i16 {bits}) nounwind")))
    }

    fn native(&mut self, function: ScalarFn, elem: Elem, args: &[Val]) -> Result<Option<Val>> {
        use ScalarFn::*;
        Ok(match (function, elem, args) {
            (Exp2Approx, Elem::F32, [a]) => Some(self.intrinsic("llvm.nvvm.ex2.approx.f", "float", &[a])),
            (Exp2ApproxFtz, Elem::F32, [a]) => {
                Some(self.intrinsic("llvm.nvvm.ex2.approx.ftz.f", "float", &[a]))
            }
            (RecipApprox, Elem::F32, [a]) => {
                Some(self.intrinsic("llvm.nvvm.rcp.approx.ftz.f", "float", &[a]))
            }
            (RsqrtApprox, Elem::F32, [a]) => Some(self.intrinsic("llvm.nvvm.rsqrt.approx.f", "float", &[a])),
            // PTX has no instruction, and there is no library.
            (RemTrunc, Elem::F32 | Elem::F64, [a, b]) => Some(fmod::call(self, elem, a, b)),
            // The NVPTX backend looks at the low 32 bits of an amount alone, so it must fit in them.
            (Shl | Shr, _, [a, b]) => {
                let (ty, bits) = (Ty::of(elem), self.int(Ty::of(elem), elem.bits().into())?);
                let small = self.icmp(IntPredicate::ULT, ty, b, &bits)?;
                let amount = self.select(ty, &small, b, &bits)?;
                Some(scalar::shift(self, function, elem, a, &amount)?)
            }
            _ => None,
        })
    }
}

/// The suffix of an intrinsic's name for a type.
fn suffix(ty: Ty) -> String {
    match ty {
        Ty::Int(_) => ty.to_string(),
        Ty::Half => "f16".to_owned(),
        Ty::BFloat => "bf16".to_owned(),
        Ty::Float => "f32".to_owned(),
        Ty::Double => "f64".to_owned(),
    }
}
