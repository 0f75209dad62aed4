//! The meaning of scalar functions, casts and combiners, on elements of every kind.
//!
//! - Integers wrap; what division by zero and shifts out of range give stands at each [`ScalarFn`].
//! - `f16` and `bf16` operands are widened to `f32`, the function is that of `f32`, and its result is rounded to
//!   nearest even.
//! - Functions of [`Level::Math`] are computed in `f64` and rounded to `f32` (and from there to
//!   `f16` or `bf16`); on `f64` they are as accurate as the standard library's. They are the reference that
//!   approximations are measured against.
//! - Which NaN a function gives is not defined.

mod cast;
mod float;
mod int;
mod reduce;

use smallvec::SmallVec;

use crate::data::{Data, Element, with_elements};
use crate::scalar_fn::{BaseFn, Level, MathFn, ScalarFn};
use crate::types::{Elem, Literal};
use float::Native;

pub use cast::{bitcast, cast};
pub(crate) use float::Float;
pub use float::math_f64;
pub use reduce::reduce;

/// Applies a function to corresponding elements. `None` where the function does not take operands of these kinds
/// or their lengths differ.
pub fn map(function: ScalarFn, args: &[&Data]) -> Option<Data> {
    let kinds: SmallVec<[Elem; 3]> = args.iter().map(|a| a.elem()).collect();
    function.result(&kinds)?;
    if args.windows(2).any(|w| w[0].len() != w[1].len()) {
        return None;
    }
    let function = match function.level() {
        Level::Base(function) => function,
        Level::Math(function) => return math(function, args),
    };
    match (function, args) {
        (BaseFn::Select, [c, a, b]) => {
            with_elements!(a, v => select(bool::slice(c)?, v, Element::slice(b)?))
        }
        (_, [first, ..]) => match first {
            Data::Bool(_) => logic(function, args),
            Data::F8E4M3(_) | Data::F8E5M2(_) => None,
            Data::I8(_) => int::map::<i8>(function, args),
            Data::I16(_) => int::map::<i16>(function, args),
            Data::I32(_) => int::map::<i32>(function, args),
            Data::I64(_) => int::map::<i64>(function, args),
            Data::U8(_) => int::map::<u8>(function, args),
            Data::U16(_) => int::map::<u16>(function, args),
            Data::U32(_) => int::map::<u32>(function, args),
            Data::U64(_) => int::map::<u64>(function, args),
            Data::F16(_) | Data::Bf16(_) => through_f32(args, |args| f32::base(function, args)),
            Data::F32(_) => f32::base(function, args),
            Data::F64(_) => f64::base(function, args),
        },
        _ => None,
    }
}

fn math(function: MathFn, args: &[&Data]) -> Option<Data> {
    match args.first()? {
        Data::F64(_) => float::math::<f64>(function, args),
        Data::F32(_) => float::math::<f32>(function, args),
        _ => through_f32(args, |args| float::math::<f32>(function, args)),
    }
}

/// Applies a function to one element of each operand.
pub fn map_literals(function: ScalarFn, args: &[Literal]) -> Option<Literal> {
    let data: SmallVec<[Data; 3]> = args.iter().map(|&a| Data::repeat(a, 1)).collect();
    let refs: SmallVec<[&Data; 3]> = data.iter().collect();
    map(function, &refs)?.get(0)
}

/// Converts one element.
pub fn cast_literal(literal: Literal, to: Elem) -> Literal {
    cast(&Data::repeat(literal, 1), to).get(0).unwrap_or(Literal { elem: to, bits: 0 })
}

/// Reinterprets one element; `None` where the widths differ. A NaN becomes the one NaN that literals know.
pub fn bitcast_literal(literal: Literal, to: Elem) -> Option<Literal> {
    bitcast(&Data::repeat(literal, 1), to)?.get(0)
}

fn unary<A: Element, R: Element>(a: &[A], f: impl Fn(A) -> R) -> Option<Data> {
    Some(R::wrap(a.iter().map(|&x| f(x)).collect()))
}

fn binary<A: Element, R: Element>(a: &[A], b: &[A], f: impl Fn(A, A) -> R) -> Option<Data> {
    Some(R::wrap(a.iter().zip(b).map(|(&x, &y)| f(x, y)).collect()))
}

fn select<T: Element>(c: &[bool], a: &[T], b: &[T]) -> Option<Data> {
    let pairs = a.iter().zip(b);
    Some(T::wrap(c.iter().zip(pairs).map(|(&c, (&x, &y))| if c { x } else { y }).collect()))
}

/// A comparison.
fn compare<T: Element>(a: &[T], args: &[&Data], holds: impl Fn(T, T) -> bool) -> Option<Data> {
    binary(a, T::slice(args.get(1)?)?, holds)
}

fn logic(function: BaseFn, args: &[&Data]) -> Option<Data> {
    use BaseFn::*;
    let a = bool::slice(args.first()?)?;
    let b = || bool::slice(args.get(1)?);
    match function {
        Not => unary(a, |x: bool| !x),
        And => binary(a, b()?, |x, y| x & y),
        Or => binary(a, b()?, |x, y| x | y),
        Xor => binary(a, b()?, |x, y| x ^ y),
        Eq => compare(a, args, |x, y| x == y),
        Ne => compare(a, args, |x, y| x != y),
        Lt => compare(a, args, |x, y| !x & y),
        Le => compare(a, args, |x, y| x <= y),
        Gt => compare(a, args, |x, y| x & !y),
        Ge => compare(a, args, |x, y| x >= y),
        Add | Sub | Mul | Div | Fma | Neg | Abs | MulHi | DivTrunc | DivFloor | RemTrunc | RemFloor | Max
        | Min | FMax | FMin | CopySign | Floor | Ceil | Trunc | RoundEven | Shl | Shr | IsNan | IsInf
        | Sqrt | Select => None,
    }
}

/// Computes in `f32` and rounds what is not a truth value.
fn through_f32(args: &[&Data], compute: impl Fn(&[&Data]) -> Option<Data>) -> Option<Data> {
    let elem = args.first()?.elem();
    let wide: SmallVec<[Data; 3]> = args.iter().map(|a| cast(a, Elem::F32)).collect();
    let refs: SmallVec<[&Data; 3]> = wide.iter().collect();
    let result = compute(&refs)?;
    if result.elem() == Elem::Bool { Some(result) } else { Some(cast(&result, elem)) }
}

#[cfg(test)]
mod tests;
