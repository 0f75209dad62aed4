//! Dropout that a seed determines: the mask is computed again where it is needed, and never stored.

use tch::{Device, Kind, Tensor};
use tilefuse::grid;
use tilefuse::lang::cdiv;

/// `y = x / (1 - p)` with probability `1 - p`, else 0, over `n` elements. The same seed drops the same elements.
#[tilefuse::kernel]
pub(crate) fn dropout(x: Ptr<f32>, y: Ptr<f32>, n: i64, p: f32, seed: i64, #[constant] BLOCK: usize) {
    let at = program_id(0) * BLOCK + range(0, BLOCK);
    let inside = at.lt(n);
    let kept = rand(seed, at).ge(p);
    let v = load(x + at, inside, 0);
    store(y + at, select(kept, v / (1.0 - p), 0.0), inside);
}

pub(crate) fn check(device: Device, interpret: bool) -> anyhow::Result<(f64, f64)> {
    let (n, p) = (100_000, 0.3);
    let x = Tensor::randn([n], (Kind::Float, device)) + 10.0;
    let [first, again, other] = [7, 7, 8].map(|seed| -> anyhow::Result<Tensor> {
        let y = x.empty_like();
        let (grid, args) = (grid![cdiv(n, 1024)], (&x, &y, n, p, seed, 1024));
        if interpret {
            dropout.interpret(grid, args)?
        } else {
            dropout.launch(grid, args)?
        };
        Ok(y)
    });
    let (first, again, other) = (first?, again?, other?);
    anyhow::ensure!(first.equal(&again) && !first.equal(&other), "a seed determines what is dropped");
    let kept = first.ne(0.0);
    let share = kept.to_kind(Kind::Double).mean(Kind::Double).double_value(&[]);
    anyhow::ensure!((share - 0.7).abs() < 0.01, "{share} of the elements were kept");
    Ok((super::distance(&first, &((&x / (1.0 - f64::from(p))) * kept)), 1e-5))
}
