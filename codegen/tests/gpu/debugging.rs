//! Printing, and assertions that hold and that do not.

use tilefuse_block::interp::Arg;
use tilefuse_block::{Builder, Data, Elem, Literal, ScalarFn};

use crate::run::{Case, Tolerance};
use crate::shapes::{finish, load};

pub(crate) fn cases() -> Vec<Case> {
    let mut out = vec![printed(1), printed(4)];
    for masked in [false, true] {
        out.push(asserted(masked, false));
        out.push(asserted(masked, true));
    }
    out
}

/// Tiles and scalars of several kinds, and a line alone.
fn printed(warps: u32) -> Case {
    let mut b = Builder::new("printed");
    b.set_warps(warps);
    let x = b.ptr_param("x", Elem::F32, 16, None);
    let id = b.program_id(1).unwrap();
    let range = b.range(-2, 8).unwrap();
    let square = b.reshape(range, &[2, 4]).unwrap();
    let two = b.constant(Literal::int(Elem::I32, 2), &[8]);
    let at = b.map(ScalarFn::Add, &[range, two]).unwrap();
    let v = load(&mut b, x, at);
    let zero = b.constant(Literal::float(Elem::F32, 0.0), &[8]);
    let less = b.map(ScalarFn::Lt, &[v, zero]).unwrap();
    let half = b.cast(v, Elem::F16).unwrap();
    let wide = b.cast(v, Elem::F64).unwrap();
    let byte = b.cast(square, Elem::I8).unwrap();
    let long = b.cast(square, Elem::U64).unwrap();
    b.print("100 % of \"x\" is ", &[v, less, half], false).unwrap();
    b.print("square", &[square, byte, wide], false).unwrap();
    b.print("bits", &[byte, long, id], true).unwrap();
    b.print("", &[id], false).unwrap();
    b.print("done", &[], false).unwrap();
    let x = Data::F32(vec![0.5, -1.25, 0.0, 3.0, -0.0, f32::INFINITY, 1024.0, -2.0]);
    Case { grid: [1, 2, 1], ..finish(format!("print warps {warps}"), b, vec![Arg::buffer(x)]) }
}

fn asserted(masked: bool, fails: bool) -> Case {
    let mut b = Builder::new("asserted");
    let x = b.ptr_param("x", Elem::I32, 16, None);
    let range = b.range(0, 256).unwrap();
    let v = load(&mut b, x, range);
    let holds = b.map(ScalarFn::Eq, &[v, range]).unwrap();
    let mask = masked.then(|| {
        let end = b.constant(Literal::int(Elem::I32, 200), &[256]);
        b.map(ScalarFn::Lt, &[range, end]).unwrap()
    });
    b.assert(holds, "x counts 100 %", mask).unwrap();
    let wrong = if fails { 199 } else { 220 };
    let x = (0..256).map(|i| if i == wrong && (masked || fails) { -1 } else { i });
    let case =
        finish(format!("assert masked {masked} fails {fails}"), b, vec![Arg::buffer(Data::I32(x.collect()))]);
    if fails { Case { tolerance: Tolerance::Fails, ..case } } else { case }
}
