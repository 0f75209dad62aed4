//! Softmax over rows as a kernel in Rust; `kernels/softmax.tile` is the same as text.
//!
//! `cargo run --example softmax` compares it with libtorch.

use tch::{Device, Kind, Tensor};
use tilefuse::grid;

/// `y = softmax(x)` over rows of `n` elements, at most `BLOCK`, that begin `stride` elements after one another. One
/// instance for each row.
#[tilefuse::kernel]
fn softmax(x: Ptr<f32>, y: Ptr<f32>, stride: i64, n: i64, #[constant] BLOCK: usize) {
    let row = program_id(0);
    let cols = range(0, BLOCK);
    let v = load(x + row * stride + cols, cols.lt(n), -f32::INFINITY);
    let e = exp(v - max(v, 0));
    store(y + row * stride + cols, e / sum(e, 0), cols.lt(n));
}

fn main() -> anyhow::Result<()> {
    let device = Device::cuda_if_available();
    let (rows, cols) = (1000, 1000);
    let block = 1024;

    let x = Tensor::randn([rows, cols], (Kind::Float, device));
    let y = x.empty_like();
    let args = (&x, &y, cols, cols, block);
    println!("{}", softmax.specialize(args)?.program());
    softmax.launch(grid![rows], args)?;

    let difference = (x.softmax(-1, Kind::Float) - &y).abs().max().double_value(&[]);
    println!("{rows} rows on {device:?}: largest difference from libtorch {difference:.2e}");
    anyhow::ensure!(difference < 1e-6, "the kernel differs from libtorch");
    Ok(())
}
