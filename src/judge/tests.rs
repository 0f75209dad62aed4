//! What is equal, and what is not.

use tch::{Kind, Tensor};

use super::{Difference, Measured, compare, difference_to_largest, judge};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

fn tensor(kind: Kind, values: &[f64]) -> Tensor {
    Tensor::from_slice(values).to_kind(kind)
}

/// Compares in `f32`.
fn compared(eager: &[f64], ours: &[f64], exact: Option<&[f64]>) -> Result<Measured, Difference> {
    let exact = exact.map(Tensor::from_slice);
    compare(&tensor(Kind::Float, eager), &tensor(Kind::Float, ours), false, exact.as_ref())
}

fn may_be_rounding(kind: Kind, value: f64, error: f64) -> bool {
    let (eager, ours) = (tensor(kind, &[value]), tensor(kind, &[value + error]));
    match compare(&eager, &ours, false, Some(&eager.to_kind(Kind::Double))) {
        Err(Difference::Numbers(measured)) => measured.may_be_rounding(kind),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_default_tolerance_is_equal() {
    assert!(compared(&[1.0, -100.0], &[1.000_001, -100.000_1], None).unwrap().close);
    assert!(compared(&[1.0], &[1.000_1], None).is_err());
    assert!(compared(&[0.0], &[2e-5], None).is_err());
}

#[test]
fn eagers_own_error_allows_twice_as_much_and_thrice_in_halves() {
    assert!(compared(&[1.001], &[0.998_1], Some(&[1.0])).is_ok());
    assert!(compared(&[1.001], &[0.997], Some(&[1.0])).is_err());
    let bf16 = |values: &[f64]| tensor(Kind::BFloat16, values);
    let exact = Tensor::from_slice(&[1.0]);
    assert!(compare(&bf16(&[1.031_25]), &bf16(&[0.906_25]), false, Some(&exact)).is_ok());
    assert!(compare(&bf16(&[1.031_25]), &bf16(&[0.875]), false, Some(&exact)).is_err());
}

#[test]
fn a_large_error_is_no_rounding() {
    for kind in [Kind::Float, Kind::BFloat16, Kind::Half] {
        assert!(!may_be_rounding(kind, 0.5, 3.95), "{kind:?}");
        assert!(!may_be_rounding(kind, -8.0, 3.95), "{kind:?}");
    }
    assert!(!may_be_rounding(Kind::Double, 1000.0, 2.8e-3));
}

#[test]
fn rounding_is_small_beside_the_exact_value() {
    assert!(may_be_rounding(Kind::Float, 0.0, 3.8e-5));
    assert!(may_be_rounding(Kind::Float, 1000.0, 2.8e-3));
    assert!(!may_be_rounding(Kind::Float, 1.0, 2.8e-3));
    assert!(may_be_rounding(Kind::BFloat16, 1.0, 0.023_437_5));
    assert!(!may_be_rounding(Kind::BFloat16, 1.0, 0.046_875));
}

#[test]
fn without_f64_nothing_is_known_to_be_rounding() {
    let Err(Difference::Numbers(measured)) = compared(&[1.0], &[1.000_1], None) else { panic!() };
    assert_eq!((measured.errors, measured.may_be_rounding(Kind::Float)), (None, false));
}

#[test]
fn special_values_lie_where_eager_has_them() {
    assert!(compared(&[NAN, INF, -INF, 1.0], &[NAN, INF, -INF, 1.0], None).is_ok());
    for ours in [[INF, 1.0], [1.0, 1.0], [NAN, NAN]] {
        assert_eq!(compared(&[NAN, 1.0], &ours, None), Err(Difference::Specials));
    }
    assert_eq!(compared(&[INF], &[-INF], None), Err(Difference::Specials));
}

#[test]
fn special_values_may_lie_where_f64_has_them() {
    assert!(compared(&[INF, 1.0], &[2.0, 1.0], Some(&[2.0, 1.0])).is_ok());
    assert!(compared(&[INF, 1.0], &[NAN, 1.0], Some(&[NAN, 1.0])).is_ok());
    assert!(compared(&[1.0, 1.0], &[INF, 1.0], Some(&[1e39, 1.0])).is_ok());
    // One element as eager's, the other as in f64.
    assert!(compared(&[NAN, NAN], &[NAN, INF], Some(&[INF, INF])).is_ok());
    assert_eq!(compared(&[INF, 1.0], &[2.0, NAN], Some(&[2.0, 1.0])), Err(Difference::Specials));
    assert_eq!(compared(&[INF], &[2.0], None), Err(Difference::Specials));
}

#[test]
fn finite_elements_beside_special_values_are_judged() {
    let wrong = |eager: &[f64], ours: &[f64], exact: &[f64]| match compared(eager, ours, Some(exact)) {
        Err(Difference::Numbers(measured)) => measured.errors.unwrap().ours,
        other => panic!("{other:?}"),
    };
    assert_eq!(wrong(&[NAN, 1.0], &[NAN, 2.0], &[NAN, 1.0]), 1.0);
    assert_eq!(wrong(&[INF, 1.0], &[3.0, 2.0], &[3.0, 1.0]), 1.0);
    // Where eager overflowed, ours is held against `f64`.
    assert_eq!(wrong(&[INF, 1.0], &[3.0, 1.0], &[7.0, 1.0]), 4.0);
    // `f64` says nothing of an element where it is not finite, and ours is held against eager's.
    assert_eq!(wrong(&[1.0, 5.0], &[2.0, 5.0], &[INF, 5.0]), 1.0);
    assert_eq!(wrong(&[1.0, 5.0], &[2.0, 5.0], &[NAN, 5.0]), 1.0);
}

#[test]
fn errors_count_finite_elements_alone() {
    let measured = compared(&[INF, 1.0], &[INF, 1.0], Some(&[70_000.0, 1.5])).unwrap();
    let errors = measured.errors.unwrap();
    assert_eq!((errors.eager, errors.ours, errors.relative), (0.5, 0.5, 0.5 / 1.5));
    assert_eq!((measured.max_abs, measured.max_rel), (0.0, 0.0));
}

#[test]
fn form_and_bits_agree() {
    let (eager, other) = (tensor(Kind::Float, &[1.0, 2.0]), tensor(Kind::Double, &[1.0, 2.0]));
    let plain = |result| matches!(result, Err(Difference::Plain(_)));
    assert!(plain(compare(&eager, &other, false, None)));
    assert!(plain(compare(&eager, &eager.unsqueeze(0), false, None)));
    let square = Tensor::from_slice(&[1.0f32; 4]).view([2, 2]);
    assert!(plain(compare(&square, &square.tr(), false, None)));
    let near = tensor(Kind::Float, &[1.0, 2.000_000_3]);
    assert!(compare(&eager, &near, false, None).is_ok());
    assert!(plain(compare(&eager, &near, true, None)));
    assert!(plain(compare(&eager.to_kind(Kind::Int), &tensor(Kind::Int, &[1.0, 3.0]), false, None)));
    let zeros = [tensor(Kind::Float, &[0.0, NAN]), tensor(Kind::Float, &[-0.0, NAN])];
    assert!(compare(&zeros[0], &zeros[1], true, None).is_ok());
    let nothing = Tensor::from_slice::<f32>(&[]);
    assert!(compare(&nothing, &nothing, false, Some(&nothing)).is_ok());
}

#[test]
fn a_verdict_names_the_first_difference_and_keeps_the_largest_numbers() {
    let list = |values: &[f64]| values.iter().map(|&x| tensor(Kind::Float, &[x])).collect::<Vec<_>>();
    let verdict = judge(&list(&[1.0, 2.0, 3.0]), &list(&[1.0, 2.5, 5.0]), Some(&list(&[1.0, 2.0, 3.0])));
    assert_eq!(
        verdict.difference.as_deref(),
        Some("output 1: largest difference 5.000e-1 is over the tolerance")
    );
    assert_eq!((verdict.max_abs, verdict.max_rel), (2.0, 2.0 / 3.0));
    assert_eq!((verdict.eager_err, verdict.fused_err), (0.0, 2.0));
    assert!(judge(&list(&[1.0]), &list(&[1.0, 2.0]), None).difference.is_some());
    let mixed = |x: f64| vec![tensor(Kind::Float, &[x, 1.0])];
    assert_eq!(judge(&mixed(INF), &mixed(2.0), Some(&mixed(2.0))).difference, None);
}

#[test]
fn a_difference_is_relative_to_the_largest_finite_element() {
    let eager = Tensor::from_slice(&[4.0f32, 0.0, f32::INFINITY, f32::NAN]);
    let ours = Tensor::from_slice(&[4.0f32, 0.5, f32::INFINITY, f32::NAN]);
    assert_eq!(difference_to_largest(&eager, &ours), 0.125);
    assert_eq!(difference_to_largest(&eager, &eager), 0.0);
    let finite = Tensor::from_slice(&[4.0f32, 0.0, 1.0, f32::NAN]);
    assert_eq!(difference_to_largest(&eager, &finite), f64::INFINITY);
    let zeros = Tensor::from_slice(&[0.0f32; 4]);
    assert_eq!(difference_to_largest(&zeros, &(&zeros + 1e-30)), f64::INFINITY);
    let whole = Tensor::from_slice(&[1i64, 2]);
    assert_eq!(difference_to_largest(&whole, &whole), 0.0);
    assert_eq!(difference_to_largest(&whole, &(&whole + 1)), f64::INFINITY);
    assert_eq!(difference_to_largest(&whole, &whole.to_kind(Kind::Double)), f64::INFINITY);
}
