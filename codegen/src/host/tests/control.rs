//! Branches, loops with conditions, printing and assertions.

use std::sync::Mutex;

use tilefuse_block::Elem;
use tilefuse_block::interp::{Fault, InterpError};

use super::*;
use crate::Error;

fn i32s(len: usize) -> Arg {
    Arg::buffer(i32::wrap((0..len).map(|i| (i * 7 % 23) as i32 - 5).collect()))
}

#[test]
fn branches() {
    let text = "
kernel @branch(%x: ptr<f32>, %y: ptr<f32>) {
  %p = program_id 0
  %n = num_programs 0
  %two = const 2 : i32
  %odd = map rem_floor %p, %two
  %zero = const 0 : i32
  %c = map ne %odd, %zero
  %w = const 64 : i32
  %b = map mul %p, %w
  %bs = splat %b [64]
  %r = range 0 64
  %o = map add %bs, %r
  %v = load %x, %o
  %s, %t = if %c {
    %m = map mul %v, %v
    %k = reduce sum %m axis 0
    yield %m, %k
  } else {
    %last = map sub %n, %two
    %inner = map eq %p, %last
    %a = if %inner {
      %g = map neg %v
      yield %g
    } else {
      yield %v
    }
    %k2 = const 2.5 : f32
    yield %a, %k2
  }
  %ts = splat %t [64]
  %u = map add %s, %ts
  store %y, %o, %u
  if %c {
    %q = const 0 : tile<64xi32>
    %z = const 1.5 : tile<64xf32>
    store %y, %o, %z
    yield
  }
}";
    check_text(text, &[f32s(64 * 7), f32s(64 * 7)], [7, 1, 1], 1e-6);
}

#[test]
fn loops_while_a_condition_holds() {
    let text = "
kernel @collatz(%x: ptr<i32>, %y: ptr<i32>) {
  %r = range 0 32
  %one = const 1 : tile<32xi32>
  %two = const 2 : tile<32xi32>
  %three = const 3 : tile<32xi32>
  %zeros = const 0 : tile<32xi32>
  %start = map add %r, %one
  %n, %steps = while (%v = %start, %s = %zeros) {
    %open = map ne %v, %one
    %any = reduce or %open axis 0
    yield %any
  } do (%v2, %s2) {
    %open2 = map ne %v2, %one
    %rem = map rem_trunc %v2, %two
    %odd = map eq %rem, %one
    %half = map div_trunc %v2, %two
    %t = map mul %v2, %three
    %up = map add %t, %one
    %next = map select %odd, %up, %half
    %kept = map select %open2, %next, %v2
    %more = map add %s2, %one
    %count = map select %open2, %more, %s2
    yield %kept, %count
  }
  store %y, %r, %steps
  store %x, %r, %n
}";
    check_text(text, &[i32s(32), i32s(32)], [1, 1, 1], 0.0);
}

/// A loop in a branch in a loop, with tiles and scalars carried through all of them.
#[test]
fn nests_loops_and_branches() {
    let text = "
kernel @nest(%x: ptr<i32>, %y: ptr<i32>) {
  %r0 = range 0 64
  %r = reshape %r0 [8, 8]
  %v = load %x, %r
  %zero = const 0 : i32
  %one = const 1 : i32
  %six = const 6 : i32
  %out, %total = for %i in %zero..%six step %one with (%t = %v, %k = %zero) {
    %three = const 3 : i32
    %late = map ge %i, %three
    %a, %c = if %late {
      %turned = permute %t [1, 0]
      %b, %d = while (%u = %turned, %j = %zero) {
        %more = map lt %j, %i
        yield %more
      } do (%u2, %j2) {
        %s = map add %u2, %v
        %f = permute %s [1, 0]
        %j3 = map add %j2, %one
        yield %f, %j3
      }
      %e = map add %d, %k
      yield %b, %e
    } else {
      %is = splat %i [8, 8]
      %s2 = map sub %t, %is
      %sum = reduce sum %s2 axis 0
      %all = reduce max %sum axis 0
      yield %s2, %all
    }
    yield %a, %c
  }
  store %y, %r, %out
  %end = const 64 : i32
  store %y, %end, %total
}";
    check_text(text, &[i32s(64), i32s(65)], [1, 1, 1], 0.0);
}

/// What a loop reads it may have written itself.
#[test]
fn reads_memory_in_order() {
    let text = "
kernel @order(%x: ptr<i32>) {
  %r = range 0 16
  %zero = const 0 : i32
  %one = const 1 : i32
  %n = const 10 : i32
  %ones = const 1 : tile<16xi32>
  %k = while (%j = %zero) {
    %first = load %x, %zero
    %low = map lt %first, %n
    yield %low
  } do (%j2) {
    %v = load %x, %r
    %w = map add %v, %ones
    store %x, %r, %w
    %even = const 2 : i32
    %rem = map rem_floor %j2, %even
    %odd = map ne %rem, %zero
    if %odd {
      %u = load %x, %r
      %t = map add %u, %u
      %fifteen = const 15 : tile<16xi32>
      %b = map sub %fifteen, %r
      store %x, %b, %t
      yield
    }
    %j3 = map add %j2, %one
    yield %j3
  }
  %at = const 16 : i32
  store %x, %at, %k
}";
    check_text(text, &[i32s(17)], [1, 1, 1], 0.0);
}

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn record(line: &str) {
    LINES.lock().unwrap().push(line.to_owned());
}

/// The lines that a program prints in the interpreter and compiled.
fn printed(text: &str, args: &[Arg], grid: [u32; 3], pool: &dyn Pool) -> (Vec<String>, Vec<String>) {
    let program: Program = text.trim().parse().unwrap();
    let options = interp::Options { print: record, ..interp::Options::default() };
    interp::run_with(&program, &mut args.to_vec(), grid, &options).unwrap();
    let expected = std::mem::take(&mut *LINES.lock().unwrap());
    let kernel = HostKernel::compile(&program, &HostOptions::default()).unwrap();
    let kernel = HostKernel::load(kernel.object(), &HostOptions::default()).unwrap();
    let mut bytes = Aligned::all(args);
    let words = words(args, &mut bytes);
    // SAFETY: the words match the parameters; the interpreter has found every access inside the buffers.
    unsafe { kernel.run_with(&words, grid, pool, record) }.unwrap();
    (expected, std::mem::take(&mut *LINES.lock().unwrap()))
}

#[test]
fn prints_as_the_interpreter_does() {
    let mut text = "
kernel @show(%s: f16, %q: u8) {
  %p = program_id 0
  %r0 = range -2 8
  %r = reshape %r0 [2, 1, 4]
  print \"tile\" %r
  print \"a \\\"quoted\\\" prefix\" %p, %s hex
"
    .trim_end()
    .to_owned();
    for elem in Elem::ALL.into_iter().filter(|e| !e.is_small_float()) {
        text += &format!("\n  %v{elem} = cast %r {elem}\n  print \"{elem}\" %v{elem}, %q, %p hex");
        text += &format!("\n  print \"{elem}\" %v{elem}");
    }
    text += "\n  %two = const 2 : i32\n  %rem = map rem_floor %p, %two\n  %zero = const 0 : i32";
    text += "\n  %c = map ne %rem, %zero\n  if %c {\n    print \"odd\" %p\n    yield\n  }\n  print \"nothing\"\n}";
    let args = [Arg::float(Elem::F16, 0.1), Arg::int(Elem::U8, 200)];
    let (expected, found) = printed(&text, &args, [3, 2, 2], &Serial);
    assert!(expected.len() > 1000);
    let different = expected.iter().zip(&found).find(|(a, b)| a != b);
    assert_eq!((different, expected.len()), (None, found.len()));
    let (mut expected, mut found) = printed(&text, &args, [50, 3, 2], &Rayon);
    expected.sort();
    found.sort();
    assert_eq!(expected, found);
}

/// Runs a program that fails in the interpreter and compiled.
fn failures(text: &str, args: &[Arg], grid: [u32; 3]) {
    let program: Program = text.trim().parse().unwrap();
    let Err(InterpError::Fault {
        instance: at,
        fault: Fault::Assertion { element: which, message: text },
        ..
    }) = interp::run(&program, &mut args.to_vec(), grid)
    else {
        panic!("it does not fail")
    };
    for isa in ISAS {
        let kernel = HostKernel::compile(&program, &HostOptions { isa }).unwrap();
        for pool in [&Serial as &dyn Pool, &Rayon] {
            let mut bytes = Aligned::all(args);
            let words = words(args, &mut bytes);
            // SAFETY: the words match the parameters, and accesses are guarded.
            let result = unsafe { kernel.run(&words, grid, pool) };
            let Err(Error::Assertion { program, message, instance, element }) = result else {
                panic!("{result:?}")
            };
            assert_eq!((program.as_str(), &message), ("guard", &text));
            if pool.threads() == 1 {
                assert_eq!((instance, element), (at, which), "{isa:?}");
            }
        }
    }
}

#[test]
fn fails_where_an_assertion_does_not_hold() {
    // Without the assertion, the load would be out of bounds.
    let text = "
kernel @guard(%x: ptr<i32>, %y: ptr<i32>) {
  %p = program_id 1
  %r = range 0 64
  %w = const 64 : i32
  %b = map mul %p, %w
  %bs = splat %b [64]
  %o = map add %bs, %r
  %n = const 200 : tile<64xi32>
  %inside = map lt %o, %n
  %c = const 1000000000 : i32
  %late = const 50 : tile<64xi32>
  %m = map lt %r, %late
  assert %inside \"inside the buffer\" mask %m
  %far = splat %c [64]
  %big = map select %inside, %o, %far
  %mm = map and %inside, %m
  %v = load %x, %o, mask %mm
  store %y, %o, %v, mask %mm
}";
    failures(text, &[i32s(200), i32s(200)], [1, 40, 3]);
    let text = "
kernel @guard(%x: ptr<i32>) {
  %p = program_id 0
  %seven = const 7 : i32
  %fine = map ne %p, %seven
  assert %fine \"not seven\"
}";
    failures(text, &[i32s(8)], [3000, 1, 1]);
}

#[test]
fn passes_assertions_that_hold() {
    let text = "
kernel @fine(%x: ptr<i32>) {
  %r = range 0 16
  %n = const 16 : tile<16xi32>
  %c = map lt %r, %n
  assert %c \"always\"
  %z = const 0 : tile<16xi32>
  %no = map lt %r, %z
  assert %no \"never looked at\" mask %no
  store %x, %r, %r
}";
    check_text(text, &[i32s(16)], [1, 1, 1], 0.0);
}

/// A program that asks for its place along one axis only, on a grid with more.
#[test]
fn counts_along_one_axis() {
    let text = "
kernel @count(%x: ptr<i32>) {
  %p = program_id 0
  %one = const 1 : i32
  %old = atomic add %x, %p, %one
}";
    for grid in [[5, 3, 2], [1, 70, 1], [300, 7, 1]] {
        check_text(text, &[i32s(300)], grid, 0.0);
    }
}

/// A loop that reads what an iteration before wrote elsewhere.
#[test]
fn reverses_again_and_again() {
    let text = "
kernel @turn(%x: ptr<i32>) {
  %r = range 0 1024
  %last = const 1023 : tile<1024xi32>
  %back = map sub %last, %r
  %zero = const 0 : i32
  %one = const 1 : i32
  %n = const 5 : i32
  for %i in %zero..%n step %one {
    %v = load %x, %r
    %is = splat %i [1024]
    %w = map add %v, %is
    store %x, %back, %w
    yield
  }
}";
    check_text(text, &[i32s(1024)], [1, 1, 1], 0.0);
}

/// What a loop carries next reads what another of its tiles held before, after which there is a combination.
#[test]
fn carried_tiles_are_read_before_they_change() {
    let text = "
kernel @combined(%x: ptr<f32>, %y: ptr<f32>, %z: ptr<f32>) {
  %r = range 0 256
  %v = load %x, %r
  %w = load %y, %r
  %zero = const 0 : i32
  %one = const 1 : i32
  %three = const 3 : i32
  %oa, %ob = for %i in %zero..%three step %one with (%a = %v, %b = %w) {
    %is = splat %i [256]
    %at = map add %r, %is
    %ld = load %z, %at
    %red = reduce max %ld axis 0
    %a2 = map add %a, %ld
    %rs = splat %red [256]
    %b2 = map add %a, %rs
    yield %a2, %b2
  }
  store %x, %r, %oa
  store %y, %r, %ob
}";
    check_text(text, &[f32s(256), f32s(256), f32s(260)], [1, 1, 1], 1e-5);
    let text = "
kernel @across(%x: ptr<f32>, %y: ptr<f32>, %z: ptr<f32>) {
  %r0 = range 0 256
  %r = reshape %r0 [16, 16]
  %v = load %x, %r
  %w = load %y, %r
  %zero = const 0 : i32
  %one = const 1 : i32
  %three = const 3 : i32
  %ones = const 1.0 : tile<16x16xf32>
  %oa, %ob = for %i in %zero..%three step %one with (%a = %v, %b = %w) {
    %is = splat %i [16, 16]
    %at = map add %r, %is
    %ld = load %z, %at
    %red = reduce sum %ld axis 1
    %a2 = map add %a, %ones
    %e1 = expand_dims %red axis 1
    %c1 = broadcast %e1 [16, 16]
    %e2 = expand_dims %red axis 0
    %c2 = broadcast %e2 [16, 16]
    %q1 = map add %a, %c1
    %b2 = map add %q1, %c2
    yield %a2, %b2
  }
  store %x, %r, %oa
  store %y, %r, %ob
}";
    check_text(text, &[f32s(256), f32s(256), f32s(260)], [1, 1, 1], 1e-5);
}

/// Tiles that a loop carries and that read each other, with nothing else around them.
#[test]
fn carried_tiles_read_each_other() {
    let text = "
kernel @square(%x: ptr<f32>, %y: ptr<f32>) {
  %r0 = range 0 256
  %r = reshape %r0 [16, 16]
  %v = load %x, %r
  %w = load %y, %r
  %zero = const 0 : i32
  %one = const 1 : i32
  %three = const 3 : i32
  %oa, %ob, %on = for %i in %zero..%three step %one with (%a = %v, %b = %w, %n = %zero) {
    %aa = map mul %a, %a
    %bb = map mul %b, %b
    %ab = map mul %a, %b
    %a2 = map sub %aa, %bb
    %b2 = map add %ab, %ab
    %n2 = map add %n, %one
    yield %a2, %b2, %n2
  }
  store %x, %r, %oa
  store %y, %r, %ob
}";
    check_text(text, &[f32s(256), f32s(256)], [1, 1, 1], 1e-5);
}

/// A carried number that is an element of a carried tile.
#[test]
fn carried_numbers_read_tiles_before_they_change() {
    let text = "
kernel @last(%x: ptr<f32>, %y: ptr<f32>) {
  %r = range 0 2
  %v = load %x, %r
  %zero = const 0 : i32
  %one = const 1 : i32
  %three = const 3 : i32
  %s0 = const 0.0 : f32
  %ot = const 1.0 : tile<2xf32>
  %out, %last = for %i in %zero..%three step %one with (%t = %v, %k = %s0) {
    %a, %b = split %t
    %t2 = map add %t, %ot
    yield %t2, %a
  }
  store %x, %r, %out
  %two = splat %last [2]
  store %y, %r, %two
}";
    check_text(text, &[f32s(2), f32s(2)], [1, 1, 1], 0.0);
    let text = "
kernel @last(%x: ptr<f32>, %y: ptr<f32>) {
  %r = range 0 2
  %v = load %x, %r
  %zero = const 0 : i32
  %one = const 1 : i32
  %three = const 3 : i32
  %s0 = const 0.0 : f32
  %ot = const 1.0 : tile<2xf32>
  %out, %last, %n = while (%t = %v, %k = %s0, %c = %zero) {
    %more = map lt %c, %three
    yield %more
  } do (%t1, %k1, %c1) {
    %a, %b = split %t1
    %t2 = map add %t1, %ot
    %c2 = map add %c1, %one
    yield %t2, %a, %c2
  }
  store %x, %r, %out
  %two = splat %last [2]
  store %y, %r, %two
}";
    check_text(text, &[f32s(2), f32s(2)], [1, 1, 1], 0.0);
}

/// Carried numbers that change places, beside a combination of a single element.
#[test]
fn carried_numbers_are_read_before_they_change() {
    let text = "
kernel @exchange(%x: ptr<f32>, %y: ptr<f32>) {
  %r = range 0 1
  %zero = const 0 : i32
  %one = const 1 : i32
  %three = const 3 : i32
  %s0 = const 1.0 : f32
  %s1 = const 2.0 : f32
  %op, %oq = for %i in %zero..%three step %one with (%p = %s0, %q = %s1) {
    %is = splat %i [1]
    %at = map add %r, %is
    %ld = load %x, %at
    %sum = reduce sum %ld axis 0
    %q2 = map add %p, %sum
    yield %q, %q2
  }
  store %y, %zero, %op
  store %y, %one, %oq
}";
    check_text(text, &[f32s(4), f32s(2)], [1, 1, 1], 1e-6);
}

/// A combination of a carried tile and its transpose, beside the tile's next elements.
#[test]
fn carried_tiles_are_combined_before_they_change() {
    let text = "
kernel @both(%x: ptr<f32>, %y: ptr<f32>) {
  %r0 = range 0 256
  %r = reshape %r0 [16, 16]
  %v = load %x, %r
  %r16 = range 0 16
  %zero = const 0 : i32
  %one = const 1 : i32
  %three = const 3 : i32
  %ones = const 1.0 : tile<16x16xf32>
  %none = const 0.0 : tile<16xf32>
  %oa, %os = for %i in %zero..%three step %one with (%a = %v, %s = %none) {
    %t = permute %a [1, 0]
    %d = map sub %a, %t
    %dd = map mul %d, %a
    %red = reduce max %dd axis 1
    %a2 = map add %a, %ones
    yield %a2, %red
  }
  store %x, %r, %oa
  store %y, %r16, %os
}";
    check_text(text, &[f32s(256), f32s(16)], [1, 1, 1], 1e-5);
}

/// A combination that reads a carried tile in another order, beside the tile's next elements.
#[test]
fn carried_tiles_are_combined_in_another_order() {
    let text = "
kernel @order(%x: ptr<f32>, %y: ptr<f32>) {
  %r = range 0 256
  %v = load %x, %r
  %zero = const 0 : i32
  %one = const 1 : i32
  %three = const 3 : i32
  %ones = const 1.0 : tile<256xf32>
  %none = const 0.0 : f32
  %oa, %os = for %i in %zero..%three step %one with (%a = %v, %s = %none) {
    %q = reshape %a [16, 16]
    %p = permute %q [1, 0]
    %t = reshape %p [256]
    %d = map sub %a, %t
    %dd = map mul %d, %a
    %red = reduce sum %dd axis 0
    %a2 = map add %a, %a
    %s2 = map add %s, %red
    yield %a2, %s2
  }
  store %x, %r, %oa
  store %y, %zero, %os
}";
    check_text(text, &[f32s(256), f32s(1)], [1, 1, 1], 1e-4);
}

/// Stores of one element by several positions, iterations or operations happen in the order of the program.
#[test]
fn stores_that_meet_stay_in_order() {
    let twice = "
kernel @twice(%x: ptr<f32>, %z: ptr<f32>, %y: ptr<f32>) {
  %i = range 0 256
  %one = const 1 : tile<256xi32>
  %j = map add %i, %one
  %v = load %x, %i
  %w = load %z, %i
  store %y, %i, %v
  store %y, %j, %w
}";
    check_text(twice, &[f32s(256), f32s(256), f32s(257)], [1, 1, 1], 0.0);
    let modulo = "
kernel @modulo(%x: ptr<f32>) {
  %i = range 0 256
  %n = const 8 : tile<256xi32>
  %j = map rem_trunc %i, %n
  %one = const 1.0 : tile<256xf32>
  %v = load %x, %j
  %w = map add %v, %one
  store %x, %j, %w
}";
    check_text(modulo, &[f32s(8)], [1, 1, 1], 0.0);
}

#[test]
fn iterations_that_meet_stay_in_order() {
    let stores = "
kernel @stores(%x: ptr<f32>, %y: ptr<f32>) {
  %i = range 0 64
  %zero = const 0 : i32
  %one = const 1 : i32
  %three = const 3 : i32
  for %k in %zero..%three step %one {
    %ks = splat %k [64]
    %j = map add %i, %ks
    %w = const 64 : tile<64xi32>
    %row = map mul %ks, %w
    %at = map add %row, %i
    %v = load %x, %at
    store %y, %j, %v
    yield
  }
}";
    check_text(stores, &[f32s(192), f32s(66)], [1, 1, 1], 0.0);
    let in_place = "
kernel @in_place(%x: ptr<f32>) {
  %i = range 0 64
  %zero = const 0 : i32
  %one = const 1 : i32
  %three = const 3 : i32
  for %k in %zero..%three step %one {
    %ks = splat %k [64]
    %j = map add %i, %ks
    %v = load %x, %j
    %kf = cast %ks f32
    %o = map fma %v, %v, %kf
    store %x, %j, %o
    yield
  }
}";
    check_text(in_place, &[f32s(66)], [1, 1, 1], 0.0);
}
