//! What a subscriber of `tracing` sees of calls.

use std::sync::{Arc, Mutex};

use tch::{Device, Kind, Tensor, nn, nn::Module as _};
use tilefuse::{Audit, Hint, Options, Prepack, Products};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The spans of a thread: each entered one, by the names of those around it and its own.
#[derive(Default)]
struct Seen {
    names: Vec<&'static str>,
    entered: Vec<&'static str>,
    paths: Vec<String>,
    warnings: usize,
}

struct Spans(Arc<Mutex<Seen>>);

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_seen = metadata.is_span() || *metadata.level() == Level::WARN;
        is_seen && metadata.target().starts_with("tilefuse")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut seen = self.0.lock().unwrap();
        seen.names.push(span.metadata().name());
        Id::from_u64(seen.names.len() as u64)
    }

    fn enter(&self, span: &Id) {
        let mut seen = self.0.lock().unwrap();
        let name = seen.names[span.into_u64() as usize - 1];
        seen.entered.push(name);
        let path = seen.entered.join("/");
        seen.paths.push(path);
    }

    fn exit(&self, _: &Id) {
        self.0.lock().unwrap().entered.pop();
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.lock().unwrap().warnings += 1;
    }
}

/// The spans of one call of a function, each once.
fn spans(call: impl FnOnce()) -> Vec<String> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    tracing::subscriber::with_default(Spans(Arc::clone(&seen)), call);
    let mut paths = std::mem::take(&mut seen.lock().unwrap().paths);
    paths.dedup();
    paths
}

/// A call that is captured, one that is recorded again, and one that copies a weight and runs. In a process of its own: which spans
/// anyone wants to see is the process's, and other threads, which want none, decide it as well.
#[test]
fn stages_of_calls_are_spans() {
    if !crate::common::is_alone("spans::stages_of_calls_are_spans") {
        return;
    }
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let f32 = (Kind::Float, Device::Cpu);
    // Schedules that an earlier process has measured are not measured again.
    let columns = 1000 + i64::from(std::process::id() % 1000);
    let (weight, more) = (Tensor::randn([96, 64], f32), Tensor::randn([300, columns], f32));
    let model = |x: &[Tensor]| {
        let product = x[0].linear::<Tensor>(&weight, None);
        vec![product, &more * 0.1 + more.tanh() * &x[1]]
    };
    let options = Options {
        tune: true,
        audit: Audit::Exponential,
        products: Products::Generated,
        prepack_weights: Prepack::Always,
        ..Options::default()
    };
    let fused = tilefuse::fuse_with(model, options);
    let inputs = [Tensor::randn([48, 64], f32), Tensor::randn([300, columns], f32)];
    let call = || drop(fused.call(&inputs).unwrap());
    let compiled = [
        "capture",
        "compile",
        "compile/lower",
        "compile/select-kernels",
        "compile/plan",
        "compile/plan/tune",
        "compile/codegen",
    ];
    let mut found = spans(call);
    // What lies between two that are tuned is the same stage.
    found.dedup();
    assert_eq!(found, compiled);
    assert_eq!(spans(call), ["audit", "audit/capture"]);
    assert_eq!(spans(call), ["run", "run/prepack"]);
    assert_eq!(fused.stats().audits, 1);
}

/// A module whose plan fails runs itself, and says so once. In a process of its own, as above.
#[test]
fn a_plan_that_fails_is_warned_of_once() {
    if !crate::common::on_cpu() || !crate::common::is_alone("spans::a_plan_that_fails_is_warned_of_once") {
        return;
    }
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let table = Tensor::randn([5, 3], (Kind::Float, Device::Cpu));
    let rows = move |x: &Tensor| table.f_index_select(0, x).map_or_else(|_| x.ones_like(), |rows| rows.exp());
    let fused = tilefuse::fuse(nn::func(rows));
    let [good, bad] = [4i64, 5].map(|at| Tensor::from_slice(&[0i64, at, 2]));
    let seen = Arc::new(Mutex::new(Seen::default()));
    let call = |x: &Tensor| drop(fused.forward(x));
    tracing::subscriber::with_default(Spans(Arc::clone(&seen)), || {
        [&good, &good, &bad, &bad, &bad].map(call)
    });
    assert_eq!(fused.stats().failed_calls.values().sum::<u64>(), 3);
    assert_eq!(seen.lock().unwrap().warnings, 1);
}

/// Also where a tolerance takes several attempts to compile. In a process of its own, as above.
#[test]
fn a_pattern_that_names_nothing_is_warned_of_once() {
    if !crate::common::is_alone("spans::a_pattern_that_names_nothing_is_warned_of_once") {
        return;
    }
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let model = |x: &[Tensor]| vec![x[0].exp().softmax(-1, Kind::Float) * 2.0];
    let hints = vec![Hint::eager("no.such"), Hint::tolerance("softmax", 0.0)];
    let fused = tilefuse::fuse_with(model, Options { hints, ..Options::default() });
    let inputs = [Tensor::randn([300, 100], (Kind::Float, Device::Cpu))];
    let seen = Arc::new(Mutex::new(Seen::default()));
    let call = || drop(fused.call(&inputs).unwrap());
    tracing::subscriber::with_default(Spans(Arc::clone(&seen)), call);
    let seen = seen.lock().unwrap();
    assert!(seen.names.iter().filter(|&&name| name == "compile").count() > 1, "{:?}", seen.names);
    assert_eq!(seen.warnings, 1);
}
