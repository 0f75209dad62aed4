//! Weights that kernels read before the kernel before them has ended: they are the ones that the call finds, even where
//! work that is still queued writes them.

use tch::{Device, Kind, Tensor};
use tilefuse::{CudaGraphs, Options};

const DEVICE: Device = Device::Cuda(0);
const WIDTH: i64 = 1024;

fn draw(rows: i64) -> Tensor {
    Tensor::randn([rows, WIDTH], (Kind::Float, DEVICE)).to_kind(Kind::BFloat16)
}

/// Layers of one row each, which are sums of products along rows of weights that may be read ahead.
fn layers(weights: &[Tensor], x: &Tensor) -> Tensor {
    weights.iter().fold(x.shallow_clone(), |x, w| x.linear::<Tensor>(w, None).tanh())
}

/// The same in f32.
fn exact(weights: &[Tensor], x: &Tensor) -> Tensor {
    let wide: Vec<Tensor> = weights.iter().map(|w| w.to_kind(Kind::Float)).collect();
    layers(&wide, &x.to_kind(Kind::Float))
}

fn weights_are_those_of_the_call(cuda_graphs: CudaGraphs) {
    let _no_grad = tch::no_grad_guard();
    let weights: Vec<Tensor> = (0..4).map(|_| draw(WIDTH) / 32.0).collect();
    let held: Vec<Tensor> = weights.iter().map(Tensor::shallow_clone).collect();
    let model = move |x: &[Tensor]| vec![layers(&held, &x[0])];
    let fused = tilefuse::fuse_with(model, Options { cuda_graphs, ..Options::default() });
    let (slow, x) = (Tensor::randn([6144, 6144], (Kind::Float, DEVICE)), draw(1));
    for call in 0..12 {
        let fresh: Vec<Tensor> = weights.iter().map(|_| draw(WIDTH) / 32.0).collect();
        // The queue is some milliseconds behind when the call is queued, and writes its weights last.
        let delay = slow.matmul(&slow);
        for (mut weight, fresh) in weights.iter().map(Tensor::shallow_clone).zip(&fresh) {
            weight.copy_(fresh);
        }
        let y = fused.call(&[x.shallow_clone()]).unwrap().remove(0).to_kind(Kind::Float);
        let error = (y - exact(&fresh, &x)).abs().max().double_value(&[]);
        assert!(error < 0.05, "call {call}, {cuda_graphs:?}: off by {error}");
        drop(delay);
    }
    let stats = fused.stats();
    assert_eq!(
        (stats.fused_calls, stats.graph_calls > 0),
        (11, cuda_graphs == CudaGraphs::Always),
        "{stats:?}"
    );
    let plan = fused.explain_with(&[x.shallow_clone()], |model, x| model(x)).unwrap();
    assert!(plan.programs.iter().any(|program| program.contains("hint ahead")), "{:?}", plan.programs);
}

#[test]
fn weights_may_be_written_right_before_a_call() {
    if crate::graphs::device() {
        [CudaGraphs::Off, CudaGraphs::Always].into_iter().for_each(weights_are_those_of_the_call);
    }
}
