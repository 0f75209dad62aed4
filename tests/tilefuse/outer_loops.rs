//! Kernels that run over blocks of rows, each block through all of them on one thread.

use tch::{Device, Kind, Tensor};
use tilefuse::{Explanation, Options, Prepack, Products, StepReport};

use crate::common::{THREADS, setup};

type Model = fn(&[Tensor]) -> Tensor;

/// A perceptron with a layer norm, of an input, two weights and a bias.
fn perceptron(x: &[Tensor]) -> Tensor {
    let hidden = x[0].linear(&x[1], Some(&x[3])).gelu("none");
    let width = hidden.size().last().copied().unwrap();
    hidden.layer_norm([width], None::<&Tensor>, None::<&Tensor>, 1e-5, false).linear(&x[2], None::<&Tensor>)
}

/// Attention of four heads within each member of a batch, with its projections; of an input and four weights.
fn attention(x: &[Tensor]) -> Tensor {
    let (batch, tokens, width) = x[0].size3().unwrap();
    let heads = |weight: &Tensor| {
        let all = x[0].linear(weight, None::<&Tensor>).view([batch, tokens, 4, width / 4]);
        all.transpose(1, 2)
    };
    let (q, k, v) = (heads(&x[1]), heads(&x[2]), heads(&x[3]));
    let y = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, false, None, false);
    y.transpose(1, 2).reshape([batch, tokens, width]).linear(&x[4], None::<&Tensor>)
}

/// A convolution, a ReLU, a maximum over windows that overlap, and a convolution of single pixels.
fn pooled(x: &[Tensor]) -> Tensor {
    let (one, two) = ([1, 1], [2, 2]);
    let rows = x[0].conv2d(&x[1], Some(&x[3]), one, one, one, 1).relu();
    rows.max_pool2d([3, 3], two, one, one, false).conv2d(&x[2], None::<&Tensor>, one, [0, 0], one, 1)
}

fn draw(shape: &[i64], scale: f64) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu)) * scale
}

fn run(model: Model, inputs: &[Tensor], threads: i32) -> (Tensor, Explanation) {
    tch::set_num_threads(threads);
    let options =
        Options { products: Products::Generated, prepack_weights: Prepack::Always, ..Options::default() };
    // All but the first are the model's own.
    let weights: Vec<Tensor> = inputs[1..].iter().map(Tensor::shallow_clone).collect();
    let whole = move |x: &[Tensor]| {
        let all: Vec<Tensor> = x.iter().chain(&weights).map(Tensor::shallow_clone).collect();
        vec![model(&all)]
    };
    let fused = tilefuse::fuse_with(whole, options);
    let inputs = &inputs[..1];
    drop(fused.call(inputs).unwrap());
    // Memory that an earlier call left must not matter.
    let mut found = Tensor::new();
    for _ in 0..3 {
        found = fused.call(inputs).unwrap().remove(0);
    }
    assert_eq!(fused.stats().fused_calls, 3, "{:?}", fused.stats());
    (found, fused.explain_with(inputs, |model, inputs| model(inputs)).unwrap())
}

/// The kernels of the plan's outer loops: the first names the last.
fn chained(plan: &Explanation) -> Vec<String> {
    let outer_loop = |step: &StepReport| match step {
        StepReport::Kernel { outer_loop, .. } => outer_loop.clone(),
        StepReport::Extern { .. } => None,
    };
    plan.steps.iter().filter_map(outer_loop).collect()
}

/// Compares outer loops on so many threads with eager, and with each other bit by bit.
fn check(model: Model, inputs: &[Tensor], kernels: usize) {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.write();
    let before = tch::get_num_threads();
    let eager = model(inputs);
    let wide: Vec<Tensor> = inputs.iter().map(|x| x.to_kind(Kind::Double)).collect();
    let exact = model(&wide);
    let error = |found: &Tensor| (found - &exact).abs().max().double_value(&[]);
    let mut first: Option<Tensor> = None;
    for threads in [1, 2, 3] {
        let (found, plan) = run(model, inputs, threads);
        let notes = chained(&plan);
        assert_eq!(notes.len(), kernels, "{plan}");
        assert!(
            notes[0].starts_with(&format!("outer-loop fusion of steps 0 to {}: ", kernels - 1)),
            "{plan}"
        );
        assert!(notes[1..].iter().all(|note| note == "in the fused outer loop of step 0"), "{plan}");
        assert!(plan.text(false).contains(&notes[0]));
        assert!(error(&found) <= 2.0 * error(&eager) + 1e-6, "{}", error(&found));
        let same = first.get_or_insert_with(|| found.copy()).equal(&found);
        assert!(same, "{threads} threads");
    }
    tch::set_num_threads(before);
}

#[test]
fn rows_go_through_a_perceptron_in_blocks() {
    let inputs =
        [draw(&[12_345, 128], 1.0), draw(&[256, 128], 0.1), draw(&[96, 256], 0.1), draw(&[256], 1.0)];
    check(perceptron, &inputs, 3);
}

#[test]
fn members_of_a_batch_go_through_attention_in_blocks() {
    let weights = [0.1; 4].map(|scale| draw(&[128, 128], scale));
    let inputs: Vec<Tensor> = [draw(&[160, 64, 128], 1.0)].into_iter().chain(weights).collect();
    check(attention, &inputs, 5);
}

#[test]
fn rows_go_from_a_convolution_to_pooling_in_blocks() {
    let inputs = [
        draw(&[3, 3, 130, 126], 1.0),
        draw(&[64, 3, 3, 3], 0.1),
        draw(&[32, 64, 1, 1], 0.1),
        draw(&[64], 1.0),
    ];
    check(pooled, &inputs, 2);
}

/// What an outer loop holds a block at a time is no memory of the plan's.
#[test]
fn blocks_take_less_memory() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.write();
    let before = tch::get_num_threads();
    let inputs = [draw(&[16_384, 64], 1.0), draw(&[256, 64], 0.1), draw(&[64, 256], 0.1), draw(&[256], 1.0)];
    let (_, plan) = run(perceptron, &inputs, 2);
    tch::set_num_threads(before);
    assert!(!chained(&plan).is_empty(), "{plan}");
    assert!(plan.arena_bytes < (16_384 * 256 * 4) / 4, "{plan}");
}
