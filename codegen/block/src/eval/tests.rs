use half::{bf16, f16};

use super::{bitcast, cast, map, map_literals, reduce};
use crate::data::{Data, Element};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::{Elem, Literal};

fn two<A: Element, R: Element>(f: ScalarFn, a: &[A], b: &[A]) -> Vec<R> {
    let out = map(f, &[&A::wrap(a.to_vec()), &A::wrap(b.to_vec())]).unwrap();
    R::into_vec(out).unwrap()
}

fn one<A: Element, R: Element>(f: ScalarFn, a: &[A]) -> Vec<R> {
    R::into_vec(map(f, &[&A::wrap(a.to_vec())]).unwrap()).unwrap()
}

/// Compares bits, but one NaN with another as equal.
fn same(found: &[f32], expected: &[f32]) {
    let bits = |v: &[f32]| -> Vec<u32> {
        v.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
    };
    assert_eq!(bits(found), bits(expected), "{found:?} is not {expected:?}");
}

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

#[test]
fn every_function_takes_what_its_rule_says() {
    for &f in ScalarFn::ALL {
        for elem in Elem::ALL {
            let first = if f == ScalarFn::Select { Elem::Bool } else { elem };
            let kinds: Vec<Elem> = (0..f.arity()).map(|i| if i == 0 { first } else { elem }).collect();
            let args: Vec<Literal> = kinds.iter().map(|&e| Literal::of(e, 1.0)).collect();
            let result = map_literals(f, &args).map(|l| l.elem);
            assert_eq!(result, f.result(&kinds), "{} of {kinds:?}", f.name());
        }
    }
}

#[test]
fn integer_division_by_zero_and_minus_one() {
    let a = [7, -7, 7, -7, i32::MIN, 5, i32::MIN];
    let b = [2, 2, -2, -2, -1, 0, 0];
    assert_eq!(two::<_, i32>(ScalarFn::DivTrunc, &a, &b), [3, -3, -3, 3, i32::MIN, 0, 0]);
    assert_eq!(two::<_, i32>(ScalarFn::DivFloor, &a, &b), [3, -4, -4, 3, i32::MIN, 0, 0]);
    assert_eq!(two::<_, i32>(ScalarFn::RemTrunc, &a, &b), [1, -1, 1, -1, 0, 0, 0]);
    assert_eq!(two::<_, i32>(ScalarFn::RemFloor, &a, &b), [1, 1, -1, -1, 0, 0, 0]);
    assert_eq!(two::<u8, u8>(ScalarFn::DivFloor, &[200, 1], &[7, 255]), [28, 0]);
    assert_eq!(two::<i8, i8>(ScalarFn::DivTrunc, &[i8::MIN], &[-1]), [i8::MIN]);
}

#[test]
fn integers_wrap() {
    assert_eq!(two::<i32, i32>(ScalarFn::Add, &[i32::MAX], &[1]), [i32::MIN]);
    assert_eq!(two::<u8, u8>(ScalarFn::Sub, &[0], &[1]), [255]);
    assert_eq!(two::<i64, i64>(ScalarFn::Mul, &[i64::MIN], &[-1]), [i64::MIN]);
    assert_eq!(one::<i16, i16>(ScalarFn::Abs, &[i16::MIN, -3]), [i16::MIN, 3]);
    assert_eq!(one::<u32, u32>(ScalarFn::Neg, &[1]), [u32::MAX]);
    assert_eq!(one::<u32, u32>(ScalarFn::Abs, &[u32::MAX]), [u32::MAX]);
}

#[test]
fn shifts_out_of_range() {
    let amounts = [0, 1, 31, 32, -1, i32::MIN];
    assert_eq!(two::<_, i32>(ScalarFn::Shl, &[1; 6], &amounts), [1, 2, i32::MIN, 0, 0, 0]);
    assert_eq!(two::<_, i32>(ScalarFn::Shr, &[-8; 6], &amounts), [-8, -4, -1, -1, -1, -1]);
    assert_eq!(two::<_, i32>(ScalarFn::Shr, &[8; 6], &amounts), [8, 4, 0, 0, 0, 0]);
    assert_eq!(two::<u64, u64>(ScalarFn::Shr, &[u64::MAX, 9], &[63, u64::MAX]), [1, 0]);
    assert_eq!(two::<u8, u8>(ScalarFn::Shl, &[255, 255], &[7, 8]), [128, 0]);
}

#[test]
fn extremes_of_floats() {
    let a = [1.0, NAN, 2.0, 0.0, -0.0, NAN, -INF];
    let b = [2.0, 1.0, NAN, -0.0, 0.0, NAN, INF];
    same(&two(ScalarFn::Max, &a, &b), &[2.0, NAN, NAN, 0.0, 0.0, NAN, INF]);
    same(&two(ScalarFn::Min, &a, &b), &[1.0, NAN, NAN, -0.0, -0.0, NAN, -INF]);
    same(&two(ScalarFn::FMax, &a, &b), &[2.0, 1.0, 2.0, 0.0, 0.0, NAN, INF]);
    same(&two(ScalarFn::FMin, &a, &b), &[1.0, 1.0, 2.0, -0.0, -0.0, NAN, -INF]);
}

#[test]
fn remainders_of_floats() {
    let a = [5.5, -5.5, 5.5, -0.0, 1.0, INF, 1.0, -4.0];
    let b = [2.0, 2.0, -2.0, 2.0, 0.0, 2.0, -INF, 2.0];
    same(&two(ScalarFn::RemTrunc, &a, &b), &[1.5, -1.5, 1.5, -0.0, NAN, NAN, 1.0, -0.0]);
    same(&two(ScalarFn::RemFloor, &a, &b), &[1.5, 0.5, -0.5, -0.0, NAN, NAN, -INF, -0.0]);
}

#[test]
fn rounding_and_signs() {
    let a = [0.5, 1.5, -0.5, 2.5, NAN, -INF, 8388609.0];
    same(&one(ScalarFn::RoundEven, &a), &[0.0, 2.0, -0.0, 2.0, NAN, -INF, 8388609.0]);
    same(&one(ScalarFn::Floor, &a), &[0.0, 1.0, -1.0, 2.0, NAN, -INF, 8388609.0]);
    same(&one(ScalarFn::Ceil, &a), &[1.0, 2.0, -0.0, 3.0, NAN, -INF, 8388609.0]);
    same(&two(ScalarFn::CopySign, &[1.0, -1.0, INF], &[-0.0, 3.0, -1.0]), &[-1.0, 1.0, -INF]);
    same(&one(ScalarFn::Neg, &[0.0, -INF]), &[-0.0, INF]);
}

#[test]
fn comparisons_with_nan() {
    let (a, b) = ([NAN, 1.0, NAN, -0.0], [1.0, NAN, NAN, 0.0]);
    for f in [ScalarFn::Lt, ScalarFn::Gt] {
        assert_eq!(two::<_, bool>(f, &a, &b), [false; 4]);
    }
    for f in [ScalarFn::Le, ScalarFn::Ge, ScalarFn::Eq] {
        assert_eq!(two::<_, bool>(f, &a, &b), [false, false, false, true]);
    }
    assert_eq!(two::<_, bool>(ScalarFn::Ne, &a, &b), [true, true, true, false]);
    assert_eq!(two::<bool, bool>(ScalarFn::Lt, &[false, true], &[true, true]), [true, false]);
    assert_eq!(two::<u8, bool>(ScalarFn::Lt, &[200], &[100]), [false]);
}

#[test]
fn narrow_floats_round_once_from_f32() {
    let h = f16::from_f32;
    assert_eq!(two::<_, f16>(ScalarFn::Add, &[h(2048.0), h(65504.0)], &[h(1.0), h(32.0)])[0], h(2048.0));
    assert_eq!(two::<_, f16>(ScalarFn::Mul, &[h(300.0)], &[h(300.0)]), [f16::INFINITY]);
    let b = bf16::from_f32;
    assert_eq!(two::<_, bf16>(ScalarFn::Add, &[b(256.0), b(256.0)], &[b(1.0), b(3.0)]), [b(256.0), b(260.0)]);
    assert_eq!(one::<_, bool>(ScalarFn::IsNan, &[bf16::NAN, b(1.0)]), [true, false]);
}

#[test]
fn fma_rounds_once() {
    let a = 1.0 + f32::EPSILON;
    let args = [a, a, -1.0].map(|x| Literal::float(Elem::F32, f64::from(x)));
    let exact = 2.0 * f64::from(f32::EPSILON) + f64::from(f32::EPSILON).powi(2);
    assert_eq!(map_literals(ScalarFn::Fma, &args).unwrap().as_f64(), f64::from(exact as f32));
}

#[test]
fn math_functions_at_special_points() {
    same(&one(ScalarFn::Sigmoid, &[0.0, INF, -INF, NAN, -103.0]), &[0.5, 1.0, 0.0, NAN, 1.4e-45]);
    same(&one(ScalarFn::Exp, &[-INF, 89.0, -104.0]), &[0.0, INF, 0.0]);
    same(&one(ScalarFn::Log, &[0.0f32, -0.0, -1.0]), &[-INF, -INF, NAN]);
    same(&one(ScalarFn::Rsqrt, &[0.0f32, -0.0, 4.0, -1.0]), &[INF, -INF, 0.5, NAN]);
    same(&two(ScalarFn::Pow, &[NAN, 1.0, -8.0, 0.0], &[0.0, NAN, 1.0 / 3.0, -1.0]), &[1.0, 1.0, NAN, INF]);
    same(&one(ScalarFn::Erf, &[-0.0f32, INF]), &[-0.0, 1.0]);
    for &f in ScalarFn::ALL.iter().filter(|f| f.is_math() && f.arity() == 1) {
        assert!(one::<f32, f32>(f, &[NAN])[0].is_nan(), "{} of NaN", f.name());
    }
}

#[test]
fn casts_of_floats_out_of_range() {
    let x = [NAN, -1.0, 300.0, 3e9, -3e9, 1e19, INF, -0.5];
    let cast_to = |to| cast(&Data::F32(x.to_vec()), to);
    let (low32, low64) = (i32::MIN, i64::MIN);
    let big = 9_999_999_980_506_447_872u64;
    assert_eq!(cast_to(Elem::I32), vec![low32, -1, 300, low32, low32, low32, low32, 0].into());
    assert_eq!(cast_to(Elem::U8), vec![0u8, 255, 44, 0, 0, 0, 0, 0].into());
    let far = Data::F64(vec![2_147_483_653.0, -2_147_483_653.0, 1e12 + 9.0, NAN.into(), 1e19]);
    assert_eq!(cast(&far, Elem::U8), vec![5u8, 251, 9, 0, 0].into());
    assert_eq!(cast(&far, Elem::I8), vec![0i8, 0, 0, 0, 0].into());
    assert_eq!(cast_to(Elem::I8), vec![0i8, -1, 44, 0, 0, 0, 0, 0].into());
    assert_eq!(
        cast_to(Elem::I64),
        vec![low64, -1, 300, 3_000_000_000, -3_000_000_000, low64, low64, 0].into()
    );
    assert_eq!(cast_to(Elem::U32), vec![0u32, u32::MAX, 300, 3_000_000_000, 1_294_967_296, 0, 0, 0].into());
    let wrapped = [1 << 63, u64::MAX, 300, 3_000_000_000, 3_000_000_000u64.wrapping_neg(), big, 0, 0];
    assert_eq!(cast_to(Elem::U64), wrapped.to_vec().into());
    assert_eq!(cast_to(Elem::Bool), vec![true, true, true, true, true, true, true, true].into());
}

#[test]
fn casts_of_integers_and_to_narrow_floats() {
    assert_eq!(cast(&vec![-1i64, 1 << 40, 200].into(), Elem::U8), vec![255u8, 0, 200].into());
    assert_eq!(cast(&vec![200u8].into(), Elem::I8), vec![-56i8].into());
    assert_eq!(cast(&vec![u64::MAX].into(), Elem::F32), vec![18_446_744_073_709_551_616f32].into());
    assert_eq!(cast(&vec![16_777_217i32].into(), Elem::F32), vec![16_777_216f32].into());
    let x = [65519.0, 65520.0, 1e-8].map(f64::from);
    assert_eq!(cast(&x.to_vec().into(), Elem::F16), vec![f16::MAX, f16::INFINITY, f16::ZERO].into());
    let halfway_and_a_bit = 1.0 + f64::powi(2.0, -11) + f64::powi(2.0, -40);
    assert_eq!(cast(&vec![halfway_and_a_bit].into(), Elem::F16), vec![f16::ONE].into());
    assert_eq!(cast(&vec![false, true].into(), Elem::Bf16), vec![bf16::ZERO, bf16::ONE].into());
    assert_eq!(cast(&vec![0.0f32, -0.0, 1e-45].into(), Elem::Bool), vec![false, false, true].into());
}

#[test]
fn bits_stay_in_bitcasts() {
    assert_eq!(bitcast(&vec![-0.0f32, 1.0].into(), Elem::I32), Some(vec![i32::MIN, 0x3f80_0000].into()));
    let nan = bitcast(&vec![0x7fc0i16].into(), Elem::Bf16).unwrap();
    assert!(nan.to_f64()[0].is_nan());
    assert_eq!(bitcast(&vec![1i32].into(), Elem::F64), None);
    assert_eq!(bitcast(&vec![true].into(), Elem::I8), None);
}

#[test]
fn reductions_along_an_axis() {
    let x: Data = vec![1i32, 2, 3, 4, 5, 6, 7, 8].into();
    let mask = [true, true, false, true, false, false, false, true];
    assert_eq!(reduce(ReduceFn::Sum, &x, None, [2, 2, 2]), Some(vec![4, 6, 12, 14].into()));
    assert_eq!(reduce(ReduceFn::Max, &x, Some(&mask), [1, 4, 2]), Some(vec![1, 8].into()));
    let neutral = vec![i32::MAX, i32::MAX];
    assert_eq!(reduce(ReduceFn::Min, &x, Some(&[false; 8]), [1, 4, 2]), Some(neutral.into()));
    assert_eq!(reduce(ReduceFn::And, &vec![true, false].into(), None, [1, 2, 1]), Some(vec![false].into()));
    assert_eq!(reduce(ReduceFn::Sum, &vec![true].into(), None, [1, 1, 1]), None);
    assert_eq!(reduce(ReduceFn::Sum, &x, None, [2, 2, 3]), None);
    let twos: Data = vec![f16::from_f32(2.0); 70_000].into();
    assert_eq!(reduce(ReduceFn::Sum, &twos, None, [1, 70_000, 1]), Some(vec![f16::INFINITY].into()));
    let nan = reduce(ReduceFn::Max, &vec![1.0f32, NAN, 2.0].into(), None, [1, 3, 1]).unwrap();
    assert!(nan.to_f64()[0].is_nan());
}

#[test]
fn neutral_elements_change_nothing() {
    for combine in ReduceFn::ALL {
        for elem in Elem::ALL.into_iter().filter(|&e| combine.accepts(e)) {
            for value in [-100.0, -1.0, 0.0, 1.0, 90.0] {
                let x = Literal::of(elem, value);
                assert_eq!(map_literals(combine.combine(), &[x, combine.neutral(elem)]), Some(x), "{elem}");
            }
        }
    }
}
