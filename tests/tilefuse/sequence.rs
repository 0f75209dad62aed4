//! One fused model over many calls, with something changed in between: each call must do what eager does then.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tch::nn::{self, Module, ModuleT, OptimizerConfig};
use tch::{Kind, Tensor};
use tilefuse::{Audit, Fused, Options};

use crate::common::{F32, device, has_gpu, on_cpu};

type Function = fn(&[Tensor]) -> Vec<Tensor>;

fn draw(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, *F32)
}

fn close(a: &Tensor, b: &Tensor) -> bool {
    a.size() == b.size()
        && a.stride() == b.stride()
        && a.kind() == b.kind()
        && (a.numel() == 0 || a.allclose(b, 1e-5, 1e-5, true))
}

/// Calls the fused function and the function itself on copies of the inputs, and compares results and inputs.
fn same(fused: &Fused<Function>, inputs: &[Tensor], what: &str) {
    let copy = |t: &Tensor| {
        let fresh = Tensor::empty_strided(t.size(), t.stride(), (t.kind(), t.device()));
        // Nothing may write a tensor whose elements overlap, so the same one does for both.
        if fresh.shallow_clone().f_copy_(t).is_ok() { fresh } else { t.shallow_clone() }
    };
    let theirs: Vec<Tensor> = inputs.iter().map(copy).collect();
    let eager = (fused.model())(&theirs);
    let ours = fused.call(inputs).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(ours.len(), eager.len());
    for (at, (o, e)) in ours.iter().zip(&eager).chain(inputs.iter().zip(&theirs)).enumerate() {
        assert!(close(o, e), "{what}: {at}: {o:?} {o} instead of {e:?} {e}");
    }
}

fn block(x: &[Tensor]) -> Vec<Tensor> {
    let y = (&x[0] * 2.0 + 1.0).gelu("none");
    vec![y.softmax(-1, Kind::Float), y.sum_dim_intlist(0i64, false, Kind::Float), &x[0] - 1.0]
}

#[test]
fn data_shape_strides_and_type_change_between_calls() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(block as Function);
    let base = draw(&[8, 12]);
    for round in 0..3 {
        let inputs = [
            draw(&[8, 12]),
            draw(&[12, 8]).tr(),
            draw(&[3, 12]),
            draw(&[8, 1]),
            base.narrow(1, 1, 5),
            base.narrow(0, 0, 0),
            draw(&[1, 12]).expand([8, 12], false),
            draw(&[8, 12]).to_kind(Kind::Double),
            draw(&[8, 12]).to_kind(Kind::BFloat16),
            draw(&[2, 8, 12]),
            base.as_strided([8, 4], [12, 3], 1),
        ];
        for (at, x) in inputs.into_iter().enumerate() {
            if x.kind() == Kind::BFloat16 {
                assert!(fused.call(&[x]).is_ok());
            } else {
                same(&fused, &[x], &format!("round {round}, input {at}"));
            }
        }
    }
    let stats = fused.stats();
    assert!(stats.eager_calls.is_empty() && stats.captures == 11, "{stats:?}");
}

#[test]
fn results_are_fed_back_and_keep_their_values() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let step: Function = |x| vec![(&x[0] * 0.5 + &x[1]).tanh()];
    let fused = tilefuse::fuse(step);
    let (mut ours, noise) = (draw(&[5, 7]), draw(&[7]));
    let mut eager = ours.copy();
    let mut kept = Vec::new();
    for round in 0..6 {
        ours = fused.call(&[ours, noise.shallow_clone()]).unwrap().remove(0);
        eager = step(&[eager, noise.shallow_clone()]).remove(0);
        assert!(close(&ours, &eager), "round {round}");
        kept.push((ours.shallow_clone(), eager.shallow_clone()));
    }
    // Later calls must not have written the memory of earlier results.
    assert!(kept.iter().all(|(o, e)| close(o, e)));
}

#[test]
fn inputs_that_share_memory() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let write: Function = |x| {
        let _ = x[0].shallow_clone().g_mul_(&x[1].mean(Kind::Float));
        vec![&x[0] + &x[1], &x[1] * 2.0]
    };
    let fused = tilefuse::fuse(write);
    for round in 0..2 {
        same(&fused, &[draw(&[40]), draw(&[40])], "two inputs");
        for (what, pick) in [
            ("one tensor twice", (|t: &Tensor| (t.narrow(0, 0, 40), t.narrow(0, 0, 40))) as fn(&Tensor) -> _),
            ("overlapping", |t| (t.narrow(0, 0, 40), t.narrow(0, 20, 40))),
            ("beside each other", |t| (t.narrow(0, 0, 40), t.narrow(0, 40, 40))),
        ] {
            let storage = draw(&[100]);
            let theirs = storage.copy();
            let (a, b) = pick(&theirs);
            let eager = write(&[a, b]);
            let (a, b) = pick(&storage);
            let ours = fused.call(&[a, b]).unwrap();
            let all = ours.iter().zip(&eager).all(|(o, e)| close(o, e)) && close(&storage, &theirs);
            assert!(all, "round {round}: {what}");
        }
    }
}

#[test]
fn an_input_that_is_a_parameter() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let weight = draw(&[16]);
    let held = weight.shallow_clone();
    let model = move |x: &[Tensor]| {
        let _ = x[0].shallow_clone().g_add_scalar_(1.0);
        vec![&x[0] * &held, held.exp()]
    };
    let fused = tilefuse::fuse(model);
    for round in 0..3 {
        let x = draw(&[16]);
        let (ours, eager) = (fused.call(&[x.copy()]).unwrap(), (fused.model())(&[x]));
        assert!(ours.iter().zip(&eager).all(|(o, e)| close(o, e)), "round {round}");
        let before = weight.copy();
        let ours = fused.call(&[weight.shallow_clone()]).unwrap();
        let after = &before + 1.0;
        assert!(close(&weight, &after), "round {round}: the parameter");
        assert!(
            close(&ours[0], &(&after * &after)) && close(&ours[1], &after.exp()),
            "round {round}: as input"
        );
    }
}

#[test]
fn parameters_change_in_place_by_an_optimiser_and_by_replacement() {
    crate::common::setup();
    let vs = nn::VarStore::new(device());
    let net = nn::seq()
        .add(nn::linear(vs.root() / "a", 6, 6, Default::default()))
        .add_fn(|x| x.relu() * 2.0)
        .add(nn::linear(vs.root() / "b", 6, 6, Default::default()));
    let fused = tilefuse::fuse(net).named(&vs);
    let mut optimiser = nn::Sgd::default().build(&vs, 0.1).unwrap();
    for round in 0..4 {
        let x = draw(&[3, 6]);
        tch::no_grad(|| assert!(close(&fused.forward(&x), &fused.model().forward(&x)), "round {round}"));
        let loss = fused.forward(&x).square().mean(Kind::Float);
        assert!(loss.requires_grad(), "a call with gradients runs the model itself");
        optimiser.backward_step(&loss);
    }
    assert_eq!(fused.stats().captures, 1, "{:?}", fused.stats());
    // Another storage behind the same parameter.
    let mut other = vs.variables().into_values().next().unwrap();
    other.set_data(&other.zeros_like());
    let x = draw(&[3, 6]);
    tch::no_grad(|| assert!(close(&fused.forward(&x), &fused.model().forward(&x))));
    let mut vs = vs;
    vs.double();
    let x = x.to_kind(Kind::Double);
    tch::no_grad(|| assert!(close(&fused.forward(&x), &fused.model().forward(&x))));
}

/// A model that changes which tensor it holds.
#[derive(Debug)]
struct Swapped(Mutex<Tensor>);

impl Module for Swapped {
    fn forward(&self, xs: &Tensor) -> Tensor {
        (xs * &*self.0.lock().unwrap()).sigmoid()
    }
}

#[test]
fn a_parameter_that_the_model_exchanges_behind_a_lock() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(Swapped(Mutex::new(draw(&[9]))));
    for round in 0..4 {
        // Several plans hold the old tensor by the time the model lets go of it.
        for rows in 1..4 {
            for _ in 0..2 {
                let x = draw(&[rows, 9]);
                assert!(close(&fused.forward(&x), &fused.model().forward(&x)), "round {round}, {rows} rows");
            }
        }
        *fused.model().0.lock().unwrap() = draw(&[9]);
    }
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.fused_calls), (12, 12), "{stats:?}");
}

#[test]
fn threads_call_one_plan_at_once() {
    crate::common::setup();
    let _same = crate::common::THREADS.read();
    let fused = tilefuse::fuse(block as Function);
    let fused = &fused;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let _no_grad = tch::no_grad_guard();
                for round in 0..8 {
                    same(fused, &[draw(&[16 + round % 3, 33])], &format!("thread {thread}, round {round}"));
                }
            });
        }
    });
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.fused_calls), (3, 29), "{stats:?}");
}

#[test]
fn grad_mode_switches_between_calls() {
    crate::common::setup();
    let fused = tilefuse::fuse(block as Function);
    let x = draw(&[4, 6]);
    for round in 0..3 {
        tch::no_grad(|| same(&fused, &[x.shallow_clone()], "no grad"));
        same(&fused, &[x.shallow_clone()], "grad, nothing needs it");
        let leaf = x.copy().set_requires_grad(true);
        let y = fused.call(&[leaf.shallow_clone()]).unwrap().remove(2);
        y.sum(Kind::Float).backward();
        assert!(close(&leaf.grad(), &x.ones_like()), "round {round}: gradient");
        let y = tch::no_grad(|| fused.call(&[leaf.shallow_clone()]).unwrap().remove(0));
        assert!(!y.requires_grad());
    }
    assert_eq!(fused.stats().eager_calls.values().sum::<u64>(), 3, "{:?}", fused.stats());
}

/// tch casts on GPUs alone, but its switch is seen for models on the CPU too.
#[test]
fn calls_that_cast_by_themselves_run_eager_with_a_reason() {
    crate::common::setup();
    if !has_gpu() {
        // tch turns nothing on then.
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let product: Function = |x| vec![x[0].matmul(&x[1]).relu() * 2.0];
    let fused = tilefuse::fuse(product);
    let kind = if on_cpu() { Kind::Float } else { Kind::Half };
    for round in 0..3 {
        let inputs = [draw(&[4, 6]), draw(&[6, 5])];
        tch::autocast(true, || {
            assert_eq!(product(&inputs)[0].kind(), kind);
            same(&fused, &inputs, &format!("round {round}, casting"));
        });
        same(&fused, &inputs, &format!("round {round}"));
    }
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.fused_calls), (1, 2), "{stats:?}");
    let reason = "autocast is on: convert the model's weights and inputs instead";
    assert_eq!(stats.eager_calls, BTreeMap::from([(String::from(reason), 3)]));
    let explained = tch::autocast(true, || fused.explain_with(&[draw(&[4, 6]), draw(&[6, 5])], |m, x| m(x)));
    assert!(matches!(explained, Err(tilefuse::Error::RunsEager(found)) if found == reason));
}

#[test]
fn a_fused_model_in_another_runs_eager_with_a_reason() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let inner = tilefuse::fuse(|x: &[Tensor]| vec![(&x[0] * 2.0).exp()]);
    let outer = tilefuse::fuse(|x: &[Tensor]| vec![inner.call(x).unwrap().remove(0) + 1.0]);
    for round in 0..4 {
        let x = [draw(&[5, 3])];
        let ours = outer.call(&x).unwrap();
        assert!(close(&ours[0], &((&x[0] * 2.0).exp() + 1.0)), "round {round}");
    }
    let (outer, inner) = (outer.stats(), inner.stats());
    assert_eq!((outer.captures, outer.fused_calls, outer.eager_calls.len()), (1, 3, 0), "{outer:?}");
    let reason = "another model is being captured: fuse one of them only";
    assert_eq!(inner.eager_calls, BTreeMap::from([(String::from(reason), 1)]));
    assert_eq!((inner.captures, inner.fused_calls), (0, 0), "{inner:?}");
}

/// A first call that records gradients is compared before its plan may run; where it cannot be, no plan does.
#[test]
fn what_was_captured_while_gradients_were_recorded_runs_eager_with_a_reason() {
    crate::common::setup();
    for audit in [Audit::Never, Audit::Exponential] {
        let weight = draw(&[6]).set_requires_grad(true);
        let held = weight.shallow_clone();
        let options = Options { audit, ..Options::default() };
        let fused = tilefuse::fuse_with(move |x: &[Tensor]| vec![(&x[0] * &held).exp()], options);
        let x = draw(&[4, 6]);
        let captured = fused.call(&[x.shallow_clone()]).unwrap().remove(0);
        assert!(captured.requires_grad() && close(&captured, &(&x * &weight).exp()), "{audit:?}");
        drop(captured);
        let _no_grad = tch::no_grad_guard();
        // The plan is for weights of another type now.
        weight.shallow_clone().set_data(&weight.to_kind(Kind::Double));
        for call in 0..4 {
            let x = draw(&[4, 6]);
            let ours = fused.call(&[x.shallow_clone()]).unwrap();
            assert!(close(&ours[0], &(&x * &weight).exp()), "{audit:?}, call {call}");
        }
        let stats = fused.stats();
        assert_eq!((stats.captures, stats.audits, stats.fused_calls), (1, 0, 0), "{stats:?}");
        let reason = "captured while gradients were recorded, so that what the model keeps is not known: make the \
                      first call under `tch::no_grad`";
        assert_eq!(stats.eager_calls, BTreeMap::from([(String::from(reason), 4)]), "{audit:?}");
    }
}

#[test]
fn dropout_switches_between_training_and_evaluation() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let vs = nn::VarStore::new(device());
    let norm = nn::batch_norm1d(vs.root(), 32, Default::default());
    let net = nn::seq_t().add(norm).add_fn_t(|x, train| x.dropout(0.5, train) + 1.0);
    let fused = tilefuse::fuse(net).named(&vs);
    for round in 0..3 {
        let x = draw(&[64, 32]);
        let ours = fused.forward_t(&x, false);
        assert!(close(&ours, &fused.model().forward_t(&x, false)), "round {round}: evaluation");
        let dropped =
            fused.forward_t(&x, true).eq(1.0).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
        assert!((0.4..0.6).contains(&dropped), "round {round}: {dropped} dropped");
    }
    // A function whose training mode is its own business.
    let training = std::sync::atomic::AtomicBool::new(false);
    let fused = tilefuse::fuse(|x: &[Tensor]| {
        vec![x[0].dropout(0.5, training.load(std::sync::atomic::Ordering::Relaxed)) * 1.0]
    });
    let x = [Tensor::ones([400], *F32)];
    training.store(true, std::sync::atomic::Ordering::Relaxed);
    let draws: Vec<Tensor> = (0..3).map(|_| fused.call(&x).unwrap().remove(0)).collect();
    assert!(draws[0] != draws[1] && draws[1] != draws[2], "random numbers are drawn anew");
}

#[test]
fn a_panic_of_the_model_then_a_good_call() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let fails = std::sync::atomic::AtomicBool::new(true);
    let fused = tilefuse::fuse(|x: &[Tensor]| {
        let y = x[0].exp();
        assert!(!fails.load(std::sync::atomic::Ordering::Relaxed), "not now");
        vec![y + 1.0]
    });
    for _ in 0..2 {
        let call = std::panic::AssertUnwindSafe(|| fused.call(&[draw(&[6])]));
        assert!(std::panic::catch_unwind(call).is_err());
    }
    fails.store(false, std::sync::atomic::Ordering::Relaxed);
    for _ in 0..3 {
        let x = [draw(&[6])];
        assert!(close(&fused.call(&x).unwrap()[0], &(x[0].exp() + 1.0)));
    }
    assert_eq!(fused.stats().fused_calls, 2, "{:?}", fused.stats());
}

#[test]
fn a_rejected_shape_then_a_good_call() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let vs = nn::VarStore::new(device());
    let fused = tilefuse::fuse(nn::linear(vs.root(), 8, 8, Default::default())).named(&vs);
    for _ in 0..2 {
        let x = draw(&[2, 8]);
        assert!(close(&fused.forward(&x), &fused.model().forward(&x)));
        let call = std::panic::AssertUnwindSafe(|| fused.forward(&draw(&[2, 7])));
        assert!(std::panic::catch_unwind(call).is_err());
    }
}

#[test]
fn of_more_signatures_than_are_kept_the_least_recently_used_goes() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse_with(block as Function, Options { max_signatures: 3, ..Options::default() });
    let call = |rows: i64| same(&fused, &[draw(&[rows, 3])], &format!("{rows} rows"));
    let counts = || (fused.stats().captures, fused.stats().fused_calls, fused.stats().evictions);
    (1..=3).for_each(call);
    call(1);
    assert_eq!(counts(), (3, 1, 0));
    // Rows of 2 were not used for longest.
    call(4);
    [1, 3, 4].into_iter().for_each(call);
    assert_eq!(counts(), (4, 4, 1));
    call(2);
    [3, 4, 2].into_iter().for_each(call);
    assert_eq!(counts(), (5, 7, 2));
    assert!(fused.stats().eager_calls.is_empty());
    // Signatures that run eager have places too.
    let eager: Function = |x| match x[0].size()[0] {
        1 => vec![&x[0] * x[0].sum(Kind::Float).double_value(&[])],
        _ => vec![&x[0] * 2.0],
    };
    let fused = tilefuse::fuse_with(eager, Options { max_signatures: 2, ..Options::default() });
    for rows in [1, 1, 2, 3, 3] {
        same(&fused, &[draw(&[rows, 3])], &format!("{rows} rows"));
    }
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.fused_calls, stats.evictions), (3, 1, 1), "{stats:?}");
    // Of more lengths in turn than are kept, the ones that are there stay.
    let fused = tilefuse::fuse_with(block as Function, Options { max_signatures: 4, ..Options::default() });
    for call in 0..600 {
        same(&fused, &[draw(&[1 + call % 6, 3])], "lengths in turn");
    }
    let stats = fused.stats();
    let reason = stats.eager_calls.keys().next().cloned().unwrap_or_default();
    assert!(reason.contains("more signatures are called in turn than the 4 that are kept"), "{stats:?}");
    assert!(stats.captures < 120 && stats.fused_calls > 300, "{stats:?}");
    let fused = tilefuse::fuse_with(block as Function, Options { max_signatures: 0, ..Options::default() });
    same(&fused, &[draw(&[2, 3])], "none");
    assert!(fused.stats().eager_calls.keys().all(|reason| reason.contains("Options::max_signatures")));
}

#[test]
fn sparse_and_high_rank_inputs_do_not_fill_the_table() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let product: Function = |x| vec![x[0].f_matmul(&x[1]).unwrap().relu() * 2.0];
    let fused = tilefuse::fuse_with(product, Options { max_signatures: 2, ..Options::default() });
    for _ in 0..4 {
        let dense = Tensor::eye(6, *F32) * draw(&[6, 6]);
        for sparse in [dense.to_sparse_csr(None), dense.to_sparse_sparse_dim(2)] {
            let x = draw(&[6, 5]);
            let ours = fused.call(&[sparse, x.shallow_clone()]).unwrap();
            assert!(close(&ours[0], &(dense.matmul(&x).relu() * 2.0)));
        }
    }
    let stats = fused.stats();
    assert!(stats.captures <= 2 && stats.evictions == 0, "{stats:?}");
    let rank: Function = |x| vec![x[0].relu() * 2.0];
    let fused = tilefuse::fuse(rank);
    for _ in 0..3 {
        same(&fused, &[draw(&[1, 2, 1, 2, 1, 2, 1, 2, 3])], "nine dimensions");
    }
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.eager_calls.values().sum()), (0, 3), "{stats:?}");
}

#[test]
fn an_input_is_one_tensor_twice_in_the_first_call_or_a_parameter() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let subtract: Function = |x| vec![(&x[0] - &x[1]).exp()];
    let fused = tilefuse::fuse(subtract);
    for _ in 0..2 {
        let x = draw(&[7]);
        same(&fused, &[x.shallow_clone(), x], "one tensor");
        same(&fused, &[draw(&[7]), draw(&[7])], "two tensors");
    }
    assert_eq!((fused.stats().captures, fused.stats().fused_calls), (2, 2));
    let weight = draw(&[7]);
    let held = weight.shallow_clone();
    let fused = tilefuse::fuse(move |x: &[Tensor]| vec![&x[0] * &held]);
    let fused = fused.with_names(vec![(String::from("weight"), weight.shallow_clone())]);
    for _ in 0..2 {
        for x in [weight.shallow_clone(), draw(&[7])] {
            let ours = fused.call(&[x.shallow_clone()]).unwrap();
            assert!(close(&ours[0], &(&x * &weight)));
        }
    }
}

#[test]
fn a_number_of_the_model_that_changes_is_read_in_each_call() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let scale = Tensor::from(2.5f32).to_device(crate::common::device());
    let held = scale.shallow_clone();
    let fused = tilefuse::fuse(move |x: &[Tensor]| vec![held.exp() * &x[0], &x[0] * &held]);
    for round in 0..6 {
        let x = draw(&[4, 3]);
        let ours = fused.call(&[x.shallow_clone()]).unwrap();
        assert!(close(&ours[0], &(scale.exp() * &x)) && close(&ours[1], &(&x * &scale)), "round {round}");
        match round % 3 {
            0 => scale.shallow_clone().copy_(&(&scale * 0.5)),
            1 => scale.shallow_clone().set_data(&(&scale * 0.1)),
            // Which no version counts.
            _ => drop(scale.data().fill_(1.5)),
        }
    }
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.fused_calls), (1, 5), "{stats:?}");
}

#[test]
fn a_number_that_the_model_reads_is_compared_in_each_call() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let scale = Tensor::from(2.5f32).to_device(crate::common::device());
    let held = scale.shallow_clone();
    let options = tilefuse::Options { audit: tilefuse::Audit::Never, ..Default::default() };
    let fused =
        tilefuse::fuse_with(move |x: &[Tensor]| vec![(&x[0] * held.double_value(&[])).exp() + 1.0], options);
    for round in 0..8 {
        let x = draw(&[4, 3]);
        let ours = fused.call(&[x.shallow_clone()]).unwrap();
        let eager = (&x * scale.double_value(&[])).exp() + 1.0;
        assert!(close(&ours[0], &eager), "round {round}");
        if round % 2 == 1 {
            // Which no version counts.
            drop(scale.data().fill_(0.25 * f64::from(round)));
        }
    }
    assert!(fused.stats().fused_calls > 0, "{:?}", fused.stats());
}

#[test]
fn tensors_that_numbers_are_read_out_of_are_compared_in_each_call() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let whole = Tensor::rand([40, 50], *F32) + 0.5;
    for table in [whole.shallow_clone(), whole.tr(), whole.to_kind(Kind::Half), whole.gt(0.75)] {
        let held = table.shallow_clone();
        let options = tilefuse::Options { audit: tilefuse::Audit::Never, ..Default::default() };
        let read = |table: &Tensor| {
            table.double_value(&[3, 7]) + table.to_kind(Kind::Float).mean(Kind::Float).double_value(&[])
        };
        let fused = tilefuse::fuse_with(move |x: &[Tensor]| vec![(&x[0] * read(&held)).exp() + 1.0], options);
        for round in 0..8 {
            let x = draw(&[4, 3]);
            let ours = fused.call(&[x.shallow_clone()]).unwrap();
            assert!(close(&ours[0], &((&x * read(&table)).exp() + 1.0)), "round {round}");
            if round % 2 == 1 {
                // Which no version counts; one element that is no result of the first.
                drop(table.data().select(0, 30 + round).fill_(f64::from(round as i32 % 4 - 1)));
            }
        }
        assert!(fused.stats().fused_calls > 0, "{:?}", fused.stats());
    }
}

#[test]
fn an_unused_operator_a_batch_of_one_and_a_repeat_change_nothing() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let plain: Function = |x| vec![x[0].layer_norm::<Tensor>([64], None, None, 1e-5, false).gelu("tanh")];
    let more: Function = |x| {
        let _unused = x[0].exp().sum(Kind::Float);
        vec![x[0].layer_norm::<Tensor>([64], None, None, 1e-5, false).gelu("tanh")]
    };
    let (plain, more) = (tilefuse::fuse(plain), tilefuse::fuse(more));
    let x = draw(&[37, 64]);
    let run = |f: &Fused<Function>, x: &Tensor| {
        f.call(&[x.shallow_clone()]).unwrap();
        f.call(&[x.shallow_clone()]).unwrap().remove(0)
    };
    let whole = run(&plain, &x);
    assert_eq!(whole, run(&plain, &x), "a repeat");
    assert_eq!(whole, run(&more, &x), "an unused value");
    let row = run(&plain, &x.narrow(0, 5, 1).copy());
    assert!(close(&row, &whole.narrow(0, 5, 1)), "a batch of one");
}

#[test]
fn tensors_that_the_model_makes_at_every_call_are_no_parameters() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(|x: &[Tensor]| {
        let mask = Tensor::from_slice(&[1f32, 0.0, 2.0, -1.0]).to_device(device());
        let table = Tensor::arange(4, *F32) * 0.5;
        vec![&x[0] * mask + table, &x[0] * Tensor::from(3.0f32)]
    });
    for _ in 0..4 {
        let x = [draw(&[3, 4])];
        let (ours, eager) = (fused.call(&x).unwrap(), (fused.model())(&x));
        assert!(ours.iter().zip(&eager).all(|(o, e)| close(o, e)));
    }
    let stats = fused.stats();
    // A copy from the host to a GPU may run eager.
    if on_cpu() {
        assert_eq!((stats.captures, stats.fused_calls), (1, 3), "{stats:?}");
    }
}

#[test]
fn every_small_model_of_the_zoo_is_captured_once() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    for entry in tilefuse_models::zoo().iter().filter(|e| e.name.ends_with("-tiny")) {
        let vs = nn::VarStore::new(device());
        let fused = tilefuse::fuse(entry.instantiate(&vs)).named(&vs);
        for _ in 0..3 {
            let inputs: Vec<Tensor> =
                entry.inputs().iter().map(|s| s.sample(Kind::Float, device())).collect();
            fused.run_with(&inputs, |m, x| m.forward(x)).unwrap();
        }
        let stats = fused.stats();
        assert_eq!((stats.captures, stats.fused_calls), (1, 2), "{}: {stats:?}", entry.name);
    }
}
