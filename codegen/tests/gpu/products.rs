//! Matrix products of every kind, precision and shape.

use tilefuse_block::interp::Arg;
use tilefuse_block::{Builder, CacheHint, DotPrecision, Elem, Literal, ReduceFn, ScalarFn, TypeError, Value};

use crate::reductions::{row_major, strided};
use crate::run::{Case, Tolerance};
use crate::shapes::{finish, load, out_of, store};
use crate::values::moderate;

use DotPrecision::{Ieee, Tf32, Tf32x3};

const KINDS: [(Elem, DotPrecision); 8] = [
    (Elem::F16, Tf32),
    (Elem::Bf16, Ieee),
    (Elem::F32, Tf32),
    (Elem::F32, Tf32x3),
    (Elem::F32, Ieee),
    (Elem::F64, Tf32),
    (Elem::I8, Tf32),
    (Elem::U8, Tf32),
];

/// Rows, columns and the common extent.
const SHAPES: [[u32; 3]; 9] = [
    [64, 64, 64],
    [16, 8, 16],
    [32, 64, 32],
    [128, 16, 8],
    [16, 128, 128],
    [8, 8, 32],
    [1, 32, 64],
    [4, 4, 4],
    [2, 16, 1],
];

pub(crate) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for (i, (elem, precision)) in KINDS.into_iter().enumerate() {
        for (j, shape) in SHAPES.into_iter().enumerate() {
            let warps = 1 << ((i + j) % 4);
            let turned = [(i + j) % 2 == 1, (i + j) / 2 % 2 == 1];
            out.push(product(elem, precision, &[], shape, turned, warps));
            if (j == 0 && elem != Elem::F64) || j == 1 || j == 6 {
                out.push(product(elem, precision, &[4], shape, turned.map(|t| !t), 4));
            }
        }
        for rest in [0, 16, 19] {
            out.push(loop_of_products(elem, precision, [32, 32, 32], (rest, None), 4));
        }
    }
    out.push(loop_of_products(Elem::Bf16, Tf32, [128, 128, 32], (16, None), 8));
    out.push(loop_of_products(Elem::F16, Tf32, [64, 128, 64], (0, None), 4));
    // Of four and of eight warps together, with runs of 32, 64 and 128 bytes and of several panels.
    for (i, shape) in
        [[64, 16, 16], [64, 32, 32], [128, 128, 64], [64, 64, 128], [256, 16, 32]].into_iter().enumerate()
    {
        for turned in [[false, false], [false, true], [true, false], [true, true]] {
            let elem = if i % 2 == 0 { Elem::F16 } else { Elem::Bf16 };
            out.push(product(elem, Tf32, &[], shape, turned, if i == 2 || i == 3 { 8 } else { 4 }));
        }
    }
    for (shape, rest, warps) in [([64, 64, 32], 8, 4), ([128, 64, 64], 24, 8), ([64, 256, 16], 0, 8)] {
        out.push(loop_of_products(Elem::Bf16, Tf32, shape, (rest, None), warps));
    }
    // Rows of 16-bit results that begin at odd elements, at words and at pairs of words go through the memory of the stages.
    for (shape, columns, warps) in [([64, 64, 32], 61, 4), ([128, 128, 64], 101, 8), ([64, 256, 32], 250, 8)]
    {
        for elem in [Elem::F16, Elem::Bf16] {
            out.push(loop_of_products(elem, Tf32, shape, (8, Some(columns)), warps));
        }
    }
    for columns in [29, 30, 28] {
        out.push(loop_of_products(Elem::F16, Tf32, [32, 32, 16], (3, Some(columns)), 2));
    }
    // Results of 16 bits are stored, and added from, in pieces of 16 bytes, but where their rows are too short.
    for (elem, shape, warps) in [
        (Elem::Bf16, [64, 32, 16], 4),
        (Elem::F16, [128, 64, 16], 8),
        (Elem::Bf16, [64, 8, 16], 4),
        (Elem::F16, [32, 32, 16], 2),
        (Elem::I8, [32, 32, 32], 4),
    ] {
        out.push(with_epilogue(elem, shape, warps));
    }
    for stages in [1, 2, 8] {
        let mut case = loop_of_products(Elem::Bf16, Tf32, [32, 32, 16], (19, None), 4);
        case.name += &format!(" stages {stages}");
        case.program.stages = Some(stages);
        out.push(case);
    }
    for (elem, warps) in [(Elem::F16, 4), (Elem::Bf16, 2), (Elem::F32, 4)] {
        out.push(attention(elem, warps, [64, 32, 64]));
    }
    out.push(attention(Elem::Bf16, 8, [128, 64, 128]));
    out.push(attention(Elem::F16, 4, [64, 64, 64]));
    out
}

fn sum_of(elem: Elem) -> Elem {
    match elem {
        Elem::F64 => Elem::F64,
        Elem::I8 | Elem::U8 => Elem::I32,
        _ => Elem::F32,
    }
}

fn tolerance(elem: Elem, precision: DotPrecision) -> Tolerance {
    match (elem, precision) {
        (Elem::F32, Tf32) => Tolerance::Close { absolute: 0.1, relative: 1e-3 },
        (Elem::F64, _) => Tolerance::Close { absolute: 1e-12, relative: 1e-12 },
        (Elem::I8 | Elem::U8, _) => Tolerance::Exact,
        _ => Tolerance::Close { absolute: 1e-3, relative: 1e-4 },
    }
}

/// Loads a matrix of `shape` that lies row-major, or column-major where it is `turned`, in one of two ways.
fn matrix(b: &mut Builder, x: Value, shape: &[u32], turned: bool, by_permute: bool) -> Value {
    let rank = shape.len();
    let mut lies = shape.to_vec();
    if turned {
        lies.swap(rank - 1, rank - 2);
    }
    let mut strides = row_major(&lies);
    if turned && by_permute {
        let at = strided(b, &lies, &strides);
        let v = load(b, x, at);
        let mut perm: Vec<u8> = (0..rank as u8).collect();
        perm.swap(rank - 1, rank - 2);
        return b.permute(v, &perm).unwrap();
    }
    if turned {
        strides.swap(rank - 1, rank - 2);
    }
    let at = strided(b, shape, &strides);
    load(b, x, at)
}

fn product(
    elem: Elem,
    precision: DotPrecision,
    batch: &[u32],
    [m, n, k]: [u32; 3],
    turned: [bool; 2],
    warps: u32,
) -> Case {
    let mut b = Builder::new("product");
    b.set_warps(warps);
    let sum = sum_of(elem);
    let [x, y] = ["x", "y"].map(|name| b.ptr_param(name, elem, 16, None));
    let [c, z] = ["c", "z"].map(|name| b.ptr_param(name, sum, 16, None));
    let with = |tail: [u32; 2]| batch.iter().copied().chain(tail).collect::<Vec<u32>>();
    let v = matrix(&mut b, x, &with([m, k]), turned[0], m % 3 == 1);
    let w = matrix(&mut b, y, &with([k, n]), turned[1], m % 3 != 1);
    let shape = with([m, n]);
    let at = strided(&mut b, &shape, &row_major(&shape));
    let start = load(&mut b, c, at);
    let result = b.dot(v, w, start, precision).unwrap();
    store(&mut b, z, at, result);
    let count: u32 = batch.iter().product();
    let data = |elem, n: u32, seed| Arg::buffer(moderate(elem, (n * count) as usize, seed));
    let args =
        vec![data(elem, m * k, 1), data(elem, k * n, 2), data(sum, m * n, 3), out_of(sum, m * n * count)];
    let name = format!("dot {elem} {} {batch:?} {m}x{n}x{k} {turned:?} warps {warps}", precision.name());
    Case { tolerance: tolerance(elem, precision), ..finish(name, b, args) }
}

/// A product in the type of its operands, to which a matrix of that type is added.
fn with_epilogue(elem: Elem, [m, n, k]: [u32; 3], warps: u32) -> Case {
    let mut b = Builder::new("product");
    b.set_warps(warps);
    let sum = sum_of(elem);
    let [x, y, c, z] = ["x", "y", "c", "z"].map(|name| b.ptr_param(name, elem, 16, None));
    let v = matrix(&mut b, x, &[m, k], false, false);
    let w = matrix(&mut b, y, &[k, n], true, true);
    let zero = b.constant(Literal::of(sum, 0.0), &[m, n]);
    let product = b.dot(v, w, zero, Tf32).unwrap();
    let at = strided(&mut b, &[m, n], &row_major(&[m, n]));
    let added = load(&mut b, c, at);
    let added = b.cast(added, sum).unwrap();
    let result = b.map(ScalarFn::Add, &[product, added]).unwrap();
    let result = b.cast(result, elem).unwrap();
    store(&mut b, z, at, result);
    let data = |n: u32, seed| Arg::buffer(moderate(elem, n as usize, seed));
    let args = vec![data(m * k, 1), data(k * n, 2), data(m * n, 3), out_of(elem, m * n)];
    let name = format!("dot with epilogue {elem} {m}x{n}x{k} warps {warps}");
    let tolerance = match elem {
        Elem::I8 => Tolerance::Exact,
        _ => Tolerance::Close { absolute: 1e-2, relative: 1e-2 },
    };
    Case { tolerance, ..finish(name, b, args) }
}

/// A row of blocks by a column of blocks, with masked loads of a common extent that does not divide. The result is stored whole in
/// the type of sums, or in that of operands as a matrix of so many columns.
fn loop_of_products(
    elem: Elem,
    precision: DotPrecision,
    [m, n, k]: [u32; 3],
    (rest, columns): (u32, Option<u32>),
    warps: u32,
) -> Case {
    let common = 3 * k + rest;
    let mut b = Builder::new("loop_of_products");
    b.set_warps(warps);
    let sum = sum_of(elem);
    let [x, y] = ["x", "y"].map(|name| b.ptr_param(name, elem, 16, None));
    let out = if columns.is_some() { elem } else { sum };
    let z = b.ptr_param("z", out, 16, None);
    let int = |b: &mut Builder, v: u32, shape: &[u32]| b.constant(Literal::int(Elem::I32, v.into()), shape);
    let left = strided(&mut b, &[m, k], &[common.into(), 1]);
    let right = strided(&mut b, &[k, n], &[n.into(), 1]);
    let (left_common, right_common) = (strided(&mut b, &[m, k], &[0, 1]), strided(&mut b, &[k, n], &[1, 0]));
    let zero = b.constant(Literal::of(sum, 0.0), &[m, n]);
    let bounds = (int(&mut b, 0, &[]), int(&mut b, common, &[]), int(&mut b, k, &[]));
    let sums = b
        .for_loop::<TypeError>(bounds, &[zero], |b, i, carried| {
            let tile = |b: &mut Builder, ptr, shape: [u32; 2], at, along, step: u32| {
                let first = b.splat(i, &shape)?;
                let place = b.map(ScalarFn::Add, &[along, first])?;
                let bound = int(b, common, &shape);
                let mask = b.map(ScalarFn::Lt, &[place, bound])?;
                let step = int(b, step, &shape);
                let moved = b.map(ScalarFn::Mul, &[first, step])?;
                let at = b.map(ScalarFn::Add, &[at, moved])?;
                b.load(ptr, at, Some(mask), None, CacheHint::Default)
            };
            let v = tile(b, x, [m, k], left, left_common, 1)?;
            let w = tile(b, y, [k, n], right, right_common, n)?;
            Ok(vec![b.dot(v, w, carried[0], precision)?])
        })
        .unwrap();
    let stored = columns.unwrap_or(n);
    let at = strided(&mut b, &[m, n], &[stored.into(), 1]);
    let mask = columns.map(|columns| {
        let (column, bound) = (strided(&mut b, &[m, n], &[0, 1]), int(&mut b, columns, &[m, n]));
        b.map(ScalarFn::Lt, &[column, bound]).unwrap()
    });
    let result = b.cast(sums[0], out).unwrap();
    b.store(z, at, result, mask, CacheHint::Default).unwrap();
    let data = |n: u32, seed| Arg::buffer(moderate(elem, n as usize, seed));
    let args = vec![data(m * common, 4), data(common * n, 5), out_of(out, m * stored)];
    let shape = format!("{m}x{n}x{k}, {stored} columns");
    let name = format!("loop of dots {elem} {} {shape} and {rest} warps {warps}", precision.name());
    let tolerance = match columns {
        Some(_) => Tolerance::Close { absolute: 1e-2, relative: 1e-2 },
        None => tolerance(elem, precision),
    };
    Case { tolerance, ..finish(name, b, args) }
}

/// Attention of some queries over 128 keys, a chunk at a time, with the running maximum and sum of flash attention.
fn attention(elem: Elem, warps: u32, [queries, chunk, width]: [u32; 3]) -> Case {
    let keys = 128;
    let mut b = Builder::new("attention");
    b.set_warps(warps);
    let [q, k, v] = ["q", "k", "v"].map(|name| b.ptr_param(name, elem, 16, None));
    let z = b.ptr_param("z", Elem::F32, 16, None);
    let at = strided(&mut b, &[queries, width], &[width.into(), 1]);
    let query = load(&mut b, q, at);
    let float = |b: &mut Builder, x: f64, shape: &[u32]| b.constant(Literal::float(Elem::F32, x), shape);
    let wide = |b: &mut Builder, x: Value, n: u32| -> Result<Value, TypeError> {
        let x = b.expand_dims(x, 1)?;
        b.broadcast(x, &[queries, n])
    };
    let init = [
        float(&mut b, -1e30, &[queries]),
        float(&mut b, 0.0, &[queries]),
        float(&mut b, 0.0, &[queries, width]),
    ];
    let int = |b: &mut Builder, v: u32| b.constant(Literal::int(Elem::I32, v.into()), &[]);
    let bounds = (int(&mut b, 0), int(&mut b, keys), int(&mut b, chunk));
    let done = b
        .for_loop::<TypeError>(bounds, &init, |b, i, now| {
            let first = b.splat(i, &[chunk, width])?;
            let step = b.constant(Literal::int(Elem::I32, width.into()), &[chunk, width]);
            let first = b.map(ScalarFn::Mul, &[first, step])?;
            let within = strided(b, &[chunk, width], &[width.into(), 1]);
            let at = b.map(ScalarFn::Add, &[first, within])?;
            let (key, value) = (load(b, k, at), load(b, v, at));
            let key = b.permute(key, &[1, 0])?;
            let none = float(b, 0.0, &[queries, chunk]);
            let scores = b.dot(query, key, none, Tf32x3)?;
            let scale = float(b, 0.125, &[queries, chunk]);
            let scores = b.map(ScalarFn::Mul, &[scores, scale])?;
            let most = b.reduce(ReduceFn::Max, scores, 1, None)?;
            let most = b.map(ScalarFn::Max, &[now[0], most])?;
            let less = wide(b, most, chunk)?;
            let down = b.map(ScalarFn::Sub, &[scores, less])?;
            let weights = b.map(ScalarFn::Exp2, &[down])?;
            let shrink = b.map(ScalarFn::Sub, &[now[0], most])?;
            let shrink = b.map(ScalarFn::Exp2, &[shrink])?;
            let part = b.reduce(ReduceFn::Sum, weights, 1, None)?;
            let total = b.map(ScalarFn::Fma, &[now[1], shrink, part])?;
            let factor = wide(b, shrink, width)?;
            let old = b.map(ScalarFn::Mul, &[now[2], factor])?;
            let weights = b.cast(weights, elem)?;
            Ok(vec![most, total, b.dot(weights, value, old, Tf32x3)?])
        })
        .unwrap();
    let total = wide(&mut b, done[1], width).unwrap();
    let result = b.map(ScalarFn::Div, &[done[2], total]).unwrap();
    store(&mut b, z, at, result);
    let data = |n: u32, seed| Arg::buffer(moderate(elem, n as usize, seed));
    let args = vec![
        data(queries * width, 1),
        data(keys * width, 2),
        data(keys * width, 3),
        out_of(Elem::F32, queries * width),
    ];
    let rounding = if elem == Elem::F32 { 1e-4 } else { 2e-2 };
    let tolerance = Tolerance::Close { absolute: rounding, relative: rounding };
    Case { tolerance, ..finish(format!("attention {elem} {queries}x{chunk}x{width} warps {warps}"), b, args) }
}
