//! The operations of hand-written kernels, against what they say.

use std::cell::RefCell;

use crate::data::Data;
use crate::interp::{Arg, Buffer, Conflict, Fault, InterpError, Options, run, run_with};
use crate::types::Elem;

/// What a program of which this is the body leaves in `%y`, for 8 elements in `%x`.
fn result(body: &str, grid: u32) -> Result<Data, InterpError> {
    let text = format!(
        "kernel @f(%x: ptr<i32>, %y: ptr<i32>) {{ %i = range 0 8 %v = load %x, %i %z = const 0 : i32
         %one = const 1 : i32 {body} }}"
    );
    let program = crate::parse_valid(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut args = [Arg::buffer(vec![5, -3, 5, 0, 2, 7, 1, 5]), Arg::buffer(vec![0; 8])];
    run(&program, &mut args, [grid, 1, 1])?;
    Ok(args[1].data().unwrap())
}

fn check(body: &str, expected: [i32; 8]) {
    assert_eq!(result(body, 1).unwrap(), Data::I32(expected.to_vec()), "{body}");
}

#[test]
fn scans_go_in_order_and_in_reverse() {
    let scan = |how: &str, combine: &str| {
        format!("%r = scan %v axis 0 {how} (%a, %b) {{ {combine} yield %c }} store %y, %i, %r")
    };
    check(&scan("", "%c = map add %a, %b"), [5, 2, 7, 7, 9, 16, 17, 22]);
    check(&scan("reverse", "%c = map add %a, %b"), [22, 17, 20, 15, 15, 13, 6, 5]);
    check(&scan("", "%c = map sub %a, %b"), [5, 8, 3, 3, 1, -6, -7, -12]);
}

#[test]
fn scans_go_along_any_axis() {
    let body = "%t = reshape %v [2, 2, 2]
        %r = scan %t axis 1 (%a, %b) { %c = map add %a, %b yield %c }
        %f = reshape %r [8] store %y, %i, %f";
    check(body, [5, -3, 10, -3, 2, 7, 3, 12]);
}

#[test]
fn reductions_combine_several_values() {
    let body = "%m, %j = reduce_with %v, %i axis 0 (%a, %ai, %b, %bi) {
          %above = map gt %a, %b %equal = map eq %a, %b %left = map lt %ai, %bi
          %tie = map and %equal, %left %first = map or %above, %tie
          %c = map select %first, %a, %b %ci = map select %first, %ai, %bi
          yield %c, %ci
        }
        store %y, %z, %m store %y, %one, %j";
    check(body, [7, 5, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn elements_move_between_tiles() {
    check(
        "%j = join %v, %i %a, %b = split %j %s = map sub %a, %b store %y, %i, %s",
        [5, -4, 3, -3, -2, 2, -5, -2],
    );
    check("%r = gather %v, %v axis 0 store %y, %i, %r", [7, 7, 7, 5, 5, 5, -3, 7]);
    check("%h = histogram %v bins 8 store %y, %i, %h", [1, 1, 1, 0, 0, 3, 0, 1]);
    let masked = "%n = splat %z [8] %m = map gt %v, %n %h = histogram %v bins 8 mask %m store %y, %i, %h";
    check(masked, [0, 1, 1, 0, 0, 3, 0, 1]);
}

#[test]
fn loops_and_branches_carry_values() {
    let halve = "%s = const 100 : i32 %k, %n = while (%a = %s, %b = %z) { %c = map gt %a, %one yield %c }
        do (%a2, %b2) { %h = map shr %a2, %one %m = map add %b2, %one yield %h, %m }
        store %y, %z, %k store %y, %one, %n";
    check(halve, [1, 6, 0, 0, 0, 0, 0, 0]);
    let branch = "%p = program_id 0 %c = map eq %p, %one
        %r = if %c { yield %one } else { %m = map sub %z, %one yield %m }
        if %c { store %y, %p, %r yield }";
    assert_eq!(result(branch, 3).unwrap(), Data::I32(vec![0, 1, 0, 0, 0, 0, 0, 0]));
    let total = "%n = num_programs 0 %p = program_id 0 store %y, %p, %n";
    assert_eq!(result(total, 3).unwrap(), Data::I32(vec![3, 3, 3, 0, 0, 0, 0, 0]));
}

#[test]
fn products_sum_rows_times_columns() {
    let body = "%a = reshape %v [2, 4] %b = reshape %v [4, 2] %a8 = cast %a i8 %b8 = cast %b i8
        %s = const 10 : tile<2x2xi32> %d = dot %a8, %b8, %s %f = reshape %d [4] %j = range 0 4 store %y, %j, %f";
    // [5 -3 5 0; 2 7 1 5] times [5 -3; 5 0; 2 7; 1 5]
    check(body, [30, 30, 62, 36, 0, 0, 0, 0]);
}

#[test]
fn atomic_operations_give_what_was() {
    check("%zs = splat %z [8] %o = atomic add %y, %zs, %v", [22, 0, 0, 0, 0, 0, 0, 0]);
    check("%o = atomic max %y, %i, %v", [5, 0, 5, 0, 2, 7, 1, 5]);
    check(
        "%zs = splat %z [8] %o = atomic add %y, %zs, %v %p = atomic exchange %y, %i, %o",
        [0, 5, 2, 7, 7, 9, 16, 17],
    );
    let swap = "%zs = splat %z [8] %o = atomic exchange %y, %i, %v %c = atomic_cas %y, %i, %zs, %i";
    check(swap, [5, -3, 5, 3, 2, 7, 1, 5]);
}

#[test]
fn atomic_operations_of_instances_do_not_race() {
    let all = "%zs = splat %z [8] %o = atomic add %y, %zs, %v order relaxed";
    assert_eq!(result(all, 3).unwrap(), Data::I32(vec![66, 0, 0, 0, 0, 0, 0, 0]));
    let then_read = format!("{all} %r = load %y, %i");
    let fault = |body: &str| match result(body, 3) {
        Err(InterpError::Fault { fault: Fault::Race { conflict, .. }, .. }) => Some(conflict),
        _ => None,
    };
    assert_eq!(fault(&then_read), Some(Conflict::WriteOfRead));
    // The last instance to arrive reads what the others have written, which a release and an acquire put before.
    let last = |order: &str| {
        format!(
            "%p = program_id 0 %five = const 5 : i32 %at = map add %p, %one store %y, %at, %five
             %o = atomic add %y, %z, %one order {order}
             %two = const 2 : i32 %c = map eq %o, %two
             if %c {{ %first = load %y, %one store %y, %five, %first yield }}"
        )
    };
    assert_eq!(result(&last("acq_rel"), 3).unwrap(), Data::I32(vec![3, 5, 5, 5, 0, 5, 0, 0]));
    assert_eq!(fault(&last("relaxed")), Some(Conflict::ReadOfWritten));
}

#[test]
fn what_several_read_under_a_lock_may_be_written_under_it() {
    let locked = |take: &str, give: &str| {
        format!(
            "%t = atomic_cas %y, %z, %z, %one order {take} %d = load %y, %one
             %p = program_id 0 %three = const 3 : i32 %c = map eq %p, %three
             if %c {{ %five = const 5 : i32 store %y, %one, %five yield }}
             %f = atomic exchange %y, %z, %z order {give}"
        )
    };
    assert_eq!(result(&locked("acquire", "release"), 4).unwrap(), Data::I32(vec![0, 5, 0, 0, 0, 0, 0, 0]));
    for (take, give) in [("relaxed", "release"), ("acquire", "relaxed"), ("relaxed", "relaxed")] {
        let Err(InterpError::Fault { fault: Fault::Race { conflict, .. }, .. }) =
            result(&locked(take, give), 4)
        else {
            panic!("no race with {take} and {give}")
        };
        assert_eq!(conflict, Conflict::WriteOfRead);
    }
}

#[test]
fn promises_and_assertions_are_checked() {
    let fault = |body: &str| match result(body, 1) {
        Err(InterpError::Fault { fault, .. }) => fault.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        fault("%c = map ge %v, %i assert %c \"too small\""),
        "assertion failed (element 1 of the tile): too small"
    );
    check("%c = map ge %v, %i %n = map not %c assert %c \"ok\" mask %c assert %n \"ok\" mask %n", [0; 8]);
    let wrong = "what is assumed does not hold for";
    assert_eq!(fault("%r = assume between %v 0 7"), format!("{wrong} -3 (element 1 of the tile)"));
    assert_eq!(fault("%r = assume multiple_of %v 2"), format!("{wrong} 5 (element 0 of the tile)"));
    assert_eq!(fault("%r = assume contiguous %v 2"), format!("{wrong} -3 (element 1 of the tile)"));
    check(
        "%r = assume contiguous %i 8 %s = assume between %r 0 7 store %y, %i, %s",
        [0, 1, 2, 3, 4, 5, 6, 7],
    );
}

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn prints_a_line_for_each_element() {
    let text = "kernel @f(%n: u8) { %i = range 14 4 %t = reshape %i [2, 2] %h = cast %i f16
        print \"a\" %t hex print \"b\" %n, %n print \"at \\\"end\\\"\" %k = const 1 : i32 }";
    let program = crate::parse_valid(text).unwrap();
    let print = |line: &str| LINES.with(|lines| lines.borrow_mut().push(line.to_owned()));
    let options = Options { print, ..Options::default() };
    run_with(&program, &mut [Arg::int(Elem::U8, 200)], [1, 1, 1], &options).unwrap();
    let lines = LINES.with(RefCell::take);
    let expected = [
        "pid (0, 0, 0) idx (0, 0) a: 0xe",
        "pid (0, 0, 0) idx (0, 1) a: 0xf",
        "pid (0, 0, 0) idx (1, 0) a: 0x10",
        "pid (0, 0, 0) idx (1, 1) a: 0x11",
        "pid (0, 0, 0) idx () b: 200",
        "pid (0, 0, 0) idx () b: 200",
        "pid (0, 0, 0) at \"end\"",
    ];
    assert_eq!(lines, expected);
    assert_eq!(program.to_string().parse::<crate::Program>().unwrap().to_string(), program.to_string());
}

#[test]
fn uninitialised_elements_are_not_changed_atomically() {
    let text = "kernel @f(%y: ptr<i32>) { %z = const 0 : i32 %o = atomic add %y, %z, %z }";
    let mut args = [Arg::Buffer(Buffer::uninit(Elem::I32, 1))];
    let error = run(&crate::parse_valid(text).unwrap(), &mut args, [1, 1, 1]).unwrap_err();
    assert!(matches!(error, InterpError::Fault { fault: Fault::Uninitialized { .. }, .. }), "{error}");
}
