//! Kernel counts: the decision is tested as well as the value.

use tch::{Device, Kind, Tensor, nn};
use tilefuse::{Explanation, StepReport};

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

/// What one step reads of another's is what the cuts are about; products count in operations.
#[test]
fn a_report_says_what_steps_read_and_how_much_they_compute() {
    use std::collections::BTreeSet;
    for name in ["gpt2-tiny", "bert-tiny", "unet-tiny", "resnet18-tiny"] {
        let plan = explain(name);
        let (mut read, mut cut) = (BTreeSet::new(), BTreeSet::new());
        for (at, step) in plan.steps.iter().enumerate() {
            let (StepReport::Kernel { reads, writes, .. } | StepReport::Extern { reads, writes, .. }) = step;
            read.extend(reads.iter().filter_map(|tensor| Some((tensor.step?, at))));
            assert!(writes.iter().all(|tensor| tensor.step == Some(at)), "{name}");
        }
        for edge in plan.edges.iter().filter(|edge| !edge.fused) {
            cut.insert((edge.producer_step.unwrap(), edge.consumer_step.unwrap()));
        }
        assert_eq!(read, cut, "{name}");
    }
    let plan = explain("gpt2-tiny");
    let found = plan.steps.iter().find_map(|step| {
        let (StepReport::Kernel { modules, flops, reads, .. }
        | StepReport::Extern { modules, flops, reads, .. }) = step;
        (modules == &["transformer.h.0.mlp.c_fc"]).then_some((*flops, reads))
    });
    let (flops, reads) = found.unwrap();
    // 2 sequences of 17 tokens, 32 columns to 128, and what GELU takes of each result where it is in the kernel.
    let (products, results) = (2 * 34 * 32 * 128, 34 * 128);
    assert!((products..products + 40 * results).contains(&flops), "{flops}");
    assert!(reads.iter().any(|tensor| tensor.name.starts_with("transformer.h.0.mlp.c_fc.weight")));
}

#[test]
fn every_edge_has_a_verdict_and_the_plan_is_deterministic() {
    let (a, b) = (explain("bert-tiny"), explain("bert-tiny"));
    assert!(!a.edges.is_empty() && a.edges.iter().all(|e| !e.verdict.is_empty()));
    assert_eq!(a.programs, b.programs);
    assert!(a.dot().starts_with("digraph") && a.text(false).contains("kernel"));
}
