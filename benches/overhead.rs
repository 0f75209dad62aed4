//! What a call of a fused model, and a launch of a kernel by hand, cost beside their kernels.

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

/// What a kernel with three tensors, a number and a constant is, and does nothing with.
#[tilefuse::kernel]
fn nothing(x: Ptr<f32>, y: Ptr<f32>, z: Ptr<f32>, n: i64, #[constant] BLOCK: usize) {
    let at = program_id(0) * BLOCK + range(0, BLOCK);
    let inside = at.lt(n) & at.lt(0);
    store(z + at, load(x + at, inside, 0) + load(y + at, inside, 0), inside);
}

/// Arguments to driver call: an empty grid ends a launch just before it; on CUDA an instance that does nothing shows
/// the driver's part as well.
fn launches() {
    let cuda = tilefuse::torch::cuda_available().is_ok().then_some(Device::Cuda(0));
    println!("{:>10} {:>12} {:>12} {:>12}", "launch", "empty ns", "checked ns", "unchecked ns");
    for device in [Device::Cpu].into_iter().chain(cuda) {
        let [x, y, z] = [(); 3].map(|()| Tensor::zeros([1024], (Kind::Float, device)));
        let args = (&x, &y, &z, 1024, 1024);
        nothing.launch(1, args).expect("the kernel runs");
        let empty = median(|| nothing.launch(0, args).expect("the kernel runs"));
        let checked = median(|| nothing.launch(1, args).expect("the kernel runs"));
        // SAFETY: the mask excludes all accesses.
        let unchecked = median(|| unsafe { nothing.launch_unchecked(1, args) }.expect("the kernel runs"));
        println!("{:>10} {empty:>12.0} {checked:>12.0} {unchecked:>12.0}", format!("{device:?}"));
    }
}

fn main() {
    let _no_grad = tch::no_grad_guard();
    launches();
    println!("{:>10} {:>12} {:>12} {:>12}", "elements", "fused ns", "eager ns", "empty ns");
    for n in [1, 64, 1024, 4096] {
        let x = [Tensor::randn([n], (Kind::Float, Device::Cpu))];
        let options = tilefuse::Options { audit: tilefuse::Audit::Never, ..tilefuse::Options::default() };
        let fused = tilefuse::fuse_with(|x: &[Tensor]| vec![x[0].relu() * 2.0], options);
        fused.call(&x).expect("the model runs");
        let ours = median(|| drop(fused.call(&x)));
        let eager = median(|| drop(fused.model()(&x)));
        let empty = median(|| drop(Tensor::empty([n], (Kind::Float, Device::Cpu))));
        println!("{n:>10} {ours:>12.0} {eager:>12.0} {empty:>12.0}");
    }
}
