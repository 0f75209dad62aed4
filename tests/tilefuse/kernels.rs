//! Kernel counts: the decision is tested as well as the value.

use tch::{Device, Kind, Tensor, nn};
use tilefuse::Explanation;

fn explain(name: &str) -> Explanation {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let entry = tilefuse_models::find(name).unwrap();
    let vs = nn::VarStore::new(Device::Cpu);
    let model = entry.instantiate(&vs);
    let inputs: Vec<Tensor> = entry.inputs().iter().map(|s| s.sample(Kind::Float, Device::Cpu)).collect();
    let fused = tilefuse::fuse(model).named(&vs);
    fused.explain_with(&inputs, |m, x| m.forward(x)).unwrap()
}

#[test]
fn norms_and_activations_are_one_kernel_each() {
    for name in [
        "kernel:softmax",
        "kernel:layer_norm",
        "kernel:add_rms_norm",
        "kernel:bias_gelu_residual",
        "kernel:batch_norm_relu",
    ] {
        let plan = explain(name);
        assert_eq!((plan.kernels_fused, plan.extern_ops), (1, 0), "{name}");
    }
}

#[test]
fn a_layer_of_gpt2_takes_three_kernels() {
    let layers = 2;
    for name in ["gpt2-sdpa-tiny", "gpt2-tiny"] {
        let plan = explain(name);
        let outside = 1;
        assert_eq!(plan.kernels_fused, 3 * layers + outside, "{plan}");
    }
}

#[test]
fn every_edge_has_a_verdict_and_the_plan_is_deterministic() {
    let (a, b) = (explain("bert-tiny"), explain("bert-tiny"));
    assert!(!a.edges.is_empty() && a.edges.iter().all(|e| !e.verdict.is_empty()));
    assert_eq!(a.programs, b.programs);
    assert!(a.dot().starts_with("digraph") && a.text(false).contains("kernel"));
}
