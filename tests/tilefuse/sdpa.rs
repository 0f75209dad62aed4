//! Attention on the host as a kernel of ours, beside libtorch's operator.

use tch::{Device, Kind, Tensor};
use tilefuse::{Options, Products};

use crate::common::{NOT_FINITE, THREADS, setup};

type Attend = fn(&[Tensor]) -> Tensor;

fn wrapped(attend: Attend, products: Products) -> tilefuse::Fused<impl Fn(&[Tensor]) -> Vec<Tensor>> {
    tilefuse::fuse_with(move |x: &[Tensor]| vec![attend(x)], Options { products, ..Options::default() })
}

/// What the plan gives for these inputs, and its description.
fn run(attend: Attend, inputs: &[Tensor], products: Products) -> (Tensor, tilefuse::Explanation) {
    let fused = wrapped(attend, products);
    fused.call(inputs).unwrap();
    let found = fused.call(inputs).unwrap().remove(0);
    assert_eq!(fused.stats().fused_calls, 1, "{:?}", fused.stats());
    (found, fused.explain_with(inputs, |model, inputs| model(inputs)).unwrap())
}

fn draw(shape: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind)
}

/// The largest difference from a run in `f64`.
fn error(found: &Tensor, attend: Attend, inputs: &[Tensor]) -> f64 {
    let wide = |t: &Tensor| if t.is_floating_point() { t.to_kind(Kind::Double) } else { t.shallow_clone() };
    let wide: Vec<Tensor> = inputs.iter().map(wide).collect();
    (found.to_kind(Kind::Double) - attend(&wide)).abs().max().double_value(&[])
}

/// Compares the kernel with eager; both are compared with a run in `f64`. Eager in `f64` is that run, whose roundings the
/// kernel is allowed as well: those of scores that are sums of 129 products, and of exponentials of these.
fn check(attend: Attend, inputs: &[Tensor]) {
    let (found, plan) = run(attend, inputs, Products::Generated);
    assert_eq!(plan.extern_ops, 0, "{plan}");
    assert!(plan.kernels_fused > 0, "{plan}");
    let eager = attend(inputs);
    assert_eq!((found.size(), found.stride()), (eager.size(), eager.stride()));
    let (ours, theirs) = (error(&found, attend, inputs), error(&eager, attend, inputs));
    let least = match found.kind() {
        Kind::Double => 1e-13,
        Kind::Float => 1e-6,
        _ => 2e-3,
    };
    assert!(ours <= 2.0 * theirs + least, "{ours} beside {theirs}: {:?}", found.size());
}

fn plain(x: &[Tensor]) -> Tensor {
    Tensor::scaled_dot_product_attention(&x[0], &x[1], &x[2], None::<&Tensor>, 0.0, false, None, false)
}

fn causal(x: &[Tensor]) -> Tensor {
    Tensor::scaled_dot_product_attention(&x[0], &x[1], &x[2], None::<&Tensor>, 0.0, true, 0.2, false)
}

fn masked(x: &[Tensor]) -> Tensor {
    Tensor::scaled_dot_product_attention(&x[0], &x[1], &x[2], Some(&x[3]), 0.0, false, None, false)
}

fn shared(x: &[Tensor]) -> Tensor {
    Tensor::scaled_dot_product_attention(&x[0], &x[1], &x[2], None::<&Tensor>, 0.0, false, None, true)
}

/// Queries, keys and values of two members with three heads.
fn heads(queries: i64, keys: i64, width: i64, kind: Kind) -> Vec<Tensor> {
    [queries, keys, keys].into_iter().map(|rows| draw(&[2, 3, rows, width], kind)).collect()
}

#[test]
fn attention_is_one_kernel_and_no_call() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    for kind in [Kind::Float, Kind::Double, Kind::BFloat16, Kind::Half] {
        let shapes = [(1, 37, 16), (9, 9, 8), (33, 70, 40), (128, 128, 64), (197, 197, 33), (90, 150, 129)];
        for (queries, keys, width) in shapes {
            let inputs = heads(queries, keys, width, kind);
            check(plain, &inputs);
            check(causal, &inputs);
        }
    }
}

#[test]
fn threads_do_not_change_the_bits() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.write();
    let before = tch::get_num_threads();
    let wide = [(130, 130, 128, Kind::BFloat16), (97, 140, 200, Kind::BFloat16)];
    for (queries, keys, width, kind) in
        [(130, 130, 16, Kind::Float), (1, 300, 16, Kind::Float)].into_iter().chain(wide)
    {
        let inputs = heads(queries, keys, width, kind);
        let with = |threads: i32| {
            tch::set_num_threads(threads);
            (run(plain, &inputs, Products::Generated).0, run(causal, &inputs, Products::Generated).0)
        };
        let one = with(1);
        for threads in [2, 3, 8] {
            let more = with(threads);
            assert!(one.0.equal(&more.0) && one.1.equal(&more.1), "{threads}");
        }
    }
    tch::set_num_threads(before);
}

#[test]
fn tensors_are_read_where_they_lie() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let packed: Attend = |x| {
        let parts = x[0].view([2, 20, 3, 4, 16]).permute([2, 0, 3, 1, 4]).unbind(0);
        plain(&parts).transpose(1, 2).reshape([2, 20, 64])
    };
    check(packed, &[draw(&[2, 20, 192], Kind::Float)]);
    let few = || draw(&[2, 2, 11, 8], Kind::Float);
    let inputs = [draw(&[2, 6, 9, 8], Kind::Float), few(), few()];
    check(shared, &inputs);
    let repeated: Attend = |x| {
        let all = |t: &Tensor| t.expand([2, 6, 11, 8], false);
        plain(&[x[0].shallow_clone(), all(&x[1]), all(&x[2])])
    };
    let one = || draw(&[2, 1, 11, 8], Kind::Float);
    check(repeated, &[draw(&[2, 6, 9, 8], Kind::Float), one(), one()]);
    let part: Attend = |x| plain(&[x[0].slice(2, 1, 9, 2), x[1].slice(3, 4, 12, 1), x[1].slice(3, 8, 16, 1)]);
    check(part, &[draw(&[2, 3, 9, 8], Kind::Float), draw(&[2, 3, 20, 16], Kind::Float)]);
    let matrices = [draw(&[5, 8], Kind::Float), draw(&[7, 8], Kind::Float), draw(&[7, 12], Kind::Float)];
    check(plain, &matrices);
}

/// `[batch, heads, keys, width]` with each head `times` times in a row, as models of grouped heads write it.
fn repeat_kv(xs: &Tensor, times: i64) -> Tensor {
    let size = xs.size();
    let all = [size[0], size[1], times, size[2], size[3]];
    xs.unsqueeze(2).expand(all, false).reshape([size[0], size[1] * times, size[2], size[3]])
}

/// Keys and values that are repeated for heads which share them are one kernel's operands before they are.
#[test]
fn heads_that_are_repeated_are_read_where_they_lie() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let called: Attend = |x| plain(&[x[0].shallow_clone(), repeat_kv(&x[1], 4), repeat_kv(&x[2], 4)]);
    let written: Attend = |x| {
        let scores = x[0].matmul(&repeat_kv(&x[1], 4).transpose(2, 3)) * 0.25;
        scores.softmax(-1, None).matmul(&repeat_kv(&x[2], 4))
    };
    // Of a cache that is `[batch, keys, heads, width]`.
    let turned: Attend = |x| {
        let [k, v] = [1, 2].map(|n| repeat_kv(&x[n].transpose(1, 2), 4));
        plain(&[x[0].shallow_clone(), k, v])
    };
    for kind in [Kind::Float, Kind::BFloat16] {
        for (queries, keys) in [(1, 300), (3, 11), (21, 40)] {
            let rows = || draw(&[2, 2, keys, 16], kind);
            let inputs = [draw(&[2, 8, queries, 16], kind), rows(), rows()];
            let caches = || draw(&[2, keys, 2, 16], kind);
            let others = [draw(&[2, 8, queries, 16], kind), caches(), caches()];
            for (attend, inputs) in [(called, &inputs), (written, &inputs), (turned, &others)] {
                let (found, plan) = run(attend, inputs, Products::Generated);
                assert_eq!((plan.kernels_fused, plan.extern_ops), (1, 0), "{plan}");
                let (ours, theirs) = (error(&found, attend, inputs), error(&attend(inputs), attend, inputs));
                let least = if kind == Kind::Float { 1e-6 } else { 2e-3 };
                assert!(ours <= 2.0 * theirs + least, "{ours} beside {theirs} of {queries}");
            }
        }
    }
    // Where libtorch computes it, its keys are repeated.
    let rows = || draw(&[2, 2, 9, 16], Kind::Float);
    let inputs = [draw(&[2, 8, 9, 16], Kind::Float), rows(), rows()];
    let (found, plan) = run(called, &inputs, Products::Library);
    assert_eq!(plan.extern_ops, 1, "{plan}");
    assert!(error(&found, called, &inputs) < 1e-5);
}

/// Of `bf16`, keys and values of wide heads are packed in pairs where the processor has instructions for these.
#[test]
fn wide_heads_are_laid_out_in_pairs() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let rows = || draw(&[2, 3, 200, 128], Kind::BFloat16);
    let inputs = [draw(&[2, 6, 200, 128], Kind::BFloat16), rows(), rows()];
    check(shared, &inputs);
    let (_, plan) = run(shared, &inputs, Products::Generated);
    assert!([1, 3].contains(&plan.kernels_fused), "{plan}");
    let narrow = heads(200, 200, 64, Kind::BFloat16);
    assert_eq!(run(plain, &narrow, Products::Generated).1.kernels_fused, 1);
}

/// The same bits on any number of threads where a few queries share keys, however few heads there are.
#[test]
fn threads_do_not_change_the_bits_of_few_queries() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.write();
    let before = tch::get_num_threads();
    for (heads, few, queries, keys) in [(1, 1, 1, 1000), (3, 3, 1, 777), (8, 2, 1, 300), (2, 2, 3, 515)] {
        let rows = || draw(&[1, few, keys, 16], Kind::Float);
        let inputs = [draw(&[1, heads, queries, 16], Kind::Float), rows(), rows()];
        let all = [1, 2, 3, 8].map(|threads| {
            tch::set_num_threads(threads);
            run(shared, &inputs, Products::Generated).0
        });
        assert!(all.iter().all(|one| one.equal(&all[0])), "{heads} {queries}");
        assert!(error(&all[0], shared, &inputs) < 1e-5);
    }
    tch::set_num_threads(before);
}

/// Where there are few queries and heads, ranges of keys have instances of their own, whatever the number of threads is.
#[test]
fn ranges_of_keys_are_combined() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.write();
    let before = tch::get_num_threads();
    let cases = [
        (1, 1, 1, 3001),
        (4, 1, 1, 1500),
        (4, 4, 1, 8300),
        (6, 2, 1, 8300),
        (1, 1, 40, 8200),
        (2, 1, 9, 9000),
    ];
    for kind in [Kind::Float, Kind::Double, Kind::BFloat16] {
        for (heads, few, queries, keys) in cases {
            let rows = || draw(&[1, few, keys, 64], kind);
            let mut inputs = vec![draw(&[1, heads, queries, 64], kind), rows(), rows()];
            let all = [1, 2, 3, 8].map(|threads| {
                tch::set_num_threads(threads);
                let (found, plan) = run(shared, &inputs, Products::Generated);
                assert_eq!((plan.kernels_fused, plan.extern_ops), (2, 0), "{heads} {queries}: {plan}");
                found
            });
            assert!(all.iter().all(|one| one.equal(&all[0])), "{heads} {queries}");
            check(shared, &inputs);
            if heads != few {
                continue;
            }
            // The first ranges have no key that counts, and of some queries none has.
            let late = Tensor::arange(keys, (Kind::Int64, Device::Cpu)).ge(keys - 700);
            inputs.push(late.expand([queries, keys], false).contiguous());
            check(masked, &inputs);
            let _ = inputs[3].get(queries / 2).fill_(0);
            let (found, eager) = (run(masked, &inputs, Products::Generated).0, masked(&inputs));
            assert!(found.allclose(&eager, 1e-2, 1e-3, true), "{heads} {queries}");
            inputs[3] = Tensor::zeros([queries, keys], (kind, Device::Cpu)).masked_fill(&inputs[3], -1e30);
            check(masked, &inputs);
        }
    }
    tch::set_num_threads(before);
}

#[test]
fn masks_keep_their_meaning() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    for shape in [&[9, 70][..], &[2, 3, 9, 70], &[2, 1, 1, 70], &[1, 3, 9, 1]] {
        let mut inputs = heads(9, 70, 16, Kind::Float);
        inputs.push(draw(shape, Kind::Float));
        check(masked, &inputs);
        inputs[3] = inputs[3].ge(0.5);
        check(masked, &inputs);
    }
    for shape in [&[66, 140][..], &[2, 3, 66, 140], &[2, 1, 1, 140], &[1, 3, 66, 1]] {
        let mut inputs = heads(66, 140, 130, Kind::BFloat16);
        inputs.push(draw(shape, Kind::BFloat16));
        check(masked, &inputs);
        inputs[3] = inputs[3].ge(0.5);
        check(masked, &inputs);
    }
    // The lowest number excludes no key of a row that has no other.
    let mut inputs = heads(9, 9, 16, Kind::Float);
    inputs.push(Tensor::full([9, 9], f64::from(f32::MIN), (Kind::Float, Device::Cpu)).tril(-1));
    check(masked, &inputs);
    inputs[3] = Tensor::full([9, 9], f64::from(f32::MIN), (Kind::Float, Device::Cpu));
    check(masked, &inputs);
}

#[test]
fn rows_without_keys_and_what_is_not_finite_are_as_in_eager() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let same = |inputs: &[Tensor]| {
        let (found, plan) = run(masked, inputs, Products::Generated);
        assert_eq!(plan.extern_ops, 0, "{plan}");
        let eager = masked(inputs);
        assert!(found.isnan().equal(&eager.isnan()), "{found} {eager}");
        let tolerance = if found.kind() == Kind::Float { 1e-5 } else { 2e-2 };
        assert!(found.allclose(&eager, tolerance, tolerance, true), "{found} {eager}");
    };
    for (kind, [queries, keys, width]) in [(Kind::Float, [20, 33, 8]), (Kind::BFloat16, [80, 140, 128])] {
        let mut inputs = heads(queries, keys, width, kind);
        let closed = Tensor::ones([queries, keys], (Kind::Bool, Device::Cpu)).tril(-4);
        inputs.push(closed.shallow_clone());
        same(&inputs);
        inputs[3] =
            Tensor::zeros([queries, keys], (kind, Device::Cpu)).masked_fill(&closed, f64::NEG_INFINITY);
        same(&inputs);
        for value in [f64::NAN, f64::INFINITY] {
            let _ = inputs[0].get(0).get(1).get(7).get(3).fill_(value);
            same(&inputs);
        }
    }
}

/// NaN and infinity in a row of queries, keys, values or the mask, among them in what a mask excludes.
#[test]
fn rows_that_are_not_finite_are_as_in_eager() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let sizes = [
        (Kind::Float, [20, 33, 8]),
        (Kind::Float, [1, 300, 16]),
        (Kind::BFloat16, [80, 140, 128]),
        (Kind::BFloat16, [1, 300, 64]),
    ];
    let mut wrong = Vec::new();
    for (kind, [queries, keys, width]) in sizes {
        let open = Tensor::ones([queries, keys], (Kind::Bool, Device::Cpu)).tril(keys - 12);
        let number = Tensor::zeros([queries, keys], (kind, Device::Cpu));
        let number = number.masked_fill(&open.logical_not(), f64::NEG_INFINITY);
        for (form, mask) in [("bool", Some(open)), ("number", Some(number)), ("none", None), ("causal", None)]
        {
            if form == "causal" && queries == 1 {
                continue;
            }
            let attend: Attend = match form {
                "none" => plain,
                "causal" => causal,
                _ => masked,
            };
            for (place, value) in NOT_FINITE {
                let mut inputs = heads(queries, keys, width, kind);
                inputs.extend(mask.as_ref().map(Tensor::copy));
                match (place, form) {
                    (3, "number") => drop(inputs[3].get(0).fill_(value)),
                    (3, _) => continue,
                    _ => {
                        let last = inputs[place].size()[2] - 1;
                        let _ = inputs[place].get(0).get(1).get(last).fill_(value);
                    }
                }
                let (found, plan) = run(attend, &inputs, Products::Generated);
                assert_eq!(plan.extern_ops, 0, "{plan}");
                let eager = attend(&inputs);
                if (place, form) == (2, "causal") {
                    // No query sees the last key here: whether its value times 0 is added is up to eager's blocks.
                    continue;
                }
                let differ = found.isnan().ne_tensor(&eager.isnan()).sum(Kind::Int64).int64_value(&[]);
                if differ > 0 {
                    let (ours, theirs) = (found.isnan().sum(Kind::Int64), eager.isnan().sum(Kind::Int64));
                    wrong.push(format!("{kind:?} {queries}x{keys}x{width} {form} {value} in {place}: NaN {ours:?} for {theirs:?} of {}, {differ} differ", eager.numel()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Scores that are all -inf: libtorch's operator makes 0 of the query's result, a softmax that a model writes out NaN.
#[test]
fn queries_without_any_finite_score_are_as_in_eager() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let written: Attend = |x| {
        let scores = x[0].matmul(&x[1].transpose(-2, -1)) * 0.25;
        scores.softmax(-1, None).matmul(&x[2])
    };
    let sizes = [
        (Kind::Float, [20, 33, 8]),
        (Kind::Float, [1, 300, 16]),
        (Kind::Float, [1, 1, 4]),
        (Kind::Double, [9, 70, 8]),
        (Kind::BFloat16, [80, 140, 128]),
    ];
    for (kind, [queries, keys, width]) in sizes {
        for closed in [keys, (keys / 2).max(1)] {
            let inputs = heads(queries, keys, width, kind);
            let _ = inputs[0].narrow(-1, width - 1, 1).fill_(1.0);
            let _ = inputs[1].narrow(-1, width - 1, 1).narrow(-2, 0, closed).fill_(f64::NEG_INFINITY);
            for attend in [written, plain] {
                let (found, plan) = run(attend, &inputs, Products::Generated);
                assert_eq!(plan.extern_ops, 0, "{plan}");
                let eager = attend(&inputs);
                let of = format!("{kind:?} {queries}x{keys}x{width}, {closed} closed: {found} for {eager}");
                assert!(found.isnan() == eager.isnan(), "{of}");
                // Eager rounds scores to 8 bits.
                let near = if kind == Kind::BFloat16 { 0.2 } else { 1e-4 };
                assert!(found.allclose(&eager, near, near, true), "{of}");
            }
        }
    }
}

#[test]
fn written_out_attention_is_the_same_kernel() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let written: Attend = |x| {
        let scores = x[0].matmul(&x[1].transpose(-2, -1)) * 0.25;
        let future = Tensor::ones([33, 33], (Kind::Bool, Device::Cpu)).triu(1);
        scores.masked_fill(&future, f64::NEG_INFINITY).softmax(-1, None).matmul(&x[2])
    };
    let inputs = heads(33, 33, 16, Kind::Float);
    let (found, plan) = run(written, &inputs, Products::Generated);
    assert_eq!((plan.kernels_fused, plan.extern_ops), (1, 0), "{plan}");
    assert!(error(&found, written, &inputs) < 1e-5);
}

/// What is computed of transposed results is stored in its own order: heads next to each other, with what is computed beside.
#[test]
fn heads_are_joined_where_they_are_stored() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    fn heads_of(x: &[Tensor]) -> Tensor {
        let scores = x[0].matmul(&x[1].transpose(-2, -1)) * 0.25;
        scores.softmax(-1, None).matmul(&x[2]).transpose(1, 2)
    }
    let joined: Attend = |x| {
        let size = x[0].size();
        heads_of(x).reshape([size[0], size[2], size[1] * size[3]])
    };
    let gated: Attend = |x| (heads_of(x) * &x[3]).tanh().contiguous();
    for kind in [Kind::Float, Kind::BFloat16] {
        for (queries, keys, width) in [(33, 33, 16), (1, 300, 16), (9, 20, 5), (130, 140, 64)] {
            let mut inputs = heads(queries, keys, width, kind);
            inputs.push(draw(&[2, queries, 3, width], kind));
            for attend in [joined, gated] {
                let (found, plan) = run(attend, &inputs, Products::Generated);
                assert_eq!(plan.extern_ops, 0, "{plan}");
                // Parts of keys are combined by a second kernel, and packed keys are made by one.
                let most = if kind == Kind::Float && queries > 1 { 1 } else { 2 };
                assert!(plan.kernels_fused <= most, "{plan}");
                let eager = attend(&inputs);
                assert_eq!((found.size(), found.stride()), (eager.size(), eager.stride()));
                let (ours, theirs) = (error(&found, attend, &inputs), error(&eager, attend, &inputs));
                let least = if kind == Kind::Float { 1e-5 } else { 1e-2 };
                assert!(ours <= 2.0 * theirs + least, "{ours} beside {theirs}: {queries} x {keys} x {width}");
            }
        }
    }
}

#[test]
fn dropout_stays_a_call_and_the_plan_gives_both_times() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let inputs = heads(33, 33, 16, Kind::Float);
    let (found, plan) = run(plain, &inputs, Products::Measured);
    assert!(error(&found, plain, &inputs) < 1e-5);
    let plan = plan.text(false);
    assert!(plan.contains("us generated") && plan.contains("us in libtorch"), "{plan}");
    let dropped: Attend = |x| {
        Tensor::scaled_dot_product_attention(&x[0], &x[1], &x[2], None::<&Tensor>, 0.5, false, None, false)
    };
    let fused = wrapped(dropped, Products::Generated);
    fused.call(&inputs).unwrap();
    let plan = fused.explain_with(&inputs, |model, inputs| model(inputs)).unwrap();
    assert!(plan.extern_ops > 0 || plan.kernels_fused == 0, "{plan}");
}
