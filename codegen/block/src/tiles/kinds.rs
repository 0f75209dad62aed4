//! Element kinds as Rust types: their families, what becomes of two of them, and Rust numbers beside tiles.

use half::{bf16, f16};

use super::{Tile, f8e4m3, f8e5m2, make};
use crate::data::Element;
use crate::infer::TypeError;
use crate::types::{Elem, Literal};

/// Element kinds with arithmetic: integers and floats.
pub trait Number: Element + Promote<Self, Out = Self> {}
/// Integer kinds.
pub trait Int: Number + Bits {}
/// Floating-point kinds.
pub trait Float: Number {}
/// Integers and truth values.
pub trait Bits: Element + Promote<Self, Out = Self> {}

macro_rules! mark {
    ($($mark:ident: $($t:ty)*;)*) => { $($(impl $mark for $t {})*)* };
}

mark! {
    Number: i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64;
    Int: i8 i16 i32 i64 u8 u16 u32 u64;
    Float: f16 bf16 f32 f64;
    Bits: bool i8 i16 i32 i64 u8 u16 u32 u64;
}

/// The kind that tiles of kinds `Self` and `U` meet in; the [module](super) has the rules.
#[diagnostic::on_unimplemented(
    message = "tiles of `{Self}` and `{U}` have no common kind",
    label = "convert one of them with `.cast::<..>()`"
)]
pub trait Promote<U: Element>: Element {
    /// The common kind.
    type Out: Element;
}

macro_rules! promote {
    ($($a:ident: $($b:ident)* => $out:ident;)*) => {$($(
        impl Promote<$b> for $a { type Out = $out; }
        impl Promote<$a> for $b { type Out = $out; }
    )*)*};
    (= $($a:ident)*) => {$(impl Promote<$a> for $a { type Out = $a; })*};
}

promote!(= bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2);
promote! {
    bool: i8 => i8; bool: i16 => i16; bool: i32 => i32; bool: i64 => i64;
    bool: u8 => u8; bool: u16 => u16; bool: u32 => u32; bool: u64 => u64;
    bool: f16 => f16; bool: bf16 => bf16; bool: f32 => f32; bool: f64 => f64;
    i16: i8 u8 => i16;
    i32: i8 i16 u8 u16 => i32;
    i64: i8 i16 i32 u8 u16 u32 => i64;
    u8: i8 => u8;
    u16: u8 i8 i16 => u16;
    u32: u8 u16 i8 i16 i32 => u32;
    u64: u8 u16 u32 i8 i16 i32 i64 => u64;
    f16: i8 i16 i32 i64 u8 u16 u32 u64 => f16;
    bf16: i8 i16 i32 i64 u8 u16 u32 u64 => bf16;
    bf16: f16 => f32;
    f32: i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 => f32;
    f64: i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 => f64;
}

/// Rust numbers and truth values, which take the kind of the tile beside them.
pub trait Num: Copy {
    /// The number as an element of a kind, rounded where that is a float; `None` where the kind does not hold it.
    fn of_kind(self, elem: Elem) -> Option<Literal>;
}

/// Kinds whose tiles stand beside Rust numbers of type `R`.
#[diagnostic::on_unimplemented(
    message = "a tile of `{Self}` does not take a number of type `{R}`",
    label = "convert the tile with `.cast::<..>()`, or write a number of its kind"
)]
pub trait Accepts<R> {}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Num for $t {
            fn of_kind(self, elem: Elem) -> Option<Literal> {
                if elem.is_float() {
                    return Some(Literal::float(elem, self as f64));
                }
                let literal = Literal::int(elem, self as i64);
                let back = if elem == Elem::U64 { literal.bits as i128 } else { i128::from(literal.bits as i64) };
                (back == self as i128).then_some(literal)
            }
        }

        impl<T: Number> Accepts<$t> for T {}
    )*};
}

integers!(i8 i16 i32 i64 isize u8 u16 u32 u64 usize);

macro_rules! floats {
    ($($t:ty)*) => {$(
        impl Num for $t {
            fn of_kind(self, elem: Elem) -> Option<Literal> {
                elem.is_float().then(|| Literal::float(elem, f64::from(self)))
            }
        }

        impl<T: Float> Accepts<$t> for T {}
    )*};
}

floats!(f16 bf16 f32 f64);

impl Num for bool {
    fn of_kind(self, elem: Elem) -> Option<Literal> {
        (elem == Elem::Bool).then(|| Literal::int(elem, self.into()))
    }
}

impl Accepts<bool> for bool {}

macro_rules! storage {
    ($($t:ty: $($number:ty)*;)*) => { $($(impl Accepts<$number> for $t {})*)* };
}

storage! {
    f8e4m3: i32 f32 f64;
    f8e5m2: i32 f32 f64;
}

/// A number of a kind as a scalar tile.
#[track_caller]
pub(super) fn number<T: Element>(number: impl Num) -> Tile<T> {
    make(&[], |b, _| match number.of_kind(T::ELEM) {
        Some(literal) => Ok(b.constant(literal, &[])),
        None => Err(TypeError::Attribute { op: "const", message: format!("the number is no {}", T::ELEM) }),
    })
}

/// What stands beside a tile of `T`: a tile of a kind that meets it, or a Rust number.
#[diagnostic::on_unimplemented(message = "`{Self}` does not go with a tile of `{T}`")]
pub trait Operand<T> {
    /// The kind that they meet in.
    type Out: Element;

    /// This operand as a tile of a kind.
    #[track_caller]
    fn operand<K: Element>(self) -> Tile<K>;
}

impl<T: Element + Promote<U>, U: Element> Operand<T> for Tile<U> {
    type Out = T::Out;

    #[track_caller]
    fn operand<K: Element>(self) -> Tile<K> {
        self.cast()
    }
}

impl<T: Element + Accepts<R>, R: Num> Operand<T> for R {
    type Out = T;

    #[track_caller]
    fn operand<K: Element>(self) -> Tile<K> {
        number(self)
    }
}

/// Two operands of which at least one is a tile.
#[diagnostic::on_unimplemented(message = "no operation takes `{Self}` and `{B}`")]
pub trait Binary<B> {
    /// The kind that they meet in.
    type Out: Element;

    /// Both as tiles of a kind.
    #[track_caller]
    fn pair(self, other: B) -> [Tile<Self::Out>; 2];
}

impl<T: Element, B: Operand<T>> Binary<B> for Tile<T> {
    type Out = B::Out;

    #[track_caller]
    fn pair(self, other: B) -> [Tile<B::Out>; 2] {
        [self.cast(), other.operand()]
    }
}

macro_rules! left {
    ($($bound:ident: $($t:ty)*;)*) => {$($(
        impl<T: $bound> Binary<Tile<T>> for $t {
            type Out = T;

            #[track_caller]
            fn pair(self, other: Tile<T>) -> [Tile<T>; 2] {
                [number(self), other]
            }
        }
    )*)*};
}

left! {
    Number: i32 i64 u32 usize;
    Float: f32 f64;
}

impl Binary<Tile<bool>> for bool {
    type Out = bool;

    #[track_caller]
    fn pair(self, other: Tile<bool>) -> [Tile<bool>; 2] {
        [number(self), other]
    }
}

/// Numbers that extents, bounds of ranges and axes are given in.
pub trait Extent: Copy {
    /// The number.
    fn get(self) -> i64;
}

macro_rules! extents {
    ($($t:ty)*) => {$(
        impl Extent for $t {
            fn get(self) -> i64 {
                i64::try_from(self).unwrap_or(i64::MAX)
            }
        }
    )*};
}

extents!(i32 i64 u32 u64 usize u8);

/// Extents as a program's shape has them; what no tile may have becomes 0, which is refused.
pub(super) fn extents(shape: &[impl Extent]) -> Vec<u32> {
    shape.iter().map(|d| u32::try_from(d.get()).unwrap_or(0)).collect()
}
