//! Formulas by instructions for exponents give the bits of the others.

use crate::math::{eval_f32, eval_with_exponents, testing};
use crate::scalar_fn::ScalarFn;

/// What differs at `x`, in words.
fn difference(function: ScalarFn, x: f32) -> Option<String> {
    let (plain, other) = (eval_f32(function, x, x)?, eval_with_exponents(function, x)?);
    let same = plain.to_bits() == other.to_bits() || (plain.is_nan() && other.is_nan());
    (!same).then(|| format!("{}({x:e}): {plain:e}, but {other:e} with exponents", function.name()))
}

/// Every 4093rd `f32`, or every one of the functions that `TILEFUSE_MATH_SWEEP` names, and the edges.
#[test]
fn formulas_with_exponents_have_the_same_bits() {
    let wanted = std::env::var("TILEFUSE_MATH_SWEEP").unwrap_or_default();
    let functions = || ScalarFn::ALL.iter().copied().filter(|&f| eval_with_exponents(f, 1.0).is_some());
    assert_eq!(functions().count(), 8);
    for function in functions() {
        let every = wanted == "all" || wanted.split(',').any(|w| w == function.name());
        let all = (0..=u32::MAX).step_by(if every { 1 } else { 4093 }).map(f32::from_bits);
        let edges = testing::edges_f32(function).into_iter().map(|[x, _]| x);
        let near =
            edges.flat_map(|x| (-4..=4).map(move |d| f32::from_bits(x.to_bits().wrapping_add_signed(d))));
        let found: Vec<String> = near.chain(all).filter_map(|x| difference(function, x)).take(5).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}
