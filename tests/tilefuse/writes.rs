//! Operators that libtorch alone has and that write their arguments: in-place random numbers, `out=`, running statistics.

use tch::nn::{self, Module};
use tch::{Device, Kind, Tensor};
use tilefuse::fuse;
use tilefuse::torch::{Arg, Call, TensorId};

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

/// The place of a tensor among the arguments of a call.
fn place(at: u32) -> Arg {
    Arg::Tensor(TensorId(at))
}

/// A call of an overload with `out`, for which tch has no function.
fn run_out(op: &str, overload: &str, args: &[Arg], tensors: &[&Tensor]) {
    let call = Call::new(&format!("aten::{op}"), overload, args).unwrap();
    let _ = call.run(tensors).unwrap();
}

#[test]
fn random_numbers_are_drawn_where_out_says() {
    if !is_alone("writes::random_numbers_are_drawn_where_out_says") {
        return;
    }
    check("rand_out", |x| {
        let out = x[0].empty_like();
        let _ = Tensor::rand_out(&out, [33, 18]);
        vec![&out * &x[0], out]
    });
    check("rand_out of an input", |x| vec![Tensor::rand_out(&x[0], [33, 18]) * 2.0]);
    check("randn_out", |x| {
        let out = x[0].empty_like();
        vec![Tensor::randn_out(&out, [33, 18]) * 2.0, out + &x[0]]
    });
    check("randn_out into a part", |x| {
        let out = Tensor::zeros([33, 40], (Kind::Float, x[0].device()));
        let _ = Tensor::randn_out(&out.narrow(1, 5, 18), [33, 18]);
        vec![out + 1.0]
    });
    check("randint_out", |x| {
        let out = Tensor::zeros([33, 18], (Kind::Int64, x[0].device()));
        let _ = Tensor::randint_out(&out, 100, [33, 18]);
        vec![&out + 1, out.to_kind(Kind::Float) * &x[0]]
    });
    check("randint_low_out of floats", |x| {
        let _ = Tensor::randint_low_out(&x[0], -5, 5, [33, 18]);
        vec![x[0].relu() + 1.0]
    });
    check("rand_like_out and randn_like_out", |x| {
        let (a, b) = (x[0].empty_like(), x[0].empty_like());
        let _ = (x[0].rand_like_out(&a), x[0].randn_like_out(&b));
        vec![a * 2.0 + b, x[0].randint_like_out(&x[0].empty_like(), 9) + 1.0]
    });
    check("uniform_out and others", |x| {
        let (a, b, c) = (x[0].empty_like(), x[0].empty_like(), x[0].empty_like());
        let _ = (x[0].uniform_out(&a, -1.0, 1.0), x[0].log_normal_out(&b, 0.0, 0.5));
        let _ = x[0].exponential_out(&c, 1.5);
        vec![a + &x[0], b * 2.0, c.relu()]
    });
    check("normal_out", |x| {
        let out = x[0].empty_like();
        let args = [Arg::Float(1.0), Arg::Float(2.0), Arg::Ints(vec![33, 18]), Arg::None, place(0)];
        run_out("normal", "float_float_out", &args, &[&out]);
        vec![&out * &x[0], out]
    });
    check("normal_out of means", |x| {
        let out = x[0].empty_like();
        let args = [place(0), Arg::Float(0.5), Arg::None, place(1)];
        run_out("normal", "Tensor_float_out", &args, &[&(&x[0] * 2.0), &out]);
        vec![out.relu() + 1.0]
    });
    check("normal_out of deviations", |x| {
        let args = [Arg::Float(0.5), place(0), Arg::None, place(1)];
        run_out("normal", "float_Tensor_out", &args, &[&(&x[3] * 2.0), &x[2]]);
        vec![&x[2] + &x[3]]
    });
    check("normal_out of both", |x| {
        let out = x[2].empty_like();
        let args = [place(0), place(1), Arg::None, place(2)];
        run_out("normal", "Tensor_Tensor_out", &args, &[&x[2], &x[3], &out]);
        vec![out * 2.0]
    });
    check("bernoulli_out", |x| {
        let out = x[0].empty_like();
        let args = [place(0), Arg::None, place(1)];
        run_out("bernoulli", "out", &args, &[&x[0].sigmoid(), &out]);
        vec![&out * 2.0 + &x[0], out]
    });
    check("bernoulli_out of a number", |x| {
        let out = x[0].empty_like();
        let args = [place(0), Arg::Float(0.4), Arg::None, place(1)];
        run_out("bernoulli", "float_out", &args, &[&x[0], &out]);
        vec![out + &x[0]]
    });
    check("multinomial_out", |x| {
        let out = Tensor::zeros([33, 5], (Kind::Int64, x[0].device()));
        let _ = (&x[0] * 2.0).multinomial_out(&out, 5, true);
        let other = Tensor::zeros([33, 4], (Kind::Int64, x[0].device()));
        let _ = x[0].multinomial_out(&other, 4, false);
        vec![out + 1, other]
    });
    check("draws in order", |x| {
        let (a, b) = (x[0].empty_like(), &x[0] * 2.0);
        let _ = Tensor::randn_out(&a, [33, 18]);
        let c = x[0].rand_like();
        let _ = Tensor::rand_out(&b, [33, 18]);
        vec![a * b + c]
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

/// Draws into the first of these tensors, updates the other two as running statistics, and then fails where the input's
/// double and one is not positive definite.
fn write_and_factor(x: &Tensor, held: &[Tensor]) -> Result<Tensor, tch::TchError> {
    let none = None::<&Tensor>;
    let noise = held[0].shallow_clone().normal_(0.0, 1.0);
    let y = x.batch_norm(none, none, Some(&held[1]), Some(&held[2]), true, 0.1, 1e-5, false);
    let factor = (x * 2.0 + 1.0).f_linalg_cholesky(false)?;
    Ok(factor.matmul(&noise) + y)
}

/// What [`write_and_factor`] writes.
fn written() -> Vec<Tensor> {
    let options = (Kind::Float, device());
    vec![Tensor::ones([4, 4], options), Tensor::zeros([4], options), Tensor::ones([4], options)]
}

/// The same of tensors that libtorch's calls have written before one of them fails.
#[test]
fn what_libtorch_writes_before_it_fails_is_as_before() {
    if !is_alone("writes::what_libtorch_writes_before_it_fails_is_as_before") {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let options = (Kind::Float, device());
    let function = |x: &[Tensor]| vec![write_and_factor(&x[0], &x[1..]).unwrap()];
    let fused = fuse(function);
    let good = Tensor::eye(4, options);
    let (ours, theirs) = (written(), written());
    let given = |x: &Tensor, held: &[Tensor]| -> Vec<Tensor> {
        std::iter::once(x).chain(held).map(Tensor::shallow_clone).collect()
    };
    for call in 0..5 {
        tch::manual_seed(call);
        let eager = function(&given(&good, &theirs));
        let next = Tensor::rand([3], options);
        tch::manual_seed(call);
        let results = fused.call(&given(&good, &ours)).unwrap();
        assert_eq!(next, Tensor::rand([3], options), "call {call}");
        for (o, e) in results.iter().chain(&ours).zip(eager.iter().chain(&theirs)) {
            assert!(o.allclose(e, 1e-5, 1e-5, false), "call {call}: {o} for {e}");
        }
        if call == 0 {
            continue;
        }
        let before: Vec<Tensor> = ours.iter().map(Tensor::copy).collect();
        tch::manual_seed(call);
        let error = fused.call(&given(&-&good, &ours)).unwrap_err();
        let next = Tensor::rand([3], options);
        tch::manual_seed(call);
        assert_eq!(next, Tensor::rand([3], options), "call {call}: {error}");
        assert_eq!(ours, before, "call {call}: {error}");
    }
    let stats = fused.stats();
    let failed: u64 = stats.failed_calls.values().sum();
    assert_eq!((stats.captures, stats.fused_calls, failed), (1, 4, 4), "{stats:?}");
    assert!(stats.eager_calls.is_empty(), "{stats:?}");
}

/// A module then runs itself: what it writes and draws, it does once.
#[test]
fn a_module_whose_plan_fails_writes_and_draws_once() {
    if !is_alone("writes::a_module_whose_plan_fails_writes_and_draws_once") {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let options = (Kind::Float, device());
    let model = |x: &Tensor, held: &[Tensor]| write_and_factor(x, held).unwrap_or_else(|_| x.ones_like());
    let (ours, theirs) = (written(), written());
    let held: Vec<Tensor> = ours.iter().map(Tensor::shallow_clone).collect();
    let fused = fuse(nn::func(move |x| model(x, &held)));
    let good = Tensor::eye(4, options);
    for (call, fails) in [false, false, true, false, true, true, false].into_iter().enumerate() {
        let x = if fails { -&good } else { good.shallow_clone() };
        let run = |f: &dyn Fn() -> Tensor| {
            tch::manual_seed(call as i64);
            (f(), Tensor::rand([3], options))
        };
        let (eager, after_eager) = run(&|| model(&x, &theirs));
        let (result, after_ours) = run(&|| fused.forward(&x));
        assert_eq!(after_ours, after_eager, "call {call}: other random numbers were drawn");
        for (o, e) in std::iter::once(&result).chain(&ours).zip(std::iter::once(&eager).chain(&theirs)) {
            assert!(o.allclose(e, 1e-5, 1e-5, false), "call {call}: {o} for {e}");
        }
    }
    let stats = fused.stats();
    let (failed, eager): (u64, u64) = (stats.failed_calls.values().sum(), stats.eager_calls.values().sum());
    assert_eq!((stats.captures, stats.fused_calls, failed, eager), (1, 3, 3, 3), "{stats:?}");
    assert!(stats.eager_calls.keys().all(|reason| reason.starts_with("the plan failed: ")), "{stats:?}");
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
