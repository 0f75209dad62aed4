//! The language and its typed form.

use half::{bf16, f16};

use super::*;
use crate::data::Element;
use crate::interp::{Arg, run};
use crate::tiles::Promote;
use crate::verify;
use expect_test::expect;

/// The kind that two types meet in, and what they are.
fn met<A: Promote<B>, B: Element>() -> (Elem, Elem, Elem) {
    (A::ELEM, B::ELEM, A::Out::ELEM)
}

#[test]
fn kinds_meet_as_their_types_do() {
    macro_rules! with {
        ($a:ty: $($b:ty)*) => { [$(met::<$a, $b>()),*] };
    }
    macro_rules! each {
        ($($a:ty)*) => {
            [$(with!($a: bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64)),*]
        };
    }
    for (a, b, out) in each!(bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64).into_iter().flatten() {
        assert_eq!(promote(a, b), Some(out), "{a} and {b}");
    }
    assert_eq!(promote(Elem::F8E4M3, Elem::F32), None);
}

#[test]
fn numbers_take_kind_and_shape_and_may_change_nothing() {
    let program = program("numbers", |k| {
        let (x, y) = (k.ptr("x", Elem::F16, 8), k.ptr("y", Elem::F16, 8));
        let rows = axis(program_id(0).cast(Elem::I64) * 1, 8).below(5);
        let tile = x.block(&[(rows, 1)]).load_or(0);
        y.block(&[(rows, 1)]).store((tile * 1.0 + 2) * 0.5);
    })
    .unwrap();
    verify(&program).unwrap();
    expect![[r#"
        kernel @numbers(%x: ptr<f16> align(2) len(8), %y: ptr<f16> align(2) len(8)) warps(4) {
          %0 = program_id 0
          %1 = cast %0 i64
          %2 = range 0 8
          %3 = cast %2 i64
          %4 = splat %1 [8]
          %5 = map add %4, %3
          %6 = const 5 : tile<8xi64>
          %7 = map lt %5, %6
          %8 = const 0.0 : tile<8xf16>
          %9 = load %x, %5, mask %7, other %8
          %10 = const 2.0 : tile<8xf16>
          %11 = map add %9, %10
          %12 = const 0.5 : tile<8xf16>
          %13 = map mul %11, %12
          store %y, %5, %13, mask %7
        }
    "#]]
    .assert_eq(&program.to_string());
}

#[test]
fn a_product_of_blocks_reads_like_its_text() {
    let (n, k) = (5, 3);
    let program = program("product", |kernel| {
        let (a, b, y) =
            (kernel.ptr("a", Elem::F32, 15), kernel.ptr("b", Elem::F32, 15), kernel.ptr("y", Elem::F32, 25));
        let (rows, cols) = (blocked(program_id(0), 4, n), blocked(program_id(1), 8, n));
        let sum = for_range(0, k, 2, zeros(Elem::F32, [4, 8]), |first, sum| {
            let depth = axis(first, 2).below(k);
            let a = a.block(&[(rows, k), (depth, 1)]).load();
            dot(a, b.block(&[(depth, n), (cols, 1)]).load(), sum)
        });
        y.block(&[(rows, n), (cols, 1)]).store(sum);
    })
    .unwrap();
    verify(&program).unwrap();
    let numbers = |scale: f32| (0..15).map(|i| i as f32 * scale).collect::<Vec<_>>();
    let (a, b) = (numbers(1.0), numbers(0.5));
    let mut args = [Arg::buffer(a.clone()), Arg::buffer(b.clone()), Arg::buffer(vec![0.0f32; 25])];
    run(&program, &mut args, [2, 1, 1]).unwrap();
    let element = |at: usize| (0..3).map(|s| a[at / 5 * 3 + s] * b[s * 5 + at % 5]).sum::<f32>();
    assert_eq!(args[2], Arg::buffer((0..25).map(element).collect::<Vec<f32>>()));
}

#[test]
fn what_does_not_fit_is_named_with_its_place() {
    let line = line!() + 2;
    let error = program("bad", |k| {
        let _ = k.scalar("a", Elem::F8E4M3) + k.scalar("b", Elem::F32);
    })
    .unwrap_err();
    assert_eq!((error.place.file(), error.place.line()), (file!(), line));
    expect!["map: tiles of f8e4m3 and f32 have no common kind"].assert_eq(&error.error.to_string());
    let error = program("bad", |_| _ = arange(0, 4) + arange(0, 8)).unwrap_err();
    expect!["broadcast: operand 0 is tile<4xi32>, expected extents of 1 where they differ from [8]"]
        .assert_eq(&error.error.to_string());
    let error = program("bad", |_| _ = full(Elem::I32, [4], 0.5)).unwrap_err();
    expect!["const: the number is no i32"].assert_eq(&error.error.to_string());
}
