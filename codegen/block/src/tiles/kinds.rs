//! Element kinds as Rust types: their families, what becomes of two of them, and Rust numbers beside tiles.

use half::{bf16, f16};

use super::{Tile, f8e4m3, f8e5m2, typed};
use crate::data::Element;
use crate::dynamic;

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
pub trait Num: Copy + Into<dynamic::Number> {}

/// Kinds whose tiles stand beside Rust numbers of type `R`.
#[diagnostic::on_unimplemented(
    message = "a tile of `{Self}` does not take a number of type `{R}`",
    label = "convert the tile with `.cast::<..>()`, or write a number of its kind"
)]
pub trait Accepts<R> {}

macro_rules! numbers {
    ($($bound:ident: $($t:ty)*;)*) => {$($(
        impl Num for $t {}
        impl<T: $bound> Accepts<$t> for T {}
    )*)*};
}

numbers! {
    Number: i8 i16 i32 i64 isize u8 u16 u32 u64 usize;
    Float: f16 bf16 f32 f64;
}

impl Num for bool {}

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
    typed(dynamic::scalar(T::ELEM, number))
}

/// What stands beside a tile of `T`: a tile of a kind that meets it, or a Rust number.
#[diagnostic::on_unimplemented(message = "`{Self}` does not go with a tile of `{T}`")]
pub trait Operand<T> {
    /// The kind that they meet in.
    type Out: Element;

    /// This operand without its kind.
    fn operand(self) -> dynamic::Operand;

    /// This operand as a tile of a kind.
    #[track_caller]
    fn tile<K: Element>(self) -> Tile<K>
    where
        Self: Sized,
    {
        typed(self.operand().tile(K::ELEM))
    }
}

impl<T: Element + Promote<U>, U: Element> Operand<T> for Tile<U> {
    type Out = T::Out;

    fn operand(self) -> dynamic::Operand {
        self.tile.into()
    }
}

impl<T: Element + Accepts<R>, R: Num> Operand<T> for R {
    type Out = T;

    fn operand(self) -> dynamic::Operand {
        self.into().into()
    }
}

/// Two operands of which at least one is a tile.
#[diagnostic::on_unimplemented(message = "no operation takes `{Self}` and `{B}`")]
pub trait Binary<B> {
    /// The kind that they meet in.
    type Out: Element;

    /// Both without their kinds.
    fn pair(self, other: B) -> [dynamic::Operand; 2];
}

impl<T: Element, B: Operand<T>> Binary<B> for Tile<T> {
    type Out = B::Out;

    fn pair(self, other: B) -> [dynamic::Operand; 2] {
        [self.tile.into(), other.operand()]
    }
}

macro_rules! left {
    ($($bound:ident: $($t:ty)*;)*) => {$($(
        impl<T: $bound> Binary<Tile<T>> for $t {
            type Out = T;

            fn pair(self, other: Tile<T>) -> [dynamic::Operand; 2] {
                [self.into(), other.tile.into()]
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

    fn pair(self, other: Tile<bool>) -> [dynamic::Operand; 2] {
        [self.into(), other.tile.into()]
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
