//! The exact floating-point remainder, which PTX has no instruction for.

use tilefuse_block::Elem;

use super::ir::{Ir, Val, ty};

/// Calls the remainder of `a` by `b`, with the sign of `a`, for `f32` or `f64`.
pub(crate) fn call(ir: &mut Ir, elem: Elem, a: &Val, b: &Val) -> Val {
    let bits = elem.bits();
    ir.declare(&format!("i{bits} @llvm.ctlz.i{bits}(i{bits}, i1)"));
    ir.define(function(elem));
    let t = ty(elem);
    ir.def(format_args!("call {t} @tilefuse_fmod_{t}({t} {a}, {t} {b})"))
}

/// Long division of the mantissas, one bit a step, on the bits of the numbers.
fn function(elem: Elem) -> String {
    let (width, mantissa) = if elem == Elem::F64 { (64u32, 52u32) } else { (32, 23) };
    let t = ty(elem);
    let i = format!("i{width}");
    let magnitude = i64::MAX >> (64 - width);
    let sign = i64::MIN >> (64 - width);
    let infinity = (((1i64 << (width - 1 - mantissa)) - 1) << mantissa).to_string();
    let implicit = 1i64 << mantissa;
    let fraction = implicit - 1;
    let spare = width - 1 - mantissa;
    let unpack = |n: &str| {
        format!(
            "  %{n}e0 = lshr {i} %a{n}, {mantissa}
  %{n}sub = icmp eq {i} %{n}e0, 0
  %{n}lz = call {i} @llvm.ctlz.{i}({i} %a{n}, i1 false)
  %{n}sh0 = sub {i} %{n}lz, {spare}
  %{n}sh = select i1 %{n}sub, {i} %{n}sh0, {i} 0
  %{n}low = shl {i} %a{n}, %{n}sh
  %{n}frac = and {i} %a{n}, {fraction}
  %{n}norm = or {i} %{n}frac, {implicit}
  %{n}m = select i1 %{n}sub, {i} %{n}low, {i} %{n}norm
  %{n}esub = sub {i} 1, %{n}sh
  %{n}e = select i1 %{n}sub, {i} %{n}esub, {i} %{n}e0
"
        )
    };
    let (unpack_x, unpack_y) = (unpack("x"), unpack("y"));
    format!(
        "define internal {t} @tilefuse_fmod_{t}({t} %x, {t} %y) noinline nounwind {{
entry:
  %bx = bitcast {t} %x to {i}
  %by = bitcast {t} %y to {i}
  %ax = and {i} %bx, {magnitude}
  %ay = and {i} %by, {magnitude}
  %sx = and {i} %bx, {sign}
  %yzero = icmp eq {i} %ay, 0
  %ynan = icmp ugt {i} %ay, {infinity}
  %xbad = icmp uge {i} %ax, {infinity}
  %bad0 = or i1 %yzero, %ynan
  %bad = or i1 %bad0, %xbad
  br i1 %bad, label %invalid, label %finite
invalid:
  ret {t} 0x7FF8000000000000
finite:
  %less = icmp ult {i} %ax, %ay
  br i1 %less, label %small, label %start
small:
  ret {t} %x
start:
{unpack_x}{unpack_y}  %steps = sub {i} %xe, %ye
  br label %loop
loop:
  %m = phi {i} [ %xm, %start ], [ %next, %more ]
  %n = phi {i} [ %steps, %start ], [ %less1, %more ]
  %fits = icmp uge {i} %m, %ym
  %taken = sub {i} %m, %ym
  %r = select i1 %fits, {i} %taken, {i} %m
  %last = icmp eq {i} %n, 0
  br i1 %last, label %done, label %more
more:
  %next = shl {i} %r, 1
  %less1 = sub {i} %n, 1
  br label %loop
done:
  %rlz = call {i} @llvm.ctlz.{i}({i} %r, i1 false)
  %rsh = sub {i} %rlz, {spare}
  %re = sub {i} %ye, %rsh
  %zero = icmp eq {i} %r, 0
  br i1 %zero, label %exact, label %pack
exact:
  %signed0 = bitcast {i} %sx to {t}
  ret {t} %signed0
pack:
  %rn = shl {i} %r, %rsh
  %normal = icmp sgt {i} %re, 0
  %rf = and {i} %rn, {fraction}
  %rexp = shl {i} %re, {mantissa}
  %rnormal = or {i} %rf, %rexp
  %under = sub {i} 1, %re
  %safe = select i1 %normal, {i} 0, {i} %under
  %rsub = lshr {i} %rn, %safe
  %bits = select i1 %normal, {i} %rnormal, {i} %rsub
  %signed = or {i} %bits, %sx
  %out = bitcast {i} %signed to {t}
  ret {t} %out
}}"
    )
}
