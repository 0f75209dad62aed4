mod functions;
mod library;

use expect_test::expect;

use super::*;
use crate::interp::{Arg, run};
use crate::types::Elem;
use crate::verify;

fn add_rows() -> Program {
    program("add_rows", |k| {
        k.warps(2);
        let (x, y) = (k.ptr::<f32>("x"), k.ptr_to::<f32>("y", 16, Some(8)));
        let n = k.scalar::<i64>("n");
        let (rows, cols) = (range(0, 2), range(0, 4));
        let at = rows.col() * n + cols;
        let v = (x + at).load();
        store(y + at, v * 2.0 - sum(v, 1).col(), cols.lt(3));
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
          %12 = const 2.0 : tile<2x4xf32>
          %13 = map mul %11, %12
          %14 = reduce sum %11 axis 1
          %15 = expand_dims %14 axis 1
          %16 = broadcast %15 [2, 4]
          %17 = map sub %13, %16
          %18 = const 3 : tile<4xi32>
          %19 = map lt %1, %18
          %20 = expand_dims %19 axis 0
          %21 = broadcast %20 [2, 4]
          store %y, %10, %17, mask %21
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
        (y + 1).store(select(a.lt(b) ^ true, -a, !b).maximum(a.abs()));
    })
    .unwrap();
    let mut args = [Arg::buffer(vec![0i32; 2]), Arg::int(Elem::I32, -7), Arg::int(Elem::I32, 2)];
    run(&program, &mut args, [1; 3]).unwrap();
    assert_eq!(args[0], Arg::buffer(vec![-3 - 10 + 33 * 100, 7]));
}

#[test]
fn kinds_meet_and_numbers_take_the_tiles_kind() {
    let program = program("kinds", |k| {
        let (y, n, block) = (k.ptr::<f64>("y"), k.scalar::<i8>("n"), 64usize);
        let wide: Tile<i64> = n * program_id(0) + k.scalar::<i64>("m");
        let half: Tile<bf16> = n + k.scalar::<bf16>("h");
        let double: Tile<f64> = half * k.scalar::<f64>("d");
        (y + wide + block).store(1 - 2.0 * double);
        (y + 1).store(maximum(0.5, double) + cdiv(n, 4));
    })
    .unwrap();
    let mut args = [
        Arg::buffer(vec![0.0f64; 80]),
        Arg::int(Elem::I8, 9),
        Arg::int(Elem::I64, 3),
        Arg::float(Elem::Bf16, 1.5),
        Arg::float(Elem::F64, 2.0),
    ];
    run(&program, &mut args, [1; 3]).unwrap();
    let mut expected = vec![0.0f64; 80];
    (expected[67], expected[1]) = (1.0 - 2.0 * 21.0, 24.0);
    assert_eq!(args[0], Arg::buffer(expected));
}

#[test]
fn the_first_expression_that_does_not_fit_is_named() {
    let line = line!() + 3;
    let error = program("bad", |k| {
        let (a, b) = (range(0, 4), range(0, 8));
        let c = a + b;
        k.ptr::<i32>("y").store(c);
    })
    .unwrap_err();
    assert_eq!((error.place.file(), error.place.line(), error.place.column()), (file!(), line, 17));
    expect!["broadcast: operand 0 is tile<4xi32>, expected extents of 1 where they differ from [8]"]
        .assert_eq(&error.error.to_string());

    let error = program("bad", |k| (k.ptr::<i32>("y") + 0).store(range(0, 4))).unwrap_err();
    expect!["broadcast: operand 0 is tile<4xi32>, expected extents of 1 where they differ from []"]
        .assert_eq(&error.error.to_string());
    let error = program("bad", |k| k.ptr::<i8>("y").store(k.scalar::<i8>("a") + 300)).unwrap_err();
    expect!["const: the number is no i8"].assert_eq(&error.error.to_string());
    for bad in [
        || _ = range(0, 3),
        || _ = range(5, 1),
        || _ = range(0, 1u64 << 40),
        || _ = program_id(3),
        || _ = range(0, 4).sum(1),
        || _ = range(0, 4).sum(256),
        || _ = zeros::<f32>([3]),
        || _ = range(0, 4).reshape([2, 4]),
        || _ = range(0, 4).permute([1, 0]),
        || _ = range(0, 4).trans(),
        || _ = range(0, 4).bitcast::<f64>(),
    ] {
        assert!(program("bad", |_| bad()).is_err());
    }
}

#[test]
fn tiles_do_not_leave_their_program_or_loop() {
    let mut kept = None;
    program("first", |_| kept = Some(program_id(0))).unwrap();
    let other = kept.unwrap();
    let error = program("second", |k| k.ptr::<i32>("y").store(other + 1)).unwrap_err();
    expect!["tile: a tile of another kernel"].assert_eq(&error.error.to_string());
    assert!(other.shape().is_empty() && range(0, 4).shape().is_empty());

    let error = program("escape", |k| {
        let mut kept = program_id(0);
        for_loop(0, program_id(1), 1, (), |i, ()| kept = i);
        k.ptr::<i32>("y").store(kept);
    });
    expect!["tile: made inside a loop or branch that is over, or outside of a combiner; a variable that was declared before a loop or branch carries values out of it"]
        .assert_eq(&error.unwrap_err().error.to_string());
}

#[test]
fn loops_over_tiles_are_loops_and_loops_over_numbers_unroll() {
    let program = program("loops", |k| {
        let (y, n) = (k.ptr::<i64>("y"), k.scalar::<i64>("n"));
        let sum = for_loop(2, n, 3, zeros::<i64>([4]), |i, sum| sum + i);
        let (sum, at) = for_loop(0usize, 2, 1, (sum, y + range(0, 4)), |i, (sum, at)| (sum * (i + 1), at));
        let (sum, at) = for_loop(program_id(0), 2, 1, (sum, at), |_, (sum, at)| (sum + range(0, 4), at + 4));
        store(at, sum, true);
    })
    .unwrap();
    verify(&program).unwrap();
    let mut args = [Arg::buffer(vec![0i64; 12]), Arg::int(Elem::I64, 9)];
    run(&program, &mut args, [1; 3]).unwrap();
    let mut expected = vec![0i64; 12];
    (0..4).for_each(|i| expected[8 + i] = 2 * (2 + 5 + 8) + 2 * i as i64);
    assert_eq!(args[0], Arg::buffer(expected));

    let error = super::program("grows", |_| {
        for_loop(0, program_id(0), 1, program_id(1), |_, x| x + range(0, 4));
    });
    expect!["yield: operand 0 is tile<4xi32>, expected i32"].assert_eq(&error.unwrap_err().error.to_string());
}

#[test]
fn branches_and_loops_depend_on_tiles_or_on_rust() {
    let program = program("flow", |k| {
        let (y, n) = (k.ptr::<i32>("y"), k.scalar::<i32>("n"));
        let (steps, n) = while_loop(
            (zeros::<i32>([]), n),
            |(steps, n)| (n.gt(1), (steps, n)),
            |(steps, n)| {
                let odd = (n % 2).eq(1);
                let ((), n) = branch(odd, (), |()| ((), n * 3 + 1), |()| ((), n / 2));
                (steps + 1, n)
            },
        );
        y.store(steps * 10 + n);
        let (sum, ()) = branch(true, steps, |s| (s + 1, ()), |s| (s + 2, ()));
        (y + 1).store(while_loop(sum, |s| (false, s), |s| s * 2));
    })
    .unwrap();
    verify(&program).unwrap();
    let mut args = [Arg::buffer(vec![0i32; 2]), Arg::int(Elem::I32, 6)];
    run(&program, &mut args, [1; 3]).unwrap();
    assert_eq!(args[0], Arg::buffer(vec![81, 9]));

    let shapes = super::program("shapes", |_| {
        let _ = branch(program_id(0).gt(0), (), |()| ((), range(0, 4)), |()| ((), range(0, 8)));
    });
    expect!["yield: operand 0 is tile<8xi32>, expected tile<4xi32>"]
        .assert_eq(&shapes.unwrap_err().error.to_string());
    let wide = super::program("wide", |_| {
        let _ = branch(range(0, 4).gt(0), (), |()| ((), ()), |()| ((), ()));
    });
    assert!(wide.is_err());
}
