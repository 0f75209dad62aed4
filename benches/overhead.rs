//! What a call of a fused model costs beside its kernel.

use std::time::Instant;

use tch::{Device, Kind, Tensor};

/// Median nanoseconds of a call, over rounds of 1,000.
fn median(mut call: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..101)
        .map(|_| {
            let start = Instant::now();
            (0..1000).for_each(|_| call());
            start.elapsed().as_nanos() as f64 / 1000.0
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[50]
}

fn main() {
    let _no_grad = tch::no_grad_guard();
    println!("{:>10} {:>12} {:>12} {:>12}", "elements", "fused ns", "eager ns", "empty ns");
    for n in [1, 64, 1024, 4096] {
        let x = [Tensor::randn([n], (Kind::Float, Device::Cpu))];
        let fused = tilefuse::fuse(|x: &[Tensor]| vec![x[0].relu() * 2.0]);
        fused.call(&x).expect("the model runs");
        let ours = median(|| drop(fused.call(&x)));
        let eager = median(|| drop(fused.model()(&x)));
        let empty = median(|| drop(Tensor::empty([n], (Kind::Float, Device::Cpu))));
        println!("{n:>10} {ours:>12.0} {eager:>12.0} {empty:>12.0}");
    }
}
