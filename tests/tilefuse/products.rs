//! Products: kernels of ours beside libtorch's calls.

use tch::{Device, Kind, Tensor};
use tilefuse::{Fused, Options, Prepack, Products};

use crate::common::{NOT_FINITE, THREADS, has_gpu, setup, skipped};

type Function = fn(&[Tensor]) -> Vec<Tensor>;

fn fused<M: Fn(&[Tensor]) -> Vec<Tensor>>(model: M, products: Products) -> Fused<M> {
    tilefuse::fuse_with(model, Options { products, prepack_weights: Prepack::Always, ..Options::default() })
}

/// What the plan gives for these inputs, and the plan.
fn run<M: Fn(&[Tensor]) -> Vec<Tensor>>(
    fused: &Fused<M>,
    inputs: &[Tensor],
) -> (Tensor, tilefuse::Explanation) {
    fused.call(inputs).unwrap();
    let found = fused.call(inputs).unwrap().remove(0);
    assert_eq!(fused.stats().fused_calls, 1, "{:?}", fused.stats());
    (found, fused.explain_with(inputs, |model, inputs| model(inputs)).unwrap())
}

/// Kernels of a plan, but those that leave parts of sums, or of keys, to another one.
fn whole_kernels(plan: &tilefuse::Explanation) -> usize {
    let leaves_parts = |step: &&tilefuse::StepReport| match step {
        tilefuse::StepReport::Kernel { schedule: Some(schedule), .. } => {
            schedule.blocks.starts_with("split-K in ") || schedule.blocks.starts_with("split-KV in ")
        }
        _ => false,
    };
    plan.kernels_fused - plan.steps.iter().filter(leaves_parts).count()
}

fn draw(shape: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind)
}

/// The largest difference from a run in `f64`, relative to the largest magnitude there.
fn error(found: &Tensor, model: impl Fn(&[Tensor]) -> Vec<Tensor>, inputs: &[Tensor]) -> f64 {
    let wide: Vec<Tensor> = inputs.iter().map(|t| t.to_kind(Kind::Double)).collect();
    let exact = &model(&wide)[0];
    let largest = exact.abs().max().double_value(&[]).max(1e-3);
    (found.to_kind(Kind::Double) - exact).abs().max().double_value(&[]) / largest
}

fn mlp(x: &[Tensor]) -> Vec<Tensor> {
    let h = x[0].linear(&x[1], Some(&x[2])).gelu("none");
    vec![h.linear(&x[3], None::<&Tensor>) + &x[0]]
}

fn mlp_inputs(rows: i64, kind: Kind) -> Vec<Tensor> {
    let (wide, narrow) = (65, 33);
    let weight = |shape: &[i64]| draw(shape, kind) * 0.2;
    vec![draw(&[2, rows, narrow], kind), weight(&[wide, narrow]), weight(&[wide]), weight(&[narrow, wide])]
}

#[test]
fn a_perceptron_is_two_kernels_and_no_call() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.write();
    // More threads may share the summed dimension of a product, whose parts take another kernel.
    let before = tch::get_num_threads();
    tch::set_num_threads(2);
    for (kind, tolerance) in
        [(Kind::Float, 1e-5), (Kind::Double, 1e-12), (Kind::BFloat16, 3e-2), (Kind::Half, 4e-3)]
    {
        for rows in [1, 2, 3, 5, 17, 64] {
            let inputs = mlp_inputs(rows, kind);
            let (found, plan) = run(&fused(mlp, Products::Generated), &inputs);
            let apart = error(&found, mlp, &inputs);
            assert!(apart < tolerance, "{kind:?}, {rows} rows: {apart}");
            // Right operands of bf16 may be packed in VNNI-2 layout first.
            let most = if kind == Kind::BFloat16 { 4 } else { 2 };
            assert!((2..=most).contains(&plan.kernels_fused) && plan.extern_ops == 0, "{plan}");
            let steps = serde_json::to_value(&plan).unwrap();
            assert_eq!(steps["steps"].as_array().unwrap().last().unwrap()["shape"], "contraction", "{steps}");
        }
    }
    tch::set_num_threads(before);
}

/// A sum of many products is one of parts, as in libtorch's library: added one after the other, they err ten times as much.
#[test]
fn long_sums_err_at_most_twice_as_much_as_those_of_eager() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let linear: Function = |x| vec![x[0].linear(&x[1], None::<&Tensor>)];
    let conv: Function = |x| {
        let one = [1i64, 1];
        vec![x[0].conv2d(&x[1], None::<&Tensor>, one, one, one, 1)]
    };
    let sizes: [(Function, [&[i64]; 2]); 6] = [
        (linear, [&[8, 25_088], &[64, 25_088]]),
        (linear, [&[1, 25_088], &[64, 25_088]]),
        (conv, [&[1, 512, 14, 14], &[32, 512, 3, 3]]),
        (conv, [&[1, 64, 14, 14], &[32, 64, 3, 3]]),
        (conv, [&[1, 16, 14, 14], &[32, 16, 9, 9]]),
        (conv, [&[1, 2048, 7, 7], &[64, 2048, 1, 1]]),
    ];
    for (model, shapes) in sizes {
        let inputs = shapes.map(|shape| draw(shape, Kind::Float));
        let eager = error(&model(&inputs)[0], model, &inputs);
        // The model's own weights are packed before it runs.
        let own = |given: &[Tensor]| model(&[given[0].shallow_clone(), inputs[1].shallow_clone()]);
        let given = run(&fused(model, Products::Generated), &inputs);
        let packed = run(&fused(own, Products::Generated), &inputs[..1]);
        for (found, plan) in [given, packed] {
            assert_eq!(plan.extern_ops, 0, "{plan}");
            let ours = error(&found, model, &inputs);
            assert!(ours <= 2.0 * eager + 5e-7, "{ours}, eager {eager}: {plan}");
        }
    }
}

/// Whether there is a GPU with products of warpgroups.
fn has_warpgroups() -> bool {
    if !has_gpu() {
        return false;
    }
    let device = tilefuse_codegen::cuda::Device::get(0).unwrap();
    let has_warpgroups = device.target().unwrap().has_warpgroups();
    if !has_warpgroups {
        skipped("the device has no products of warpgroups");
    }
    has_warpgroups
}

#[test]
fn on_a_gpu_products_are_kernels_with_their_epilogue() {
    setup();
    if !has_warpgroups() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let linear: Function = |x| vec![x[0].linear(&x[1], Some(&x[2])).gelu("tanh") * 0.5 + &x[3]];
    let model: Function = |x| vec![(x[0].matmul(&x[1]) * 0.1).relu()];
    for kind in [Kind::BFloat16, Kind::Half] {
        let draw = |shape: &[i64]| draw(shape, kind).to_device(Device::Cuda(0));
        let check = |model: Function, inputs: &[Tensor]| {
            let (found, plan) = run(&fused(model, Products::Generated), inputs);
            let apart = error(&found, model, inputs);
            assert!(apart < 1e-2, "{kind:?} {:?}: {apart}", inputs[0].size());
            assert_eq!((whole_kernels(&plan), plan.extern_ops), (1, 0), "{plan}");
        };
        for [m, n, k] in [
            [1, 8, 8],
            [7, 129, 64],
            [129, 136, 72],
            [64, 1000, 4096],
            [700, 1001, 256],
            [2100, 2050, 128],
            [4097, 264, 200],
            [300, 2048, 768],
            [8192, 768, 3072],
        ] {
            let weight = draw(&[n, k]) * 0.1;
            check(linear, &[draw(&[m, k]), weight, draw(&[n]), draw(&[m, n])]);
        }
        for [batch, m, n, k] in [[3, 65, 64, 72], [12, 128, 128, 64], [5, 200, 24, 520]] {
            check(model, &[draw(&[batch, m, k]), draw(&[batch, k, n])]);
            check(model, &[draw(&[batch, m, k]), draw(&[batch, n, k]).transpose(1, 2)]);
            if m % 8 == 0 {
                check(model, &[draw(&[batch, k, m]).transpose(1, 2), draw(&[batch, k, n])]);
            }
            check(model, &[draw(&[batch, m, k]), draw(&[k, n])]);
        }
    }
}

/// A block of a product has them whole.
#[test]
fn on_a_gpu_rows_of_one_block_are_normalized_where_they_are_summed() {
    setup();
    if !has_warpgroups() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let model: Function = |x| {
        let sum = x[0].linear(&x[1], Some(&x[2])) + &x[3];
        vec![sum.layer_norm(x[2].size(), Some(&x[2]), Some(&x[2]), 1e-5, false)]
    };
    for kind in [Kind::BFloat16, Kind::Half] {
        let draw = |shape: &[i64]| draw(shape, kind).to_device(Device::Cuda(0));
        for [m, n, k] in [[70, 48, 64], [129, 64, 520], [40_001, 96, 96], [40_000, 128, 64]] {
            let inputs = [draw(&[m, k]), draw(&[n, k]) * 0.1, draw(&[n]), draw(&[m, n])];
            let (found, plan) = run(&fused(model, Products::Generated), &inputs);
            let apart = error(&found, model, &inputs);
            assert!(apart < 2e-2, "{kind:?} {m} x {n} x {k}: {apart}");
            assert_eq!((plan.kernels_fused, plan.extern_ops), (1, 0), "{plan}");
        }
    }
}

/// On a CPU a block has them whole as well, whether blocks divide the rows or not.
#[test]
fn rows_of_one_block_are_normalized_where_they_are_summed() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    for (kind, tolerance, widest) in [(Kind::Float, 2e-5, 64), (Kind::Double, 1e-12, 32)] {
        for rows in [1, 7, 17, 129, 197] {
            for columns in [20, 32, 33, 64, 65, 768] {
                let of_model = [draw(&[columns, 96], kind), draw(&[columns], kind)];
                let wide = of_model.each_ref().map(|weight| weight.to_kind(Kind::Double));
                let model = |x: &[Tensor]| {
                    let [weight, bias] = if x[0].kind() == Kind::Double { &wide } else { &of_model };
                    let sum = x[0].linear(weight, Some(bias)) + &x[1];
                    vec![sum.layer_norm([columns], Some(bias), Some(bias), 1e-5, false)]
                };
                let inputs = [draw(&[rows, 96], kind), draw(&[rows, columns], kind)];
                let (found, plan) = run(&fused(model, Products::Generated), &inputs);
                let apart = error(&found, model, &inputs);
                assert!(apart < tolerance, "{kind:?} {rows} x {columns}: {apart}");
                let most = if rows > 2 && columns <= widest { 1 } else { 2 };
                assert!(plan.kernels_fused <= most && plan.extern_ops == 0, "{rows} x {columns}: {plan}");
            }
        }
    }
}

/// Those of every member of a batch, and parts of the rows of a loss.
#[test]
fn rows_of_batched_products_and_of_losses_are_reduced_where_they_are_summed() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let softmax: Function = |x| vec![x[0].bmm(&x[1]).softmax(-1, None)];
    for rows in [7, 17, 129] {
        for columns in [33, 64, 65] {
            let inputs = [draw(&[3, rows, 40], Kind::Float), draw(&[3, 40, columns], Kind::Float)];
            let (found, plan) = run(&fused(softmax, Products::Generated), &inputs);
            let apart = error(&found, softmax, &inputs);
            assert!(apart < 2e-5, "{rows} x {columns}: {apart}");
            let most = if columns <= 64 { 1 } else { 2 };
            assert!(plan.kernels_fused <= most && plan.extern_ops == 0, "{rows} x {columns}: {plan}");
        }
    }
    for (rows, classes) in [(7, 65), (17, 1000), (129, 4096), (197, 50_257)] {
        let targets = Tensor::arange(rows, (Kind::Int64, Device::Cpu)).remainder(classes);
        let weight = draw(&[classes, 40], Kind::Float);
        let wide = weight.to_kind(Kind::Double);
        let loss = |x: &[Tensor]| {
            let weight = if x[0].kind() == Kind::Double { &wide } else { &weight };
            vec![x[0].linear(weight, None::<&Tensor>).cross_entropy_for_logits(&targets)]
        };
        let inputs = [draw(&[rows, 40], Kind::Float)];
        let (found, plan) = run(&fused(loss, Products::Generated), &inputs);
        let apart = error(&found, loss, &inputs);
        assert!(apart < 2e-5, "{rows} x {classes}: {apart}");
        assert_eq!(plan.extern_ops, 0, "{plan}");
    }
}

/// There may be 65,535 instances along the further axes of a grid.
#[test]
fn on_a_gpu_products_have_any_number_of_members() {
    setup();
    if !has_warpgroups() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let model: Function = |x| vec![x[0].matmul(&x[1])];
    let draw = |shape: &[i64]| draw(shape, Kind::BFloat16).to_device(Device::Cuda(0));
    let inputs = [draw(&[66_000, 9, 8]), draw(&[66_000, 8, 16])];
    let (found, plan) = run(&fused(model, Products::Generated), &inputs);
    assert_eq!((plan.kernels_fused, plan.extern_ops), (1, 0), "{plan}");
    let apart = error(&found, model, &inputs);
    assert!(apart < 1e-2, "{apart}");
}

/// What libtorch multiplies without rounding, and kernels of ours do not yet, stays one call.
#[test]
fn on_a_gpu_sums_of_halves_are_calls() {
    setup();
    if !has_gpu() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let draw = |shape: &[i64]| draw(shape, Kind::BFloat16).to_device(Device::Cuda(0));
    let inputs = [draw(&[70, 64]), draw(&[64, 48]), draw(&[3, 70, 64]), draw(&[3, 64, 48])];
    let model: Function = |x| {
        let (one, many) = (x[0].mm_dtype(&x[1], Kind::Float), x[2].bmm_dtype(&x[3], Kind::Float));
        vec![(one + many).relu()]
    };
    let (found, plan) = run(&fused(model, Products::Library), &inputs);
    assert_eq!((plan.kernels_fused, plan.extern_ops), (1, 2), "{plan}");
    let wide = inputs.each_ref().map(|x| x.to_kind(Kind::Double));
    let exact = (wide[0].matmul(&wide[1]) + wide[2].matmul(&wide[3])).relu();
    assert!(found.allclose(&exact.to_kind(Kind::Float), 1e-5, 1e-4, false));
}

/// libtorch multiplies none there; an Einstein sum along sizes of 1 it computes element by element.
#[test]
fn on_a_gpu_integers_are_multiplied_by_a_kernel() {
    setup();
    if !has_gpu() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let model: Function = |x| vec![Tensor::einsum("a,axy->yx", &x[..2], None::<i64>)];
    let inputs = [&[1][..], &[1, 5, 7]].map(|shape| draw(shape, Kind::Float) * 10.0);
    let inputs = inputs.map(|x| x.to_kind(Kind::Int64).to_device(Device::Cuda(0)));
    let (found, plan) = run(&fused(model, Products::Measured), &inputs);
    assert_eq!((plan.kernels_fused, plan.extern_ops), (1, 0), "{plan}");
    assert!(found.equal(&model(&inputs)[0]));
}

/// Convolutions over channels-last: two and three axes, strides, paddings, dilations, images that end within a block.
#[test]
fn on_a_gpu_convolutions_are_kernels_with_their_epilogue() {
    setup();
    if !has_warpgroups() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    for kind in [Kind::BFloat16, Kind::Half] {
        let channels_last = |shape: &[i64]| {
            let rank = shape.len() as i64;
            let order: Vec<i64> = [0].into_iter().chain(2..rank).chain([1]).collect();
            let inverse: Vec<i64> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
            let memory: Vec<i64> = order.iter().map(|&d| shape[d as usize]).collect();
            draw(&memory, kind).to_device(Device::Cuda(0)).permute(inverse)
        };
        // Images, channels, filters; sizes, taps, stride, padding and dilation of each axis.
        type Case<'c> = ([i64; 3], &'c [[i64; 5]]);
        let cases: [Case; 10] = [
            ([2, 64, 64], &[[56, 3, 1, 1, 1], [56, 3, 1, 1, 1]]),
            ([3, 64, 24], &[[9, 3, 2, 1, 1], [7, 3, 2, 1, 1]]),
            ([1, 128, 136], &[[14, 1, 2, 0, 1], [13, 1, 2, 0, 1]]),
            ([5, 64, 72], &[[17, 2, 1, 1, 3], [6, 5, 3, 3, 1]]),
            ([9, 64, 8], &[[5, 3, 1, 2, 2], [4, 3, 1, 1, 1]]),
            ([1, 192, 8], &[[4, 3, 1, 0, 1], [3, 3, 1, 0, 1]]),
            ([4, 256, 512], &[[7, 3, 1, 1, 1], [7, 3, 1, 1, 1]]),
            ([2, 64, 40], &[[130, 7, 2, 3, 1], [3, 1, 1, 0, 1]]),
            ([2, 64, 16], &[[5, 3, 1, 1, 1], [6, 3, 2, 0, 1], [7, 3, 1, 2, 2]]),
            ([1, 512, 264], &[[33, 3, 1, 1, 1], [31, 3, 1, 1, 1]]),
        ];
        for ([images, channels, filters], axes) in cases {
            let each = |at: usize| -> Vec<i64> { axes.iter().map(|axis| axis[at]).collect() };
            let [size, taps, stride, padding, dilation] = [0, 1, 2, 3, 4].map(each);
            let shape = |first: i64, second: i64, rest: &[i64]| [&[first, second], rest].concat();
            let rank = axes.len();
            let model = move |x: &[Tensor]| {
                let conv = match rank {
                    2 => x[0].conv2d(&x[1], Some(&x[2]), &stride, &padding, &dilation, 1),
                    _ => x[0].conv3d(&x[1], Some(&x[2]), &stride, &padding, &dilation, 1),
                };
                let column: Vec<i64> = [1, -1].into_iter().chain((0..rank).map(|_| 1)).collect();
                vec![(conv * x[3].view(&column[..])).relu()]
            };
            let weight = channels_last(&shape(filters, channels, &taps)) * 0.1;
            let vector = || draw(&[filters], kind).to_device(Device::Cuda(0));
            let inputs = [channels_last(&shape(images, channels, &size)), weight, vector(), vector()];
            let fused = fused(model, Products::Generated);
            let (found, plan) = run(&fused, &inputs);
            let apart = error(&found, fused.model(), &inputs);
            assert!(apart < 1e-2, "{kind:?} {images} x {channels} to {filters}, {axes:?}: {apart}");
            assert_eq!((whole_kernels(&plan), plan.extern_ops), (1, 0), "{plan}");
            assert_eq!(found.stride(), fused.model()(&inputs)[0].stride());
        }
    }
}

/// Attention of heads that share keys, with and without a mask, of lengths that end within a block.
#[test]
fn on_a_gpu_attention_is_one_kernel() {
    setup();
    if !has_warpgroups() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let attend = |x: &[Tensor], mask: Option<&Tensor>, causal: bool| {
        let shared = x[0].size()[1] != x[1].size()[1];
        vec![Tensor::scaled_dot_product_attention(&x[0], &x[1], &x[2], mask, 0.0, causal, None, shared)]
    };
    for kind in [Kind::BFloat16, Kind::Half] {
        let draw = |shape: &[i64]| draw(shape, kind).to_device(Device::Cuda(0));
        // Batch, heads of queries and of keys; queries, keys, elements.
        let cases: [([i64; 3], [i64; 3]); 10] = [
            ([2, 3, 3], [64, 64, 64]),
            ([1, 12, 12], [1024, 1024, 64]),
            ([2, 8, 2], [300, 300, 128]),
            ([3, 2, 1], [49, 49, 32]),
            ([1, 2, 2], [197, 200, 80]),
            ([2, 2, 2], [8, 1000, 64]),
            ([1, 3, 3], [129, 77, 128]),
            ([700, 16, 16], [16, 24, 16]),
            ([1, 1, 1], [4097, 33, 48]),
            ([4, 4, 4], [128, 4097, 64]),
        ];
        for ([batch, heads, few], [queries, keys, width]) in cases {
            // As projections leave them: heads between rows.
            let rows = |heads: i64, rows: i64| draw(&[batch, rows, heads, width]).transpose(1, 2);
            let x =
                [rows(heads, queries), rows(few, keys), rows(few, keys), draw(&[batch, 1, queries, keys])];
            let check = |model: &dyn Fn(&[Tensor]) -> Vec<Tensor>, inputs: &[Tensor], kernels: usize| {
                // An epilogue of few keys may be priced out.
                let hints = vec![tilefuse::Hint::together("*")];
                let options = Options { products: Products::Generated, hints, ..Options::default() };
                let (found, plan) = run(&tilefuse::fuse_with(model, options), inputs);
                let apart = error(&found, model, inputs);
                assert!(apart < 2e-2, "{kind:?} {batch} x {heads} x {queries} x {keys} x {width}: {apart}");
                assert_eq!((whole_kernels(&plan), plan.extern_ops), (kernels, 0), "{plan}");
            };
            check(&|x| attend(x, None, false), &x[..3], 1);
            check(&|x| attend(x, None, true), &x[..3], 1);
            check(&|x| vec![attend(x, None, true)[0].sigmoid() * &x[0]], &x[..3], 1);
            // Heads in rows of their own, joined: what is stored has another order than the result.
            let dense = [0, 1, 2].map(|at| x[at].contiguous());
            let joined = |x: &[Tensor]| {
                let scores = (x[0].matmul(&x[1].transpose(-2, -1)) * 0.125).softmax(-1, None);
                vec![scores.matmul(&x[2]).transpose(1, 2).flatten(2, 3)]
            };
            if heads == few {
                check(&joined, &dense, 1);
            }
            check(&|x| attend(x, Some(&x[3]), false), &x, 1);
            // A kernel makes the mask.
            check(&|x| attend(x, Some(&x[3].ge(0.0)), false), &x, 2);
        }
    }
}

/// A norm in front of a linear: what is behind its reductions is computed in the product's loads, where that is asked for.
#[test]
fn a_norm_is_the_prologue_of_a_product() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let layer = |x: &[Tensor]| {
        let k = *x[0].size().last().unwrap_or(&1);
        vec![x[0].layer_norm([k], Some(&x[1]), Some(&x[2]), 1e-5, true).linear(&x[3], None::<&Tensor>)]
    };
    let rms = |x: &[Tensor]| {
        let scale = (x[0].square().mean_dim(-1, true, None) + 1e-5).rsqrt();
        vec![(&x[0] * scale * &x[1]).linear(&x[3], Some(&x[4])).relu()]
    };
    let soft = |x: &[Tensor]| vec![x[0].softmax(-1, None).linear(&x[3], None::<&Tensor>)];
    type Function = fn(&[Tensor]) -> Vec<Tensor>;
    let models: [(&str, Function); 3] = [("layer norm", layer), ("RMS norm", rms), ("softmax", soft)];
    for kind in [Kind::Float, Kind::Double, Kind::BFloat16, Kind::Half] {
        for [rows, k, n] in [[1, 768, 40], [7, 33, 1], [65, 129, 8], [130, 64, 65], [2, 1, 3]] {
            for shape in [&[rows, k][..], &[3, rows, k]] {
                let x = [
                    draw(shape, kind) + 3.0,
                    draw(&[k], kind),
                    draw(&[k], kind),
                    draw(&[n, k], kind),
                    draw(&[n], kind),
                ];
                for (name, model) in models {
                    let options = Options {
                        products: Products::Generated,
                        hints: vec![tilefuse::Hint::together("*")],
                        ..Options::default()
                    };
                    let (found, plan) = run(&tilefuse::fuse_with(model, options), &x);
                    let of = format!("{name} of {kind:?} {shape:?} to {n}");
                    assert_eq!(plan.extern_ops, 0, "{of}: {plan}");
                    // Sums of one element are none.
                    let is_prologue =
                        |edge: &tilefuse::EdgeReport| edge.verdict.starts_with("fused as a prologue");
                    assert!(k == 1 || plan.edges.iter().any(is_prologue), "{of}: {plan}");
                    let (ours, theirs) = (error(&found, model, &x), error(&model(&x)[0], model, &x));
                    let least = match kind {
                        Kind::Double => 1e-13,
                        Kind::Float => 2e-6,
                        Kind::Half => 2e-3,
                        _ => 1e-2,
                    };
                    assert!(ours <= 2.0 * theirs + least, "{of}: {ours} beside {theirs}");
                }
            }
        }
    }
}

/// NaN and infinity in a row of queries, keys, values or the mask. What hides a key multiplies its value by 0, or skips it with a
/// block of keys: where eager and attention that is written out differ, either is right.
#[test]
fn on_a_gpu_attention_of_rows_that_are_not_finite_is_as_in_eager() {
    setup();
    if !has_warpgroups() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let attend = |x: &[Tensor], causal: bool| {
        let mask = x.get(3);
        vec![Tensor::scaled_dot_product_attention(&x[0], &x[1], &x[2], mask, 0.0, causal, None, false)]
    };
    let written = |x: &[Tensor], causal: bool| {
        let wide: Vec<Tensor> = x.iter().map(|x| x.to_kind(Kind::Float)).collect();
        let scores = wide[0].matmul(&wide[1].transpose(-2, -1)) / (x[0].size()[3] as f64).sqrt();
        let scores = match wide.get(3) {
            Some(mask) => scores + mask,
            None if causal => {
                scores.masked_fill(&scores.ones_like().triu(1).to_kind(Kind::Bool), f64::NEG_INFINITY)
            }
            None => scores,
        };
        scores.softmax(-1, None).matmul(&wide[2])
    };
    let mut wrong = Vec::new();
    for kind in [Kind::BFloat16, Kind::Half] {
        for [queries, keys, width] in
            [[64, 64, 64], [300, 300, 128], [49, 77, 32], [1, 1000, 64], [129, 260, 48]]
        {
            let draw = |shape: &[i64]| draw(shape, kind).to_device(Device::Cuda(0));
            let heads = |rows: i64| draw(&[2, 3, rows, width]);
            let hidden = draw(&[1, 1, queries, keys]).ones_like().triu(keys / 2).to_kind(Kind::Bool);
            let mask = hidden.zeros_like().to_kind(kind).masked_fill(&hidden, f64::NEG_INFINITY);
            for form in ["none", "causal", "mask"] {
                for (place, value) in NOT_FINITE {
                    let mut x = vec![heads(queries), heads(keys), heads(keys)];
                    x.extend((form == "mask").then(|| mask.copy()));
                    // Values of keys that no query sees may be multiplied by 0 or not.
                    let Some(tensor) = x.get(place).filter(|_| (form, place) != ("causal", 2)) else {
                        continue;
                    };
                    let rows = tensor.size()[2];
                    let _ = tensor.get(0).get(0).get(rows / 2).fill_(value);
                    let model = move |x: &[Tensor]| attend(x, form == "causal");
                    let (found, plan) = run(&fused(model, Products::Generated), &x);
                    assert_eq!(plan.extern_ops, 0, "{plan}");
                    let eager = model(&x).remove(0);
                    let expected = written(&x, form == "causal");
                    let is_clear = eager.isnan().eq_tensor(&expected.isnan());
                    let differ = found.isnan().ne_tensor(&eager.isnan()).logical_and(&is_clear);
                    let near = (found.to_kind(Kind::Float) - &expected).abs().le(2e-2);
                    let far = near.logical_or(&expected.isfinite().logical_not()).logical_or(&found.isnan());
                    let count = |t: &Tensor| t.sum(Kind::Int64).int64_value(&[]);
                    let counts = (count(&differ), count(&far.logical_not()), count(&is_clear.logical_not()));
                    if (counts.0, counts.1) != (0, 0) {
                        let of = format!("{kind:?} {queries} x {keys} x {width}, {form}, {value} in {place}");
                        wrong.push(format!("{of}: NaN, far, unclear {counts:?} of {}", found.numel()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn threads_do_not_change_the_bits() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.write();
    let before = tch::get_num_threads();
    let inputs = mlp_inputs(40, Kind::Float);
    let with = |threads: i32| {
        tch::set_num_threads(threads);
        run(&fused(mlp, Products::Generated), &inputs).0
    };
    let (one, two) = (with(1), with(2));
    tch::set_num_threads(before);
    assert!(one.equal(&two));
}

#[test]
fn transposed_batched_and_strided_operands_are_read_where_they_lie() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let models: [(Function, &[i64], &[i64]); 6] = [
        (|x| vec![x[0].mm(&x[1].tr())], &[17, 65], &[33, 65]),
        (|x| vec![x[0].tr().mm(&x[1])], &[65, 17], &[65, 33]),
        (|x| vec![x[0].slice(1, 3, 40, 1).mm(&x[1].slice(0, 0, 74, 2))], &[9, 65], &[75, 12]),
        (|x| vec![x[0].bmm(&x[1].transpose(1, 2))], &[3, 17, 20], &[3, 9, 20]),
        (|x| vec![x[0].matmul(&x[1])], &[2, 1, 5, 7], &[3, 7, 9]),
        (|x| vec![x[0].permute([1, 0, 2]).matmul(&x[1])], &[4, 3, 8], &[8, 6]),
    ];
    for (model, left, right) in models {
        let inputs = [draw(left, Kind::Float), draw(right, Kind::Float)];
        let (found, plan) = run(&fused(model, Products::Generated), &inputs);
        assert_eq!(found.size(), model(&inputs)[0].size());
        assert!(error(&found, model, &inputs) < 1e-5, "{left:?} {right:?}");
        assert_eq!(plan.extern_ops, 0, "{plan}");
    }
}

#[test]
fn operands_are_packed_in_no_more_than_eager_holds() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.write();
    let inputs = [draw(&[515, 257], Kind::Double), draw(&[257, 300], Kind::Double)];
    let model: Function = |x| vec![x[0].mm(&x[1])];
    let plan = |workspace_bytes: u64| {
        let products = Products::Generated;
        let options =
            Options { products, prepack_weights: Prepack::Never, workspace_bytes, ..Options::default() };
        let plan = run(&tilefuse::fuse_with(model, options), &inputs).1;
        (plan.kernels_fused, plan.extern_ops)
    };
    // Both operands are packed by a kernel each, where there is memory for that.
    assert_eq!(plan(0), (1, 0));
    assert_eq!(plan(4 << 20), (3, 0));
}

/// Operands are packed where many rows are multiplied, whatever their order is; the number of threads does not change a bit.
#[test]
fn operands_of_many_rows_are_packed_first() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.write();
    let before = tch::get_num_threads();
    let models: [(Function, &[i64], &[i64]); 6] = [
        (|x| vec![x[0].mm(&x[1])], &[515, 257], &[257, 300]),
        (|x| vec![x[0].mm(&x[1].tr())], &[520, 258], &[257, 258]),
        (|x| vec![x[0].tr().mm(&x[1])], &[257, 513], &[257, 290]),
        (|x| vec![x[0].slice(1, 3, 260, 1).mm(&x[1].slice(0, 0, 514, 2)).relu()], &[512, 280], &[520, 270]),
        (|x| vec![x[0].bmm(&x[1].transpose(1, 2))], &[2, 512, 245], &[2, 270, 245]),
        (|x| vec![x[0].matmul(&x[1])], &[2, 1, 513, 257], &[2, 257, 259]),
    ];
    let kinds = [(Kind::Float, 1e-5), (Kind::Double, 1e-12), (Kind::BFloat16, 8e-3), (Kind::Half, 1e-3)];
    for (model, left, right) in models {
        for (kind, tolerance) in kinds {
            let inputs = [draw(left, kind), draw(right, kind)];
            let with = |threads: i32| {
                tch::set_num_threads(threads);
                // Laid out, an operand may have more bytes than all that eager holds.
                let options = Options {
                    products: Products::Generated,
                    prepack_weights: Prepack::Always,
                    workspace_bytes: 4 << 20,
                    ..Options::default()
                };
                run(&tilefuse::fuse_with(model, options), &inputs)
            };
            let (found, plan) = with(1);
            let apart = error(&found, model, &inputs);
            assert!(apart < tolerance, "{kind:?} {left:?} {right:?}: {apart}");
            // Interleaved rows of `bf16` pay or not as the processor multiplies them: by tiles or by vectors.
            let fewest = if kind == Kind::BFloat16 { 1 } else { 2 };
            assert!(plan.extern_ops == 0 && (fewest..=3).contains(&plan.kernels_fused), "{plan}");
            for threads in [2, 5] {
                assert!(with(threads).0.equal(&found), "{kind:?} {left:?} {right:?} on {threads} threads");
            }
        }
    }
    tch::set_num_threads(before);
}

#[test]
fn what_is_not_finite_stays_so() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let model: Function = |x| vec![x[0].linear(&x[1], None::<&Tensor>)];
    for rows in [1, 5, 600] {
        let x = Tensor::zeros([rows, 20], (Kind::Float, Device::Cpu));
        let weight = draw(&[7, 20], Kind::Float);
        let _ = weight.get(2).get(3).fill_(f64::INFINITY);
        let _ = weight.get(4).get(19).fill_(f64::NAN);
        let inputs = [x, weight];
        let (found, _) = run(&fused(model, Products::Generated), &inputs);
        let eager = &model(&inputs)[0];
        assert!(found.isnan().equal(&eager.isnan()), "{found} {eager}");
    }
}

#[test]
fn the_plan_gives_both_times() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let inputs = mlp_inputs(17, Kind::Float);
    let (found, plan) = run(&fused(mlp, Products::Measured), &inputs);
    assert!(error(&found, mlp, &inputs) < 1e-5);
    let plan = plan.text(false);
    assert!(plan.contains("us generated") && plan.contains("us in libtorch"), "{plan}");
}

/// However a product is spelled, it is a contraction, which takes what surrounds it with it.
#[test]
fn every_spelling_of_a_product_is_one() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    // Model, shapes, kernels and calls.
    type Spelling = (Function, &'static [&'static [i64]], [usize; 2]);
    let spellings: [Spelling; 16] = [
        (|x| vec![Tensor::einsum("ik,kj->ij", &x[..2], None::<i64>).relu()], &[&[9, 33], &[33, 17]], [1, 0]),
        (|x| vec![Tensor::einsum("ik,jk->ij", &x[..2], None::<i64>).relu()], &[&[9, 33], &[17, 33]], [1, 0]),
        (
            |x| vec![Tensor::einsum("bik,bkj->bij", &x[..2], None::<i64>).relu()],
            &[&[4, 9, 33], &[4, 33, 17]],
            [1, 0],
        ),
        (|x| vec![x[0].tensordot(&x[1], [1], [0]).relu()], &[&[9, 33], &[33, 17]], [1, 0]),
        (
            |x| vec![Tensor::einsum("...ik,kj->...ij", &x[..2], None::<i64>).relu()],
            &[&[4, 9, 33], &[33, 17]],
            [1, 0],
        ),
        (
            |x| vec![Tensor::einsum("bik,kj,jl->bil", &x[..3], None::<i64>).relu()],
            &[&[4, 9, 33], &[33, 17], &[17, 5]],
            [2, 0],
        ),
        (
            |x| vec![Tensor::einsum("iik,kj->ij", &x[..2], None::<i64>).relu()],
            &[&[9, 9, 33], &[33, 17]],
            [2, 0],
        ),
        (|x| vec![x[0].inner(&x[1]).relu()], &[&[9, 33], &[17, 33]], [1, 0]),
        (|x| vec![Tensor::linalg_multi_dot(&x[..3]).relu()], &[&[40, 9], &[9, 33], &[33, 17]], [2, 0]),
        (|x| vec![Tensor::chain_matmul(&x[..2]).relu()], &[&[9, 33], &[33, 17]], [1, 0]),
        (
            // Its weight is no parameter: it is permuted first.
            |x| vec![Tensor::bilinear(&x[0], &x[1], &x[2], Some(&x[3])).relu()],
            &[&[9, 33], &[9, 17], &[5, 33, 17], &[5]],
            [3, 0],
        ),
        (|x| vec![x[0].matmul(&x[1]).relu()], &[&[2, 1, 9, 33], &[4, 33, 17]], [1, 0]),
        (|x| vec![x[2].addmm(&x[0], &x[1]).relu()], &[&[9, 33], &[33, 17], &[17]], [1, 0]),
        // Sums of vectors' products are a reduction.
        (|x| vec![Tensor::einsum("bi,bi->b", &x[..2], None::<i64>).relu()], &[&[9, 33], &[9, 33]], [1, 0]),
        (|x| vec![x[0].dot(&x[1]).relu()], &[&[33], &[33]], [1, 0]),
        (|x| vec![x[2].addmv(&x[0], &x[1]).relu()], &[&[9, 33], &[33], &[9]], [1, 1]),
    ];
    for (at, (model, shapes, [kernels, calls])) in spellings.into_iter().enumerate() {
        for kind in [Kind::Float, Kind::BFloat16] {
            for products in [Products::Generated, Products::Library] {
                let inputs: Vec<Tensor> = shapes.iter().map(|shape| draw(shape, kind)).collect();
                let (found, plan) = run(&fused(model, products), &inputs);
                let eager = &model(&inputs)[0];
                let (ours, theirs) = (error(&found, model, &inputs), error(eager, model, &inputs));
                // Eager may be near by chance: by one rounding of the result at most.
                let rounding = if kind == Kind::Float { 1e-6 } else { 4e-3 };
                assert!(ours <= 2.0 * theirs + rounding, "{at} {kind:?} {products}: {ours} {theirs}");
                assert_eq!(found.size(), eager.size());
                assert_eq!(found.stride(), eager.stride());
                if products == Products::Generated {
                    // Right operands of bf16 may be packed in VNNI-2 layout first.
                    let packed = if kind == Kind::BFloat16 { 1 } else { 0 };
                    assert!(
                        (kernels..=kernels + packed).contains(&plan.kernels_fused),
                        "{at} {kind:?}\n{plan}"
                    );
                    assert_eq!(plan.extern_ops, calls, "{at} {kind:?}\n{plan}");
                }
            }
        }
    }
}

/// What nothing reads of a product is not computed.
#[test]
fn the_rows_of_a_product_that_are_read_are_computed_alone() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let weight = Tensor::randn([97, 64], (Kind::Float, Device::Cpu));
    let bias = Tensor::randn([97], (Kind::Float, Device::Cpu));
    for products in [Products::Generated, Products::Library] {
        let (weight, bias) = (weight.shallow_clone(), bias.shallow_clone());
        let model =
            move |x: &[Tensor]| vec![x[0].linear(&weight, Some(&bias)).select(1, -1).softmax(-1, None)];
        let fused = tilefuse::fuse_with(model, Options { products, ..Options::default() });
        for _ in 0..2 {
            let x = [Tensor::randn([2, 17, 64], (Kind::Float, Device::Cpu))];
            let (ours, eager) = (fused.call(&x).unwrap(), fused.model()(&x));
            assert!(ours[0].allclose(&eager[0], 1e-5, 1e-5, false));
        }
        let x = [Tensor::randn([2, 17, 64], (Kind::Float, Device::Cpu))];
        let plan = fused.explain_with(&x, |m, x| m(x)).unwrap();
        // 2 rows of 97 elements, and softmax's.
        assert!(plan.peak_bytes_fused < 4 * 2 * 97 * 4, "{}", plan.text(false));
    }
}
