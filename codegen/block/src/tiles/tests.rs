use expect_test::expect;

use super::program;
use crate::interp::{Arg, run};
use crate::types::Elem;
use crate::{Program, verify};

fn add_rows() -> Program {
    program("add_rows", |k| {
        k.warps(2);
        let (x, y) = (k.ptr::<f32>("x"), k.ptr_to::<f32>("y", 16, Some(8)));
        let n = k.scalar::<i64>("n");
        let (rows, cols) = (k.range(0, 2), k.range(0, 4));
        let at = rows.expand_dims(1) * n + cols;
        let v = (x + at).load();
        (y + at).store_where(v * 2.0 - v.sum(1).expand_dims(1), cols.lt(k.constant(3)));
    })
    .unwrap()
}

#[test]
fn expressions_become_operations() {
    let program = add_rows();
    verify(&program).unwrap();
    expect![[r#"
        kernel @add_rows(%x: ptr<f32> align(4), %y: ptr<f32> align(16) len(8), %n: i64) warps(2) {
          %0 = range 0 2
          %1 = range 0 4
          %2 = expand_dims %0 axis 1
          %3 = cast %2 i64
          %4 = splat %n [2, 1]
          %5 = map mul %3, %4
          %6 = cast %1 i64
          %7 = broadcast %5 [2, 4]
          %8 = expand_dims %6 axis 0
          %9 = broadcast %8 [2, 4]
          %10 = map add %7, %9
          %11 = load %x, %10
          %12 = const 2.0 : f32
          %13 = splat %12 [2, 4]
          %14 = map mul %11, %13
          %15 = reduce sum %11 axis 1
          %16 = expand_dims %15 axis 1
          %17 = broadcast %16 [2, 4]
          %18 = map sub %14, %17
          %19 = const 3 : i32
          %20 = splat %19 [4]
          %21 = map lt %1, %20
          %22 = expand_dims %21 axis 0
          %23 = broadcast %22 [2, 4]
          store %y, %10, %18, mask %23
        }
    "#]]
    .assert_eq(&program.to_string());
    let mut args = [
        Arg::buffer(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        Arg::buffer(vec![0.0f32; 8]),
        Arg::int(Elem::I64, 4),
    ];
    run(&program, &mut args, [1; 3]).unwrap();
    assert_eq!(args[1], Arg::buffer(vec![-8.0f32, -6.0, -4.0, 0.0, -16.0, -14.0, -12.0, 0.0]));
}

#[test]
fn integers_divide_toward_zero_and_bits_combine() {
    let program = program("ints", |k| {
        let (y, a, b) = (k.ptr::<i32>("y"), k.scalar::<i32>("a"), k.scalar::<i32>("b"));
        y.store(a / b + a % b * 10 + ((a & 3) | (b << 4)) * 100);
        (y + 1).store((a.lt(b) ^ true).select(-a, !b).maximum(a.abs()));
    })
    .unwrap();
    let mut args = [Arg::buffer(vec![0i32; 2]), Arg::int(Elem::I32, -7), Arg::int(Elem::I32, 2)];
    run(&program, &mut args, [1; 3]).unwrap();
    assert_eq!(args[0], Arg::buffer(vec![-3 - 10 + 33 * 100, 7]));
}

#[test]
fn the_first_expression_that_does_not_fit_is_named() {
    let line = line!() + 3;
    let error = program("bad", |k| {
        let (a, b) = (k.range(0, 4), k.range(0, 8));
        let c = a + b;
        k.ptr::<i32>("y").store(c);
    })
    .unwrap_err();
    assert_eq!((error.place.file(), error.place.line()), (file!(), line));
    expect!["broadcast: operand 0 is tile<4xi32>, expected extents of 1 where they differ from [8]"]
        .assert_eq(&error.error.to_string());

    let error = program("bad", |k| (k.ptr::<i32>("y") + 0).store(k.range(0, 4))).unwrap_err();
    expect!["broadcast: operand 0 is tile<4xi32>, expected extents of 1 where they differ from []"]
        .assert_eq(&error.error.to_string());
    assert!(program("bad", |k| _ = k.range(0, 3)).is_err());
    assert!(program("bad", |k| _ = k.program_id(3)).is_err());
    assert!(program("bad", |k| _ = k.range(0, 4).sum(1)).is_err());
}
