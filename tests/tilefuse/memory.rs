//! How much memory a call holds, beside eager.

use tch::{Device, Kind, Tensor};
use tilefuse::torch::cuda_memory;
use tilefuse_models::{ZooEntry, zoo};

use crate::common::{F32, device, is_alone, on_cpu, setup, skipped};

/// Beyond eager's peak: parts of sums over a whole tensor, for which a reduction has two kernels; each thread, or multiprocessor, has some.
fn parts() -> u64 {
    if !on_cpu() {
        return 256 << 10;
    }
    (16 << 10) + (8 << 10) * u64::from(tch::get_num_threads().unsigned_abs())
}

/// Those of the zoo that take less than seconds, and one of each kind of large ones.
fn measured() -> impl Iterator<Item = &'static ZooEntry> {
    let large = ["mlp8x1024", "resnet50", "bert", "vision:densenet121", "vision:squeezenet1_0"];
    let small = |name: &str| name.ends_with("-tiny") || name.starts_with("kernel:");
    zoo().iter().filter(move |entry| small(entry.name) || large.contains(&entry.name))
}

#[test]
fn plans_of_the_zoo_hold_no_more_than_eager() {
    setup();
    let _no_grad = tch::no_grad_guard();
    // What libtorch's cross entropy takes inside of the call on a GPU is not counted.
    let counted = |name: &str| on_cpu() || name != "kernel:cross_entropy";
    for entry in measured().filter(|entry| counted(entry.name)) {
        let vs = tch::nn::VarStore::new(device());
        let model = entry.instantiate(&vs);
        let fused = tilefuse::fuse(model);
        let inputs: Vec<Tensor> =
            entry.inputs().iter().map(|spec| spec.sample(Kind::Float, device())).collect();
        let plan = fused.explain_with(&inputs, |m, x| m.forward(x)).unwrap();
        let (ours, eager) = (plan.peak_bytes_fused, plan.peak_bytes_eager);
        let parts = parts();
        assert!(ours <= eager + parts, "{}: {ours} bytes, {eager} eager", entry.name);
    }
}

const NONE: Option<&Tensor> = None;

/// `[batch, rows, heads * width]` as `[batch * heads, rows, width]`.
fn heads(x: &Tensor, heads: i64) -> Tensor {
    let (batch, rows, width) = x.size3().unwrap();
    let apart = x.view([batch, rows, heads, width / heads]).permute([0, 2, 1, 3]);
    apart.reshape([batch * heads, rows, width / heads])
}

/// Attention of DeBERTa-v2, of an input, three weights and embeddings of distances: of all products with these, those of each
/// query's and key's distance are picked.
fn disentangled(x: &[Tensor]) -> Vec<Tensor> {
    let (rows, span) = (x[0].size()[1], x[4].size()[1] / 2);
    let project = |x: &Tensor, weight: &Tensor| heads(&x.linear(weight, NONE), 4);
    let [q, k, v] = [1, 2, 3].map(|n| project(&x[0], &x[n]));
    let scores = q.bmm(&k.transpose(1, 2)) / 5.0;
    let at = Tensor::arange(rows, (Kind::Int64, device()));
    let distance = at.unsqueeze(1) - at.unsqueeze(0);
    let places = |distance: Tensor| {
        let places: Tensor = distance + span;
        places.clamp(0, 2 * span - 1).unsqueeze(0).expand([q.size()[0], rows, rows], false)
    };
    let all = |weight: &Tensor| project(&x[4], weight).repeat([x[0].size()[0], 1, 1]);
    let to_place = q.bmm(&all(&x[2]).transpose(1, 2));
    let scores = scores + to_place.gather(2, &places(distance.shallow_clone()), false) / 5.0;
    let from_place = k.bmm(&all(&x[1]).transpose(1, 2));
    let scores = scores + from_place.gather(2, &places(-distance), false).transpose(1, 2) / 5.0;
    vec![scores.softmax(-1, None).bmm(&v)]
}

/// A layer of GPT-NeoX, of an input and four weights: one product for queries, keys and values, of which a quarter is turned by
/// the position, and the perceptron beside attention.
fn parallel_layer(x: &[Tensor]) -> Vec<Tensor> {
    let (batch, rows, width) = x[0].size3().unwrap();
    let (heads, each) = (4, width / 4);
    let norm = || x[0].layer_norm([width], NONE, NONE, 1e-5, false);
    let qkv = norm().linear(&x[1], NONE).view([batch, rows, heads, 3 * each]).transpose(1, 2).chunk(3, -1);
    let turned = each / 4;
    let angle = Tensor::arange(rows, *F32).unsqueeze(1) * Tensor::arange(turned / 2, *F32).exp().reciprocal();
    let angle = Tensor::cat(&[&angle, &angle], -1);
    let (cos, sin) = (angle.cos().to_kind(x[0].kind()), angle.sin().to_kind(x[0].kind()));
    let rotary = |t: &Tensor| {
        let (some, rest) = (t.narrow(3, 0, turned), t.narrow(3, turned, each - turned));
        let half = turned / 2;
        let other = Tensor::cat(&[-some.narrow(3, half, half), some.narrow(3, 0, half)], -1);
        Tensor::cat(&[some * &cos + other * &sin, rest], -1)
    };
    let (q, k) = (rotary(&qkv[0]), rotary(&qkv[1]));
    let y = Tensor::scaled_dot_product_attention(&q, &k, &qkv[2], NONE, 0.0, true, None, false);
    let y = y.transpose(1, 2).reshape([batch, rows, width]).linear(&x[2], NONE);
    let wide = norm().linear(&x[3], NONE).gelu("none").linear(&x[4], NONE);
    vec![wide + y + &x[0]]
}

type Model = fn(&[Tensor]) -> Vec<Tensor>;

/// What models exported from elsewhere do, and inputs of so many rows.
fn other_models(rows: i64, kind: Kind) -> [(&'static str, Model, Vec<Tensor>); 2] {
    let draw = |shape: &[i64]| Tensor::randn(shape, *F32) * (0.3 / (shape[shape.len() - 1] as f64).sqrt());
    let square = || draw(&[128, 128]);
    let x = || Tensor::randn([2, rows, 128], *F32);
    let places = Tensor::randn([1, 512, 128], *F32);
    let cases: [(&str, Model, Vec<Tensor>); 2] = [
        ("disentangled", disentangled, vec![x(), square(), square(), square(), places]),
        (
            "parallel",
            parallel_layer,
            vec![x(), draw(&[384, 128]), square(), draw(&[512, 128]), draw(&[128, 512])],
        ),
    ];
    cases.map(|(name, model, inputs)| (name, model, inputs.iter().map(|t| t.to_kind(kind)).collect()))
}

/// The plan holds no more than eager, and computes the same.
#[test]
fn plans_of_other_models_hold_no_more_than_eager() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = crate::common::THREADS.read();
    for (rows, kind) in [(64, Kind::Float), (100, Kind::Float), (256, Kind::Float), (256, Kind::BFloat16)] {
        for (name, model, inputs) in other_models(rows, kind) {
            let fused = tilefuse::fuse(model);
            let plan = fused.explain_with(&inputs, |m, x| m(x)).unwrap();
            let (ours, eager) = (plan.peak_bytes_fused, plan.peak_bytes_eager);
            // What launches of several kernels may hold always.
            let most = (eager + parts()).max(1 << 20);
            assert!(ours <= most, "{name} of {rows} in {kind:?}: {ours} bytes, {eager} eager: {plan}");
            let (ours, eager) = (fused.call(&inputs).unwrap(), model(&inputs));
            assert!(near(&ours[0], &eager[0]), "{name} of {rows} in {kind:?}");
        }
    }
}

/// Whether two tensors are near each other for their type.
fn near(a: &Tensor, b: &Tensor) -> bool {
    let (relative, absolute) = if b.kind() == Kind::Float { (1e-4, 1e-4) } else { (5e-2, 5e-2) };
    a.kind() == b.kind()
        && a.to_kind(Kind::Float).allclose(&b.to_kind(Kind::Float), relative, absolute, false)
}

/// The GPU that the tests run on; says so where they run on the CPU.
fn gpu() -> Option<i8> {
    let Device::Cuda(ordinal) = device() else {
        skipped("the allocator of a GPU is asked");
        return None;
    };
    Some(ordinal as i8)
}

/// The most that libtorch's allocator has given out in a call, with its results, beyond `held`.
fn peak_of_call(gpu: i8, held: i64, call: impl FnOnce() -> Vec<Tensor>) -> i64 {
    cuda_memory(gpu, true).unwrap();
    let results = call();
    let peak = cuda_memory(gpu, false).unwrap().peak - held;
    drop(results);
    peak
}

/// By what the allocator itself counts, which knows of what libtorch's calls take inside, too.
#[test]
fn calls_on_a_gpu_take_no_more_of_the_allocator_than_eager() {
    let Some(gpu) = gpu() else { return };
    if !is_alone("memory::calls_on_a_gpu_take_no_more_of_the_allocator_than_eager") {
        return;
    }
    setup();
    let _no_grad = tch::no_grad_guard();
    let cases = [(4, Kind::Float), (8, Kind::Float), (4, Kind::BFloat16), (8, Kind::BFloat16)];
    for (times, kind) in cases {
        for (name, model, mut inputs) in other_models(256, kind) {
            inputs[0] = inputs[0].repeat([times, 1, 1]);
            // What libraries keep from their first call on.
            let eager_result = model(&inputs);
            let held = cuda_memory(gpu, false).unwrap().allocated;
            let eager = (0..2).map(|_| peak_of_call(gpu, held, || model(&inputs))).max().unwrap();
            let options = tilefuse::Options { cuda_graphs: tilefuse::CudaGraphs::Off, ..Default::default() };
            let fused = tilefuse::fuse_with(model, options);
            drop(fused.call(&inputs).unwrap());
            // What the plan keeps between calls counts.
            let ours =
                (0..3).map(|_| peak_of_call(gpu, held, || fused.call(&inputs).unwrap())).max().unwrap();
            println!("{name}, {times} times, in {kind:?}: {ours} bytes, {eager} eager");
            assert!(
                ours <= (eager + parts() as i64).max(1 << 20),
                "{name}, {times} times, in {kind:?}: {ours}, {eager}"
            );
            assert!(
                near(&fused.call(&inputs).unwrap()[0], &eager_result[0]),
                "{name}, {times} times, in {kind:?}"
            );
            assert_eq!(fused.stats().fused_calls, 4, "{name}: {:?}", fused.stats());
        }
    }
}

/// Plans, their workspaces and the pools of their CUDA graphs.
#[test]
fn clear_gives_memory_of_a_gpu_back() {
    let Some(gpu) = gpu() else { return };
    if !is_alone("memory::clear_gives_memory_of_a_gpu_back") {
        return;
    }
    setup();
    let _no_grad = tch::no_grad_guard();
    for cuda_graphs in [tilefuse::CudaGraphs::Off, tilefuse::CudaGraphs::Always] {
        let options = tilefuse::Options { max_signatures: 8, cuda_graphs, ..Default::default() };
        let fused = tilefuse::fuse_with(
            |x: &[Tensor]| vec![x[0].softmax(-1, Kind::Float).cumsum(0, None) * &x[0]],
            options,
        );
        let call = |length: i64| {
            let x = [Tensor::randn([16 * length, 1 << 14], *F32)];
            // As often as makes a plan worth compiling: else others would run eager.
            (0..9).for_each(|_| drop(fused.call(&x).unwrap()));
        };
        // What libtorch keeps for itself comes with the first ones.
        (1..=2).for_each(call);
        fused.clear();
        let before = cuda_memory(gpu, false).unwrap();
        (3..=20).for_each(call);
        let used = cuda_memory(gpu, false).unwrap();
        fused.clear();
        let cleared = cuda_memory(gpu, false).unwrap();
        println!("{cuda_graphs:?}: {before:?}, {used:?} after 18 lengths, {cleared:?} after clear");
        assert!(used.reserved > before.reserved + (16 << 20), "{cuda_graphs:?}: {before:?}, {used:?}");
        // A segment of small tensors.
        let slack = 2 << 20;
        assert!(cleared.allocated <= before.allocated + slack, "{cuda_graphs:?}: {before:?}, {cleared:?}");
        assert!(cleared.reserved <= before.reserved + slack, "{cuda_graphs:?}: {before:?}, {cleared:?}");
        assert!(fused.stats().evictions > 0, "{:?}", fused.stats());
        call(3);
        assert!(fused.stats().eager_calls.is_empty(), "{:?}", fused.stats());
    }
}

#[test]
fn a_workspace_is_for_parts_of_columns() {
    setup();
    if !on_cpu() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let x = [Tensor::rand([2048, 1024], *F32)];
    let sums = |x: &[Tensor]| {
        [1i64, 0].map(|dim| x[0].sum_dim_intlist(dim, false, None::<Kind>)).into_iter().collect::<Vec<_>>()
    };
    let exact = sums(&[x[0].to_kind(Kind::Double)]);
    let mut peaks = Vec::new();
    for workspace_bytes in [0, 1 << 20] {
        let fused = tilefuse::fuse_with(sums, tilefuse::Options { workspace_bytes, ..Default::default() });
        let plan = fused.explain_with(&x, |sums, x| sums(x)).unwrap();
        assert!(plan.peak_bytes_fused <= plan.peak_bytes_eager + parts() + workspace_bytes, "{plan}");
        peaks.push(plan.peak_bytes_fused);
        for (ours, exact) in fused.call(&x).unwrap().iter().zip(&exact) {
            assert!(ours.to_kind(Kind::Double).allclose(exact, 1e-5, 1e-3, false));
        }
    }
    assert!(peaks[0] < peaks[1], "{peaks:?}");
}

#[test]
fn what_kernels_write_over_is_theirs() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let options = *F32;
    // The product is read twice, by a kernel that writes two results, and its memory is returned as the last one.
    let fused = tilefuse::fuse(|x: &[Tensor]| {
        let product = x[0].matmul(&x[1]);
        let sum = &product + &x[0];
        let normed = sum.layer_norm([256], None::<Tensor>, None::<Tensor>, 1e-5, false);
        vec![sum, normed.matmul(&x[1]).tanh() + 1.0]
    });
    let inputs = [Tensor::randn([64, 256], options), Tensor::randn([256, 256], options) / 16.0];
    let kept: Vec<Tensor> = inputs.iter().map(Tensor::copy).collect();
    let eager = fused.model()(&inputs);
    let mut earlier: Vec<Vec<Tensor>> = Vec::new();
    for _ in 0..4 {
        earlier.push(fused.call(&inputs).unwrap());
    }
    assert_eq!(fused.stats().fused_calls, 3);
    for outputs in &earlier {
        for (ours, theirs) in outputs.iter().zip(&eager) {
            // libtorch's products differ by 5e-5 from call to call on some processors.
            assert!(ours.allclose(theirs, 1e-4, 1e-3, false));
        }
    }
    assert!(inputs.iter().zip(&kept).all(|(now, then)| now.equal(then)));
}

#[test]
fn memory_of_large_results_serves_the_next_call() {
    setup();
    if !on_cpu() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(|x: &[Tensor]| vec![&x[0] * 2.0 + 1.0]);
    // 40 MiB.
    let x = Tensor::rand([10 << 20], *F32);
    let expected = fused.call(std::slice::from_ref(&x)).unwrap().remove(0);
    let call = || fused.call(std::slice::from_ref(&x)).unwrap().remove(0);
    let first = call();
    let address = first.data_ptr();
    // What is held is nobody else's.
    let second = call();
    assert_ne!(second.data_ptr(), address);
    assert!(first.equal(&expected) && second.equal(&expected));
    // Whoever lets go of it, on whichever thread.
    std::thread::spawn(move || drop(first)).join().unwrap();
    let third = call();
    assert!(third.equal(&expected) && second.equal(&expected));
    // It is libtorch's as any other memory is: a view keeps it, and it can grow.
    let view = third.narrow(0, 5, 7);
    let address = third.data_ptr();
    drop(third);
    assert_ne!(call().data_ptr(), address);
    assert!(view.equal(&expected.narrow(0, 5, 7)));
    let mut grown = second;
    let _ = grown.resize_([11 << 20]);
    assert!(grown.narrow(0, 0, 10 << 20).equal(&expected));
    // What is in use is not released.
    tilefuse::release_memory();
    assert!(grown.narrow(0, 0, 10 << 20).equal(&expected) && view.equal(&expected.narrow(0, 5, 7)));
}

#[test]
fn large_results_are_written_past_the_caches() {
    setup();
    if !on_cpu() {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    for (kind, rows, cols) in
        [(Kind::Float, 8192, 1024), (Kind::BFloat16, 16384, 1024), (Kind::Float, 8400, 1000)]
    {
        let x = [Tensor::rand([rows, cols], *F32).to_kind(kind)];
        let both = |x: &[Tensor]| vec![x[0].relu() * 2.0, x[0].softmax(-1, None::<Kind>)];
        let fused = tilefuse::fuse(both);
        let plan = fused.explain_with(&x, |both, x| both(x)).unwrap();
        assert!(plan.text(false).contains("by non-temporal stores"), "{plan}");
        // The second call runs the plan, and the third finds what the second gave back.
        for call in 0..3 {
            for (ours, eager) in fused.call(&x).unwrap().iter().zip(both(&x)) {
                assert!(ours.allclose(&eager, 1e-2, 1e-6, false), "{kind:?} {rows}x{cols}, call {call}");
            }
        }
    }
}

/// Bytes of this process that are in memory.
#[cfg(target_os = "linux")]
fn resident() -> i64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap() * 4096
}

/// Many lengths leave no more behind than the signatures that are kept, and [`tilefuse::Fused::clear`] gives that back.
#[cfg(target_os = "linux")]
#[test]
fn many_signatures_and_clear_give_memory_back() {
    if !crate::common::is_alone("memory::many_signatures_and_clear_give_memory_back") {
        return;
    }
    setup();
    let _no_grad = tch::no_grad_guard();
    let options = tilefuse::Options { max_signatures: 8, ..Default::default() };
    let fused = tilefuse::fuse_with(
        |x: &[Tensor]| vec![x[0].softmax(-1, Kind::Float).cumsum(0, None) * &x[0]],
        options,
    );
    let call = |length: i64| {
        let x = [Tensor::randn([length, 1 << 14], *F32)];
        // As often as makes a plan worth compiling: else others would run eager.
        (0..9).for_each(|_| drop(fused.call(&x).unwrap()));
    };
    // What libtorch and LLVM keep for themselves comes with the first ones.
    (1..=16).for_each(call);
    fused.clear();
    let before = resident();
    let after = |lengths: std::ops::RangeInclusive<i64>| {
        lengths.for_each(call);
        (resident() - before) >> 20
    };
    let (few, many) = (after(17..=32), after(33..=64));
    fused.clear();
    let cleared = (resident() - before) >> 20;
    println!("{few} MB after 16 lengths, {many} MB after 48, {cleared} MB after clear");
    assert!(many < few + 48 && cleared < 24, "{few} MB, {many} MB, {cleared} MB");
    assert_eq!(fused.stats().evictions, 8 + 40);
}
