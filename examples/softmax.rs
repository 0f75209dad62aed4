//! Softmax over rows as a kernel, written with the builder; `kernels/softmax.tile` is the same as text.
//!
//! `cargo run --example softmax` compares it with libtorch.

use tch::{Device, Kind, Tensor};
use tilefuse::block::{Builder, CacheHint, Elem, Program, ReduceFn, ScalarFn, TypeError};
use tilefuse::{Kernel, args};

/// `y = softmax(x)` over rows of `n` elements, at most `block`, that begin `stride` elements after one another. One
/// instance for each row.
fn softmax(block: u32) -> Result<Program, TypeError> {
    let mut b = Builder::new("softmax");
    let x = b.ptr_param("x", Elem::F32, 4, None);
    let y = b.ptr_param("y", Elem::F32, 4, None);
    let stride = b.scalar_param("stride", Elem::I64);
    let n = b.scalar_param("n", Elem::I32);

    let row = b.program_id(0)?;
    let row = b.cast(row, Elem::I64)?;
    let first = b.map(ScalarFn::Mul, &[row, stride])?;
    let first = b.splat(first, &[block])?;
    let cols = b.range(0, block)?;
    let wide = b.cast(cols, Elem::I64)?;
    let at = b.map(ScalarFn::Add, &[first, wide])?;
    let end = b.splat(n, &[block])?;
    let inside = b.map(ScalarFn::Lt, &[cols, end])?;

    let v = b.load(x, at, Some(inside), None, CacheHint::Default)?;
    let max = b.reduce(ReduceFn::Max, v, 0, Some(inside))?;
    let max = b.splat(max, &[block])?;
    let down = b.map(ScalarFn::Sub, &[v, max])?;
    let e = b.map(ScalarFn::Exp, &[down])?;
    let sum = b.reduce(ReduceFn::Sum, e, 0, Some(inside))?;
    let sum = b.splat(sum, &[block])?;
    let out = b.map(ScalarFn::Div, &[e, sum])?;
    b.store(y, at, out, Some(inside), CacheHint::Default)?;
    Ok(b.finish())
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
