//! Whole programs.

use super::*;
use tilefuse_block::Elem;

#[test]
fn adds_vectors() {
    let text = "
kernel @add(%x: ptr<f32>, %y: ptr<f32>, %z: ptr<f32>) {
  %p = program_id 0
  %b = const 256 : i32
  %s = map mul %p, %b
  %r = range 0 256
  %t = splat %s [256]
  %o = map add %t, %r
  %n = const 1000 : tile<256xi32>
  %m = map lt %o, %n
  %a = load %x, %o, mask %m
  %c = load %y, %o, mask %m
  %d = map add %a, %c
  store %z, %o, %d, mask %m
}";
    check_text(text, &[f32s(1000), f32s(1000), f32s(1000)], [4, 1, 1], 0.0);
}

#[test]
fn takes_softmax_of_rows() {
    let text = "
kernel @softmax(%x: ptr<f32>, %y: ptr<f32>) {
  %row = program_id 0
  %cols = range 0 1024
  %n = const 1000 : tile<1024xi32>
  %m = map lt %cols, %n
  %stride = const 1000 : i32
  %base = map mul %row, %stride
  %b = splat %base [1024]
  %o = map add %b, %cols
  %v = load %x, %o, mask %m
  %max = reduce max %v axis 0 mask %m
  %mb = splat %max [1024]
  %d = map sub %v, %mb
  %e = map exp %d
  %sum = reduce sum %e axis 0 mask %m
  %sb = splat %sum [1024]
  %q = map div %e, %sb
  store %y, %o, %q, mask %m
}";
    check_text(text, &[f32s(5000), f32s(5000)], [5, 1, 1], 1e-6);
}

#[test]
fn sums_columns_in_a_loop() {
    let text = "
kernel @sum0(%x: ptr<f32>, %y: ptr<f32>) {
  %p = program_id 0
  %w = const 64 : i32
  %base = map mul %p, %w
  %r = range 0 64
  %bs = splat %base [64]
  %cols = map add %bs, %r
  %nc = const 100 : tile<64xi32>
  %cm = map lt %cols, %nc
  %zero = const 0.0 : tile<64xf32>
  %lo = const 0 : i32
  %hi = const 50 : i32
  %step = const 8 : i32
  %acc = for %i in %lo..%hi step %step with (%a = %zero) {
    %rows = range 0 8
    %is = splat %i [8]
    %row = map add %is, %rows
    %nr = const 50 : tile<8xi32>
    %rm = map lt %row, %nr
    %stride = const 100 : tile<8xi32>
    %ro = map mul %row, %stride
    %re = expand_dims %ro axis 1
    %rb = broadcast %re [8, 64]
    %ce = expand_dims %cols axis 0
    %cb = broadcast %ce [8, 64]
    %o = map add %rb, %cb
    %rme = expand_dims %rm axis 1
    %rmb = broadcast %rme [8, 64]
    %cme = expand_dims %cm axis 0
    %cmb = broadcast %cme [8, 64]
    %m = map and %rmb, %cmb
    %v = load %x, %o, mask %m
    %s = reduce sum %v axis 0 mask %m
    %next = map add %a, %s
    yield %next
  }
  store %y, %cols, %acc, mask %cm
}";
    check_text(text, &[f32s(5000), f32s(100)], [2, 1, 1], 1e-5);
}

#[test]
fn transposes() {
    let text = "
kernel @transpose(%x: ptr<f32>, %y: ptr<f32>) {
  %r = range 0 32
  %c = range 0 32
  %re = expand_dims %r axis 1
  %rb = broadcast %re [32, 32]
  %ce = expand_dims %c axis 0
  %cb = broadcast %ce [32, 32]
  %s = const 32 : tile<32x32xi32>
  %rs = map mul %rb, %s
  %from = map add %rs, %cb
  %cs = map mul %cb, %s
  %to = map add %cs, %rb
  %v = load %x, %from
  %w = load %x, %to
  %d = map sub %v, %w
  store %y, %from, %d
}";
    check_text(text, &[f32s(1024), Arg::buffer(f32::wrap(vec![0.0; 1024]))], [1, 1, 1], 0.0);
}

#[test]
fn reverses_in_place() {
    let text = "
kernel @reverse(%x: ptr<i32>) {
  %r = range 0 64
  %l = const 63 : tile<64xi32>
  %o = map sub %l, %r
  %v = load %x, %r
  store %x, %o, %v
}";
    let data = Arg::buffer(i32::wrap((0..64).collect()));
    check_text(text, &[data], [1, 1, 1], 0.0);
    let _ = Elem::I32;
}
