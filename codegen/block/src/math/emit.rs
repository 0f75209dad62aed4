//! The values that formulas are written over.
//!
//! A formula is generic over [`Single`] or [`Double`]; [`super::tile::Tile`] records it as operations of a block
//! program, [`super::native`] computes it at once. Only operations with one exact meaning are offered, so that
//! both give the same bits.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Shl, Shr, Sub};

/// A truth value.
pub(crate) trait Mask:
    Copy + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self> + Not<Output = Self>
{
}

/// What floats and integers have in common.
pub(crate) trait Num:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    /// Results of comparisons.
    type B: Mask;
    /// The type of literals.
    type Lit: Copy;

    /// A literal; `self` gives the shape.
    fn lit(self, value: Self::Lit) -> Self;
    fn lt(self, other: Self) -> Self::B;
    fn gt(self, other: Self) -> Self::B;
    fn eq(self, other: Self) -> Self::B;
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
pub(crate) trait Int:
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
pub(crate) trait Float: Num<Lit = f64> + Div<Output = Self> {
    /// The signed integer of the same width.
    type I: Int<B = Self::B>;

    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    fn sqrt(self) -> Self;
    fn abs(self) -> Self;
    fn round_even(self) -> Self;
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
pub(crate) trait Single: Float {
    /// `f64` of the same shape.
    type D: Double<B = Self::B, S = Self>;

    /// The same value.
    fn widen(self) -> Self::D;
}

/// `f64`.
pub(crate) trait Double: Float {
    /// `f32` of the same shape.
    type S: Single<D = Self, B = Self::B>;

    /// The nearest `f32`.
    fn narrow(self) -> Self::S;
}
