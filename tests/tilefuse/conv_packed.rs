//! Convolutions of a model's own filters, which are packed, and pooling between them.

use tch::{Device, Kind, Tensor};
use tilefuse::{Fused, Options, Prepack, Products, StepReport};

use crate::common::{THREADS, has_gpu, setup};

const NONE: Option<&Tensor> = None;

/// A strided convolution, pooling, a depthwise one, one of 1 x 1 with a residual, and one with gaps between its taps.
struct Model {
    first: Tensor,
    bias: Tensor,
    depthwise: Tensor,
    pointwise: Tensor,
    last: Tensor,
    /// Whether pixels are averaged at the end.
    averages: bool,
}

impl Model {
    fn new(kind: Kind, averages: bool) -> Model {
        let draw = |shape: &[i64]| (Tensor::rand(shape, (Kind::Float, Device::Cpu)) - 0.5).to_kind(kind);
        Model {
            first: draw(&[40, 3, 3, 3]),
            bias: draw(&[40]),
            depthwise: draw(&[40, 1, 3, 3]),
            pointwise: draw(&[40, 40, 1, 1]),
            last: draw(&[21, 40, 3, 3]),
            averages,
        }
    }

    fn forward(&self, x: &[Tensor]) -> Vec<Tensor> {
        let two = |n: i64| [n, n];
        let x = x[0].conv2d(&self.first, Some(&self.bias), two(2), two(1), two(1), 1).relu();
        let x = x.max_pool2d(two(3), two(2), two(1), two(1), false);
        let y = x.conv2d(&self.depthwise, NONE, two(1), two(1), two(1), 40).relu();
        let y = (y.conv2d(&self.pointwise, NONE, two(1), two(0), two(1), 1) + &x).relu();
        let y = y.conv2d(&self.last, NONE, two(1), two(2), two(2), 1);
        vec![if self.averages { y.mean_dim([2i64, 3].as_slice(), false, None::<Kind>) } else { y }]
    }

    /// The same in `f64`.
    fn exact(&self) -> Model {
        self.with(|t| t.to_kind(Kind::Double))
    }

    /// With other weights.
    fn with(&self, of: impl Fn(&Tensor) -> Tensor) -> Model {
        Model {
            first: of(&self.first),
            bias: of(&self.bias),
            depthwise: of(&self.depthwise),
            pointwise: of(&self.pointwise),
            last: of(&self.last),
            averages: self.averages,
        }
    }
}

fn fused(kind: Kind, averages: bool) -> Fused<Model> {
    let options =
        Options { products: Products::Generated, prepack_weights: Prepack::Always, ..Options::default() };
    tilefuse::fuse_with(Model::new(kind, averages), options)
}

fn call(fused: &Fused<Model>, x: &Tensor) -> Tensor {
    fused.run_with(&[x.shallow_clone()], |model, x| model.forward(x)).unwrap().remove(0)
}

/// Compares a call with the model's weights as they are in `f64`, and its strides with eager's.
#[track_caller]
fn check(fused: &Fused<Model>, x: &Tensor) {
    let eager = fused.model().forward(&[x.shallow_clone()]).remove(0);
    let exact = fused.model().exact().forward(&[x.to_kind(Kind::Double)]).remove(0);
    let ours = call(fused, x);
    assert_eq!((ours.size(), ours.stride()), (eager.size(), eager.stride()));
    if exact.numel() == 0 {
        return;
    }
    let apart = (ours.to_kind(Kind::Double) - &exact).abs().max().double_value(&[]);
    let limit = if x.kind() == Kind::Double { 1e-12 } else { 1e-5 };
    assert!(apart <= limit * exact.abs().max().double_value(&[]).max(1.0), "{apart}");
}

fn image(batch: i64, [height, width]: [i64; 2], kind: Kind) -> Tensor {
    (Tensor::rand([batch, 3, height, width], (Kind::Float, Device::Cpu)) - 0.5).to_kind(kind)
}

/// The same numbers with the channels innermost, as of a model that was made for that order.
fn channels_last(x: &Tensor) -> Tensor {
    x.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2])
}

#[test]
fn whole_networks_agree_with_sums_in_doubles() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    for kind in [Kind::Float, Kind::Double] {
        for averages in [true, false] {
            for (batch, size) in [(1, [32, 32]), (2, [57, 31]), (1, [7, 5]), (0, [32, 32])] {
                let (fused, x) = (fused(kind, averages), image(batch, size, kind));
                check(&fused, &x);
                check(&fused, &x);
            }
        }
    }
}

/// Every convolution is a kernel over packed filters, and nothing is brought into another order between them.
#[test]
fn filters_are_packed_and_no_step_lies_between() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let (fused, x) = (fused(Kind::Float, true), image(1, [64, 64], Kind::Float));
    let plan = fused.explain_with(&[x], |model, x| model.forward(x)).unwrap();
    let name = |step: &StepReport| match step {
        StepReport::Kernel { name, .. } => name.clone(),
        StepReport::Extern { .. } => String::from("libtorch"),
    };
    let names: Vec<String> = plan.steps.iter().map(name).collect();
    let expected = [
        "fused_conv2d_relu",
        "fused_max_pool2d",
        "fused_conv2d_relu",
        "fused_conv2d_add_relu",
        "fused_conv2d",
        "fused_mean",
    ];
    assert_eq!(names, expected);
    // Panels of 48, 16, 48 and 32 columns, or of what else the widths of tiles are.
    assert!(plan.packed_bytes >= 4 * (40 * 27 + 40 * 9 + 40 * 40 + 21 * 360), "{}", plan.packed_bytes);
}

/// Convolutions read and write channels-last, libtorch's and ours with what is behind them.
#[test]
fn on_a_gpu_convolutions_are_in_channels_last() {
    setup();
    if !has_gpu() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    for (kind, limit) in [(Kind::Half, 4e-3), (Kind::BFloat16, 3e-2)] {
        for averages in [true, false] {
            for (batch, size) in [(1, [32, 32]), (2, [57, 31]), (3, [64, 48])] {
                let model = Model::new(kind, averages).with(|t| t.to_device(Device::Cuda(0)));
                let options = Options { products: Products::Generated, ..Options::default() };
                let fused = tilefuse::fuse_with(model, options);
                let x = image(batch, size, kind).to_device(Device::Cuda(0));
                let eager = fused.model().forward(&[x.shallow_clone()]).remove(0);
                let exact = fused.model().exact().forward(&[x.to_kind(Kind::Double)]).remove(0);
                for _ in 0..3 {
                    let ours = call(&fused, &x);
                    assert_eq!((ours.size(), ours.stride()), (eager.size(), eager.stride()));
                    let apart = (ours.to_kind(Kind::Double) - &exact).abs().max().double_value(&[]);
                    assert!(
                        apart <= limit * exact.abs().max().double_value(&[]).max(1.0),
                        "{kind:?}: {apart}"
                    );
                }
                let plan = fused.explain_with(&[x], |model, x| model.forward(x)).unwrap();
                let text = plan.to_string();
                // That of groups.
                assert!(plan.extern_ops <= 1, "{text}");
                assert!(text.contains("fused_conv2d_add_relu"), "{text}");
            }
        }
    }
}

#[test]
fn images_lie_at_any_strides() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    for averages in [true, false] {
        let whole = image(2, [40, 44], Kind::Float);
        let inputs = [
            channels_last(&whole),
            whole.narrow(2, 3, 33).narrow(3, 1, 41),
            whole.transpose(2, 3),
            whole.narrow(0, 0, 1).expand([3, 3, 40, 44], false),
        ];
        for x in inputs {
            let fused = fused(Kind::Float, averages);
            check(&fused, &x);
            check(&fused, &x);
        }
    }
}

#[test]
fn a_write_shows_in_the_next_call() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let (fused, x) = (fused(Kind::Float, true), image(1, [32, 32], Kind::Float));
    check(&fused, &x);
    check(&fused, &x);
    for weight in [&fused.model().first, &fused.model().depthwise, &fused.model().pointwise] {
        let _ = weight.shallow_clone().g_mul_scalar_(-2.0);
        check(&fused, &x);
    }
    let _ = fused.model().last.shallow_clone().narrow(1, 39, 1).fill_(3.0);
    check(&fused, &x);
}

#[test]
fn threads_do_not_change_results() {
    setup();
    let _threads = THREADS.write();
    let _no_grad = tch::no_grad_guard();
    let before = tch::get_num_threads();
    let (fused, x) = (fused(Kind::Float, true), image(2, [61, 64], Kind::Float));
    let mut results = Vec::new();
    for threads in [1, 2, 3] {
        tch::set_num_threads(threads);
        let fresh = Model {
            first: fused.model().first.copy(),
            bias: fused.model().bias.copy(),
            depthwise: fused.model().depthwise.copy(),
            pointwise: fused.model().pointwise.copy(),
            last: fused.model().last.copy(),
            averages: true,
        };
        let options =
            Options { products: Products::Generated, prepack_weights: Prepack::Always, ..Options::default() };
        let fused = tilefuse::fuse_with(fresh, options);
        // The first call is eager's.
        let _ = call(&fused, &x);
        results.push(call(&fused, &x));
    }
    tch::set_num_threads(before);
    assert!(results.iter().all(|r| r.equal(&results[0])));
}

/// What is not finite reaches what reads it, and padding is no factor of infinite weights.
#[test]
fn numbers_that_are_not_finite_stay_where_they_are_read() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let fused = fused(Kind::Float, false);
    let x = image(1, [64, 64], Kind::Float);
    let _ = x.narrow(2, 0, 1).narrow(3, 0, 1).fill_(f64::NAN);
    let _ = x.narrow(2, 63, 1).narrow(3, 30, 1).fill_(f64::INFINITY);
    let eager = fused.model().forward(&[x.shallow_clone()]).remove(0);
    for _ in 0..2 {
        let ours = call(&fused, &x);
        assert!(ours.isfinite().equal(&eager.isfinite()));
    }
}

/// Maxima of windows of every form beside eager's, bit by bit.
#[test]
fn windows() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let forms = [
        (3, 2, 1, 1, false),
        (2, 2, 0, 1, false),
        (3, 2, 1, 1, true),
        (2, 3, 1, 1, true),
        (3, 1, 1, 2, false),
        (1, 2, 0, 1, false),
        (4, 1, 2, 1, false),
    ];
    for (kernel, stride, padding, dilation, ceil) in forms {
        for kind in [Kind::Float, Kind::Double, Kind::BFloat16, Kind::Half] {
            let x = image(2, [13, 18], kind);
            let _ = x.narrow(2, 3, 1).narrow(3, 0, 2).fill_(f64::NAN);
            let _ = x.narrow(2, 9, 3).fill_(f64::NEG_INFINITY);
            for x in [x.shallow_clone(), channels_last(&x), x.get(1), x.narrow(3, 2, 11)] {
                let two = |n: i64| [n, n];
                let pool = move |x: &[Tensor]| {
                    vec![x[0].max_pool2d(two(kernel), two(stride), two(padding), two(dilation), ceil)]
                };
                let eager = pool(&[x.shallow_clone()]).remove(0);
                let fused = tilefuse::fuse(pool);
                let plan = fused.explain_with(&[x.shallow_clone()], |model, x| model(x)).unwrap();
                assert!(plan.steps.iter().all(|s| matches!(s, StepReport::Kernel { .. })));
                for _ in 0..2 {
                    let ours = fused.call(&[x.shallow_clone()]).unwrap().remove(0);
                    assert_eq!((ours.size(), ours.stride()), (eager.size(), eager.stride()));
                    assert!(ours.isnan().equal(&eager.isnan()));
                    let (ours, eager) = (ours.nan_to_num(7.0, None, None), eager.nan_to_num(7.0, None, None));
                    assert!(ours.equal(&eager), "{kernel} {stride} {padding} {dilation} {ceil} {kind:?}");
                }
            }
        }
    }
}

#[test]
fn averages_over_windows_are_those_of_eager() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    // Kernel, stride, padding, whether windows are rounded up and count padding, and a divisor.
    let forms: [(i64, i64, i64, bool, bool, Option<i64>); 8] = [
        (2, 2, 0, false, true, None),
        (3, 2, 1, false, true, None),
        (3, 2, 1, false, false, None),
        (3, 2, 1, true, true, None),
        (3, 2, 1, true, false, None),
        (4, 3, 2, true, false, None),
        (3, 1, 0, true, true, Some(7)),
        (2, 3, 1, true, false, Some(-2)),
    ];
    for (kernel, stride, padding, ceil, padded, divisor) in forms {
        for kind in [Kind::Float, Kind::Double, Kind::BFloat16, Kind::Half] {
            let x = image(2, [13, 18], kind);
            for x in [x.shallow_clone(), channels_last(&x), x.get(1), x.narrow(3, 2, 11)] {
                let two = |n: i64| [n, n];
                let pool = move |x: &[Tensor]| {
                    vec![x[0].avg_pool2d(two(kernel), two(stride), two(padding), ceil, padded, divisor)]
                };
                let eager = pool(&[x.shallow_clone()]).remove(0);
                let exact = pool(&[x.to_kind(Kind::Double)]).remove(0);
                let fused = tilefuse::fuse(pool);
                let plan = fused.explain_with(&[x.shallow_clone()], |model, x| model(x)).unwrap();
                assert!(plan.steps.iter().all(|s| matches!(s, StepReport::Kernel { .. })), "{plan}");
                for _ in 0..2 {
                    let ours = fused.call(&[x.shallow_clone()]).unwrap().remove(0);
                    assert_eq!((ours.size(), ours.stride()), (eager.size(), eager.stride()));
                    let error = |y: &Tensor| (y - &exact).abs().max().double_value(&[]);
                    let form = (kernel, stride, padding, ceil, padded, divisor, kind);
                    assert!(
                        error(&ours) <= error(&eager) + 1e-6,
                        "{form:?}: {} {}",
                        error(&ours),
                        error(&eager)
                    );
                }
            }
        }
    }
}
