//! Small kernels in one launch: what fused calls compute beside eager, and how many launches they take.

use std::sync::RwLockWriteGuard;

use tch::Tensor;
use tilefuse::{Explanation, StepReport};

use crate::common::{F32, THREADS, on_cpu, setup};

fn draw(sizes: &[i64]) -> Tensor {
    Tensor::randn(sizes, *F32)
}

/// How many kernels each launch has.
fn parts(plan: &Explanation) -> Vec<usize> {
    let parts = |step: &StepReport| match step {
        StepReport::Kernel { parts, .. } => Some(*parts),
        StepReport::Extern { .. } => None,
    };
    plan.steps.iter().filter_map(parts).collect()
}

/// Two threads, which kernels on the host are joined for, until it is dropped.
struct TwoThreads {
    before: i32,
    _changing: RwLockWriteGuard<'static, ()>,
}

impl TwoThreads {
    fn new() -> TwoThreads {
        let changing = THREADS.write();
        let before = tch::get_num_threads();
        tch::set_num_threads(2);
        TwoThreads { before, _changing: changing }
    }
}

impl Drop for TwoThreads {
    fn drop(&mut self) {
        tch::set_num_threads(self.before);
    }
}

/// Parameters of twenty sizes, some of which no vector divides, with `state` further tensors for each.
fn tensors(state: usize) -> Vec<Tensor> {
    (0..20i64)
        .flat_map(|i| {
            let shape = if i % 3 == 0 { vec![20_103 + 5 * i] } else { vec![99 + i, 211 + 3 * i] };
            std::iter::once(draw(&shape)).chain((0..state).map(move |_| draw(&shape).abs() + 0.1))
        })
        .collect()
}

/// The new parameter, first and second moment of AdamW.
fn adamw(own: &[Tensor]) -> Vec<Tensor> {
    let [p, m, v, g] = own else { return Vec::new() };
    let m: Tensor = m * 0.9 + g * 0.1;
    let v: Tensor = v * 0.999 + g * g * 0.001;
    let step: Tensor = (&m / 0.19) / ((&v / 0.002).sqrt() + 1e-8);
    vec![p * 0.9999 - step * 0.001, m, v]
}

/// Momentum, written over the parameter and its velocity.
fn momentum(own: &[Tensor]) -> Vec<Tensor> {
    let [p, v, g] = own else { return Vec::new() };
    let velocity = v.shallow_clone().g_mul_scalar_(0.9).g_add_(g);
    let _ = p.shallow_clone().g_sub_(&(velocity * 0.01));
    Vec::new()
}

#[test]
fn adamw_of_twenty_parameters_is_one_launch() {
    setup();
    let _threads = TwoThreads::new();
    let _no_grad = tch::no_grad_guard();
    let model = |x: &[Tensor]| x.chunks(4).flat_map(adamw).collect::<Vec<_>>();
    let options = tilefuse::Options { workspace_bytes: 0, ..Default::default() };
    let fused = tilefuse::fuse_with(model, options);
    let inputs = tensors(3);
    let plan = fused.explain_with(&inputs, |m, x| m(x)).unwrap();
    assert_eq!((parts(&plan), plan.extern_ops), (vec![20], 0), "{plan}");
    assert!(plan.text(false).contains("20 kernels in one launch"), "{plan}");
    assert!(plan.peak_bytes_fused <= plan.peak_bytes_eager);
    let eager = model(&inputs);
    for _ in 0..3 {
        let ours = fused.call(&inputs).unwrap();
        assert_eq!(ours.len(), 60);
        for (ours, theirs) in ours.iter().zip(&eager) {
            assert!(ours.allclose(theirs, 1e-5, 1e-6, false));
        }
    }
}

#[test]
fn momentum_in_place_is_one_launch_and_writes_what_eager_does() {
    setup();
    let _threads = TwoThreads::new();
    let _no_grad = tch::no_grad_guard();
    let model = |x: &[Tensor]| {
        x.chunks(3).for_each(|own| drop(momentum(own)));
        vec![x[0].shallow_clone()]
    };
    let fused = tilefuse::fuse(model);
    let ours = tensors(2);
    let theirs: Vec<Tensor> = ours.iter().map(Tensor::copy).collect();
    for _ in 0..4 {
        fused.call(&ours).unwrap();
        model(&theirs);
        for (a, b) in ours.iter().zip(&theirs) {
            assert!(a.allclose(b, 1e-5, 1e-6, false));
        }
    }
    assert_eq!(fused.stats().fused_calls, 3);
    let plan = fused.explain_with(&ours, |m, x| m(x)).unwrap();
    assert_eq!((parts(&plan), plan.extern_ops), (vec![20], 0), "{plan}");
    assert_eq!(plan.updates.len(), 40);
    // The inputs of a CUDA graph may be copies.
    assert!(plan.updates.iter().all(|update| update.copied.is_none() == on_cpu()), "{plan}");
}

#[test]
fn small_kernels_on_the_host_stay_apart() {
    setup();
    if !on_cpu() {
        return;
    }
    let _threads = TwoThreads::new();
    let _no_grad = tch::no_grad_guard();
    let model = |x: &[Tensor]| vec![x[0].tanh(), x[1].tanh()];
    let fused = tilefuse::fuse(model);
    let inputs = [draw(&[300]), draw(&[17])];
    let plan = fused.explain_with(&inputs, |m, x| m(x)).unwrap();
    assert_eq!(parts(&plan), [1, 1], "{plan}");
}

#[test]
fn biases_of_query_key_and_value_share_a_launch() {
    setup();
    let _threads = TwoThreads::new();
    let _no_grad = tch::no_grad_guard();
    let model = |x: &[Tensor]| {
        let [q, k, v]: [Tensor; 3] = [1, 2, 3].map(|i| x[0].matmul(&x[i]) + &x[i + 3]);
        vec![q.matmul(&k.tr()).matmul(&v)]
    };
    let fused = tilefuse::fuse(model);
    let mut inputs = vec![draw(&[64, 64])];
    inputs.extend((0..3).map(|_| draw(&[64, 512]) / 8.0));
    inputs.extend((0..3).map(|_| draw(&[512])));
    let plan = fused.explain_with(&inputs, |m, x| m(x)).unwrap();
    if on_cpu() {
        assert_eq!(parts(&plan), [3], "{plan}");
    }
    let (ours, eager) = (fused.call(&inputs).unwrap(), model(&inputs));
    assert!(ours[0].allclose(&eager[0], 1e-3, 1e-2, false));
}
