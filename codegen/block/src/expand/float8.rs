//! 8-bit floats from and to `f32`, in integer arithmetic on their bits.

use super::{Cx, Result};
use crate::program::{OpKind, Value};
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Literal};

/// A format of 8 bits.
struct Format {
    /// Bits of the mantissa.
    mantissa: u32,
    /// What is subtracted from the exponent.
    bias: u32,
    /// The largest finite value's bits.
    max: u32,
    /// The bits of what overflows.
    overflow: u32,
}

fn format(elem: Elem) -> Format {
    match elem {
        Elem::F8E4M3 => Format { mantissa: 3, bias: 7, max: 0x7E, overflow: 0x7F },
        _ => Format { mantissa: 2, bias: 15, max: 0x7B, overflow: 0x7C },
    }
}

impl Cx<'_> {
    fn float(&mut self, value: f64, like: Value) -> Value {
        self.literal(Literal::float(Elem::F32, value), like)
    }

    fn with_word(&mut self, function: ScalarFn, value: Value, word: u32) -> Result<Value> {
        let word = self.word(word, value);
        self.map(function, &[value, word])
    }

    /// `f32` from the bits (`u8`) of a kind. Numbers are moved to the fields of an `f32`; subnormal ones are
    /// converted as integers, so that nothing depends on how a target treats subnormal `f32`.
    pub(super) fn decode(&mut self, elem: Elem, bits: Value) -> Result<Value> {
        let format = format(elem);
        let move_by = 23 - format.mantissa;
        let word = self.cast(bits, Elem::U32)?;
        let sign = self.with_word(ScalarFn::And, word, 0x80)?;
        let sign = self.with_word(ScalarFn::Shl, sign, 24)?;
        let magnitude = self.with_word(ScalarFn::And, word, 0x7F)?;
        let moved = self.with_word(ScalarFn::Shl, magnitude, move_by)?;
        let normal = self.with_word(ScalarFn::Add, moved, (127 - format.bias) << 23)?;
        let special = self.with_word(ScalarFn::Or, moved, 0x7F80_0000)?;
        let is_special = self.with_word(ScalarFn::Gt, magnitude, format.max)?;
        let number = self.map(ScalarFn::Select, &[is_special, special, normal])?;
        let units = self.cast(magnitude, Elem::F32)?;
        let unit = self.float((1.0 - f64::from(format.bias) - f64::from(format.mantissa)).exp2(), bits);
        let small = self.map(ScalarFn::Mul, &[units, unit])?;
        let small = self.emit(OpKind::Bitcast(Elem::U32), &[small])?;
        let is_small = self.with_word(ScalarFn::Lt, magnitude, 1 << format.mantissa)?;
        let number = self.map(ScalarFn::Select, &[is_small, small, number])?;
        let number = self.map(ScalarFn::Or, &[number, sign])?;
        self.emit(OpKind::Bitcast(Elem::F32), &[number])
    }

    /// The bits (`u8`) of the nearest value of a kind, ties to even.
    pub(super) fn encode(&mut self, elem: Elem, value: Value) -> Result<Value> {
        let format = format(elem);
        let drop = 23 - format.mantissa;
        let word = self.emit(OpKind::Bitcast(Elem::U32), &[value])?;
        let sign = self.with_word(ScalarFn::Shr, word, 24)?;
        let sign = self.with_word(ScalarFn::And, sign, 0x80)?;
        let magnitude = self.with_word(ScalarFn::And, word, 0x7FFF_FFFF)?;
        // Normal numbers: half a unit less one, and one more where the last kept bit is odd, then cut.
        let odd = self.with_word(ScalarFn::Shr, magnitude, drop)?;
        let odd = self.with_word(ScalarFn::And, odd, 1)?;
        let rounded = self.with_word(ScalarFn::Add, magnitude, (1 << (drop - 1)) - 1)?;
        let rounded = self.map(ScalarFn::Add, &[rounded, odd])?;
        let rounded = self.with_word(ScalarFn::Shr, rounded, drop)?;
        let normal = self.with_word(ScalarFn::Sub, rounded, (127 - format.bias) << format.mantissa)?;
        let too_large = self.with_word(ScalarFn::Gt, normal, format.max)?;
        let overflow = self.word(format.overflow, value);
        let normal = self.map(ScalarFn::Select, &[too_large, overflow, normal])?;
        // Subnormal ones: adding 2^23 units leaves the number of units in the lowest bits.
        let least = self.word((128 - format.bias) << 23, value);
        let is_small = self.map(ScalarFn::Lt, &[magnitude, least])?;
        let large = (24.0 - f64::from(format.bias) - f64::from(format.mantissa)).exp2();
        let anchor = self.float(large, value);
        let positive = self.emit(OpKind::Bitcast(Elem::F32), &[magnitude])?;
        let sum = self.map(ScalarFn::Add, &[positive, anchor])?;
        let sum = self.emit(OpKind::Bitcast(Elem::U32), &[sum])?;
        let small = self.with_word(ScalarFn::Sub, sum, (large as f32).to_bits())?;
        let number = self.map(ScalarFn::Select, &[is_small, small, normal])?;
        let is_nan = self.with_word(ScalarFn::Gt, magnitude, 0x7F80_0000)?;
        let nan = self.word(0x7F, value);
        let number = self.map(ScalarFn::Select, &[is_nan, nan, number])?;
        let number = self.map(ScalarFn::Or, &[number, sign])?;
        self.cast(number, Elem::U8)
    }
}
