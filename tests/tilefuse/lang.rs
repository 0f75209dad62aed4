//! Kernels of `#[tilefuse::kernel]`: launched, interpreted, and refused.

use tch::{Device, Kind, Tensor};
use tilefuse::lang::{Tile, exp, maximum};
use tilefuse::{Error, LaunchError, grid};

use crate::common::{F32, device, on_cpu, setup};

#[tilefuse::kernel]
fn softmax(x: Ptr<f32>, y: Ptr<f32>, stride: i64, n: i64, #[constant] BLOCK: usize) {
    let row = program_id(0);
    let cols = range(0, BLOCK);
    let v = load(x + row * stride + cols, cols.lt(n), -f32::INFINITY);
    let e = exp(v - max(v, 0));
    store(y + row * stride + cols, e / sum(e, 0), cols.lt(n));
}

#[test]
fn the_kernel_of_the_front_page() {
    setup();
    for (rows, cols) in [(3i64, 100i64), (5, 128), (1, 1), (7, 16)] {
        let x = Tensor::randn([rows, cols], *F32);
        let y = x.empty_like();
        softmax.launch(grid![rows], (&x, &y, cols, cols, 128)).unwrap();
        assert!(y.allclose(&x.softmax(-1, Kind::Float), 1e-5, 1e-6, false));
        // SAFETY: instance `row` stays within that row.
        unsafe { softmax.launch_unchecked(rows, (&x, &y, cols, cols, 128)) }.unwrap();
        if on_cpu() {
            softmax.interpret(grid![rows], (&x, &y, cols, cols, 128)).unwrap();
        }
    }
    let on_cpu = (Kind::Float, Device::Cpu);
    let x = Tensor::randn([4, 8], on_cpu);
    let error = softmax.launch(5, (&x, &Tensor::zeros([5, 8], on_cpu), 8, 8, 8)).unwrap_err();
    assert_eq!(error.to_string(), "kernel @softmax: an access through %x is out of bounds of its tensor");
}

/// An activation that is given to a kernel.
fn relu(x: Tile<f32>) -> Tile<f32> {
    maximum(x, 0.0)
}

/// A function that kernels call.
fn silu(x: Tile<f32>) -> Tile<f32> {
    x / (1.0 + exp(-x))
}

/// `y = activation(scale * x + bias)`, in any float kind; each element is added up `times` times.
#[tilefuse::kernel(warps = 2)]
fn scaled<T: Float>(
    x: Ptr<T>,
    bias: Option<Ptr<T>>,
    y: Ptr<T>,
    scale: f32,
    n: i32,
    times: i64,
    #[constant] ACTIVATION: fn(Tile<f32>) -> Tile<f32>,
    #[constant] BLOCK: usize,
) {
    let at = program_id(0) * BLOCK + range(0, BLOCK);
    let inside = at.lt(n);
    let mut total = load(x + at, inside, 0).cast::<f32>() * scale;
    if let Some(bias) = bias {
        total += load(bias + at, inside, 0).cast::<f32>();
    }
    let once = total;
    for _ in 1..times {
        total = total + once;
    }
    store(y + at, ACTIVATION(total).cast(), inside);
}

#[test]
fn one_kernel_serves_kinds_activations_and_absent_tensors() {
    setup();
    for kind in [Kind::Float, Kind::BFloat16, Kind::Half, Kind::Double] {
        let x = Tensor::randn([100], *F32).to_kind(kind);
        let bias = Tensor::randn([100], *F32).to_kind(kind);
        let y = x.empty_like();
        let wide = |t: &Tensor| t.to_kind(Kind::Float);
        scaled.launch(4, (&x, Some(&bias), &y, 0.5, 100, 1, silu, 32)).unwrap();
        let expected = (wide(&x) * 0.5 + wide(&bias)).silu().to_kind(kind);
        assert!(wide(&y).allclose(&wide(&expected), 1e-2, 1e-3, false), "{kind:?}");
        scaled.launch(2, (&x, None, &y, 2.0, 100, 1, relu, 64)).unwrap();
        let expected = (wide(&x) * 2.0).relu().to_kind(kind);
        assert!(wide(&y).allclose(&wide(&expected), 1e-2, 1e-3, false), "{kind:?}");
        scaled.launch(2, (&x, None, &y, 1.0, 100, 3, relu, 64)).unwrap();
        let expected = (wide(&x) * 3.0).relu().to_kind(kind);
        assert!(wide(&y).allclose(&wide(&expected), 1e-2, 1e-3, false), "{kind:?}");
    }
    let ints = Tensor::zeros([4], (Kind::Int, device()));
    let error = scaled.launch(1, (&ints, None, &ints, 1.0, 4, 1, relu, 4)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel @scaled: %x has elements of a tensor of i32, the kernel takes f16, bf16, f32, f64"
    );
    let (x, y) = (Tensor::zeros([4], *F32), Tensor::zeros([4], (Kind::Double, device())));
    let error = scaled.launch(1, (&x, None, &y, 1.0, 4, 1, relu, 4)).unwrap_err();
    assert!(
        matches!(&error, Error::Launch { problem, .. } if matches!(**problem, LaunchError::Type { .. })),
        "{error}"
    );
}

/// Steps of the Collatz sequence, and sums of ranges that are known or not.
#[tilefuse::kernel]
fn flow(y: Ptr<i64>, start: i64, n: i64, #[constant] UNROLLED: usize) {
    let mut steps = scalar::<i64>(0);
    let mut value = start;
    while value.gt(1) {
        if (value % 2).eq(0) {
            value = value / 2;
        } else {
            value = 3 * value + 1;
        }
        steps += 1;
    }
    y.store(steps);

    let mut total = zeros::<i64>([4]);
    for i in 0..n {
        for j in (0..i).step_by(2) {
            total += j * range(0, 4);
        }
    }
    for i in 0..UNROLLED {
        if i == 3 {
            break;
        }
        total += i;
    }
    let pick = if UNROLLED > 2 { total } else { -total };
    let last = if n.lt(3) { pick } else { pick * 2 };
    (y + 1 + range(0, 4)).store(last);
}

#[test]
fn control_flow_depends_on_tiles_and_on_constants() {
    setup();
    let y = Tensor::zeros([5], (Kind::Int64, Device::Cpu));
    for (start, n, unrolled) in [(6i64, 5i64, 4usize), (1, 2, 2), (27, 0, 0)] {
        flow.interpret(1, (&y, start, n, unrolled)).unwrap();
        let (mut value, mut steps) = (start, 0i64);
        while value > 1 {
            value = if value % 2 == 0 { value / 2 } else { 3 * value + 1 };
            steps += 1;
        }
        let sum: i64 = (0..n).flat_map(|i| (0..i).step_by(2)).sum();
        let flat: i64 = (0..unrolled.min(3) as i64).sum();
        let sign = if unrolled > 2 { 1 } else { -1 } * if n < 3 { 1 } else { 2 };
        let mut expected = vec![steps];
        expected.extend((0..4).map(|i| sign * (sum * i + flat)));
        assert_eq!(Vec::<i64>::try_from(&y).unwrap(), expected, "{start} {n} {unrolled}");
    }
}

#[tilefuse::kernel]
fn misfit(y: Ptr<i32>, #[constant] N: usize) {
    let sum = range(0, N) + range(0, 8);
    store(y + range(0, 8), sum, true);
}

#[test]
fn shapes_that_do_not_fit_are_errors_with_their_place() {
    setup();
    let y = Tensor::zeros([8], (Kind::Int, device()));
    misfit.launch(1, (&y, 8)).unwrap();
    misfit.launch(1, (&y, 1)).unwrap();
    let error = misfit.launch(1, (&y, 4)).unwrap_err();
    let line = line!() - 11;
    assert_eq!(
        error.to_string(),
        format!(
            "{}:{line}:15: broadcast: operand 0 is tile<4xi32>, expected extents of 1 where they differ from [8]",
            file!()
        )
    );
    assert!(matches!(misfit.launch(1, (&y, 3)).unwrap_err(), Error::Build(_)));
}

#[test]
fn forms_of_arguments_are_kernels_of_their_own() {
    setup();
    let x = Tensor::randn([4, 64], *F32);
    let y = x.empty_like();
    let text = |stride: i64, n: i64, x: &Tensor| {
        softmax.specialize((x, &y, stride, n, 64)).unwrap().program().to_string()
    };
    let shifted = x.view(-1).narrow(0, 1, 64);
    assert!(text(64, 64, &x).contains("%x: ptr<f32> align(16)"));
    assert!(text(64, 64, &shifted).contains("%x: ptr<f32> align(4)"));
    assert_ne!(text(64, 64, &x), text(63, 64, &x));
    assert_eq!(text(63, 61, &x), text(62, 63, &x));
    assert_ne!(text(60, 63, &x), text(62, 63, &x));
    let same = |n: i64| softmax.specialize((&x, &y, 64, n, 64)).unwrap();
    assert!(std::sync::Arc::ptr_eq(&same(48), &same(32)));
    assert!(!std::sync::Arc::ptr_eq(&same(1), &same(2)));
    assert!(text(64, 48, &x).contains("assume between"));
    let unlike: [i64; 4] = [1 << 31, 0, -48, 48];
    assert!(unlike[..3].iter().all(|&n| !text(1, n, &x).contains("assume between")));
}

/// `y = a b^T` of `a: [rows, 128]`, whose rows begin at `FIRST` and are `pitch` elements apart, and `b: [64, 128]`.
#[tilefuse::kernel(warps = 4, stages = 3)]
fn rows_at_a_distance<T: Short>(
    a: Ptr<T>,
    b: Ptr<T>,
    y: Ptr<f32>,
    pitch: i64,
    rows: i64,
    terms: i64,
    #[constant] FIRST: usize,
) {
    let i = program_id(0) * 64;
    let a = make_descriptor(a + FIRST, (rows, terms), (pitch, 1), [64, 64]);
    let b = make_descriptor(b, (64, terms), (terms, 1), [64, 64]);
    let mut sum = zeros::<f32>([64, 64]);
    for at in (0..terms).step_by(64) {
        sum = dot(a.load((i, at)), trans(b.load((0, at))), sum);
    }
    make_descriptor(y, (rows, 64), (64, 1), [64, 64]).store((i, 0), sum);
}

/// The copies of boxes on a GPU take sizes and strides that are arguments, but no stride of 0 and none that is negative.
#[test]
fn the_distance_of_rows_may_be_any_number() {
    use tilefuse_codegen::ptx::{PtxOptions, Target, compile_ptx};
    setup();
    for (pitch, rows, copied) in [
        (128, 100, true),
        (144, 128, true),
        (8, 90, true),
        (130, 70, false),
        (0, 64, false),
        (-128, 100, false),
        (128, 0, false),
        (128, -64, false),
    ] {
        let terms = 128i64;
        let memory = Tensor::randn([20_000], *F32).to_kind(Kind::BFloat16);
        let b = Tensor::randn([64, terms], *F32).to_kind(Kind::BFloat16);
        let first: i64 = if pitch < 0 { 128 * 100 } else { 0 };
        let y = Tensor::full([128, 64], 7.0, *F32);
        let args = (&memory, &b, &y, pitch, rows, terms, first as usize);
        rows_at_a_distance.launch(2, args).unwrap();
        let a = (0..rows.max(0)).map(|row| memory.narrow(0, first + row * pitch, terms)).collect::<Vec<_>>();
        let rest = y.narrow(0, rows.max(0), 128 - rows.max(0));
        assert!(bool::try_from(rest.eq(7.0).all()).unwrap(), "rows that are not there, {pitch} {rows}");
        if !a.is_empty() {
            let wide = |t: Tensor| t.to_kind(Kind::Double);
            let expected = wide(Tensor::stack(&a, 0)).matmul(&wide(b.shallow_clone()).tr());
            let found = wide(y.narrow(0, 0, rows));
            assert!(found.allclose(&expected, 1e-4, 1e-3, false), "{pitch} {rows}");
        }
        let kernel = rows_at_a_distance.specialize(args).unwrap();
        let ptx = compile_ptx(kernel.program(), Target::Sm90a, &PtxOptions::default()).unwrap();
        let is_copied = ptx.tensor_maps.iter().any(|map| map.param == 0);
        assert_eq!(is_copied, copied, "{pitch} {rows}\n{}", kernel.program());
    }
}
