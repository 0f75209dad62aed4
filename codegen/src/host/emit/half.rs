//! Numbers of 16 bits, which registers hold as `f32`, and what stands in memory for elements.

use inkwell::values::InstructionOpcode as Op;
use inkwell::{FloatPredicate, IntPredicate};
use tilefuse_block::Elem;

use super::Emitter;
use super::ir::V;
use crate::Result;

impl<'c> Emitter<'c, '_> {
    /// Rounds an `f32` to the values of `elem`, where that is narrower.
    pub(super) fn round(&self, v: V<'c>, elem: Elem) -> Result<V<'c>> {
        match elem {
            Elem::F16 | Elem::Bf16 => self.widened(self.narrowed(v, elem)?, elem),
            _ => Ok(v),
        }
    }

    /// What stands in memory for a value in a register.
    pub(super) fn narrowed(&self, v: V<'c>, elem: Elem) -> Result<V<'c>> {
        let ir = &self.ir;
        match elem {
            Elem::Bool => ir.cast(Op::ZExt, v, ir.int_type(8).into()),
            Elem::F16 if self.target.f16c => {
                let half = ir.cast(Op::FPTrunc, v, ir.cx.f16_type().into())?;
                ir.cast(Op::BitCast, half, ir.int_type(16).into())
            }
            Elem::F16 => self.f16_bits(v),
            Elem::Bf16 => self.bf16_bits(v),
            _ => Ok(v),
        }
    }

    /// What stands in memory for a `bf16` in a register, which is rounded already.
    pub(super) fn upper_half(&self, v: V<'c>) -> Result<V<'c>> {
        let ir = &self.ir;
        let bits = ir.cast(Op::BitCast, v, ir.int_type(32).into())?;
        let high = ir.bin(Op::LShr, bits, ir.int_like(bits, 16))?;
        ir.cast(Op::Trunc, high, ir.int_type(16).into())
    }

    /// The value in a register for what stands in memory.
    pub(super) fn widened(&self, v: V<'c>, elem: Elem) -> Result<V<'c>> {
        let ir = &self.ir;
        match elem {
            Elem::Bool => ir.icmp(IntPredicate::NE, v, ir.int_like(v, 0)),
            Elem::F16 if self.target.f16c => {
                let half = ir.cast(Op::BitCast, v, ir.cx.f16_type().into())?;
                ir.cast(Op::FPExt, half, ir.cx.f32_type().into())
            }
            Elem::F16 => self.f16_value(v),
            Elem::Bf16 => {
                let wide = ir.cast(Op::ZExt, v, ir.int_type(32).into())?;
                let bits = ir.bin(Op::Shl, wide, ir.int_like(wide, 16))?;
                ir.cast(Op::BitCast, bits, ir.cx.f32_type().into())
            }
            _ => Ok(v),
        }
    }

    /// Round to nearest even by carrying into the upper half; a NaN is made quiet instead.
    fn bf16_bits(&self, v: V<'c>) -> Result<V<'c>> {
        let ir = &self.ir;
        let bits = ir.cast(Op::BitCast, v, ir.int_type(32).into())?;
        let odd = ir.bin(Op::And, ir.bin(Op::LShr, bits, ir.int_like(bits, 16))?, ir.int_like(bits, 1))?;
        let carried = ir.bin(Op::Add, ir.bin(Op::Add, bits, ir.int_like(bits, 0x7fff))?, odd)?;
        let quiet = ir.bin(Op::Or, bits, ir.int_like(bits, 0x40_0000))?;
        let nan = ir.fcmp(FloatPredicate::UNO, v, v)?;
        let rounded = ir.select(nan, quiet, carried)?;
        let high = ir.bin(Op::LShr, rounded, ir.int_like(bits, 16))?;
        ir.cast(Op::Trunc, high, ir.int_type(16).into())
    }

    /// `f16` from `f32` without an instruction for it. Normal results round by a carry; denormal ones by adding a
    /// float whose last place is theirs.
    fn f16_bits(&self, v: V<'c>) -> Result<V<'c>> {
        let ir = &self.ir;
        let int = |x: i64| move |like: V<'c>| ir.int_like(like, x);
        let bits = ir.cast(Op::BitCast, v, ir.int_type(32).into())?;
        let sign = ir.bin(Op::And, bits, int(0x8000_0000)(bits))?;
        let magnitude = ir.bin(Op::Xor, bits, sign)?;
        let odd = ir.bin(Op::And, ir.bin(Op::LShr, magnitude, int(13)(bits))?, int(1)(bits))?;
        let rebias = int(((15 - 127) << 23) + 0xfff)(bits);
        let normal = ir.bin(Op::Add, ir.bin(Op::Add, magnitude, rebias)?, odd)?;
        let normal = ir.bin(Op::LShr, normal, int(13)(bits))?;
        let absolute = ir.cast(Op::BitCast, magnitude, ir.cx.f32_type().into())?;
        let summed = ir.bin(Op::FAdd, absolute, ir.float_like(absolute, 0.5))?;
        let summed = ir.cast(Op::BitCast, summed, ir.int_type(32).into())?;
        let denormal = ir.bin(Op::Sub, summed, int(0x3f00_0000)(bits))?;
        let small = ir.icmp(IntPredicate::ULT, magnitude, int(113 << 23)(bits))?;
        let finite = ir.select(small, denormal, normal)?;
        let huge = ir.icmp(IntPredicate::UGE, magnitude, int((127 + 16) << 23)(bits))?;
        let nan = ir.icmp(IntPredicate::UGT, magnitude, int(0x7f80_0000)(bits))?;
        let special = ir.select(nan, int(0x7e00)(bits), int(0x7c00)(bits))?;
        let result = ir.select(huge, special, finite)?;
        let sign = ir.bin(Op::LShr, sign, int(16)(bits))?;
        ir.cast(Op::Trunc, ir.bin(Op::Or, result, sign)?, ir.int_type(16).into())
    }

    /// `f32` from `f16` without an instruction for it: the exponent is corrected by a product, which is exact.
    fn f16_value(&self, v: V<'c>) -> Result<V<'c>> {
        let ir = &self.ir;
        let wide = ir.cast(Op::ZExt, v, ir.int_type(32).into())?;
        let sign =
            ir.bin(Op::Shl, ir.bin(Op::And, wide, ir.int_like(wide, 0x8000))?, ir.int_like(wide, 16))?;
        let magnitude = ir.bin(Op::And, wide, ir.int_like(wide, 0x7fff))?;
        let shifted = ir.bin(Op::Shl, magnitude, ir.int_like(wide, 13))?;
        let float = ir.cast(Op::BitCast, shifted, ir.cx.f32_type().into())?;
        let scaled = ir.bin(Op::FMul, float, ir.float_like(float, 112f64.exp2()))?;
        let scaled = ir.cast(Op::BitCast, scaled, ir.int_type(32).into())?;
        let special = ir.icmp(IntPredicate::UGE, magnitude, ir.int_like(wide, 0x7c00))?;
        let infinite = ir.bin(Op::Or, shifted, ir.int_like(wide, 0x7f80_0000))?;
        let bits = ir.bin(Op::Or, ir.select(special, infinite, scaled)?, sign)?;
        ir.cast(Op::BitCast, bits, ir.cx.f32_type().into())
    }
}
