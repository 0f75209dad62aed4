use expect_test::{Expect, expect};

use super::{Arg, Buffer, Options, run, run_with};
use crate::data::Data;
use crate::program::Program;
use crate::types::Elem;

fn parse(text: &str) -> Program {
    text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn fails(text: &str, mut args: Vec<Arg>, grid: [u32; 3], expect: Expect) {
    expect.assert_eq(&run(&parse(text), &mut args, grid).unwrap_err().to_string());
}

fn f32s(arg: &Arg) -> Vec<f32> {
    match arg.data() {
        Some(Data::F32(v)) => v,
        other => panic!("{other:?}"),
    }
}

#[test]
fn softmax_of_rows() {
    let program = parse(
        "kernel @softmax(%x: ptr<f32>, %y: ptr<f32>) {
           %row = program_id 0
           %cols = range 0 8
           %n = const 5 : tile<8xi32>
           %m = map lt %cols, %n
           %stride = const 5 : i32
           %base = map mul %row, %stride
           %b = splat %base [8]
           %offs = map add %b, %cols
           %v = load %x, %offs, mask %m
           %max = reduce max %v axis 0 mask %m
           %maxs = splat %max [8]
           %d = map sub %v, %maxs
           %e = map exp %d
           %sum = reduce sum %e axis 0 mask %m
           %sums = splat %sum [8]
           %p = map div %e, %sums
           store %y, %offs, %p, mask %m
         }",
    );
    let x = vec![1.0f32, 2.0, 3.0, 4.0, 5.0, -1.0, f32::NEG_INFINITY, -1.0, -1.0, -1.0];
    let mut args = [Arg::buffer(x), Arg::Buffer(Buffer::uninit(Elem::F32, 10))];
    run(&program, &mut args, [2, 1, 1]).unwrap();
    let y = f32s(&args[1]);
    assert!((y[4] - 0.636_408_6).abs() < 1e-6);
    assert_eq!(&y[5..], [0.25, 0.0, 0.25, 0.25, 0.25]);
    run(&program, &mut args[..], [2, 0, 1]).unwrap();
}

#[test]
fn loops_carry_values() {
    let program = parse(
        "kernel @f(%x: ptr<i32>, %n: i32) {
           %zero = const 0 : i32
           %three = const 3 : i32
           %sum, %last = for %i in %zero..%n step %three with (%s = %zero, %l = %n) {
             %t = map add %s, %i
             yield %t, %i
           }
           store %x, %zero, %sum
           %one = const 1 : i32
           store %x, %one, %last
         }",
    );
    for (n, expected) in [(10, [18, 9]), (0, [0, 0]), (-5, [0, -5]), (1, [0, 0])] {
        let mut args = [Arg::buffer(vec![0i32, 0]), Arg::int(Elem::I32, n)];
        run(&program, &mut args, [1, 1, 1]).unwrap();
        assert_eq!(args[0].data(), Some(Data::I32(expected.to_vec())));
    }
}

#[test]
fn tiles_change_shape() {
    let program = parse(
        "kernel @f(%x: ptr<i32>) {
           %r = range 0 8
           %m = reshape %r [2, 4]
           %t = permute %m [1, 0]
           %s = reduce sum %t axis 1
           %e = expand_dims %s axis 0
           %b = broadcast %e [2, 4]
           %u = map add %b, %m
           %f = reshape %u [8]
           store %x, %r, %f
         }",
    );
    let mut args = [Arg::buffer(vec![0i32; 8])];
    run(&program, &mut args, [1, 1, 1]).unwrap();
    assert_eq!(args[0].data(), Some(Data::I32(vec![4, 7, 10, 13, 8, 11, 14, 17])));
}

#[test]
fn masked_off_elements_are_not_touched() {
    let program = parse(
        "kernel @f(%x: ptr<i32>) {
           %r = range -2 8
           %zero = const 0 : tile<8xi32>
           %m = map ge %r, %zero
           %nine = const 9 : tile<8xi32>
           %v = load %x, %r, mask %m, other %nine
           %w = load %x, %r, mask %m
           %u = map add %v, %w
           %s = reduce sum %u axis 0
           store %x, %r, %zero, mask %m
           %six = const 6 : i32
           store %x, %six, %s
         }",
    );
    let mut args = [Arg::buffer(vec![1i32, 1, 1, 1, 1, 1, 5])];
    run(&program, &mut args, [1, 1, 1]).unwrap();
    assert_eq!(args[0].data(), Some(Data::I32(vec![0, 0, 0, 0, 0, 0, 30])));
}

const COPY: &str = "kernel @copy(%x: ptr<i32>, %y: ptr<i32> len(6)) {
  %row = program_id 0
  %two = const 2 : i32
  %base = map mul %row, %two
  %b = splat %base [4]
  %r = range 0 4
  %offs = map add %b, %r
  %v = load %x, %offs
  store %y, %offs, %v
}";

#[test]
fn accesses_are_checked() {
    let x = || Arg::buffer(vec![1i32, 2, 3, 4, 1, 2, 3, 4]);
    let y = |len| Arg::Buffer(Buffer::zeros(Elem::I32, len));
    fails(
        &COPY.replace("%offs, %v", "%offs, %r"),
        vec![x(), y(8)],
        [3, 1, 1],
        expect![
            "race on %y[2] (element 0 of the tile): another instance writes other bits, in instance [1, 0, 0] at `store %y, %offs, %r`"
        ],
    );
    let same = || Arg::buffer(vec![7i32; 8]);
    fails(
        COPY,
        vec![same(), y(8)],
        [3, 1, 1],
        expect![
            "offset 6 (element 2 of the tile) is out of range for %y of 6 elements, in instance [2, 0, 0] at `store %y, %offs, %v`"
        ],
    );
    fails(
        COPY,
        vec![same(), y(8)],
        [4, 1, 1],
        expect![
            "offset 6 (element 2 of the tile) is out of range for %y of 6 elements, in instance [2, 0, 0] at `store %y, %offs, %v`"
        ],
    );
    fails(
        COPY,
        vec![same(), y(5)],
        [1, 1, 1],
        expect!["argument 1 does not fit a parameter ptr<i32> to 6 elements"],
    );
    fails(COPY, vec![same()], [1, 1, 1], expect!["2 arguments expected, 1 given"]);
    let fresh = Arg::Buffer(Buffer::uninit(Elem::I32, 4));
    fails(
        COPY,
        vec![fresh, y(6)],
        [1, 1, 1],
        expect![
            "%x[0] (element 0 of the tile) is read before it is written, in instance [0, 0, 0] at `%v = load %x, %offs`"
        ],
    );
    fails(
        COPY,
        vec![same(), y(6)],
        [u32::MAX, 2, 1],
        expect!["a grid of [4294967295, 2, 1] has too many instances to interpret"],
    );
}

const SHIFT: &str = "kernel @shift(%x: ptr<i32>) {
  %i = program_id 0
  %one = const 1 : i32
  %j = map add %i, %one
  %v = load %x, %j
  store %x, %i, %v
}";

#[test]
fn races_are_found() {
    let x = || vec![Arg::buffer(vec![1i32, 2, 3])];
    fails(
        SHIFT,
        x(),
        [2, 1, 1],
        expect![
            "race on %x[1] (element 0 of the tile): another instance reads what this one writes, in instance [1, 0, 0] at `store %x, %i, %v`"
        ],
    );
    let mut args = x();
    run_with(&parse(SHIFT), &mut args, [2, 1, 1], &Options { races: false, ..Options::default() }).unwrap();
    assert_eq!(args[0].data(), Some(Data::I32(vec![2, 3, 3])));
    fails(
        &SHIFT.replace("store %x, %i", "store %x, %j").replace("load %x, %j", "load %x, %i"),
        x(),
        [2, 1, 1],
        expect![
            "race on %x[1] (element 0 of the tile): another instance writes what this one reads, in instance [1, 0, 0] at `%v = load %x, %i`"
        ],
    );
    fails(
        "kernel @f(%x: ptr<i32>) { %r = range 0 4 %z = const 0 : tile<4xi32> store %x, %z, %r }",
        x(),
        [1, 1, 1],
        expect![
            "race on %x[0] (element 1 of the tile): the same store writes other bits, in instance [0, 0, 0] at `store %x, %z, %r`"
        ],
    );
}

#[test]
fn loops_end() {
    let text = "kernel @f(%n: i32, %s: i32) {
      %z = const 0 : i32
      for %i in %z..%n step %s { yield }
    }";
    let args = |n, s| vec![Arg::int(Elem::I32, n), Arg::int(Elem::I32, s)];
    fails(
        text,
        args(1, 0),
        [1, 1, 1],
        expect!["the step 0 is not positive, in instance [0, 0, 0] at `for %i in %z..%n step %s`"],
    );
    let options = Options { fuel: Some(1000), ..Options::default() };
    let error = run_with(&parse(text), &mut args(i64::from(i32::MAX), 1), [1, 1, 1], &options).unwrap_err();
    expect!["out of fuel, in instance [0, 0, 0] at `for %i in %z..%n step %s`"].assert_eq(&error.to_string());
    run(&parse(text), &mut args(i64::from(i32::MAX), i64::from(i32::MAX)), [1, 1, 1]).unwrap();
}

mod language;
