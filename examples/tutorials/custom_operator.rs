//! A custom activation, registered as an operator of a fused model.

use std::sync::LazyLock;

use tch::{Device, Kind, Tensor};
use tilefuse::lang::cdiv;
use tilefuse::{Error, Operator, TensorSpec, grid};

/// `y = silu(gate) * up` over `n` elements. One instance for each `BLOCK` of them.
#[tilefuse::kernel]
pub(crate) fn swiglu<T: Float>(gate: Ptr<T>, up: Ptr<T>, y: Ptr<T>, n: i64, #[constant] BLOCK: usize) {
    let at = program_id(0) * BLOCK + range(0, BLOCK);
    let inside = at.lt(n);
    let g = load(gate + at, inside, 0).cast::<f32>();
    let u = load(up + at, inside, 0).cast::<f32>();
    store(y + at, (g * sigmoid(g) * u).cast(), inside);
}

/// The output is like the inputs, which are alike.
fn shape(inputs: &[TensorSpec]) -> Result<Vec<TensorSpec>, String> {
    match inputs {
        [gate, up] if gate == up => Ok(vec![gate.clone()]),
        [gate, up] => Err(format!("gate is {gate:?}, up is {up:?}")),
        _ => Err(format!("{} inputs, not gate and up", inputs.len())),
    }
}

fn launch(inputs: &[Tensor], outputs: &[Tensor]) -> Result<(), Error> {
    let n = outputs[0].numel() as i64;
    swiglu.launch(grid![cdiv(n, 1024)], (&inputs[0], &inputs[1], &outputs[0], n, 1024))
}

/// Registered once in a process.
static SWIGLU: LazyLock<Result<Operator, Error>> =
    LazyLock::new(|| Operator::new("tutorial::swiglu", shape, launch));

/// A gated layer: gate and up are halves of one product.
fn layer(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
    let halves = x.linear(weight, None::<&Tensor>).chunk(2, -1);
    let operator = SWIGLU.as_ref().expect("the name is free");
    let y = operator.call(&[&(&halves[0] * 0.5), &halves[1]]).expect("two halves are alike");
    (y + bias).relu()
}

pub(crate) fn check(device: Device, interpret: bool) -> anyhow::Result<(f64, f64)> {
    let draw = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, device));
    if interpret {
        let (gate, up) = (draw(&[1500]), draw(&[1500]));
        let y = gate.empty_like();
        swiglu.interpret(grid![2], (&gate, &up, &y, 1500, 1024))?;
        return Ok((super::distance(&y, &(gate.silu() * up)), 1e-5));
    }
    let inputs = [draw(&[77, 256]), draw(&[1000, 256]) / 16.0, draw(&[500])];
    let fused = tilefuse::fuse(|x: &[Tensor]| vec![layer(&x[0], &x[1], &x[2])]);
    let [x, weight, bias] = &inputs;
    let halves = x.linear(weight, None::<&Tensor>).chunk(2, -1);
    let expected = ((&halves[0] * 0.5).silu() * &halves[1] + bias).relu();
    // The first call is captured and compiled; the second runs the plan.
    let first = super::distance(&fused.call(&inputs)?[0], &expected);
    let second = super::distance(&fused.call(&inputs)?[0], &expected);
    let plan = fused.explain_with(&inputs, |model, inputs| model(inputs))?;
    anyhow::ensure!((plan.kernels_fused, plan.extern_ops) == (1, 1), "{plan}");
    Ok((first.max(second), 1e-5))
}
