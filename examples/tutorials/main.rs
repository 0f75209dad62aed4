//! The tutorials of `docs/tutorials/`: each kernel runs and is compared with libtorch.
//!
//! `cargo run --example tutorials` runs all of them, on CUDA where there is a device; `-- softmax attention` some.

mod attention;
mod custom_operator;
mod dropout;
mod grouped_matmul;
mod layer_norm;
mod matmul;
mod softmax;
mod vector_add;

use tch::{Device, Kind, Tensor};

/// Runs a tutorial's kernels on a device, or in the interpreter where that is asked for; how far they are from libtorch,
/// and how far they may be.
type Check = fn(Device, bool) -> anyhow::Result<(f64, f64)>;

const TUTORIALS: [(&str, Check); 8] = [
    ("vector_add", vector_add::check),
    ("softmax", softmax::check),
    ("layer_norm", layer_norm::check),
    ("matmul", matmul::check),
    ("dropout", dropout::check),
    ("attention", attention::check),
    ("grouped_matmul", grouped_matmul::check),
    ("custom_operator", custom_operator::check),
];

/// The largest difference of corresponding elements; infinite where one is NaN.
fn distance(ours: &Tensor, theirs: &Tensor) -> f64 {
    let wide = |t: &Tensor| t.to_kind(Kind::Double);
    let largest = (wide(ours) - wide(theirs)).abs().max().double_value(&[]);
    if largest.is_nan() { f64::INFINITY } else { largest }
}

fn main() -> anyhow::Result<()> {
    // First of all, for libtorch looks for CUDA only once: with the seed.
    let device = if tilefuse::torch::cuda_available().is_ok() { Device::Cuda(0) } else { Device::Cpu };
    let _no_grad = tch::no_grad_guard();
    tch::manual_seed(0);
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for (name, check) in TUTORIALS {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            let (difference, most) = check(device, false)?;
            println!("{name} on {device:?}: largest difference from libtorch {difference:.2e}");
            anyhow::ensure!(difference <= most, "{name} differs by more than {most:.0e}");
        }
    }
    Ok(())
}
