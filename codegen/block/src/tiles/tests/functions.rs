//! Which scalar functions kernels can call.

use std::collections::BTreeSet;

use crate::program::OpKind;
use crate::scalar_fn::ScalarFn;
use crate::tiles::*;

/// Functions that no kernel calls: passes put them in the place of the exact ones.
const OF_PASSES: [ScalarFn; 4] =
    [ScalarFn::Exp2Approx, ScalarFn::Exp2ApproxFtz, ScalarFn::RecipApprox, ScalarFn::RsqrtApprox];

/// Calls everything of `ops.rs` that is a scalar function.
fn calls(k: &Scope) {
    let (x, y) = (k.scalar::<f32>("x"), k.scalar::<f32>("y"));
    let (i, j) = (k.scalar::<i32>("i"), k.scalar::<i32>("j"));
    let _ = [x + y, x - y, x * y, x / y, -x, abs(x), fma(x, y, y)];
    let _ = [maximum(x, y), minimum(x, y), fmax(x, y), fmin(x, y), pow(x, y), atan2(x, y), copysign(x, y)];
    let _ = [sqrt(x), rsqrt(x), exp(x), exp2(x), expm1(x), log(x), log2(x), log10(x), log1p(x)];
    let _ = [sin(x), cos(x), tan(x), asin(x), acos(x), atan(x), sinh(x), cosh(x), tanh(x)];
    let _ = [asinh(x), acosh(x), atanh(x), erf(x), erfc(x), sigmoid(x)];
    let _ = [floor(x), ceil(x), trunc(x), round_even(x), select(x.lt(y), x, y)];
    let _ = [i / j, i % j, i & j, i | j, i ^ j, i << j, i >> j, !i];
    let _ = [div_floor(i, j), rem_floor(i, j), mul_hi(i, j)];
    let _ = [x.eq(y), x.ne(y), x.lt(y), x.le(y), x.gt(y), x.ge(y), is_nan(x), is_inf(x)];
}

#[test]
fn kernels_call_every_scalar_function() {
    let mut called = BTreeSet::new();
    program("functions", calls).unwrap().walk(&mut |op| {
        if let OpKind::Map(function) = &op.kind {
            called.insert(*function);
        }
    });
    let missing: Vec<ScalarFn> = ScalarFn::ALL.iter().copied().filter(|f| !called.contains(f)).collect();
    assert_eq!(missing, OF_PASSES, "a function has a method in `ops.rs`, and a call in this test");
}
