//! Fused models: guards, fallbacks with reasons, and changes of parameters.

use tch::nn::Module;
use tch::{Device, Kind, Tensor, nn};

use crate::common::{F32, device};

fn draw() -> Tensor {
    Tensor::randn([4, 8], *F32)
}

fn close(a: &Tensor, b: &Tensor) -> bool {
    a.allclose(b, 1e-5, 1e-6, false)
}

#[test]
fn parameters_that_change_show_in_the_next_call() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let vs = nn::VarStore::new(device());
    let net = nn::seq().add(nn::linear(vs.root(), 8, 8, Default::default())).add_fn(|x| x.relu() * 2.0);
    let fused = tilefuse::fuse(net).named(&vs);
    for round in 0..3 {
        let x = draw();
        assert!(close(&fused.forward(&x), &fused.model().forward(&x)), "round {round}");
        for (_, mut variable) in vs.variables() {
            variable.copy_(&variable.randn_like());
        }
    }
    assert_eq!(fused.stats().captures, 1);
    let mut vs = vs;
    vs.double();
    let x = draw().to_kind(Kind::Double);
    assert!(close(&fused.forward(&x), &fused.model().forward(&x)));
}

#[test]
fn gradients_run_eager_with_a_reason() {
    crate::common::setup();
    let vs = nn::VarStore::new(device());
    let fused = tilefuse::fuse(nn::linear(vs.root(), 8, 8, Default::default())).named(&vs);
    assert!(fused.forward(&draw()).requires_grad());
    let stats = fused.stats();
    assert_eq!(stats.captures, 0);
    assert!(stats.eager_calls.keys().any(|reason| reason.contains("gradients")), "{stats:?}");
}

#[test]
fn values_read_from_data_are_refused_by_name() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(|x: &[Tensor]| vec![&x[0] * x[0].sum(Kind::Float).double_value(&[])]);
    for _ in 0..3 {
        let x = [draw()];
        let (ours, eager) = (fused.call(&x).unwrap(), fused.model()(&x));
        assert!(close(&ours[0], &eager[0]));
    }
    let stats = fused.stats();
    assert!(stats.eager_calls.keys().any(|reason| reason.contains("aten::")), "{stats:?}");
}

#[test]
fn shapes_strides_and_types_have_plans_of_their_own() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(|x: &[Tensor]| vec![x[0].exp() + 1.0]);
    let base = Tensor::randn([6, 10], *F32);
    for x in [
        base.shallow_clone(),
        base.tr(),
        base.narrow(1, 1, 7),
        base.to_kind(Kind::Double),
        base.narrow(0, 2, 0),
    ] {
        for _ in 0..2 {
            let (ours, eager) = (fused.call(&[x.shallow_clone()]).unwrap(), x.exp() + 1.0);
            assert_eq!(
                (ours[0].size(), ours[0].stride(), ours[0].kind()),
                (eager.size(), eager.stride(), eager.kind())
            );
            assert!(close(&ours[0], &eager));
        }
    }
}

#[test]
fn several_threads_call_one_fused_model() {
    crate::common::setup();
    let fused = tilefuse::fuse(|x: &[Tensor]| vec![x[0].softmax(-1, Kind::Float)]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let _no_grad = tch::no_grad_guard();
                let x = [draw()];
                let ours = fused.call(&x).unwrap();
                assert!(close(&ours[0], &x[0].softmax(-1, Kind::Float)));
            });
        }
    });
}

#[test]
fn every_stage_of_compiling_is_timed() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    // A number that no other test has compiled.
    let layer = |x: &Tensor, w: &Tensor| ((x * 0.70911).tanh() + 1.0).matmul(w);
    let fused = tilefuse::fuse(move |x: &[Tensor]| vec![layer(&layer(&x[0], &x[1]), &x[1])]);
    let inputs = [draw(), Tensor::randn([8, 8], *F32)];
    let plan = fused.explain_with(&inputs, |m, x| m(x)).unwrap();
    let report = plan.compile;
    let within = [report.passes_ms, report.lowering_ms, report.llvm_ms, report.load_ms];
    let stages = [
        report.capture_ms,
        report.lower_ms,
        report.select_ms,
        report.plan_ms,
        report.schedule_ms,
        report.codegen_ms,
    ];
    assert!(stages.iter().chain(&within).all(|&ms| ms > 0.0), "{report:?}");
    // Together they are the whole, of which little is in none.
    let stages = stages.iter().sum::<f64>() + report.prepack_ms + report.tune_ms;
    let other = report.other_ms();
    assert!((report.total_ms - stages - other).abs() < 1e-6 && other < 0.5 * report.total_ms, "{report:?}");
    let said = format!("capture and compilation {:.1} ms: capture with a call of eager's ", report.total_ms);
    assert!(plan.text(false).contains(&said), "{plan}");
    // Their programs differ in their names alone.
    assert!(plan.kernels_fused == 2 && plan.distinct_kernels == 2 && report.kernels == 1, "{plan}");
}

#[test]
fn explain_shows_the_plan_that_calls_without_gradients_would_run() {
    crate::common::setup();
    let vs = nn::VarStore::new(device());
    let fused = tilefuse::fuse(nn::linear(vs.root(), 8, 8, Default::default()));
    let plan = fused.explain(&draw()).unwrap();
    assert!(plan.note.as_deref().is_some_and(|note| note.contains("no_grad")), "{plan}");
    assert!(
        plan.to_string().starts_with("such calls run the model itself: gradients are recorded"),
        "{plan}"
    );
    let fused = fused.named(&vs);
    assert!(fused.explain(&draw()).unwrap().note.is_some());
    assert!(tch::no_grad(|| fused.explain(&draw())).unwrap().note.is_none());
    let input = draw().set_requires_grad(true);
    assert!(fused.explain(&input).unwrap().note.is_some());
    assert_eq!(fused.stats().fused_calls, 0);
}

#[test]
fn a_call_that_fails_is_counted_and_runs_the_model() {
    crate::common::setup();
    if !crate::common::on_cpu() {
        // An index out of range in a kernel of libtorch's ends what a process can do on a GPU.
        return;
    }
    let _no_grad = tch::no_grad_guard();
    // Eager takes an index that is out of range where nothing reads the row.
    let table = Tensor::randn([5, 3], *F32);
    let model =
        move |x: &Tensor| table.f_index_select(0, x).map_or_else(|_| x.ones_like(), |rows| rows.exp());
    let fused = tilefuse::fuse(nn::func(model));
    let good = Tensor::from_slice(&[0i64, 4, 2]);
    let bad = Tensor::from_slice(&[0i64, 5, 2]);
    let _ = fused.forward(&good);
    for _ in 0..2 {
        assert!(close(&fused.forward(&good), &fused.model().forward(&good)));
        assert!(fused.forward(&bad).equal(&bad.ones_like()));
    }
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.fused_calls), (1, 2), "{stats:?}");
    assert_eq!(stats.failed_calls[&String::from("index out of range in self")], 2, "{stats:?}");
    let note = fused.explain(&good).unwrap().note;
    assert_eq!(note.as_deref(), Some("2 calls of plans failed, as with: index out of range in self"));
    let failed: Vec<_> = stats.eager_calls.into_iter().collect();
    assert_eq!(
        failed,
        [(
            String::from(
                "the plan failed: index out of range in self: where the model fails by itself, too, mend it, else report it as a \
         defect of Tilefuse",
            ),
            2
        )]
    );
}

/// By an operator of libtorch that looks at its operand and refuses it, which a GPU survives.
#[test]
fn an_operator_that_refuses_its_operand_is_counted_and_the_model_runs() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let model = |x: &Tensor| {
        let factor = (x * 2.0 + 1.0).f_linalg_cholesky(false);
        factor.map_or_else(|_| x.ones_like(), |factor| factor.exp())
    };
    let fused = tilefuse::fuse(nn::func(model));
    let good = Tensor::eye(4, *F32);
    let bad = -&good;
    let _ = fused.forward(&good);
    for _ in 0..3 {
        assert!(close(&fused.forward(&good), &model(&good)));
        assert!(fused.forward(&bad).equal(&bad.ones_like()));
    }
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.fused_calls), (1, 3), "{stats:?}");
    let failed: Vec<_> = stats.failed_calls.iter().collect();
    let [(error, 3)] = failed[..] else { panic!("{stats:?}") };
    assert!(error.contains("is not positive-definite"), "{error}");
    let note = fused.explain(&good).unwrap().note;
    assert_eq!(note, Some(format!("3 calls of plans failed, as with: {error}")));
    let eager: Vec<_> = stats.eager_calls.iter().collect();
    let [(reason, 3)] = eager[..] else { panic!("{stats:?}") };
    assert!(
        reason.starts_with(&format!("the plan failed: {error}: where the model fails by itself")),
        "{reason}"
    );
}

#[test]
fn reasons_say_what_to_change() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let reason = |model: fn(&[Tensor]) -> Vec<Tensor>| {
        let fused = tilefuse::fuse(model);
        for _ in 0..2 {
            let _ = fused.call(&[draw()]).unwrap();
        }
        fused.stats().eager_calls.into_keys().next().unwrap()
    };
    let read = reason(|x| vec![&x[0] * x[0].sum(Kind::Float).double_value(&[])]);
    assert!(read.contains("reads a value out of computed data: keep the value in a tensor"), "{read}");
    let outside = reason(|x| {
        // SAFETY: the memory is static, and nothing writes it.
        let made = unsafe {
            static DATA: [f32; 8] = [1.0; 8];
            Tensor::from_blob(DATA.as_ptr().cast(), &[8], &[1], Kind::Float, Device::Cpu)
        };
        vec![&x[0] + made.to_device(x[0].device())]
    });
    assert!(outside.contains("f32[8]") && outside.contains("pass it as an input"), "{outside}");
    assert!(outside.contains("an argument of aten::"), "{outside}");
    let undefined = reason(|x| vec![&x[0] * 2.0, Tensor::new()]);
    assert!(undefined.starts_with("the model returns an undefined tensor: return an `Option"), "{undefined}");
}

/// A number that the model reads out of its own tensor is compiled in; one that changes in every call is not worth it.
#[test]
fn a_value_that_changes_in_every_call_runs_eager_after_a_few() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let step = Tensor::from(1.0f32);
    let shared = step.shallow_clone();
    let fused = tilefuse::fuse(move |x: &Tensor| x * shared.double_value(&[]));
    let x = draw();
    for n in 0..20 {
        let _ = step.shallow_clone().fill_(f64::from(n));
        assert!(fused.call(&x).unwrap().equal(&(&x * f64::from(n))), "call {n}");
    }
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.eager_calls.values().sum::<u64>()), (8, 12), "{stats:?}");
    let reason = stats.eager_calls.keys().next().unwrap();
    assert!(reason.contains("was written, 8 times in turn after few calls"), "{reason}");

    // One that changes now and then is.
    let step = Tensor::from(1.0f32);
    let shared = step.shallow_clone();
    let fused = tilefuse::fuse(move |x: &Tensor| x * shared.double_value(&[]));
    for n in 0..12 {
        let _ = step.shallow_clone().fill_(f64::from(n));
        for _ in 0..10 {
            assert!(fused.call(&x).unwrap().equal(&(&x * f64::from(n))), "value {n}");
        }
    }
    let stats = fused.stats();
    assert_eq!((stats.captures, stats.eager_calls.len()), (12, 0), "{stats:?}");
}
