//! CUDA graphs of plans: what a call returns and writes is what it is without them.

use tch::{Device, Kind, Tensor};
use tilefuse::{Audit, CudaGraphs, Fused, Options};

const DEVICE: Device = Device::Cuda(0);

type Function = fn(&[Tensor]) -> Vec<Tensor>;

/// Whether the tests run on a GPU; says so where there is none.
pub(crate) fn device() -> bool {
    crate::common::setup();
    crate::common::has_gpu() && !crate::common::on_cpu()
}

fn draw(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, (Kind::Float, DEVICE))
}

fn with<M>(model: M, cuda_graphs: CudaGraphs) -> Fused<M> {
    tilefuse::fuse_with(model, Options { cuda_graphs, ..Options::default() })
}

/// Copies with the same strides.
fn copies(tensors: &[Tensor]) -> Vec<Tensor> {
    let copy = |t: &Tensor| {
        let mut copy = Tensor::empty_strided(t.size(), t.stride(), (t.kind(), t.device()));
        if copy.f_copy_(t).is_ok() { copy } else { t.copy() }
    };
    tensors.iter().map(copy).collect()
}

fn equal(a: &[Tensor], b: &[Tensor]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| a.stride() == b.stride() && a.kind() == b.kind() && a.equal(b))
}

/// Calls a function with graphs and without in turns; every result must be the same, and stay what it is. Returns how
/// many calls launched a graph.
fn same<M: Fn(&[Tensor]) -> Vec<Tensor> + Copy>(model: M, inputs: &dyn Fn() -> Vec<Tensor>) -> u64 {
    let _no_grad = tch::no_grad_guard();
    let (graphs, plain) = (with(model, CudaGraphs::Always), with(model, CudaGraphs::Off));
    let mut results = Vec::new();
    for call in 0..6 {
        let ours = inputs();
        let theirs = copies(&ours);
        let (a, b) = (graphs.call(&ours).unwrap(), plain.call(&theirs).unwrap());
        assert!(equal(&a, &b), "results of call {call}");
        assert!(equal(&ours, &theirs), "inputs after call {call}");
        results.push((a, copies(&b)));
    }
    let kept = |(a, b): &(Vec<Tensor>, Vec<Tensor>)| a.iter().zip(b).all(|(a, b)| a.equal(b));
    assert!(results.iter().all(kept), "a later call changed an earlier result");
    assert_eq!(plain.stats().graph_calls, 0);
    graphs.stats().graph_calls
}

fn layers(x: &[Tensor]) -> Vec<Tensor> {
    let y = x[0].matmul(&x[1]).gelu("none").softmax(-1, Kind::Float);
    vec![y.matmul(&x[1]) + &x[0], y.sum_dim_intlist(0i64, false, Kind::Float), y.transpose(0, 1)]
}

/// A plan for inputs of any alignment takes aligned ones too: a graph that is captured with these copies wider words.
#[test]
fn a_graph_of_an_aligned_input_takes_no_other() {
    if !device() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let options = Options { cuda_graphs: CudaGraphs::Always, audit: Audit::Never, ..Options::default() };
    let model = |x: &[Tensor]| vec![(&x[0] * 2.0).tanh().cumsum(0, Kind::Float).neg()];
    let fused = tilefuse::fuse_with(model, options);
    let memory = draw(&[40]);
    for first in [1, 0, 4, 0, 1, 3, 0, 1, 4] {
        let x = memory.narrow(0, first, 32);
        let ours = fused.call(&[x.shallow_clone()]).unwrap();
        assert!(ours[0].allclose(&model(&[x])[0], 1e-4, 1e-5, false), "from element {first}");
    }
    let stats = fused.stats();
    assert!(stats.compiles == 1 && stats.graph_calls > 4, "{stats:?}");
}

#[test]
fn results_are_those_without_a_graph() {
    if device() {
        assert_eq!(same(layers, &|| vec![draw(&[32, 64]), draw(&[64, 64])]), 4);
    }
}

#[test]
fn large_inputs_are_read_where_they_are() {
    if device() {
        let kept = [draw(&[1024, 1024]), draw(&[1024, 1024])];
        assert_eq!(same(layers, &|| kept.iter().map(Tensor::shallow_clone).collect()), 4);
        // Few graphs are made for inputs that are elsewhere in each call; the others run step by step.
        let hold = std::sync::Mutex::new(Vec::new());
        let moving = || {
            let inputs = vec![draw(&[1024, 1024]), draw(&[1024, 1024])];
            hold.lock().unwrap().extend(inputs.iter().map(Tensor::shallow_clone));
            inputs
        };
        same(layers, &moving);
    }
}

#[test]
fn views_and_aliases_of_inputs_are_results_too() {
    if device() {
        let model = |x: &[Tensor]| {
            let y = (&x[0] * 2.0).tanh();
            let z = y.matmul(&x[0].tr());
            vec![x[0].narrow(0, 1, 2), y.narrow(1, 2, 3), z.expand([2, 4, 4], false), x[0].shallow_clone(), z]
        };
        assert_eq!(same(model, &|| vec![draw(&[4, 8])]), 4);
        assert_eq!(same(model, &|| vec![draw(&[8, 4]).tr()]), 4);
        assert_eq!(same(model, &|| vec![draw(&[5, 9]).narrow(0, 1, 4).narrow(1, 1, 8)]), 4);
    }
}

#[test]
fn writes_to_inputs_and_weights_happen_once_a_call() {
    if device() {
        let _no_grad = tch::no_grad_guard();
        let (count, other) =
            (Tensor::zeros([8], (Kind::Float, DEVICE)), Tensor::zeros([8], (Kind::Float, DEVICE)));
        let model = |total: Tensor| {
            move |x: &[Tensor]| {
                let mut total = total.shallow_clone();
                let _ = total.g_add_(&x[0].tanh().sum_dim_intlist(0i64, false, Kind::Float));
                let mut first = x[0].narrow(0, 0, 1);
                let _ = first.g_mul_scalar_(0.5);
                vec![x[0].matmul(&x[0].tr()), &total + 1.0]
            }
        };
        let graphs = with(model(count.shallow_clone()), CudaGraphs::Always);
        let plain = with(model(other.shallow_clone()), CudaGraphs::Off);
        for call in 0..5 {
            let x = draw(&[4, 8]);
            let z = x.copy();
            let (a, b) =
                (graphs.call(&[x.shallow_clone()]).unwrap(), plain.call(&[z.shallow_clone()]).unwrap());
            assert!(equal(&a, &b) && x.equal(&z) && count.equal(&other), "call {call}");
        }
        assert!(graphs.stats().graph_calls > 0);
    }
}

#[test]
fn weights_that_are_written_or_moved_show() {
    if device() {
        let _no_grad = tch::no_grad_guard();
        let (mut weight, bias) = (draw(&[16, 16]), draw(&[16]));
        let held = weight.shallow_clone();
        let model = move |x: &[Tensor]| vec![(x[0].linear(&held, Some(&bias)).relu() + 1.0).matmul(&held)];
        let fused = with(model, CudaGraphs::Always);
        for call in 0..8 {
            if call == 4 {
                let _ = weight.g_mul_scalar_(-2.0);
            }
            if call == 6 {
                weight.set_data(&draw(&[16, 16]));
            }
            let x = draw(&[4, 16]);
            let ours = fused.call(&[x.shallow_clone()]).unwrap();
            assert!(ours[0].allclose(&(fused.model())(&[x])[0], 1e-5, 1e-5, false), "call {call}");
        }
        assert!(fused.stats().graph_calls >= 5);
    }
}

#[test]
fn what_cannot_be_captured_runs_step_by_step() {
    if device() {
        // The inverse looks at what it computed, which a capture does not allow.
        let inverse = |x: &[Tensor]| vec![(x[0].inverse() * 2.0 + 1.0).softmax(-1, Kind::Float)];
        assert_eq!(same(inverse, &|| vec![draw(&[6, 6]) + Tensor::eye(6, (Kind::Float, DEVICE)) * 9.0]), 0);
        assert_eq!(
            same(layers, &|| vec![draw(&[32, 64]), draw(&[64, 64])]),
            4,
            "after a capture that failed"
        );
        let random = |x: &[Tensor]| vec![x[0].matmul(&x[0]).dropout(0.5, true).softmax(-1, Kind::Float)];
        let fused = with(random as Function, CudaGraphs::Always);
        let _no_grad = tch::no_grad_guard();
        for _ in 0..4 {
            fused.call(&[draw(&[8, 8])]).unwrap();
        }
        assert_eq!(fused.stats().graph_calls, 0);
        let why = fused.explain_with(&[draw(&[8, 8])], |m, x| m(x)).map(|e| e.cuda_graph);
        assert!(matches!(&why, Ok(Some(why)) if why.contains("random")) || why.is_err(), "{why:?}");
    }
}

#[test]
fn threads_share_a_graph() {
    if device() {
        let _no_grad = tch::no_grad_guard();
        let fused = with(layers as Function, CudaGraphs::Always);
        let weight = draw(&[64, 64]);
        let warm = || vec![draw(&[32, 64]), weight.shallow_clone()];
        for _ in 0..3 {
            fused.call(&warm()).unwrap();
        }
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let inputs: Vec<Tensor> = warm();
                let fused = &fused;
                scope.spawn(move || {
                    let _no_grad = tch::no_grad_guard();
                    let expected = layers(&inputs);
                    for _ in 0..20 {
                        let ours = fused.call(&inputs).unwrap();
                        assert!(ours.iter().zip(&expected).all(|(a, b)| a.allclose(b, 1e-5, 1e-5, false)));
                    }
                });
            }
        });
        // Of 83 calls. Tests beside this one may set the number of threads, for which there is a plan of its own: one call of
        // each captures the model, and one runs the steps.
        let stats = fused.stats();
        assert!(stats.graph_calls + 2 * stats.captures >= 82 && stats.captures <= 3, "{stats:?}");
    }
}
