use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::parse_valid;
use crate::program::Program;

/// One program with every operation.
pub(crate) const EVERYTHING: &str = "\
kernel @everything(%x: ptr<f32> align(16) len(1000), %y: ptr<bf16> align(2), %n: i32, %t: f64) warps(8) stages(3) early {
  %row = program_id 0
  %cols = range -4 8
  %half = const 0.5 : tile<8xf32>
  %negative_zero = const -0.0 : f64
  %nan = const nan : bf16
  %inf = const -inf : f16
  %tenth = const 0.1 : f32
  %large = const 18446744073709551615 : u64
  %yes = const true : tile<2x8xbool>
  %0 = splat %n [8]
  %1 = map add %0, %cols
  %m = map lt %1, %cols
  %v = load %x, %1, mask %m, other %half, hint streaming
  %w = load %x, %1, other %half, hint keep
  %s = load %x, %n
  %2 = expand_dims %v axis 0
  %3 = broadcast %2 [2, 8]
  %4 = reshape %3 [4, 4]
  %5 = permute %4 [1, 0]
  %6 = reduce max %5 axis 1
  %7 = reduce sum %3 axis 0 mask %yes
  %8 = map fma %v, %w, %7
  %9 = cast %8 bf16
  %10 = bitcast %9 i16
  %11 = bitcast %10 bf16
  %zero = const 0 : i32
  %one = const 1 : i32
  %12, %count = for %i in %zero..%n step %one with (%a = %11, %b = %zero) {
    for %j in %zero..%i step %one {
      yield
    }
    %next = map add %b, %i
    yield %a, %next
  }
  store %y, %1, %12, mask %m, hint keep
  store %y, %1, %11
}
";

#[test]
fn what_is_printed_reads_back() {
    let text = EVERYTHING;
    let program: Program = text.parse().unwrap();
    crate::verify(&program).unwrap();
    assert_eq!(program.to_string(), text);
}

fn check(text: &str, expect: Expect) {
    expect.assert_eq(&text.parse::<Program>().unwrap_err().to_string());
}

#[test]
fn errors_say_where() {
    check("", expect!["line 1, column 1: expected `kernel`"]);
    check("kernel @f(%x: ptr<f32>)\n  {\n", expect!["line 3, column 1: expected a name"]);
    check("kernel @f() { %a = map add %b, %b }", expect!["line 1, column 28: %b is not defined"]);
    check("kernel @f() {\n  // é\n  é", expect!["line 3, column 3: expected a name"]);
    check(
        "kernel @f() { %a = const 1 : i32 %a = const 2 : i32 }",
        expect!["line 1, column 34: %a is defined twice"],
    );
    check(
        "kernel @f() { %a = const 300 : u8 }",
        expect!["line 1, column 26: `300` is not a value of kind u8"],
    );
    check(
        "kernel @f() { %a = const 1e39 : f32 }",
        expect!["line 1, column 26: `1e39` is not a value of kind f32"],
    );
    check(
        "kernel @f() { %a = range 0 3 }",
        expect!["line 1, column 20: range: extents [3] must be at most five powers of two"],
    );
    check(
        "kernel @f() { %a = const 0 : tile<1048576x1048576x1048576x1048576x8xi8> }",
        expect![
            "line 1, column 73: shape: a tile of [1048576, 1048576, 1048576, 1048576, 8] has more than 1048576 elements"
        ],
    );
    check(
        "kernel @f() { %a = const 0 : tile<99999999999xi8> }",
        expect!["line 1, column 35: `99999999999` is out of range"],
    );
    check("kernel @f() warps(4) { store }", expect!["line 1, column 30: expected a value"]);
    check("kernel @f() { %a, %b = range 0 4 }", expect!["line 1, column 24: range has 1 results, not 2"]);
    check(
        "kernel @f(%n: i32) { for %i in %n..%n step %n { %a = range 0 4 yield } %b = map neg %a }",
        expect!["line 1, column 85: %a is not visible outside of its region"],
    );
    check("kernel @f() { } x", expect!["line 1, column 17: expected the end of the text"]);
}

#[test]
fn invalid_programs_say_where() {
    let check = |text: &str, expect: Expect| {
        text.parse::<Program>().unwrap();
        expect.assert_eq(&parse_valid(text).unwrap_err().to_string());
    };
    check(
        "kernel @f(%x: ptr<f32>,\n  %y: ptr<f32> align(3)) { }",
        expect![
            "line 2, column 3: kernel @f: parameter 1: the alignment is not a power of two, or below the element's size"
        ],
    );
    check(
        "kernel @f() warps(4)\n  stages(9) { }",
        expect!["line 2, column 3: kernel @f: 9 stages are not from 1 to 8"],
    );
    check(
        "kernel @f()\n  warps(3) { }",
        expect!["line 2, column 3: kernel @f: 3 warps are not a power of two from 1 to 32"],
    );
    check(
        "kernel @f() {\n  %a = const 1 : i32\n  yield\n}",
        expect!["line 3, column 3: a yield is not the last operation of a region, at `yield`"],
    );
    check(
        "kernel @f(%n: i32) {\n  for %i in %n..%n step %n {\n  }\n}",
        expect!["line 2, column 3: a region does not end in a yield, at `for %i in %n..%n step %n`"],
    );
    check(
        "kernel @f(%n: i32) {\n  for %i in %n..%n step %n {\n    yield\n  }\n  %v = for %i2 in %n..%n step %n with (%a = %n) {\n    yield\n  }\n}",
        expect!["line 5, column 3: 0 values where 1 are needed, at `yield`"],
    );
    assert!(parse_valid(EVERYTHING).is_ok());
}

#[test]
fn nesting_is_limited() {
    let open = |i: usize| format!("for %i{i} in %n..%n step %n {{ ");
    let text = format!("kernel @f(%n: i32) {{ {} ", (0..100_000).map(open).collect::<String>());
    let error = text.parse::<Program>().unwrap_err();
    assert_eq!(error.message, "regions are nested too deep");
}

#[test]
fn names_are_made_unique_and_stay() {
    let text = "kernel @f(%n: i32) {\n  %a = map neg %n\n  %b = map neg %a\n  %c = map neg %b\n}\n";
    let mut program: Program = text.parse().unwrap();
    for value in &mut program.values {
        value.name = Some("1st name".to_owned());
    }
    let printed = program.to_string();
    expect![[r#"
        kernel @f(%_1st_name: i32) warps(4) {
          %_1st_name_1 = map neg %_1st_name
          %_1st_name_2 = map neg %_1st_name_1
          %_1st_name_3 = map neg %_1st_name_2
        }
    "#]]
    .assert_eq(&printed);
    assert_eq!(printed.parse::<Program>().unwrap().to_string(), printed);
}

#[test]
fn programs_have_a_largest_size() {
    let text = |ops: usize| {
        let lines: String = (0..ops).map(|i| format!("%a{i} = const 1 : i32\n")).collect();
        format!("kernel @f() {{\n{lines}}}")
    };
    let most = crate::MAX_OPS;
    assert_eq!(parse_valid(&text(most)).unwrap().body.ops.len(), most);
    let error = parse_valid(&text(most + 1)).unwrap_err();
    assert_eq!((error.line, error.column), (most + 2, 1));
    let mut program = parse_valid(&text(most)).unwrap();
    let last = program.body.ops.last().unwrap().clone();
    program.body.ops.push(last);
    let error = crate::verify(&program).unwrap_err().to_string();
    assert!(error.contains("more than 32768 operations"), "{error}");
    let deep = "kernel @f(%c: bool) { ".to_owned() + &"if %c { ".repeat(100_000);
    assert_eq!(parse_valid(&deep).unwrap_err().message, "regions are nested too deep");
    let wide = parse_valid("kernel @f() {\n  %a = const 1 : tile<1024x2048xi32> }").unwrap_err();
    assert_eq!((wide.line, wide.column), (2, 38), "{wide}");
}

proptest! {
    #[test]
    fn no_text_panics(start in 0usize..1200, len in 0usize..40, insert in "[ -~é\n]{0,8}") {
        let mut text = EVERYTHING.to_owned();
        let start = start.min(text.len());
        text.replace_range(start..(start + len).min(text.len()), &insert);
        if let Ok(program) = text.parse::<Program>() {
            let printed = program.to_string();
            prop_assert_eq!(printed.parse::<Program>().unwrap().to_string(), printed);
            prop_assert_eq!(parse_valid(&text).is_ok(), crate::verify(&program).is_ok());
        }
    }

    #[test]
    fn floats_read_back(bits: u64) {
        let text = |elem: &str, x: crate::Literal| format!("kernel @f() warps(4) {{\n  %0 = const {x} : {elem}\n}}\n");
        let wide = f64::from_bits(bits);
        let narrow = f64::from(f32::from_bits(bits as u32));
        for elem in [crate::Elem::F16, crate::Elem::Bf16, crate::Elem::F32, crate::Elem::F64] {
            let value = if elem == crate::Elem::F64 { wide } else { narrow };
            let literal = crate::Literal::float(elem, value);
            let program: Program = text(elem.name(), literal).parse().unwrap();
            prop_assert_eq!(&program.body.ops[0].kind, &crate::OpKind::Const(literal));
        }
    }
}
