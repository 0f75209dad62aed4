//! Sums of two vectors.

use tch::{Device, Kind, Tensor};
use tilefuse::grid;
use tilefuse::lang::cdiv;

/// `z = x + y` over `n` elements. One instance for each `BLOCK` of them.
#[tilefuse::kernel]
pub(crate) fn vector_add(x: Ptr<f32>, y: Ptr<f32>, z: Ptr<f32>, n: i64, #[constant] BLOCK: usize) {
    let at = program_id(0) * BLOCK + range(0, BLOCK);
    let inside = at.lt(n);
    store(z + at, load(x + at, inside, 0) + load(y + at, inside, 0), inside);
}

pub(crate) fn check(device: Device, interpret: bool) -> anyhow::Result<(f64, f64)> {
    let n = 98_432;
    let (x, y) = (Tensor::randn([n], (Kind::Float, device)), Tensor::randn([n], (Kind::Float, device)));
    let z = x.empty_like();
    let (grid, args) = (grid![cdiv(n, 1024)], (&x, &y, &z, n, 1024));
    if interpret {
        vector_add.interpret(grid, args)?
    } else {
        vector_add.launch(grid, args)?
    };
    Ok((super::distance(&z, &(&x + &y)), 0.0))
}
