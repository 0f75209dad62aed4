//! Audits: models that do something else than they did when they were captured.

use std::cell::{Cell, RefCell};

use tch::{Device, Kind, Tensor};
use tilefuse::{Audit, CudaGraphs, Fused, Options};

use crate::common::{devices, has_gpu, setup};

/// The environment turns audits off for other tests.
fn options(audit: Audit) -> Options {
    Options { audit, ..Options::default() }
}

fn draw(device: Device) -> Tensor {
    Tensor::randn([4, 6], (Kind::Float, device))
}

/// Calls the model `calls` times, with `before` before each call but the first; each call must give what the model gives.
/// Returns the reason for which it runs eager in the end, if it does.
#[track_caller]
fn follow<M: Fn(&[Tensor]) -> Vec<Tensor>>(
    fused: &Fused<M>,
    device: Device,
    calls: u64,
    before: impl Fn(u64),
) -> Option<String> {
    for call in 1..=calls {
        if call > 1 {
            before(call);
        }
        let x = [draw(device)];
        let ours = fused.call(&x).unwrap();
        let eager = (fused.model())(&x);
        assert_eq!(ours.len(), eager.len());
        for (ours, eager) in ours.iter().zip(&eager) {
            assert!(ours.allclose(eager, 1e-5, 1e-6, false), "call {call}: {ours} instead of {eager}");
        }
    }
    fused.stats().eager_calls.into_keys().next()
}

fn exponential<M>(model: M) -> Fused<M> {
    tilefuse::fuse_with(model, options(Audit::Exponential))
}

#[test]
fn a_model_that_reads_its_tensors_alone_is_fused_between_audits() {
    setup();
    let _no_grad = tch::no_grad_guard();
    for device in devices() {
        let weight = draw(device);
        let held = weight.shallow_clone();
        let fused = exponential(move |x: &[Tensor]| {
            // Constants, memory that nobody has written, and a buffer that is filled part by part.
            let table = Tensor::arange(6, (Kind::Float, device)) * 0.5;
            let mask = Tensor::from_slice(&[1f32, 0.0, 2.0, -1.0, 3.0, 0.5]).to_device(device);
            let buffer = Tensor::empty([8, 6], (Kind::Float, device));
            buffer.narrow(0, 0, 4).copy_(&(&x[0] * &held));
            let _ = buffer.narrow(0, 4, 4).fill_(1.0);
            let _ = x[0].shallow_clone().detach();
            vec![buffer + table, &x[0] * mask, x[0].shallow_clone()]
        });
        let reason = follow(&fused, device, 20, |_| {
            let _ = weight.shallow_clone().neg_();
        });
        assert_eq!(reason, None);
        let stats = fused.stats();
        assert_eq!((stats.captures, stats.audits, stats.fused_calls), (1, 4, 15), "{stats:?}");
    }
}

#[test]
fn the_policy_says_which_calls_are_recorded() {
    setup();
    let _no_grad = tch::no_grad_guard();
    for (audit, audits) in
        [(Audit::Never, 0), (Audit::Exponential, 3), (Audit::Every(5), 3), (Audit::Every(1), 9)]
    {
        // The first call with another tensor than the captured one is recorded under every policy but `Never`.
        let fused = tilefuse::fuse_with(|x: &[Tensor]| vec![x[0].exp() + 1.0], options(audit));
        assert_eq!(follow(&fused, Device::Cpu, 10, |_| ()), None);
        let stats = fused.stats();
        assert_eq!((stats.captures, stats.audits, stats.fused_calls), (1, audits, 9 - audits), "{audit:?}");
    }
}

/// What differs in the second call is found in it, and every later call is right.
#[test]
fn a_flag_a_counter_an_index_and_a_constant_are_found() {
    setup();
    let _no_grad = tch::no_grad_guard();
    for device in devices() {
        let flag = Cell::new(false);
        let branch =
            exponential(|x: &[Tensor]| vec![if flag.get() { x[0].exp() } else { x[0].relu() * 2.0 }]);
        let reason = follow(&branch, device, 5, |_| flag.set(!flag.get())).unwrap();
        assert!(reason.contains("call 1: aten::exp(input 0) was aten::relu(input 0)"), "{reason}");
        assert!(reason.contains("Options::audit"), "{reason}");

        let number = Cell::new(1.5);
        let counter = exponential(|x: &[Tensor]| vec![(&x[0] + 1.0).tanh() * number.get()]);
        let reason = follow(&counter, device, 5, |_| number.set(number.get() + 0.25)).unwrap();
        assert!(reason.contains("call 3: aten::mul") && reason.contains("1.75"), "{reason}");
        assert!(reason.contains("1.5"), "{reason}");

        let weights = [draw(device), draw(device)];
        let at = Cell::new(0);
        let choice = exponential(|x: &[Tensor]| vec![&x[0] * &weights[at.get()]]);
        let reason = follow(&choice, device, 5, |_| at.set(1 - at.get())).unwrap();
        assert!(reason.contains("parameter f32[4, 6]"), "{reason}");

        let table = Cell::new([1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let constant = exponential(|x: &[Tensor]| {
            vec![&x[0] * Tensor::from_slice(&table.get()).to_device(device) + 1.0]
        });
        let change = |call: u64| {
            let mut next = table.get();
            next[3] = call as f32;
            table.set(next);
        };
        let reason = follow(&constant, device, 5, change).unwrap();
        assert!(reason.contains("f32[6]") && reason.contains("with contents"), "{reason}");
        assert_eq!(constant.stats().fused_calls, 0);
    }
}

/// The call that is due is recorded whether the ones before it launched a graph or not.
#[test]
fn a_flag_that_changes_while_cuda_graphs_run_is_found() {
    setup();
    if !has_gpu() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    // The second call is an audit in both, for its input is another tensor.
    for (audit, changed, fused_calls) in [(Audit::Every(5), 5, 2), (Audit::Exponential, 8, 4)] {
        let of = |device: Device| {
            let flag = Cell::new(false);
            let options = Options { cuda_graphs: CudaGraphs::Always, ..options(audit) };
            let model = |x: &[Tensor]| {
                let y = x[0].softmax(-1, Kind::Float).cumsum(0, Kind::Float);
                vec![if flag.get() { y.exp() } else { y.relu() * 2.0 }]
            };
            let fused = tilefuse::fuse_with(model, options);
            let reason = follow(&fused, device, 12, |call| flag.set(call >= changed)).unwrap();
            let stats = fused.stats();
            assert_eq!(stats.fused_calls, fused_calls, "{device:?}: {stats:?}");
            assert_eq!(stats.eager_calls[&reason], 12 - changed, "{device:?}: {stats:?}");
            assert_eq!(stats.graph_calls > 0, device.is_cuda(), "{device:?}: {stats:?}");
            (reason, stats.audits)
        };
        let [on_cpu, on_gpu] = [Device::Cpu, Device::Cuda(0)].map(of);
        assert_eq!(on_gpu, on_cpu, "{audit:?}");
        let (reason, _) = on_gpu;
        assert!(reason.contains("aten::exp") && reason.contains("was aten::relu"), "{reason}");
    }
}

#[test]
fn a_swapped_weight_whose_old_tensor_lives_on_is_found_by_name() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let weights = [draw(Device::Cpu), draw(Device::Cpu)];
    let held = RefCell::new(weights[0].shallow_clone());
    let names =
        ["first", "second"].map(String::from).into_iter().zip(weights.iter().map(Tensor::shallow_clone));
    let fused =
        exponential(|x: &[Tensor]| vec![x[0].sigmoid() * &*held.borrow()]).with_names(names.collect());
    let reason = follow(&fused, Device::Cpu, 6, |call| {
        if call == 4 {
            let _ = held.replace(weights[1].shallow_clone());
        }
    });
    let reason = reason.unwrap();
    let said =
        "call 2: aten::mul.Tensor(.., parameter \"second\") was aten::mul.Tensor(.., parameter \"first\")";
    assert!(reason.contains(said), "{reason}");
    let stats = fused.stats();
    assert_eq!((stats.audits, stats.fused_calls), (2, 1), "{stats:?}");
    // The user's word that it changed, and the next calls are fused again.
    fused.clear();
    let _ = follow(&fused, Device::Cpu, 3, |_| ());
    assert_eq!(fused.stats().fused_calls, 2);
}

/// A value that is read only later is found in the first audit after.
#[test]
fn reading_data_later_is_found() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let reads = Cell::new(false);
    let fused = exponential(|x: &[Tensor]| {
        let scale = if reads.get() { x[0].sum(Kind::Float).double_value(&[]) } else { 2.0 };
        vec![&x[0] * scale]
    });
    let reason = follow(&fused, Device::Cpu, 6, |call| reads.set(call >= 4)).unwrap();
    assert!(reason.contains("reads a value out of computed data"), "{reason}");
}

/// What a model makes in its first call and keeps is a constant there and a parameter later.
#[test]
fn a_model_may_keep_constants_that_it_makes_in_its_first_call() {
    setup();
    let _no_grad = tch::no_grad_guard();
    for device in devices() {
        let cache: RefCell<Option<Tensor>> = RefCell::new(None);
        let fused = exponential(|x: &[Tensor]| {
            let mut cache = cache.borrow_mut();
            let table = cache.get_or_insert_with(|| Tensor::arange(6, (Kind::Float, device)) * 0.5);
            vec![(&x[0] + &*table).tanh()]
        });
        assert_eq!(follow(&fused, device, 9, |_| ()), None);
        let stats = fused.stats();
        // The second call makes the plan anew, and the third is its first audit.
        assert_eq!((stats.captures, stats.audits, stats.fused_calls), (1, 4, 4), "{stats:?}");
    }
}

/// A write to such a constant is seen without an audit.
#[test]
fn a_constant_that_the_model_keeps_may_be_written() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let cache: RefCell<Option<Tensor>> = RefCell::new(None);
    let model = |x: &[Tensor]| {
        let mut cache = cache.borrow_mut();
        let scale = cache.get_or_insert_with(|| Tensor::from(0.5f32) * 3.0);
        vec![(&x[0] * &*scale).tanh()]
    };
    let fused = tilefuse::fuse_with(model, options(Audit::Never));
    let write = |call: u64| {
        let scale = cache.borrow().as_ref().unwrap().shallow_clone();
        // One that the version counts, and one that nothing counts.
        let _ = if call.is_multiple_of(4) {
            scale.shallow_clone().neg_()
        } else {
            scale.data().g_mul_scalar_(1.5)
        };
    };
    assert_eq!(
        follow(&fused, Device::Cpu, 8, |call| if call % 2 == 0 {
            write(call)
        }),
        None
    );
    assert!(fused.stats().fused_calls > 0, "{:?}", fused.stats());
}

#[test]
fn random_numbers_and_writes_are_those_of_eager_in_an_audit() {
    if !crate::common::is_alone("audit::random_numbers_and_writes_are_those_of_eager_in_an_audit") {
        return;
    }
    setup();
    let _no_grad = tch::no_grad_guard();
    let state =
        [Tensor::zeros([6], (Kind::Float, Device::Cpu)), Tensor::zeros([6], (Kind::Float, Device::Cpu))];
    let step = |state: &Tensor, x: &Tensor| {
        let _ = state.shallow_clone().g_add_(&x.mean_dim(0i64, false, Kind::Float));
        vec![x.dropout(0.5, true) + state]
    };
    let fused = exponential(|x: &[Tensor]| step(&state[0], &x[0]));
    for call in 0..9 {
        let x = draw(Device::Cpu);
        tch::manual_seed(call);
        let ours = fused.call(&[x.shallow_clone()]).unwrap();
        let next = Tensor::randn([3], (Kind::Float, Device::Cpu));
        tch::manual_seed(call);
        let eager = step(&state[1], &x);
        assert!(
            ours[0].allclose(&eager[0], 1e-5, 1e-6, false) && state[0].allclose(&state[1], 1e-5, 1e-6, false)
        );
        assert_eq!(next, Tensor::randn([3], (Kind::Float, Device::Cpu)), "call {call}");
    }
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.audits, stats.fused_calls), (1, 3, 5), "{stats:?}");
}

/// One tensor as two inputs, or a parameter as an input, says nothing about the model.
#[test]
fn inputs_that_are_one_tensor_are_not_compared() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let weight = draw(Device::Cpu);
    let held = weight.shallow_clone();
    let fused = exponential(move |x: &[Tensor]| vec![(&x[0] - &x[1]) * &held]);
    for call in 0..12 {
        let x = draw(Device::Cpu);
        let inputs = match call % 3 {
            0 => [x, draw(Device::Cpu)],
            1 => [x.shallow_clone(), x],
            _ => [x, weight.shallow_clone()],
        };
        let ours = fused.call(&inputs).unwrap();
        assert!(ours[0].allclose(&((&inputs[0] - &inputs[1]) * &weight), 1e-5, 1e-6, false), "call {call}");
    }
    let stats = fused.stats();
    assert!(stats.eager_calls.is_empty() && stats.audits >= 2, "{stats:?}");
}

#[test]
fn threads_call_a_model_whose_calls_are_audited() {
    setup();
    let fused = tilefuse::fuse_with(
        |x: &[Tensor]| vec![(&x[0] * 2.0).softmax(-1, Kind::Float)],
        options(Audit::Every(3)),
    );
    let fused = &fused;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                let _no_grad = tch::no_grad_guard();
                assert_eq!(follow(fused, Device::Cpu, 30, |_| ()), None);
            });
        }
    });
    let stats = fused.stats();
    assert_eq!(stats.captures + stats.audits + stats.fused_calls, 120, "{stats:?}");
    assert!(stats.audits >= 10, "{stats:?}");
}

/// What a model returns beside tensors belongs to what it does.
#[test]
fn numbers_that_a_model_returns_are_compared() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let calls = Cell::new(0i64);
    let fused = exponential(|x: &Tensor| {
        calls.set(calls.get() + 1);
        ((x * 2.0).exp(), calls.get())
    });
    for call in 1..=4 {
        let (_, count) = fused.call(&draw(Device::Cpu)).unwrap();
        assert_eq!(count, call);
    }
    let reasons = fused.stats().eager_calls;
    assert!(reasons.keys().any(|reason| reason.contains("of the outputs was 1, and is 2")), "{reasons:?}");

    // As soon as it is not the number of the call that was recorded.
    let large = Cell::new(false);
    let fused = exponential(|x: &Tensor| ((x * 2.0).exp(), large.get().then_some(3.0)));
    for call in 1..=6 {
        large.set(call >= 4);
        let (_, found) = fused.call(&draw(Device::Cpu)).unwrap();
        assert_eq!(found.is_some(), call >= 4);
    }
    assert_eq!(fused.stats().fused_calls, 1, "{:?}", fused.stats());
}

/// A model over a list of tensors.
type Model = dyn Fn(&[Tensor]) -> Vec<Tensor>;

/// A plan draws numbers, and seeds nothing.
#[test]
fn a_model_that_seeds_what_it_draws_runs_eager() {
    if !crate::common::is_alone("audit::a_model_that_seeds_what_it_draws_runs_eager") {
        return;
    }
    setup();
    let _no_grad = tch::no_grad_guard();
    for device in devices() {
        let first = |x: &[Tensor]| {
            tch::manual_seed(1);
            vec![x[0].rand_like() + &x[0]]
        };
        let between = |x: &[Tensor]| {
            let noise = x[0].rand_like();
            tch::manual_seed(2);
            vec![x[0].rand_like() * &x[0], noise.exp()]
        };
        let last = |x: &[Tensor]| {
            let noise = x[0].rand_like();
            tch::manual_seed(3);
            vec![noise + &x[0]]
        };
        // The generator has another seed, and then the same one, of which numbers were drawn.
        for seed in [7, 1] {
            let drawn = || {
                tch::manual_seed(seed);
                let _ = draw(device);
            };
            let models: [&Model; 3] = [&first, &between, &last];
            for model in models {
                let fused = tilefuse::fuse_with(model, options(Audit::Never));
                drawn();
                let x = [draw(device)];
                let of_eager: Vec<Tensor> = (0..3).flat_map(|_| model(&x)).collect();
                drawn();
                let x = [draw(device)];
                let ours: Vec<Tensor> = (0..3).flat_map(|_| fused.call(&x).unwrap()).collect();
                assert!(
                    ours.iter().zip(&of_eager).all(|(a, b)| a.equal(b)),
                    "{ours:?} instead of {of_eager:?}"
                );
                let reasons = fused.stats().eager_calls;
                assert!(reasons.keys().any(|reason| reason.contains("seeds their generator")), "{reasons:?}");
            }
        }
        drawn_without_a_seed(device);
    }
}

fn drawn_without_a_seed(device: Device) {
    let fused = tilefuse::fuse_with(|x: &[Tensor]| vec![x[0].rand_like() + &x[0]], options(Audit::Never));
    let x = [draw(device)];
    (0..3).for_each(|_| drop(fused.call(&x).unwrap()));
    assert_eq!(fused.stats().fused_calls, 2, "{:?}", fused.stats());
}

/// No plan would put the input of its own call where the model keeps the last one.
#[test]
fn a_model_that_keeps_its_input_runs_eager() {
    setup();
    let _no_grad = tch::no_grad_guard();
    for audit in [Audit::Never, Audit::Exponential] {
        let last = RefCell::new(Tensor::new());
        let model = |x: &[Tensor]| {
            *last.borrow_mut() = x[0].shallow_clone();
            vec![x[0].exp() + 1.0]
        };
        let fused = tilefuse::fuse_with(model, options(audit));
        for _ in 0..4 {
            let x = [draw(Device::Cpu)];
            let _ = fused.call(&x).unwrap();
            assert!(last.borrow().equal(&x[0]), "{audit:?}");
        }
        let reasons = fused.stats().eager_calls;
        assert!(reasons.keys().any(|reason| reason.contains("an input that the model keeps")), "{reasons:?}");
    }
}

/// A call that records gradients does not show what the model keeps: the next one that records none is compared, whatever the policy.
#[test]
fn what_is_kept_by_a_call_that_records_gradients_is_found() {
    setup();
    for audit in [Audit::Never, Audit::Every(100)] {
        let weight = draw(Device::Cpu).set_requires_grad(true);
        let kept = RefCell::new(Tensor::new());
        let model = |x: &[Tensor]| {
            let hidden = (&x[0] * &weight).relu();
            *kept.borrow_mut() = hidden.shallow_clone();
            vec![hidden.exp() + 1.0]
        };
        let fused = tilefuse::fuse_with(model, options(audit));
        let _ = fused.call(&[draw(Device::Cpu)]).unwrap();
        let _no_grad = tch::no_grad_guard();
        for _ in 0..3 {
            let x = draw(Device::Cpu);
            let _ = fused.call(&[x.shallow_clone()]).unwrap();
            assert!(kept.borrow().equal(&(&x * &weight).relu()), "{audit:?}");
        }
        let stats = fused.stats();
        assert!(stats.eager_calls.keys().any(|reason| reason.contains("that the model keeps")), "{stats:?}");

        let apart = |x: &[Tensor]| vec![(&x[0] * &weight).relu().exp()];
        let fused = tilefuse::fuse_with(apart, options(audit));
        let _ = tch::with_grad(|| fused.call(&[draw(Device::Cpu)]).unwrap());
        assert_eq!(follow(&fused, Device::Cpu, 4, |_| ()), None);
        let stats = fused.stats();
        assert_eq!((stats.captures, stats.audits, stats.fused_calls), (1, 1, 3), "{stats:?}");
    }
}

/// What is found out of one signature is true of others that match the same calls.
#[test]
fn a_change_that_one_signature_has_shown_is_looked_for_in_others() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let flag = Cell::new(false);
    let fused = exponential(|x: &[Tensor]| vec![if flag.get() { &x[0] * 3.0 } else { &x[0] * 2.0 }]);
    let x = Tensor::ones([33], (Kind::Float, Device::Cpu));
    // The second plan is for addresses of any alignment.
    let (aligned, unaligned) = (x.narrow(0, 0, 8), x.narrow(0, 1, 8));
    let call = |x: &Tensor| fused.call(&[x.shallow_clone()]).unwrap()[0].double_value(&[0]);
    for x in [&aligned, &unaligned, &aligned, &unaligned, &aligned] {
        assert_eq!(call(x), 2.0);
    }
    flag.set(true);
    // The first of these runs the plan, the next ones are audits.
    let found: Vec<f64> = (0..9).map(|_| call(&aligned)).collect();
    let first = found.iter().position(|&y| y == 3.0).unwrap();
    assert!(found[first..].iter().all(|&y| y == 3.0), "{found:?}");
    assert_eq!([call(&unaligned), call(&aligned)], [3.0; 2], "{:?}", fused.stats());
}
