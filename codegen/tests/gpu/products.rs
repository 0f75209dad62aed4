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
    for (blocks, warps) in [([64, 64], 4), ([128, 128], 4), ([128, 64], 8), ([128, 256], 8)] {
        for sizes in [[272, 272, 144], [16, 32, 16], [144, 528, 1040], [48, 64, 0]] {
            out.push(of_parameters(Elem::F16, blocks, warps, sizes));
        }
    }
    for at in [0, 8, 3] {
        out.push(grouped(&[[70, 72, 136], [1, 64, 8], [130, 24, 64]], at));
    }
    out.push(grouped(&[[64, 64, 64], [33, 61, 29], [65, 128, 200], [7, 9, 0]], 0));
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

/// Products of several sizes, which are read from memory with where their matrices begin, by instances that take one block after
/// another: the first group of matrices begins at `at` in each buffer. Those in rows of a multiple of 16 bytes at such an address
/// have a loop of their own.
fn grouped(sizes: &[[usize; 3]], at: usize) -> Case {
    let (mut table, mut ends) = (Vec::new(), [at; 3]);
    for &[m, n, k] in sizes {
        let begins = ends;
        table.extend([m, n, k].iter().chain(&begins).map(|&number| number as i64));
        ends = [begins[0] + m * k, begins[1] + k * n, begins[2] + m * n];
    }
    let args = vec![
        Arg::buffer(moderate(Elem::F16, ends[0], 1)),
        Arg::buffer(moderate(Elem::F16, ends[1], 2)),
        Arg::buffer(moderate(Elem::F16, ends[2], 3)),
        Arg::buffer(table),
        Arg::int(Elem::I64, sizes.len() as i64),
    ];
    Case {
        name: format!("grouped products of {sizes:?} from {at} on"),
        program: tilefuse_block::parse_valid(include_str!("grouped.tile")).unwrap(),
        args,
        grid: [3, 1, 1],
        tolerance: Tolerance::Close { absolute: 1e-2, relative: 1e-2 },
        is_function: false,
    }
}

/// Two products of one right operand by hand, as a kernel of descriptors is: sizes and distances of rows and of the two left operands
/// are parameters, and blocks end within them.
fn of_parameters(elem: Elem, [bm, bn]: [u32; 2], warps: u32, [m, n, k]: [u32; 3]) -> Case {
    let (stages, least) = (4, k.min(1));
    let text = format!(
        "kernel @matmul(%a: ptr<{elem}> align(16), %b: ptr<{elem}> align(16), %c: ptr<{elem}> align(16), %m: i64, %n: i64, %k: i64, %each: i64) warps({warps}) stages({stages}) {{
          %rows = assume multiple_of %m 16
          %0 = assume between %rows 1 2147483647
          %columns = assume multiple_of %n 16
          %1 = assume between %columns 1 2147483647
          %terms = assume multiple_of %k 16
          %2 = assume between %terms {least} 2147483647
          %apart = assume multiple_of %each 16
          %distance = assume between %apart {least} 2147483647
          %id = program_id 1
          %member = cast %id i64
          %begin = map mul %member, %distance
          %begins = splat %begin [{bm}]
          %results = map mul %0, %1
          %own = map mul %member, %results
          %owns = splat %own [{bm}]
          %3 = const {bm} : i64
          %4 = map rem_trunc %0, %3
          %5 = const 0 : i64
          %6 = map ne %4, %5
          %7 = cast %6 i64
          %8 = map div_trunc %0, %3
          %9 = map add %8, %7
          %10 = cast %9 i32
          %11 = const {bn} : i64
          %12 = map rem_trunc %1, %11
          %13 = map ne %12, %5
          %14 = cast %13 i64
          %15 = map div_trunc %1, %11
          %16 = map add %15, %14
          %17 = cast %16 i32
          %18 = program_id 0
          %19 = map div_trunc %18, %17
          %20 = map rem_trunc %18, %17
          %21 = map mul %19, %17
          %22 = map add %21, %20
          %23 = const 8 : i32
          %24 = map mul %17, %23
          %25 = map div_trunc %22, %24
          %26 = map mul %25, %23
          %27 = map sub %10, %26
          %28 = map min %27, %23
          %29 = map rem_trunc %22, %24
          %30 = map rem_trunc %29, %28
          %31 = map add %26, %30
          %32 = map div_trunc %29, %28
          %33 = const 0.0 : tile<{bm}x{bn}xf32>
          %34 = map max %2, %5
          %35 = const 64 : i64
          %36 = map rem_trunc %34, %35
          %37 = map ne %36, %5
          %38 = cast %37 i64
          %39 = map div_trunc %34, %35
          %40 = map add %39, %38
          %41 = const 2147483647 : i64
          %42 = map min %40, %41
          %43 = cast %42 i32
          %44 = const 0 : i32
          %45 = const 1 : i32
          %46 = const {bm} : i32
          %47 = map mul %31, %46
          %48 = cast %47 i64
          %49 = range 0 {bm}
          %50 = cast %49 i64
          %51 = splat %48 [{bm}]
          %52 = map add %51, %50
          %53 = const 0 : tile<{bm}xi64>
          %54 = map ge %52, %53
          %55 = splat %0 [{bm}]
          %56 = map lt %52, %55
          %57 = map and %54, %56
          %58 = range 0 64
          %59 = cast %58 i64
          %60 = splat %2 [64]
          %61 = splat %2 [{bm}]
          %62 = map mul %52, %61
          %of_member = map add %62, %begins
          %63 = expand_dims %of_member axis 1
          %64 = broadcast %63 [{bm}, 64]
          %65 = expand_dims %57 axis 1
          %66 = broadcast %65 [{bm}, 64]
          %67 = const {bn} : i32
          %68 = map mul %32, %67
          %69 = cast %68 i64
          %70 = range 0 {bn}
          %71 = cast %70 i64
          %72 = splat %69 [{bn}]
          %73 = map add %72, %71
          %74 = const 0 : tile<{bn}xi64>
          %75 = map ge %73, %74
          %76 = splat %1 [{bn}]
          %77 = map lt %73, %76
          %78 = map and %75, %77
          %79 = splat %1 [64]
          %80 = expand_dims %73 axis 0
          %81 = broadcast %80 [64, {bn}]
          %82 = expand_dims %78 axis 0
          %83 = broadcast %82 [64, {bn}]
          %84 = for %85 in %44..%43 step %45 with (%86 = %33) {{
            %87 = cast %85 i64
            %88 = map mul %87, %35
            %89 = splat %88 [64]
            %90 = map add %89, %59
            %91 = map lt %90, %60
            %92 = expand_dims %90 axis 0
            %93 = broadcast %92 [{bm}, 64]
            %94 = map add %64, %93
            %95 = expand_dims %91 axis 0
            %96 = broadcast %95 [{bm}, 64]
            %97 = map and %66, %96
            %98 = load %a, %94, mask %97
            %99 = map mul %90, %79
            %100 = expand_dims %99 axis 1
            %101 = broadcast %100 [64, {bn}]
            %102 = expand_dims %91 axis 1
            %103 = broadcast %102 [64, {bn}]
            %104 = map add %101, %81
            %105 = map and %103, %83
            %106 = load %b, %104, mask %105
            %107 = dot %98, %106, %86
            yield %107
          }}
          %108 = map ge %84, %33
          %109 = const 0.01 : tile<{bm}x{bn}xf32>
          %110 = map mul %84, %109
          %111 = map select %108, %84, %110
          %112 = cast %111 {elem}
          %113 = splat %1 [{bm}]
          %114 = map mul %52, %113
          %to_member = map add %114, %owns
          %115 = expand_dims %to_member axis 1
          %116 = broadcast %115 [{bm}, {bn}]
          %117 = broadcast %65 [{bm}, {bn}]
          %118 = broadcast %80 [{bm}, {bn}]
          %119 = map add %116, %118
          %120 = broadcast %82 [{bm}, {bn}]
          %121 = map and %117, %120
          store %c, %119, %112, mask %121
        }}"
    );
    let program = tilefuse_block::parse_valid(&text).unwrap();
    let data = |count: u32, seed| Arg::buffer(moderate(elem, count as usize, seed));
    let size = |n: u32| Arg::Scalar(Literal::int(Elem::I64, i64::from(n)));
    let pointers = [data(2 * m * k, 1), data(k * n, 2), out_of(elem, 2 * m * n)];
    let args = pointers.into_iter().chain([m, n, k, m * k].map(size)).collect();
    Case {
        name: format!("products {elem} of parameters {m}x{n}x{k}, blocks of {bm}x{bn}, warps {warps}"),
        program,
        args,
        grid: [m.div_ceil(bm) * n.div_ceil(bn), 2, 1],
        tolerance: Tolerance::Close { absolute: 2e-2, relative: 2e-2 },
        is_function: false,
    }
}
