//! Formulas computed at once, on one element.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Shl, Shr, Sub};

use super::emit::{Double, Exponents, Float, Int, Mask, Num, Single};

/// One number, with the operations of [`super::emit`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Native<T>(pub(crate) T);

macro_rules! binary {
    ($($trait:ident $method:ident $t:ty: $f:expr;)*) => { $(
        impl $trait for Native<$t> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                let f: fn($t, $t) -> $t = $f;
                Native(f(self.0, other.0))
            }
        }
    )* };
}

binary! {
    Add add f32: |a, b| a + b;
    Sub sub f32: |a, b| a - b;
    Mul mul f32: |a, b| a * b;
    Div div f32: |a, b| a / b;
    Add add f64: |a, b| a + b;
    Sub sub f64: |a, b| a - b;
    Mul mul f64: |a, b| a * b;
    Div div f64: |a, b| a / b;
    Add add i32: i32::wrapping_add;
    Sub sub i32: i32::wrapping_sub;
    Mul mul i32: i32::wrapping_mul;
    Add add i64: i64::wrapping_add;
    Sub sub i64: i64::wrapping_sub;
    Mul mul i64: i64::wrapping_mul;
    BitAnd bitand i32: |a, b| a & b;
    BitOr bitor i32: |a, b| a | b;
    BitXor bitxor i32: |a, b| a ^ b;
    BitAnd bitand i64: |a, b| a & b;
    BitOr bitor i64: |a, b| a | b;
    BitXor bitxor i64: |a, b| a ^ b;
    BitAnd bitand bool: |a, b| a & b;
    BitOr bitor bool: |a, b| a | b;
    BitXor bitxor bool: |a, b| a ^ b;
}

impl Not for Native<bool> {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        Native(!self.0)
    }
}

impl Mask for Native<bool> {}

macro_rules! num {
    ($t:ty, $lit:ty, $neg:expr) => {
        impl Neg for Native<$t> {
            type Output = Self;
            #[inline(always)]
            fn neg(self) -> Self {
                let f: fn($t) -> $t = $neg;
                Native(f(self.0))
            }
        }

        impl Num for Native<$t> {
            type B = Native<bool>;
            type Lit = $lit;
            #[inline(always)]
            fn lit(self, value: $lit) -> Self {
                Native(value as $t)
            }
            #[inline(always)]
            fn lt(self, other: Self) -> Native<bool> {
                Native(self.0 < other.0)
            }
            #[inline(always)]
            fn gt(self, other: Self) -> Native<bool> {
                Native(self.0 > other.0)
            }
            #[inline(always)]
            fn eq(self, other: Self) -> Native<bool> {
                Native(self.0 == other.0)
            }
            #[inline(always)]
            fn ne(self, other: Self) -> Native<bool> {
                Native(self.0 != other.0)
            }
            #[inline(always)]
            fn select(cond: Native<bool>, a: Self, b: Self) -> Self {
                if cond.0 { a } else { b }
            }
        }
    };
}

num!(f32, f64, |a| -a);
num!(f64, f64, |a| -a);
num!(i32, i64, i32::wrapping_neg);
num!(i64, i64, i64::wrapping_neg);

macro_rules! int {
    ($t:ty) => {
        impl Shl<u32> for Native<$t> {
            type Output = Self;
            #[inline(always)]
            fn shl(self, by: u32) -> Self {
                Native(self.0.wrapping_shl(by))
            }
        }

        impl Shr<u32> for Native<$t> {
            type Output = Self;
            #[inline(always)]
            fn shr(self, by: u32) -> Self {
                Native(self.0.wrapping_shr(by))
            }
        }

        impl Int for Native<$t> {}
    };
}

int!(i32);
int!(i64);

macro_rules! float {
    ($t:ty, $int:ty, $bits:ty) => {
        impl Float for Native<$t> {
            type I = Native<$int>;
            #[inline(always)]
            fn fma(self, b: Self, c: Self) -> Self {
                Native(self.0.mul_add(b.0, c.0))
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                Native(self.0.sqrt())
            }
            #[inline(always)]
            fn abs(self) -> Self {
                Native(self.0.abs())
            }
            #[inline(always)]
            fn round_even(self) -> Self {
                Native(self.0.round_ties_even())
            }
            #[inline(always)]
            fn trunc(self) -> Self {
                Native(self.0.trunc())
            }
            #[inline(always)]
            fn copysign(self, sign: Self) -> Self {
                Native(self.0.copysign(sign.0))
            }
            #[inline(always)]
            fn at_least(self, value: f64) -> Self {
                if self.0 < value as $t { Native(value as $t) } else { self }
            }
            #[inline(always)]
            fn at_most(self, value: f64) -> Self {
                if self.0 > value as $t { Native(value as $t) } else { self }
            }
            #[inline(always)]
            fn from_exponent(exponent: Native<$int>) -> Self {
                Native(exponent.0 as $t)
            }
            #[inline(always)]
            fn bits(self) -> Native<$int> {
                Native(self.0.to_bits() as $int)
            }
            #[inline(always)]
            fn from_bits(bits: Native<$int>) -> Self {
                Native(<$t>::from_bits(bits.0 as $bits))
            }
        }
    };
}

float!(f32, i32, u32);
float!(f64, i64, u64);

impl Single for Native<f32> {
    type D = Native<f64>;
    #[inline(always)]
    fn widen(self) -> Native<f64> {
        Native(f64::from(self.0))
    }
}

/// In `f64`, where products with powers of two are exact.
impl Exponents for Native<f32> {
    #[inline(always)]
    fn scale(self, n: Self) -> Self {
        let n = n.0.clamp(-600.0, 600.0);
        if n.is_nan() {
            return Native(n);
        }
        Native((f64::from(self.0) * f64::from_bits(((n as i64 + 1023) as u64) << 52)) as f32)
    }
    #[inline(always)]
    fn exponent(self) -> Self {
        let size = f64::from(self.0.abs());
        if size == 0.0 {
            return Native(f32::NEG_INFINITY);
        }
        if size < f64::INFINITY {
            Native(((size.to_bits() >> 52) as i64 - 1023) as f32)
        } else {
            Native(size as f32)
        }
    }
    #[inline(always)]
    fn significand(self) -> Self {
        if self.0 < 0.0 || self.0.is_nan() {
            return Native(f32::NAN);
        }
        if self.0 == 0.0 || self.0 == f32::INFINITY {
            return Native(1.0);
        }
        let fraction = f64::from(self.0).to_bits() & ((1 << 52) - 1);
        Native(f64::from_bits(fraction | 1023 << 52) as f32)
    }
    #[inline(always)]
    fn low_half(wide: Native<i64>) -> Native<i32> {
        Native(wide.0 as i32)
    }
    #[inline(always)]
    fn unless(rare: Native<bool>, usual: impl FnOnce() -> Self, other: impl FnOnce() -> Self) -> Self {
        if rare.0 { other() } else { usual() }
    }
}

impl Double for Native<f64> {
    type S = Native<f32>;
    #[inline(always)]
    fn narrow(self) -> Native<f32> {
        Native(self.0 as f32)
    }
}
