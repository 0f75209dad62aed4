//! Layer norm and its gradient.

use tch::{Device, Kind, Tensor};
use tilefuse::grid;
use tilefuse::lang::cdiv;

/// `y = (x - mean) / sqrt(variance + eps) * w + b` over rows of `n` elements, at most `BLOCK`; keeps the mean and the
/// reciprocal deviation for the gradient. One instance for each row.
#[tilefuse::kernel(warps = if BLOCK < 4096 { 4 } else { 8 })]
pub(crate) fn layer_norm<T: Float>(
    x: Ptr<T>,
    w: Ptr<T>,
    b: Ptr<T>,
    y: Ptr<T>,
    mean: Ptr<f32>,
    deviation: Ptr<f32>,
    n: i64,
    eps: f32,
    #[constant] BLOCK: usize,
) {
    let row = program_id(0);
    let cols = range(0, BLOCK);
    let inside = cols.lt(n);
    let v = load(x + row * n + cols, inside, 0).cast::<f32>();
    let m = sum(v, 0) / n;
    let centred = select(inside, v - m, 0.0);
    let r = rsqrt(sum(centred * centred, 0) / n + eps);
    store(mean + row, m, true);
    store(deviation + row, r, true);
    let scale = load(w + cols, inside, 0).cast::<f32>();
    let shift = load(b + cols, inside, 0).cast::<f32>();
    store(y + row * n + cols, (centred * r * scale + shift).cast(), inside);
}

/// The gradient for `x`, and for each of the grid's `PARTS` instances its share of those for `w` and `b`: an instance
/// takes every `PARTS`-th row.
#[tilefuse::kernel(warps = if BLOCK < 4096 { 4 } else { 16 })]
pub(crate) fn layer_norm_backward<T: Float>(
    dy: Ptr<T>,
    x: Ptr<T>,
    w: Ptr<T>,
    mean: Ptr<f32>,
    deviation: Ptr<f32>,
    dx: Ptr<T>,
    dw: Ptr<f32>,
    db: Ptr<f32>,
    rows: i64,
    n: i64,
    #[constant] PARTS: usize,
    #[constant] BLOCK: usize,
) {
    let part = program_id(0);
    let cols = range(0, BLOCK);
    let inside = cols.lt(n);
    let (mut sum_w, mut sum_b) = (zeros::<f32>([BLOCK]), zeros::<f32>([BLOCK]));
    for row in (part..rows).step_by(PARTS) {
        let v = load(x + row * n + cols, inside, 0).cast::<f32>();
        let g = load(dy + row * n + cols, inside, 0).cast::<f32>();
        let (m, r) = ((mean + row).load(), (deviation + row).load());
        let normal = select(inside, (v - m) * r, 0.0);
        // Loaded for each row, from the cache: registers are scarce here.
        let scaled = g * load(w + cols, inside, 0).cast::<f32>();
        let along = sum(normal * scaled, 0) / n;
        let level = sum(scaled, 0) / n;
        store(dx + row * n + cols, ((scaled - normal * along - level) * r).cast(), inside);
        sum_w += g * normal;
        sum_b += g;
    }
    store(dw + part * n + cols, sum_w, inside);
    store(db + part * n + cols, sum_b, inside);
}

/// Sums of the columns of a matrix of `rows` rows. One instance for each `COLS` columns.
#[tilefuse::kernel]
pub(crate) fn column_sums(
    x: Ptr<f32>,
    y: Ptr<f32>,
    rows: i64,
    n: i64,
    #[constant] ROWS: usize,
    #[constant] COLS: usize,
) {
    let cols = program_id(0) * COLS + range(0, COLS);
    let mut total = zeros::<f32>([ROWS, COLS]);
    for first in (0..rows).step_by(ROWS) {
        let row = (first + range(0, ROWS)).col();
        total += load(x + row * n + cols.row(), row.lt(rows) & cols.row().lt(n), 0);
    }
    store(y + cols, sum(total, 0), cols.lt(n));
}

/// The gradients of a layer norm for its input, its weight and its bias.
pub(crate) fn backward(
    dy: &Tensor,
    x: &Tensor,
    w: &Tensor,
    (mean, deviation): (&Tensor, &Tensor),
) -> anyhow::Result<[Tensor; 3]> {
    let (rows, n) = x.size2()?;
    let (parts, block) = (rows.clamp(1, 264), usize::try_from(n)?.next_power_of_two());
    let part = || Tensor::empty([parts, n], (Kind::Float, x.device()));
    let sums = || Tensor::empty([n], (Kind::Float, x.device()));
    let (dx, dws, dbs, dw, db) = (x.empty_like(), part(), part(), sums(), sums());
    let split = usize::try_from(parts)?;
    layer_norm_backward.launch(parts, (dy, x, w, mean, deviation, &dx, &dws, &dbs, rows, n, split, block))?;
    for (parts_of, total) in [(&dws, &dw), (&dbs, &db)] {
        column_sums.launch(grid![cdiv(n, 64)], (parts_of, total, parts, n, 16, 64))?;
    }
    Ok([dx, dw, db])
}

pub(crate) fn check(device: Device, interpret: bool) -> anyhow::Result<(f64, f64)> {
    let (rows, n, eps) = (151, 700, 1e-5);
    let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, device));
    let (x, w, b, dy) = (random(&[rows, n]), random(&[n]), random(&[n]), random(&[rows, n]));
    let (y, mean, deviation) = (x.empty_like(), random(&[rows]), random(&[rows]));
    let (grid, args) = (grid![rows], (&x, &w, &b, &y, &mean, &deviation, n, eps, 1024));
    if interpret {
        layer_norm.interpret(grid, args)?
    } else {
        layer_norm.launch(grid, args)?
    };
    let learned = [&x, &w, &b].map(|t| t.copy().set_requires_grad(true));
    let expected = tch::with_grad(|| {
        let [x, w, b] = &learned;
        x.layer_norm([n], Some(w), Some(b), eps.into(), false)
    });
    tch::with_grad(|| (&expected * &dy).sum(Kind::Float).backward());
    let mut worst = super::distance(&y, &expected);
    let ours = backward(&dy, &x, &w, (&mean, &deviation))?;
    for (ours, theirs) in ours.iter().zip(&learned) {
        worst = worst.max(super::distance(ours, &theirs.grad()));
    }
    Ok((worst, 1e-4))
}
