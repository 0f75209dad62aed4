//! Attention without the matrix of scores in memory: softmax as it goes along.

use tch::{Device, Kind, Tensor};
use tilefuse::lang::{Short, Tile, cdiv, dot, exp2, max, maximum};

/// `o = softmax(q k^T * scale) v` for heads of `len` rows of `D` elements and a positive `scale`; with `CAUSAL` a row sees
/// those up to itself. Grid: blocks of `BM` rows, then heads.
#[tilefuse::kernel(warps = WARPS)]
pub(crate) fn attention<T: Short>(
    q: Ptr<T>,
    k: Ptr<T>,
    v: Ptr<T>,
    o: Ptr<T>,
    scale: f32,
    len: i64,
    #[constant] CAUSAL: bool,
    #[constant] D: usize,
    #[constant] [BM, BN, WARPS]: [usize; 3],
) {
    let head = program_id(1) * len * D;
    let start = program_id(0) * BM;
    let rows = |x: Ptr<T>, block: usize| make_descriptor(x + head, (len, D), (D, 1), [block, D]);
    let query = rows(q, BM).load((start, 0));
    let row = (start + range(0, BM)).col();
    let (mut top, mut total) = (full::<f32>([BM], -f32::INFINITY), zeros::<f32>([BM]));
    let mut sum = zeros::<f32>([BM, D]);
    let scale = scale * std::f32::consts::LOG2_E;
    // Blocks of keys that every row sees, then those that some do not.
    let whole = if CAUSAL { (start / BN * BN).cast::<i64>() } else { len / BN * BN };
    let end = if CAUSAL { minimum(len, start + BM) } else { len };
    for at in (0..whole).step_by(BN) {
        let scores = dot(query, rows(k, BN).load((at, 0)).trans(), 0);
        (top, total, sum) = attend(scores, scale, rows(v, BN).load((at, 0)), (top, total, sum));
    }
    for at in (whole..end).step_by(BN) {
        let col = (at + range(0, BN)).row();
        let seen = if CAUSAL { col.lt(len) & col.le(row) } else { col.lt(len) };
        let scores = dot(query, rows(k, BN).load((at, 0)).trans(), 0);
        let scores = select(seen, scores, -f32::INFINITY);
        (top, total, sum) = attend(scores, scale, rows(v, BN).load((at, 0)), (top, total, sum));
    }
    rows(o, BM).store((start, 0), (sum / total.col()).cast::<T>());
}

/// Adds what rows see of a block of keys to the largest score of each, the sum of exponentials below it, and the
/// weighted sum of values. With `scale`, scores are in units of `log2(e)`, for `exp2`.
fn attend<T: Short>(
    scores: Tile<f32>,
    scale: Tile<f32>,
    values: Tile<T>,
    (top, total, sum): (Tile<f32>, Tile<f32>, Tile<f32>),
) -> (Tile<f32>, Tile<f32>, Tile<f32>) {
    let higher = maximum(top, max(scores, 1) * scale);
    let e = exp2(scores.fma(scale, -higher.col()));
    let shrink = exp2(top - higher);
    (higher, total * shrink + e.sum(1), dot(e.cast::<T>(), values, sum * shrink.col()))
}

pub(crate) fn check(device: Device, interpret: bool) -> anyhow::Result<(f64, f64)> {
    let (heads, len, d) = (3, 200, 32);
    let random = || Tensor::randn([1, heads, len, d], (Kind::Float, device)).to_kind(Kind::BFloat16);
    let (q, k, v) = (random(), random(), random());
    let scale = 1.0 / (d as f32).sqrt();
    let mut worst = 0f64;
    for causal in [false, true] {
        let o = q.empty_like();
        let grid = [cdiv(len, 64), heads];
        let (grid, args) = (grid, (&q, &k, &v, &o, scale, len, causal, 32, [64, 32, 4]));
        if interpret {
            attention.interpret(grid, args)?
        } else {
            attention.launch(grid, args)?
        };
        let expected =
            Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, causal, None, false);
        worst = worst.max(super::distance(&o, &expected));
    }
    Ok((worst, 0.03))
}
