//! The larger and the smaller of 16-bit floats, two in an instruction: a register holds neighbours, as they are loaded.

use tilefuse_block::{Elem, ScalarFn};

use super::ir::{Ir, Val, ty};

/// Whether pairs of such elements are operands of the function: those whose result is one of these, which is not rounded.
pub(super) fn takes(function: ScalarFn, elem: Elem) -> bool {
    matches!(function, ScalarFn::Max | ScalarFn::Min) && matches!(elem, Elem::F16 | Elem::Bf16)
}

/// The function of two operands' registers.
pub(super) fn map(ir: &mut Ir, function: ScalarFn, elem: Elem, a: &[Val], b: &[Val]) -> Vec<Val> {
    let pairs = a.chunks(2).zip(b.chunks(2));
    pairs
        .flat_map(|(a, b)| match (a, b) {
            ([_, _], [_, _]) => {
                let [x, y] = [a, b].map(|pair| join(ir, elem, pair));
                let both = call(ir, function, elem, &x, &y);
                [0, 1].map(|at| half(ir, elem, &both, at)).to_vec()
            }
            _ => vec![single(ir, function, elem, &a[0], &b[0])],
        })
        .collect()
}

/// Combines neighbours, pair by pair, until at most one pair is left, and then that: one value of an even number of them, the
/// values themselves of an odd one.
pub(super) fn fold(ir: &mut Ir, function: ScalarFn, elem: Elem, values: Vec<Val>) -> Vec<Val> {
    if values.len() < 2 || !values.len().is_multiple_of(2) {
        return values;
    }
    let mut pairs: Vec<Val> = values.chunks(2).map(|pair| join(ir, elem, pair)).collect();
    while pairs.len() > 1 {
        let next = pairs.chunks(2).map(|two| match two {
            [x, y] => call(ir, function, elem, x, y),
            _ => two[0].clone(),
        });
        pairs = next.collect();
    }
    let [x, y] = [0, 1].map(|at| half(ir, elem, &pairs[0], at));
    vec![single(ir, function, elem, &x, &y)]
}

fn join(ir: &mut Ir, elem: Elem, pair: &[Val]) -> Val {
    let t = ty(elem);
    let one = ir.def(format_args!("insertelement <2 x {t}> poison, {t} {}, i32 0", pair[0]));
    ir.def(format_args!("insertelement <2 x {t}> {one}, {t} {}, i32 1", pair[1]))
}

fn half(ir: &mut Ir, elem: Elem, pair: &Val, at: u32) -> Val {
    ir.def(format_args!("extractelement <2 x {}> {pair}, i32 {at}", ty(elem)))
}

fn call(ir: &mut Ir, function: ScalarFn, elem: Elem, x: &Val, y: &Val) -> Val {
    let suffix = if elem == Elem::Bf16 { "v2bf16" } else { "v2f16" };
    ir.intrinsic(&format!("llvm.{}.{suffix}", name(function)), &format!("<2 x {}>", ty(elem)), &[x, y])
}

fn single(ir: &mut Ir, function: ScalarFn, elem: Elem, x: &Val, y: &Val) -> Val {
    let suffix = if elem == Elem::Bf16 { "bf16" } else { "f16" };
    ir.intrinsic(&format!("llvm.{}.{suffix}", name(function)), ty(elem), &[x, y])
}

fn name(function: ScalarFn) -> &'static str {
    if function == ScalarFn::Max { "maximum" } else { "minimum" }
}
