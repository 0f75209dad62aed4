//! Joins, splits, gathers and histograms.

use tilefuse_block::interp::{Arg, Buffer};
use tilefuse_block::{Builder, Data, Elem, Literal, ScalarFn, Value};

use crate::reductions::{row_major, strided};
use crate::run::{Case, Tolerance};
use crate::shapes::{finish, load, out_of, store};
use crate::values::{Random, moderate};

pub(crate) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    let elems: Vec<Elem> = Elem::ALL.into_iter().filter(|e| !e.is_small_float()).collect();
    let shapes: [&[u32]; 6] = [&[512], &[8, 64], &[128, 2], &[2, 4, 8, 4], &[1], &[16, 64]];
    for (e, &elem) in elems.iter().enumerate() {
        for (s, shape) in shapes.into_iter().enumerate() {
            if (e + s) % 2 != 0 {
                continue;
            }
            let warps = 1 << ((e + s) % 5);
            out.push(joined(elem, shape, warps));
            for axis in 0..shape.len() {
                let extent = [1, 2, 16, 64][(e + axis) % 4];
                let numbers = if (e + axis) % 3 == 0 { Elem::I64 } else { Elem::I32 };
                out.push(gathered(elem, shape, axis, extent, numbers, warps));
            }
        }
    }
    for (e, elem) in elems.into_iter().filter(|e| e.is_int()).enumerate() {
        for (n, bins, warps) in [(1024, 64, 4), (256, 1, 1), (64, 1024, 8), (4096, 16, 2), (1, 4, 1)] {
            out.push(histogram(elem, n, bins, warps, e % 2 == 0));
        }
    }
    out.push(programs());
    out
}

/// Joins two tiles, stores them, and splits and stores the halves.
fn joined(elem: Elem, shape: &[u32], warps: u32) -> Case {
    let numel: u32 = shape.iter().product();
    let mut b = Builder::new("joined");
    b.set_warps(warps);
    let [x, y, z, first, second] = ["x", "y", "z", "first", "second"].map(|n| b.ptr_param(n, elem, 16, None));
    let at = strided(&mut b, shape, &row_major(shape));
    let (v, w) = (load(&mut b, x, at), load(&mut b, y, at));
    let both = b.join(v, w).unwrap();
    let wide: Vec<u32> = shape.iter().copied().chain([2]).collect();
    let to = strided(&mut b, &wide, &row_major(&wide));
    store(&mut b, z, to, both);
    // What is split next comes from memory as it lies there.
    let flat = b.reshape(both, &[2 * numel]).unwrap();
    let pairs = b.reshape(flat, &[2, numel]).unwrap();
    let pairs = b.permute(pairs, &[1, 0]).unwrap();
    let (v, w) = b.split(pairs).unwrap();
    let line = b.range(0, numel).unwrap();
    store(&mut b, first, line, v);
    store(&mut b, second, line, w);
    let data = |seed| Arg::buffer(moderate(elem, numel as usize, seed));
    let args = vec![data(1), data(2), out_of(elem, 2 * numel), out_of(elem, numel), out_of(elem, numel)];
    finish(format!("join {elem} {shape:?} warps {warps}"), b, args)
}

fn gathered(elem: Elem, shape: &[u32], axis: usize, extent: u32, numbers: Elem, warps: u32) -> Case {
    let mut b = Builder::new("gathered");
    b.set_warps(warps);
    let [x, y] = ["x", "y"].map(|name| b.ptr_param(name, elem, 16, None));
    let ids = b.ptr_param("ids", numbers, 16, None);
    let mut to = shape.to_vec();
    to[axis] = extent;
    let at = strided(&mut b, shape, &row_major(shape));
    let into = strided(&mut b, &to, &row_major(&to));
    let (v, ids) = (load(&mut b, x, at), load(&mut b, ids, into));
    let picked = b.gather(v, ids, axis as u8).unwrap();
    store(&mut b, y, into, picked);
    let (n, m) = (shape.iter().product::<u32>(), to.iter().product::<u32>());
    let mut random = Random::new(u64::from(n + m));
    // Indices that are negative or too large count modulo the extent.
    let index = |_| Literal::int(numbers, (random.next() >> 20) as i64 % 1000 - 500);
    let ids = Data::from_literals(numbers, (0..m).map(index));
    let args = vec![Arg::buffer(moderate(elem, n as usize, 3)), out_of(elem, m), Arg::buffer(ids)];
    finish(format!("gather {elem} {shape:?} axis {axis} of {extent} {numbers} warps {warps}"), b, args)
}

fn histogram(elem: Elem, n: u32, bins: u32, warps: u32, masked: bool) -> Case {
    let mut b = Builder::new("histogram");
    b.set_warps(warps);
    let x = b.ptr_param("x", elem, 16, None);
    let y = b.ptr_param("y", Elem::I32, 16, None);
    let at = b.range(0, n).unwrap();
    let v = load(&mut b, x, at);
    let mask: Option<Value> = masked.then(|| {
        let three = b.constant(Literal::int(Elem::I32, 3), &[n]);
        let rest = b.map(ScalarFn::RemTrunc, &[at, three]).unwrap();
        let one = b.constant(Literal::int(Elem::I32, 1), &[n]);
        b.map(ScalarFn::Ne, &[rest, one]).unwrap()
    });
    let counts = b.histogram(v, bins, mask).unwrap();
    let to = b.range(0, bins).unwrap();
    store(&mut b, y, to, counts);
    let mut random = Random::new(u64::from(n));
    let number = |_| Literal::int(elem, (random.next() >> 20) as i64 % (i64::from(bins) + 20) - 10);
    let data = Data::from_literals(elem, (0..n).map(number));
    let args = vec![Arg::buffer(data), Arg::Buffer(Buffer::uninit(Elem::I32, bins as usize))];
    let mask = if masked { "masked" } else { "" };
    finish(format!("histogram {elem} {n} into {bins} warps {warps} {mask}"), b, args)
}

/// Each instance writes how many there are.
fn programs() -> Case {
    let mut b = Builder::new("programs");
    let y = b.ptr_param("y", Elem::I32, 16, None);
    let ids = [0, 1, 2].map(|axis| b.program_id(axis).unwrap());
    let counts = [0, 1, 2].map(|axis| b.num_programs(axis).unwrap());
    let row = b.map(ScalarFn::Mul, &[ids[2], counts[1]]).unwrap();
    let row = b.map(ScalarFn::Add, &[row, ids[1]]).unwrap();
    let place = b.map(ScalarFn::Mul, &[row, counts[0]]).unwrap();
    let place = b.map(ScalarFn::Add, &[place, ids[0]]).unwrap();
    let sum = b.map(ScalarFn::Sub, &[counts[0], counts[2]]).unwrap();
    let value = b.map(ScalarFn::Mul, &[sum, place]).unwrap();
    store(&mut b, y, place, value);
    let case = finish("number of instances".to_owned(), b, vec![out_of(Elem::I32, 30)]);
    Case { grid: [5, 3, 2], tolerance: Tolerance::Exact, ..case }
}
