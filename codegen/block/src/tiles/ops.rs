//! Operators and functions of tiles.

use std::ops;

use super::{Bits, Float, Int, Number, Ptr, Tile, quotient};
use crate::data::Element;
use crate::scalar_fn::{ReduceFn, ScalarFn};

/// Implements an operator for two tiles of a kind, for a tile and a number, and for `i32` with `i64`.
macro_rules! operators {
    ($($op:ident $method:ident $bound:ident $function:expr;)*) => {$(
        impl<'k, T: $bound> ops::$op for Tile<'k, T> {
            type Output = Tile<'k, T>;

            #[track_caller]
            fn $method(self, other: Tile<'k, T>) -> Tile<'k, T> {
                self.map($function(T::ELEM), &[other.value])
            }
        }

        impl<'k, T: $bound> ops::$op<T> for Tile<'k, T> {
            type Output = Tile<'k, T>;

            #[track_caller]
            fn $method(self, other: T) -> Tile<'k, T> {
                ops::$op::$method(self, self.scope.constant(other))
            }
        }

        impl<'k> ops::$op<Tile<'k, i64>> for Tile<'k, i32> {
            type Output = Tile<'k, i64>;

            #[track_caller]
            fn $method(self, other: Tile<'k, i64>) -> Tile<'k, i64> {
                ops::$op::$method(self.cast::<i64>(), other)
            }
        }

        impl<'k> ops::$op<Tile<'k, i32>> for Tile<'k, i64> {
            type Output = Tile<'k, i64>;

            #[track_caller]
            fn $method(self, other: Tile<'k, i32>) -> Tile<'k, i64> {
                ops::$op::$method(self, other.cast::<i64>())
            }
        }
    )*};
}

operators! {
    Add add Number |_| ScalarFn::Add;
    Sub sub Number |_| ScalarFn::Sub;
    Mul mul Number |_| ScalarFn::Mul;
    Div div Number quotient;
    Rem rem Number |_| ScalarFn::RemTrunc;
    BitAnd bitand Bits |_| ScalarFn::And;
    BitOr bitor Bits |_| ScalarFn::Or;
    BitXor bitxor Bits |_| ScalarFn::Xor;
    Shl shl Int |_| ScalarFn::Shl;
    Shr shr Int |_| ScalarFn::Shr;
}

impl<'k, T: Number> ops::Neg for Tile<'k, T> {
    type Output = Tile<'k, T>;

    #[track_caller]
    fn neg(self) -> Tile<'k, T> {
        self.map(ScalarFn::Neg, &[])
    }
}

impl<'k, T: Bits> ops::Not for Tile<'k, T> {
    type Output = Tile<'k, T>;

    #[track_caller]
    fn not(self) -> Tile<'k, T> {
        self.map(ScalarFn::Not, &[])
    }
}

impl<'k, T: Element> ops::Add<Tile<'k, i64>> for Ptr<'k, T> {
    type Output = Ptr<'k, T>;

    #[track_caller]
    fn add(self, offsets: Tile<'k, i64>) -> Ptr<'k, T> {
        self.shifted(offsets)
    }
}

impl<'k, T: Element> ops::Add<Tile<'k, i32>> for Ptr<'k, T> {
    type Output = Ptr<'k, T>;

    #[track_caller]
    fn add(self, offsets: Tile<'k, i32>) -> Ptr<'k, T> {
        self.shifted(offsets.cast())
    }
}

impl<'k, T: Element> ops::Add<i64> for Ptr<'k, T> {
    type Output = Ptr<'k, T>;

    #[track_caller]
    fn add(self, offset: i64) -> Ptr<'k, T> {
        self.shifted(self.scope.constant(offset))
    }
}

macro_rules! unary {
    ($($bound:ident { $($method:ident $function:ident;)* })*) => {$(
        impl<'k, T: $bound> Tile<'k, T> {$(
            #[doc = concat!("[`ScalarFn::", stringify!($function), "`] of each element.")]
            #[track_caller]
            pub fn $method(self) -> Self {
                self.map(ScalarFn::$function, &[])
            }
        )*}
    )*};
}

unary! {
    Number { abs Abs; }
    Float {
        sqrt Sqrt; rsqrt Rsqrt; exp Exp; exp2 Exp2; expm1 Expm1; log Log; log2 Log2; log10 Log10; log1p Log1p;
        sin Sin; cos Cos; tan Tan; asin Asin; acos Acos; atan Atan; sinh Sinh; cosh Cosh; tanh Tanh;
        asinh Asinh; acosh Acosh; atanh Atanh; erf Erf; erfc Erfc; sigmoid Sigmoid;
        floor Floor; ceil Ceil; trunc Trunc; round_even RoundEven;
    }
}

macro_rules! compare {
    ($($method:ident $function:ident;)*) => {
        impl<'k, T: Element> Tile<'k, T> {$(
            #[doc = concat!("[`ScalarFn::", stringify!($function), "`] of corresponding elements.")]
            #[track_caller]
            pub fn $method(self, other: Tile<'k, T>) -> Tile<'k, bool> {
                self.map(ScalarFn::$function, &[other.value])
            }
        )*}
    };
}

compare! { eq Eq; ne Ne; lt Lt; le Le; gt Gt; ge Ge; }

macro_rules! reductions {
    ($($method:ident $masked:ident $combine:ident;)*) => {
        impl<'k, T: Number> Tile<'k, T> {$(
            #[doc = concat!("[`ReduceFn::", stringify!($combine), "`] along an axis, which disappears.")]
            #[track_caller]
            pub fn $method(self, axis: u8) -> Self {
                self.reduce(ReduceFn::$combine, axis, None)
            }

            #[doc = concat!("[`ReduceFn::", stringify!($combine), "`] along an axis of the elements where the mask is true.")]
            #[track_caller]
            pub fn $masked(self, axis: u8, mask: Tile<'k, bool>) -> Self {
                self.reduce(ReduceFn::$combine, axis, Some(mask))
            }
        )*}
    };
}

reductions! { sum sum_where Sum; prod prod_where Prod; max max_where Max; min min_where Min; }

impl<'k, T: Number> Tile<'k, T> {
    /// The larger of corresponding elements; NaN if either is NaN.
    #[track_caller]
    pub fn maximum(self, other: Tile<'k, T>) -> Self {
        self.map(ScalarFn::Max, &[other.value])
    }

    /// The smaller of corresponding elements; NaN if either is NaN.
    #[track_caller]
    pub fn minimum(self, other: Tile<'k, T>) -> Self {
        self.map(ScalarFn::Min, &[other.value])
    }
}

impl<'k, T: Float> Tile<'k, T> {
    /// `self * factor + summand`, rounded once.
    #[track_caller]
    pub fn fma(self, factor: Tile<'k, T>, summand: Tile<'k, T>) -> Self {
        self.map(ScalarFn::Fma, &[factor.value, summand.value])
    }
}
