//! Models of which one part runs on the host and one on a GPU: kernels run on the GPU, the rest is libtorch's.

use tch::{Device, Kind, Tensor};

use crate::common::{F32, device, setup};

type Function = fn(&[Tensor]) -> Vec<Tensor>;

/// Calls a model four times with new inputs: every result must be eager's, and all calls but the first one run a plan.
fn agree(model: Function, inputs: &dyn Fn() -> Vec<Tensor>) {
    setup();
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(model);
    for call in 0..4 {
        let inputs = inputs();
        let (ours, eager) = (fused.call(inputs.as_slice()).unwrap(), model(&inputs));
        for (a, b) in ours.iter().zip(&eager) {
            assert_eq!((a.device(), a.size()), (b.device(), b.size()));
            assert!(a.allclose(b, 1e-5, 1e-6, false), "call {call}: {a} instead of {b}");
        }
    }
    let stats = fused.stats();
    assert_eq!((stats.fused_calls, stats.eager_calls.len()), (3, 0), "{stats:?}");
}

#[test]
fn results_that_are_finished_on_the_host() {
    let model: Function = |x| vec![(x[0].relu() * 2.0).to_device(Device::Cpu).softmax(-1, Kind::Float).exp()];
    agree(model, &|| vec![Tensor::randn([64, 100], *F32)]);
}

#[test]
fn small_inputs_on_the_host() {
    let model: Function = |x| {
        let steps: Tensor = (&x[1] * 0.5).sin().view([1, -1]) + 1.0;
        vec![&x[0] + steps.to_device(x[0].device()), steps]
    };
    let host = (Kind::Float, Device::Cpu);
    agree(model, &|| vec![Tensor::randn([64, 100], *F32), Tensor::randn([100], host)]);
}

#[test]
fn values_that_come_back() {
    let model: Function = |x| {
        let there = x[0].sigmoid().to_device(Device::Cpu);
        let sorted = (there.cumsum(-1, Kind::Float) + 1.0).log();
        vec![sorted.to_device(x[0].device()) * &x[0], there.sum(Kind::Float)]
    };
    agree(model, &|| vec![Tensor::randn([64, 100], (Kind::Float, device()))]);
}

#[test]
fn writes_on_the_host() {
    let model: Function = |x| {
        let mut there = x[0].sigmoid().to_device(Device::Cpu);
        let _ = there.narrow(1, 2, 5).fill_(0.5);
        let mut row = there.select(0, 1);
        row *= there.select(0, 0);
        there += 1.0;
        let back = there.to_device(x[0].device()) * &x[0];
        vec![back, there]
    };
    agree(model, &|| vec![Tensor::randn([64, 100], *F32)]);
}

#[test]
fn numbers_of_the_host_beside_values() {
    let model: Function = |x| vec![&x[0] * &x[1] + (&x[1] * 2.0 + 1.0), &x[1] + 1.0];
    let host = (Kind::Float, Device::Cpu);
    agree(model, &|| vec![Tensor::randn([64, 100], *F32), Tensor::randn([], host)]);
}
