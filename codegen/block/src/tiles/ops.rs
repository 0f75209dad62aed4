//! Operators and functions of corresponding elements, and reductions.

use std::ops;

use super::kinds::number;
use super::{
    Accepts, Binary, Bits, Extent, Float, Int, Num, Number, Operand, Promote, Ptr, Tile, make, map, spread,
};
use crate::data::Element;
use crate::infer::TypeError;
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::Elem;

/// A scalar function of tiles of one kind.
#[track_caller]
fn apply<T: Element, R: Element, const N: usize>(function: ScalarFn, args: [Tile<T>; N]) -> Tile<R> {
    make(&args.map(|a| a.handle), |b, args| map(b, function, args))
}

/// Whether `/` is that of floats.
const fn quotient(elem: Elem) -> ScalarFn {
    if elem.is_float() { ScalarFn::Div } else { ScalarFn::DivTrunc }
}

/// Implements an operator for two tiles and for a tile and a number on either side.
macro_rules! operators {
    ($($op:ident $method:ident $assign:ident $assign_method:ident $bound:ident $function:expr, [$($left:ty)*];)*) => {$(
        impl<T: Element + Promote<U, Out: $bound>, U: Element> ops::$op<Tile<U>> for Tile<T> {
            type Output = Tile<T::Out>;

            #[track_caller]
            fn $method(self, other: Tile<U>) -> Tile<T::Out> {
                apply($function(<T::Out>::ELEM), self.pair(other))
            }
        }

        impl<T: $bound + Accepts<R>, R: Num> ops::$op<R> for Tile<T> {
            type Output = Tile<T>;

            #[track_caller]
            fn $method(self, other: R) -> Tile<T> {
                apply($function(T::ELEM), [self, number(other)])
            }
        }

        impl<T: $bound, B: Operand<T, Out = T>> ops::$assign<B> for Tile<T> {
            #[track_caller]
            fn $assign_method(&mut self, other: B) {
                *self = apply($function(T::ELEM), [*self, other.operand()]);
            }
        }

        $(operators!(@left $op $method $bound $function, $left);)*
    )*};
    (@left $op:ident $method:ident Number $function:expr, float $t:ty) => {};
    (@left $op:ident $method:ident $bound:ident $function:expr, $t:ty) => {
        impl<T: $bound> ops::$op<Tile<T>> for $t
        where
            $t: Binary<Tile<T>, Out = T>,
        {
            type Output = Tile<T>;

            #[track_caller]
            fn $method(self, other: Tile<T>) -> Tile<T> {
                apply($function(T::ELEM), self.pair(other))
            }
        }
    };
}

operators! {
    Add add AddAssign add_assign Number |_| ScalarFn::Add, [i32 i64 u32 usize f32 f64];
    Sub sub SubAssign sub_assign Number |_| ScalarFn::Sub, [i32 i64 u32 usize f32 f64];
    Mul mul MulAssign mul_assign Number |_| ScalarFn::Mul, [i32 i64 u32 usize f32 f64];
    Div div DivAssign div_assign Number quotient, [i32 i64 u32 usize f32 f64];
    Rem rem RemAssign rem_assign Number |_| ScalarFn::RemTrunc, [i32 i64 u32 usize f32 f64];
    BitAnd bitand BitAndAssign bitand_assign Bits |_| ScalarFn::And, [];
    BitOr bitor BitOrAssign bitor_assign Bits |_| ScalarFn::Or, [];
    BitXor bitxor BitXorAssign bitxor_assign Bits |_| ScalarFn::Xor, [];
    Shl shl ShlAssign shl_assign Int |_| ScalarFn::Shl, [];
    Shr shr ShrAssign shr_assign Int |_| ScalarFn::Shr, [];
}

impl<T: Number> ops::Neg for Tile<T> {
    type Output = Tile<T>;

    #[track_caller]
    fn neg(self) -> Tile<T> {
        apply(ScalarFn::Neg, [self])
    }
}

impl<T: Bits> ops::Not for Tile<T> {
    type Output = Tile<T>;

    #[track_caller]
    fn not(self) -> Tile<T> {
        apply(ScalarFn::Not, [self])
    }
}

impl<T: Element, U: Int> ops::Add<Tile<U>> for Ptr<T> {
    type Output = Ptr<T>;

    #[track_caller]
    fn add(self, offsets: Tile<U>) -> Ptr<T> {
        self.shifted(offsets)
    }
}

impl<T: Element, R: Num + Extent> ops::Add<R> for Ptr<T> {
    type Output = Ptr<T>;

    #[track_caller]
    fn add(self, offset: R) -> Ptr<T> {
        self.shifted::<i64>(number(offset))
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
                apply(ScalarFn::$function, [self])
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
    apply(ScalarFn::Fma, [a, b.operand(), c.operand()])
}

/// `x` between two bounds: the lower one where it is below that, the upper one where it is above; NaN stays NaN.
#[track_caller]
pub fn clamp<T: Number>(
    x: Tile<T>,
    low: impl Operand<T, Out = T>,
    high: impl Operand<T, Out = T>,
) -> Tile<T> {
    let low: Tile<T> = apply(ScalarFn::Max, [x, low.operand()]);
    apply(ScalarFn::Min, [low, high.operand()])
}

/// `yes` where `condition` is true, else `no`; at least one of them is a tile. Triton's `where`.
#[track_caller]
pub fn select<A: Binary<B>, B>(condition: Tile<bool>, yes: A, no: B) -> Tile<A::Out> {
    let [yes, no] = yes.pair(no);
    make(&[condition.handle, yes.handle, no.handle], |b, args| map(b, ScalarFn::Select, args))
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

/// An axis of a tile as operations take it.
pub(super) fn axis_of(op: &'static str, axis: usize) -> Result<u8, TypeError> {
    let message = || format!("axis {axis} is out of range");
    u8::try_from(axis).map_err(|_| TypeError::Attribute { op, message: message() })
}

#[track_caller]
fn reduce<T: Element>(combine: ReduceFn, x: Tile<T>, axis: usize, mask: Option<Tile<bool>>) -> Tile<T> {
    let args: Vec<_> = std::iter::once(x.handle).chain(mask.map(|m| m.handle)).collect();
    make(&args, |b, args| {
        let [x, mask @ ..] = args else { return Err(missing("reduce")) };
        let shape = b.ty(*x).shape.clone();
        let mask = mask.first().map(|&m| spread(b, m, &shape)).transpose()?;
        b.reduce(combine, *x, axis_of("reduce", axis)?, mask)
    })
}

/// Operands went missing: a defect of this module.
pub(super) fn missing(op: &'static str) -> TypeError {
    TypeError::Attribute { op, message: String::from("an operand is missing") }
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
