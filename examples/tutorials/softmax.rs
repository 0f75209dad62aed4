//! Softmax over the rows of a matrix, read and written once.

use tch::{Device, Kind, Tensor};
use tilefuse::grid;

/// `y = softmax(x)` over rows of `n` elements, at most `BLOCK`, that begin `stride` elements after one another. One
/// instance for each row.
#[tilefuse::kernel(warps = if BLOCK <= 2048 { 4 } else if BLOCK <= 8192 { 8 } else { 16 })]
pub(crate) fn softmax<T: Float>(x: Ptr<T>, y: Ptr<T>, stride: i64, n: i64, #[constant] BLOCK: usize) {
    let row = program_id(0);
    let cols = range(0, BLOCK);
    let v = load(x + row * stride + cols, cols.lt(n), -f32::INFINITY).cast::<f32>();
    let e = exp(v - max(v, 0));
    store(y + row * stride + cols, (e / sum(e, 0)).cast(), cols.lt(n));
}

pub(crate) fn check(device: Device, interpret: bool) -> anyhow::Result<(f64, f64)> {
    let (rows, cols) = (301, 781);
    let x = Tensor::randn([rows, cols], (Kind::Float, device));
    let y = x.empty_like();
    let (grid, args) = (grid![rows], (&x, &y, cols, cols, 1024));
    if interpret {
        softmax.interpret(grid, args)?
    } else {
        softmax.launch(grid, args)?
    };
    Ok((super::distance(&y, &x.softmax(-1, Kind::Float)), 1e-6))
}
