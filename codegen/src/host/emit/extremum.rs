//! Maxima and minima of floats: NaN where an operand is one, and -0 below 0.
//!
//! AVX-512 has an instruction that orders zeros, but takes the number where one operand is NaN. With it they are three
//! instructions instead of six, and a running maximum waits for two instead of five.

use inkwell::FloatPredicate;
use inkwell::types::BasicTypeEnum;
use inkwell::values::InstructionOpcode as Op;
use tilefuse_block::ScalarFn;

use super::Emitter;
use super::ir::{V, lane_type, lanes_of};
use super::lanes::ROUNDING;
use crate::Result;

/// The instruction's words for a maximum and a minimum with its own sign.
const MAXIMUM: i64 = 0b0101;
const MINIMUM: i64 = 0b0100;

impl<'c> Emitter<'c, '_> {
    /// A maximum, or where the function is none, a minimum.
    pub(super) fn extremum(&self, function: ScalarFn, a: V<'c>, b: V<'c>) -> Result<V<'c>> {
        let ir = &self.ir;
        let mut args = [a, b];
        ir.match_lanes(&mut args);
        let greatest = matches!(function, ScalarFn::Max | ScalarFn::FMax);
        // LLVM knows of a constant that it is not NaN.
        let is_known = args.iter().any(|v| matches!(v, V::VectorValue(v) if v.is_const()));
        let [a, b] = args;
        let single = lane_type(a) == BasicTypeEnum::FloatType(ir.cx.f32_type());
        if is_known || !single || lanes_of(a) < 4 || !self.target.has_avx512() {
            return ir.call_same(if greatest { "llvm.maximum" } else { "llvm.minimum" }, &args);
        }
        let word = |bits: u32, value: i64| ir.int_of(ir.int_type(bits).into(), 0, value);
        let kind = word(32, if greatest { MAXIMUM } else { MINIMUM });
        let number = match lanes_of(a) {
            4 => ir.call("llvm.x86.avx512.mask.range.ps.128", &[], &[a, b, kind, a, word(8, -1)])?,
            8 => ir.call("llvm.x86.avx512.mask.range.ps.256", &[], &[a, b, kind, a, word(8, -1)])?,
            _ => ir.in_registers(&args, |v| {
                let args = [v[0], v[1], kind, v[0], word(16, -1), word(32, ROUNDING)];
                ir.call("llvm.x86.avx512.mask.range.ps.512", &[], &args)
            })?,
        };
        let nan = ir.bin(Op::FAdd, a, b)?;
        ir.select(ir.fcmp(FloatPredicate::UNO, a, b)?, nan, number)
    }
}
