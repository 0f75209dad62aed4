//! Element kinds and tile types.

use std::fmt;

use smallvec::SmallVec;

use crate::float8::{F8E4M3, F8E5M2};

/// The kind of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Elem {
    /// A truth value, stored as one byte that is 0 or 1.
    Bool,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// 8-bit float with 4 bits of exponent and 3 of mantissa, without infinities: what overflows is NaN (OCP E4M3,
    /// libtorch's `float8_e4m3fn`). For storage and products; there is no arithmetic on it.
    F8E4M3,
    /// 8-bit float with 5 bits of exponent and 2 of mantissa (OCP E5M2, libtorch's `float8_e5m2`). For storage and
    /// products; there is no arithmetic on it.
    F8E5M2,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
}

impl Elem {
    /// Every element kind, in the order of declaration.
    pub const ALL: [Elem; 15] = [
        Elem::Bool,
        Elem::I8,
        Elem::I16,
        Elem::I32,
        Elem::I64,
        Elem::U8,
        Elem::U16,
        Elem::U32,
        Elem::U64,
        Elem::F8E4M3,
        Elem::F8E5M2,
        Elem::F16,
        Elem::Bf16,
        Elem::F32,
        Elem::F64,
    ];

    /// Size in memory, in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Elem::Bool | Elem::I8 | Elem::U8 | Elem::F8E4M3 | Elem::F8E5M2 => 1,
            Elem::I16 | Elem::U16 | Elem::F16 | Elem::Bf16 => 2,
            Elem::I32 | Elem::U32 | Elem::F32 => 4,
            Elem::I64 | Elem::U64 | Elem::F64 => 8,
        }
    }

    /// Width in bits of a value; 1 for [`Elem::Bool`].
    pub const fn bits(self) -> u32 {
        match self {
            Elem::Bool => 1,
            other => other.bytes() * 8,
        }
    }

    /// Whether this is a floating-point kind.
    pub const fn is_float(self) -> bool {
        self.is_small_float() || matches!(self, Elem::F16 | Elem::Bf16 | Elem::F32 | Elem::F64)
    }

    /// Whether this is a floating-point kind of 8 bits, which has no arithmetic.
    pub const fn is_small_float(self) -> bool {
        matches!(self, Elem::F8E4M3 | Elem::F8E5M2)
    }

    /// Whether this is an integer kind ([`Elem::Bool`] is not).
    pub const fn is_int(self) -> bool {
        !self.is_float() && !matches!(self, Elem::Bool)
    }

    /// Whether this is a signed integer kind.
    pub const fn is_signed_int(self) -> bool {
        matches!(self, Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64)
    }

    /// Whether this is an unsigned integer kind.
    pub const fn is_unsigned_int(self) -> bool {
        matches!(self, Elem::U8 | Elem::U16 | Elem::U32 | Elem::U64)
    }

    /// The spelling in text forms, `f32` for [`Elem::F32`].
    pub const fn name(self) -> &'static str {
        match self {
            Elem::Bool => "bool",
            Elem::I8 => "i8",
            Elem::I16 => "i16",
            Elem::I32 => "i32",
            Elem::I64 => "i64",
            Elem::U8 => "u8",
            Elem::U16 => "u16",
            Elem::U32 => "u32",
            Elem::U64 => "u64",
            Elem::F8E4M3 => "f8e4m3",
            Elem::F8E5M2 => "f8e5m2",
            Elem::F16 => "f16",
            Elem::Bf16 => "bf16",
            Elem::F32 => "f32",
            Elem::F64 => "f64",
        }
    }

    /// The kind that is spelled `name`.
    pub fn from_name(name: &str) -> Option<Elem> {
        Elem::ALL.into_iter().find(|e| e.name() == name)
    }
}

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What one element of a value is: a number or the address of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A number or truth value.
    Elem(Elem),
    /// An address in global memory of elements of this kind.
    Ptr(Elem),
}

/// Extents of a tile, outermost first; each is a power of two. Empty for a scalar.
pub type Shape = SmallVec<[u32; 4]>;

/// The type of a value: a tile of elements. A scalar is a tile of rank 0.
///
/// Printed as `f32`, `ptr<f32>`, `tile<64x128xbf16>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// What each element is.
    pub kind: Kind,
    /// The extents; empty for a scalar.
    pub shape: Shape,
}

impl Type {
    /// A scalar number.
    pub fn scalar(elem: Elem) -> Type {
        Type { kind: Kind::Elem(elem), shape: Shape::new() }
    }

    /// A tile of numbers.
    pub fn tile(elem: Elem, shape: &[u32]) -> Type {
        Type { kind: Kind::Elem(elem), shape: Shape::from_slice(shape) }
    }

    /// A scalar pointer to elements of kind `elem`.
    pub fn ptr(elem: Elem) -> Type {
        Type { kind: Kind::Ptr(elem), shape: Shape::new() }
    }

    /// The element kind, unless this is a pointer.
    pub fn elem(&self) -> Option<Elem> {
        match self.kind {
            Kind::Elem(e) => Some(e),
            Kind::Ptr(_) => None,
        }
    }

    /// The kind of the elements that a pointer points to.
    pub fn pointee(&self) -> Option<Elem> {
        match self.kind {
            Kind::Ptr(e) => Some(e),
            Kind::Elem(_) => None,
        }
    }

    /// Number of extents.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements; 1 for a scalar. Saturates for shapes that no tile may have.
    pub fn numel(&self) -> u64 {
        self.shape.iter().fold(1, |n, &d| n.saturating_mul(u64::from(d)))
    }

    /// The same shape with another element kind.
    pub fn with_elem(&self, elem: Elem) -> Type {
        Type { kind: Kind::Elem(elem), shape: self.shape.clone() }
    }

    /// The same element kind with another shape.
    pub fn with_shape(&self, shape: &[u32]) -> Type {
        Type { kind: self.kind, shape: Shape::from_slice(shape) }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Elem(e) => write!(f, "{e}"),
            Kind::Ptr(e) => write!(f, "ptr<{e}>"),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shape.is_empty() {
            return write!(f, "{}", self.kind);
        }
        f.write_str("tile<")?;
        for d in &self.shape {
            write!(f, "{d}x")?;
        }
        write!(f, "{}>", self.kind)
    }
}

/// A literal of some element kind, kept as 64 bits.
///
/// Integers are sign- or zero-extended to 64 bits; booleans are 0 or 1; floats of fewer bits are kept as the
/// bits of the `f64` that has the same value, except that a NaN's payload is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Literal {
    /// The element kind.
    pub elem: Elem,
    /// The value: `i64` bits for integers and booleans, `f64` bits for floats.
    pub bits: u64,
}

impl Literal {
    /// A floating-point literal, rounded to `elem`; to less than 32 bits through `f32`.
    pub fn float(elem: Elem, value: f64) -> Literal {
        let rounded = match elem {
            Elem::F8E4M3 => F8E4M3::from_f32(value as f32).to_f64(),
            Elem::F8E5M2 => F8E5M2::from_f32(value as f32).to_f64(),
            Elem::F16 => half::f16::from_f32(value as f32).to_f64(),
            Elem::Bf16 => half::bf16::from_f32(value as f32).to_f64(),
            Elem::F32 => f64::from(value as f32),
            _ => value,
        };
        let rounded = if rounded.is_nan() { f64::NAN } else { rounded };
        Literal { elem, bits: rounded.to_bits() }
    }

    /// An integer or boolean literal, wrapped to the width of `elem`.
    pub fn int(elem: Elem, value: i64) -> Literal {
        let wrapped = match elem {
            Elem::Bool => i64::from(value != 0),
            Elem::I8 => i64::from(value as i8),
            Elem::I16 => i64::from(value as i16),
            Elem::I32 => i64::from(value as i32),
            Elem::U8 => i64::from(value as u8),
            Elem::U16 => i64::from(value as u16),
            Elem::U32 => i64::from(value as u32),
            _ => value,
        };
        Literal { elem, bits: wrapped as u64 }
    }

    /// A literal of `elem` with the value of `value`, whatever kind `elem` is.
    pub fn of(elem: Elem, value: f64) -> Literal {
        if elem.is_float() { Literal::float(elem, value) } else { Literal::int(elem, value as i64) }
    }

    /// The value as `f64` (exact for every float kind; integers above 2^53 are rounded).
    pub fn as_f64(self) -> f64 {
        if self.elem.is_float() {
            f64::from_bits(self.bits)
        } else if self.elem == Elem::U64 {
            self.bits as f64
        } else {
            self.bits as i64 as f64
        }
    }

    /// The value as `i64` for integers and booleans.
    pub fn as_i64(self) -> Option<i64> {
        (!self.elem.is_float()).then_some(self.bits as i64)
    }
}

impl Literal {
    /// The value of `literal` as another kind; floats are rounded, integers wrapped.
    pub fn of_literal(elem: Elem, literal: Literal) -> Literal {
        match literal.as_i64() {
            Some(value) if elem.is_float() && literal.elem != Elem::U64 => Literal::float(elem, value as f64),
            Some(value) if !elem.is_float() => Literal::int(elem, value),
            _ => Literal::of(elem, literal.as_f64()),
        }
    }
}
