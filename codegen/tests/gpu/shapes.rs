//! Views, changes of layout, gathers, loops, and memory that one instance reads and writes.

use tilefuse_block::interp::{Arg, Buffer};
use tilefuse_block::{Builder, CacheHint, Data, Elem, Literal, ReduceFn, ScalarFn, TypeError, Value};

use crate::reductions::{offsets, row_major, strided};
use crate::run::{Case, Tolerance};
use crate::values::moderate;

pub(crate) const ELEMS: [Elem; 6] = [Elem::F32, Elem::Bf16, Elem::I64, Elem::Bool, Elem::I8, Elem::F64];

pub(crate) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for (i, elem) in ELEMS.into_iter().enumerate() {
        for (j, shape) in
            [&[32u32, 64][..], &[4, 8, 16], &[128, 2], &[16, 16], &[2, 1, 2, 64]].into_iter().enumerate()
        {
            let warps = 1 << ((i + j) % 4);
            out.push(permuted(elem, shape, warps));
            out.push(transposed_loads(elem, shape, warps));
            out.push(reshaped(elem, shape, warps));
        }
        out.push(gather(elem));
        out.push(in_place(elem));
        out.push(fallback(elem));
        out.push(scalars(elem));
        out.push(divided(elem));
    }
    for elem in [Elem::F32, Elem::I64, Elem::F16] {
        for (cols, chunk, warps) in [(1024, 256, 4), (1000, 128, 2), (64, 512, 8)] {
            out.push(row_loop(elem, cols, chunk, warps));
        }
    }
    out.push(nested_loops());
    out.push(empty_loop());
    out.push(loop_through_memory());
    out
}

pub(crate) fn finish(name: String, b: Builder, args: Vec<Arg>) -> Case {
    Case { name, program: b.finish(), args, grid: [1; 3], tolerance: Tolerance::Exact, is_function: false }
}

fn int(b: &mut Builder, value: i64) -> Value {
    b.constant(Literal::int(Elem::I32, value), &[])
}

pub(crate) fn load(b: &mut Builder, x: Value, at: Value) -> Value {
    b.load(x, at, None, None, CacheHint::Default).unwrap()
}

pub(crate) fn store(b: &mut Builder, y: Value, at: Value, v: Value) {
    b.store(y, at, v, None, CacheHint::Default).unwrap();
}

pub(crate) fn out_of(elem: Elem, n: u32) -> Arg {
    Arg::Buffer(Buffer::uninit(elem, n as usize))
}

/// Loads a row-major tile, reverses its axes, stores it row-major.
fn permuted(elem: Elem, shape: &[u32], warps: u32) -> Case {
    let numel: u32 = shape.iter().product();
    let mut b = Builder::new("permuted");
    b.set_warps(warps);
    let x = b.ptr_param("x", elem, 16, None);
    let y = b.ptr_param("y", elem, 16, None);
    let at = strided(&mut b, shape, &row_major(shape));
    let v = load(&mut b, x, at);
    let perm: Vec<u8> = (0..shape.len() as u8).rev().collect();
    let v = b.permute(v, &perm).unwrap();
    let turned: Vec<u32> = shape.iter().rev().copied().collect();
    let at = strided(&mut b, &turned, &row_major(&turned));
    store(&mut b, y, at, v);
    let args = vec![Arg::buffer(moderate(elem, numel as usize, 5)), out_of(elem, numel)];
    finish(format!("permuted {elem} {shape:?} warps {warps}"), b, args)
}

/// Compares a tile that lies row-major with one that lies column-major.
fn transposed_loads(elem: Elem, shape: &[u32], warps: u32) -> Case {
    let numel: u32 = shape.iter().product();
    let mut b = Builder::new("transposed_loads");
    b.set_warps(warps);
    let [x, y] = ["x", "y"].map(|name| b.ptr_param(name, elem, 16, None));
    let z = b.ptr_param("z", Elem::Bool, 16, None);
    let at = strided(&mut b, shape, &row_major(shape));
    let turned: Vec<u32> = shape.iter().rev().copied().collect();
    let columns: Vec<i64> = row_major(&turned).into_iter().rev().collect();
    let other = strided(&mut b, shape, &columns);
    let v = load(&mut b, x, at);
    let w = load(&mut b, y, other);
    let less = b.map(ScalarFn::Lt, &[v, w]).unwrap();
    store(&mut b, z, at, less);
    let data = |seed| Arg::buffer(moderate(elem, numel as usize, seed));
    finish(
        format!("transposed {elem} {shape:?} warps {warps}"),
        b,
        vec![data(1), data(2), out_of(Elem::Bool, numel)],
    )
}

/// Reshapes to two axes, takes the largest along the last, and stores both.
fn reshaped(elem: Elem, shape: &[u32], warps: u32) -> Case {
    let numel: u32 = shape.iter().product();
    let (rows, cols) = (numel / 32, 32);
    let mut b = Builder::new("reshaped");
    b.set_warps(warps);
    let x = b.ptr_param("x", elem, 16, None);
    let y = b.ptr_param("y", elem, 16, None);
    let z = b.ptr_param("z", elem, 16, None);
    let at = strided(&mut b, shape, &row_major(shape));
    let v = load(&mut b, x, at);
    let v = b.reshape(v, &[rows, cols]).unwrap();
    let combine = if elem == Elem::Bool { ReduceFn::Xor } else { ReduceFn::Max };
    let most = b.reduce(combine, v, 1, None).unwrap();
    let at = offsets(&mut b, &[rows]);
    store(&mut b, y, at, most);
    let most = b.reduce(combine, v, 0, None).unwrap();
    let at = offsets(&mut b, &[cols]);
    store(&mut b, z, at, most);
    let args = vec![Arg::buffer(moderate(elem, numel as usize, 6)), out_of(elem, rows), out_of(elem, cols)];
    finish(format!("reshaped {elem} {shape:?} warps {warps}"), b, args)
}

/// Reads rows whose numbers are read themselves.
fn gather(elem: Elem) -> Case {
    let mut b = Builder::new("gather");
    let table = b.ptr_param("table", elem, 16, None);
    let ids = b.ptr_param("ids", Elem::I64, 16, None);
    let y = b.ptr_param("y", elem, 16, None);
    let shape = [8, 64];
    let row = b.range(0, 8).unwrap();
    let id = load(&mut b, ids, row);
    let width = b.constant(Literal::int(Elem::I64, 64), &[8]);
    let start = b.map(ScalarFn::Mul, &[id, width]).unwrap();
    let start = b.expand_dims(start, 1).unwrap();
    let start = b.broadcast(start, &shape).unwrap();
    let col = b.range(0, 64).unwrap();
    let col = b.cast(col, Elem::I64).unwrap();
    let col = b.expand_dims(col, 0).unwrap();
    let col = b.broadcast(col, &shape).unwrap();
    let at = b.map(ScalarFn::Add, &[start, col]).unwrap();
    let v = load(&mut b, table, at);
    let to = strided(&mut b, &shape, &row_major(&shape));
    store(&mut b, y, to, v);
    let ids = Data::I64(vec![3, 0, 9, 9, 1, 7, 2, 5]);
    let args = vec![Arg::buffer(moderate(elem, 640, 7)), Arg::buffer(ids), out_of(elem, 512)];
    finish(format!("gather {elem}"), b, args)
}

/// Turns a square over in place: every thread must have read before one writes.
fn in_place(elem: Elem) -> Case {
    let mut b = Builder::new("in_place");
    let x = b.ptr_param("x", elem, 16, None);
    let at = strided(&mut b, &[64, 64], &[64, 1]);
    let turned = strided(&mut b, &[64, 64], &[1, 64]);
    let v = load(&mut b, x, at);
    store(&mut b, x, turned, v);
    let again = load(&mut b, x, at);
    let y = b.ptr_param("y", elem, 16, None);
    store(&mut b, y, at, again);
    finish(format!("in place {elem}"), b, vec![Arg::buffer(moderate(elem, 4096, 8)), out_of(elem, 4096)])
}

/// Masks that end within a vector, with and without fallback values.
fn fallback(elem: Elem) -> Case {
    let mut b = Builder::new("fallback");
    let x = b.ptr_param("x", elem, 16, None);
    let [y, z] = ["y", "z"].map(|name| b.ptr_param(name, elem, 16, None));
    let at = b.range(0, 1024).unwrap();
    let bound = b.constant(Literal::int(Elem::I32, 777), &[1024]);
    let mask = b.map(ScalarFn::Lt, &[at, bound]).unwrap();
    let other = b.constant(Literal::of(elem, 1.0), &[1024]);
    let v = b.load(x, at, Some(mask), Some(other), CacheHint::Streaming).unwrap();
    store(&mut b, y, at, v);
    let bound = b.constant(Literal::int(Elem::I32, 512), &[1024]);
    let mask = b.map(ScalarFn::Ge, &[at, bound]).unwrap();
    let back = b.constant(Literal::int(Elem::I32, 512), &[1024]);
    let lower = b.map(ScalarFn::Sub, &[at, back]).unwrap();
    let v = b.load(x, lower, Some(mask), None, CacheHint::Keep).unwrap();
    store(&mut b, z, at, v);
    let args = vec![Arg::buffer(moderate(elem, 777, 4)), out_of(elem, 1024), out_of(elem, 1024)];
    finish(format!("fallback {elem}"), b, args)
}

/// Scalars as parameters, loaded, computed with and stored.
fn scalars(elem: Elem) -> Case {
    let mut b = Builder::new("scalars");
    let x = b.ptr_param("x", elem, 1.max(elem.bytes()), None);
    let s = b.scalar_param("s", elem);
    let i = b.scalar_param("i", Elem::I32);
    let y = b.ptr_param("y", elem, elem.bytes(), None);
    let v = load(&mut b, x, i);
    let most = b.map(if elem == Elem::Bool { ScalarFn::Xor } else { ScalarFn::Max }, &[v, s]).unwrap();
    store(&mut b, y, i, most);
    let again = load(&mut b, y, i);
    let first = int(&mut b, 0);
    store(&mut b, y, first, again);
    let all = b.splat(again, &[16]).unwrap();
    let range = b.range(2, 16).unwrap();
    store(&mut b, y, range, all);
    let scalar = moderate(elem, 1, 99).get(0).unwrap();
    let args = vec![
        Arg::buffer(moderate(elem, 3, 11)),
        Arg::Scalar(scalar),
        Arg::int(Elem::I32, 1),
        Arg::Buffer(Buffer::zeros(elem, 18)),
    ];
    finish(format!("scalars {elem}"), b, args)
}

/// Offsets with quotients and remainders, as views that are folded into an index have them.
fn divided(elem: Elem) -> Case {
    let mut b = Builder::new("divided");
    b.set_warps(2);
    let x = b.ptr_param("x", elem, 16, None);
    let y = b.ptr_param("y", elem, 16, None);
    let at = b.range(0, 1024).unwrap();
    let c = |b: &mut Builder, v: i64| b.constant(Literal::int(Elem::I32, v), &[1024]);
    // A [16, 4, 16] tensor read as its [4, 16, 16] transpose.
    let sixteen = c(&mut b, 16);
    let k = b.map(ScalarFn::RemFloor, &[at, sixteen]).unwrap();
    let rest = b.map(ScalarFn::DivFloor, &[at, sixteen]).unwrap();
    let i = b.map(ScalarFn::RemTrunc, &[rest, sixteen]).unwrap();
    let j = b.map(ScalarFn::DivTrunc, &[rest, sixteen]).unwrap();
    let wide = c(&mut b, 64);
    let i = b.map(ScalarFn::Mul, &[i, wide]).unwrap();
    let j = b.map(ScalarFn::Mul, &[j, sixteen]).unwrap();
    let sum = b.map(ScalarFn::Add, &[i, j]).unwrap();
    let from = b.map(ScalarFn::Add, &[sum, k]).unwrap();
    let v = load(&mut b, x, from);
    store(&mut b, y, at, v);
    finish(format!("divided {elem}"), b, vec![Arg::buffer(moderate(elem, 1024, 3)), out_of(elem, 1024)])
}

/// The largest of each row, a chunk at a time; then the rows less it, a chunk at a time.
fn row_loop(elem: Elem, cols: u32, chunk: u32, warps: u32) -> Case {
    let mut b = Builder::new("row_loop");
    b.set_warps(warps);
    let x = b.ptr_param("x", elem, 16, None);
    let y = b.ptr_param("y", elem, 16, None);
    let shape = [4, chunk];
    let base = strided(&mut b, &shape, &[i64::from(cols), 1]);
    let col = strided(&mut b, &shape, &[0, 1]);
    let neutral = ReduceFn::Max.neutral(elem);
    let init = b.constant(neutral, &[4]);
    let at = |b: &mut Builder, i: Value| -> Result<(Value, Value), TypeError> {
        let i = b.splat(i, &shape)?;
        let at = b.map(ScalarFn::Add, &[base, i])?;
        let col = b.map(ScalarFn::Add, &[col, i])?;
        let bound = b.constant(Literal::int(Elem::I32, i64::from(cols)), &shape);
        Ok((at, b.map(ScalarFn::Lt, &[col, bound])?))
    };
    let (lo, hi, step) = (int(&mut b, 0), int(&mut b, i64::from(cols)), int(&mut b, i64::from(chunk)));
    let most = b
        .for_loop::<TypeError>((lo, hi, step), &[init], |b, i, carried| {
            let (at, mask) = at(b, i)?;
            let v = b.load(x, at, Some(mask), None, CacheHint::Default)?;
            let r = b.reduce(ReduceFn::Max, v, 1, Some(mask))?;
            Ok(vec![b.map(ScalarFn::Max, &[carried[0], r])?])
        })
        .unwrap();
    let most = b.expand_dims(most[0], 1).unwrap();
    let most = b.broadcast(most, &shape).unwrap();
    b.for_loop::<TypeError>((lo, hi, step), &[], |b, i, _| {
        let (at, mask) = at(b, i)?;
        let v = b.load(x, at, Some(mask), None, CacheHint::Default)?;
        let v = b.map(ScalarFn::Sub, &[v, most])?;
        b.store(y, at, v, Some(mask), CacheHint::Default)?;
        Ok(vec![])
    })
    .unwrap();
    let args = vec![Arg::buffer(moderate(elem, 4 * cols as usize, 13)), out_of(elem, 4 * cols)];
    finish(format!("row loop {elem} {cols} by {chunk} warps {warps}"), b, args)
}

/// Carries a tile and a scalar through two loops, the inner one's bound being the outer one's index.
fn nested_loops() -> Case {
    let mut b = Builder::new("nested");
    let y = b.ptr_param("y", Elem::I32, 16, None);
    let n = b.scalar_param("n", Elem::I32);
    let tile = b.range(0, 256).unwrap();
    let (zero, one, two) = (int(&mut b, 0), int(&mut b, 1), int(&mut b, 2));
    let out = b
        .for_loop::<TypeError>((zero, n, two), &[tile, zero], |b, i, carried| {
            let inner = b.for_loop::<TypeError>((zero, i, one), carried, |b, j, inner| {
                let step = b.splat(j, &[256])?;
                let tile = b.map(ScalarFn::Add, &[inner[0], step])?;
                let count = b.map(ScalarFn::Add, &[inner[1], one])?;
                Ok(vec![tile, count])
            })?;
            // Carried values change places in type only where they agree: the count goes into the tile.
            let count = b.splat(inner[1], &[256])?;
            Ok(vec![b.map(ScalarFn::Xor, &[inner[0], count])?, inner[1]])
        })
        .unwrap();
    store(&mut b, y, tile, out[0]);
    let last = int(&mut b, 256);
    store(&mut b, y, last, out[1]);
    finish("nested loops".to_owned(), b, vec![out_of(Elem::I32, 257), Arg::int(Elem::I32, 11)])
}

/// A loop that never runs, and one whose last step would overflow.
fn empty_loop() -> Case {
    let mut b = Builder::new("empty");
    let y = b.ptr_param("y", Elem::I32, 16, None);
    let (lo, hi, step) = (int(&mut b, 5), int(&mut b, 5), int(&mut b, 3));
    let never = b.for_loop::<TypeError>((lo, hi, step), &[lo], |_, i, _| Ok(vec![i])).unwrap();
    let (lo, hi, step) =
        (int(&mut b, i64::from(i32::MAX) - 5), int(&mut b, i64::from(i32::MAX)), int(&mut b, 4));
    let last = b.for_loop::<TypeError>((lo, hi, step), &[lo], |_, i, _| Ok(vec![i])).unwrap();
    let (zero, one) = (int(&mut b, 0), int(&mut b, 1));
    store(&mut b, y, zero, never[0]);
    store(&mut b, y, one, last[0]);
    finish("empty loop".to_owned(), b, vec![out_of(Elem::I32, 2)])
}

/// Each iteration reads what other threads wrote in the one before.
fn loop_through_memory() -> Case {
    let mut b = Builder::new("through_memory");
    b.set_warps(8);
    let x = b.ptr_param("x", Elem::I32, 16, None);
    let range = b.range(0, 512).unwrap();
    let last = b.constant(Literal::int(Elem::I32, 511), &[512]);
    let turned = b.map(ScalarFn::Sub, &[last, range]).unwrap();
    let (lo, hi, step) = (int(&mut b, 0), int(&mut b, 7), int(&mut b, 1));
    b.for_loop::<TypeError>((lo, hi, step), &[], |b, i, _| {
        let v = b.load(x, turned, None, None, CacheHint::Default)?;
        let i = b.splat(i, &[512])?;
        let v = b.map(ScalarFn::Add, &[v, i])?;
        b.store(x, range, v, None, CacheHint::Default)?;
        Ok(vec![])
    })
    .unwrap();
    finish("loop through memory".to_owned(), b, vec![Arg::buffer(moderate(Elem::I32, 512, 21))])
}
