//! What is composed of operations, against plain Rust.

use crate::data::Element;
use crate::interp::{Arg, Buffer, run};
use crate::tiles::*;
use crate::verify;

/// What a kernel leaves in `y`, of `len` elements.
fn results<T: Element>(len: usize, body: impl FnOnce(Ptr<T>)) -> Vec<T> {
    let program = program("f", |k| body(k.ptr::<T>("y"))).unwrap();
    verify(&program).unwrap_or_else(|e| panic!("{e}\n{program}"));
    let mut args = [Arg::buffer(vec![T::default(); len])];
    run(&program, &mut args, [1; 3]).unwrap_or_else(|e| panic!("{e}\n{program}"));
    contents(&args[0])
}

fn contents<T: Element>(arg: &Arg) -> Vec<T> {
    let Arg::Buffer(Buffer { bytes, .. }) = arg else { panic!("no buffer") };
    let size = T::ELEM.bytes() as usize;
    bytes.chunks(size).map(|b| T::read_le(b).unwrap()).collect()
}

/// A list of floats as a tile: what a program reads from its own constants.
fn list(values: &[f32]) -> Tile<f32> {
    let at = range(0, values.len());
    let mut tile = zeros::<f32>([values.len()]);
    for (i, &value) in values.iter().enumerate() {
        tile = select(at.eq(i), value, tile);
    }
    tile
}

fn put<T: Element + Promote<T, Out = T>>(y: Ptr<T>, tile: Tile<T>) {
    let flat = tile.ravel();
    let len = flat.shape()[0];
    store(y + range(0, len), flat, true);
}

#[test]
fn tiles_change_their_order() {
    let line = || range(0, 4);
    assert_eq!(results(8, |y| put(y, cat(line(), line() + 4))), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(results(8, |y| put(y, interleave(line(), line() + 4))), [0, 4, 1, 5, 2, 6, 3, 7]);
    assert_eq!(results(4, |y| put(y, flip(line(), 0))), [3, 2, 1, 0]);
    let table = || range(0, 8).reshape([2, 4]);
    assert_eq!(results(8, |y| put(y, flip(table(), 1))), [3, 2, 1, 0, 7, 6, 5, 4]);
    assert_eq!(results(8, |y| put(y, flip(table(), 0))), [4, 5, 6, 7, 0, 1, 2, 3]);
    assert_eq!(results(8, |y| put(y, table().trans())), [0, 4, 1, 5, 2, 6, 3, 7]);
    assert_eq!(results(8, |y| put(y, indices(table(), 0))), [0, 0, 0, 0, 1, 1, 1, 1]);
    let halves = |y: Ptr<i32>| {
        let (a, b) = split(range(0, 8).reshape([4, 2]));
        put(y, cat(b, a));
    };
    assert_eq!(results(8, halves), [1, 3, 5, 7, 0, 2, 4, 6]);
}

#[test]
fn sorting_keeps_every_element_and_puts_nan_last() {
    let values = [3.0, f32::NAN, -1.0, 7.0, 3.0, f32::INFINITY, -0.5, 0.25];
    let sorted = results(8, |y| put(y, sort(list(&values), false)));
    assert_eq!(sorted[..7], [-1.0, -0.5, 0.25, 3.0, 3.0, 7.0, f32::INFINITY]);
    assert!(sorted[7].is_nan());
    let order = results(8, |y| put(y, sort_with_indices(list(&values), false).1));
    assert_eq!(order, [2, 6, 7, 0, 4, 3, 5, 1]);
    let order = results(8, |y| put(y, sort_with_indices(list(&values), true).1));
    assert_eq!(order, [1, 5, 3, 0, 4, 7, 6, 2]);
    assert_eq!(results(2, |y| put(y, topk_with_indices(list(&values), 2).1)), [1, 5]);
    let rows = results(8, |y| put(y, sort(list(&values[2..6]).broadcast_to([2, 4]), true)));
    assert_eq!(rows, [f32::INFINITY, 7.0, 3.0, -1.0, f32::INFINITY, 7.0, 3.0, -1.0]);
}

#[test]
fn the_best_element_is_the_first_of_equals() {
    let arg = |values: &[f32], most: bool| {
        let values = values.to_vec();
        let pick = move |y: Ptr<i32>| {
            let x = list(&values);
            y.store(if most { argmax(x, 0) } else { argmin(x, 0) });
        };
        results(1, pick)[0]
    };
    assert_eq!(arg(&[1.0, 5.0, 5.0, 2.0], true), 1);
    assert_eq!(arg(&[1.0, 5.0, 1.0, 2.0], false), 0);
    assert_eq!(arg(&[1.0, f32::NAN, 5.0, f32::NAN], true), 1);
    assert_eq!(arg(&[1.0, f32::NAN, 5.0, f32::NAN], false), 1);
    assert_eq!(arg(&[f32::NEG_INFINITY; 4], true), 0);
    let both = |y: Ptr<f32>| {
        let (sum, product) =
            reduce_with((list(&[1.0, 2.0, 3.0, 4.0]), list(&[1.0, 2.0, 3.0, 4.0])), 0, |a, b| {
                (a.0 + b.0, a.1 * b.1)
            });
        put(y, join(sum, product));
    };
    assert_eq!(results(2, both), [10.0, 24.0]);
    let outside = crate::tiles::program("f", |_| {
        let one = program_id(0);
        reduce_with(range(0, 4), 0, |a, b| a + b + one);
    });
    assert!(outside.unwrap_err().error.to_string().contains("outside of a combiner"));
}

#[test]
fn scans_go_along_an_axis() {
    let line = || list(&[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(results(4, |y| put(y, cumsum(line(), 0))), [1.0, 3.0, 6.0, 10.0]);
    assert_eq!(results(4, |y| put(y, cumprod(line(), 0))), [1.0, 2.0, 6.0, 24.0]);
    let backward = |y| put(y, associative_scan(line(), 0, true, |a, b| a + b));
    assert_eq!(results(4, backward), [10.0, 9.0, 7.0, 4.0]);
    let half = results(4, |y: Ptr<bf16>| put(y, cumsum(line().cast::<bf16>(), 0)));
    assert_eq!(half, [1.0, 3.0, 6.0, 10.0].map(bf16::from_f32));
    let last = |y| put(y, associative_scan(range(0, 8).reshape([2, 4]), 1, false, |_, b| b));
    assert_eq!(results(8, last), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn products_and_histograms() {
    let square = |y: Ptr<f32>| {
        let a = list(&[1.0, 2.0, 3.0, 4.0]).reshape([2, 2]);
        put(y, dot(a, a, 1.0));
    };
    assert_eq!(results(4, square), [8.0, 11.0, 16.0, 23.0]);
    let small = |y: Ptr<i32>| {
        let a = range(0, 4).reshape([2, 2]).cast::<i8>();
        put(y, dot(a, a, 0));
    };
    assert_eq!(results(4, small), [2, 3, 6, 11]);
    assert_eq!(results(4, |y| put(y, histogram(range(0, 8) % 3, 4))), [3, 3, 2, 0]);
    let eights = |y: Ptr<f8e4m3>| put(y, list(&[1.0, 2.0, 3.0, 500.0]).cast::<f8e4m3>());
    assert_eq!(
        format!("{:?}", results(4, eights)[..3].iter().map(|x| x.literal().as_f64()).collect::<Vec<_>>()),
        "[1.0, 2.0, 3.0]"
    );
}

#[test]
fn softmax_sums_to_one() {
    let found = results(4, |y| put(y, softmax(list(&[1.0, 2.0, 3.0, 1000.0]).reshape([2, 2]), 1)));
    let e = (1f32).exp();
    let expected = [1.0 / (1.0 + e), e / (1.0 + e), 0.0, 1.0];
    assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
    assert_eq!(results(4, |y| put(y, clamp(list(&[-2.0, 0.5, 3.0, 1.0]), 0.0, 1.0))), [0.0, 0.5, 1.0, 1.0]);
    assert_eq!(results(2, |y| put(y, relu(list(&[-2.0, 0.5])))), [0.0, 0.5]);
}

#[test]
fn random_numbers_are_spread_and_repeatable() {
    let uniform = results(1024, |y| put(y, rand(7, range(0, 1024))));
    assert!(uniform.iter().all(|x| (0.0..1.0).contains(x)));
    let mean = |x: &[f32]| x.iter().sum::<f32>() / x.len() as f32;
    assert!((mean(&uniform) - 0.5).abs() < 0.03, "{}", mean(&uniform));
    assert_eq!(uniform, results(1024, |y| put(y, rand(7, range(0, 1024)))));
    assert_ne!(uniform, results(1024, |y| put(y, rand(8, range(0, 1024)))));
    let normal = results(1024, |y| put(y, randn(7, range(0, 1024))));
    let squares: Vec<f32> = normal.iter().map(|x| x * x).collect();
    assert!(
        mean(&normal).abs() < 0.1 && (mean(&squares) - 1.0).abs() < 0.15,
        "{} {}",
        mean(&normal),
        mean(&squares)
    );
    let four = results(8, |y| {
        let [a, b, c, d] = randn4x(1, range(0, 2));
        put(y, cat(cat(a, b), cat(c, d)));
    });
    assert!(four.iter().all(|x| x.is_finite()));
}

#[test]
fn instances_are_grouped() {
    let program = program("order", |k| {
        let y = k.ptr::<i32>("y");
        let (i, j) = (program_id(0), program_id(1));
        let (a, b) = swizzle2d(i, j, num_programs(0), num_programs(1), 2);
        (y + (i * 3 + j)).store(a * 10 + b);
    })
    .unwrap();
    let mut args = [Arg::buffer(vec![0i32; 15])];
    run(&program, &mut args, [5, 3, 1]).unwrap();
    let order = contents::<i32>(&args[0]);
    assert_eq!(order, [0, 10, 1, 11, 2, 12, 20, 30, 21, 31, 22, 32, 40, 41, 42]);
}

#[test]
fn descriptors_stay_within_their_tensor() {
    let program = program("copy", |k| {
        let (x, y) = (k.ptr::<f32>("x"), k.ptr::<f32>("y"));
        let (m, n) = (k.scalar::<i64>("m"), k.scalar::<i32>("n"));
        let x = make_descriptor(x, (m, n), (n, 1), [2, 4]);
        let y = make_descriptor(y, (n, m), (m, 1), [4, 2]);
        let (i, j) = (program_id(0) * 2, program_id(1) * 4);
        y.store((j, i), x.load((i, j)).trans());
    })
    .unwrap();
    verify(&program).unwrap();
    let values: Vec<f32> = (0..15).map(|i| i as f32).collect();
    let mut args = [
        Arg::buffer(values),
        Arg::buffer(vec![-1.0f32; 15]),
        Arg::int(crate::Elem::I64, 3),
        Arg::int(crate::Elem::I32, 5),
    ];
    run(&program, &mut args, [2, 2, 1]).unwrap();
    let expected: Vec<f32> = (0..15).map(|i| (i % 3 * 5 + i / 3) as f32).collect();
    assert_eq!(contents::<f32>(&args[1]), expected);
}

#[test]
fn atomics_add_up_and_hints_are_checked() {
    let program = program("count", |k| {
        let (y, n) = (k.ptr::<i32>("y"), k.scalar::<i32>("n"));
        let n = assume_between(multiple_of(n, 4), 0, 100);
        let lanes = max_contiguous(range(0, 4), 4);
        atomic_add(y + lanes % 2, n, lanes.lt(3));
        atomic_max(y + 2, program_id(0), true);
        let old = atomic_cas(y + 3, 0, 5);
        device_assert(old.lt(6), "counted", true);
        atomic_xchg(y + 4, 9, false);
    })
    .unwrap();
    verify(&program).unwrap();
    let mut args = [Arg::buffer(vec![0i32; 5]), Arg::int(crate::Elem::I32, 8)];
    run(&program, &mut args, [3, 1, 1]).unwrap();
    assert_eq!(contents::<i32>(&args[0]), [48, 24, 2, 5, 0]);
    args[1] = Arg::int(crate::Elem::I32, 6);
    assert!(run(&program, &mut args, [1; 3]).is_err());
}
