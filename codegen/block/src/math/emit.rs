//! The values that formulas are written over.
//!
//! A formula is generic over [`Single`] or [`Double`]; `tile` records it as operations of a block program, `native`
//! computes it at once. Only operations with one exact meaning are offered, so that both give the same bits.
//! [`Exponents`] has what some processors do in one instruction.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Shl, Shr, Sub};

/// A truth value.
pub trait Mask:
    Copy + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self> + Not<Output = Self>
{
}

/// What floats and integers have in common.
pub trait Num:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    /// Results of comparisons.
    type B: Mask;
    /// The type of literals.
    type Lit: Copy;

    /// A literal; `self` gives the shape.
    fn lit(self, value: Self::Lit) -> Self;
    /// `self < other`; false where one is NaN, as with the next two.
    fn lt(self, other: Self) -> Self::B;
    /// `self > other`.
    fn gt(self, other: Self) -> Self::B;
    /// `self == other`.
    fn eq(self, other: Self) -> Self::B;
    /// Not `self == other`.
    fn ne(self, other: Self) -> Self::B;
    /// `a` where `cond`, else `b`.
    fn select(cond: Self::B, a: Self, b: Self) -> Self;

    /// `self < value`.
    fn below(self, value: Self::Lit) -> Self::B {
        self.lt(self.lit(value))
    }

    /// `self > value`.
    fn above(self, value: Self::Lit) -> Self::B {
        self.gt(self.lit(value))
    }

    /// `self == value`.
    fn is(self, value: Self::Lit) -> Self::B {
        self.eq(self.lit(value))
    }

    /// `self`, or `value` where `cond`.
    fn replace(self, cond: Self::B, value: Self::Lit) -> Self {
        Self::select(cond, self.lit(value), self)
    }

    /// `self + value`.
    fn plus(self, value: Self::Lit) -> Self {
        self + self.lit(value)
    }

    /// `self * value`.
    fn times(self, value: Self::Lit) -> Self {
        self * self.lit(value)
    }
}

/// An integer of the width of a float.
pub trait Int:
    Num<Lit = i64>
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + Shl<u32, Output = Self>
    + Shr<u32, Output = Self>
{
    /// `self & mask`.
    fn masked(self, mask: i64) -> Self {
        self & self.lit(mask)
    }

    /// Whether any bit of `mask` is set.
    fn has(self, mask: i64) -> Self::B {
        self.masked(mask).ne(self.lit(0))
    }
}

/// A float.
pub trait Float: Num<Lit = f64> + Div<Output = Self> {
    /// The signed integer of the same width.
    type I: Int<B = Self::B>;

    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// The square root, rounded to the nearest.
    fn sqrt(self) -> Self;
    /// The magnitude.
    fn abs(self) -> Self;
    /// The nearest integer, half to even.
    fn round_even(self) -> Self;
    /// The integer part.
    fn trunc(self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// The larger of `self` and a nonzero number; NaN stays NaN.
    fn at_least(self, value: f64) -> Self;
    /// The smaller of `self` and a nonzero number; NaN stays NaN.
    fn at_most(self, value: f64) -> Self;
    /// The float of a small integer.
    fn from_exponent(exponent: Self::I) -> Self;
    /// The bit pattern.
    fn bits(self) -> Self::I;
    /// The float of a bit pattern.
    fn from_bits(bits: Self::I) -> Self;

    /// `self * b + c`, rounded once.
    fn mul_add(self, b: f64, c: f64) -> Self {
        self.fma(self.lit(b), self.lit(c))
    }

    /// `self * b + value`, rounded once.
    fn fma_lit(self, b: Self, value: f64) -> Self {
        self.fma(b, self.lit(value))
    }

    /// `self * value + c`, rounded once.
    fn lit_fma(self, value: f64, c: Self) -> Self {
        self.fma(self.lit(value), c)
    }

    /// `value / self`.
    fn under(self, value: f64) -> Self {
        self.lit(value) / self
    }

    /// The polynomial in `self` with these coefficients, the highest power first.
    fn poly(self, coefficients: &[f64]) -> Self {
        match coefficients {
            [] => self.lit(0.0),
            [first, rest @ ..] => {
                let mut sum = self.lit(*first);
                for &c in rest {
                    sum = sum.fma_lit(self, c);
                }
                sum
            }
        }
    }
}

/// `f32`.
pub trait Single: Float {
    /// `f64` of the same shape.
    type D: Double<B = Self::B, S = Self>;

    /// The same value.
    fn widen(self) -> Self::D;
}

/// `f32` on a processor with instructions for exponents and significands.
pub trait Exponents: Single {
    /// `self * 2^n` for a positive number of at most 4 and an integer `n`, rounded once; NaN where `n` is NaN.
    fn scale(self, n: Self) -> Self;
    /// The integer part of log2 of the magnitude: -inf for a zero, inf for an infinity.
    fn exponent(self) -> Self;
    /// `self / 2^exponent`, which lies in [1, 2); 1 with some sign for a zero and infinity, NaN for other negative numbers.
    fn significand(self) -> Self;
    /// The low half of the bits of integers of 64 bits.
    fn low_half(wide: <Self::D as Float>::I) -> Self::I;
    /// `usual()` where nothing is `rare`, else, for all elements of what is computed at once, `other()`.
    fn unless(rare: Self::B, usual: impl FnOnce() -> Self, other: impl FnOnce() -> Self) -> Self;
}

/// `f64`.
pub trait Double: Float {
    /// `f32` of the same shape.
    type S: Single<D = Self, B = Self::B>;

    /// The nearest `f32`.
    fn narrow(self) -> Self::S;
}
