//! Values that are kept between loops: where they are read, and by whom.

use tilefuse_block::{Elem, Literal};

use super::*;

/// One element stands for several that a mask does not all count.
#[test]
fn elements_that_stand_for_others_are_kept() {
    let text = "
kernel @t1(%x: ptr<f32>, %w: ptr<f32>, %y: ptr<f32>, %z: ptr<f32>) {
  %i = range 0 256
  %c = range 0 64
  %ce = expand_dims %c axis 0
  %cb = broadcast %ce [4, 64]
  %cf = reshape %cb [256]
  %u = load %w, %cf
  %e1 = map sin %u
  %e = map exp %e1
  %rr = range 0 4
  %two = const 2 : tile<4xi32>
  %m4 = map ge %rr, %two
  %me = expand_dims %m4 axis 1
  %mb = broadcast %me [4, 64]
  %m = reshape %mb [256]
  %v = load %x, %i
  %ev = map mul %e, %v
  %s = reduce sum %ev axis 0 mask %m
  %ss = splat %s [256]
  %o = map add %e, %ss
  store %y, %i, %o, mask %m
}";
    check_text(text, &[f32s(256), f32s(64), f32s(256), f32s(4)], [1, 1, 1], 1e-5);
}

/// A condition is asked for before the loop that would keep what it is made of.
#[test]
fn conditions_of_expensive_values() {
    let text = "
kernel @t14(%x: ptr<f32>, %y: ptr<f32>, %z: ptr<f32>) {
  %r = range 0 2
  %v = load %x, %r
  %e0 = map sin %v
  %e1 = map exp %e0
  %four = const 4.0 : tile<2xf32>
  %e = map mul %e1, %four
  %a, %b = split %e
  %lim = const 0.001 : f32
  %c = map gt %a, %lim
  %i = range 0 256
  %f0 = const 1.0 : tile<256xf32>
  if %c {
    store %z, %i, %f0
    yield
  }
  %sum = reduce sum %e axis 0
  %ss = splat %sum [2]
  %o = map add %e, %ss
  store %y, %r, %o
}";
    check_text(text, &[f32s(2), f32s(2), f32s(256)], [1, 1, 1], 1e-5);
}

#[test]
fn bounds_of_expensive_values() {
    let text = "
kernel @t14(%x: ptr<f32>, %y: ptr<f32>, %z: ptr<f32>) {
  %r = range 0 2
  %v = load %x, %r
  %e0 = map sin %v
  %e1 = map exp %e0
  %four = const 4.0 : tile<2xf32>
  %e = map mul %e1, %four
  %a, %b = split %e
  %n = cast %a i32
  %zero = const 0 : i32
  %one = const 1 : i32
  %i = range 0 256
  %f0 = const 1.0 : tile<256xf32>
  %s = for %k in %zero..%n step %one with (%t = %f0) {
    %t1 = map add %t, %f0
    %t2 = scan %t1 axis 0 (%p, %q) { %m = map max %p, %q yield %m }
    yield %t2
  }
  store %z, %i, %s
  %sum = reduce sum %e axis 0
  %ss = splat %sum [2]
  %o = map add %e, %ss
  store %y, %r, %o
}";
    check_text(text, &[f32s(2), f32s(2), f32s(256)], [1, 1, 1], 1e-5);
}

/// A load that no mask guards reads where an index says that nothing else needs.
#[test]
fn indices_that_loads_read_by_are_kept() {
    let text = "
kernel @t16(%u: ptr<f32>, %t1: ptr<f32>, %t2: ptr<f32>, %y: ptr<f32>, %n: i32) {
  %i = range 0 256
  %ns = splat %n [256]
  %m = map lt %i, %ns
  %zf = const 0.0 : tile<256xf32>
  %f0 = load %u, %i, mask %m, other %zf
  %f1 = map mul %f0, %f0
  %f2 = map add %f1, %f0
  %f3 = map mul %f2, %f0
  %f4 = map sub %f3, %f1
  %f5 = map mul %f4, %f2
  %f6 = map add %f5, %f4
  %f7 = map sub %f6, %f1
  %hi = const 7.0 : tile<256xf32>
  %f8 = map min %f7, %hi
  %f9 = map max %f8, %zf
  %k = cast %f9 i32
  %a = load %t1, %k
  %s = reduce max %a axis 0 mask %m
  %b = load %t2, %k
  %ss = splat %s [256]
  %o = map add %b, %ss
  %o1 = map exp %o
  %o2 = map sin %o1
  store %y, %i, %o2, mask %m
}";
    for n in [1, 5, 17, 20, 64, 256] {
        let args = [f32s(256), f32s(8), f32s(8), f32s(256), Arg::Scalar(Literal::int(Elem::I32, n))];
        check_text(text, &args, [1, 1, 1], 1e-5);
    }
}

/// The second store is what is there in the end.
#[test]
fn two_stores_past_the_caches_are_two() {
    let text = "
kernel @t10(%x: ptr<bf16> align(64), %y: ptr<bf16> align(64)) {
  %i = range 0 256
  %v = load %x, %i
  %w = map add %v, %v
  store %y, %i, %v, hint streaming
  store %y, %i, %w, hint streaming
}";
    let numbers = (0..256).map(|at| Literal::of(Elem::Bf16, f64::from(at)));
    let args = [
        Arg::buffer(Data::from_literals(Elem::Bf16, numbers)),
        Arg::buffer(Data::repeat(Literal::of(Elem::Bf16, 0.0), 256)),
    ];
    check_text(text, &args, [1, 1, 1], 0.0);
}
