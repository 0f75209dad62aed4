//! Operators and functions of corresponding elements, reductions and products.

use std::ops;

use super::operand::{apply, spread, unchanged};
use super::{Operand, Result, Tile, make, make_masked, zeros};
use crate::infer::TypeError;
use crate::program::{Assumption, DotPrecision};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::Elem;

/// A scalar function of operands, which are brought to one kind and shape.
#[track_caller]
pub fn map<const N: usize>(function: ScalarFn, args: [Operand; N]) -> Tile {
    apply(|_| function, None, args)
}

#[track_caller]
fn operator(function: impl Fn(Elem) -> ScalarFn, args: [Operand; 2]) -> Tile {
    let known = args.iter().find_map(|arg| match arg {
        Operand::Tile(tile) => tile.elem(),
        Operand::Number(_) => None,
    });
    match known.and_then(|elem| unchanged(function(elem), args)) {
        Some(same) => same,
        None => apply(function, None, args),
    }
}

/// Whether `/` is that of floats.
const fn quotient(elem: Elem) -> ScalarFn {
    if elem.is_float() { ScalarFn::Div } else { ScalarFn::DivTrunc }
}

/// Implements an operator for two tiles and for a tile and a number on either side.
macro_rules! operators {
    ($($op:ident $method:ident $function:expr;)*) => {$(
        impl<B: Into<Operand>> ops::$op<B> for Tile {
            type Output = Tile;

            #[track_caller]
            fn $method(self, other: B) -> Tile {
                operator($function, [self.into(), other.into()])
            }
        }

        operators!(@left $op $method $function, i32 i64 u32 u64 usize f32 f64 bool);
    )*};
    (@left $op:ident $method:ident $function:expr, $($t:ty)*) => {$(
        impl ops::$op<Tile> for $t {
            type Output = Tile;

            #[track_caller]
            fn $method(self, other: Tile) -> Tile {
                operator($function, [self.into(), other.into()])
            }
        }
    )*};
}

operators! {
    Add add |_| ScalarFn::Add;
    Sub sub |_| ScalarFn::Sub;
    Mul mul |_| ScalarFn::Mul;
    Div div quotient;
    BitAnd bitand |_| ScalarFn::And;
    BitOr bitor |_| ScalarFn::Or;
    BitXor bitxor |_| ScalarFn::Xor;
    Shl shl |_| ScalarFn::Shl;
    Shr shr |_| ScalarFn::Shr;
    Rem rem |_| ScalarFn::RemTrunc;
}

macro_rules! assigning {
    ($($op:ident $method:ident $by:tt;)*) => {$(
        impl<B: Into<Operand>> ops::$op<B> for Tile {
            #[track_caller]
            fn $method(&mut self, other: B) {
                *self = *self $by other;
            }
        }
    )*};
}

assigning! { AddAssign add_assign +; SubAssign sub_assign -; MulAssign mul_assign *; }

macro_rules! unary {
    ($($method:ident $function:ident;)*) => {
        impl Tile {$(
            #[doc = concat!("[`ScalarFn::", stringify!($function), "`] of each element.")]
            #[track_caller]
            pub fn $method(self) -> Tile {
                map(ScalarFn::$function, [self.into()])
            }
        )*}
    };
}

unary! { abs Abs; exp Exp; exp2 Exp2; log Log; sqrt Sqrt; rsqrt Rsqrt; }

impl ops::Neg for Tile {
    type Output = Tile;

    #[track_caller]
    fn neg(self) -> Tile {
        map(ScalarFn::Neg, [self.into()])
    }
}

impl ops::Not for Tile {
    type Output = Tile;

    #[track_caller]
    fn not(self) -> Tile {
        map(ScalarFn::Not, [self.into()])
    }
}

macro_rules! binary {
    ($($method:ident $function:ident $doc:literal;)*) => {
        impl Tile {$(
            #[doc = $doc]
            #[track_caller]
            pub fn $method(self, other: impl Into<Operand>) -> Tile {
                map(ScalarFn::$function, [self.into(), other.into()])
            }
        )*}
    };
}

binary! {
    eq Eq "Whether corresponding elements are equal.";
    ne Ne "Whether corresponding elements differ.";
    lt Lt "Whether elements are less than the other ones.";
    le Le "Whether elements are less than the other ones or equal.";
    gt Gt "Whether elements are greater than the other ones.";
    ge Ge "Whether elements are greater than the other ones or equal.";
    maximum Max "The larger of corresponding elements; NaN if either is NaN.";
    minimum Min "The smaller of corresponding elements; NaN if either is NaN.";
}

/// `a * b + c`, rounded once.
#[track_caller]
pub fn fma(a: Tile, b: impl Into<Operand>, c: impl Into<Operand>) -> Tile {
    map(ScalarFn::Fma, [a.into(), b.into(), c.into()])
}

/// `yes` where `condition` is true, else `no`. Triton's `where`.
#[track_caller]
pub fn select(condition: Tile, yes: impl Into<Operand>, no: impl Into<Operand>) -> Tile {
    apply(|_| ScalarFn::Select, Some(condition), [yes.into(), no.into()])
}

/// Where all masks hold that there are; `None` where there is none.
#[track_caller]
pub fn both(x: Option<Tile>, y: Option<Tile>) -> Option<Tile> {
    match (x, y) {
        (Some(x), Some(y)) => Some(x & y),
        (one, other) => one.or(other),
    }
}

/// `x / by` and `x % by` of a natural number.
#[track_caller]
pub fn div_rem(x: Tile, by: impl Into<super::Number>) -> (Tile, Tile) {
    let by = by.into();
    if by == super::Number::Int(1) {
        return (x, zeros(x.elem().unwrap_or(Elem::I32), x.shape()));
    }
    (x / by, x % by)
}

/// An axis of a tile as operations take it.
pub(super) fn axis_of(op: &'static str, axis: usize) -> Result<u8> {
    let message = || format!("axis {axis} is out of range");
    u8::try_from(axis).map_err(|_| TypeError::Attribute { op, message: message() })
}

impl Tile {
    /// Elements along an axis, which disappears, combined: all, or those where a mask is true.
    #[track_caller]
    pub fn reduce(self, combine: ReduceFn, axis: usize, mask: impl Into<Option<Tile>>) -> Tile {
        make_masked([self], mask.into(), |b, [x], mask| {
            let shape = b.ty(x).shape.clone();
            let mask = mask.map(|m| spread(b, m, &shape)).transpose()?;
            b.reduce(combine, x, axis_of("reduce", axis)?, mask)
        })
    }

    /// The sum along an axis, which disappears.
    #[track_caller]
    pub fn sum(self, axis: usize) -> Tile {
        self.reduce(ReduceFn::Sum, axis, None)
    }

    /// The largest element along an axis, which disappears.
    #[track_caller]
    pub fn max(self, axis: usize) -> Tile {
        self.reduce(ReduceFn::Max, axis, None)
    }

    /// The value, with a promise about it.
    #[track_caller]
    pub fn assume(self, assumption: Assumption) -> Tile {
        make([self], |b, [x]| b.assume(x, assumption))
    }
}

/// The matrix product of `a: [M, K]` and `b: [K, N]`, or of batches of them, added to `sum: [M, N]`. `f32` is not rounded.
#[track_caller]
pub fn dot(a: Tile, b: Tile, sum: Tile) -> Tile {
    dot_with(a, b, sum, DotPrecision::Ieee)
}

/// [`dot`] in a precision of one's own, which matters for `f32`. Triton's `input_precision`.
#[track_caller]
pub fn dot_with(a: Tile, b: Tile, sum: Tile, precision: DotPrecision) -> Tile {
    make([a, b, sum], |builder, [a, b, sum]| {
        let (mut shape, columns) = (builder.ty(a).shape.to_vec(), builder.ty(b).shape.last().copied());
        if let (Some(last), Some(columns)) = (shape.last_mut(), columns) {
            *last = columns;
        }
        let sum = spread(builder, sum, &shape)?;
        builder.dot(a, b, sum, precision)
    })
}

/// Four tiles of random bits for a seed and a tile of offsets, by Philox 4x32.
#[track_caller]
pub fn philox(seed: Tile, offset: Tile, rounds: u8) -> [Tile; 4] {
    let mut others = None;
    let first = make([seed, offset], |b, [seed, offset]| {
        let [first, rest @ ..] = b.philox(seed, offset, rounds)?;
        others = Some(rest);
        Ok(first)
    });
    let [b, c, d] = others.map_or([first; 3], |values| values.map(|value| first.beside(value)));
    [first, b, c, d]
}

/// Prints the elements of tiles with the instance and a prefix, for debugging.
#[track_caller]
pub fn device_print(prefix: &str, tiles: &[Tile], hex: bool) {
    super::control::append(tiles, |b, values| b.print(prefix, values, hex));
}

/// Ends the launch with an error where an element of a condition is false and the mask is true.
#[track_caller]
pub fn device_assert(condition: Tile, message: &str, mask: Option<Tile>) {
    let shape = condition.shape();
    let mask = mask.map(|mask| mask.broadcast_to(shape));
    make_masked([condition], mask, |b, [condition], mask| {
        b.assert(condition, message, mask)?;
        Ok(condition)
    });
}
