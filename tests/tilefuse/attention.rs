//! Attention that a model writes out: when it becomes one call, and that masks keep their meaning.

use tch::{Device, Kind, Tensor};
use tilefuse::{Options, Products};

use crate::common::{F32, device};

type Attend = Box<dyn Fn(&[Tensor]) -> Vec<Tensor>>;

const MASKED: f64 = f64::NEG_INFINITY;

fn inputs(kind: Kind) -> Vec<Tensor> {
    (0..3).map(|_| Tensor::randn([2, 3, 9, 8], (kind, device()))).collect()
}

fn scores(x: &[Tensor]) -> Tensor {
    x[0].matmul(&x[1].transpose(-2, -1)) * 0.25
}

fn weighted(scores: &Tensor, x: &[Tensor]) -> Vec<Tensor> {
    vec![scores.softmax(-1, None).matmul(&x[2])]
}

/// Inputs that lie behind one element more than whole vectors.
fn unaligned(kind: Kind) -> Vec<Tensor> {
    let behind = |x: Tensor| {
        let memory = Tensor::zeros([x.numel() as i64 + 1], (kind, device()));
        let mut place = memory.narrow(0, 1, x.numel() as i64).view_as(&x);
        place.copy_(&x);
        place
    };
    inputs(kind).into_iter().map(behind).collect()
}

/// Inputs whose first rows are aligned, and whose other rows are not.
fn unaligned_rows(kind: Kind) -> Vec<Tensor> {
    (0..3).map(|_| Tensor::randn([2, 3, 9, 9], (kind, device())).narrow(3, 0, 8)).collect()
}

/// Runs a model fused and eager on new data; returns how many attentions became one call.
fn recognised(model: Attend, kind: Kind) -> usize {
    recognised_of(model, kind, inputs)
}

/// As [`recognised`], of inputs that `make` makes.
fn recognised_of(model: Attend, kind: Kind, make: fn(Kind) -> Vec<Tensor>) -> usize {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(model);
    for _ in 0..4 {
        let x = make(kind);
        let (ours, eager) = (fused.call(&x).unwrap(), fused.model()(&x));
        let tolerance = if kind == Kind::BFloat16 { 3e-2 } else { 1e-5 };
        assert!(ours[0].allclose(&eager[0], tolerance, tolerance, true));
    }
    assert!(fused.stats().eager_calls.is_empty());
    let x = make(kind);
    let plan = fused.explain_with(&x, |model, x| model(x)).unwrap();
    plan.text(false).matches("libtorch attention (aten::matmul").count()
}

fn future() -> Tensor {
    Tensor::ones([12, 12], (Kind::Bool, device())).triu(1)
}

fn cut(mask: &Tensor) -> Tensor {
    mask.narrow(0, 0, 9).narrow(1, 0, 9)
}

#[test]
fn attention_without_a_mask_is_one_call() {
    for kind in [Kind::Float, Kind::Double, Kind::BFloat16] {
        // On a GPU libtorch's attention takes no f64.
        let one = usize::from(crate::common::on_cpu() || kind != Kind::Double);
        assert_eq!(recognised(Box::new(|x| weighted(&scores(x), x)), kind), one, "{kind:?}");
    }
    let divided: Attend = Box::new(|x| weighted(&((&x[0] * 0.5).matmul(&x[1].transpose(2, 3)) / 4.0), x));
    assert_eq!(recognised(divided, Kind::Float), 1);
}

/// libtorch's kernels for a GPU read whole vectors: where the first is not aligned, they end the process's work there, and where
/// others are not, they fail.
#[test]
fn operands_that_are_not_aligned_stay_written_out_on_a_gpu() {
    let one = usize::from(crate::common::on_cpu());
    for kind in [Kind::Float, Kind::BFloat16] {
        for make in [unaligned, unaligned_rows] {
            let found = recognised_of(Box::new(|x| weighted(&scores(x), x)), kind, make);
            assert_eq!(found, one, "{kind:?}");
        }
    }
}

/// libtorch's kernels make NaN of keys that are hidden where the scale is not positive.
#[test]
fn attention_of_a_negative_scale_stays_written_out() {
    let mask = future();
    let model: Attend = Box::new(move |x| weighted(&(scores(x) * -2.0).masked_fill(&cut(&mask), MASKED), x));
    assert_eq!(recognised(model, Kind::Float), 0);
    let model: Attend = Box::new(|x| weighted(&(&x[0] * -0.5).matmul(&x[1].transpose(2, 3)), x));
    assert_eq!(recognised(model, Kind::BFloat16), 0);
}

#[test]
fn softmax_in_f32_of_narrow_scores_is_the_same_call() {
    let model: Attend = Box::new(|x| {
        let weights = scores(x).softmax(-1, Kind::Float).to_kind(Kind::BFloat16);
        vec![weights.matmul(&x[2])]
    });
    assert_eq!(recognised(model, Kind::BFloat16), 1);
}

#[test]
fn masks_known_from_the_model_are_recognised() {
    let mask = future();
    let model: Attend = Box::new(move |x| weighted(&scores(x).masked_fill(&cut(&mask), MASKED), x));
    assert_eq!(recognised(model, Kind::Float), 1);

    let some = Tensor::rand([1, 3, 9, 9], *F32).ge(0.5).tril(-1);
    let model: Attend = Box::new(move |x| weighted(&scores(x).masked_fill(&some, MASKED), x));
    assert_eq!(recognised(model, Kind::Float), 1);

    let model: Attend = Box::new(|x| {
        let mask = Tensor::full([9, 9], -3e38, *F32).triu(1);
        weighted(&(scores(x) + mask), x)
    });
    assert_eq!(recognised(model, Kind::Float), 1);

    let bias = Tensor::randn([3, 9, 9], *F32).unsqueeze(0);
    let model: Attend = Box::new(move |x| weighted(&(&bias + scores(x)), x));
    assert_eq!(recognised(model, Kind::Float), 1);
}

#[test]
fn a_mask_that_may_close_a_row_stays_written_out() {
    let closed = Tensor::ones([9, 9], (Kind::Bool, device())).triu(0);
    let model: Attend = Box::new(move |x| weighted(&scores(x).masked_fill(&closed, MASKED), x));
    assert_eq!(recognised(model, Kind::Float), 0);

    let single = Tensor::from_slice(&[false]).reshape([1, 1]).to_device(device());
    let model: Attend = Box::new(move |x| weighted(&scores(x).masked_fill(&single, 0.0), x));
    assert_eq!(recognised(model, Kind::Float), 0);

    let from_input: Attend = Box::new(|x| weighted(&(scores(x) + x[0].sum_dim_intlist(-1, true, None)), x));
    assert_eq!(recognised(from_input, Kind::Float), 0);
}

#[test]
fn what_else_reads_the_weights_keeps_them() {
    let model: Attend = Box::new(|x| {
        let weights = scores(x).softmax(-1, None);
        vec![weights.matmul(&x[2]), weights]
    });
    assert_eq!(recognised(model, Kind::Float), 0);
    let other_dim: Attend = Box::new(|x| vec![scores(x).softmax(2, None).matmul(&x[2])]);
    assert_eq!(recognised(other_dim, Kind::Float), 0);
}

#[test]
fn a_mask_that_is_written_shows_in_the_next_call() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let mask = future();
    let model: Attend = {
        let mask = mask.shallow_clone();
        Box::new(move |x| weighted(&scores(x).masked_fill(&cut(&mask), MASKED), x))
    };
    let fused = tilefuse::fuse(model);
    let x = inputs(Kind::Float);
    let check = || {
        let (ours, eager) = (fused.call(&x).unwrap(), fused.model()(&x));
        assert!(ours[0].allclose(&eager[0], 1e-5, 1e-5, true));
    };
    check();
    mask.shallow_clone().copy_(&future().triu(3));
    check();
    let _ = mask.shallow_clone().fill_(1);
    check();
}

#[test]
fn a_write_of_a_mask_that_no_version_counts_shows_too() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    // Of one row for all queries: no memory that is row-major.
    let row = Tensor::from_slice(&[false, true, false, false, true, false, false, true, false]);
    let model: Attend = {
        let mask = row.shallow_clone().expand([9, 9], false);
        Box::new(move |x| weighted(&scores(x).masked_fill(&mask, MASKED), x))
    };
    let fused = tilefuse::fuse(model);
    let x: Vec<Tensor> = inputs(Kind::Float).iter().map(|t| t.to_device(Device::Cpu)).collect();
    let check = || {
        let (ours, eager) = (fused.call(&x).unwrap(), fused.model()(&x));
        assert!(ours[0].allclose(&eager[0], 1e-5, 1e-5, true));
        ours[0].isnan().all().int64_value(&[]) != 0
    };
    assert!(!check() && !check());
    let _ = row.data().fill_(1);
    assert!(check());
}

/// NaN in a row of queries, keys or values of attention that a model writes out and that it calls. In the place of the former,
/// libtorch's operator, which is called only where the user asks for it, may give 0.
#[test]
fn rows_with_nan_are_as_in_eager() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let written: fn(&[Tensor]) -> Vec<Tensor> = |x| weighted(&scores(x), x);
    let hiding: fn(&[Tensor]) -> Vec<Tensor> =
        |x| weighted(&scores(x).masked_fill(&cut(&future()), MASKED), x);
    let called: fn(&[Tensor]) -> Vec<Tensor> = |x| {
        let none = None::<&Tensor>;
        vec![Tensor::scaled_dot_product_attention(&x[0], &x[1], &x[2], none, 0.0, false, 0.25, false)]
    };
    for kind in [Kind::Float, Kind::BFloat16] {
        for (name, model) in [("written", written), ("hiding", hiding), ("called", called)] {
            let options = Options { products: Products::Predicted, ..Options::default() };
            let fused = tilefuse::fuse_with(model, options);
            for place in 0..3 {
                let x = inputs(kind);
                // The first row, which every query of a causal attention reads.
                let _ = x[place].get(0).get(1).get(0).fill_(f64::NAN);
                for _ in 0..2 {
                    let (ours, eager) = (fused.call(&x).unwrap(), fused.model()(&x));
                    let [ours, eager] = [ours[0].isnan(), eager[0].isnan()];
                    // Of a query with NaN and less keys than a vector has, libtorch's operator makes 0 on a CPU.
                    let exact = written(&x)[0].isnan();
                    let right = ours.eq_tensor(&eager);
                    let right =
                        if name == "called" { right.logical_or(&ours.eq_tensor(&exact)) } else { right };
                    let of = format!("{kind:?} {name}, NaN in {place}: {ours} for {eager}");
                    assert_eq!(right.all().int64_value(&[]), 1, "{of}");
                }
            }
        }
    }
}
