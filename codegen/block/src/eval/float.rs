//! Scalar functions of `f32` and `f64`.

use half::{bf16, f16};

use super::{binary, unary};
use crate::data::{Data, Element};
use crate::scalar_fn::{Level, ScalarFn};
use crate::small::{F8E4M3, F8E5M2};

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
    fn base(function: ScalarFn, args: &[&Data]) -> Option<Data>;
}

macro_rules! native {
    ($ty:ident) => {
        impl Native for $ty {
            fn base(function: ScalarFn, args: &[&Data]) -> Option<Data> {
                let a = $ty::slice(args.first()?)?;
                match function {
                    ScalarFn::Neg => return unary(a, |x| -x),
                    ScalarFn::Abs => return unary(a, $ty::abs),
                    ScalarFn::Floor => return unary(a, $ty::floor),
                    ScalarFn::Ceil => return unary(a, $ty::ceil),
                    ScalarFn::Trunc => return unary(a, $ty::trunc),
                    ScalarFn::RoundEven => return unary(a, $ty::round_ties_even),
                    ScalarFn::Sqrt => return unary(a, $ty::sqrt),
                    ScalarFn::IsNan => return unary(a, $ty::is_nan),
                    ScalarFn::IsInf => return unary(a, $ty::is_infinite),
                    _ => {}
                }
                let b = $ty::slice(args.get(1)?)?;
                match function {
                    ScalarFn::Add => binary(a, b, |x, y| x + y),
                    ScalarFn::Sub => binary(a, b, |x, y| x - y),
                    ScalarFn::Mul => binary(a, b, |x, y| x * y),
                    ScalarFn::Div => binary(a, b, |x, y| x / y),
                    ScalarFn::RemTrunc => binary(a, b, |x, y| x % y),
                    ScalarFn::RemFloor => binary(a, b, |x, y| {
                        let rem = x % y;
                        if rem != 0.0 && (y < 0.0) != (rem < 0.0) { rem + y } else { rem }
                    }),
                    ScalarFn::Max => binary(a, b, |x, y| either_nan(x, y).unwrap_or_else(|| max(x, y))),
                    ScalarFn::Min => binary(a, b, |x, y| either_nan(x, y).unwrap_or_else(|| min(x, y))),
                    ScalarFn::FMax => binary(a, b, |x, y| other_or(x, y, max)),
                    ScalarFn::FMin => binary(a, b, |x, y| other_or(x, y, min)),
                    ScalarFn::CopySign => binary(a, b, $ty::copysign),
                    ScalarFn::Fma => {
                        let c = $ty::slice(args.get(2)?)?;
                        let products = a.iter().zip(b).zip(c);
                        Some($ty::wrap(products.map(|((&x, &y), &z)| x.mul_add(y, z)).collect()))
                    }
                    _ => None,
                }
            }
        }
    };
}

native!(f32);
native!(f64);

pub(super) fn map<T: Native>(function: ScalarFn, args: &[&Data]) -> Option<Data> {
    if function.level() == Level::Base {
        return T::base(function, args);
    }
    let a = T::slice(args.first()?)?;
    match args.get(1) {
        None => unary(a, |x: T| T::narrow(math_f64(function, x.widen(), 0.0))),
        Some(b) => binary(a, T::slice(b)?, |x: T, y: T| T::narrow(math_f64(function, x.widen(), y.widen()))),
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

/// A function of [`Level::Math`] in `f64`; `y` matters only to functions of two operands. NaN for the others.
pub fn math_f64(function: ScalarFn, x: f64, y: f64) -> f64 {
    match function {
        ScalarFn::Rsqrt => 1.0 / x.sqrt(),
        ScalarFn::Pow => x.powf(y),
        ScalarFn::Exp => x.exp(),
        ScalarFn::Exp2 | ScalarFn::Exp2Approx | ScalarFn::Exp2ApproxFtz => x.exp2(),
        ScalarFn::RecipApprox => 1.0 / x,
        ScalarFn::Expm1 => x.exp_m1(),
        ScalarFn::Log => x.ln(),
        ScalarFn::Log2 => x.log2(),
        ScalarFn::Log10 => x.log10(),
        ScalarFn::Log1p => x.ln_1p(),
        ScalarFn::Sin => x.sin(),
        ScalarFn::Cos => x.cos(),
        ScalarFn::Tan => x.tan(),
        ScalarFn::Asin => x.asin(),
        ScalarFn::Acos => x.acos(),
        ScalarFn::Atan => x.atan(),
        ScalarFn::Atan2 => x.atan2(y),
        ScalarFn::Sinh => x.sinh(),
        ScalarFn::Cosh => x.cosh(),
        ScalarFn::Tanh => x.tanh(),
        ScalarFn::Asinh => libm::asinh(x),
        ScalarFn::Acosh if x < 1.0 => f64::NAN,
        ScalarFn::Acosh => libm::acosh(x),
        ScalarFn::Atanh => libm::atanh(x),
        ScalarFn::Erf => libm::erf(x),
        ScalarFn::Erfc => libm::erfc(x),
        ScalarFn::Sigmoid => sigmoid(x),
        _ => f64::NAN,
    }
}

/// Written with the exponential of a negative number, so that nothing overflows and both tails keep their digits.
fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}
