//! Every combiner on every kind, along every axis, masked or not, with several numbers of warps.

use tilefuse_block::interp::{Arg, Buffer};
use tilefuse_block::{Builder, CacheHint, Elem, Literal, ReduceFn, ScalarFn, Value};

use crate::run::{Case, Tolerance};
use crate::values::moderate;

pub(crate) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    let shapes: [&[u32]; 6] = [&[1024], &[8, 256], &[64, 4], &[2, 16, 64], &[16], &[4, 1, 512]];
    let mut n = 0;
    for combine in ReduceFn::ALL {
        for elem in Elem::ALL.into_iter().filter(|&e| combine.accepts(e)) {
            // Every kind meets a part of the shapes; `f32` and `i64` meet all.
            for (index, shape) in shapes.iter().enumerate() {
                n += 1;
                if matches!(elem, Elem::F32 | Elem::I64) || n % 4 == index % 4 {
                    for axis in 0..shape.len() as u8 {
                        let warps = 1 << ((n + usize::from(axis)) % 5);
                        out.push(reduction(combine, elem, shape, axis, warps, n % 2 == 0));
                    }
                }
            }
        }
    }
    out
}

/// Offsets of a tile in row-major order.
pub(crate) fn offsets(b: &mut Builder, shape: &[u32]) -> Value {
    let numel: u32 = shape.iter().product();
    let at = b.range(0, numel).unwrap();
    b.reshape(at, shape).unwrap()
}

/// Offsets of a tile in row-major order, from ranges along its axes.
pub(crate) fn strided(b: &mut Builder, shape: &[u32], strides: &[i64]) -> Value {
    let mut sum: Option<Value> = None;
    for (axis, (&extent, &stride)) in shape.iter().zip(strides).enumerate() {
        let mut index = b.range(0, extent).unwrap();
        for other in (0..shape.len()).filter(|&o| o != axis) {
            index = b.expand_dims(index, u8::try_from(other.min(b.ty(index).rank())).unwrap()).unwrap();
        }
        let index = b.broadcast(index, shape).unwrap();
        let stride = b.constant(Literal::int(Elem::I32, stride), shape);
        let part = b.map(ScalarFn::Mul, &[index, stride]).unwrap();
        sum = Some(match sum {
            Some(sum) => b.map(ScalarFn::Add, &[sum, part]).unwrap(),
            None => part,
        });
    }
    sum.unwrap()
}

/// Row-major strides.
pub(crate) fn row_major(shape: &[u32]) -> Vec<i64> {
    (0..shape.len()).map(|a| shape[a + 1..].iter().map(|&d| i64::from(d)).product()).collect()
}

/// Stores the reduction, and the operand less the reduction along the axis again.
fn reduction(combine: ReduceFn, elem: Elem, shape: &[u32], axis: u8, warps: u32, masked: bool) -> Case {
    let numel: u32 = shape.iter().product();
    let a = usize::from(axis);
    let mut b = Builder::new("reduction");
    b.set_warps(warps);
    let x = b.ptr_param("x", elem, 16, Some(u64::from(numel)));
    let at = strided(&mut b, shape, &row_major(shape));
    let v = b.load(x, at, None, None, CacheHint::Default).unwrap();
    let mask = masked.then(|| {
        let zero = b.constant(Literal::of(elem, 0.0), shape);
        b.map(if elem == Elem::Bool { ScalarFn::Eq } else { ScalarFn::Ge }, &[v, zero]).unwrap()
    });
    let r = b.reduce(combine, v, axis, mask).unwrap();
    let mut small = shape.to_vec();
    small.remove(a);
    let y = b.ptr_param("y", elem, 16, None);
    let small_at = if small.is_empty() {
        b.constant(Literal::int(Elem::I32, 0), &[])
    } else {
        strided(&mut b, &small, &row_major(&small))
    };
    b.store(y, small_at, r, None, CacheHint::Default).unwrap();
    let again = if small.is_empty() { b.splat(r, &[1]).unwrap() } else { b.expand_dims(r, axis).unwrap() };
    let again = b.broadcast(again, shape).unwrap();
    let same = b.map(ScalarFn::Lt, &[v, again]).unwrap();
    let z = b.ptr_param("z", Elem::Bool, 16, None);
    b.store(z, at, same, None, CacheHint::Default).unwrap();
    let outputs: usize = small.iter().map(|&d| d as usize).product();
    // A product of many is kept near 1, a comparison with a sum needs no rounding to decide.
    let data = moderate(elem, numel as usize, u64::from(numel) + u64::from(axis));
    let args = vec![
        Arg::buffer(data),
        Arg::Buffer(Buffer::uninit(elem, outputs)),
        Arg::Buffer(Buffer::uninit(Elem::Bool, numel as usize)),
    ];
    let rounds = elem.is_float() && matches!(combine, ReduceFn::Sum | ReduceFn::Prod);
    let relative = match elem {
        Elem::F16 => 2e-3,
        Elem::Bf16 => 1.6e-2,
        Elem::F32 => 1e-4,
        _ => 1e-10,
    };
    let absolute = if elem == Elem::F64 { 1e-10 } else { 2e-4 };
    let tolerance = if rounds { Tolerance::Close { absolute, relative } } else { Tolerance::Exact };
    let mask = if masked { "masked" } else { "" };
    let name = format!("reduce {} {elem} {shape:?} axis {axis} warps {warps} {mask}", combine.name());
    Case { name, program: b.finish(), args, grid: [1; 3], tolerance, is_function: false }
}
