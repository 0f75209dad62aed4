//! Elements of one kind in row-major order: the contents of a tile or of a buffer.

use half::{bf16, f16};

use crate::float8::{F8E4M3, F8E5M2};
use crate::types::{Elem, Literal};

/// A Rust type that represents one element kind.
pub trait Element: Copy + Default + PartialEq + PartialOrd + std::fmt::Debug + 'static {
    /// The kind.
    const ELEM: Elem;

    /// These elements as [`Data`].
    fn wrap(elements: Vec<Self>) -> Data;

    /// The elements, if `data` is of this kind.
    fn slice(data: &Data) -> Option<&[Self]>;

    /// The elements, if `data` is of this kind.
    fn into_vec(data: Data) -> Option<Vec<Self>>;

    /// The value as a literal; a NaN's payload is not kept.
    fn literal(self) -> Literal;

    /// The value of a literal of this kind.
    fn from_literal(literal: Literal) -> Self;

    /// The value in little-endian bytes, of which there are as many as [`Elem::bytes`] says.
    fn read_le(bytes: &[u8]) -> Option<Self>;

    /// The bits, zero-extended.
    fn to_bits64(self) -> u64;
}

/// Elements of one kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Truth values.
    Bool(Vec<bool>),
    /// Signed 8-bit integers.
    I8(Vec<i8>),
    /// Signed 16-bit integers.
    I16(Vec<i16>),
    /// Signed 32-bit integers.
    I32(Vec<i32>),
    /// Signed 64-bit integers.
    I64(Vec<i64>),
    /// Unsigned 8-bit integers.
    U8(Vec<u8>),
    /// Unsigned 16-bit integers.
    U16(Vec<u16>),
    /// Unsigned 32-bit integers.
    U32(Vec<u32>),
    /// Unsigned 64-bit integers.
    U64(Vec<u64>),
    /// 8-bit floats with 4 bits of exponent.
    F8E4M3(Vec<F8E4M3>),
    /// 8-bit floats with 5 bits of exponent.
    F8E5M2(Vec<F8E5M2>),
    /// IEEE binary16.
    F16(Vec<f16>),
    /// bfloat16.
    Bf16(Vec<bf16>),
    /// IEEE binary32.
    F32(Vec<f32>),
    /// IEEE binary64.
    F64(Vec<f64>),
}

/// Evaluates an expression with the elements of a [`Data`] as a slice of their own type, whatever it is.
macro_rules! with_elements {
    ($data:expr, $v:ident => $body:expr) => {
        match $data {
            $crate::data::Data::Bool($v) => $body,
            $crate::data::Data::I8($v) => $body,
            $crate::data::Data::I16($v) => $body,
            $crate::data::Data::I32($v) => $body,
            $crate::data::Data::I64($v) => $body,
            $crate::data::Data::U8($v) => $body,
            $crate::data::Data::U16($v) => $body,
            $crate::data::Data::U32($v) => $body,
            $crate::data::Data::U64($v) => $body,
            $crate::data::Data::F8E4M3($v) => $body,
            $crate::data::Data::F8E5M2($v) => $body,
            $crate::data::Data::F16($v) => $body,
            $crate::data::Data::Bf16($v) => $body,
            $crate::data::Data::F32($v) => $body,
            $crate::data::Data::F64($v) => $body,
        }
    };
}

/// Evaluates an expression with `$T` as the Rust type of an element kind.
macro_rules! with_type {
    ($elem:expr, $T:ident => $body:expr) => {
        match $elem {
            $crate::types::Elem::Bool => {
                type $T = bool;
                $body
            }
            $crate::types::Elem::I8 => {
                type $T = i8;
                $body
            }
            $crate::types::Elem::I16 => {
                type $T = i16;
                $body
            }
            $crate::types::Elem::I32 => {
                type $T = i32;
                $body
            }
            $crate::types::Elem::I64 => {
                type $T = i64;
                $body
            }
            $crate::types::Elem::U8 => {
                type $T = u8;
                $body
            }
            $crate::types::Elem::U16 => {
                type $T = u16;
                $body
            }
            $crate::types::Elem::U32 => {
                type $T = u32;
                $body
            }
            $crate::types::Elem::U64 => {
                type $T = u64;
                $body
            }
            $crate::types::Elem::F8E4M3 => {
                type $T = $crate::float8::F8E4M3;
                $body
            }
            $crate::types::Elem::F8E5M2 => {
                type $T = $crate::float8::F8E5M2;
                $body
            }
            $crate::types::Elem::F16 => {
                type $T = half::f16;
                $body
            }
            $crate::types::Elem::Bf16 => {
                type $T = half::bf16;
                $body
            }
            $crate::types::Elem::F32 => {
                type $T = f32;
                $body
            }
            $crate::types::Elem::F64 => {
                type $T = f64;
                $body
            }
        }
    };
}

pub(crate) use {with_elements, with_type};

macro_rules! element {
    ($ty:ty, $variant:ident, $to:expr, $from:expr, $bits:expr, $read:expr) => {
        impl Element for $ty {
            const ELEM: Elem = Elem::$variant;

            fn wrap(elements: Vec<$ty>) -> Data {
                Data::$variant(elements)
            }

            fn slice(data: &Data) -> Option<&[$ty]> {
                match data {
                    Data::$variant(v) => Some(v),
                    _ => None,
                }
            }

            fn into_vec(data: Data) -> Option<Vec<$ty>> {
                match data {
                    Data::$variant(v) => Some(v),
                    _ => None,
                }
            }

            fn literal(self) -> Literal {
                $to(self)
            }

            fn from_literal(literal: Literal) -> $ty {
                $from(literal)
            }

            fn read_le(bytes: &[u8]) -> Option<$ty> {
                bytes.try_into().ok().map($read)
            }

            fn to_bits64(self) -> u64 {
                $bits(self)
            }
        }
    };
}

macro_rules! int_element {
    ($ty:ty, $unsigned:ty, $variant:ident) => {
        element!(
            $ty,
            $variant,
            |x: $ty| Literal::int(Elem::$variant, x as i64),
            |l: Literal| l.bits as $ty,
            |x: $ty| u64::from(x as $unsigned),
            <$ty>::from_le_bytes
        );
    };
}

macro_rules! float_element {
    ($ty:ty, $variant:ident) => {
        element!(
            $ty,
            $variant,
            |x: $ty| Literal::float(Elem::$variant, crate::eval::Float::widen(x)),
            |l: Literal| <$ty as crate::eval::Float>::narrow(f64::from_bits(l.bits)),
            |x: $ty| u64::from(x.to_bits()),
            <$ty>::from_le_bytes
        );
    };
}

element!(
    bool,
    Bool,
    |x: bool| Literal::int(Elem::Bool, i64::from(x)),
    |l: Literal| l.bits != 0,
    u64::from,
    |b: [u8; 1]| b != [0]
);
int_element!(i8, u8, I8);
int_element!(i16, u16, I16);
int_element!(i32, u32, I32);
int_element!(i64, u64, I64);
int_element!(u8, u8, U8);
int_element!(u16, u16, U16);
int_element!(u32, u32, U32);
int_element!(u64, u64, U64);
float_element!(F8E4M3, F8E4M3);
float_element!(F8E5M2, F8E5M2);
float_element!(f16, F16);
float_element!(bf16, Bf16);
float_element!(f32, F32);
float_element!(f64, F64);

impl Data {
    /// `len` times the value of a literal.
    pub fn repeat(literal: Literal, len: usize) -> Data {
        with_type!(literal.elem, T => T::wrap(vec![T::from_literal(literal); len]))
    }

    /// `len` times the first element, or `None` where there is none.
    pub fn repeat_first(&self, len: usize) -> Option<Data> {
        fn repeat<T: Element>(v: &[T], len: usize) -> Option<Data> {
            v.first().map(|&x| T::wrap(vec![x; len]))
        }
        with_elements!(self, v => repeat(v, len))
    }

    /// The values of literals of one kind; a literal of another kind is read as if it were of this one.
    pub fn from_literals(elem: Elem, literals: impl IntoIterator<Item = Literal>) -> Data {
        with_type!(elem, T => T::wrap(literals.into_iter().map(T::from_literal).collect()))
    }

    /// Elements from little-endian bytes; what is left over at the end is ignored.
    pub fn from_bytes(elem: Elem, bytes: &[u8]) -> Data {
        let chunks = bytes.chunks_exact(elem.bytes() as usize);
        with_type!(elem, T => T::wrap(chunks.filter_map(T::read_le).collect()))
    }

    /// The elements as little-endian bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let size = self.elem().bytes() as usize;
        let put = |out: &mut Vec<u8>, bits: u64| out.extend_from_slice(&bits.to_le_bytes()[..size]);
        let mut out = Vec::with_capacity(self.len() * size);
        with_elements!(self, v => v.iter().for_each(|x| put(&mut out, x.to_bits64())));
        out
    }

    /// The element kind.
    pub fn elem(&self) -> Elem {
        fn of<T: Element>(_: &[T]) -> Elem {
            T::ELEM
        }
        with_elements!(self, v => of(v))
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        with_elements!(self, v => v.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at a position as a literal; a NaN's payload is not kept.
    pub fn get(&self, index: usize) -> Option<Literal> {
        with_elements!(self, v => v.get(index).map(|x| x.literal()))
    }

    /// All elements as literals.
    pub fn literals(&self) -> Vec<Literal> {
        with_elements!(self, v => v.iter().map(|x| x.literal()).collect())
    }

    /// All elements as `f64`; 64-bit integers are rounded.
    pub fn to_f64(&self) -> Vec<f64> {
        with_elements!(self, v => v.iter().map(|x| x.literal().as_f64()).collect())
    }

    /// All elements as `i64`, or `None` for floats; `u64` wraps.
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        if self.elem().is_float() {
            return None;
        }
        i64::into_vec(crate::eval::cast(self, Elem::I64))
    }

    /// The elements at the given positions, or `None` where one is out of range.
    pub fn pick(&self, indices: &[usize]) -> Option<Data> {
        fn pick<T: Element>(v: &[T], indices: &[usize]) -> Option<Data> {
            indices.iter().map(|&i| v.get(i).copied()).collect::<Option<Vec<T>>>().map(T::wrap)
        }
        with_elements!(self, v => pick(v, indices))
    }
}

impl<T: Element> From<Vec<T>> for Data {
    fn from(elements: Vec<T>) -> Data {
        T::wrap(elements)
    }
}
