//! Operators of one's own: eager, refused, and in fused models.

use tch::{Kind, Tensor};
use tilefuse::{Error, Operator, grid};
use tilefuse_codegen::ptx::{PtxOptions, Target, compile_ptx};

use crate::common::{F32, on_cpu, setup};

#[tilefuse::kernel]
fn swiglu<T: Float>(gate: Ptr<T>, up: Ptr<T>, y: Ptr<T>, n: i64, #[constant] BLOCK: usize) {
    let at = program_id(0) * BLOCK + range(0, BLOCK);
    let inside = at.lt(n);
    let g = load(gate + at, inside, 0).cast::<f32>();
    let u = load(up + at, inside, 0).cast::<f32>();
    store(y + at, (g / (1.0 + exp(-g)) * u).cast(), inside);
}

fn swiglu_operator(name: &str) -> Operator {
    setup();
    let rule = |inputs: &[tilefuse::TensorSpec]| match inputs {
        [gate, up] if gate == up => Ok(vec![gate.clone()]),
        _ => Err(String::from("gate and up must be alike")),
    };
    Operator::new(name, rule, |inputs, outputs| {
        let n = outputs[0].numel() as i64;
        swiglu.launch(grid![(n + 255) / 256], (&inputs[0], &inputs[1], &outputs[0], n, 256))
    })
    .unwrap()
}

fn close(a: &Tensor, b: &Tensor) -> bool {
    a.size() == b.size() && a.kind() == b.kind() && a.allclose(b, 1e-5, 1e-6, false)
}

#[test]
fn eager_calls_allocate_and_launch() {
    let op = swiglu_operator("test::eager");
    for shape in [&[7i64, 33][..], &[1], &[4, 0], &[2, 3, 256]] {
        let (g, u) = (Tensor::randn(shape, *F32), Tensor::randn(shape, *F32));
        assert!(close(&op.call(&[&g, &u]).unwrap(), &(g.silu() * &u)));
    }
    let (g, u) = (Tensor::randn([5, 6], *F32).tr(), Tensor::randn([6, 5], *F32));
    assert!(close(&op.call(&[&g, &u]).unwrap(), &(g.silu() * &u)));
}

#[test]
fn misuse_is_an_error() {
    let op = swiglu_operator("test::misuse");
    let (x, y) = (Tensor::randn([4], *F32), Tensor::randn([5], *F32));
    let said = |r: Result<Tensor, Error>| r.unwrap_err().to_string();
    assert_eq!(said(op.call(&[&x, &y])), "operator test::misuse: gate and up must be alike");
    assert_eq!(said(op.call(&[])), "operator test::misuse: there are no inputs");
    let learned = Tensor::randn([4], *F32).set_requires_grad(true);
    assert!(said(op.call(&[&learned, &x])).contains("requires a gradient"));
    assert!(close(&tch::no_grad(|| op.call(&[&learned, &x])).unwrap(), &(learned.silu() * &x).detach()));
    for name in ["swiglu", "aten::swiglu", "a b::c", "my::", "my::f(Tensor x) -> ()"] {
        assert!(Operator::new(name, |i| Ok(i.to_vec()), |_, _| Ok(())).is_err(), "{name}");
    }
    assert!(Operator::new("test::misuse", |i| Ok(i.to_vec()), |_, _| Ok(())).is_err());
}

#[test]
fn a_fused_model_may_call_operators() {
    crate::common::setup();
    let op = swiglu_operator("test::fused");
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(move |x: &[Tensor]| vec![op.call(&[&(&x[0] * 2.0), &x[1]]).unwrap().relu()]);
    for _ in 0..3 {
        let x = [Tensor::randn([7, 33], *F32), Tensor::randn([7, 33], *F32)];
        let eager = ((&x[0] * 2.0).silu() * &x[1]).relu();
        assert!(close(&fused.call(&x).unwrap()[0], &eager));
    }
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.fused_calls), (1, 2), "{stats:?}");
}

/// Runs a model eager and fused: close to each other, with this many kernels and libtorch calls, and kernels that can be
/// lowered for a GPU. Gives the explanation.
fn check(
    model: impl Fn(&[Tensor]) -> Vec<Tensor>,
    inputs: &[Tensor],
    kernels: usize,
    calls: usize,
) -> tilefuse::Explanation {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(model);
    let eager = fused.model()(inputs);
    for _ in 0..3 {
        let ours = fused.call(inputs).unwrap();
        assert_eq!(ours.len(), eager.len());
        for (ours, eager) in ours.iter().zip(&eager) {
            assert_eq!((ours.size(), ours.kind()), (eager.size(), eager.kind()));
            let half = eager.kind() != Kind::Float;
            let (rtol, atol) = if half { (1.6e-2, 2e-2) } else { (1.3e-6, 1e-5) };
            assert!(ours.allclose(eager, rtol, atol, true), "{ours}\n{eager}");
        }
    }
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.fused_calls), (1, 2), "{stats:?}");
    let explanation = fused.explain_with(inputs, |model, inputs| model(inputs)).unwrap();
    assert_eq!((explanation.kernels_fused, explanation.extern_ops), (kernels, calls), "{explanation:#}");
    for text in &explanation.programs {
        let program = tilefuse::block::parse_valid(text).unwrap();
        compile_ptx(&program, Target::Sm90a, &PtxOptions::default()).unwrap();
    }
    explanation
}

#[test]
fn pointwise_neighbours_become_part_of_the_kernel() {
    let op = swiglu_operator("test::neighbours");
    for (kind, shape) in [
        (Kind::Float, &[7i64, 33][..]),
        (Kind::BFloat16, &[7, 33]),
        (Kind::Half, &[3, 5, 64]),
        (Kind::Float, &[1000]),
        (Kind::Float, &[1]),
    ] {
        let x = [
            Tensor::randn(shape, *F32),
            Tensor::randn(shape, *F32),
            Tensor::randn([*shape.last().unwrap()], *F32),
        ];
        let x = x.map(|t| t.to_kind(kind));
        let op = op.clone();
        let model = move |x: &[Tensor]| vec![(op.call(&[&(&x[0] * 2.0), &x[1]]).unwrap() + &x[2]).relu()];
        let explanation = check(model, &x, 1, 0);
        let text = explanation.text(true);
        let all = ["aten::mul #0", "test::neighbours #1", "aten::add #2", "aten::relu #3"];
        // Of one element, a product is computed where it is used.
        let named = if shape == [1] { &all[1..] } else { &all };
        assert!(text.contains(&named.join(", ")), "{text}");
        assert!(text.contains("_neighbours_add_relu"), "{text}");
        assert!(explanation.edges.iter().all(|e| e.fused), "{text}");
    }
}

#[test]
fn what_else_needs_a_neighbour_decides_what_is_stored() {
    let op = swiglu_operator("test::needed");
    let x = || [Tensor::randn([9, 65], *F32) * 0.1, Tensor::randn([9, 65], *F32) * 0.1];
    let f = |g: &Tensor, u: &Tensor| op.call(&[g, u]).unwrap();
    // The result is returned as well as read.
    check(
        |x| {
            let y = f(&x[0], &x[1]);
            vec![y.exp(), y]
        },
        &x(),
        1,
        0,
    );
    // Two readers of the result, which do not meet.
    check(
        |x| {
            let y = f(&x[0], &x[1]);
            vec![y.exp(), y + 1.0]
        },
        &x(),
        1,
        0,
    );
    // A residual: what goes in is added to what comes out.
    check(
        |x| {
            let h = &x[0] * 2.0;
            let y = f(&h, &x[1]);
            vec![y + h]
        },
        &x(),
        1,
        0,
    );
    // What goes in is returned too.
    check(
        |x| {
            let h = &x[0] * 2.0;
            vec![f(&h, &x[1]), h]
        },
        &x(),
        2,
        0,
    );
    // A reduction keeps to itself.
    check(|x| vec![f(&x[0].softmax(-1, Kind::Float), &x[1]).sum(Kind::Float)], &x(), 3, 0);
    // libtorch reads the result and makes an input.
    check(
        |x| vec![f(&x[0].matmul(&x[1].tr()).exp(), &x[0].matmul(&x[1].tr())).matmul(&x[1]) + 1.0],
        &x(),
        2,
        2,
    );
}

#[test]
fn views_are_read_where_they_are() {
    let op = swiglu_operator("test::views");
    let x = || [Tensor::randn([6, 40], *F32), Tensor::randn([40, 6], *F32)];
    let f = |g: &Tensor, u: &Tensor| op.call(&[g, u]).unwrap();
    // Halves of one tensor, as after a product.
    check(
        |x| {
            let parts = x[0].chunk(2, -1);
            vec![f(&parts[0], &parts[1])]
        },
        &x(),
        1,
        0,
    );
    check(|x| vec![f(&x[0], &x[1].tr()).view([240]) * 3.0], &x(), 1, 0);
    check(|x| vec![f(&x[0].narrow(0, 1, 3), &x[0].narrow(0, 3, 3)).view([3, 5, 8])], &x(), 1, 0);
    // Another order of elements is no store of this kernel's.
    check(|x| vec![f(&x[0], &x[0]).tr().exp()], &x(), 2, 0);
    check(|x| vec![f(&x[0].view([240, 1]), &x[0].view([240, 1])).view([6, 40]) + x[1].tr()], &x(), 1, 0);
}

#[test]
fn layers_share_a_program() {
    let op = swiglu_operator("test::layers");
    let x = [Tensor::randn([4, 100], *F32), Tensor::randn([4, 100], *F32)];
    let model = |x: &[Tensor]| {
        let mut h = x[0].shallow_clone();
        for _ in 0..5 {
            h = op.call(&[&(&h * 0.5), &x[1]]).unwrap() + &h;
        }
        vec![h]
    };
    check(model, &x, 5, 0);
}

#[tilefuse::kernel]
fn sincos(x: Ptr<f32>, s: Ptr<f32>, c: Ptr<f32>, n: i64, #[constant] BLOCK: usize) {
    let at = program_id(0) * BLOCK + range(0, BLOCK);
    let v = load(x + at, at.lt(n), 0);
    store(s + at, sin(v), at.lt(n));
    store(c + at, cos(v), at.lt(n));
}

/// Softmax of rows: loads with a fallback value, in which a row's elements meet.
#[tilefuse::kernel]
fn rows(x: Ptr<f32>, y: Ptr<f32>, n: i64, #[constant] BLOCK: usize) {
    let row = program_id(0);
    let cols = range(0, BLOCK);
    let v = load(x + row * n + cols, cols.lt(n), -f32::INFINITY);
    let e = exp(v - max(v, 0));
    store(y + row * n + cols, e / sum(e, 0), cols.lt(n));
}

#[test]
fn several_outputs_and_rows() {
    setup();
    let pair = Operator::new(
        "test::sincos",
        |i| Ok(vec![i[0].clone(), i[0].clone()]),
        |i, o| {
            let n = i[0].numel() as i64;
            sincos.launch(grid![(n + 63) / 64], (&i[0], &o[0], &o[1], n, 64))
        },
    );
    let pair = pair.unwrap();
    let both = |x: &Tensor| pair.call_all(&[x]).unwrap();
    let x = || [Tensor::randn([5, 77], *F32), Tensor::randn([5, 77], *F32)];
    check(
        |x| {
            let y = both(&(&x[0] + 1.0));
            vec![&y[0] * 2.0, y[1].exp()]
        },
        &x(),
        1,
        0,
    );
    check(
        |x| {
            let y = both(&x[0]);
            vec![&y[0] * &y[1]]
        },
        &x(),
        1,
        0,
    );
    check(
        |x| {
            let y = both(&x[0]);
            vec![y[1].relu()]
        },
        &x(),
        1,
        0,
    );
    assert!(pair.call(&[&x()[0]]).unwrap_err().to_string().contains("2 outputs, not one"));

    let softmax = Operator::new(
        "test::rows",
        |i| Ok(vec![i[0].clone()]),
        |i, o| {
            let (m, n) = (i[0].size()[0], i[0].size()[1]);
            rows.launch(grid![m], (&i[0], &o[0], n, 128))
        },
    );
    let softmax = softmax.unwrap();
    check(|x| vec![softmax.call(&[&(&x[0] * 3.0 + 1.0)]).unwrap() * &x[1]], &x(), 1, 0);
}

#[test]
fn what_is_no_one_launch_runs_as_it_is() {
    setup();
    let twice = Operator::new(
        "test::twice",
        |i| Ok(vec![i[0].clone()]),
        |i, o| {
            let n = i[0].numel() as i64;
            swiglu.launch(grid![(n + 63) / 64], (&i[0], &i[0], &o[0], n, 64))?;
            swiglu.launch(grid![(n + 63) / 64], (&i[0], &i[0], &o[0], n, 64))
        },
    );
    let twice = twice.unwrap();
    let helped = Operator::new(
        "test::helped",
        |i| Ok(vec![i[0].clone()]),
        |i, o| {
            let (n, up) = (i[0].numel() as i64, i[0].exp());
            swiglu.launch(grid![(n + 63) / 64], (&i[0], &up, &o[0], n, 64))
        },
    );
    let helped = helped.unwrap();
    let x = [Tensor::randn([50], *F32)];
    let text = check(|x| vec![twice.call(&[&x[0]]).unwrap() + 1.0], &x, 1, 1).to_string();
    assert!(text.contains("it launches 2 kernels, not one"), "{text}");
    let text = check(|x| vec![helped.call(&[&x[0]]).unwrap() + 1.0], &x, 1, 1).to_string();
    assert!(text.contains("its launch also calls exp"), "{text}");
}

#[test]
fn what_no_plan_can_hold_runs_as_it_is() {
    setup();
    // A table that is neither input nor output.
    let table = std::sync::Mutex::new(Tensor::randn([50], *F32));
    let kept = Operator::new(
        "test::kept",
        |i| Ok(vec![i[0].clone()]),
        move |i, o| {
            let (n, table) = (i[0].numel() as i64, table.lock().unwrap());
            swiglu.launch(grid![(n + 63) / 64], (&i[0], &*table, &o[0], n, 64))
        },
    );
    let kept = kept.unwrap();
    // A second result that nothing writes.
    let second = Operator::new(
        "test::second",
        |i| Ok(vec![i[0].clone(), i[0].clone()]),
        |i, o| {
            let n = i[0].numel() as i64;
            swiglu.launch(grid![(n + 63) / 64], (&i[0], &i[0], &o[0], n, 64))
        },
    );
    let second = second.unwrap();
    let x = [Tensor::randn([50], *F32)];
    let text = check(|x| vec![kept.call(&[&x[0]]).unwrap() + 1.0], &x, 1, 1).to_string();
    assert!(text.contains("its kernel takes a tensor that is no input or output"), "{text}");
    let first = |x: &[Tensor]| vec![second.call_all(&[&x[0]]).unwrap().remove(0) + 1.0];
    let text = check(first, &x, 1, 1).to_string();
    assert!(text.contains("its kernel does not take output 1"), "{text}");
    // What has no elements is not called.
    let empty = [Tensor::randn([4, 0], *F32)];
    let one = swiglu_operator("test::empty");
    check(|x| vec![one.call(&[&x[0], &x[0]]).unwrap() + 1.0], &empty, 0, 0);
}

#[test]
fn an_access_out_of_bounds_is_an_error_in_a_plan_too() {
    setup();
    if !on_cpu() {
        // It ends what a process can do on a GPU.
        return;
    }
    let limit = std::sync::Arc::new(std::sync::atomic::AtomicI64::new(50));
    let shared = limit.clone();
    let wild = Operator::new(
        "test::wild",
        |i| Ok(vec![i[0].clone()]),
        move |i, o| {
            // What depends on more than shapes shows only in the plan: the capture ran with another limit.
            let n = shared.fetch_add(30, std::sync::atomic::Ordering::Relaxed);
            swiglu.launch(grid![2], (&i[0], &i[0], &o[0], n, 64))
        },
    );
    let wild = wild.unwrap();
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(|x: &[Tensor]| vec![wild.call(&[&(&x[0] * 2.0)]).unwrap() + 1.0]);
    let x = [Tensor::randn([50], *F32)];
    fused.call(&x).unwrap();
    assert!(fused.call(&x).unwrap_err().to_string().contains("out of range"));
}
