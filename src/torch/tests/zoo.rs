use tch::{Device, nn};

use super::*;

/// Captures a model on one draw of inputs and replays its trace on another.
fn captured_as_it_is(entry: &tilefuse_models::ZooEntry) {
    let case = &entry.cpu[0];
    let vs = nn::VarStore::new(Device::Cpu);
    let model = entry.instantiate(&vs);
    let draw = || -> Vec<Tensor> { case.inputs.iter().map(|i| i.sample(case.dtype, Device::Cpu)).collect() };
    let named: Vec<_> = vs.variables().into_iter().collect();
    let (_, trace) = record_with(&draw(), &named, |x| model.forward(x));
    assert_eq!(trace.refusals, [], "{}", entry.name);
    assert!(trace.params.iter().all(|(_, name)| name.is_some()), "{}: a parameter without name", entry.name);
    let other = draw();
    let (eager, replayed) = tch::no_grad(|| (model.forward(&other), replay(&trace, &other)));
    for (a, b) in eager.iter().zip(&replayed) {
        assert!(a.allclose(b, 1e-5, 1e-5, true), "{}: the replay differs", entry.name);
    }
}

#[test]
fn small_models_are_captured_as_they_are() {
    let small = tilefuse_models::zoo().iter().filter(|e| e.name.contains("tiny"));
    assert!(small.map(captured_as_it_is).count() > 5);
}
