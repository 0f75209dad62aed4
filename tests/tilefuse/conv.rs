//! Convolutions as generated kernels with their neighbours in them, beside eager.

use tch::{Device, Kind, Tensor};
use tilefuse::{Options, Prepack, Products, StepReport};

use crate::common::setup;

/// A convolution's sizes and attributes.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: i64,
    channels: i64,
    filters: i64,
    image: [i64; 2],
    kernel: [i64; 2],
    stride: i64,
    padding: i64,
    dilation: i64,
    groups: i64,
}

const PLAIN: Case = Case {
    batch: 1,
    channels: 8,
    filters: 16,
    image: [14, 14],
    kernel: [3, 3],
    stride: 1,
    padding: 1,
    dilation: 1,
    groups: 1,
};

fn random(shape: &[i64], kind: Kind) -> Tensor {
    (Tensor::rand(shape, (Kind::Float, Device::Cpu)) - 0.5).to_kind(kind)
}

fn options() -> Options {
    Options { products: Products::Generated, prepack_weights: Prepack::Always, ..Options::default() }
}

/// The names of a plan's kernels, and the number of its library calls.
fn steps(explanation: &tilefuse::Explanation) -> (Vec<String>, usize) {
    let mut kernels = Vec::new();
    let mut library = 0;
    for step in &explanation.steps {
        match step {
            StepReport::Kernel { name, .. } => kernels.push(name.clone()),
            StepReport::Extern { .. } => library += 1,
        }
    }
    (kernels, library)
}

fn conv(case: Case, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let two = |n: i64| [n, n];
    x.conv2d(w, bias, two(case.stride), two(case.padding), two(case.dilation), case.groups)
}

/// Runs a convolution, with a bias or without, as a kernel and in libtorch.
fn check(case: Case, kind: Kind, bias: bool) {
    let x = random(&[case.batch, case.channels, case.image[0], case.image[1]], kind);
    let w = random(&[case.filters, case.channels / case.groups, case.kernel[0], case.kernel[1]], kind);
    let b = random(&[case.filters], kind);
    let fused = tilefuse::fuse_with(move |x: &[Tensor]| vec![conv(case, &x[0], &x[1], x.get(2))], options());
    let mut inputs = vec![x, w];
    inputs.extend(bias.then_some(b));
    let plan = fused.explain_with(&inputs, |model, x| model(x)).unwrap();
    assert_eq!(steps(&plan).1, 0, "{case:?}");
    let doubles: Vec<Tensor> = inputs.iter().map(|t| t.to_kind(Kind::Double)).collect();
    let wanted = conv(case, &doubles[0], &doubles[1], doubles.get(2));
    for _ in 0..2 {
        let ours = fused.call(&inputs).unwrap().remove(0);
        assert_eq!(ours.size(), wanted.size());
        let error = (ours.to_kind(Kind::Double) - &wanted).abs().max().double_value(&[]);
        let size = wanted.abs().max().double_value(&[]).max(1.0);
        let limit = match kind {
            Kind::Double => 1e-12,
            Kind::Float => 1e-5,
            Kind::Half => 2e-3,
            _ => 1e-2,
        };
        assert!(error <= limit * size, "{error} in {case:?} of {kind:?}");
    }
}

#[test]
fn single_convolutions() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let cases = [
        PLAIN,
        Case { image: [1, 1], kernel: [1, 1], padding: 0, ..PLAIN },
        Case { image: [17, 23], channels: 3, filters: 5, ..PLAIN },
        Case { image: [17, 23], kernel: [1, 3], stride: 2, ..PLAIN },
        Case { image: [31, 40], channels: 3, filters: 17, kernel: [7, 7], stride: 2, padding: 3, ..PLAIN },
        Case { image: [28, 28], stride: 2, batch: 2, ..PLAIN },
        Case { image: [15, 15], stride: 3, padding: 0, kernel: [5, 5], ..PLAIN },
        Case { image: [15, 18], padding: 2, dilation: 2, ..PLAIN },
        Case { image: [9, 9], kernel: [1, 1], padding: 3, ..PLAIN },
        Case { image: [14, 14], kernel: [1, 1], padding: 0, stride: 2, filters: 33, ..PLAIN },
        Case { groups: 2, ..PLAIN },
        Case { groups: 8, ..PLAIN },
        Case { groups: 8, filters: 8, stride: 2, image: [28, 28], batch: 2, ..PLAIN },
        Case { groups: 8, filters: 8, image: [7, 7], ..PLAIN },
    ];
    for case in cases {
        for bias in [false, true] {
            check(case, Kind::Float, bias);
        }
    }
    check(PLAIN, Kind::Double, true);
    check(Case { stride: 2, ..PLAIN }, Kind::Double, false);
    check(PLAIN, Kind::BFloat16, true);
    check(Case { groups: 8, filters: 8, ..PLAIN }, Kind::Half, true);
}

/// Batch norm, activation and residual lie in the store of the convolution before them.
/// A tap outside of the image is under no pixel: in a depthwise convolution, as in libtorch's, an infinite weight there makes no NaN of
/// a zero.
#[test]
fn depthwise_weights_that_are_infinite() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let case = Case { filters: 8, groups: 8, ..PLAIN };
    let x = random(&[case.batch, case.channels, case.image[0], case.image[1]], Kind::Float);
    let w = random(&[case.filters, 1, case.kernel[0], case.kernel[1]], Kind::Float);
    let _ = w.select(3, 0).select(2, 0).fill_(f64::INFINITY);
    let fused = tilefuse::fuse_with(move |x: &[Tensor]| vec![conv(case, &x[0], &x[1], None)], options());
    let inputs = [x, w];
    for _ in 0..2 {
        let ours = fused.call(&inputs[..]).unwrap().remove(0);
        let eager = conv(case, &inputs[0], &inputs[1], None);
        assert!(ours.isnan().equal(&eager.isnan()), "{} and {} of eager's", ours.isnan(), eager.isnan());
    }
}

#[test]
fn neighbours_become_part_of_the_kernel() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let block = |x: &[Tensor]| {
        let norm = |y: Tensor, n: usize| {
            let part = |k: usize| Some(&x[n + k]);
            y.batch_norm(part(0), part(1), part(2), part(3), false, 0.1, 1e-5, true)
        };
        let y = norm(x[0].conv2d(&x[1], None::<&Tensor>, [1, 1], [1, 1], [1, 1], 1), 3).relu();
        let z = norm(y.conv2d(&x[2], None::<&Tensor>, [1, 1], [0, 0], [1, 1], 1), 7);
        vec![(z + &x[0]).relu()]
    };
    let mut inputs = vec![random(&[2, 24, 15, 15], Kind::Float)];
    inputs.extend([random(&[40, 24, 3, 3], Kind::Float), random(&[24, 40, 1, 1], Kind::Float)]);
    for n in [40, 24] {
        inputs.extend((0..3).map(|_| random(&[n], Kind::Float)));
        inputs.push(random(&[n], Kind::Float) + 1.0);
    }
    let fused = tilefuse::fuse_with(block, options());
    let (kernels, library) = steps(&fused.explain_with(&inputs, |model, x| model(x)).unwrap());
    assert_eq!((kernels.len(), library), (2, 0), "{kernels:?}");
    let doubles: Vec<Tensor> = inputs.iter().map(|t| t.to_kind(Kind::Double)).collect();
    let wanted = block(&doubles).remove(0);
    let ours = fused.call(&inputs).unwrap().remove(0);
    let error = (ours.to_kind(Kind::Double) - &wanted).abs().max().double_value(&[]);
    assert!(error <= 1e-5 * wanted.abs().max().double_value(&[]).max(1.0), "{error}");
}

/// The same bits on one thread and on two.
#[test]
fn threads_do_not_change_results() {
    setup();
    let _threads = crate::common::THREADS.write();
    let _no_grad = tch::no_grad_guard();
    let before = tch::get_num_threads();
    let (x, w) = (random(&[1, 32, 28, 28], Kind::Float), random(&[64, 32, 3, 3], Kind::Float));
    let model = |x: &[Tensor]| vec![conv(PLAIN, &x[0], &x[1], None)];
    let on = |threads: i32| {
        tch::set_num_threads(threads);
        let inputs = [x.shallow_clone(), w.shallow_clone()];
        let fused = tilefuse::fuse_with(model, options());
        // The first call is eager's.
        let _ = fused.call(&inputs).unwrap();
        fused.call(&inputs).unwrap().remove(0)
    };
    let (one, two) = (on(1), on(2));
    tch::set_num_threads(before);
    assert!(one.equal(&two));
}

/// All calls stay libtorch's where that is asked for.
#[test]
fn other_calls_stay_with_the_library() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let inputs = [random(&[1, 8, 9, 9], Kind::Float), random(&[8, 8, 3, 3], Kind::Float)];
    let library = tilefuse::fuse_with(
        |x: &[Tensor]| vec![conv(PLAIN, &x[0], &x[1], None)],
        Options { products: Products::Library, ..Options::default() },
    );
    assert_eq!(steps(&library.explain_with(&inputs, |model, x| model(x)).unwrap()), (Vec::new(), 1));
}
