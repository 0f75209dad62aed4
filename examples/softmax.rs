//! Softmax over rows as a kernel, written as expressions over tiles; `kernels/softmax.tile` is the same as text.
//!
//! `cargo run --example softmax` compares it with libtorch.

use tch::{Device, Kind, Tensor};
use tilefuse::block::Program;
use tilefuse::block::tiles::{BuildError, program};
use tilefuse::{Kernel, args};

/// `y = softmax(x)` over rows of `n` elements, at most `block`, that begin `stride` elements after one another. One
/// instance for each row.
fn softmax(block: u32) -> Result<Program, BuildError> {
    program("softmax", |k| {
        let (x, y) = (k.ptr::<f32>("x"), k.ptr::<f32>("y"));
        let (stride, n) = (k.scalar::<i64>("stride"), k.scalar::<i32>("n"));
        let cols = k.range(0, block);
        let at = k.program_id(0) * stride + cols;
        let v = (x + at).load_where(cols.lt(n), f32::NEG_INFINITY);
        let e = (v - v.max(0)).exp();
        (y + at).store_where(e / e.sum(0), cols.lt(n));
    })
}

fn main() -> anyhow::Result<()> {
    let device = Device::cuda_if_available();
    let (rows, cols) = (1000, 1000);
    let kernel = Kernel::from_program(softmax(1024)?)?;
    println!("{}", kernel.program());

    let x = Tensor::randn([rows, cols], (Kind::Float, device));
    let y = x.empty_like();
    let args = args![&x, &y, cols, i32::try_from(cols)?];
    // SAFETY: instance `row` reads and writes the elements of that row alone, and there are `rows` of them.
    unsafe { kernel.launch(rows, &args)? };

    let difference = (x.softmax(-1, Kind::Float) - &y).abs().max().double_value(&[]);
    println!("{rows} rows on {device:?}: largest difference from libtorch {difference:.2e}");
    anyhow::ensure!(difference < 1e-6, "the kernel differs from libtorch");
    Ok(())
}
