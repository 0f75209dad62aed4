//! Schedules that are measured: the decision is remembered, and results stay what they were.

use tch::{Device, Kind, Tensor};
use tilefuse::{Explanation, Fused, Options, ScheduleReport, StepReport};

use crate::common::setup;

type Model = fn(&[Tensor]) -> Vec<Tensor>;

fn draw(sizes: &[i64]) -> Tensor {
    Tensor::randn(sizes, (Kind::Float, Device::Cpu))
}

fn fused(model: Model, tune: bool) -> Fused<Model> {
    tilefuse::fuse_with(model, Options { tune, ..Options::default() })
}

fn schedules(plan: &Explanation) -> Vec<ScheduleReport> {
    let of = |step: &StepReport| match step {
        StepReport::Kernel { schedule, .. } => schedule.clone(),
        StepReport::Extern { .. } => None,
    };
    plan.steps.iter().filter_map(of).collect()
}

/// Compiles a model twice with measured schedules, and once without; all compute what eager does.
fn tuned_twice(model: Model, inputs: &[Tensor]) -> [Vec<ScheduleReport>; 3] {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = crate::common::THREADS.read();
    let eager = model(inputs);
    [true, true, false].map(|tune| {
        let fused = fused(model, tune);
        for _ in 0..2 {
            for (ours, eager) in fused.call(inputs).unwrap().iter().zip(&eager) {
                // Sums of many numbers are near zero by chance.
                assert!(
                    ours.allclose(eager, 1e-5, 1e-4, false),
                    "tune {tune}: {}",
                    (ours - eager).abs().max()
                );
            }
        }
        assert_eq!(fused.stats().fused_calls, 1);
        let plan = fused.explain_with(inputs, |m, x| m(x)).unwrap();
        let text = plan.text(false);
        assert!(text.contains("tiles "), "{text}");
        assert_eq!(text.contains("measured"), tune, "{text}");
        schedules(&plan)
    })
}

#[test]
fn measured_schedules_are_remembered() {
    let models: [(Model, Vec<Tensor>); 3] = [
        (|x| vec![(&x[0] + x[1].tr()).tanh()], vec![draw(&[611, 907]), draw(&[907, 611])]),
        (|x| vec![x[0].softmax(1, Kind::Float)], vec![draw(&[613, 501])]),
        (
            |x| vec![(&x[0] * 2.0).sum_dim_intlist([0i64].as_slice(), false, Kind::Float)],
            vec![draw(&[801, 1103])],
        ),
    ];
    for (model, inputs) in models {
        let [first, second, predicted] = tuned_twice(model, &inputs);
        assert!(first.iter().any(|s| s.measured), "{first:?}");
        for (first, second) in first.iter().zip(&second).filter(|(first, _)| first.measured) {
            assert!(second.measured && second.remembered, "{second:?}");
            assert_eq!((&second.tiles, second.choice, &second.us), (&first.tiles, first.choice, &first.us));
            assert!(first.us.len() > 1 && first.us[first.choice].is_some(), "{first:?}");
            // Nothing that is slower than the predicted one is taken.
            assert!(first.us[first.choice] <= first.us[0]);
        }
        assert!(predicted.iter().all(|s| !s.measured && s.us.is_empty() && s.choice == 0));
        for (predicted, first) in predicted.iter().zip(&first).filter(|(_, first)| first.choice == 0) {
            assert_eq!(predicted.tiles, first.tiles);
        }
    }
}

#[test]
fn small_kernels_are_not_measured() {
    let [first, ..] = {
        setup();
        let _no_grad = tch::no_grad_guard();
        let fused = fused(|x| vec![x[0].tanh() * 2.0], true);
        let inputs = [draw(&[64])];
        fused.call(&inputs).unwrap();
        [schedules(&fused.explain_with(&inputs, |m, x| m(x)).unwrap())]
    };
    assert!(!first.is_empty() && first.iter().all(|s| !s.measured));
}

#[test]
fn updates_are_measured_on_tensors_of_their_own() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let (own, gradient) = (draw(&[700, 500]), draw(&[700, 500]));
    let expected = &own - &gradient * 0.3;
    let model = |x: &[Tensor]| {
        let _ = own.shallow_clone().g_sub_(&(&x[0] * 0.1));
        vec![x[0].shallow_clone()]
    };
    let fused = tilefuse::fuse_with(model, Options { tune: true, ..Options::default() });
    let inputs = [gradient.shallow_clone()];
    (0..3).for_each(|_| drop(fused.call(&inputs).unwrap()));
    assert_eq!(fused.stats().fused_calls, 2);
    assert!(own.allclose(&expected, 1e-5, 1e-6, false));
    let plan = fused.explain_with(&inputs, |m, x| m(x)).unwrap();
    assert!(schedules(&plan).iter().any(|s| s.measured));
    assert!(plan.updates.iter().all(|update| update.copied.is_none()));
}
