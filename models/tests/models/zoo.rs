use std::collections::HashSet;

use tch::{Device, Kind, Tensor, nn};
use tilefuse_models::{Error, ZooEntry, find, zoo};

fn call(entry: &ZooEntry, dtype: Kind) -> Vec<Tensor> {
    let mut vs = nn::VarStore::new(Device::Cpu);
    let model = entry.instantiate(&vs);
    if dtype == Kind::BFloat16 {
        vs.bfloat16();
    }
    if dtype == Kind::Double {
        vs.double();
    }
    let inputs: Vec<Tensor> = entry.inputs().iter().map(|spec| spec.sample(dtype, Device::Cpu)).collect();
    tch::no_grad(|| model.forward(&inputs))
}

#[test]
fn names_are_unique_and_found() {
    let names: HashSet<_> = zoo().iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), zoo().len());
    for entry in zoo() {
        assert!(!entry.cpu.is_empty() && entry.least_inputs <= entry.inputs().len(), "{}", entry.name);
        let arity = entry.least_inputs..=entry.inputs().len();
        assert!(
            entry.cpu.iter().chain(entry.gpu).all(|case| arity.contains(&case.inputs.len())),
            "{}",
            entry.name
        );
    }
    assert!(find("gpt2").is_some() && find("gpt3").is_none());
}

#[test]
fn models_of_one_kind_have_no_case_of_another() {
    let entries = || zoo().iter().filter(|entry| entry.f32_only);
    assert!(entries().count() > 0);
    for entry in entries() {
        assert!(entry.cpu.iter().chain(entry.gpu).all(|case| case.dtype == Kind::Float), "{}", entry.name);
    }
}

#[test]
fn every_model_has_a_tiny_sibling() {
    let plain = |entry: &&ZooEntry| !entry.name.contains(':') && !entry.name.ends_with("-tiny");
    for entry in zoo().iter().filter(plain).filter(|entry| entry.name != "llama1b") {
        assert!(find(&format!("{}-tiny", entry.name)).is_some(), "{}", entry.name);
    }
}

#[test]
fn tiny_models_run_in_three_kinds() {
    for entry in zoo().iter().filter(|entry| entry.name.ends_with("-tiny")) {
        for dtype in [Kind::Float, Kind::BFloat16, Kind::Double] {
            for output in call(entry, dtype) {
                assert_eq!(output.kind(), dtype, "{}", entry.name);
                let output = output.to_kind(Kind::Double);
                // One number has no deviation. Smallest of 180 draws of each model: 0.009.
                let scale = if output.numel() > 1 { output.std(false) } else { output.abs() };
                let scale = scale.double_value(&[]);
                assert!((1e-3..50.0).contains(&scale), "{}: outputs of deviation {scale}", entry.name);
            }
        }
    }
}

#[test]
fn bf16_outputs_are_close_to_f64() {
    for entry in zoo().iter().filter(|entry| entry.name.ends_with("-tiny")) {
        let mut vs = nn::VarStore::new(Device::Cpu);
        let model = entry.instantiate(&vs);
        vs.bfloat16();
        let half: Vec<_> =
            entry.inputs().iter().map(|spec| spec.sample(Kind::BFloat16, Device::Cpu)).collect();
        let wide =
            |x: &Tensor| if x.is_floating_point() { x.to_kind(Kind::Double) } else { x.shallow_clone() };
        let wide: Vec<_> = half.iter().map(wide).collect();
        let low = tch::no_grad(|| model.forward(&half));
        vs.double();
        let high = tch::no_grad(|| model.forward(&wide));
        for (low, high) in low.iter().zip(&high) {
            let error = (low.to_kind(Kind::Double) - high).norm().double_value(&[]);
            let relative = error / high.norm().double_value(&[]);
            assert!(relative < 0.1, "{}: relative error {relative}", entry.name);
        }
    }
}

#[test]
fn kernels_run_on_their_default_inputs() {
    for entry in zoo().iter().filter(|entry| entry.name.starts_with("kernel:")) {
        for output in call(entry, Kind::Float) {
            assert!(
                output.isfinite().all().int64_value(&[]) == 1 || entry.name == "kernel:chain12",
                "{}",
                entry.name
            );
        }
    }
}

#[test]
fn small_vision_models_run() {
    for name in ["vision:squeezenet1_1", "vision:resnet18", "vision:mobilenet_v2", "vision:efficientnet_b0"] {
        let outputs = call(find(name).unwrap(), Kind::Float);
        assert_eq!(outputs.first().unwrap().size(), [1, 1000], "{name}");
    }
}

#[test]
fn disturbed_models_have_no_constant_variables() {
    let vs = nn::VarStore::new(Device::Cpu);
    find("resnet18-tiny").unwrap().instantiate(&vs);
    for (name, variable) in vs.variables() {
        assert!(variable.min() != variable.max(), "{name}");
    }
    assert!(vs.variables()["bn1.running_var"].min().double_value(&[]) > 0.5);
}

#[test]
fn wrong_input_counts_are_refused() {
    let bert = find("bert-tiny").unwrap();
    assert!(bert.check_inputs(1).is_ok() && bert.check_inputs(3).is_ok());
    let error = bert.check_inputs(4).unwrap_err();
    assert!(matches!(error, Error::InputCount { least: 1, most: 3, got: 4 }));
    assert_eq!(error.to_string(), "the model takes 1 to 3 inputs, got 4");
    let error = find("gpt2-tiny").unwrap().check_inputs(0).unwrap_err();
    assert_eq!(error.to_string(), "the model takes 1 input, got 0");
}

#[test]
fn entries_accept_fewer_inputs_where_they_say_so() {
    let entry = find("bert-tiny").unwrap();
    let vs = nn::VarStore::new(Device::Cpu);
    let model = entry.instantiate(&vs);
    let ids = entry.inputs()[0].sample(Kind::Float, Device::Cpu);
    assert_eq!(model.forward(&[ids])[0].size(), [2, 17, 32]);
}
