//! Transposed convolutions of a model's own filters, as kernels of ours with their neighbours in them.

use tch::{Device, Kind, Tensor};
use tilefuse::{Fused, Options, Prepack, Products, StepReport};

use crate::common::{THREADS, setup};

/// A transposed convolution's sizes and attributes.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: i64,
    channels: i64,
    filters: i64,
    image: [i64; 2],
    kernel: [i64; 2],
    stride: i64,
    padding: i64,
    /// Further pixels behind the result.
    more: i64,
    dilation: i64,
    groups: i64,
}

const PLAIN: Case = Case {
    batch: 1,
    channels: 12,
    filters: 24,
    image: [9, 11],
    kernel: [4, 4],
    stride: 2,
    padding: 1,
    more: 0,
    dilation: 1,
    groups: 1,
};

fn random(shape: &[i64], kind: Kind) -> Tensor {
    (Tensor::rand(shape, (Kind::Float, Device::Cpu)) - 0.5).to_kind(kind)
}

struct Model {
    case: Case,
    weight: Tensor,
    bias: Option<Tensor>,
    /// What is added behind an activation.
    residual: Option<Tensor>,
}

impl Model {
    fn new(case: Case, kind: Kind, neighbours: bool) -> Model {
        let of = case.filters / case.groups;
        let mut model = Model {
            case,
            weight: random(&[case.channels, of, case.kernel[0], case.kernel[1]], kind),
            bias: neighbours.then(|| random(&[case.filters], kind)),
            residual: None,
        };
        if neighbours {
            let size = model.forward(&[model.image(kind)])[0].size();
            model.residual = Some(random(&size, kind));
        }
        model
    }

    fn image(&self, kind: Kind) -> Tensor {
        let Case { batch, channels, image: [height, width], .. } = self.case;
        random(&[batch, channels, height, width], kind)
    }

    fn forward(&self, x: &[Tensor]) -> Vec<Tensor> {
        let two = |n: i64| [n, n];
        let Case { stride, padding, more, dilation, groups, .. } = self.case;
        let (stride, padding, dilation) = (two(stride), two(padding), two(dilation));
        let bias = self.bias.as_ref();
        let y = x[0].conv_transpose2d(&self.weight, bias, stride, padding, two(more), groups, dilation);
        vec![match &self.residual {
            Some(residual) => y.relu() + residual,
            None => y,
        }]
    }

    /// With the same weights, in `kind`.
    fn cast(&self, kind: Kind) -> Model {
        Model {
            case: self.case,
            weight: self.weight.to_kind(kind),
            bias: self.bias.as_ref().map(|t| t.to_kind(kind)),
            residual: self.residual.as_ref().map(|t| t.to_kind(kind)),
        }
    }
}

fn fused(model: Model, products: Products) -> Fused<Model> {
    tilefuse::fuse_with(model, Options { products, prepack_weights: Prepack::Always, ..Options::default() })
}

fn call(fused: &Fused<Model>, x: &Tensor) -> Tensor {
    fused.run_with(&[x.shallow_clone()], |model, x| model.forward(x)).unwrap().remove(0)
}

/// The names of a plan's kernels, and the reasons of its library calls.
fn steps(fused: &Fused<Model>, x: &Tensor) -> (Vec<String>, Vec<String>) {
    let plan = fused.explain_with(&[x.shallow_clone()], |model, x| model.forward(x)).unwrap();
    let (mut kernels, mut calls) = (Vec::new(), Vec::new());
    for step in &plan.steps {
        match step {
            StepReport::Kernel { name, .. } => kernels.push(name.clone()),
            StepReport::Extern { reason, .. } => calls.push(reason.clone().unwrap_or_default()),
        }
    }
    (kernels, calls)
}

/// Compares a call with sums in `f64`, and its strides with eager's.
#[track_caller]
fn agrees(fused: &Fused<Model>, x: &Tensor) {
    let eager = fused.model().forward(&[x.shallow_clone()]).remove(0);
    let exact = fused.model().cast(Kind::Double).forward(&[x.to_kind(Kind::Double)]).remove(0);
    let ours = call(fused, x);
    assert_eq!((ours.size(), ours.stride()), (eager.size(), eager.stride()));
    let apart = (ours.to_kind(Kind::Double) - &exact).abs().max().double_value(&[]);
    let limit = match x.kind() {
        Kind::Double => 1e-12,
        Kind::Float => 1e-5,
        Kind::Half => 2e-3,
        _ => 1e-2,
    };
    let most = limit * exact.abs().max().double_value(&[]).max(1.0);
    assert!(apart <= most, "{apart} in {:?} of {:?}", fused.model().case, x.kind());
}

/// One kernel, and nothing of libtorch's.
#[track_caller]
fn check(case: Case, kind: Kind, neighbours: bool) {
    let fused = fused(Model::new(case, kind, neighbours), Products::Generated);
    let x = fused.model().image(kind);
    let name = if neighbours { "fused_conv_transpose2d_relu_add" } else { "fused_conv_transpose2d" };
    assert_eq!(steps(&fused, &x), (vec![name.to_owned()], vec![]), "{case:?}");
    agrees(&fused, &x);
    agrees(&fused, &fused.model().image(kind));
}

#[test]
fn strides_paddings_dilations_and_groups() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let cases = [
        PLAIN,
        Case { kernel: [2, 2], padding: 0, ..PLAIN },
        Case { kernel: [3, 3], more: 1, filters: 5, ..PLAIN },
        Case { kernel: [3, 2], padding: 0, batch: 2, ..PLAIN },
        Case { stride: 1, kernel: [3, 3], ..PLAIN },
        Case { stride: 3, kernel: [5, 2], padding: 0, more: 2, channels: 7, ..PLAIN },
        Case { stride: 3, kernel: [1, 1], padding: 0, ..PLAIN },
        Case { stride: 8, kernel: [16, 16], padding: 4, image: [5, 3], filters: 21, ..PLAIN },
        Case { dilation: 2, ..PLAIN },
        Case { dilation: 3, kernel: [3, 4], more: 2, ..PLAIN },
        Case { dilation: 6, stride: 4, kernel: [2, 3], more: 1, ..PLAIN },
        Case { groups: 2, filters: 64, ..PLAIN },
        Case { image: [1, 1], ..PLAIN },
        Case { image: [31, 57], filters: 40, batch: 2, ..PLAIN },
    ];
    for case in cases {
        for neighbours in [false, true] {
            check(case, Kind::Float, neighbours);
        }
    }
    for kind in [Kind::Double, Kind::BFloat16, Kind::Half] {
        check(PLAIN, kind, true);
    }
}

/// Filters that fill no vectors are read as they lie: one for each channel, several for one, and groups of both; with strides
/// and kernels so large that phases are computed one after the other, too.
#[test]
fn groups_of_no_whole_vectors() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let each = Case { filters: 12, groups: 12, ..PLAIN };
    let grouped = Case { filters: 20, groups: 4, ..PLAIN };
    let cases = [
        each,
        Case { image: [31, 57], batch: 2, ..each },
        Case { stride: 1, kernel: [3, 3], ..each },
        Case { stride: 3, kernel: [5, 2], padding: 0, more: 2, ..each },
        Case { stride: 8, kernel: [16, 16], padding: 4, image: [5, 3], ..each },
        Case { stride: 3, kernel: [1, 1], padding: 0, ..each },
        Case { dilation: 3, kernel: [3, 4], more: 2, ..each },
        Case { filters: 36, ..each },
        grouped,
        Case { groups: 2, filters: 6, ..PLAIN },
        Case { image: [31, 57], batch: 2, ..grouped },
        Case { stride: 5, kernel: [4, 7], more: 3, ..grouped },
        Case { dilation: 6, stride: 4, kernel: [2, 3], more: 1, ..grouped },
        Case { image: [1, 1], ..grouped },
        // Too many taps for packed filters.
        Case { stride: 32, kernel: [2, 64], padding: 0, channels: 3, filters: 2, image: [2, 3], ..PLAIN },
    ];
    for case in cases {
        for neighbours in [false, true] {
            check(case, Kind::Float, neighbours);
        }
    }
    for case in [each, grouped] {
        for kind in [Kind::Double, Kind::BFloat16, Kind::Half] {
            check(case, kind, true);
        }
    }
}

/// One filter that is repeated for all channels of a row, and images whose channels are innermost.
#[test]
fn groups_at_strides() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let model = |(): &(), x: &[Tensor]| {
        let none = None::<&Tensor>;
        let filters = x[1].expand([8, 1, 12], false);
        let a = x[0].conv_transpose1d(&filters, none, [2], [5], [0], 8, [1]);
        let b = x[2].permute([0, 3, 1, 2]);
        vec![a, b.conv_transpose2d(&x[3], none, [2, 2], [1, 1], [1, 1], 4, [1, 1])]
    };
    let shapes: [&[i64]; 4] = [&[2, 8, 301], &[1, 1, 12], &[2, 7, 9, 12], &[12, 5, 3, 3]];
    let inputs = shapes.map(|shape| random(shape, Kind::Float));
    let eager = model(&(), &inputs);
    let exact = model(&(), &inputs.each_ref().map(|t| t.to_kind(Kind::Double)));
    let fused = tilefuse::fuse_with(
        (),
        Options { products: Products::Generated, prepack_weights: Prepack::Always, ..Options::default() },
    );
    let plan = fused.explain_with(&inputs, model).unwrap();
    assert_eq!(plan.extern_ops, 0, "{plan}");
    for _ in 0..2 {
        let ours = fused.run_with(&inputs, model).unwrap();
        for ((ours, eager), exact) in ours.iter().zip(&eager).zip(&exact) {
            assert_eq!((ours.size(), ours.stride()), (eager.size(), eager.stride()));
            let apart = (ours.to_kind(Kind::Double) - exact).abs().max().double_value(&[]);
            assert!(apart <= 1e-5 * exact.abs().max().double_value(&[]).max(1.0), "{apart}");
        }
    }
}

/// Between other convolutions, a filter of each channel is one of their order.
#[test]
fn a_filter_for_each_channel() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let weights = vec![
        random(&[20, 3, 1, 1], Kind::Float),
        random(&[20, 1, 3, 3], Kind::Float),
        random(&[20, 5, 2, 2], Kind::Float),
    ];
    let model = |w: &Vec<Tensor>, x: &[Tensor]| {
        let (none, two) = (None::<&Tensor>, |n: i64| [n, n]);
        let y = x[0].conv2d(&w[0], none, two(1), two(0), two(1), 1).relu();
        let y = y.conv_transpose2d(&w[1], none, two(2), two(1), two(1), 20, two(1)).relu();
        vec![y.conv_transpose2d(&w[2], none, two(2), two(0), two(0), 1, two(1))]
    };
    let x = random(&[2, 3, 9, 13], Kind::Float);
    let exact = {
        let double = |t: &Tensor| t.to_kind(Kind::Double);
        model(&weights.iter().map(double).collect(), &[double(&x)]).remove(0)
    };
    let fused = tilefuse::fuse_with(
        weights,
        Options { products: Products::Generated, prepack_weights: Prepack::Always, ..Options::default() },
    );
    let inputs = [x];
    let plan = fused.explain_with(&inputs, model).unwrap();
    assert_eq!((plan.kernels_fused, plan.extern_ops), (3, 0), "{plan}");
    for _ in 0..2 {
        let ours = fused.run_with(&inputs, model).unwrap().remove(0);
        let apart = (ours.to_kind(Kind::Double) - &exact).abs().max().double_value(&[]);
        assert!(apart <= 1e-5 * exact.abs().max().double_value(&[]), "{apart}");
    }
}

#[test]
fn one_axis_and_three() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let row = random(&[6, 5, 4], Kind::Float);
    let cube = random(&[6, 5, 3, 2, 4], Kind::Float);
    let (x, y) = (random(&[2, 6, 13], Kind::Float), random(&[1, 6, 4, 5, 6], Kind::Float));
    let weights = vec![row, cube];
    let model = |w: &Vec<Tensor>, x: &[Tensor]| {
        let none = None::<&Tensor>;
        let a = x[0].conv_transpose1d(&w[0], none, [3], [1], [2], 1, [1]);
        let b = x[1].conv_transpose3d(&w[1], none, [2, 1, 2], [1, 0, 1], [1, 0, 0], 1, [1, 2, 1]);
        vec![a, b]
    };
    let exact = {
        let double = |t: &Tensor| t.to_kind(Kind::Double);
        model(&weights.iter().map(double).collect(), &[double(&x), double(&y)])
    };
    let options =
        Options { products: Products::Generated, prepack_weights: Prepack::Always, ..Options::default() };
    let fused = tilefuse::fuse_with(weights, options);
    let inputs = [x, y];
    let plan = fused.explain_with(&inputs, model).unwrap();
    assert_eq!((plan.kernels_fused, plan.extern_ops), (2, 0), "{plan}");
    for _ in 0..2 {
        for (ours, exact) in fused.run_with(&inputs, model).unwrap().iter().zip(&exact) {
            assert!((ours.to_kind(Kind::Double) - exact).abs().max().double_value(&[]) < 1e-5);
        }
    }
}

/// Filters that are computed, or handed in at other strides, are packed by a kernel at each call.
#[test]
fn filters_that_are_no_weights() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let model = |(): &(), x: &[Tensor]| {
        let (none, two) = (None::<&Tensor>, |n: i64| [n, n]);
        let y = x[0].conv_transpose2d(&x[1].transpose(0, 1), none, two(2), two(1), two(1), 2, two(1));
        vec![y.relu().conv_transpose2d(&(&x[2] * 0.5), none, two(1), two(0), two(0), 1, two(2))]
    };
    for (kind, limit) in [(Kind::Float, 1e-5), (Kind::Double, 1e-12), (Kind::BFloat16, 2e-2)] {
        let shapes: [&[i64]; 3] = [&[2, 10, 7, 9], &[32, 10, 3, 4], &[64, 37, 3, 3]];
        let inputs = shapes.map(|shape| random(shape, kind));
        let exact = model(&(), &inputs.each_ref().map(|t| t.to_kind(Kind::Double))).remove(0);
        let options =
            Options { products: Products::Generated, prepack_weights: Prepack::Always, ..Options::default() };
        let fused = tilefuse::fuse_with((), options);
        let plan = fused.explain_with(&inputs, model).unwrap();
        assert_eq!((plan.kernels_fused, plan.extern_ops), (5, 0), "{plan}");
        for _ in 0..2 {
            let ours = fused.run_with(&inputs, model).unwrap().remove(0);
            let apart = (ours.to_kind(Kind::Double) - &exact).abs().max().double_value(&[]);
            assert!(apart <= limit * exact.abs().max().double_value(&[]), "{apart} in {kind:?}");
        }
        // Other filters in the next call.
        let other = [inputs[0].shallow_clone(), &inputs[1] + 1.0, inputs[2].shallow_clone()];
        let exact = model(&(), &other.each_ref().map(|t| t.to_kind(Kind::Double))).remove(0);
        let ours = fused.run_with(&other, model).unwrap().remove(0);
        let apart = (ours.to_kind(Kind::Double) - &exact).abs().max().double_value(&[]);
        assert!(apart <= limit * exact.abs().max().double_value(&[]), "{apart} in {kind:?}");
    }
}

/// A write to a weight in groups of several vectors shows in the next call.
#[test]
fn a_write_shows_in_the_next_call() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    for case in [PLAIN, Case { groups: 3, filters: 96, ..PLAIN }] {
        let fused = fused(Model::new(case, Kind::Float, true), Products::Generated);
        let x = fused.model().image(Kind::Float);
        agrees(&fused, &x);
        agrees(&fused, &x);
        let _ = fused.model().weight.shallow_clone().narrow(0, case.channels - 1, 1).fill_(3.0);
        agrees(&fused, &x);
    }
}

#[test]
fn threads_do_not_change_results() {
    setup();
    let _threads = THREADS.write();
    let _no_grad = tch::no_grad_guard();
    let before = tch::get_num_threads();
    let model = Model::new(Case { image: [23, 37], ..PLAIN }, Kind::Float, true);
    let x = model.image(Kind::Float);
    let on = |threads: i32| {
        tch::set_num_threads(threads);
        // Plans are made for a number of threads.
        let copy = model.cast(Kind::Float);
        let copy = Model { weight: copy.weight.copy(), ..copy };
        let fused = fused(copy, Products::Generated);
        // The first call is eager's.
        let _ = call(&fused, &x);
        call(&fused, &x)
    };
    let results = [1, 2, 3, 8].map(on);
    tch::set_num_threads(before);
    assert!(results.iter().all(|r| r.equal(&results[0])));
}

/// Elements that are no floats stay libtorch's, which the plan says, and all calls where that is asked for.
#[test]
fn others_stay_calls() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let mut model = Model::new(PLAIN, Kind::Int64, false);
    model.weight = Tensor::randint_low(-9, 9, [12, 24, 4, 4], (Kind::Int64, Device::Cpu));
    let integers = fused(model, Products::Generated);
    let x = Tensor::randint_low(-9, 9, [1, 12, 9, 11], (Kind::Int64, Device::Cpu));
    assert_eq!(steps(&integers, &x), (vec![], vec![String::from("no kernel takes its element types")]));
    agrees(&integers, &x);
    let library = fused(Model::new(PLAIN, Kind::Float, false), Products::Library);
    let x = library.model().image(Kind::Float);
    assert_eq!(steps(&library, &x).0.len(), 0);
}

/// Root of the mean square of differences.
fn rmse(a: &Tensor, b: &Tensor) -> f64 {
    (a.to_kind(Kind::Double) - b.to_kind(Kind::Double)).square().mean(None).sqrt().double_value(&[])
}

/// The error of sums, beside eager's, which adds up what each tap gives over the channels.
#[test]
fn sums_err_no_more_than_eager_s() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let mut worse = Vec::new();
    for groups in [1, 2, 8, 16, 64] {
        for (channels, filters, kernel, stride) in
            [(64, 64, 3, 2), (64, 64, 4, 2), (256, 64, 3, 1), (512, 64, 2, 2), (64, 64, 5, 3)]
        {
            let image = Tensor::randn([1, channels, 4, 5, 6], (Kind::Float, Device::Cpu));
            let three = |n: i64| [n, n, n];
            let shape = [channels, filters / groups, kernel, kernel, kernel];
            let weight = Tensor::randn(shape, (Kind::Float, Device::Cpu));
            let model = move |w: &Tensor, x: &[Tensor]| {
                let none = None::<&Tensor>;
                vec![x[0].conv_transpose3d(w, none, three(stride), three(1), three(0), groups, three(1))]
            };
            let double = |t: &Tensor| t.to_kind(Kind::Double);
            let exact = model(&double(&weight), &[double(&image)]).remove(0);
            let inputs = [image];
            let eager = rmse(&model(&weight, &inputs)[0], &exact);
            let options = Options {
                products: Products::Generated,
                prepack_weights: Prepack::Always,
                ..Options::default()
            };
            let fused = tilefuse::fuse_with(weight, options);
            let plan = fused.explain_with(&inputs, model).unwrap();
            assert_eq!(plan.extern_ops, 0, "{plan}");
            let ours = rmse(&fused.run_with(&inputs, model).unwrap()[0], &exact);
            println!(
                "{groups} groups {channels}->{filters} {kernel}^3 / {stride}: {:.2} of eager's",
                ours / eager
            );
            if ours > 1.5 * eager {
                worse.push(format!(
                    "{groups} groups {channels}->{filters} {kernel}^3 / {stride}: {}",
                    ours / eager
                ));
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}
