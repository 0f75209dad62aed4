//! Branches and loops whose ends are data.

use tilefuse_block::interp::Arg;
use tilefuse_block::{Builder, Data, Elem, Literal, ReduceFn, ScalarFn, TypeError, Value};

use crate::run::Case;
use crate::shapes::{finish, load, out_of, store};
use crate::values::moderate;

pub(crate) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for elem in [Elem::F32, Elem::Bf16, Elem::I64, Elem::Bool, Elem::U8] {
        for warps in [1, 4, 16] {
            out.push(chosen(elem, warps));
        }
    }
    for warps in [1, 2, 8] {
        out.push(collatz(warps));
        out.push(until_even(warps));
        out.push(nested(warps));
        out.push(through_memory(warps));
    }
    out
}

fn int(b: &mut Builder, value: i64) -> Value {
    b.constant(Literal::int(Elem::I32, value), &[])
}

fn with_grid(case: Case, x: u32) -> Case {
    Case { grid: [x, 1, 1], ..case }
}

/// By what lies in memory: a tile the other way round, or its running total; instances differ.
fn chosen(elem: Elem, warps: u32) -> Case {
    let mut b = Builder::new("chosen");
    b.set_warps(warps);
    let flags = b.ptr_param("flags", Elem::I32, 16, None);
    let [x, y] = ["x", "y"].map(|name| b.ptr_param(name, elem, 16, None));
    let id = b.program_id(0).unwrap();
    let flag = load(&mut b, flags, id);
    let zero = int(&mut b, 0);
    let condition = b.map(ScalarFn::Gt, &[flag, zero]).unwrap();
    let n = 512;
    let start = b.splat(id, &[n]).unwrap();
    let size = b.constant(Literal::int(Elem::I32, i64::from(n)), &[n]);
    let start = b.map(ScalarFn::Mul, &[start, size]).unwrap();
    let range = b.range(0, n).unwrap();
    let at = b.map(ScalarFn::Add, &[start, range]).unwrap();
    let v = load(&mut b, x, at);
    let combine = if elem == Elem::Bool { ScalarFn::Xor } else { ScalarFn::Max };
    let (tile, count) = {
        let both = b
            .if_else::<TypeError>(
                condition,
                |b| {
                    let square = b.reshape(v, &[16, 32])?;
                    let turned = b.permute(square, &[1, 0])?;
                    Ok(vec![b.reshape(turned, &[n])?, flag])
                },
                |b| {
                    let all = b.scan::<TypeError>(&[v], 0, false, |b, x, y| {
                        Ok(vec![b.map(combine, &[x[0], y[0]])?])
                    })?;
                    let count = b.map(ScalarFn::Sub, &[flag, id])?;
                    Ok(vec![all[0], count])
                },
            )
            .unwrap();
        (both[0], both[1])
    };
    store(&mut b, y, at, tile);
    // A branch without results.
    b.if_else::<TypeError>(
        condition,
        |b| {
            b.store(flags, id, count, None, tilefuse_block::CacheHint::Default)?;
            Ok(vec![])
        },
        |_| Ok(vec![]),
    )
    .unwrap();
    let args = vec![
        Arg::buffer(Data::I32(vec![3, 0, -2, 1])),
        Arg::buffer(moderate(elem, 4 * n as usize, 5)),
        out_of(elem, 4 * n),
    ];
    with_grid(finish(format!("if {elem} warps {warps}"), b, args), 4)
}

/// Steps of the Collatz sequence of a number for each instance, with a branch in the loop.
fn collatz(warps: u32) -> Case {
    let mut b = Builder::new("collatz");
    b.set_warps(warps);
    let [x, y] = ["x", "y"].map(|name| b.ptr_param(name, Elem::I32, 16, None));
    let id = b.program_id(0).unwrap();
    let start = load(&mut b, x, id);
    let (zero, one, two) = (int(&mut b, 0), int(&mut b, 1), int(&mut b, 2));
    let steps = b
        .while_loop::<TypeError>(
            &[start, zero],
            |b, now| b.map(ScalarFn::Gt, &[now[0], one]),
            |b, now| {
                let bit = b.map(ScalarFn::And, &[now[0], one])?;
                let odd = b.map(ScalarFn::Eq, &[bit, one])?;
                let next = b.if_else::<TypeError>(
                    odd,
                    |b| {
                        let three = int(b, 3);
                        let product = b.map(ScalarFn::Mul, &[now[0], three])?;
                        Ok(vec![b.map(ScalarFn::Add, &[product, one])?])
                    },
                    |b| Ok(vec![b.map(ScalarFn::DivTrunc, &[now[0], two])?]),
                )?;
                Ok(vec![next[0], b.map(ScalarFn::Add, &[now[1], one])?])
            },
        )
        .unwrap();
    store(&mut b, y, id, steps[1]);
    let args = vec![Arg::buffer(Data::I32(vec![27, 1, 0, 97, 6])), out_of(Elem::I32, 5)];
    with_grid(finish(format!("while warps {warps}"), b, args), 5)
}

/// Halves a tile until its sum is even, then stores it the other way round: reductions and changes of layout in both
/// regions.
fn until_even(warps: u32) -> Case {
    let mut b = Builder::new("until_even");
    b.set_warps(warps);
    let [x, y] = ["x", "y"].map(|name| b.ptr_param(name, Elem::I32, 16, None));
    let shape = [16u32, 64];
    let range = b.range(0, 1024).unwrap();
    let at = b.reshape(range, &shape).unwrap();
    let v = load(&mut b, x, at);
    let one = b.constant(Literal::int(Elem::I32, 1), &[]);
    let done = b
        .while_loop::<TypeError>(
            &[v],
            |b, now| {
                let rows = b.reduce(ReduceFn::Sum, now[0], 1, None)?;
                let sum = b.reduce(ReduceFn::Sum, rows, 0, None)?;
                let bit = b.map(ScalarFn::And, &[sum, one])?;
                b.map(ScalarFn::Eq, &[bit, one])
            },
            |b, now| {
                let two = b.constant(Literal::int(Elem::I32, 2), &shape);
                let half = b.map(ScalarFn::DivTrunc, &[now[0], two])?;
                let tall = b.reshape(half, &[64, 16])?;
                let turned = b.permute(tall, &[1, 0])?;
                Ok(vec![turned])
            },
        )
        .unwrap();
    store(&mut b, y, at, done[0]);
    let args = vec![Arg::buffer(moderate(Elem::I32, 1024, 77)), out_of(Elem::I32, 1024)];
    finish(format!("while of tiles warps {warps}"), b, args)
}

/// A counted loop in a loop, left early by a branch.
fn nested(warps: u32) -> Case {
    let mut b = Builder::new("nested");
    b.set_warps(warps);
    let y = b.ptr_param("y", Elem::I32, 16, None);
    let n = b.scalar_param("n", Elem::I32);
    let tile = b.range(0, 256).unwrap();
    let (zero, one) = (int(&mut b, 0), int(&mut b, 1));
    let done = b
        .while_loop::<TypeError>(
            &[tile, zero],
            |b, now| b.map(ScalarFn::Lt, &[now[1], n]),
            |b, now| {
                let tile = b.for_loop::<TypeError>((zero, now[1], one), &[now[0]], |b, j, inner| {
                    let step = b.splat(j, &[256])?;
                    let even = b.map(ScalarFn::And, &[j, one])?;
                    let even = b.map(ScalarFn::Eq, &[even, zero])?;
                    b.if_else::<TypeError>(
                        even,
                        |b| Ok(vec![b.map(ScalarFn::Add, &[inner[0], step])?]),
                        |b| {
                            let all = b.scan::<TypeError>(&[inner[0]], 0, true, |b, x, y| {
                                Ok(vec![b.map(ScalarFn::Xor, &[x[0], y[0]])?])
                            })?;
                            Ok(vec![all[0]])
                        },
                    )
                })?;
                Ok(vec![tile[0], b.map(ScalarFn::Add, &[now[1], one])?])
            },
        )
        .unwrap();
    store(&mut b, y, tile, done[0]);
    finish(format!("nested while warps {warps}"), b, vec![out_of(Elem::I32, 256), Arg::int(Elem::I32, 5)])
}

/// Each round reads what other threads wrote in the one before, in one arm of a branch.
fn through_memory(warps: u32) -> Case {
    let mut b = Builder::new("through_memory");
    b.set_warps(warps);
    let x = b.ptr_param("x", Elem::I32, 16, None);
    let range = b.range(0, 512).unwrap();
    let last = b.constant(Literal::int(Elem::I32, 511), &[512]);
    let turned = b.map(ScalarFn::Sub, &[last, range]).unwrap();
    let (zero, one, seven) = (int(&mut b, 0), int(&mut b, 1), int(&mut b, 7));
    b.while_loop::<TypeError>(
        &[zero],
        |b, now| b.map(ScalarFn::Lt, &[now[0], seven]),
        |b, now| {
            let bit = b.map(ScalarFn::And, &[now[0], one])?;
            let odd = b.map(ScalarFn::Eq, &[bit, one])?;
            b.if_else::<TypeError>(
                odd,
                |b| {
                    let v = load(b, x, turned);
                    let i = b.splat(now[0], &[512])?;
                    let v = b.map(ScalarFn::Add, &[v, i])?;
                    store(b, x, range, v);
                    Ok(vec![])
                },
                |b| {
                    let v = load(b, x, range);
                    store(b, x, turned, v);
                    Ok(vec![])
                },
            )?;
            let v = load(b, x, turned);
            store(b, x, range, v);
            Ok(vec![b.map(ScalarFn::Add, &[now[0], one])?])
        },
    )
    .unwrap();
    finish(format!("while through memory warps {warps}"), b, vec![Arg::buffer(moderate(Elem::I32, 512, 21))])
}
