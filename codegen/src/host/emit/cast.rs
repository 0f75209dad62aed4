//! Conversions between element kinds, and between registers and memory.

use inkwell::values::InstructionOpcode as Op;
use inkwell::{FloatPredicate, IntPredicate};
use tilefuse_block::Elem;

use super::Emitter;
use super::ir::{V, lane_type};
use crate::Result;

fn is_narrow(elem: Elem) -> bool {
    matches!(elem, Elem::F16 | Elem::Bf16)
}

impl<'c> Emitter<'c, '_> {
    /// Conversion of a value as [`tilefuse_block::OpKind::Cast`] defines it.
    pub(super) fn cast(&self, v: V<'c>, from: Elem, to: Elem) -> Result<V<'c>> {
        let ir = &self.ir;
        let ty = ir.elem_type(to);
        match (from, to) {
            _ if from == to => Ok(v),
            (_, Elem::Bool) if from.is_float() => ir.fcmp(FloatPredicate::UNE, v, ir.float_like(v, 0.0)),
            (_, Elem::Bool) => ir.icmp(IntPredicate::NE, v, ir.int_like(v, 0)),
            (_, Elem::F16 | Elem::Bf16) => self.round(self.cast(v, from, Elem::F32)?, to),
            (Elem::F64, Elem::F32) => ir.cast(Op::FPTrunc, v, ty),
            (Elem::F32 | Elem::F16 | Elem::Bf16, Elem::F64) => ir.cast(Op::FPExt, v, ty),
            _ if from.is_float() && to.is_float() => Ok(v),
            _ if from.is_float() => self.float_to_int(v, to),
            _ if to.is_float() && from.is_signed_int() => ir.cast(Op::SIToFP, v, ty),
            _ if to.is_float() => ir.cast(Op::UIToFP, v, ty),
            _ if to.bits() < from.bits() => ir.cast(Op::Trunc, v, ty),
            _ if from.is_signed_int() => ir.cast(Op::SExt, v, ty),
            _ => ir.cast(Op::ZExt, v, ty),
        }
    }

    /// Truncation through `i32` or `i64`, with the smallest integer for NaN and what is out of range.
    fn float_to_int(&self, v: V<'c>, to: Elem) -> Result<V<'c>> {
        let ir = &self.ir;
        let wide = matches!(to, Elem::I64 | Elem::U64 | Elem::U32);
        let bits = if wide { 64 } else { 32 };
        let big = (bits as f64 - 1.0).exp2();
        if to == Elem::U64 {
            let high = ir.fcmp(FloatPredicate::OGE, v, ir.float_like(v, big))?;
            let lowered = ir.bin(Op::FSub, v, ir.float_like(v, big))?;
            let small = self.truncate(ir.select(high, lowered, v)?, bits, big)?;
            let raised = ir.bin(Op::Add, small, ir.int_like(small, i64::MIN))?;
            return ir.select(high, raised, small);
        }
        ir.cast(Op::Trunc, self.truncate(v, bits, big)?, ir.elem_type(to))
    }

    fn truncate(&self, v: V<'c>, bits: u32, big: f64) -> Result<V<'c>> {
        let ir = &self.ir;
        let double = lane_type(v) == ir.elem_type(Elem::F64);
        // The largest value that truncates to the smallest i32 is not a float but a double.
        let (low, above) = match (bits, double) {
            (32, true) => (FloatPredicate::OGT, -big - 1.0),
            _ => (FloatPredicate::OGE, -big),
        };
        let not_low = ir.fcmp(low, v, ir.float_like(v, above))?;
        let not_high = ir.fcmp(FloatPredicate::OLT, v, ir.float_like(v, big))?;
        let fits = ir.bin(Op::And, not_low, not_high)?;
        let number = ir.cast(Op::FPToSI, v, ir.int_type(bits).into())?;
        let smallest = ir.int_like(number, if bits == 32 { i64::from(i32::MIN) } else { i64::MIN });
        ir.select(fits, number, smallest)
    }

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

    /// The same bits as another kind, as [`tilefuse_block::OpKind::Bitcast`] defines it.
    pub(super) fn bitcast(&self, v: V<'c>, from: Elem, to: Elem) -> Result<V<'c>> {
        if from == to || (!is_narrow(from) && !is_narrow(to) && !from.is_float() && !to.is_float()) {
            return Ok(v);
        }
        let bits = self.narrowed(v, from)?;
        let raw = self.ir.cast(Op::BitCast, bits, self.ir.memory_type(to))?;
        self.widened(raw, to)
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
