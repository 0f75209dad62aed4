//! The tutorials' kernels beside libtorch.

use tch::{Device, Kind, Tensor};

use crate::common::{device, on_cpu, setup};

#[path = "../../examples/tutorials/attention.rs"]
mod attention;
#[path = "../../examples/tutorials/custom_operator.rs"]
mod custom_operator;
#[path = "../../examples/tutorials/dropout.rs"]
mod dropout;
#[path = "../../examples/tutorials/grouped_matmul.rs"]
mod grouped_matmul;
#[path = "../../examples/tutorials/layer_norm.rs"]
mod layer_norm;
#[path = "../../examples/tutorials/matmul.rs"]
mod matmul;
#[path = "../../examples/tutorials/softmax.rs"]
mod softmax;
#[path = "../../examples/tutorials/vector_add.rs"]
mod vector_add;

/// The largest difference of corresponding elements; infinite where one is NaN.
fn distance(ours: &Tensor, theirs: &Tensor) -> f64 {
    let wide = |t: &Tensor| t.to_kind(Kind::Double);
    let largest = (wide(ours) - wide(theirs)).abs().max().double_value(&[]);
    if largest.is_nan() { f64::INFINITY } else { largest }
}

type Check = fn(Device, bool) -> anyhow::Result<(f64, f64)>;

fn launched(check: Check) {
    setup();
    let _no_grad = tch::no_grad_guard();
    let (difference, most) = check(device(), false).unwrap();
    assert!(difference <= most, "{difference}");
}

fn interpreted(check: Check) {
    if !on_cpu() {
        return;
    }
    setup();
    let _no_grad = tch::no_grad_guard();
    let (difference, most) = check(Device::Cpu, true).unwrap();
    assert!(difference <= most, "interpreted: {difference}");
}

fn both(check: Check) {
    launched(check);
    interpreted(check);
}

#[test]
fn vectors_add() {
    both(vector_add::check);
}

#[test]
fn softmax_of_rows() {
    both(softmax::check);
}

#[test]
fn layer_norm_and_its_gradient() {
    both(layer_norm::check);
}

#[test]
fn dropout_of_a_seed() {
    both(dropout::check);
}

#[test]
fn products_with_an_activation() {
    both(matmul::check);
}

#[test]
fn attention_without_scores_in_memory() {
    both(attention::check);
}

#[test]
fn an_operator_of_a_fused_model() {
    both(custom_operator::check);
}

#[test]
fn products_in_groups() {
    both(grouped_matmul::check);
}
