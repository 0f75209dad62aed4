//! Models of thousands of operators: kernels of a bounded size, so that the time of compiling grows as their number does.

use tch::{Device, Kind, Tensor};
use tilefuse::{Explanation, StepReport};
use tilefuse_models::{Growth, growing};

use crate::common::setup;

fn plan(kind: Growth, operators: usize) -> Explanation {
    let x = [Tensor::randn([16, 32], (Kind::Float, Device::Cpu))];
    let fused = tilefuse::fuse(move |x: &[Tensor]| vec![growing(kind, operators, &x[0])]);
    let eager = fused.call(&x).unwrap().remove(0);
    let ours = fused.call(&x).unwrap().remove(0);
    assert_eq!(fused.stats().fused_calls, 1);
    assert!(ours.allclose(&eager, 1e-4, 1e-4, false), "{kind:?} of {operators}");
    fused.explain_with(&x, |m, x| m(x)).unwrap()
}

/// The operators of the largest kernel.
fn largest(plan: &Explanation) -> usize {
    let operators = |step: &StepReport| match step {
        StepReport::Kernel { operators, .. } => operators.len(),
        StepReport::Extern { .. } => 0,
    };
    plan.steps.iter().map(operators).max().unwrap_or(0)
}

#[test]
fn kernels_of_long_models_have_a_bounded_size() {
    setup();
    let _no_grad = tch::no_grad_guard();
    for kind in [Growth::Pointwise, Growth::RowMeans, Growth::Branches] {
        let (some, many) = (plan(kind, 600), plan(kind, 1800));
        assert!(largest(&many) <= 512 && largest(&many) < 2 * largest(&some), "{kind:?}: {}", largest(&many));
        // Three times the operators are three times the kernels, or one more for each that is not full.
        assert!((2..=2 * some.kernels_fused * 2).contains(&many.kernels_fused), "{kind:?}");
        let cut = |plan: &Explanation| plan.text(false).contains("up to which merging pays");
        assert!(many.kernels_fused > 1 && cut(&many), "{kind:?}: {many}");
    }
}

#[test]
fn an_undefined_input_runs_eager_with_a_reason() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let x = [Tensor::randn([7], (Kind::Float, Device::Cpu)), Tensor::new()];
    let fused = tilefuse::fuse(|x: &[Tensor]| vec![&x[0] + 1.0]);
    for _ in 0..3 {
        assert!(fused.call(&x).unwrap()[0].equal(&(&x[0] + 1.0)));
    }
    assert_eq!(
        fused
            .stats()
            .eager_calls
            .get("input 1 is an undefined tensor: leave it out, or make an `Option` of it"),
        Some(&3)
    );
    let error = fused.explain_with(&x, |m, x| m(x)).unwrap_err().to_string();
    assert!(error.contains("input 1 is an undefined tensor"), "{error}");
}
