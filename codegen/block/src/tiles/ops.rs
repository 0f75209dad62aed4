//! Operators and functions of corresponding elements, and reductions.

use std::ops;

use super::{Accepts, Binary, Bits, Extent, Float, Int, Num, Number, Operand, Promote, Ptr, Tile, typed};
use crate::data::Element;
use crate::dynamic;
use crate::scalar_fn::{ReduceFn, ScalarFn};

/// A scalar function of operands.
#[track_caller]
fn apply<R: Element, const N: usize>(function: ScalarFn, args: [dynamic::Operand; N]) -> Tile<R> {
    typed(dynamic::map(function, args))
}

/// Implements an operator for two tiles and for a tile and a number on either side.
macro_rules! operators {
    ($($op:ident $method:ident $assign:ident $assign_method:ident $bound:ident, [$($left:ty)*];)*) => {$(
        impl<T: Element + Promote<U, Out: $bound>, U: Element> ops::$op<Tile<U>> for Tile<T> {
            type Output = Tile<T::Out>;

            #[track_caller]
            fn $method(self, other: Tile<U>) -> Tile<T::Out> {
                typed(ops::$op::$method(self.tile, other.tile))
            }
        }

        impl<T: $bound + Accepts<R>, R: Num> ops::$op<R> for Tile<T> {
            type Output = Tile<T>;

            #[track_caller]
            fn $method(self, other: R) -> Tile<T> {
                typed(ops::$op::<dynamic::Number>::$method(self.tile, other.into()))
            }
        }

        impl<T: $bound, B: Operand<T, Out = T>> ops::$assign<B> for Tile<T> {
            #[track_caller]
            fn $assign_method(&mut self, other: B) {
                *self = typed(ops::$op::$method(self.tile, other.operand()));
            }
        }

        $(operators!(@left $op $method $bound, $left);)*
    )*};
    (@left $op:ident $method:ident $bound:ident, $t:ty) => {
        impl<T: $bound> ops::$op<Tile<T>> for $t
        where
            $t: Binary<Tile<T>, Out = T>,
        {
            type Output = Tile<T>;

            #[track_caller]
            fn $method(self, other: Tile<T>) -> Tile<T> {
                typed(ops::$op::$method(self, other.tile))
            }
        }
    };
}

operators! {
    Add add AddAssign add_assign Number, [i32 i64 u32 usize f32 f64];
    Sub sub SubAssign sub_assign Number, [i32 i64 u32 usize f32 f64];
    Mul mul MulAssign mul_assign Number, [i32 i64 u32 usize f32 f64];
    Div div DivAssign div_assign Number, [i32 i64 u32 usize f32 f64];
    Rem rem RemAssign rem_assign Number, [i32 i64 u32 usize f32 f64];
    BitAnd bitand BitAndAssign bitand_assign Bits, [];
    BitOr bitor BitOrAssign bitor_assign Bits, [];
    BitXor bitxor BitXorAssign bitxor_assign Bits, [];
    Shl shl ShlAssign shl_assign Int, [];
    Shr shr ShrAssign shr_assign Int, [];
}

impl<T: Number> ops::Neg for Tile<T> {
    type Output = Tile<T>;

    #[track_caller]
    fn neg(self) -> Tile<T> {
        typed(-self.tile)
    }
}

impl<T: Bits> ops::Not for Tile<T> {
    type Output = Tile<T>;

    #[track_caller]
    fn not(self) -> Tile<T> {
        typed(!self.tile)
    }
}

impl<T: Element, U: Int> ops::Add<Tile<U>> for Ptr<T> {
    type Output = Ptr<T>;

    #[track_caller]
    fn add(self, offsets: Tile<U>) -> Ptr<T> {
        Ptr::of(self.ptr + offsets.tile)
    }
}

impl<T: Element, R: Num + Extent> ops::Add<R> for Ptr<T> {
    type Output = Ptr<T>;

    #[track_caller]
    fn add(self, offset: R) -> Ptr<T> {
        Ptr::of(self.ptr + offset.into())
    }
}

impl<T: Element, R> ops::AddAssign<R> for Ptr<T>
where
    Ptr<T>: ops::Add<R, Output = Ptr<T>>,
{
    #[track_caller]
    fn add_assign(&mut self, offsets: R) {
        *self = *self + offsets;
    }
}

macro_rules! unary {
    ($($bound:ident $result:ident { $($method:ident $function:ident;)* })*) => {$(
        impl<T: $bound> Tile<T> {$(
            #[doc = concat!("[`ScalarFn::", stringify!($function), "`] of each element.")]
            #[track_caller]
            pub fn $method(self) -> unary!(@$result T) {
                apply(ScalarFn::$function, [self.tile.into()])
            }
        )*}

        $(
            #[doc = concat!("[`ScalarFn::", stringify!($function), "`] of each element.")]
            #[track_caller]
            pub fn $method<T: $bound>(x: Tile<T>) -> unary!(@$result T) {
                x.$method()
            }
        )*
    )*};
    (@same $t:ident) => { Tile<$t> };
    (@truth $t:ident) => { Tile<bool> };
}

unary! {
    Number same { abs Abs; }
    Float same {
        sqrt Sqrt; rsqrt Rsqrt; exp Exp; exp2 Exp2; expm1 Expm1; log Log; log2 Log2; log10 Log10; log1p Log1p;
        sin Sin; cos Cos; tan Tan; asin Asin; acos Acos; atan Atan; sinh Sinh; cosh Cosh; tanh Tanh;
        asinh Asinh; acosh Acosh; atanh Atanh; erf Erf; erfc Erfc; sigmoid Sigmoid;
        floor Floor; ceil Ceil; trunc Trunc; round_even RoundEven;
    }
    Float truth { is_nan IsNan; is_inf IsInf; }
}

macro_rules! compare {
    ($($method:ident $function:ident;)*) => {
        impl<T: Element> Tile<T> {$(
            #[doc = concat!("[`ScalarFn::", stringify!($function), "`] of corresponding elements.")]
            #[track_caller]
            pub fn $method<B: Operand<T>>(self, other: B) -> Tile<bool> {
                apply(ScalarFn::$function, self.pair(other))
            }
        )*}
    };
}

compare! { eq Eq; ne Ne; lt Lt; le Le; gt Gt; ge Ge; }

macro_rules! binary {
    ($($method:ident $bound:ident $function:expr, $doc:literal;)*) => {
        impl<T: Element> Tile<T> {$(
            #[doc = $doc]
            #[track_caller]
            pub fn $method<B: Operand<T, Out: $bound>>(self, other: B) -> Tile<B::Out> {
                apply($function, self.pair(other))
            }
        )*}

        $(
            #[doc = $doc]
            #[track_caller]
            pub fn $method<A: Binary<B, Out: $bound>, B>(a: A, b: B) -> Tile<A::Out> {
                apply($function, a.pair(b))
            }
        )*
    };
}

binary! {
    maximum Number ScalarFn::Max, "The larger of corresponding elements; NaN if either is NaN.";
    minimum Number ScalarFn::Min, "The smaller of corresponding elements; NaN if either is NaN.";
    fmax Float ScalarFn::FMax, "The larger of corresponding elements; the other one where one is NaN.";
    fmin Float ScalarFn::FMin, "The smaller of corresponding elements; the other one where one is NaN.";
    pow Float ScalarFn::Pow, "The first to the power of the second.";
    atan2 Float ScalarFn::Atan2, "The angle of the point (second, first).";
    copysign Float ScalarFn::CopySign, "The first one's magnitude with the second one's sign.";
    div_floor Int ScalarFn::DivFloor, "The integer quotient rounded toward minus infinity; 0 for a divisor of 0.";
    mul_hi Int ScalarFn::MulHi, "The upper half of the product. Triton's `umulhi`.";
    rem_floor Number ScalarFn::RemFloor, "The remainder with the sign of the divisor; 0 for an integer divisor of 0.";
}

/// `a` and `b` as Triton's `fdiv` divides them: the quotient of floats.
#[track_caller]
pub fn fdiv<A: Binary<B, Out: Float>, B>(a: A, b: B) -> Tile<A::Out> {
    apply(ScalarFn::Div, a.pair(b))
}

/// `a * b + c`, rounded once.
#[track_caller]
pub fn fma<T: Float>(a: Tile<T>, b: impl Operand<T, Out = T>, c: impl Operand<T, Out = T>) -> Tile<T> {
    typed(dynamic::fma(a.tile, b.operand(), c.operand()))
}

/// `x` between two bounds: the lower one where it is below that, the upper one where it is above; NaN stays NaN.
#[track_caller]
pub fn clamp<T: Number>(
    x: Tile<T>,
    low: impl Operand<T, Out = T>,
    high: impl Operand<T, Out = T>,
) -> Tile<T> {
    typed(x.tile.maximum(low.operand()).minimum(high.operand()))
}

/// `yes` where `condition` is true, else `no`; at least one of them is a tile. Triton's `where`.
#[track_caller]
pub fn select<A: Binary<B>, B>(condition: Tile<bool>, yes: A, no: B) -> Tile<A::Out> {
    let [yes, no] = yes.pair(no);
    typed(dynamic::select(condition.tile, yes, no))
}

/// [`select`] under the name that Triton's `where` would have.
#[track_caller]
pub fn where_<A: Binary<B>, B>(condition: Tile<bool>, yes: A, no: B) -> Tile<A::Out> {
    select(condition, yes, no)
}

impl Tile<bool> {
    /// `yes` where this is true, else `no`.
    #[track_caller]
    pub fn select<A: Binary<B>, B>(self, yes: A, no: B) -> Tile<A::Out> {
        select(self, yes, no)
    }
}

impl<T: Float> Tile<T> {
    /// `self * factor + summand`, rounded once.
    #[track_caller]
    pub fn fma(self, factor: impl Operand<T, Out = T>, summand: impl Operand<T, Out = T>) -> Self {
        fma(self, factor, summand)
    }
}

#[track_caller]
fn reduce<T: Element>(combine: ReduceFn, x: Tile<T>, axis: usize, mask: Option<Tile<bool>>) -> Tile<T> {
    typed(x.tile.reduce(combine, axis, mask.map(|mask| mask.tile)))
}

macro_rules! reductions {
    ($($bound:ident $method:ident $masked:ident $combine:ident;)*) => {$(
        impl<T: $bound> Tile<T> {
            #[doc = concat!("[`ReduceFn::", stringify!($combine), "`] along an axis, which disappears.")]
            #[track_caller]
            pub fn $method(self, axis: usize) -> Self {
                reduce(ReduceFn::$combine, self, axis, None)
            }

            #[doc = concat!("[`ReduceFn::", stringify!($combine), "`] along an axis of the elements where the mask is true.")]
            #[track_caller]
            pub fn $masked(self, axis: usize, mask: Tile<bool>) -> Self {
                reduce(ReduceFn::$combine, self, axis, Some(mask))
            }
        }

        #[doc = concat!("[`ReduceFn::", stringify!($combine), "`] along an axis, which disappears.")]
        #[track_caller]
        pub fn $method<T: $bound>(x: Tile<T>, axis: usize) -> Tile<T> {
            reduce(ReduceFn::$combine, x, axis, None)
        }
    )*};
}

reductions! {
    Number sum sum_where Sum;
    Number prod prod_where Prod;
    Number max max_where Max;
    Number min min_where Min;
    Bits all all_where And;
    Bits any any_where Or;
    Bits xor_sum xor_sum_where Xor;
}
