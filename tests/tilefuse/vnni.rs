//! Products over weights of `bf16` and of 8-bit integers, which processors have instructions for.

use tch::{Device, Kind, Tensor};
use tilefuse::{Fused, Options, Prepack, Products};

use crate::common::{THREADS, setup};

/// A layer over a weight that the model has.
struct Layer {
    weight: Tensor,
    bias: Tensor,
    forward: fn(&Layer, &Tensor) -> Tensor,
}

impl Layer {
    fn call(&self, x: &[Tensor]) -> Vec<Tensor> {
        vec![(self.forward)(self, &x[0])]
    }

    fn double(&self) -> Layer {
        let wide = |t: &Tensor| t.to_kind(Kind::Double);
        Layer { weight: wide(&self.weight), bias: wide(&self.bias), forward: self.forward }
    }
}

fn draw(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16)
}

fn bytes(shape: &[i64]) -> Tensor {
    Tensor::randint_low(-128, 128, shape, (Kind::Int8, Device::Cpu))
}

fn fused(layer: Layer, products: Products) -> Fused<Layer> {
    tilefuse::fuse_with(layer, Options { products, prepack_weights: Prepack::Always, ..Options::default() })
}

/// The second call of a layer, which must be a fused one, and how many operators stayed libtorch's.
fn run(fused: &Fused<Layer>, x: &Tensor) -> (Tensor, usize) {
    let call = || fused.run_with(&[x.shallow_clone()], |layer, x| layer.call(x)).unwrap().remove(0);
    let (_, found) = (call(), call());
    assert_eq!(fused.stats().fused_calls, 1, "{:?}", fused.stats());
    let plan = fused.explain_with(&[x.shallow_clone()], |layer, x| layer.call(x)).unwrap();
    (found, plan.extern_ops)
}

/// The largest difference, in the largest magnitude of what is exact.
fn error(found: &Tensor, exact: &Tensor) -> f64 {
    let largest = exact.abs().max().double_value(&[]).max(1e-3);
    (found.to_kind(Kind::Double) - exact).abs().max().double_value(&[]) / largest
}

/// What a result and a value in between lose that are rounded to 8 bits, half a place of each, and where the latter is larger
/// than any result twice that; the sums are of 24 bits.
const ROUNDING: f64 = 1.5 / 256.0;

fn linear(layer: &Layer, x: &Tensor) -> Tensor {
    x.linear(&layer.weight, Some(&layer.bias)).gelu("tanh")
}

const SHAPES: [[i64; 3]; 9] = [
    [3, 5, 7],
    [3, 16, 32],
    [17, 33, 65],
    [32, 64, 64],
    [37, 100, 96],
    [64, 40, 800],
    [100, 130, 256],
    [197, 70, 40],
    [65, 31, 1001],
];

#[test]
fn layers_of_bf16_are_as_exact_as_their_result() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    for [m, n, k] in SHAPES {
        let rows = [
            draw(&[m, k]),
            draw(&[k, m]).tr(),
            draw(&[m, k + 3]).narrow(1, 2, k),
            draw(&[2 * m, k]).slice(0, 0, 2 * m, 2),
            draw(&[m, 2 * k]).slice(1, 1, 2 * k, 2),
        ];
        for x in rows {
            let layer = Layer { weight: draw(&[n, k]), bias: draw(&[n]), forward: linear };
            let exact = layer.double().call(&[x.to_kind(Kind::Double)]).remove(0);
            let eager = error(&layer.call(&[x.shallow_clone()])[0], &exact);
            let (found, calls) = run(&fused(layer, Products::Generated), &x);
            let apart = error(&found, &exact);
            assert!(apart < ROUNDING.max(1.5 * eager), "{m} {n} {k}: {apart}, eager {eager}");
            assert_eq!(calls, 0);
        }
    }
}

#[test]
fn weights_of_bf16_lie_in_any_order() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    for [m, n, k] in SHAPES {
        for weight in [draw(&[k, n]), draw(&[n, k]).tr(), draw(&[k, n + 5]).narrow(1, 3, n)] {
            let forward = |layer: &Layer, x: &Tensor| x.matmul(&layer.weight) + &layer.bias;
            let layer = Layer { weight, bias: draw(&[n]), forward };
            let x = draw(&[m, k]);
            let exact = layer.double().call(&[x.to_kind(Kind::Double)]).remove(0);
            let eager = error(&layer.call(&[x.shallow_clone()])[0], &exact);
            let apart = error(&run(&fused(layer, Products::Generated), &x).0, &exact);
            assert!(apart < ROUNDING.max(1.5 * eager), "{m} {n} {k}: {apart}");
        }
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    for k in [20, 64] {
        let forward = |layer: &Layer, x: &Tensor| x.linear(&layer.weight, Some(&layer.bias));
        let layer = Layer { weight: draw(&[7, k]), bias: draw(&[7]), forward };
        let _ = layer.weight.get(2).get(3).fill_(f64::INFINITY);
        let _ = layer.weight.get(4).get(k - 1).fill_(f64::NAN);
        let x = draw(&[5, k]).abs() + 0.5;
        let eager = layer.call(&[x.shallow_clone()]).remove(0);
        let (found, _) = run(&fused(layer, Products::Generated), &x);
        assert!(
            found.isnan().equal(&eager.isnan()) && found.isinf().equal(&eager.isinf()),
            "{found} {eager}"
        );
    }
}

#[test]
fn threads_do_not_change_the_bits() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.write();
    let before = tch::get_num_threads();
    for [m, n, k] in [[100, 130, 256], [197, 70, 40], [17, 33, 65]] {
        let (x, weight, bias) = (draw(&[m, k]), draw(&[n, k]), draw(&[n]));
        let with = |threads: i32| {
            tch::set_num_threads(threads);
            let layer = Layer { weight: weight.copy(), bias: bias.copy(), forward: linear };
            run(&fused(layer, Products::Generated), &x).0
        };
        let (one, two) = (with(1), with(2));
        tch::set_num_threads(before);
        assert!(one.equal(&two));
    }
}

#[test]
fn products_of_bytes_are_exact() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    for [m, n, k] in SHAPES.into_iter().chain([[1, 33, 65], [2, 16, 64]]) {
        for weight in [bytes(&[k, n]), bytes(&[n, k]).tr(), bytes(&[k, n + 5]).narrow(1, 3, n)] {
            for x in [bytes(&[m, k]), bytes(&[k, m]).tr(), bytes(&[m, k + 3]).narrow(1, 2, k)] {
                let exact = x.to_kind(Kind::Double).matmul(&weight.to_kind(Kind::Double));
                let forward = |layer: &Layer, x: &Tensor| x.internal_int_mm(&layer.weight);
                let layer = Layer { weight: weight.shallow_clone(), bias: bytes(&[n]), forward };
                let (found, calls) = run(&fused(layer, Products::Generated), &x);
                assert_eq!((found.kind(), calls), (Kind::Int, 0));
                assert!(found.to_kind(Kind::Double).equal(&exact), "{m} {n} {k}");
            }
        }
    }
}

#[test]
fn bytes_that_are_scaled_are_one_kernel() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let forward = |layer: &Layer, x: &Tensor| {
        (x.internal_int_mm(&layer.weight).to_kind(Kind::Float) * 0.015625 + &layer.bias).relu()
    };
    let bias = Tensor::randn([70], (Kind::Float, Device::Cpu));
    let layer = Layer { weight: bytes(&[96, 70]), bias, forward };
    let x = bytes(&[37, 96]);
    let eager = layer.call(&[x.shallow_clone()]).remove(0);
    let fused = fused(layer, Products::Generated);
    let (found, calls) = run(&fused, &x);
    let plan = fused.explain_with(&[x.shallow_clone()], |layer, x| layer.call(x)).unwrap();
    assert_eq!((plan.kernels_fused, calls), (1, 0), "{plan}");
    assert!((found - &eager).abs().max().double_value(&[]) < 1e-3);
}

/// A product of bytes whose result is of bytes wraps around in every sum.
#[test]
fn products_of_bytes_in_bytes_are_those_of_libtorch() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let forward = |layer: &Layer, x: &Tensor| x.matmul(&layer.weight) + 1;
    let layer = Layer { weight: bytes(&[33, 20]), bias: bytes(&[20]), forward };
    let x = bytes(&[9, 33]);
    let eager = layer.call(&[x.shallow_clone()]).remove(0);
    let (found, calls) = run(&fused(layer, Products::Generated), &x);
    assert!(found.equal(&eager));
    assert_eq!(calls, 1);
}
