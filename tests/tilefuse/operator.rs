//! Operators of one's own: eager, refused, and in fused models.

use tch::{Device, Kind, Tensor};
use tilefuse::{Error, Operator, grid};

use crate::common::setup;

const F32: (Kind, Device) = (Kind::Float, Device::Cpu);

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
        let (g, u) = (Tensor::randn(shape, F32), Tensor::randn(shape, F32));
        assert!(close(&op.call(&[&g, &u]).unwrap(), &(g.silu() * &u)));
    }
    let (g, u) = (Tensor::randn([5, 6], F32).tr(), Tensor::randn([6, 5], F32));
    assert!(close(&op.call(&[&g, &u]).unwrap(), &(g.silu() * &u)));
}

#[test]
fn misuse_is_an_error() {
    let op = swiglu_operator("test::misuse");
    let (x, y) = (Tensor::randn([4], F32), Tensor::randn([5], F32));
    let said = |r: Result<Tensor, Error>| r.unwrap_err().to_string();
    assert_eq!(said(op.call(&[&x, &y])), "operator test::misuse: gate and up must be alike");
    assert_eq!(said(op.call(&[])), "operator test::misuse: there are no inputs");
    let learned = Tensor::randn([4], F32).set_requires_grad(true);
    assert!(said(op.call(&[&learned, &x])).contains("requires a gradient"));
    assert!(close(&tch::no_grad(|| op.call(&[&learned, &x])).unwrap(), &(learned.silu() * &x).detach()));
    for name in ["swiglu", "aten::swiglu", "a b::c", "my::", "my::f(Tensor x) -> ()"] {
        assert!(Operator::new(name, |i| Ok(i.to_vec()), |_, _| Ok(())).is_err(), "{name}");
    }
    assert!(Operator::new("test::misuse", |i| Ok(i.to_vec()), |_, _| Ok(())).is_err());
}

#[test]
fn a_fused_model_may_call_operators() {
    let op = swiglu_operator("test::fused");
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(move |x: &[Tensor]| vec![op.call(&[&(&x[0] * 2.0), &x[1]]).unwrap().relu()]);
    for _ in 0..3 {
        let x = [Tensor::randn([7, 33], F32), Tensor::randn([7, 33], F32)];
        let eager = ((&x[0] * 2.0).silu() * &x[1]).relu();
        assert!(close(&fused.call(&x).unwrap()[0], &eager));
    }
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.fused_calls), (1, 2), "{stats:?}");
}
