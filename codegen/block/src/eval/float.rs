//! Scalar functions of `f32` and `f64`.

use half::{bf16, f16};

use super::{binary, compare, unary};
use crate::data::{Data, Element};
use crate::float8::{F8E4M3, F8E5M2};
use crate::scalar_fn::{BaseFn, Level, MathFn, ScalarFn};

/// A floating-point kind.
pub(crate) trait Float: Element {
    /// The nearest value of this kind; those of fewer than 32 bits round to `f32` first.
    fn narrow(x: f64) -> Self;

    /// The same value as `f64`.
    fn widen(self) -> f64;
}

macro_rules! float {
    ($ty:ty, $narrow:expr, $widen:expr) => {
        impl Float for $ty {
            fn narrow(x: f64) -> $ty {
                $narrow(x)
            }

            fn widen(self) -> f64 {
                $widen(self)
            }
        }
    };
}

float!(F8E4M3, |x| F8E4M3::from_f32(x as f32), F8E4M3::to_f64);
float!(F8E5M2, |x| F8E5M2::from_f32(x as f32), F8E5M2::to_f64);
float!(f16, |x| f16::from_f32(x as f32), |x: f16| f64::from(x.to_f32()));
float!(bf16, |x| bf16::from_f32(x as f32), |x: bf16| f64::from(x.to_f32()));
float!(f32, |x| x as f32, f64::from);
float!(f64, std::convert::identity, std::convert::identity);

/// A floating-point kind with arithmetic of its own.
pub(super) trait Native: Float {
    fn base(function: BaseFn, args: &[&Data]) -> Option<Data>;
}

macro_rules! native {
    ($ty:ident) => {
        impl Native for $ty {
            fn base(function: BaseFn, args: &[&Data]) -> Option<Data> {
                use BaseFn::*;
                let a = $ty::slice(args.first()?)?;
                let b = || $ty::slice(args.get(1)?);
                match function {
                    Neg => unary(a, |x: $ty| -x),
                    Abs => unary(a, $ty::abs),
                    Floor => unary(a, $ty::floor),
                    Ceil => unary(a, $ty::ceil),
                    Trunc => unary(a, $ty::trunc),
                    RoundEven => unary(a, $ty::round_ties_even),
                    Sqrt => unary(a, $ty::sqrt),
                    IsNan => unary(a, $ty::is_nan),
                    IsInf => unary(a, $ty::is_infinite),
                    Add => binary(a, b()?, |x, y| x + y),
                    Sub => binary(a, b()?, |x, y| x - y),
                    Mul => binary(a, b()?, |x, y| x * y),
                    Div => binary(a, b()?, |x, y| x / y),
                    RemTrunc => binary(a, b()?, |x, y| x % y),
                    RemFloor => binary(a, b()?, |x, y| {
                        let rem = x % y;
                        if rem != 0.0 && (y < 0.0) != (rem < 0.0) { rem + y } else { rem }
                    }),
                    Max => binary(a, b()?, |x, y| either_nan(x, y).unwrap_or_else(|| max(x, y))),
                    Min => binary(a, b()?, |x, y| either_nan(x, y).unwrap_or_else(|| min(x, y))),
                    FMax => binary(a, b()?, |x, y| other_or(x, y, max)),
                    FMin => binary(a, b()?, |x, y| other_or(x, y, min)),
                    CopySign => binary(a, b()?, $ty::copysign),
                    Fma => {
                        let c = $ty::slice(args.get(2)?)?;
                        let products = a.iter().zip(b()?).zip(c);
                        Some($ty::wrap(products.map(|((&x, &y), &z)| x.mul_add(y, z)).collect()))
                    }
                    Eq => compare(a, args, |x, y| x == y),
                    Ne => compare(a, args, |x, y| x != y),
                    Lt => compare(a, args, |x, y| x < y),
                    Le => compare(a, args, |x, y| x <= y),
                    Gt => compare(a, args, |x, y| x > y),
                    Ge => compare(a, args, |x, y| x >= y),
                    MulHi | DivTrunc | DivFloor | And | Or | Xor | Not | Shl | Shr | Select => None,
                }
            }
        }
    };
}

native!(f32);
native!(f64);

/// A mathematical function, in `f64`.
pub(super) fn math<T: Float>(function: MathFn, args: &[&Data]) -> Option<Data> {
    let a = T::slice(args.first()?)?;
    match args.get(1) {
        None => unary(a, |x: T| T::narrow(of_f64(function, x.widen(), 0.0))),
        Some(b) => binary(a, T::slice(b)?, |x: T, y: T| T::narrow(of_f64(function, x.widen(), y.widen()))),
    }
}

/// The larger one, neither being NaN; +0 is larger than -0.
fn max<T: Float>(x: T, y: T) -> T {
    if x > y || (x == y && !x.widen().is_sign_negative()) { x } else { y }
}

/// The smaller one, neither being NaN; -0 is smaller than +0.
fn min<T: Float>(x: T, y: T) -> T {
    if x < y || (x == y && x.widen().is_sign_negative()) { x } else { y }
}

fn either_nan<T: Float>(x: T, y: T) -> Option<T> {
    if x.widen().is_nan() { Some(x) } else { Some(y).filter(|y| y.widen().is_nan()) }
}

/// [`ScalarFn::Max`] of `f64`.
pub(super) fn maximum(x: f64, y: f64) -> f64 {
    either_nan(x, y).unwrap_or_else(|| max(x, y))
}

/// [`ScalarFn::Min`] of `f64`.
pub(super) fn minimum(x: f64, y: f64) -> f64 {
    either_nan(x, y).unwrap_or_else(|| min(x, y))
}

fn other_or<T: Float>(x: T, y: T, both: impl Fn(T, T) -> T) -> T {
    match (x.widen().is_nan(), y.widen().is_nan()) {
        (true, _) => y,
        (_, true) => x,
        _ => both(x, y),
    }
}

/// A function of [`Level::Math`] in `f64`; `y` matters only to functions of two operands. `None` for the others.
pub fn math_f64(function: ScalarFn, x: f64, y: f64) -> Option<f64> {
    match function.level() {
        Level::Math(function) => Some(of_f64(function, x, y)),
        Level::Base(_) => None,
    }
}

fn of_f64(function: MathFn, x: f64, y: f64) -> f64 {
    match function {
        MathFn::Rsqrt | MathFn::RsqrtApprox => 1.0 / x.sqrt(),
        MathFn::Pow => x.powf(y),
        MathFn::Exp => x.exp(),
        MathFn::Exp2 | MathFn::Exp2Approx | MathFn::Exp2ApproxFtz => x.exp2(),
        MathFn::RecipApprox => 1.0 / x,
        MathFn::Expm1 => x.exp_m1(),
        MathFn::Log => x.ln(),
        MathFn::Log2 => x.log2(),
        MathFn::Log10 => x.log10(),
        MathFn::Log1p => x.ln_1p(),
        MathFn::Sin => x.sin(),
        MathFn::Cos => x.cos(),
        MathFn::Tan => x.tan(),
        MathFn::Asin => x.asin(),
        MathFn::Acos => x.acos(),
        MathFn::Atan => x.atan(),
        MathFn::Atan2 => x.atan2(y),
        MathFn::Sinh => x.sinh(),
        MathFn::Cosh => x.cosh(),
        MathFn::Tanh => x.tanh(),
        MathFn::Asinh => libm::asinh(x),
        MathFn::Acosh if x < 1.0 => f64::NAN,
        MathFn::Acosh => libm::acosh(x),
        MathFn::Atanh => libm::atanh(x),
        MathFn::Erf => libm::erf(x),
        MathFn::Erfc => libm::erfc(x),
        MathFn::Sigmoid => sigmoid(x),
    }
}

/// Written with the exponential of a negative number, so that nothing overflows and both tails keep their digits.
fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}
