//! Scalar functions of integers.

use super::{binary, compare, unary};
use crate::data::{Data, Element};
use crate::scalar_fn::BaseFn;

/// An integer kind with the arithmetic that the functions are made of.
pub(super) trait Int: Element + Ord {
    const ZERO: Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn mul_hi(self, other: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    /// Quotient rounded toward zero; the divisor is not zero.
    fn div(self, other: Self) -> Self;
    /// Remainder with the sign of the dividend; the divisor is not zero.
    fn rem(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn not(self) -> Self;
    fn shl(self, amount: Self) -> Self;
    fn shr(self, amount: Self) -> Self;
}

macro_rules! int {
    ($($ty:ty, $wide:ty, $abs:expr;)*) => { $(
        impl Int for $ty {
            const ZERO: $ty = 0;
            fn add(self, other: $ty) -> $ty { self.wrapping_add(other) }
            fn sub(self, other: $ty) -> $ty { self.wrapping_sub(other) }
            fn mul(self, other: $ty) -> $ty { self.wrapping_mul(other) }
            fn mul_hi(self, other: $ty) -> $ty { ((self as $wide * other as $wide) >> <$ty>::BITS) as $ty }
            fn neg(self) -> $ty { self.wrapping_neg() }
            fn abs(self) -> $ty { $abs(self) }
            fn div(self, other: $ty) -> $ty { self.wrapping_div(other) }
            fn rem(self, other: $ty) -> $ty { self.wrapping_rem(other) }
            fn and(self, other: $ty) -> $ty { self & other }
            fn or(self, other: $ty) -> $ty { self | other }
            fn xor(self, other: $ty) -> $ty { self ^ other }
            fn not(self) -> $ty { !self }

            fn shl(self, amount: $ty) -> $ty {
                u32::try_from(amount).ok().and_then(|n| self.checked_shl(n)).unwrap_or(0)
            }

            fn shr(self, amount: $ty) -> $ty {
                let last = self.checked_shr(<$ty>::BITS - 1).unwrap_or(0);
                let all = if <$ty>::MIN == 0 { 0 } else { last };
                u32::try_from(amount).ok().and_then(|n| self.checked_shr(n)).unwrap_or(all)
            }
        }
    )* };
}

int! {
    i8, i16, i8::wrapping_abs;
    i16, i32, i16::wrapping_abs;
    i32, i64, i32::wrapping_abs;
    i64, i128, i64::wrapping_abs;
    u8, u16, std::convert::identity;
    u16, u32, std::convert::identity;
    u32, u64, std::convert::identity;
    u64, u128, std::convert::identity;
}

pub(super) fn map<T: Int>(function: BaseFn, args: &[&Data]) -> Option<Data> {
    use BaseFn::*;
    let a = T::slice(args.first()?)?;
    let b = || T::slice(args.get(1)?);
    match function {
        Neg => unary(a, T::neg),
        Abs => unary(a, T::abs),
        Not => unary(a, T::not),
        Add => binary(a, b()?, T::add),
        Sub => binary(a, b()?, T::sub),
        Mul => binary(a, b()?, T::mul),
        MulHi => binary(a, b()?, T::mul_hi),
        DivTrunc => binary(a, b()?, div_trunc),
        DivFloor => binary(a, b()?, div_floor),
        RemTrunc => binary(a, b()?, rem_trunc),
        RemFloor => binary(a, b()?, rem_floor),
        Max => binary(a, b()?, T::max),
        Min => binary(a, b()?, T::min),
        And => binary(a, b()?, T::and),
        Or => binary(a, b()?, T::or),
        Xor => binary(a, b()?, T::xor),
        Shl => binary(a, b()?, T::shl),
        Shr => binary(a, b()?, T::shr),
        Eq => compare(a, args, |x, y| x == y),
        Ne => compare(a, args, |x, y| x != y),
        Lt => compare(a, args, |x, y| x < y),
        Le => compare(a, args, |x, y| x <= y),
        Gt => compare(a, args, |x, y| x > y),
        Ge => compare(a, args, |x, y| x >= y),
        Div | Fma | FMax | FMin | CopySign | Floor | Ceil | Trunc | RoundEven | IsNan | IsInf | Sqrt
        | Select => None,
    }
}

fn div_trunc<T: Int>(a: T, b: T) -> T {
    if b == T::ZERO { T::ZERO } else { a.div(b) }
}

fn rem_trunc<T: Int>(a: T, b: T) -> T {
    if b == T::ZERO { T::ZERO } else { a.rem(b) }
}

/// Whether a remainder is not zero and its sign is not the divisor's.
fn is_above_floor<T: Int>(rem: T, b: T) -> bool {
    rem != T::ZERO && (rem < T::ZERO) != (b < T::ZERO)
}

fn div_floor<T: Int>(a: T, b: T) -> T {
    let quotient = div_trunc(a, b);
    let one = T::from_literal(crate::types::Literal::int(T::ELEM, 1));
    if is_above_floor(rem_trunc(a, b), b) { quotient.sub(one) } else { quotient }
}

fn rem_floor<T: Int>(a: T, b: T) -> T {
    let rem = rem_trunc(a, b);
    if is_above_floor(rem, b) { rem.add(b) } else { rem }
}
