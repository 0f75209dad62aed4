//! Blocks of sums in registers, and reads of every second element.

use tilefuse_block::{Elem, Literal};

use super::*;
use crate::host::plan::Plan;
use crate::host::target::Target;

/// `y[r, c] = sum over k of w[r, k] x[k, c]`, with neighbours of a row of `x` `stride` elements apart.
fn outer(elem: &str, stride: u32, mask: bool) -> String {
    let (masks, load, store) = match mask {
        true => (
            "  %end = const 50 : tile<64xi32>
  %in = map lt %c, %end
  %zero = const 3 : tile<64xi32>
  %from = map ge %c, %zero
  %m = map and %in, %from
  %m0 = expand_dims %m axis 0
  %m2 = broadcast %m0 [4, 64]
",
            ", mask %m",
            ", mask %m2",
        ),
        false => ("", "", ""),
    };
    format!(
        "
kernel @outer(%x: ptr<{elem}>, %w: ptr<{elem}>, %y: ptr<{elem}>) {{
  %c = range 0 64
  %stride = const {stride} : tile<64xi32>
  %cs = map mul %c, %stride
  %r = range 0 4
  %deep = const 24 : tile<4xi32>
  %ws = map mul %r, %deep
  %none = const 0.0 : tile<4x64x{elem}>
{masks}  %z = const 0 : i32
  %one = const 1 : i32
  %blocks = const 4 : i32
  %six = const 6 : i32
  %sum = for %b in %z..%blocks step %one with (%outer = %none) {{
    %first = map mul %b, %six
    %inner = for %i in %z..%six step %one with (%acc = %outer) {{
      %k = map add %first, %i
      %pitch = const 130 : i32
      %row = map mul %k, %pitch
      %rows = splat %row [64]
      %at = map add %cs, %rows
      %v = load %x, %at{load}
      %ks = splat %k [4]
      %wat = map add %ws, %ks
      %u = load %w, %wat
      %u1 = expand_dims %u axis 1
      %u2 = broadcast %u1 [4, 64]
      %v1 = expand_dims %v axis 0
      %v2 = broadcast %v1 [4, 64]
      %next = map fma %u2, %v2, %acc
      yield %next
    }}
    yield %inner
  }}
  %wide = const 64 : tile<4xi32>
  %start = map mul %r, %wide
  %start1 = expand_dims %start axis 1
  %start2 = broadcast %start1 [4, 64]
  %c0 = expand_dims %c axis 0
  %c2 = broadcast %c0 [4, 64]
  %o = map add %start2, %c2
  store %y, %o, %sum{store}
}}"
    )
}

#[test]
fn sums_products_in_registers() {
    for mask in [false, true] {
        for stride in [1, 2, 3] {
            let args = [f32s(24 * 130 + 64), f32s(96), f32s(256)];
            check_text(&outer("f32", stride, mask), &args, [1, 1, 1], 0.0);
        }
        let f64s = |n| Arg::buffer(f64::wrap(floats(n).into_iter().map(f64::from).collect()));
        check_text(&outer("f64", 1, mask), &[f64s(24 * 130 + 64), f64s(96), f64s(256)], [1, 1, 1], 0.0);
    }
}

/// A block is as large as half of the registers, and no load of the loop is made twice in it.
#[test]
fn blocks_of_sums_fill_half_of_the_registers() {
    let unrolled = |elem: &str, width: u32| {
        let program =
            crate::host::prepared(&outer(elem, 1, true).trim().parse().unwrap(), &Target::neon()).unwrap();
        let plan = Plan::new(&program, width).unwrap();
        plan.regions.iter().map(|r| r.forced.len()).max().unwrap()
    };
    assert_eq!([unrolled("f32", 4), unrolled("f32", 3), unrolled("f32", 2)], [4, 3, 3]);
    assert_eq!([unrolled("f64", 4), unrolled("f64", 3)], [3, 2]);
}

/// A load that every element of a tile makes for itself needs no block.
#[test]
fn loops_without_shared_loads_are_not_unrolled_for_them() {
    let text = "
kernel @add(%x: ptr<f32>, %y: ptr<f32>) {
  %c = range 0 256
  %o = reshape %c [4, 64]
  %none = const 0.0 : tile<4x64xf32>
  %z = const 0 : i32
  %one = const 1 : i32
  %n = const 8 : i32
  %sum = for %i in %z..%n step %one with (%acc = %none) {
    %pitch = const 256 : i32
    %row = map mul %i, %pitch
    %rows = splat %row [4, 64]
    %at = map add %o, %rows
    %v = load %x, %at
    %next = map add %acc, %v
    yield %next
  }
  store %y, %o, %sum
}";
    let program = crate::host::prepared(&text.trim().parse().unwrap(), &Target::neon()).unwrap();
    let plan = Plan::new(&program, 4).unwrap();
    assert!(plan.regions.iter().all(|r| r.forced.len() <= 2), "as for any sum along the vectors");
    check_text(text, &[f32s(2048), f32s(256)], [1, 1, 1], 0.0);
}

/// Every second element is read with those between masked off: the last element of the buffer is the last that counts.
#[test]
fn reads_every_second_element() {
    for (elem, width) in [("f32", 64), ("f32", 8), ("f64", 64), ("f16", 64), ("i32", 32), ("u8", 64)] {
        for mask in ["", ", mask %m"] {
            let text = format!(
                "
kernel @second(%x: ptr<{elem}>, %y: ptr<{elem}>) {{
  %r = range 0 4
  %c = range 0 {width}
  %two = const 2 : tile<{width}xi32>
  %cs = map mul %c, %two
  %pitch = const {pitch} : tile<4xi32>
  %rs = map mul %r, %pitch
  %wide = const {width} : tile<4xi32>
  %rd = map mul %r, %wide
  %r1 = expand_dims %rs axis 1
  %r2 = broadcast %r1 [4, {width}]
  %d1 = expand_dims %rd axis 1
  %d2 = broadcast %d1 [4, {width}]
  %c1 = expand_dims %cs axis 0
  %c2 = broadcast %c1 [4, {width}]
  %e1 = expand_dims %c axis 0
  %e2 = broadcast %e1 [4, {width}]
  %at = map add %r2, %c2
  %to = map add %d2, %e2
  %five = const 5 : tile<4x{width}xi32>
  %m = map ge %e2, %five
  %v = load %x, %at{mask}
  store %y, %to, %v
}}",
                pitch = 2 * width - 1
            );
            let len = 3 * (2 * width - 1) + 2 * (width - 1) + 1;
            let elem = Elem::ALL.into_iter().find(|e| e.name() == elem).unwrap();
            let literals = floats(len).into_iter().map(|v| match elem.is_float() {
                true => Literal::float(elem, v.into()),
                false => Literal::int(elem, (v * 10.0) as i64 & 127),
            });
            let x = Arg::buffer(Data::from_literals(elem, literals));
            let zeros = interp::Buffer::zeros(elem, 4 * width);
            check_text(&text, &[x, Arg::Buffer(zeros)], [1, 1, 1], 0.0);
        }
    }
}
