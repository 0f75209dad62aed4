//! Reductions and scans with combiners of their own.

use tilefuse_block::interp::{Arg, Buffer};
use tilefuse_block::{Builder, CacheHint, Elem, Literal, ScalarFn, TypeError, Value};

use crate::reductions::{row_major, strided};
use crate::run::{Case, Tolerance};
use crate::values::moderate;

const SHAPES: [&[u32]; 8] =
    [&[1024], &[8, 256], &[64, 4], &[2, 16, 64], &[16], &[4, 1, 512], &[2, 2, 4, 2, 32], &[1, 1]];

pub(crate) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    let elems = Elem::ALL.into_iter().filter(|e| !e.is_small_float());
    let mut n = 0;
    for (e, elem) in elems.enumerate() {
        for (s, shape) in SHAPES.into_iter().enumerate() {
            // Every kind meets a part of the shapes; `f32` and `i64` meet all.
            if (e + s) % 3 != 0 && !matches!(elem, Elem::F32 | Elem::I64) {
                continue;
            }
            for axis in 0..shape.len() as u8 {
                n += 1;
                let warps = 1 << (n % 6);
                out.push(best(elem, shape, axis, warps));
                out.push(last_that_counts(elem, shape, axis, warps, n % 2 == 0));
            }
        }
    }
    for (s, shape) in SHAPES.into_iter().enumerate() {
        for axis in 0..shape.len() as u8 {
            for reverse in [false, true] {
                out.push(affine(shape, axis, 1 << ((s + usize::from(axis)) % 5), reverse));
            }
        }
    }
    for (shape, warps) in [(&[4096u32][..], 4), (&[32, 128], 8), (&[128, 32], 8)] {
        out.push(cumulated(shape, shape.len() as u8 - 1, warps));
        out.push(cumulated(shape, 0, warps));
    }
    out
}

type Built<T> = Result<T, TypeError>;

struct Tile {
    b: Builder,
    shape: Vec<u32>,
    at: Value,
    args: Vec<Arg>,
}

impl Tile {
    fn new(shape: &[u32], warps: u32) -> Tile {
        let mut b = Builder::new("combiner");
        b.set_warps(warps);
        let at = strided(&mut b, shape, &row_major(shape));
        Tile { b, shape: shape.to_vec(), at, args: Vec::new() }
    }

    fn numel(&self) -> usize {
        self.shape.iter().product::<u32>() as usize
    }

    fn input(&mut self, elem: Elem) -> Value {
        let seed = self.args.len() as u64 * 7 + self.numel() as u64;
        let x = self.b.ptr_param("x", elem, 16, None);
        self.args.push(Arg::buffer(moderate(elem, self.numel(), seed)));
        self.b.load(x, self.at, None, None, CacheHint::Default).unwrap()
    }

    fn output(&mut self, value: Value) {
        let ty = self.b.ty(value).clone();
        let elem = ty.elem().unwrap();
        let y = self.b.ptr_param("y", elem, 16, None);
        let shape: Vec<u32> = ty.shape.to_vec();
        let at = match shape.is_empty() {
            true => self.b.constant(Literal::int(Elem::I32, 0), &[]),
            false => strided(&mut self.b, &shape, &row_major(&shape)),
        };
        self.b.store(y, at, value, None, CacheHint::Default).unwrap();
        self.args.push(Arg::Buffer(Buffer::uninit(elem, ty.numel() as usize)));
    }

    fn case(self, name: String, tolerance: Tolerance) -> Case {
        Case { name, program: self.b.finish(), args: self.args, grid: [1; 3], tolerance, is_function: false }
    }
}

/// The largest element and its first place.
fn best(elem: Elem, shape: &[u32], axis: u8, warps: u32) -> Case {
    let mut t = Tile::new(shape, warps);
    let (v, at) = (t.input(elem), t.at);
    let most =
        t.b.reduce_with::<TypeError>(&[v, at], axis, |b, x, y| {
            let equal = b.map(ScalarFn::Eq, &[x[0], y[0]])?;
            let earlier = b.map(ScalarFn::Lt, &[x[1], y[1]])?;
            let tie = b.map(ScalarFn::And, &[equal, earlier])?;
            let more = b.map(ScalarFn::Gt, &[x[0], y[0]])?;
            let first = b.map(ScalarFn::Or, &[more, tie])?;
            (0..2).map(|i| b.map(ScalarFn::Select, &[first, x[i], y[i]])).collect()
        })
        .unwrap();
    most.into_iter().for_each(|v| t.output(v));
    t.case(format!("reduce_with {elem} {shape:?} axis {axis} warps {warps}"), Tolerance::Exact)
}

/// At every position the last element that is not zero, which depends on the order.
fn last_that_counts(elem: Elem, shape: &[u32], axis: u8, warps: u32, reverse: bool) -> Case {
    let mut t = Tile::new(shape, warps);
    let v = t.input(elem);
    let at = t.at;
    // Most elements count for nothing.
    let five = t.b.constant(Literal::int(Elem::I32, 5), shape);
    let rest = t.b.map(ScalarFn::RemTrunc, &[at, five]).unwrap();
    let zero = t.b.constant(Literal::int(Elem::I32, 0), shape);
    let kept = t.b.map(ScalarFn::Eq, &[rest, zero]).unwrap();
    let none = t.b.constant(Literal::of(elem, 0.0), shape);
    let v = t.b.map(ScalarFn::Select, &[kept, v, none]).unwrap();
    let last =
        t.b.scan::<TypeError>(&[v], axis, reverse, |b, x, y| {
            let zero = b.constant(Literal::of(elem, 0.0), &[]);
            let counts = b.map(ScalarFn::Ne, &[y[0], zero])?;
            Ok(vec![b.map(ScalarFn::Select, &[counts, y[0], x[0]])?])
        })
        .unwrap();
    t.output(last[0]);
    let way = if reverse { "reverse" } else { "" };
    t.case(format!("scan {elem} {shape:?} axis {axis} warps {warps} {way}"), Tolerance::Exact)
}

/// Compositions of affine maps, of which the order matters.
fn affine(shape: &[u32], axis: u8, warps: u32, reverse: bool) -> Case {
    let mut t = Tile::new(shape, warps);
    let (f, g) = (t.input(Elem::I64), t.input(Elem::U32));
    let compose = |b: &mut Builder, x: &[Value], y: &[Value]| -> Built<Vec<Value>> {
        let slope = b.map(ScalarFn::Mul, &[x[0], y[0]])?;
        let narrow = b.cast(y[0], Elem::U32)?;
        let moved = b.map(ScalarFn::Mul, &[x[1], narrow])?;
        Ok(vec![slope, b.map(ScalarFn::Add, &[moved, y[1]])?])
    };
    let scanned = t.b.scan::<TypeError>(&[f, g], axis, reverse, compose).unwrap();
    scanned.into_iter().for_each(|v| t.output(v));
    let way = if reverse { "reverse" } else { "" };
    t.case(format!("scan of maps {shape:?} axis {axis} warps {warps} {way}"), Tolerance::Exact)
}

/// A cumulated sum and its total, in floats.
fn cumulated(shape: &[u32], axis: u8, warps: u32) -> Case {
    let mut t = Tile::new(shape, warps);
    let v = t.input(Elem::F32);
    let add = |b: &mut Builder, x: &[Value], y: &[Value]| -> Built<Vec<Value>> {
        Ok(vec![b.map(ScalarFn::Add, &[x[0], y[0]])?])
    };
    let sums = t.b.scan::<TypeError>(&[v], axis, false, add).unwrap();
    t.output(sums[0]);
    let total = t.b.reduce_with::<TypeError>(&[v], axis, add).unwrap();
    t.output(total[0]);
    let close = Tolerance::Close { absolute: 1e-3, relative: 1e-4 };
    t.case(format!("cumulated {shape:?} axis {axis} warps {warps}"), close)
}
