//! Operators that libtorch alone has and that write their arguments: in-place random numbers, `out=`, running statistics.

use tch::{Device, Kind, Tensor};
use tilefuse::fuse;

use crate::common::{device, is_alone};

type Function = fn(&[Tensor]) -> Vec<Tensor>;

fn draw(device: Device) -> Vec<Tensor> {
    vec![
        Tensor::rand([33, 18], (Kind::Float, device)) + 0.1,
        Tensor::rand([18, 7], (Kind::Float, device)) + 0.1,
        Tensor::rand([18], (Kind::Float, device)) + 0.1,
        Tensor::rand([18], (Kind::Float, device)) + 0.1,
    ]
}

/// Calls the fused function several times, each time with the random numbers that eager draws: equal results, equal
/// inputs after the call, and an equal state of the generator.
fn check(name: &str, function: Function) {
    let _no_grad = tch::no_grad_guard();
    let device = device();
    let fused = fuse(function);
    for call in 0..3 {
        let (given, kept) = (draw(device), call);
        let other: Vec<Tensor> = given.iter().map(Tensor::copy).collect();
        let run = |f: &dyn Fn() -> Vec<Tensor>| {
            tch::manual_seed(kept);
            let results = f();
            (results, Tensor::rand([3], (Kind::Float, device)))
        };
        let (eager, after_eager) = run(&|| function(&given));
        let (ours, after_ours) =
            run(&|| fused.call(&other).unwrap_or_else(|error| panic!("{name}, call {call}: {error}")));
        for (o, e) in ours.iter().chain(&other).zip(eager.iter().chain(&given)) {
            assert!(o.allclose(e, 1e-5, 1e-5, true), "{name}, call {call} on {device:?}:\n{o}\nfor\n{e}");
        }
        assert_eq!(after_ours, after_eager, "{name}, call {call}: other random numbers were drawn");
    }
    let stats = fused.stats();
    assert!(stats.fused_calls > 0 && stats.eager_calls.is_empty(), "{name} on {device:?}: {stats:?}");
}

#[test]
fn random_numbers_drawn_in_place_are_eagers() {
    if !is_alone("writes::random_numbers_drawn_in_place_are_eagers") {
        return;
    }
    check("normal_", |x| vec![x[0].empty_like().normal_(1.0, 2.0) * &x[0]]);
    check("uniform_", |x| vec![(&x[0] * 2.0).uniform_(-1.0, 1.0) + &x[0]]);
    check("bernoulli_", |x| vec![(&x[0] * 2.0).bernoulli_float_(0.4) + &x[0]]);
    check("bernoulli_ of a tensor", |x| vec![(&x[0] * 2.0).bernoulli_(&x[0].sigmoid()) + &x[0]]);
    check("exponential_", |x| vec![(&x[0] * 2.0).exponential_(1.5) + &x[0]]);
    check("random_", |x| vec![(&x[0] * 2.0).random_from_(0, 100) + &x[0]]);
    check("log_normal_", |x| vec![(&x[0] * 2.0).log_normal_(0.0, 0.5) + &x[0]]);
    check("cauchy_", |x| vec![(&x[0] * 2.0).cauchy_(0.0, 0.5).clamp(-9.0, 9.0) + &x[0]]);
    check("geometric_", |x| vec![(&x[0] * 2.0).geometric_(0.3) + &x[0]]);
    check("dropout_", |x| vec![(&x[0] * 2.0).dropout_(0.5, true) + 1.0]);
    check("an input", |x| vec![x[0].shallow_clone().normal_(0.0, 1.0) * 2.0]);
    check("a transposed view", |x| {
        let y = &x[0] * 2.0;
        let _ = y.tr().normal_(0.0, 1.0);
        vec![y + 1.0]
    });
    check("a view with gaps", |x| {
        let y = &x[0] * 2.0;
        let _ = y.narrow(1, 3, 9).uniform_(5.0, 6.0);
        let _ = y.slice(0, 1, 30, 3).normal_(0.0, 1.0);
        vec![y + 1.0]
    });
    check("a part of an input", |x| vec![x[0].narrow(1, 3, 9).normal_(0.0, 1.0) * 2.0]);
    check("draws in order", |x| {
        let (mut a, mut b) = (&x[0] * 2.0, &x[0] + 1.0);
        let (b, a) = (b.normal_(0.0, 1.0), a.uniform_(0.0, 1.0));
        vec![a * b + x[0].rand_like()]
    });
}

#[test]
fn results_are_written_where_out_says() {
    if !is_alone("writes::results_are_written_where_out_says") {
        return;
    }
    check("add_out", |x| vec![x[0].add_out(&x[0].empty_like(), &x[0].exp()) * 2.0]);
    check("exp_out of an input", |x| vec![x[0].exp_out(&x[0]) + 1.0]);
    check("exp_out into an input", |x| {
        let _ = x[2].exp_out(&x[3]);
        vec![&x[3] + &x[2]]
    });
    check("matmul_out", |x| {
        let out = Tensor::zeros([33, 7], (Kind::Float, x[0].device()));
        let _ = x[0].matmul_out(&out, &x[1]);
        vec![out.relu() + 1.0]
    });
    check("cat_out", |x| {
        let out = Tensor::zeros([36], (Kind::Float, x[0].device()));
        vec![Tensor::cat_out(&out, &[&x[2], &x[3]], 0) * 2.0, out]
    });
    check("mul_out into a part", |x| {
        let out = Tensor::zeros([33, 40], (Kind::Float, x[0].device()));
        let _ = x[0].multiply_out(&out.narrow(1, 5, 18), &x[0]);
        vec![out + 1.0]
    });
    check("sort_values out", |x| {
        let values = x[0].empty_like();
        let indices = Tensor::zeros([33, 18], (Kind::Int64, x[0].device()));
        let _ = x[0].sort_values(&values, &indices, 1, false);
        vec![values + 1.0, indices + 1]
    });
}

#[test]
fn running_statistics_are_updated() {
    if !is_alone("writes::running_statistics_are_updated") {
        return;
    }
    check("_native_batch_norm_legit", |x| {
        let none = None::<&Tensor>;
        let (y, mean, _) = x[0].internal_native_batch_norm_legit(none, none, &x[2], &x[3], true, 0.1, 1e-5);
        vec![y * 2.0, mean]
    });
    check("_batch_norm_with_update", |x| {
        let (y, ..) = x[0].internal_batch_norm_with_update(None::<&Tensor>, None, &x[2], &x[3], 0.1, 1e-5);
        vec![y * 2.0]
    });
    check("batch_norm", |x| {
        let (weight, bias) = (&x[2] * 2.0, &x[3] + 1.0);
        vec![
            x[0].batch_norm(Some(&weight), Some(&bias), Some(&x[2]), Some(&x[3]), true, 0.1, 1e-5, false)
                * 2.0,
        ]
    });
    // Its schema marks no write.
    check("batch_norm_update_stats", |x| {
        let copy = x[2].copy();
        let (mean, inverse) = x[0].batch_norm_update_stats(Some(&copy), Some(&x[3]), 0.5);
        vec![mean, inverse, copy, &x[2] * 2.0, &x[3] * 2.0]
    });
    check("instance_norm", |x| {
        let images = x[0].reshape([3, 11, 18]).transpose(1, 2);
        let none = None::<&Tensor>;
        vec![images.instance_norm(none, none, Some(&x[2]), Some(&x[3]), true, 0.1, 1e-5, false) * 2.0]
    });
}

#[test]
fn a_first_call_that_measures_the_machine_draws_what_eager_does() {
    if !is_alone("writes::a_first_call_that_measures_the_machine_draws_what_eager_does") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // SAFETY: this process runs one test. Nothing was measured before for the files of an empty folder.
    unsafe { std::env::set_var("TILEFUSE_CACHE", folder.path()) };
    check("products", |x| vec![(x[0].matmul(&x[1]).dropout(0.5, true) + 1.0).relu()]);
}

/// An operator of libtorch that refuses what is in its operand, behind kernels and random numbers, on a GPU too.
#[test]
fn an_operator_that_fails_has_changed_nothing() {
    if !is_alone("writes::an_operator_that_fails_has_changed_nothing") {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let options = (Kind::Float, device());
    let function = |x: &[Tensor]| {
        let noise = (&x[0] * 2.0).normal_(0.0, 1.0);
        let _ = x[0].shallow_clone().g_add_scalar_(1.0);
        vec![(&x[1] * 2.0 + 1.0).linalg_cholesky(false).matmul(&(noise + &x[0]))]
    };
    let fused = fuse(function);
    let x = || Tensor::rand([4, 4], options) + 9.0;
    let good = Tensor::eye(4, options);
    for _ in 0..2 {
        fused.call(&[x(), good.shallow_clone()]).unwrap();
    }
    let given = x();
    let before = given.copy();
    tch::manual_seed(3);
    let error = fused.call(&[given.shallow_clone(), -&good]).unwrap_err();
    let next = Tensor::rand([3], options);
    tch::manual_seed(3);
    assert_eq!(next, Tensor::rand([3], options), "{error}");
    assert_eq!(given, before, "{error}");
    let stats = fused.stats();
    assert_eq!((stats.fused_calls, stats.failed_calls.len()), (1, 1), "{stats:?}");
    let eager = function(&[before.copy(), good.shallow_clone()])[0].size();
    assert_eq!(fused.call(&[given, good]).unwrap()[0].size(), eager);
}

#[test]
fn a_call_that_fails_has_changed_nothing() {
    if !is_alone("writes::a_call_that_fails_has_changed_nothing") {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let device = Device::Cpu;
    let function = |x: &[Tensor]| {
        let noise = (&x[0] * 2.0).normal_(0.0, 1.0);
        let _ = x[0].shallow_clone().g_add_scalar_(1.0);
        vec![(noise + &x[0]).index_select(0, &x[1]).multinomial(2, false)]
    };
    let fused = fuse(function);
    let x = || Tensor::rand([5, 4], (Kind::Float, device)) + 9.0;
    let good = Tensor::from_slice(&[0i64, 4]);
    for _ in 0..2 {
        fused.call(&[x(), good.shallow_clone()]).unwrap();
    }
    let bad = Tensor::from_slice(&[0i64, 5]);
    let given = x();
    let before = given.copy();
    tch::manual_seed(3);
    let error = fused.call(&[given.shallow_clone(), bad]).unwrap_err();
    let next = Tensor::rand([3], (Kind::Float, device));
    tch::manual_seed(3);
    assert_eq!(next, Tensor::rand([3], (Kind::Float, device)), "{error}");
    assert_eq!(given, before, "{error}");
    assert!(fused.stats().fused_calls > 0, "{:?}", fused.stats());
}

/// A column of a matrix: which of libtorch's kernels computes a norm on a GPU decides whether it is written there.
#[test]
fn running_statistics_that_are_strided_are_as_in_eager() {
    if !is_alone("writes::running_statistics_that_are_strided_are_as_in_eager") {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let device = device();
    let norm = |x: &[Tensor]| {
        let (mean, variance) = (x[1].select(1, 2), &x[3]);
        let (weight, bias) = (x[2].zeros_like() + 2.0, x[2].zeros_like());
        let image = x[0].view([33, 18, 1, 1]).expand([33, 18, 2, 2], false).contiguous();
        let of = |x: &Tensor, cudnn: bool| {
            x.batch_norm(Some(&weight), Some(&bias), Some(&mean), Some(variance), true, 0.1, 1e-5, cudnn)
        };
        vec![of(&x[0], true), of(&image, true), of(&image, false), x[1].exp() * 2.0]
    };
    let fused = fuse(norm);
    for call in 0..4 {
        let given = draw(device);
        let other: Vec<Tensor> = given.iter().map(Tensor::copy).collect();
        let (eager, ours) = (norm(&given), fused.call(&other).unwrap());
        for (o, e) in ours.iter().chain(&other).zip(eager.iter().chain(&given)) {
            assert!(o.allclose(e, 1e-5, 1e-5, true), "call {call} on {device:?}:\n{o}\nfor\n{e}");
        }
    }
    let stats = fused.stats();
    let reasons: Vec<&String> = stats.eager_calls.keys().collect();
    let strided = |reason: &&String| reason.contains("running statistics on a GPU that are not contiguous");
    assert!(reasons.iter().all(strided), "{reasons:?}");
    assert_eq!(reasons.is_empty(), device == Device::Cpu, "{reasons:?}");
}
