//! Conversions between kinds.
//!
//! - Anything to bool is `!= 0`, so NaN is true.
//! - Integers wrap to narrower integers.
//! - `f8e4m3`, `f8e5m2`, `f16` and `bf16` convert through `f32` in both directions, as in libtorch: `f64` and integers round to `f32`
//!   first.
//! - Floats truncate to integers. Through `i32` for `i8`, the 16-bit kinds and `i32`; through `i64` for `u8`, `u32` and
//!   `i64`: NaN and values out of range give the smallest `i32` or `i64`, and narrower kinds wrap that. For `u64`,
//!   values below 2^63 and NaN go through `i64`; from a larger one 2^63 is subtracted first and added again,
//!   wrapping, after the conversion to `i64`.

use half::{bf16, f16};

use super::float::Float;
use crate::data::{Data, Element, with_elements};
use crate::float8::{F8E4M3, F8E5M2};
use crate::types::Elem;

/// A kind that converts to every other one.
trait Source: Element {
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    /// The value as an integer whose lower bits are those of the value converted to `to`.
    fn to_int(self, to: Elem) -> i64;
}

macro_rules! int_source {
    ($($ty:ty)*) => { $(
        impl Source for $ty {
            fn to_f32(self) -> f32 { self as f32 }
            fn to_f64(self) -> f64 { self as f64 }
            fn to_int(self, _: Elem) -> i64 { self as i64 }
        }
    )* };
}

macro_rules! float_source {
    ($($ty:ty)*) => { $(
        impl Source for $ty {
            fn to_f32(self) -> f32 { self.widen() as f32 }
            fn to_f64(self) -> f64 { self.widen() }
            fn to_int(self, to: Elem) -> i64 { truncate(self.widen(), to) }
        }
    )* };
}

int_source!(i8 i16 i32 i64 u8 u16 u32 u64);
float_source!(F8E4M3 F8E5M2 f16 bf16 f32 f64);

impl Source for bool {
    fn to_f32(self) -> f32 {
        f32::from(u8::from(self))
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    fn to_int(self, _: Elem) -> i64 {
        i64::from(self)
    }
}

fn truncate(x: f64, to: Elem) -> i64 {
    const TWO_63: f64 = 9_223_372_036_854_775_808.0;
    match to {
        Elem::U64 if x >= TWO_63 => to_i64(x - TWO_63).wrapping_add(i64::MIN),
        Elem::I64 | Elem::U64 | Elem::U32 | Elem::U8 => to_i64(x),
        _ => i64::from(to_i32(x)),
    }
}

fn to_i32(x: f64) -> i32 {
    let in_range = x > -2_147_483_649.0 && x < 2_147_483_648.0;
    if in_range { x as i32 } else { i32::MIN }
}

fn to_i64(x: f64) -> i64 {
    let in_range = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&x);
    if in_range { x as i64 } else { i64::MIN }
}

/// Converts every element, as the module says.
pub fn cast(data: &Data, to: Elem) -> Data {
    with_elements!(data, v => cast_slice(v, to))
}

fn cast_slice<T: Source>(v: &[T], to: Elem) -> Data {
    match to {
        Elem::Bool => collect(v, |x| x != T::default()),
        Elem::I8 => collect(v, |x| x.to_int(to) as i8),
        Elem::I16 => collect(v, |x| x.to_int(to) as i16),
        Elem::I32 => collect(v, |x| x.to_int(to) as i32),
        Elem::I64 => collect(v, |x| x.to_int(to)),
        Elem::U8 => collect(v, |x| x.to_int(to) as u8),
        Elem::U16 => collect(v, |x| x.to_int(to) as u16),
        Elem::U32 => collect(v, |x| x.to_int(to) as u32),
        Elem::U64 => collect(v, |x| x.to_int(to) as u64),
        Elem::F8E4M3 => collect(v, |x| F8E4M3::from_f32(x.to_f32())),
        Elem::F8E5M2 => collect(v, |x| F8E5M2::from_f32(x.to_f32())),
        Elem::F16 => collect(v, |x| f16::from_f32(x.to_f32())),
        Elem::Bf16 => collect(v, |x| bf16::from_f32(x.to_f32())),
        Elem::F32 => collect(v, Source::to_f32),
        Elem::F64 => collect(v, Source::to_f64),
    }
}

fn collect<T: Source, R: Element>(v: &[T], convert: impl Fn(T) -> R) -> Data {
    R::wrap(v.iter().map(|&x| convert(x)).collect())
}

/// The same bits as another kind, or `None` where the widths differ.
pub fn bitcast(data: &Data, to: Elem) -> Option<Data> {
    if data.elem().bits() != to.bits() {
        return None;
    }
    Some(Data::from_bytes(to, &data.to_bytes()))
}
