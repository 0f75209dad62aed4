//! Tensors that a model writes: kernels write over them or their new values are copied there, beside eager.

use std::cell::RefCell;

use tch::{Kind, Tensor};
use tilefuse::torch::Meta;
use tilefuse::{Explanation, StepReport};

use crate::common::{F32, on_cpu, setup};

fn draw(sizes: &[i64]) -> Tensor {
    Tensor::randn(sizes, *F32)
}

fn version(tensor: &Tensor) -> i64 {
    Meta::of(tensor).unwrap().version
}

/// Why each tensor that a call writes is copied; none where kernels write all.
fn copied(plan: &Explanation) -> Vec<String> {
    plan.updates.iter().filter_map(|update| update.copied.clone()).collect()
}

fn launches(plan: &Explanation) -> usize {
    plan.steps.iter().filter(|step| matches!(step, StepReport::Kernel { .. })).count()
}

/// Whether two tensors differ by no more than rounding, which is relative to the largest numbers that were added.
fn same(a: &Tensor, b: &Tensor) -> bool {
    let nan = a.isnan().equal(&b.isnan());
    let (a, b) = (a.nan_to_num(0.0, 1e30, -1e30), b.nan_to_num(0.0, 1e30, -1e30));
    let largest = if b.numel() == 0 { 0.0 } else { b.abs().max().double_value(&[]) };
    nan && a.allclose(&b, 1e-5, 1e-6 + 1e-5 * largest, false)
}

/// Runs a model of inputs and tensors of its own, fused and eager, and compares results and what it writes. Returns the
/// plan.
fn beside_eager(
    own: &[Tensor],
    inputs: &[Tensor],
    model: impl Fn(&[Tensor], &[Tensor]) -> Vec<Tensor>,
) -> Explanation {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = crate::common::THREADS.read();
    let copies = |tensors: &[Tensor]| tensors.iter().map(like).collect::<Vec<Tensor>>();
    let (their_own, theirs) = (copies(own), copies(inputs));
    let fused = tilefuse::fuse(|x: &[Tensor]| model(own, x));
    for call in 0..4 {
        let versions: Vec<i64> = own.iter().chain(inputs).map(version).collect();
        let before = their_own.iter().chain(&theirs).map(version).collect::<Vec<_>>();
        let (ours, eager) = (fused.call(inputs).unwrap(), model(&their_own, &theirs));
        assert_eq!(ours.len(), eager.len());
        for (at, (a, b)) in ours.iter().zip(&eager).enumerate() {
            assert!(same(a, b), "call {call}, result {at}");
        }
        let eager = their_own.iter().chain(&theirs).zip(before);
        for (at, ((a, b), (c, d))) in own.iter().chain(inputs).zip(versions).zip(eager).enumerate() {
            assert!(same(a, c), "call {call}, tensor {at}");
            assert_eq!(version(a) > b, version(c) > d, "call {call}, version of tensor {at}");
        }
    }
    assert_eq!(fused.stats().fused_calls, 3, "{:?}", fused.stats());
    fused.explain_with(inputs, |m, x| m(x)).unwrap()
}

/// A copy with the same strides, of a tensor that is dense or a view of one.
fn like(tensor: &Tensor) -> Tensor {
    let meta = Meta::of(tensor).unwrap();
    let extent: i64 = 1 + meta.sizes().iter().zip(meta.strides()).map(|(n, s)| (n - 1) * s).sum::<i64>();
    let flat = tensor.as_strided([extent + meta.offset], [1], 0).copy();
    flat.as_strided(meta.sizes(), meta.strides(), meta.offset)
}

/// Twenty tensors of different sizes, some of which no vector divides, with `state` further ones for each.
fn tensors(state: usize) -> Vec<Tensor> {
    let shape = |i: i64| if i % 3 == 0 { vec![103 + 5 * i] } else { vec![9 + i, 11 + 3 * i] };
    let own = |i: i64| std::iter::once(draw(&shape(i))).chain((0..state).map(move |_| draw(&shape(i)).abs()));
    (0..20i64).flat_map(own).collect()
}

/// The gradients are inputs; everything else is the optimiser's own.
fn gradients(own: &[Tensor], state: usize) -> Vec<Tensor> {
    own.chunks(state + 1).map(|own| Tensor::randn_like(&own[0])).collect()
}

#[test]
fn sgd_momentum_and_adamw_write_over_all_that_they_update() {
    let sgd = |own: &[Tensor], g: &[Tensor]| {
        own.iter().zip(g).for_each(|(p, g)| drop(p.shallow_clone().g_sub_(&(g * 0.1))));
        vec![own[0].shallow_clone()]
    };
    let momentum = |own: &[Tensor], g: &[Tensor]| {
        for (own, g) in own.chunks(2).zip(g) {
            let velocity = own[1].shallow_clone().g_mul_scalar_(0.9).g_add_(g);
            let _ = own[0].shallow_clone().g_sub_(&(velocity * 0.01));
        }
        vec![own[0].shallow_clone()]
    };
    let adamw = |own: &[Tensor], g: &[Tensor]| {
        for (own, g) in own.chunks(3).zip(g) {
            let m = own[1].shallow_clone().g_mul_scalar_(0.9).g_add_(&(g * 0.1));
            let v = own[2].shallow_clone().g_mul_scalar_(0.999).g_add_(&(g * g * 0.001));
            let step: Tensor = (m / 0.19) / ((v / 0.002).sqrt() + 1e-8);
            let _ = own[0].shallow_clone().g_mul_scalar_(0.9999).g_sub_(&(step * 0.001));
        }
        vec![own[0].shallow_clone()]
    };
    type Step<'a> = &'a dyn Fn(&[Tensor], &[Tensor]) -> Vec<Tensor>;
    for (state, step) in [(0, &sgd as Step), (1, &momentum as Step), (2, &adamw as Step)] {
        let own = tensors(state);
        let inputs = gradients(&own, state);
        // What is not a number stays where it is.
        let _ = own[0].narrow(0, 3, 1).fill_(f64::NAN);
        let plan = beside_eager(&own, &inputs, step);
        assert_eq!((plan.updates.len(), copied(&plan).len()), (20 * (state + 1), 0), "{plan}");
        assert_eq!((plan.extern_ops, plan.peak_bytes_fused), (0, 0), "{plan}");
        assert!(launches(&plan) <= 20, "{plan}");
    }
}

#[test]
fn inputs_are_written_over_too() {
    let plan = beside_eager(&[draw(&[40, 30])], &[draw(&[40, 30])], |own, x| {
        let _ = x[0].shallow_clone().g_mul_(&own[0]).g_add_scalar_(1.0);
        vec![x[0].shallow_clone()]
    });
    let copies: &[&str] = if on_cpu() { &[] } else { &["inputs of a GPU may be copies of the caller's"] };
    assert_eq!((plan.updates.len(), copied(&plan)), (1, copies.iter().map(ToString::to_string).collect()));
}

#[test]
fn a_parameter_is_updated_and_returned() {
    let plan = beside_eager(&[draw(&[33, 7])], &[draw(&[33, 7])], |own, x| {
        let written = own[0].shallow_clone().g_sub_(&(&x[0] * 0.5));
        vec![written.shallow_clone(), written.tanh()]
    });
    assert!(copied(&plan).is_empty(), "{plan}");
}

#[test]
fn old_values_that_are_needed_are_kept() {
    // By a result, by another update, and by what is computed across elements.
    beside_eager(&[draw(&[33, 7])], &[draw(&[33, 7])], |own, x| {
        let old = own[0].copy();
        let _ = own[0].shallow_clone().g_sub_(&x[0]);
        vec![old]
    });
    beside_eager(&[draw(&[33]), draw(&[33])], &[draw(&[33])], |own, x| {
        let old = own[0].copy();
        own[0].shallow_clone().copy_(&(&own[1] + &x[0]));
        own[1].shallow_clone().copy_(&old);
        vec![own[0].shallow_clone()]
    });
    beside_eager(&[draw(&[64, 64])], &[draw(&[64, 64])], |own, x| {
        let turned = own[0].tr() * 2.0;
        let _ = own[0].shallow_clone().g_mul_scalar_(0.5).g_add_(&x[0]).g_add_(&turned);
        vec![own[0].shallow_clone()]
    });
    beside_eager(&[draw(&[64, 64])], &[draw(&[64, 64])], |own, x| {
        let old = own[0].softmax(0, Kind::Float);
        let new = own[0].shallow_clone().g_sub_(&x[0]);
        vec![old * new.abs().sum(Kind::Float), new.matmul(&x[0])]
    });
}

#[test]
fn parts_of_parameters_are_written() {
    let plan = beside_eager(&[draw(&[40, 16])], &[draw(&[8, 16])], |own, x| {
        let _ = own[0].narrow(0, 8, 8).g_sub_(&x[0]);
        vec![own[0].shallow_clone()]
    });
    assert_eq!(plan.updates.len(), 1);
    // One that does not lie at a multiple of 16 bytes, a transposed one, one with gaps.
    let flat = draw(&[1000]);
    let odd = [flat.narrow(0, 1, 300), draw(&[30, 40]).tr(), draw(&[20, 20]).slice(1, 0, 20, 2)];
    let inputs = [draw(&[300]), draw(&[40, 30]), draw(&[20, 10])];
    let plan = beside_eager(&odd, &inputs, |own, x| {
        own.iter().zip(x).for_each(|(p, g)| drop(p.shallow_clone().g_sub_(&(g * 0.1))));
        vec![own[0].shallow_clone()]
    });
    assert_eq!(plan.updates.len(), 3);
    assert!(copied(&plan).iter().any(|why| why.contains("multiple of 16")), "{plan}");
}

#[test]
fn nothing_is_written_where_an_index_is_out_of_range() {
    setup();
    if !on_cpu() {
        // An index out of range in a kernel of libtorch's ends what a process can do on a GPU.
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let own = draw(&[30, 8]);
    let fused = tilefuse::fuse(|x: &[Tensor]| {
        let rows = own.index_select(0, &x[0]);
        let _ = own.shallow_clone().g_mul_scalar_(0.5);
        vec![rows * 2.0]
    });
    let good = [Tensor::from_slice(&[1i64, 4, 29])];
    for _ in 0..2 {
        fused.call(&good).unwrap();
    }
    let before = own.copy();
    assert!(fused.call(&[Tensor::from_slice(&[1i64, 30, 2])]).is_err());
    assert!(own.equal(&before));
    let plan = fused.explain_with(&good, |m, x| m(x)).unwrap();
    assert!(plan.extern_ops > 0 || copied(&plan) == ["a kernel checks indices"], "{plan}");
}

#[test]
fn tensors_that_share_memory_run_eager() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let seen = RefCell::new(0);
    let model = |x: &[Tensor]| {
        *seen.borrow_mut() += 1;
        let _ = x[0].shallow_clone().g_sub_(&(&x[1] * 0.5));
        vec![&x[0] * &x[1]]
    };
    let fused = tilefuse::fuse(model);
    let apart = [draw(&[64]), draw(&[64])];
    (0..2).for_each(|_| drop(fused.call(&apart).unwrap()));
    let shared = |flat: &Tensor| [flat.narrow(0, 0, 64), flat.narrow(0, 4, 64)];
    let flat = draw(&[68]);
    let other = flat.copy();
    let (ours, theirs) = (fused.call(&shared(&flat)).unwrap(), model(&shared(&other)));
    assert!(flat.equal(&other) && ours[0].equal(&theirs[0]));
}
