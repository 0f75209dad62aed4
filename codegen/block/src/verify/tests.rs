use expect_test::{Expect, expect};
use smallvec::smallvec;

use crate::program::{Op, OpKind, Program, Value};
use crate::types::{Elem, Literal, Shape, Type};
use crate::verify;

const SAMPLE: &str = "kernel @f(%x: ptr<f32>, %n: i32) {
  %r = range 0 4
  %v = load %x, %r
  %w = map exp %v
  %one = const 1 : i32
  %sum = for %i in %one..%n step %one with (%s = %w) {
    %t = map add %s, %v
    yield %t
  }
  store %x, %r, %sum
}";

fn sample() -> Program {
    SAMPLE.parse().unwrap()
}

/// The value with this name.
fn value(program: &Program, name: &str) -> Value {
    let index = program.values.iter().position(|v| v.name.as_deref() == Some(name)).unwrap();
    Value(index as u32)
}

/// Breaks a valid program and shows what the verifier says.
fn broken(change: impl FnOnce(&mut Program), expect: Expect) {
    let mut program = sample();
    verify(&program).unwrap();
    change(&mut program);
    expect.assert_eq(&verify(&program).unwrap_err().to_string());
}

fn the_loop(program: &mut Program) -> &mut Op {
    &mut program.body.ops[4]
}

#[test]
fn header() {
    broken(|p| p.name = "a b".to_owned(), expect!["kernel @a b: the name is not an identifier"]);
    broken(|p| p.warps = 0, expect!["kernel @f: 0 warps are not a power of two from 1 to 32"]);
    broken(|p| p.stages = Some(0), expect!["kernel @f: 0 stages are not from 1 to 8"]);
    broken(|p| p.stages = Some(9), expect!["kernel @f: 9 stages are not from 1 to 8"]);
    broken(|p| p.warps = 64, expect!["kernel @f: 64 warps are not a power of two from 1 to 32"]);
    broken(
        |p| p.params[0].align = 2,
        expect!["kernel @f: parameter 0: the alignment is not a power of two, or below the element's size"],
    );
    broken(
        |p| p.params[0].len = Some(1 << 61),
        expect!["kernel @f: parameter 0: the length is 2^63 bytes or more"],
    );
    broken(|p| p.values[1].ty = Type::tile(Elem::I32, &[4]), expect!["kernel @f: parameter 1: not a scalar"]);
    broken(
        |p| p.params[1].value = p.params[0].value,
        expect!["kernel @f: %0 is defined twice or does not exist"],
    );
}

#[test]
fn definitions() {
    broken(|p| p.body.ops.swap(1, 2), expect!["operand 0 is not defined here, at `%w = map exp %v`"]);
    broken(
        |p| {
            let v = value(p, "v");
            p.body.ops[2].results[0] = v;
        },
        expect!["%3 is defined twice or does not exist, at `%v_1 = map exp %v_1`"],
    );
    broken(
        |p| p.body.ops[2].results[0] = Value(1000),
        expect!["%1000 is defined twice or does not exist, at `%?1000 = map exp %v`"],
    );
    broken(
        |p| p.body.ops[2].args[0] = Value(1000),
        expect!["operand 0 is not defined here, at `%w = map exp %?1000`"],
    );
    broken(
        |p| {
            let v = value(p, "t");
            p.body.ops[5].args[2] = v;
        },
        expect!["operand 2 is not defined here, at `store %x, %r, %t`"],
    );
    broken(
        |p| {
            let v = value(p, "x");
            p.body.ops[2].args[0] = v;
        },
        expect![
            "operand 0 is a pointer, which only loads, stores and atomic operations take, at `%w = map exp %x`"
        ],
    );
}

#[test]
fn types() {
    broken(
        |p| p.body.ops[2].kind = OpKind::Map(crate::ScalarFn::Not),
        expect!["map: not does not take f32, at `%w = map not %v`"],
    );
    broken(
        |p| p.values[4].ty = Type::tile(Elem::F16, &[4]),
        expect!["result 0 is tile<4xf16>, expected tile<4xf32>, at `%w = map exp %v`"],
    );
    broken(|p| p.body.ops[2].results.clear(), expect!["0 values where 1 are needed, at `map exp %v`"]);
    broken(|p| p.body.ops[2].args.clear(), expect!["map takes 1 operands, not 0, at `%w = map exp`"]);
    broken(
        |p| p.body.ops[3].kind = OpKind::Const(Literal { elem: Elem::I32, bits: 1 << 40 }),
        expect!["the literal is not a value of its kind, at `%one = const 1099511627776 : i32`"],
    );
    broken(
        |p| p.body.ops[3].kind = OpKind::Const(Literal::float(Elem::F32, 1.0)),
        expect!["result 0 is i32, expected f32, at `%one = const 1.0 : i32`"],
    );
    broken(
        |p| {
            let v = value(p, "one");
            p.values[v.index()].ty.shape = Shape::from_slice(&[1 << 31; 5]);
        },
        expect![
            "const: a tile of [2147483648, 2147483648, 2147483648, 2147483648, 2147483648] has more than 1048576 elements, at `%one = const 1 : tile<2147483648x2147483648x2147483648x2147483648x2147483648xi32>`"
        ],
    );
    broken(
        |p| {
            let v = value(p, "one");
            p.values[v.index()].ty.shape = smallvec![3];
        },
        expect!["const: extents [3] must be at most five powers of two, at `%one = const 1 : tile<3xi32>`"],
    );
}

#[test]
fn regions() {
    broken(
        |p| the_loop(p).regions.clear(),
        expect!["the operation has more or fewer regions than it takes, at `%sum = for %one, %n, %one, %w`"],
    );
    broken(
        |p| the_loop(p).regions[0].args.truncate(1),
        expect!["1 values where 2 are needed, at `%sum = for %i in %one..%n step %one with ()`"],
    );
    broken(
        |p| the_loop(p).regions[0].args.clear(),
        expect!["0 values where 2 are needed, at `%sum = for  in %one..%n step %one with ()`"],
    );
    broken(
        |p| the_loop(p).args.truncate(2),
        expect!["for takes 3 operands, not 2, at `%sum = for %one, %n`"],
    );
    broken(
        |p| {
            let v = value(p, "v");
            the_loop(p).args[0] = v;
        },
        expect![
            "for: operand 0 is tile<4xf32>, expected i32, at `%sum = for %i in %v..%n step %one with (%s = %w)`"
        ],
    );
    broken(
        |p| the_loop(p).results.clear(),
        expect!["0 values where 1 are needed, at `for %i in %one..%n step %one with (%s = %w)`"],
    );
    broken(
        |p| drop(the_loop(p).regions[0].ops.pop()),
        expect!["a region does not end in a yield, at `%sum = for %i in %one..%n step %one with (%s = %w)`"],
    );
    broken(
        |p| {
            let v = value(p, "one");
            the_loop(p).regions[0].ops[1].args[0] = v;
        },
        expect!["operand 0 is i32, expected tile<4xf32>, at `yield %one`"],
    );
    broken(
        |p| the_loop(p).regions[0].ops[1].args.clear(),
        expect!["0 values where 1 are needed, at `yield`"],
    );
    broken(
        |p| the_loop(p).regions[0].ops.swap(0, 1),
        expect!["a region does not end in a yield, at `%sum = for %i in %one..%n step %one with (%s = %w)`"],
    );
    broken(
        |p| {
            let region = the_loop(p).regions[0].clone();
            p.body.ops[2].regions.push(region);
        },
        expect!["the operation has more or fewer regions than it takes, at `%w = map exp %v`"],
    );
    broken(
        |p| {
            let last = the_loop(p).regions[0].ops[1].clone();
            p.body.ops.push(last);
        },
        expect!["a yield is not the last operation of a region, at `yield %t`"],
    );
    broken(|p| p.body.args.push(Value(0)), expect!["kernel @f: the body takes no arguments"]);
}

fn refused(body: &str, expect: Expect) {
    let text = format!("kernel @f(%x: ptr<f32>, %p: ptr<i32>, %n: i32) {{\n%i = range 0 8\n{body}\n}}");
    expect.assert_eq(&crate::parse_valid(&text).unwrap_err().to_string());
}

#[test]
fn combiners_are_closed_and_scalar() {
    refused(
        "%r = scan %i axis 0 (%a, %b) { %c = map add %a, %n yield %c }",
        expect!["line 3, column 32: operand 1 is not defined here, at `%c = map add %a, %n`"],
    );
    refused(
        "%r = scan %i axis 0 (%a, %b) { %c = load %p, %a yield %c }",
        expect![
            "line 3, column 1: a combiner computes scalars by constants, maps and casts, at `%c = load %p, %a`"
        ],
    );
    refused(
        "%r = scan %i axis 0 (%a, %b) { %c = splat %a [2] yield %a }",
        expect![
            "line 3, column 1: a combiner computes scalars by constants, maps and casts, at `%c = splat %a [2]`"
        ],
    );
    refused(
        "%r = scan %i axis 0 (%a, %b) { %c = map eq %a, %b yield %c }",
        expect!["line 3, column 1: operand 0 is bool, expected i32, at `yield %c`"],
    );
    refused(
        "%r = scan %i axis 1 (%a, %b) { yield %a }",
        expect!["line 3, column 6: scan: axis 1 is out of range for tile<8xi32>"],
    );
    refused(
        "%r = reduce_with %i axis 0 (%a) { yield %a }",
        expect!["line 3, column 6: the region takes 2 values, not 1"],
    );
}

#[test]
fn branches_and_loops_yield_what_they_should() {
    refused(
        "%c = map eq %n, %n %r = if %c { yield %n } else { yield %i }",
        expect!["line 3, column 20: operand 0 is tile<8xi32>, expected i32, at `yield %i`"],
    );
    refused(
        "%c = map eq %n, %n %r = if %c { yield %n }",
        expect!["line 3, column 20: 0 values where 1 are needed, at `yield`"],
    );
    refused(
        "%r = if %n { yield %n } else { yield %n }",
        expect!["line 3, column 9: if: operand 0 is i32, expected a boolean scalar"],
    );
    refused(
        "%r = while (%a = %n) { yield %a } do (%b) { yield %b }",
        expect!["line 3, column 1: operand 0 is i32, expected bool, at `yield %a`"],
    );
    refused(
        "%r = while (%a = %n) { %c = map eq %a, %a yield %c } do (%b) { yield %i }",
        expect!["line 3, column 1: operand 0 is tile<8xi32>, expected i32, at `yield %i`"],
    );
    refused(
        "%r = while (%a = %n) { %c = map eq %a, %a yield %c } do () { yield }",
        expect!["line 3, column 12: the region takes 1 values, not 0"],
    );
}

#[test]
fn operands_of_the_language() {
    refused(
        "%r, %s = split %i",
        expect!["line 3, column 10: split: operand 0 is tile<8xi32>, expected a tile whose last extent is 2"],
    );
    refused(
        "%r = gather %i, %n axis 0",
        expect![
            "line 3, column 6: gather: operand 1 is i32, expected the extents of tile<8xi32> but for axis 0"
        ],
    );
    refused(
        "%f = cast %i f32 %r = histogram %f bins 4",
        expect![
            "line 3, column 23: histogram: operand 0 is tile<8xf32>, expected a tile of integers of rank 1"
        ],
    );
    refused(
        "%r = histogram %i bins 3",
        expect!["line 3, column 6: histogram: extents [3] must be at most five powers of two"],
    );
    refused(
        "%a = const 1.0 : tile<2x4xf16> %c = const 0.0 : tile<2x4xf32> %r = dot %a, %a, %c",
        expect![
            "line 3, column 68: dot: operand 1 is tile<2x4xf16>, expected f16, with the first operand's columns as rows"
        ],
    );
    refused(
        "%a = const 1.0 : tile<4x4xf16> %r = dot %a, %a, %a",
        expect!["line 3, column 37: dot: operand 2 is tile<4x4xf16>, expected an accumulator tile<4x4xf32>"],
    );
    refused(
        "%a = const 1 : tile<4x4xi64> %r = dot %a, %a, %a",
        expect![
            "line 3, column 35: dot: operand 0 is tile<4x4xi64>, expected a kind that dot takes: i8, u8, f8e4m3, f8e5m2, f16, bf16, f32, f64"
        ],
    );
    refused(
        "%a = const 1.0 : tile<8xf32> %r = atomic and %x, %i, %a",
        expect!["line 3, column 35: atomic: and does not take f32"],
    );
    refused(
        "%r = atomic add %p, %i, %i order sometimes",
        expect!["line 3, column 34: there is no order `sometimes`"],
    );
    refused(
        "%r = atomic subtract %p, %i, %i",
        expect!["line 3, column 13: there is no atomic function `subtract`"],
    );
    refused("%r = assume multiple_of %i 0", expect!["line 3, column 6: assume: 0 divides nothing"]);
    refused(
        "%a = const 1.0 : tile<8xf8e4m3> %r = map add %a, %a",
        expect!["line 3, column 38: map: add does not take f8e4m3, f8e4m3"],
    );
    refused("print \"no end", expect!["line 3, column 7: the text in quotes does not end on its line"]);
    refused(
        "assert %i \"message\"",
        expect!["line 3, column 1: assert: operand 0 is tile<8xi32>, expected a boolean mask of shape [8]"],
    );
    refused(
        "%r = map add %p, %p",
        expect!["line 3, column 6: map: operand 0 is ptr<i32>, expected a number"],
    );
}
