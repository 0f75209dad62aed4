use expect_test::{Expect, expect};

use super::{
    PASSES, PassOptions, approximate, canonicalize, cse, dce, guard, licm, narrow, optimize, raise_to_dot,
    ranges, renumber, reorder_broadcast, run_passes, strength,
};
use crate::bounds::Proof;
use crate::print::op_text;
use crate::program::{Loc, Program};
use crate::random::random_case;
use crate::verify::verify;
use crate::{expand_math, expand_operations};

/// Runs passes on the body of a kernel with a few parameters and shows the body that comes out.
fn check(passes: &[fn(&mut Program)], body: &str, expect: Expect) {
    let header = "kernel @f(%x: ptr<f32>, %y: ptr<i32>, %n: i32, %t: f32, %c: bool) warps(4) {";
    let text = format!("{header}\n{body}\n}}\n");
    let mut program: Program = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    verify(&program).unwrap();
    for pass in passes {
        pass(&mut program);
        verify(&program).unwrap();
    }
    let printed = program.to_string();
    let lines: Vec<&str> = printed.lines().collect();
    let body: String = lines[1..lines.len() - 1]
        .iter()
        .map(|l| format!("{}\n", l.strip_prefix("  ").unwrap_or(l)))
        .collect();
    expect.assert_eq(&body);
}

/// Canonical form without what is then dead.
fn canonical(body: &str, expect: Expect) {
    check(&[canonicalize, cse, dce, renumber], body, expect);
}

/// Whatever becomes of an operation is where it was.
#[test]
fn operations_keep_their_locations() {
    for seed in 0..300 {
        let mut program = random_case(seed).program;
        program.locate(Loc::new(7));
        optimize(&mut program).unwrap();
        expand_operations(&mut program).unwrap();
        approximate(&mut program);
        expand_math(&mut program).unwrap();
        optimize(&mut program).unwrap();
        narrow(&mut program);
        reorder_broadcast(&mut program);
        let mut lost = Vec::new();
        program.walk(&mut |op| {
            if op.loc.number() != Some(7) {
                lost.push(op_text(&program, op));
            }
        });
        assert!(lost.is_empty(), "seed {seed}: {lost:?}\n{program}");
    }
}

#[test]
fn dead_code_goes() {
    check(
        &[dce],
        "%z = const 0 : i32
         %one = const 1 : i32
         %unused = map neg %n
         %s, %k = for %i in %z..%n step %one with (%a = %z, %b = %one) {
           %d = map add %a, %i
           %e = map mul %b, %i
           store %y, %i, %e
           yield %d, %e
         }
         %u = for %i2 in %z..%n step %one with (%a2 = %z) {
           yield %i2
         }",
        expect![[r#"
            %z = const 0 : i32
            %one = const 1 : i32
            %k = for %i in %z..%n step %one with (%b = %one) {
              %e = map mul %b, %i
              store %y, %i, %e
              yield %e
            }
        "#]],
    );
}

#[test]
fn comparisons_that_exclude_each_other_and_wide_ones() {
    check(
        &[canonicalize, cse, canonicalize, dce, renumber],
        "%r = range 0 8
         %end = const 5 : tile<8xi32>
         %inside = map lt %r, %end
         %wide = cast %r i64
         %len = const 5 : tile<8xi64>
         %below = map lt %wide, %len
         %outside = map not %below
         %wrong = map and %inside, %outside
         store %y, %r, %r, mask %wrong
         %safe = map and %inside, %below
         store %y, %r, %end, mask %safe",
        expect![[r#"
            %r = range 0 8
            %end = const 5 : tile<8xi32>
            %inside = map lt %r, %end
            store %y, %r, %end, mask %inside
        "#]],
    );
}

#[test]
fn nothing_is_computed_twice() {
    check(
        &[cse],
        "%a = map add %n, %n
         %v = load %y, %n
         %w = load %y, %n
         %b = map add %n, %n
         %s = map sub %a, %v
         %u = map sub %b, %w
         store %y, %a, %s
         %v2 = load %y, %n
         store %y, %b, %v2
         for %i in %a..%b step %n {
           %d = map add %n, %n
           %v3 = load %y, %n
           %e = map mul %d, %i
           %e2 = map mul %i, %b
           %e3 = map sub %e, %e2
           store %y, %i, %e3
           yield
         }
         %e4 = map mul %n, %a
         store %y, %u, %e4",
        expect![[r#"
            %a = map add %n, %n
            %v = load %y, %n
            %s = map sub %a, %v
            store %y, %a, %s
            %v2 = load %y, %n
            store %y, %a, %v2
            for %i in %a..%a step %n {
              %v3 = load %y, %n
              %e = map mul %a, %i
              %e3 = map sub %e, %e
              store %y, %i, %e3
              yield
            }
            %e4 = map mul %n, %a
            store %y, %s, %e4
        "#]],
    );
}

#[test]
fn what_does_not_change_leaves_the_loop() {
    check(
        &[licm],
        "%z = const 0 : i32
         %one = const 1 : i32
         %four = const 4 : i32
         %sum = for %i in %z..%four step %one with (%a = %t) {
           %v = load %x, %n
           %m = map mul %v, %t
           %w = load %x, %i
           %d = map mul %w, %m
           %e = map add %a, %d
           yield %e
         }
         for %j in %z..%n step %one {
           %v2 = load %x, %n
           for %k in %z..%n step %one {
             %jn = map mul %j, %n
             %nn = map mul %n, %n
             %jnk = map add %jn, %k
             %at = map add %jnk, %nn
             store %x, %at, %v2
             yield
           }
           yield
         }
         store %x, %n, %sum",
        expect![[r#"
            %z = const 0 : i32
            %one = const 1 : i32
            %four = const 4 : i32
            %v = load %x, %n
            %m = map mul %v, %t
            %sum = for %i in %z..%four step %one with (%a = %t) {
              %w = load %x, %i
              %d = map mul %w, %m
              %e = map add %a, %d
              yield %e
            }
            %nn = map mul %n, %n
            for %j in %z..%n step %one {
              %v2 = load %x, %n
              %jn = map mul %j, %n
              for %k in %z..%n step %one {
                %jnk = map add %jn, %k
                %at = map add %jnk, %nn
                store %x, %at, %v2
                yield
              }
              yield
            }
            store %x, %n, %sum
        "#]],
    );
}

#[test]
fn offsets_are_a_scalar_of_the_iteration_plus_what_stays() {
    check(
        &[strength, dce, renumber],
        "%z = const 0 : i32
         %one = const 1 : i32
         %rows = range 0 8
         %stride = splat %n [8]
         %three = const 3 : tile<8xi32>
         for %i in %z..%n step %one {
           %at = splat %i [8]
           %row = map add %at, %rows
           %line = map mul %stride, %row
           %off = map add %line, %three
           %m = map lt %at, %stride
           %v = load %y, %off, mask %m
           %k = map add %i, %n
           %kk = map add %k, %one
           %ks = splat %kk [8]
           store %y, %ks, %v, mask %m
           yield
         }",
        expect![[r#"
            %z = const 0 : i32
            %one = const 1 : i32
            %rows = range 0 8
            %stride = splat %n [8]
            %three = const 3 : tile<8xi32>
            %0 = map mul %rows, %stride
            %1 = map add %0, %three
            %2 = map add %n, %one
            for %i in %z..%n step %one {
              %at = splat %i [8]
              %3 = map mul %i, %n
              %4 = splat %3 [8]
              %off = map add %4, %1
              %m = map lt %at, %stride
              %v = load %y, %off, mask %m
              %kk = map add %i, %2
              %ks = splat %kk [8]
              store %y, %ks, %v, mask %m
              yield
            }
        "#]],
    );
}

#[test]
fn sums_of_products_are_matrix_products() {
    let passes: [fn(&mut Program); 6] = [canonicalize, cse, raise_to_dot, canonicalize, dce, renumber];
    check(
        &passes,
        "%r = range 0 512
         %a = reshape %r [32, 16]
         %b = reshape %r [16, 32]
         %v = load %x, %a
         %w = load %x, %b
         %ve = expand_dims %v axis 1
         %we = expand_dims %w axis 0
         %vs = broadcast %ve [32, 16, 16]
         %ws = broadcast %we [32, 16, 32]
         %wt = permute %w [1, 0]
         %wte = expand_dims %wt axis 0
         %wts = broadcast %wte [32, 32, 16]
         %ve2 = expand_dims %v axis 1
         %vs2 = broadcast %ve2 [32, 32, 16]
         %p = map mul %vs2, %wts
         %s = reduce sum %p axis 2
         %q = map mul %vs, %vs
         %t2 = reduce sum %q axis 2
         %ra = range 0 1024
         %at = reshape %ra [32, 32]
         store %x, %at, %s
         store %x, %a, %t2",
        expect![[r#"
            %r = range 0 512
            %a = reshape %r [32, 16]
            %b = reshape %r [16, 32]
            %v = load %x, %a
            %w = load %x, %b
            %0 = const 0.0 : tile<32x32xf32>
            %s = dot %v, %w, %0 precision ieee
            %1 = map mul %v, %v
            %2 = expand_dims %1 axis 1
            %q = broadcast %2 [32, 16, 16]
            %t2 = reduce sum %q axis 2
            %ra = range 0 1024
            %at = reshape %ra [32, 32]
            store %x, %at, %s
            store %x, %a, %t2
        "#]],
    );
    check(
        &passes,
        "%r = range 0 512
         %a = reshape %r [32, 16]
         %v = load %y, %a
         %h = cast %v bf16
         %b = cast %v i8
         %hw = cast %h f32
         %bw = cast %b i32
         %he = reshape %hw [32, 1, 16]
         %hf = expand_dims %hw axis 2
         %hes = broadcast %he [32, 16, 16]
         %k = range 0 256
         %g = reshape %k [16, 16]
         %gv = load %y, %g
         %gh = cast %gv bf16
         %gw = cast %gh f32
         %ge = expand_dims %gw axis 0
         %ges = broadcast %ge [32, 16, 16]
         %p = map mul %ges, %hes
         %s = reduce sum %p axis 2
         store %x, %a, %s
         %be = expand_dims %bw axis 2
         %bes = broadcast %be [32, 16, 32]
         %bt = permute %bw [1, 0]
         %bte = expand_dims %bt axis 0
         %btes = broadcast %bte [32, 16, 32]
         %pi = map mul %bes, %btes
         %si = reduce sum %pi axis 1
         %ra = range 0 1024
         %at = reshape %ra [32, 32]
         store %y, %at, %si",
        expect![[r#"
            %r = range 0 512
            %a = reshape %r [32, 16]
            %v = load %y, %a
            %h = cast %v bf16
            %b = cast %v i8
            %k = range 0 256
            %g = reshape %k [16, 16]
            %gv = load %y, %g
            %gh = cast %gv bf16
            %0 = permute %gh [1, 0]
            %1 = const 0.0 : tile<32x16xf32>
            %s = dot %h, %0, %1 precision ieee
            store %x, %a, %s
            %2 = permute %b [1, 0]
            %3 = const 0 : tile<32x32xi32>
            %si = dot %b, %2, %3 precision ieee
            %ra = range 0 1024
            %at = reshape %ra [32, 32]
            store %y, %at, %si
        "#]],
    );
}

#[test]
fn arithmetic_stays_scalar() {
    canonical(
        "%r = range 0 8
         %two = const 2 : i32
         %zero = const 0 : tile<8xi32>
         %u = splat %two [8]
         %s = splat %n [8]
         %a = map mul %u, %s
         %b = map add %a, %zero
         store %y, %r, %b",
        expect![[r#"
            %r = range 0 8
            %two = const 2 : i32
            %0 = map mul %n, %two
            %a = splat %0 [8]
            store %y, %r, %a
        "#]],
    );
}

#[test]
fn functions_are_computed_on_the_smallest_shape() {
    canonical(
        "%r = range 0 8
         %e = expand_dims %r axis 1
         %b = broadcast %e [8, 4]
         %s = splat %n [8, 4]
         %m = map mul %b, %s
         %k = range 0 4
         %ke = expand_dims %k axis 0
         %kb = broadcast %ke [8, 4]
         %o = map add %m, %kb
         store %y, %o, %m",
        expect![[r#"
            %r = range 0 8
            %0 = splat %n [8]
            %1 = map mul %r, %0
            %2 = expand_dims %1 axis 1
            %m = broadcast %2 [8, 4]
            %k = range 0 4
            %ke = expand_dims %k axis 0
            %kb = broadcast %ke [8, 4]
            %o = map add %m, %kb
            store %y, %o, %m
        "#]],
    );
}

#[test]
fn integers_fold() {
    canonical(
        "%z = const 0 : i32
         %one = const 1 : i32
         %five = const 5 : i32
         %k = const -7 : i32
         %a = map div_floor %k, %five
         %b = map add %five, %n
         %c1 = map sub %b, %k
         %d = map mul %c1, %one
         %e = map mul %d, %z
         %f = map sub %d, %d
         %g = map div_trunc %n, %z
         %h = map rem_floor %n, %one
         %i = map or %e, %f
         %j = map or %g, %h
         %l = map or %i, %j
         %m = map add %l, %d
         store %y, %a, %m",
        expect![[r#"
            %a = const -2 : i32
            %0 = const 12 : i32
            %c1 = map add %n, %0
            store %y, %a, %c1
        "#]],
    );
}

#[test]
fn magnitudes_of_negated_unsigned_numbers_stay() {
    canonical(
        "%u = cast %n u8
         %v = map neg %u
         %w = map abs %v
         %m = map neg %n
         %a = map abs %m
         %b = cast %w i32
         store %y, %a, %b",
        expect![[r#"
            %u = cast %n u8
            %v = map neg %u
            %w = map abs %v
            %a = map abs %n
            %b = cast %w i32
            store %y, %a, %b
        "#]],
    );
}

#[test]
fn floats_fold_only_where_exact() {
    canonical(
        "%z = const 0.0 : f32
         %nz = const -0.0 : f32
         %one = const 1.0 : f32
         %four = const 4.0 : f32
         %three = const 3.0 : f32
         %a = map add %t, %z
         %b = map add %a, %nz
         %c1 = map sub %b, %z
         %d = map mul %c1, %z
         %e = map div %d, %four
         %f = map div %e, %three
         %g = map mul %f, %one
         %p = map pow %g, %three
         %q = map neg %p
         %u = map sub %p, %q
         %ninf = const -inf : f32
         %w = map max %u, %ninf
         %rl = map max %w, %z
         %rr = map max %rl, %nz
         store %x, %n, %rr",
        expect![[r#"
            %z = const 0.0 : f32
            %three = const 3.0 : f32
            %a = map add %t, %z
            %d = map mul %a, %z
            %0 = const 0.25 : f32
            %e = map mul %d, %0
            %f = map div %e, %three
            %1 = map mul %f, %f
            %p = map mul %1, %f
            %u = map add %p, %p
            %rl = map max %u, %z
            store %x, %n, %rl
        "#]],
    );
}

#[test]
fn casts_that_round_stay() {
    canonical(
        "%h = cast %t bf16
         %b = cast %h f32
         %w = cast %b f64
         %d = cast %w f32
         %i = cast %n i64
         %j = cast %i i32
         %k = cast %n i8
         %l = cast %k i32
         %m = cast %n f32
         %o = cast %m i32
         %s = map add %j, %l
         %q = map add %s, %o
         store %x, %q, %d",
        expect![[r#"
            %h = cast %t bf16
            %b = cast %h f32
            %k = cast %n i8
            %l = cast %k i32
            %m = cast %n f32
            %o = cast %m i32
            %s = map add %n, %l
            %q = map add %s, %o
            store %x, %q, %b
        "#]],
    );
}

#[test]
fn selections_simplify() {
    canonical(
        "%yes = const true : bool
         %no = const false : bool
         %a = map select %yes, %n, %n
         %nc = map not %c
         %b = map select %nc, %a, %n
         %k = const 3 : i32
         %d = map select %nc, %k, %n
         %e = map select %c, %d, %k
         %f = map select %c, %yes, %no
         %g = map lt %n, %k
         %h = map not %g
         %l = map lt %t, %t
         %m = map not %l
         %o = map and %h, %m
         %p = map and %o, %f
         store %y, %b, %e, mask %p",
        expect![[r#"
            %k = const 3 : i32
            %d = map select %c, %n, %k
            %h = map ge %n, %k
            %l = map lt %t, %t
            %m = map not %l
            %o = map and %h, %m
            %p = map and %o, %c
            store %y, %n, %d, mask %p
        "#]],
    );
}

#[test]
fn known_masks_and_loops_go() {
    canonical(
        "%r = range 0 4
         %yes = const true : tile<4xbool>
         %no = const false : tile<4xbool>
         %v = load %x, %r, mask %yes
         %w = load %x, %r, mask %no, other %v
         %u = load %x, %r, mask %no
         %s = map add %w, %u
         %m = reduce max %s axis 0 mask %yes
         %ms = splat %m [4]
         store %x, %r, %ms, mask %yes
         store %x, %r, %ms, mask %no
         %z = const 0 : i32
         %eight = const 8 : i32
         %a = for %i in %z..%eight step %eight with (%b = %n) {
           %d = map add %b, %i
           yield %d
         }
         %e = for %j in %eight..%z step %eight with (%g = %a) {
           yield %j
         }
         store %y, %z, %e",
        expect![[r#"
            %r = range 0 4
            %v = load %x, %r
            %u = const 0.0 : tile<4xf32>
            %s = map add %v, %u
            %m = reduce max %s axis 0
            %ms = splat %m [4]
            store %x, %r, %ms
            %z = const 0 : i32
            store %y, %z, %n
        "#]],
    );
}

#[test]
fn movements_compose() {
    canonical(
        "%r = range 0 8
         %m = reshape %r [2, 4]
         %p = permute %m [1, 0]
         %q = permute %p [1, 0]
         %e = expand_dims %q axis 0
         %f = reshape %e [8]
         %g = reshape %p [8]
         %s = splat %n [8]
         %h = reshape %s [2, 4]
         %k = permute %h [1, 0]
         %l = reshape %k [8]
         %o = map add %g, %l
         store %y, %f, %o",
        expect![[r#"
            %r = range 0 8
            %m = reshape %r [2, 4]
            %p = permute %m [1, 0]
            %g = reshape %p [8]
            %s = splat %n [8]
            %o = map add %g, %s
            store %y, %r, %o
        "#]],
    );
}

#[test]
fn ranges_decide() {
    check(
        &[|program| ranges(program, [4, 1, 1]), dce],
        "%r = range 0 8
         %n8 = const 8 : tile<8xi32>
         %m = map lt %r, %n8
         %i = map rem_floor %r, %n8
         %j = map add %i, %r
         %q = map div_floor %j, %n8
         %k = splat %n [8]
         %l = map rem_floor %k, %n8
         %z = const 0 : tile<8xi32>
         %u = map max %l, %z
         %v = map div_floor %k, %n8
         %w = map add %u, %v
         %p = program_id 0
         %ps = splat %p [8]
         %o = map mul %ps, %n8
         %s = map add %o, %r
         %e = const 32 : tile<8xi32>
         %f = map lt %s, %e
         %g = map and %f, %m
         store %y, %q, %w, mask %g",
        expect![[r#"
            %r = range 0 8
            %n8 = const 8 : tile<8xi32>
            %j = map add %r, %r
            %q = map div_trunc %j, %n8
            %k = splat %n [8]
            %l = map rem_floor %k, %n8
            %v = map div_floor %k, %n8
            %w = map add %l, %v
            %g = const true : tile<8xbool>
            store %y, %q, %w, mask %g
        "#]],
    );
}

#[test]
fn passes_can_be_watched_and_stopped() {
    let mut program: Program = "kernel @f() { %a = const 1 : i32 %b = map neg %a }".parse().unwrap();
    let mut seen = Vec::new();
    let mut observe = |name, program: &Program| seen.push((name, program.body.ops.len()));
    let mut options =
        PassOptions { stop_after: Some("cse"), observe: Some(&mut observe), ..Default::default() };
    run_passes(&mut program, PASSES, &mut options).unwrap();
    assert_eq!(seen, [("canonicalize", 2), ("cse", 2)]);
    optimize(&mut program).unwrap();
    assert_eq!(program.body.ops.len(), 0);
    program.warps = 3;
    let error = optimize(&mut program).unwrap_err();
    assert_eq!(error.to_string(), "after pass input: kernel @f: 3 warps are not a power of two from 1 to 32");
}

#[test]
fn accesses_are_guarded_unless_ranges_prove_them() {
    let guards = |text: &str| {
        let mut program: Program = text.parse().unwrap();
        let guards = guard(&mut program, &Proof::nothing());
        verify(&program).unwrap();
        (program.to_string(), guards.lengths)
    };
    let (text, lengths) = guards(
        "kernel @f(%x: ptr<f32> align(4) len(8), %y: ptr<f32> align(4), %n: i64) warps(4) {
           %r = range 0 8
           %s = splat %n [8]
           %c = cast %r i64
           %at = map add %c, %s
           %in = load %x, %r
           %m = map lt %at, %c
           %v = load %y, %at, mask %m
           store %y, %at, %v, mask %m
           store %y, %r, %in
         }",
    );
    assert_eq!(lengths, [1]);
    expect![[r#"
        kernel @f(%x: ptr<f32> align(4) len(8), %y: ptr<f32> align(4), %n: i64, %y_len: i64, %status: ptr<i32> align(4) len(1)) warps(4) {
          %r = range 0 8
          %s = splat %n [8]
          %c = cast %r i64
          %at = map add %c, %s
          %in = load %x, %r
          %m = map lt %at, %c
          %0 = splat %y_len [8]
          %1 = map lt %at, %0
          %2 = const 0 : tile<8xi64>
          %3 = map ge %at, %2
          %4 = map and %3, %1
          %5 = map not %4
          %6 = map and %m, %5
          %7 = const 0 : tile<8xi32>
          %8 = const 2 : tile<8xi32>
          store %status, %7, %8, mask %6
          %9 = map and %m, %4
          %v = load %y, %at, mask %9
          %10 = splat %y_len [8]
          %11 = map lt %at, %10
          %12 = const 0 : tile<8xi64>
          %13 = map ge %at, %12
          %14 = map and %13, %11
          %15 = map and %m, %14
          store %y, %at, %v, mask %15
          %16 = cast %r i64
          %17 = splat %y_len [8]
          %18 = map lt %16, %17
          %19 = map not %18
          %20 = const 0 : tile<8xi32>
          %21 = const 2 : tile<8xi32>
          store %status, %20, %21, mask %19
          store %y, %r, %in, mask %18
        }
    "#]].assert_eq(&text);

    let (text, lengths) = guards(
        "kernel @f(%x: ptr<i32>, %at: i32) warps(4) {
           %one = const 1 : i32
           %old = atomic_cas %x, %at, %one, %at
         }",
    );
    assert_eq!(lengths, [0]);
    expect![[r#"
        kernel @f(%x: ptr<i32> align(4), %at: i32, %x_len: i64, %status: ptr<i32> align(4) len(1)) warps(4) {
          %one = const 1 : i32
          %0 = cast %at i64
          %1 = map lt %0, %x_len
          %2 = const 0 : i64
          %3 = map ge %0, %2
          %4 = map and %3, %1
          %5 = map not %4
          %6 = const 0 : i32
          %7 = const 1 : i32
          store %status, %6, %7, mask %5
          %old = if %4 {
            %8 = atomic_cas %x, %at, %one, %at
            yield %8
          } else {
            %9 = const 0 : i32
            yield %9
          }
        }
    "#]]
    .assert_eq(&text);
}

#[test]
fn what_is_repeated_is_loaded_once() {
    let body = "
  %r = range 0 8
  %across = expand_dims %r axis 0
  %columns = broadcast %across [4, 8]
  %w = load %x, %columns
  %s = splat %t [4, 8]
  %m = map mul %w, %s
  %one = const 1.0 : tile<4x8xf32>
  %a = map add %m, %one
  %k = range 0 4
  %down = expand_dims %k axis 1
  %rows = broadcast %down [4, 8]
  %at = map add %rows, %columns
  %mask = map lt %rows, %columns
  %v = load %x, %columns, mask %mask
  %z = map mul %a, %v
  store %x, %at, %z";
    check(
        &[reorder_broadcast, dce, renumber],
        body,
        expect![[r#"
        %r = range 0 8
        %across = expand_dims %r axis 0
        %columns = broadcast %across [4, 8]
        %0 = load %x, %r
        %1 = splat %t [8]
        %2 = map mul %0, %1
        %3 = const 1.0 : tile<8xf32>
        %4 = map add %2, %3
        %5 = expand_dims %4 axis 0
        %a = broadcast %5 [4, 8]
        %k = range 0 4
        %down = expand_dims %k axis 1
        %rows = broadcast %down [4, 8]
        %at = map add %rows, %columns
        %mask = map lt %rows, %columns
        %v = load %x, %columns, mask %mask
        %z = map mul %a, %v
        store %x, %at, %z
    "#]],
    );
}
