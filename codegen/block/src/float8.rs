//! Floats of 8 bits.

/// A format: a sign, then exponent, then mantissa.
struct Format {
    /// Bits of the mantissa.
    mantissa: u32,
    /// What is subtracted from the exponent.
    bias: i32,
    /// The largest finite value's bits; what is above, up to `0x7F`, is no finite number.
    max: u8,
    /// The bits of what overflows.
    overflow: u8,
}

const E4M3: Format = Format { mantissa: 3, bias: 7, max: 0x7E, overflow: 0x7F };
const E5M2: Format = Format { mantissa: 2, bias: 15, max: 0x7B, overflow: 0x7C };

impl Format {
    /// The value of the bits without sign, at most `max`.
    fn magnitude(&self, bits: u8) -> f32 {
        let (exponent, fraction) = (i32::from(bits >> self.mantissa), bits & ((1 << self.mantissa) - 1));
        let hidden = if exponent == 0 { 0 } else { 1 << self.mantissa };
        let power = exponent.max(1) - self.bias - self.mantissa as i32;
        f32::from(hidden | fraction) * (power as f32).exp2()
    }

    fn to_f32(&self, bits: u8) -> f32 {
        let magnitude = match bits & 0x7F {
            finite if finite <= self.max => self.magnitude(finite),
            0x7C => f32::INFINITY,
            _ => f32::NAN,
        };
        if bits & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// The nearest value, the one with an even last bit where two are as near.
    fn nearest(&self, x: f32) -> u8 {
        let sign = if x.is_sign_negative() { 0x80 } else { 0 };
        let magnitude = x.abs();
        if magnitude.is_nan() {
            return sign | 0x7F;
        }
        let exponent = (magnitude.to_bits() >> 23) as i32 - 127;
        let least = 1 - self.bias;
        // The distance of neighbours is a power of two, so that scaling by it is exact.
        let step = exponent.max(least) - self.mantissa as i32;
        let units = (f64::from(magnitude) * f64::from(-step).exp2()).round_ties_even() as u32;
        let field = (exponent.max(least) - least) as u32;
        // A carry out of the mantissa goes to the exponent, as it should; subnormals have the field 0.
        let bits = (field << self.mantissa).saturating_add(units);
        sign | if bits > u32::from(self.max) { self.overflow } else { bits as u8 }
    }
}

macro_rules! small_float {
    ($(#[$doc:meta])* $name:ident $format:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name(u8);

        impl $name {
            /// The value with these bits.
            pub const fn from_bits(bits: u8) -> $name {
                $name(bits)
            }

            /// The bits.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// The nearest value, ties to even.
            pub fn from_f32(x: f32) -> $name {
                $name($format.nearest(x))
            }

            /// The value, exactly.
            pub fn to_f32(self) -> f32 {
                $format.to_f32(self.0)
            }

            /// The value, exactly.
            pub fn to_f64(self) -> f64 {
                f64::from(self.to_f32())
            }

            pub(crate) fn from_le_bytes(bytes: [u8; 1]) -> $name {
                $name(bytes[0])
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &$name) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &$name) -> Option<std::cmp::Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }
    };
}

small_float! {
    /// A value of [`Elem::F8E4M3`](crate::Elem::F8E4M3).
    F8E4M3 E4M3
}

small_float! {
    /// A value of [`Elem::F8E5M2`](crate::Elem::F8E5M2).
    F8E5M2 E5M2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_converts_to_f32_and_back() {
        for bits in 0..=255u8 {
            let (a, b) = (F8E4M3::from_bits(bits), F8E5M2::from_bits(bits));
            if !a.to_f32().is_nan() {
                assert_eq!(F8E4M3::from_f32(a.to_f32()).to_bits(), bits);
            }
            if !b.to_f32().is_nan() {
                assert_eq!(F8E5M2::from_f32(b.to_f32()).to_bits(), bits);
            }
        }
    }

    #[test]
    fn rounds_to_the_nearest_and_ties_to_even() {
        for low in 0..0x7Du8 {
            let (a, b) = (E4M3.magnitude(low), E4M3.magnitude(low + 1));
            let middle = (a + b) / 2.0;
            assert_eq!(E4M3.nearest(middle), low + (low & 1));
            assert_eq!(E4M3.nearest(f32::from_bits(middle.to_bits() - 1)), low);
            assert_eq!(E4M3.nearest(f32::from_bits(middle.to_bits() + 1)), low + 1);
        }
    }

    #[test]
    fn extremes_are_those_of_the_formats() {
        assert_eq!(F8E4M3::from_bits(0x7E).to_f32(), 448.0);
        assert_eq!(F8E5M2::from_bits(0x7B).to_f32(), 57344.0);
        assert!(F8E4M3::from_f32(f32::INFINITY).to_f32().is_nan() && F8E4M3::from_f32(1e9).to_f32().is_nan());
        assert_eq!(F8E5M2::from_f32(-1e9).to_f32(), f32::NEG_INFINITY);
        assert_eq!(F8E4M3::from_f32(464.0).to_bits(), 0x7E);
        assert_eq!(F8E4M3::from_f32(464.1).to_bits(), 0x7F);
        assert_eq!(F8E4M3::from_f32(1e-9).to_bits(), 0);
    }
}
