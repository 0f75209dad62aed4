//! What a plan takes from the call that it was captured in, and what of it is another thing in a later call.

use std::cell::RefCell;
use std::rc::Rc;

use tch::{Device, Kind, Tensor};
use tilefuse::{Audit, Fused, Options, Stats};

use crate::common::{devices, setup};

type Model = fn(&[Tensor]) -> Vec<Tensor>;

fn ones(sizes: &[i64], factor: f64, device: Device) -> Tensor {
    Tensor::ones(sizes, (Kind::Float, device)) * factor
}

fn fuse<M>(model: M) -> Fused<M> {
    tilefuse::fuse_with(model, Options { audit: Audit::Exponential, ..Options::default() })
}

/// Calls a model, fused and eager, with each of these inputs in turn.
#[track_caller]
fn in_turn<M: Fn(&[Tensor]) -> Vec<Tensor>>(model: M, calls: &[&[&Tensor]]) -> Stats {
    setup();
    let fused = fuse(model);
    for (call, inputs) in calls.iter().enumerate() {
        let inputs: Vec<Tensor> = inputs.iter().map(|t| t.shallow_clone()).collect();
        let (ours, eager) = (fused.call(&inputs).unwrap(), (fused.model())(&inputs));
        assert_eq!(ours.len(), eager.len());
        for (ours, eager) in ours.iter().zip(&eager) {
            assert_eq!((ours.size(), ours.kind()), (eager.size(), eager.kind()), "call {call}");
            assert!(ours.equal(eager), "call {call}: {ours} instead of {eager}");
        }
    }
    fused.stats()
}

fn reason(stats: &Stats) -> String {
    stats.eager_calls.keys().cloned().collect::<Vec<_>>().join("\n")
}

/// A recording takes a weight that is an input of the first call for that input.
#[test]
fn the_first_input_may_be_a_tensor_that_the_model_holds() {
    for device in devices() {
        let _no_grad = tch::no_grad_guard();
        let (w, other) = (ones(&[8], 2.0, device), ones(&[8], 3.0, device));
        let held = w.shallow_clone();
        let model = |x: &[Tensor]| vec![&x[0] * &held];
        let stats = in_turn(model, &[&[&w], &[&w], &[&w], &[&other], &[&other], &[&w], &[&other]]);
        // The first call with another tensor is recorded again, and its plan stands for the others.
        assert!(stats.compiles == 2 && stats.fused_calls >= 1 && stats.eager_calls.is_empty(), "{stats:?}");
        // As one of two, where no call without it follows.
        let both = |x: &[Tensor]| vec![&x[0] * &held + &x[1]];
        in_turn(both, &[&[&w, &other], &[&other, &other], &[&other, &w], &[&w, &other]]);
        // Where two such tensors take turns, a plan is made anew a few times.
        let (second, pair) = (other.shallow_clone(), |x: &[Tensor]| vec![&x[0] * &held + &other]);
        let turns: [&[&Tensor]; 2] = [&[&w], &[&second]];
        let stats = in_turn(pair, &turns.repeat(20));
        let again: u64 = stats.recaptures.values().sum();
        assert!(
            stats.compiles <= 10 && again <= 10 && reason(&stats).contains("is a tensor of the model"),
            "{stats:?}"
        );
        // What changes is not followed for long.
        let count = std::cell::Cell::new(0.0);
        let fused = fuse(|x: &[Tensor]| {
            count.set(count.get() + 1.0);
            vec![&x[0] * count.get()]
        });
        for call in 1..8 {
            let x = ones(&[8], 1.0, device);
            assert_eq!(fused.call(&[x]).unwrap()[0].double_value(&[0]), f64::from(call));
        }
        let stats = fused.stats();
        assert!(stats.compiles <= 2 && reason(&stats).contains("does not make the same calls"), "{stats:?}");
    }
}

/// Audits go on where the inputs are tensors of the model, or one tensor.
#[test]
fn calls_of_tensors_of_the_model_are_compared_too() {
    for device in devices() {
        let _no_grad = tch::no_grad_guard();
        let (w, other) = (ones(&[8], 2.0, device), ones(&[8], 3.0, device));
        for give in [
            |w: &Tensor, _: &Tensor| [w.shallow_clone(), w.shallow_clone()],
            |w: &Tensor, other: &Tensor| [other.shallow_clone(), w.shallow_clone()],
        ] {
            setup();
            let (held, flag) = (w.shallow_clone(), std::cell::Cell::new(false));
            let fused = fuse(|x: &[Tensor]| {
                let y = &x[0] * &held + &x[1];
                vec![if flag.get() { y.neg() } else { y }]
            });
            let call = |inputs: &[Tensor]| fused.call(inputs).unwrap()[0].double_value(&[0]);
            for _ in 0..3 {
                call(&[ones(&[8], 5.0, device), other.copy()]);
                call(&give(&w, &other));
            }
            assert!(fused.stats().eager_calls.is_empty(), "{:?}", fused.stats());
            flag.set(true);
            (0..40).for_each(|_| {
                call(&give(&w, &other));
            });
            let inputs = give(&w, &other);
            let eager = (fused.model())(&inputs)[0].double_value(&[0]);
            assert_eq!(call(&inputs), eager, "{:?}", fused.stats());
        }
    }
}

/// What a model reads of its weight.
type Read = fn(&Tensor) -> f64;

/// What a model reads on the host of what it computes of its weights is a copy that no operator reads.
#[test]
fn values_are_read_out_of_what_is_computed_of_weights() {
    for device in devices() {
        let _no_grad = tch::no_grad_guard();
        let x = ones(&[8], 1.0, device);
        let reads: [(bool, Read); 6] = [
            (true, |w| f64::try_from(w).unwrap()),
            (true, |w| f64::try_from(w.sum(Kind::Float)).unwrap()),
            (true, |w| i64::try_from(w * 100.0).unwrap() as f64),
            (true, |w| Vec::<f64>::try_from(w.reshape([1])).unwrap()[0]),
            (false, |w| w.double_value(&[])),
            (true, |w| f64::from(u8::from(w == &(w * 1.0))) + w.double_value(&[])),
        ];
        for (converts, read) in reads {
            setup();
            let w = ones(&[], 2.0, device);
            let held = w.shallow_clone();
            let fused = fuse(|x: &[Tensor]| vec![&x[0] * read(&held)]);
            for _ in 0..4 {
                let _ = w.shallow_clone().g_add_scalar_(1.0);
                let ours = fused.call(&[x.shallow_clone()]).unwrap();
                assert!(ours[0].equal(&(&x * read(&w))), "{:?}", fused.stats());
            }
            let reasons: Vec<String> = fused.stats().eager_calls.into_keys().collect();
            assert_eq!(!reasons.is_empty(), converts, "{reasons:?}");
        }
        // A tensor that is exchanged, of which the value alone is used.
        let w = Rc::new(RefCell::new(ones(&[], 2.0, device)));
        let held = Rc::clone(&w);
        let fused = fuse(|x: &[Tensor]| vec![&x[0] * held.borrow().double_value(&[])]);
        for factor in [2.0, 2.0, 5.0, 5.0] {
            *w.borrow_mut() = ones(&[], factor, device);
            let ours = fused.call(&[x.shallow_clone()]).unwrap();
            assert_eq!(ours[0].double_value(&[0]), factor);
        }
    }
}

/// A weight that is exchanged is no longer the model's, though two plans have handles of it.
#[test]
fn a_weight_is_exchanged_that_two_plans_read() {
    for device in devices() {
        setup();
        let _no_grad = tch::no_grad_guard();
        let w = Rc::new(RefCell::new(ones(&[8], 2.0, device)));
        let held = Rc::clone(&w);
        let fused = fuse(|x: &[Tensor]| vec![&x[0] * &*held.borrow()]);
        let x = ones(&[33], 1.0, device);
        // A plan for addresses of any alignment matches aligned ones, too.
        let (aligned, unaligned) = (x.narrow(0, 0, 8), x.narrow(0, 1, 8));
        let call = |x: &Tensor| fused.call(&[x.shallow_clone()]).unwrap()[0].double_value(&[0]);
        for x in [&aligned, &aligned, &unaligned, &unaligned] {
            assert_eq!(call(x), 2.0);
        }
        for factor in [5.0, 6.0] {
            *w.borrow_mut() = ones(&[8], factor, device);
            assert_eq!([call(&aligned), call(&unaligned)], [factor; 2], "{:?}", fused.stats());
        }
    }
}

/// A call may fail for other data only.
#[test]
fn a_model_may_go_on_where_a_call_failed() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let table = ones(&[16, 8], 2.0, Device::Cpu);
    let model = |x: &[Tensor]| {
        let found = table.f_index_select(0, &x[0]);
        vec![found.map_or_else(|_| ones(&[2, 8], 0.0, Device::Cpu), |rows| rows * 2.0)]
    };
    let (bad, good) = (Tensor::from_slice(&[0i64, 99]), Tensor::from_slice(&[0i64, 3]));
    let stats = in_turn(model, &[&[&bad], &[&bad], &[&good], &[&good], &[&bad]]);
    assert!(stats.fused_calls == 0 && reason(&stats).contains("failed, and the model went on"), "{stats:?}");
}

/// The gradient of an input is another one for each input.
#[test]
fn gradients_of_inputs_are_no_weights() {
    for device in devices() {
        setup();
        let parameter = |factor: f64| {
            let p = ones(&[4], factor, device).set_requires_grad(true);
            (&p * &p).sum(Kind::Float).backward();
            p
        };
        let (a, b) = (parameter(1.0), parameter(3.0));
        let fused = fuse(|p: &[Tensor]| {
            let step = p[0].grad() * 0.25;
            let _ = p[0].shallow_clone().g_sub_(&step);
            Vec::<Tensor>::new()
        });
        tch::no_grad(|| {
            for p in [&a, &a, &b] {
                fused.call(&[p.shallow_clone()]).unwrap();
            }
        });
        assert_eq!([a.double_value(&[0]), b.double_value(&[0])], [0.0, 1.5]);
        let stats = fused.stats();
        assert!(reason(&stats).contains("is the gradient of an input"), "{stats:?}");
    }
}

/// A result that looks like an input, a weight or another result is a view of it where eager's is.
#[test]
fn views_of_what_they_look_like_are_tensors_of_their_own() {
    for device in devices() {
        setup();
        let _no_grad = tch::no_grad_guard();
        let w = ones(&[4, 4], 2.0, device).set_requires_grad(true);
        let x = ones(&[4, 4], 3.0, device);
        let fused = fuse(|x: &[Tensor]| {
            let y = &x[0] + 1.0;
            vec![
                w.detach(),
                w.shallow_clone(),
                x[0].view([4, 4]),
                x[0].shallow_clone(),
                y.view([4, 4]),
                y.shallow_clone(),
                y,
            ]
        });
        for call in 0..3 {
            let mut results = fused.call(&[x.shallow_clone()]).unwrap();
            let requires: Vec<bool> = results.iter().map(Tensor::requires_grad).collect();
            assert_eq!(requires, [false, true, false, false, false, false, false], "call {call}");
            // They are one tensor or another, of one memory.
            for at in [0, 2, 4] {
                let _ = results[at].unsqueeze_(0);
                assert_eq!((results[at].dim(), results[at + 1].dim()), (3, 2), "call {call}, result {at}");
            }
            assert_eq!(results[6].dim(), 2, "call {call}");
            let _ = results[5].unsqueeze_(0);
            assert_eq!((results[6].dim(), x.dim(), w.dim()), (3, 2, 2), "call {call}");
            let _ = results[4].fill_(7.0);
            assert_eq!(results[6].double_value(&[0, 0, 0]), 7.0);
        }
        assert_eq!(fused.stats().fused_calls, 1, "{:?}", fused.stats());
        // One view that is returned twice.
        let twice = fuse(|x: &[Tensor]| {
            let (v, d) = (x[0].view([4, 4]), w.detach());
            vec![v.shallow_clone(), v, d.shallow_clone(), d]
        });
        for call in 0..3 {
            let mut results = twice.call(&[x.shallow_clone()]).unwrap();
            for at in [1, 3] {
                let _ = results[at].unsqueeze_(0);
                assert!(
                    !results[at].requires_grad() && results[at - 1].dim() == 3,
                    "call {call}, result {at}"
                );
            }
            assert_eq!((x.dim(), w.dim()), (2, 2), "call {call}");
        }
        assert_eq!(twice.stats().fused_calls, 1, "{:?}", twice.stats());
    }
}

/// Autograd knows of writes through views that plans return.
#[test]
fn views_count_their_writes_together() {
    for device in devices() {
        setup();
        let leaf = ones(&[2], 2.0, device).set_requires_grad(true);
        let held = ones(&[4, 2], 2.0, device);
        let fused = fuse(|x: &[Tensor]| {
            let y = &x[0] * 2.0;
            vec![y.narrow(0, 0, 2).select(0, 0), y.narrow(0, 0, 2), held.narrow(0, 1, 2), y]
        });
        for call in 0..3 {
            let results = tch::no_grad(|| fused.call(&[ones(&[4, 2], 1.0, device)])).unwrap();
            for (kept, written) in [(&results[0], &results[1]), (&held.select(0, 1), &results[2])] {
                let loss = (&leaf * kept).sum(Kind::Float);
                tch::no_grad(|| {
                    let _ = written.shallow_clone().g_add_scalar_(1.0);
                });
                assert!(loss.f_backward().is_err(), "call {call}: the gradient is of what was overwritten");
            }
        }
        assert_eq!(fused.stats().fused_calls, 1, "{:?}", fused.stats());
    }
}

/// Which tensors require gradients shows in no operator.
#[test]
fn who_requires_gradients_is_a_part_of_the_signature_and_no_effect_of_plans() {
    for device in devices() {
        let _no_grad = tch::no_grad_guard();
        let (a, b) = (ones(&[4], 1.0, device), ones(&[4], 1.0, device).set_requires_grad(true));
        let branch = |x: &[Tensor]| vec![if x[0].requires_grad() { &x[0] * 5.0 } else { &x[0] * 2.0 }];
        let stats = in_turn(branch, &[&[&a], &[&a], &[&b], &[&b], &[&a]]);
        assert_eq!((stats.captures, stats.eager_calls.len()), (2, 0), "{stats:?}");
        assert!(stats.guard_misses.contains_key("requires_grad of input 0"), "{stats:?}");
        let sets: [Model; 3] = [
            |x| vec![(&x[0] * 2.0).set_requires_grad(true)],
            |x| vec![tch::with_grad(|| x[0].copy().set_requires_grad(true) * 2.0)],
            |x| vec![x[0].set_requires_grad(!x[0].requires_grad()) * 2.0],
        ];
        for model in sets {
            setup();
            let fused = fuse(model);
            for call in 0..3 {
                let (ours, theirs) = ([a.copy()], [a.copy()]);
                let (result, eager) = (fused.call(&ours).unwrap(), model(&theirs));
                let requires = |t: &[Tensor; 1], r: &[Tensor]| (t[0].requires_grad(), r[0].requires_grad());
                assert_eq!(requires(&ours, &result), requires(&theirs, &eager), "call {call}");
            }
            let reason = reason(&fused.stats());
            assert!(reason.contains("changes whether a tensor requires gradients"), "{reason}");
        }
        // The same where gradients may be recorded, as they are unless one says otherwise.
        let fused = fuse(sets[0]);
        let result =
            tch::with_grad(|| (0..3).map(|_| fused.call(&[a.copy()]).unwrap().remove(0)).last().unwrap());
        assert!(result.requires_grad(), "{:?}", fused.stats());
    }
}

/// Operators that give constants read the type and the shape of a weight.
#[test]
fn a_weight_of_which_the_type_and_shape_are_read_may_change() {
    for device in devices() {
        let _no_grad = tch::no_grad_guard();
        let models: [fn(&Tensor, &Tensor) -> Tensor; 3] = [
            |w, x| w.ones_like() + x,
            |w, x| w.zeros_like() + x,
            |w, x| w.new_ones(w.size(), (w.kind(), w.device())) + x,
        ];
        for model in models {
            setup();
            let mut w = ones(&[4, 8], 1.0, device);
            let (held, x) = (w.shallow_clone(), ones(&[8], 1.0, device));
            let fused = fuse(|x: &[Tensor]| vec![model(&held, &x[0])]);
            for (sizes, kind) in [([4, 8], Kind::Float), ([4, 8], Kind::Float), ([6, 8], Kind::Double)] {
                w.set_data(&Tensor::ones(sizes, (kind, device)));
                for _ in 0..3 {
                    let ours = fused.call(&[x.shallow_clone()]).unwrap();
                    assert_eq!(
                        (ours[0].size(), ours[0].kind()),
                        (sizes.to_vec(), kind),
                        "{:?}",
                        fused.stats()
                    );
                }
            }
        }
    }
}

/// A strict model inside another one runs as it is while that one is captured.
#[test]
fn what_must_be_fused_may_be_called_in_a_capture() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let strict = Options { strict: tilefuse::Strict::Plan, ..Options::default() };
    let inner = tilefuse::fuse_with(|x: &[Tensor]| vec![&x[0] * 2.0], strict);
    let x = [ones(&[4], 1.0, Device::Cpu)];
    let outer = tilefuse::fuse(|x: &[Tensor]| vec![inner.call(x).unwrap().remove(0) + 1.0]);
    for _ in 0..3 {
        assert_eq!(outer.call(&x).unwrap()[0].double_value(&[0]), 3.0);
    }
    assert_eq!(outer.stats().fused_calls, 2, "{:?}", outer.stats());
}

/// No call shows what another thread writes; versions do.
#[test]
fn writes_of_other_threads_are_seen() {
    fn elsewhere(t: &Tensor) {
        let t = t.shallow_clone();
        std::thread::spawn(move || tch::no_grad(|| drop(t.shallow_clone().g_add_scalar_(1.0))))
            .join()
            .unwrap();
    }
    fn computed(x: &[Tensor]) -> Vec<Tensor> {
        let y = &x[0] * 2.0;
        elsewhere(&y);
        vec![y + 1.0]
    }
    fn behind_a_write(x: &[Tensor]) -> Vec<Tensor> {
        let mut y = &x[0] * 2.0;
        let _ = y.g_add_scalar_(3.0);
        elsewhere(&y);
        let _ = y.g_mul_scalar_(2.0);
        vec![y]
    }
    fn through_a_view(x: &[Tensor]) -> Vec<Tensor> {
        let y = &x[0] * 2.0;
        elsewhere(&y.narrow(0, 1, 2));
        vec![y * 3.0]
    }
    fn result(x: &[Tensor]) -> Vec<Tensor> {
        let y = &x[0] * 2.0;
        elsewhere(&y);
        vec![y]
    }
    fn input(x: &[Tensor]) -> Vec<Tensor> {
        let y = &x[0] * 2.0;
        elsewhere(&x[0]);
        vec![y]
    }
    for (case, model) in [computed as Model, behind_a_write, through_a_view, result, input].iter().enumerate()
    {
        for device in devices() {
            let _no_grad = tch::no_grad_guard();
            let inputs = [1.0, 2.0, 3.0, 4.0].map(|factor| ones(&[4], factor, device));
            let expected = inputs.each_ref().map(|x| {
                let x = x.copy();
                (model(&[x.shallow_clone()]).remove(0), x)
            });
            let fused = fuse(*model);
            setup();
            for (x, (y, written)) in inputs.iter().zip(&expected) {
                assert!(fused.call(&[x.shallow_clone()]).unwrap()[0].equal(y), "case {case}");
                assert!(x.equal(written), "case {case}");
            }
            let stats = fused.stats();
            assert!(
                reason(&stats).contains("on other threads") && stats.fused_calls == 0,
                "{case}: {stats:?}"
            );
        }
    }
}
