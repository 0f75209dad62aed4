//! Fused models: guards, fallbacks with reasons, and changes of parameters.

use tch::nn::Module;
use tch::{Kind, Tensor, nn};

use crate::common::{F32, device};

fn draw() -> Tensor {
    Tensor::randn([4, 8], *F32)
}

fn close(a: &Tensor, b: &Tensor) -> bool {
    a.allclose(b, 1e-5, 1e-6, false)
}

#[test]
fn parameters_that_change_show_in_the_next_call() {
    let _no_grad = tch::no_grad_guard();
    let vs = nn::VarStore::new(device());
    let net = nn::seq().add(nn::linear(vs.root(), 8, 8, Default::default())).add_fn(|x| x.relu() * 2.0);
    let fused = tilefuse::fuse(net).named(&vs);
    for round in 0..3 {
        let x = draw();
        assert!(close(&fused.forward(&x), &fused.model().forward(&x)), "round {round}");
        for (_, mut variable) in vs.variables() {
            variable.copy_(&variable.randn_like());
        }
    }
    assert_eq!(fused.stats().captures, 1);
    let mut vs = vs;
    vs.double();
    let x = draw().to_kind(Kind::Double);
    assert!(close(&fused.forward(&x), &fused.model().forward(&x)));
}

#[test]
fn gradients_run_eager_with_a_reason() {
    let vs = nn::VarStore::new(device());
    let fused = tilefuse::fuse(nn::linear(vs.root(), 8, 8, Default::default())).named(&vs);
    assert!(fused.forward(&draw()).requires_grad());
    let stats = fused.stats();
    assert_eq!(stats.captures, 0);
    assert!(stats.eager_calls.keys().any(|reason| reason.contains("gradients")), "{stats:?}");
}

#[test]
fn values_read_from_data_are_refused_by_name() {
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(|x: &[Tensor]| vec![&x[0] * x[0].sum(Kind::Float).double_value(&[])]);
    for _ in 0..3 {
        let x = [draw()];
        let (ours, eager) = (fused.call(&x).unwrap(), fused.model()(&x));
        assert!(close(&ours[0], &eager[0]));
    }
    let stats = fused.stats();
    assert!(stats.eager_calls.keys().any(|reason| reason.contains("aten::")), "{stats:?}");
}

#[test]
fn shapes_strides_and_types_have_plans_of_their_own() {
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(|x: &[Tensor]| vec![x[0].exp() + 1.0]);
    let base = Tensor::randn([6, 10], *F32);
    for x in [
        base.shallow_clone(),
        base.tr(),
        base.narrow(1, 1, 7),
        base.to_kind(Kind::Double),
        base.narrow(0, 2, 0),
    ] {
        for _ in 0..2 {
            let (ours, eager) = (fused.call(&[x.shallow_clone()]).unwrap(), x.exp() + 1.0);
            assert_eq!(
                (ours[0].size(), ours[0].stride(), ours[0].kind()),
                (eager.size(), eager.stride(), eager.kind())
            );
            assert!(close(&ours[0], &eager));
        }
    }
}

#[test]
fn several_threads_call_one_fused_model() {
    let fused = std::sync::Mutex::new(tilefuse::fuse(|x: &[Tensor]| vec![x[0].softmax(-1, Kind::Float)]));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let _no_grad = tch::no_grad_guard();
                let x = [draw()];
                let ours = fused.lock().unwrap().call(&x).unwrap();
                assert!(close(&ours[0], &x[0].softmax(-1, Kind::Float)));
            });
        }
    });
}

#[test]
fn every_stage_of_compiling_is_timed() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    // A number that no other test has compiled.
    let layer = |x: &Tensor, w: &Tensor| ((x * 0.70911).tanh() + 1.0).matmul(w);
    let fused = tilefuse::fuse(move |x: &[Tensor]| vec![layer(&layer(&x[0], &x[1]), &x[1])]);
    let inputs = [draw(), Tensor::randn([8, 8], *F32)];
    let plan = fused.explain_with(&inputs, |m, x| m(x)).unwrap();
    let report = plan.compile;
    let within = [report.passes_ms, report.lowering_ms, report.llvm_ms, report.load_ms];
    let stages = [report.capture_ms, report.lower_ms, report.plan_ms, report.schedule_ms, report.codegen_ms];
    assert!(stages.iter().chain(&within).all(|&ms| ms > 0.0), "{report:?}");
    // Their programs differ in their names alone.
    assert!(plan.kernels_fused == 2 && plan.distinct_kernels == 2 && report.kernels == 1, "{plan}");
}
