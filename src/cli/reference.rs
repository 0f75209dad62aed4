//! What a model computes in `f64`, by which its results are judged.

use tch::{Kind, Tensor};

use super::inputs::{copies, copy};
use super::model::{Loaded, quietly};
use super::{Failure, one_line};
use crate::torch::{Trace, capture, leaves_f64, run_in_f64};

/// Starts the random numbers of all devices anew, so that calls after it draw the same ones.
pub(crate) fn seed() {
    // libtorch looks for CUDA once, when generators are seeded, and only after its CUDA part is loaded.
    let _ = crate::torch::cuda_devices();
    tch::manual_seed(1);
}

/// The model's results in `f64`: those of `double`, the model converted, or where it has other types in it, fails or draws
/// random numbers, those of the model's own calls, made again in `f64`.
pub(crate) fn exact(model: &Loaded, double: Option<&Loaded>, inputs: &[Tensor]) -> Option<Vec<Tensor>> {
    let wide: Vec<Tensor> = inputs.iter().map(to_f64).collect();
    let converted = double.and_then(|double| recorded(double, &wide).ok());
    match converted {
        Some((results, trace)) if !leaves_f64(&trace) => return Some(results),
        _ => {}
    }
    let again = recorded(model, &copies(inputs)).and_then(|(_, trace)| {
        seed();
        quietly(|| run_in_f64(&trace, inputs).map_err(|e| Failure::usage(one_line(&e.to_string()))))
    });
    let drawn = |trace: &Trace| trace.events.iter().any(|event| event.random);
    again.ok().or_else(|| converted.filter(|(_, trace)| !drawn(trace)).map(|(results, _)| results))
}

/// A call and its recording.
fn recorded(model: &Loaded, inputs: &[Tensor]) -> Result<(Vec<Tensor>, Trace), Failure> {
    seed();
    let results = |results: &Vec<Tensor>| results.iter().map(Tensor::shallow_clone).collect();
    quietly(|| Ok(capture(inputs, &model.names, || model.forward(inputs), results)?))
}

fn to_f64(tensor: &Tensor) -> Tensor {
    if tensor.is_floating_point() { tensor.to_kind(Kind::Double) } else { copy(tensor) }
}
