//! A matrix product with an activation at its end.

use tch::{Device, Kind, Tensor};
use tilefuse::grid;
use tilefuse::lang::{Tile, cdiv, select};

/// `c = ACTIVATION(a b)` of `a: [m, k]` and `b: [k, n]`, row-major, accumulated in `f32`. One instance for each block of
/// `BM x BN`; blocks are taken in groups of `GROUP` rows.
#[tilefuse::kernel(warps = WARPS, stages = STAGES)]
pub(crate) fn matmul<T: Short>(
    a: Ptr<T>,
    b: Ptr<T>,
    c: Ptr<T>,
    m: i64,
    n: i64,
    k: i64,
    #[constant] ACTIVATION: fn(Tile<f32>) -> Tile<f32>,
    #[constant] [BM, BN, BK, GROUP, WARPS, STAGES]: [usize; 6],
) {
    let (down, across) = (cdiv(m, BM).cast::<i32>(), cdiv(n, BN).cast::<i32>());
    let (i, j) = swizzle2d(program_id(0) / across, program_id(0) % across, down, across, GROUP);
    let a = make_descriptor(a, (m, k), (k, 1), [BM, BK]);
    let b = make_descriptor(b, (k, n), (n, 1), [BK, BN]);
    let mut sum = zeros::<f32>([BM, BN]);
    for at in (0..k).step_by(BK) {
        sum = dot(a.load((i * BM, at)), b.load((at, j * BN)), sum);
    }
    let c = make_descriptor(c, (m, n), (n, 1), [BM, BN]);
    c.store((i * BM, j * BN), ACTIVATION(sum).cast::<T>());
}

/// `x` where it is positive, else a hundredth of it.
pub(crate) fn leaky_relu(x: Tile<f32>) -> Tile<f32> {
    select(x.ge(0.0), x, x * 0.01)
}

pub(crate) fn check(device: Device, interpret: bool) -> anyhow::Result<(f64, f64)> {
    let (m, n, k) = (150, 200, 70);
    let random = |shape: [i64; 2]| Tensor::randn(shape, (Kind::Float, device)).to_kind(Kind::BFloat16);
    let (a, b) = (random([m, k]), random([k, n]));
    let c = Tensor::empty([m, n], (Kind::BFloat16, device));
    let blocks = cdiv(m, 64) * cdiv(n, 64);
    let activation: fn(Tile<f32>) -> Tile<f32> = leaky_relu;
    let (grid, args) = (grid![blocks], (&a, &b, &c, m, n, k, activation, [64, 64, 32, 8, 4, 3]));
    if interpret {
        matmul.interpret(grid, args)?
    } else {
        matmul.launch(grid, args)?
    };
    let wide = |t: &Tensor| t.to_kind(Kind::Float);
    let product = wide(&a).matmul(&wide(&b));
    let expected = product.maximum(&(&product * 0.01)).to_kind(Kind::BFloat16);
    Ok((super::distance(&c, &expected), 0.25))
}
