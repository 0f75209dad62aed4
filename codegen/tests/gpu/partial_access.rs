//! Rows that begin and end anywhere: masks that cut groups at every element, and loads at any alignment.

use tilefuse_block::interp::{Arg, Buffer};
use tilefuse_block::{Builder, CacheHint, Elem, Literal, ReduceFn, ScalarFn, Value};

use crate::run::Case;
use crate::shapes::{ELEMS, finish};
use crate::values::moderate;

/// Elements of a tile.
const TILE: u32 = 512;

/// Rows, each of which begins one element later than the one before.
const ROWS: u32 = 17;

pub(crate) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for elem in ELEMS {
        for (length, warps) in [(400, 1), (401, 2), (5, 1), (TILE - 16, 1)] {
            for other in [false, true] {
                out.push(row(elem, length, warps, other));
            }
        }
        out.push(unmasked(elem));
        out.push(known_at_run_time(elem));
    }
    out
}

fn add(elem: Elem) -> ScalarFn {
    if elem == Elem::Bool { ScalarFn::Xor } else { ScalarFn::Add }
}

/// The places of a row's elements in a matrix with room for a tile in each row, and their numbers, the first of which
/// is minus the row's number.
fn places(b: &mut Builder) -> (Value, Value) {
    let row = b.program_id(0).unwrap();
    let width = b.constant(Literal::int(Elem::I32, i64::from(TILE)), &[]);
    let start = b.map(ScalarFn::Mul, &[row, width]).unwrap();
    let range = b.range(0, TILE).unwrap();
    let start = b.splat(start, &[TILE]).unwrap();
    let at = b.map(ScalarFn::Add, &[start, range]).unwrap();
    let lead = b.splat(row, &[TILE]).unwrap();
    (at, b.map(ScalarFn::Sub, &[range, lead]).unwrap())
}

fn data(elem: Elem, n: u32, seed: u64) -> Arg {
    Arg::buffer(moderate(elem, n as usize, seed))
}

fn launched(mut case: Case) -> Case {
    case.grid = [ROWS, 1, 1];
    case
}

/// Adds a vector to each row, and stores the rows and the largest element of each.
fn row(elem: Elem, length: u32, warps: u32, other: bool) -> Case {
    let mut b = Builder::new("row");
    b.set_warps(warps);
    let [x, w, y, z] = ["x", "w", "y", "z"].map(|name| b.ptr_param(name, elem, 16, None));
    let (at, number) = places(&mut b);
    let unsigned = b.cast(number, Elem::U32).unwrap();
    let bound = b.constant(Literal::int(Elem::U32, i64::from(length)), &[TILE]);
    let mask = b.map(ScalarFn::Lt, &[unsigned, bound]).unwrap();
    let fallback = other.then(|| b.constant(Literal::of(elem, 1.0), &[TILE]));
    let v = b.load(x, at, Some(mask), fallback, CacheHint::Default).unwrap();
    let weight = b.load(w, number, Some(mask), fallback, CacheHint::Default).unwrap();
    let sum = b.map(add(elem), &[v, weight]).unwrap();
    b.store(y, at, sum, Some(mask), CacheHint::Default).unwrap();
    let combine = if elem == Elem::Bool { ReduceFn::Xor } else { ReduceFn::Max };
    let most = b.reduce(combine, sum, 0, None).unwrap();
    let row = b.program_id(0).unwrap();
    b.store(z, row, most, None, CacheHint::Default).unwrap();
    let zeros = |n| Arg::Buffer(Buffer::zeros(elem, n as usize));
    let args = vec![data(elem, ROWS * TILE, 3), data(elem, length, 4), zeros(ROWS * TILE), zeros(ROWS)];
    launched(finish(format!("partly {elem} {length} warps {warps} other {other}"), b, args))
}

/// Reads from any element on, all that a tile has.
fn unmasked(elem: Elem) -> Case {
    let mut b = Builder::new("unmasked");
    let [x, w, y] = ["x", "w", "y"].map(|name| b.ptr_param(name, elem, 16, None));
    let (at, number) = places(&mut b);
    let most = b.constant(Literal::int(Elem::I32, i64::from(ROWS)), &[TILE]);
    let from = b.map(ScalarFn::Add, &[number, most]).unwrap();
    let v = b.load(x, at, None, None, CacheHint::Default).unwrap();
    let weight = b.load(w, from, None, None, CacheHint::Default).unwrap();
    let sum = b.map(add(elem), &[v, weight]).unwrap();
    b.store(y, at, sum, None, CacheHint::Default).unwrap();
    let out = Arg::Buffer(Buffer::uninit(elem, (ROWS * TILE) as usize));
    let args = vec![data(elem, ROWS * TILE, 5), data(elem, TILE + ROWS, 6), out];
    launched(finish(format!("partly {elem} unmasked"), b, args))
}

/// A bound that is a parameter, and a second condition that holds for whole groups.
fn known_at_run_time(elem: Elem) -> Case {
    let mut b = Builder::new("known_at_run_time");
    let [x, y] = ["x", "y"].map(|name| b.ptr_param(name, elem, 16, None));
    let n = b.scalar_param("n", Elem::I32);
    let (at, number) = places(&mut b);
    let bound = b.splat(n, &[TILE]).unwrap();
    let below = b.map(ScalarFn::Lt, &[number, bound]).unwrap();
    let zero = b.constant(Literal::int(Elem::I32, 64), &[TILE]);
    let range = b.range(0, TILE).unwrap();
    let above = b.map(ScalarFn::Ge, &[range, zero]).unwrap();
    let mask = b.map(ScalarFn::And, &[above, below]).unwrap();
    let v = b.load(x, at, Some(mask), None, CacheHint::Default).unwrap();
    b.store(y, at, v, Some(mask), CacheHint::Default).unwrap();
    let out = Arg::Buffer(Buffer::zeros(elem, (ROWS * TILE) as usize));
    let args = vec![data(elem, ROWS * TILE, 7), out, Arg::int(Elem::I32, 403)];
    launched(finish(format!("partly {elem} known at run time"), b, args))
}
