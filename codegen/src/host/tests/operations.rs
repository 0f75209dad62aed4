//! Operations on whole tiles and those that pick elements, on every kind and rank that they take, alone and in a loop.

use tilefuse_block::{
    AtomicFn, Builder, CacheHint, DotPrecision, Elem, Literal, MemoryOrder, MemoryScope, ScalarFn, TypeError,
    Value,
};

use super::functions::{Case, data};
use super::*;

const SHAPES: [&[u32]; 9] =
    [&[1], &[2], &[64], &[4, 8], &[8, 1], &[32, 4], &[2, 4, 8], &[2, 1, 4, 16], &[2, 2, 2, 2, 4]];

/// The kinds that targets compute with.
fn kinds() -> impl Iterator<Item = Elem> {
    Elem::ALL.into_iter().filter(|e| !e.is_small_float())
}

/// A third of the shapes for the kind at a position; together all kinds take each several times.
fn shapes(kind: usize) -> impl Iterator<Item = &'static [u32]> {
    SHAPES.into_iter().skip(kind % 3).step_by(3)
}

/// Does something three times to a carried tile.
fn repeated(
    case: &mut Case,
    init: Value,
    step: impl Fn(&mut Builder, Value) -> Result<Value, TypeError>,
) -> Value {
    let bound = |b: &mut Builder, n| b.constant(Literal::int(Elem::I32, n), &[]);
    let bounds = (bound(&mut case.b, 0), bound(&mut case.b, 3), bound(&mut case.b, 1));
    let body = |b: &mut Builder, _: Value, carried: &[Value]| step(b, carried[0]).map(|v| vec![v]);
    case.b.for_loop(bounds, &[init], body).unwrap()[0]
}

#[test]
fn joins_and_splits() {
    for (k, elem) in kinds().enumerate() {
        for shape in shapes(k).filter(|s| s.len() < 5) {
            let mut case = Case::new(shape);
            let (x, y) = (case.input(elem, 1), case.input(elem, 5));
            let both = case.b.join(x, y).unwrap();
            case.output(both);
            let (even, odd) = case.b.split(both).unwrap();
            case.output(even);
            case.output(odd);
            let twisted: Vec<u8> = (0..=shape.len() as u8).rev().collect();
            let twisted = case.b.permute(both, &twisted).unwrap();
            case.output(twisted);
            let last = repeated(&mut case, x, |b, v| {
                let both = b.join(v, y)?;
                let flat = b.reshape(both, &[2, shape.iter().product()])?;
                let turned = b.permute(flat, &[1, 0])?;
                let (first, _) = b.split(turned)?;
                b.reshape(first, shape)
            });
            case.output(last);
            case.check(0.0);
        }
    }
}

#[test]
fn splits_what_it_reads() {
    for elem in kinds() {
        for shape in [&[2u32][..], &[8, 2], &[4, 16, 2], &[2, 2]] {
            let mut case = Case::new(shape);
            let x = case.input(elem, 3);
            let (first, second) = case.b.split(x).unwrap();
            case.output(second);
            case.output(first);
            let chosen = case.b.join(second, first).unwrap();
            case.output(chosen);
            case.check(0.0);
        }
    }
}

fn gathers(elem: Elem, index: Elem, shape: &[u32], axis: usize, extent: u32) {
    let mut case = Case::new(shape);
    let x = case.input(elem, 1);
    let mut to = shape.to_vec();
    to[axis] = extent;
    let i = case.tile(data(index, to.iter().product::<u32>() as usize, 3), &to);
    let picked = case.b.gather(x, i, axis as u8).unwrap();
    case.output(picked);
    let zero = case.b.constant(Literal::int(index, 0), &to);
    let first = case.b.gather(x, zero, axis as u8).unwrap();
    case.output(first);
    if to == shape {
        let last = repeated(&mut case, x, |b, v| b.gather(v, i, axis as u8));
        case.output(last);
    }
    case.check(0.0);
}

#[test]
fn gathers_along_every_axis() {
    for (k, elem) in kinds().enumerate() {
        for shape in shapes(k) {
            for axis in 0..shape.len() {
                let index = if (k + axis) % 2 == 0 { Elem::I32 } else { Elem::I64 };
                gathers(elem, index, shape, axis, shape[axis]);
                gathers(elem, index, shape, axis, [16, 1][(k + axis) % 3 % 2]);
            }
        }
    }
}

/// The first of what is largest, and where.
fn argmax(b: &mut Builder, x: &[Value], y: &[Value]) -> Result<Vec<Value>, TypeError> {
    let more = b.map(ScalarFn::Gt, &[y[0], x[0]])?;
    let same = b.map(ScalarFn::Eq, &[y[0], x[0]])?;
    let before = b.map(ScalarFn::Lt, &[y[1], x[1]])?;
    let tie = b.map(ScalarFn::And, &[same, before])?;
    let second = b.map(ScalarFn::Or, &[more, tie])?;
    let value = b.map(ScalarFn::Select, &[second, y[0], x[0]])?;
    Ok(vec![value, b.map(ScalarFn::Select, &[second, y[1], x[1]])?])
}

/// The composition of linear functions, which is not commutative.
fn compose(b: &mut Builder, x: &[Value], y: &[Value]) -> Result<Vec<Value>, TypeError> {
    let slope = b.map(ScalarFn::Mul, &[x[0], y[0]])?;
    let moved = b.map(ScalarFn::Mul, &[y[0], x[1]])?;
    Ok(vec![slope, b.map(ScalarFn::Add, &[moved, y[1]])?])
}

fn sum(b: &mut Builder, x: &[Value], y: &[Value]) -> Result<Vec<Value>, TypeError> {
    let function = if b.ty(x[0]).elem() == Some(Elem::Bool) { ScalarFn::Xor } else { ScalarFn::Add };
    Ok(vec![b.map(function, &[x[0], y[0]])?])
}

/// The element of the lower of two places, always.
fn first(_: &mut Builder, x: &[Value], _: &[Value]) -> Result<Vec<Value>, TypeError> {
    Ok(x.to_vec())
}

#[test]
fn combines_with_regions() {
    for (k, elem) in kinds().enumerate() {
        for shape in shapes(k) {
            let mut case = Case::new(shape);
            let x = case.input(elem, 1);
            let places = case.b.range(0, shape.iter().product()).unwrap();
            let places = case.b.reshape(places, shape).unwrap();
            for axis in 0..shape.len() as u8 {
                for result in case.b.reduce_with(&[x, places], axis, argmax).unwrap() {
                    case.output(result);
                }
                for backwards in [false, true] {
                    for result in case.b.scan(&[x, places], axis, backwards, argmax).unwrap() {
                        case.output(result);
                    }
                    let sums = case.b.scan(&[x], axis, backwards, sum).unwrap();
                    case.output(sums[0]);
                    if elem != Elem::Bool {
                        for result in case.b.scan(&[x, x], axis, backwards, compose).unwrap() {
                            case.output(result);
                        }
                    }
                }
                let sums = case.b.reduce_with(&[x], axis, sum).unwrap();
                case.output(sums[0]);
                let same = case.b.scan(&[x], axis, false, first).unwrap();
                case.output(same[0]);
            }
            let last = repeated(&mut case, x, |b, v| Ok(b.scan(&[v], 0, true, sum)?[0]));
            case.output(last);
            case.check(0.0);
        }
    }
}

#[test]
fn counts_into_histograms() {
    for elem in kinds().filter(|e| e.is_int()) {
        for (len, bins) in [(1u32, 1u32), (64, 1), (64, 4), (1, 64), (256, 256), (512, 8)] {
            let mut case = Case::new(&[len]);
            let (x, mask) = (case.input(elem, 1), case.input(Elem::Bool, 3));
            let all = case.b.histogram(x, bins, None).unwrap();
            case.output(all);
            let some = case.b.histogram(x, bins, Some(mask)).unwrap();
            case.output(some);
            let counted = case.b.constant(Literal::int(Elem::I32, 0), &[bins]);
            let total = repeated(&mut case, counted, |b, v| {
                let more = b.histogram(x, bins, Some(mask))?;
                b.map(ScalarFn::Add, &[v, more])
            });
            case.output(total);
            case.check(0.0);
        }
    }
}

/// Small numbers, so that sums are exact.
fn small(elem: Elem, len: usize, step: usize) -> Arg {
    let number = |i: usize| ((i * step + i / 7) % 15) as f64 - 7.0;
    let literal = |i: usize| Literal::of(elem, if elem == Elem::U8 { number(i) + 100.0 } else { number(i) });
    let bytes: Vec<u8> = (0..len).flat_map(|i| Data::repeat(literal(i), 1).to_bytes()).collect();
    Arg::buffer(Data::from_bytes(elem, &bytes))
}

fn products(elem: Elem, sum: Elem, [batch, m, k, n]: [u32; 4]) {
    let batched = |dims: [u32; 2]| if batch == 0 { dims.to_vec() } else { vec![batch, dims[0], dims[1]] };
    let tile = |case: &mut Case, elem: Elem, dims: [u32; 2], step: usize| {
        let shape = batched(dims);
        case.tile(small(elem, shape.iter().product::<u32>() as usize, step), &shape)
    };
    let mut case = Case::new(&[1]);
    let (a, b, c) =
        (tile(&mut case, elem, [m, k], 3), tile(&mut case, elem, [k, n], 5), tile(&mut case, sum, [m, n], 2));
    for precision in [DotPrecision::Tf32, DotPrecision::Ieee] {
        let product = case.b.dot(a, b, c, precision).unwrap();
        case.output(product);
    }
    let total = repeated(&mut case, c, |builder, v| builder.dot(a, b, v, DotPrecision::Ieee));
    case.output(total);
    let zero = case.b.constant(Literal::of(sum, 0.0), &batched([m, n]));
    let fresh = case.b.dot(a, b, zero, DotPrecision::Ieee).unwrap();
    let doubled = case.b.map(ScalarFn::Add, &[fresh, fresh]).unwrap();
    case.output(doubled);
    case.check(0.0);
}

#[test]
fn multiplies_matrices() {
    let pairs = [
        (Elem::I8, Elem::I32),
        (Elem::U8, Elem::I32),
        (Elem::F16, Elem::F32),
        (Elem::Bf16, Elem::F32),
        (Elem::F32, Elem::F32),
        (Elem::F64, Elem::F64),
    ];
    for (elem, sum) in pairs {
        for shape in [
            [0u32, 16, 16, 16],
            [0, 1, 1, 1],
            [0, 1, 64, 1],
            [0, 64, 1, 2],
            [0, 2, 8, 128],
            [0, 32, 16, 64],
            [4, 8, 4, 32],
            [2, 1, 32, 4],
        ] {
            products(elem, sum, shape);
        }
    }
}

/// Numbers with all their bits: within the tolerance of another order of summation.
#[test]
fn multiplies_matrices_of_any_numbers() {
    let mut case = Case::new(&[1]);
    let a = case.tile(f32s(64 * 128), &[64, 128]);
    let b = case.tile(f32s(128 * 64), &[128, 64]);
    let zero = case.b.constant(Literal::of(Elem::F32, 0.0), &[64, 64]);
    let product = case.b.dot(a, b, zero, DotPrecision::Ieee).unwrap();
    case.output(product);
    case.check(1e-4);
}

/// What one operation leaves is what the next one takes.
#[test]
fn chains_operations_on_whole_tiles() {
    let mut case = Case::new(&[8, 16]);
    let x = case.input(Elem::I32, 1);
    let up = case.b.scan(&[x], 0, false, sum).unwrap()[0];
    let across = case.b.scan(&[up], 1, true, sum).unwrap()[0];
    let picked = case.b.gather(across, x, 1).unwrap();
    let line = case.b.reduce_with(&[picked], 0, sum).unwrap()[0];
    let bins = case.b.histogram(line, 32, None).unwrap();
    let again = case.b.gather(bins, line, 0).unwrap();
    for v in [up, across, picked, line, bins, again] {
        case.output(v);
    }
    case.check(0.0);
}

fn atomic_functions(elem: Elem, shape: &[u32], masked: bool) {
    let mut case = Case::new(shape);
    let (value, mask) = (case.input(elem, 3), case.input(Elem::Bool, 5));
    let mask = Some(mask).filter(|_| masked);
    let count: u32 = shape.iter().product();
    let offsets = if shape.is_empty() {
        case.b.constant(Literal::int(Elem::I64, 6), &[])
    } else {
        let flat = case.b.range(0, count).unwrap();
        let three = case.b.constant(Literal::int(Elem::I32, 3), &[count]);
        let spread = case.b.map(ScalarFn::Mul, &[flat, three]).unwrap();
        case.b.reshape(spread, shape).unwrap()
    };
    let orders = [MemoryOrder::Relaxed, MemoryOrder::Acquire, MemoryOrder::Release, MemoryOrder::AcqRel];
    for (k, function) in AtomicFn::ALL.into_iter().filter(|f| f.accepts(elem)).enumerate() {
        let ptr = case.b.ptr_param("m", elem, elem.bytes(), None);
        case.args.push(data(elem, 3 * count as usize + 8, 1 + k));
        let order = (orders[k % 4], MemoryScope::Device);
        let before = case.b.atomic(function, (ptr, offsets, value), mask, order).unwrap();
        case.output(before);
        let _unused = case.b.atomic(function, (ptr, offsets, value), mask, order).unwrap();
        let after = case.b.load(ptr, offsets, None, None, CacheHint::Default).unwrap();
        case.output(after);
    }
    case.check(0.0);
}

#[test]
fn changes_memory_atomically() {
    for elem in kinds().filter(|e| AtomicFn::Add.accepts(*e)) {
        for shape in [&[][..], &[1], &[8], &[64], &[4, 16], &[2, 4, 8]] {
            for masked in [false, true] {
                atomic_functions(elem, shape, masked);
            }
        }
    }
}

#[test]
fn compares_bits_and_swaps() {
    for elem in kinds().filter(|e| AtomicFn::Exchange.accepts(*e)) {
        for shape in [&[][..], &[8], &[64], &[4, 16]] {
            let mut case = Case::new(shape);
            let (expected, desired) = (case.input(elem, 1), case.input(elem, 5));
            let ptr = case.b.ptr_param("m", elem, elem.bytes(), None);
            let count = shape.iter().product::<u32>().max(1);
            case.args.push(data(elem, count as usize + 8, 2));
            let flat = case.b.range(0, count).unwrap();
            let offsets = case.b.reshape(flat, shape).unwrap();
            let order = (MemoryOrder::AcqRel, MemoryScope::System);
            let before = case.b.atomic_cas((ptr, offsets), (expected, desired), order).unwrap();
            case.output(before);
            case.check(0.0);
        }
    }
}
