//! Inputs and outputs as models have them: structures, TorchScript's values, and models that several threads share.

use std::collections::{BTreeMap, HashMap};

use tch::nn::{self, Module, ModuleT};
use tch::{CModule, Device, IValue, Kind, Tensor};
use tilefuse::{Explanation, Forward, Fused, Locked, StepReport, Values, fuse};

use crate::common::{THREADS, devices, setup};

fn draw(device: Device) -> Tensor {
    Tensor::randn([4, 8], (Kind::Float, device))
}

fn close(a: &Tensor, b: &Tensor) -> bool {
    a.allclose(b, 1e-5, 1e-6, false)
}

/// Captures, plans that ran, and calls that ran eager for a reason.
fn counts<M>(fused: &Fused<M>) -> (u64, u64, u64) {
    let stats = fused.stats();
    (stats.captures, stats.fused_calls, stats.eager_calls.values().sum())
}

#[derive(Values)]
struct Inputs<T> {
    x: Tensor,
    extra: T,
    mask: Option<Tensor>,
    factors: Vec<f64>,
    nested: Nested<2>,
}

#[derive(Values)]
struct Nested<const N: usize>([Tensor; N], bool);

#[derive(Values, Debug, PartialEq)]
struct Marker;

#[derive(Values)]
struct Outputs {
    sum: Tensor,
    masked: Option<Tensor>,
    by_name: BTreeMap<String, Tensor>,
    rows: i64,
    name: String,
    marker: Marker,
}

fn model(inputs: &Inputs<(Tensor, f32)>) -> Outputs {
    let Inputs { x, extra: (y, scale), mask, factors, nested: Nested([a, b], minus) } = inputs;
    let sum = factors.iter().fold(x + y * f64::from(*scale), |sum, &factor| sum * factor);
    let product = if *minus { a - b } else { a * b };
    let by_name = [("product".into(), product), ("tanh".into(), sum.tanh())];
    Outputs {
        masked: mask.as_ref().map(|mask| sum.masked_fill(mask, 0.0)),
        rows: x.size()[0],
        name: String::from("model"),
        by_name: by_name.into(),
        sum,
        marker: Marker,
    }
}

fn inputs(device: Device, scale: f32, masked: bool, factors: &[f64], minus: bool) -> Inputs<(Tensor, f32)> {
    Inputs {
        x: draw(device),
        extra: (draw(device), scale),
        mask: masked.then(|| draw(device).gt(0.0)),
        factors: factors.to_vec(),
        nested: Nested([draw(device), draw(device)], minus),
    }
}

fn same(ours: &Outputs, eager: &Outputs) {
    assert!(close(&ours.sum, &eager.sum));
    assert_eq!(ours.masked.is_some(), eager.masked.is_some());
    assert!(ours.masked.iter().zip(&eager.masked).all(|(a, b)| close(a, b)));
    assert!(ours.by_name.keys().eq(eager.by_name.keys()));
    assert!(ours.by_name.values().zip(eager.by_name.values()).all(|(a, b)| close(a, b)));
    assert_eq!((ours.rows, &ours.name, &ours.marker), (eager.rows, &eager.name, &eager.marker));
}

/// What is no tensor is part of the signature: each of these has a plan of its own, and none takes another's.
#[test]
fn structures_go_in_and_come_out() {
    setup();
    let _threads = THREADS.read();
    let _no_grad = tch::no_grad_guard();
    for device in devices() {
        let fused = fuse(model);
        let cases: [(f32, bool, &[f64], bool); 6] = [
            (2.0, true, &[0.5, 3.0], false),
            (2.0, false, &[0.5, 3.0], false),
            (3.0, true, &[0.5, 3.0], false),
            (2.0, true, &[0.5], false),
            (2.0, true, &[0.5, 4.0], false),
            (2.0, true, &[0.5, 3.0], true),
        ];
        for _ in 0..2 {
            for (scale, masked, factors, minus) in cases {
                let inputs = inputs(device, scale, masked, factors, minus);
                same(&fused.call(&inputs).unwrap(), &model(&inputs));
            }
        }
        assert_eq!(counts(&fused), (6, 6, 0), "{:?}", fused.stats());
        let inputs = inputs(device, 2.0, true, &[0.5, 3.0], false);
        assert!(fused.explain(&inputs).unwrap().kernels_fused > 0);
        assert_eq!(counts(&fused).0, 6, "explained without another capture");
    }
}

/// Every kind of structure, twice: from the model itself and from the plan.
#[test]
fn every_structure_is_made_again() {
    fn twice<O: Values>(model: impl Fn(&Tensor) -> O, check: impl Fn(&O)) {
        let fused = fuse(model);
        let x = Tensor::from_slice(&[1.0f32, 2.0]);
        for _ in 0..2 {
            check(&fused.call(&x).unwrap());
        }
        assert_eq!(counts(&fused), (1, 1, 0), "{:?}", fused.stats());
    }
    setup();
    let _threads = THREADS.read();
    let _no_grad = tch::no_grad_guard();
    let three = |x: &Tensor| assert_eq!(Vec::<f32>::try_from(x).unwrap(), [2.0, 3.0]);
    let more = |x: &Tensor| x + 1.0;
    twice(more, three);
    twice(|x| (more(x),), |(a,)| three(a));
    twice(
        |x| (more(x), (more(x), 7u8)),
        |(a, (b, n))| [a, b, &Tensor::from_slice(&[2.0f32, 3.0])].map(three)[*n as usize - 7],
    );
    twice(|x| [more(x), more(x)], |all| all.iter().for_each(three));
    twice(|x| vec![Some(more(x)), None], |all| assert!(all.len() == 2 && all[1].is_none()));
    twice(|x| Box::new(more(x)), |x| three(x));
    twice(|x| HashMap::from([(3i32, more(x)), (1, x * 2.0)]), |map| three(&map[&3]));
    twice(
        |x| (more(x), -1i64, f32::NAN, 0.1f64, true, usize::MAX, String::from("text")),
        |o| assert!(o.1 == -1 && o.2.is_nan() && o.3 == 0.1 && o.4 && o.5 == usize::MAX && o.6 == "text"),
    );
    let script = |x: &Tensor| {
        let key = |text: &str| IValue::String(text.into());
        IValue::Tuple(vec![
            IValue::Tensor(more(x)),
            IValue::None,
            IValue::GenericDict(vec![
                (key("b"), IValue::TensorList(vec![more(x), x.shallow_clone()])),
                (key("a"), IValue::GenericList(vec![IValue::Double(0.5), IValue::Bool(true)])),
            ]),
            IValue::IntList(vec![1, 2]),
            IValue::DoubleList(vec![1.0]),
            IValue::BoolList(vec![false]),
            IValue::StringList(vec!["s".into()]),
            IValue::Int(-5),
            IValue::Device(Device::Cuda(1)),
        ])
    };
    let text = |value: &IValue| format!("{value:?}");
    let expected = text(&script(&Tensor::from_slice(&[1.0f32, 2.0])));
    twice(script, |value| assert_eq!(text(value), expected));
}

/// A model with several inputs of a user's own, also for two types of inputs with the same tensors.
struct Mixer {
    weight: Tensor,
}

#[derive(Values)]
struct Added(Tensor, Tensor);

#[derive(Values)]
struct Multiplied(Tensor, Tensor);

impl Forward<Added> for Mixer {
    type Output = Tensor;

    fn run(&self, Added(a, b): &Added) -> Tensor {
        (a + b) * &self.weight
    }
}

impl Forward<Multiplied> for Mixer {
    type Output = Tensor;

    fn run(&self, Multiplied(a, b): &Multiplied) -> Tensor {
        a * b * &self.weight
    }
}

#[test]
fn a_struct_may_be_a_model_of_several_kinds_of_inputs() {
    setup();
    let _threads = THREADS.read();
    let _no_grad = tch::no_grad_guard();
    for device in devices() {
        let vs = nn::VarStore::new(device);
        let mixer = Mixer { weight: vs.root().ones("weight", &[8]) * 3.0 };
        let fused = fuse(mixer).with_names(vec![]);
        let (a, b) = (draw(device), draw(device));
        let pair = || (a.shallow_clone(), b.shallow_clone());
        for _ in 0..2 {
            let (added, multiplied) = (Added(pair().0, pair().1), Multiplied(pair().0, pair().1));
            assert!(close(&fused.call(&added).unwrap(), &fused.model().run(&added)));
            assert!(close(&fused.call(&multiplied).unwrap(), &fused.model().run(&multiplied)));
        }
        assert_eq!(counts(&fused), (2, 2, 0));
        assert_eq!(fused.explain(&Added(pair().0, pair().1)).unwrap().kernels_fused, 1);
    }
}

/// One plan for all ways to call a module, or a function of tensors.
#[test]
fn modules_functions_and_structs_are_called_and_explained_alike() {
    setup();
    let _threads = THREADS.read();
    let _no_grad = tch::no_grad_guard();
    let vs = nn::VarStore::new(Device::Cpu);
    let linear = || nn::linear(vs.root(), 8, 8, Default::default());
    let x = draw(Device::Cpu);
    let fused = fuse(nn::seq().add(linear()).add_fn(|x| x.relu() * 2.0)).named(&vs);
    let eager = fused.model().forward(&x);
    assert!(close(&fused.forward(&x), &eager) && close(&fused.call(&x).unwrap(), &eager));
    fused.explain(&x).unwrap();
    fused.explain_with(&[x.shallow_clone()], |model, x| vec![model.forward(&x[0])]).unwrap();
    assert_eq!(counts(&fused), (1, 1, 0));

    let fused = fuse(|x: &[Tensor]| vec![x[0].exp() + 1.0]).named(&vs);
    let list = vec![x.shallow_clone()];
    fused.call(&list).unwrap();
    fused.call(&[x.shallow_clone()]).unwrap();
    fused.call(&list[..]).unwrap();
    fused.explain(&list).unwrap();
    fused.run_with(&list, |model, x| model(x)).unwrap();
    assert_eq!(counts(&fused), (1, 3, 0));
}

/// What the steps of a plan read, by name, and the modules that they are of.
fn named(plan: &Explanation) -> (Vec<&str>, Vec<&str>) {
    let (mut read, mut of) = (Vec::new(), Vec::new());
    for step in &plan.steps {
        let (StepReport::Kernel { reads, modules, .. } | StepReport::Extern { reads, modules, .. }) = step;
        read.extend(reads.iter().map(|tensor| tensor.name.as_str()));
        of.extend(modules.iter().map(String::as_str));
    }
    (read, of)
}

#[test]
fn weights_of_functions_and_structs_are_named() {
    setup();
    let _threads = THREADS.read();
    let _no_grad = tch::no_grad_guard();
    for device in devices() {
        let vs = nn::VarStore::new(device);
        let mixer = Mixer { weight: (vs.root() / "mixer").ones("weight", &[8]) };
        let fused = fuse(mixer).named(&vs);
        let (a, b) = (draw(device), draw(device));
        let added = Added(a.shallow_clone(), b.shallow_clone());
        let multiplied = Multiplied(a.shallow_clone(), b.shallow_clone());
        for plan in [fused.explain(&added).unwrap(), fused.explain(&multiplied).unwrap()] {
            let (reads, modules) = named(&plan);
            assert!(["input 0", "input 1", "mixer.weight"].iter().all(|name| reads.contains(name)), "{plan}");
            assert!(modules.contains(&"mixer"), "{modules:?}: {plan}");
        }
        assert!(close(&fused.call(&added).unwrap(), &fused.model().run(&added)));
        assert!(close(&fused.call(&multiplied).unwrap(), &fused.model().run(&multiplied)));

        let (weight, bias) = {
            let head = vs.root() / "head";
            (head.randn("weight", &[8, 8], 0.0, 1.0), head.zeros("bias", &[8]))
        };
        let function = move |(x, y): &(Tensor, Option<Tensor>)| {
            let product = x.linear(&weight, Some(&bias)).tanh();
            (y.as_ref().map(|y| y + &product), product)
        };
        let fused = fuse(function).named(&vs);
        let pair = (a.shallow_clone(), Some(b.shallow_clone()));
        let plan = fused.explain(&pair).unwrap();
        let (reads, modules) = named(&plan);
        assert!(reads.contains(&"input 0") && reads.contains(&"input 1"), "{reads:?}: {plan}");
        // The weight may be prepacked.
        let is_read = |name: &&str| reads.iter().any(|read| read.starts_with(*name));
        assert!(["head.weight", "head.bias"].iter().all(is_read), "{reads:?}: {plan}");
        assert!(modules.contains(&"head"), "{modules:?}: {plan}");
        for _ in 0..2 {
            let ((sum, product), eager) = (fused.call(&pair).unwrap(), (fused.model())(&pair));
            assert!(close(&product, &eager.1) && close(&sum.unwrap(), &eager.0.unwrap()));
        }
    }
}

/// A [`ModuleT`] that is no [`Module`].
fn training_net(vs: &nn::VarStore) -> nn::SequentialT {
    let root = vs.root();
    nn::seq_t()
        .add(nn::linear(&root / "in", 8, 8, Default::default()))
        .add(nn::batch_norm1d(&root / "norm", 8, Default::default()))
        .add_fn_t(|x, train| x.dropout(0.5, train).relu())
}

#[test]
fn a_fused_module_t_is_one() {
    fn evaluate(model: &impl ModuleT, x: &Tensor) -> Tensor {
        model.forward_t(x, false)
    }
    setup();
    let _threads = THREADS.read();
    let _no_grad = tch::no_grad_guard();
    for device in devices() {
        let vs = nn::VarStore::new(device);
        let fused = fuse(training_net(&vs)).named(&vs).into_module_t();
        let x = draw(device);
        for _ in 0..3 {
            assert!(close(&evaluate(&fused, &x), &fused.model().forward_t(&x, false)));
        }
        assert!(fused.explain(&x).unwrap().kernels_fused > 0);
        assert_eq!(counts(&fused), (1, 2, 0));
        let (before, _) = (vs.variables()["norm.running_mean"].copy(), evaluate_in_training(&fused, &x));
        assert!(!close(&before, &vs.variables()["norm.running_mean"]), "training runs the model itself");
        assert!(close(&evaluate(&fused, &x), &fused.model().forward_t(&x, false)));
        // One in another's place.
        let nested = nn::seq_t().add(fused).add_fn(|x| x * 2.0);
        assert_eq!(nested.forward_t(&x, false).size(), [4, 8]);
    }
}

fn evaluate_in_training(model: &impl ModuleT, x: &Tensor) -> Tensor {
    model.forward_t(x, true)
}

/// Nothing but bounds of the compiler keeps a model from several threads.
#[test]
fn threads_share_a_model_without_unsafe_code() {
    fn shared<T: Sync + Send>(_: &T) {}
    setup();
    let _threads = THREADS.read();
    for device in devices() {
        let vs = nn::VarStore::new(device);
        let net = nn::seq().add(nn::linear(vs.root(), 8, 8, Default::default())).add_fn(|x| x.relu() * 2.0);
        let weight = Tensor::randn([8, 8], (Kind::Float, device));
        let module = fuse(Locked::new(net)).named(&vs);
        let function = fuse(Locked::new(move |(x, y): &(Tensor, Option<Tensor>)| {
            (x.matmul(&weight).tanh(), y.as_ref().map(|y| y + 1.0))
        }));
        let plain = fuse(|x: &Tensor| x.softmax(-1, Kind::Float));
        shared(&module);
        shared(&function);
        shared(&plain);
        let eager = |x: &Tensor| module.model().lock().forward(x);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (module, function, plain) = (&module, &function, &plain);
                let eager = &eager;
                scope.spawn(move || {
                    let _no_grad = tch::no_grad_guard();
                    for round in 0..20 {
                        let x = Tensor::randn([thread % 2 + 1, 8], (Kind::Float, device));
                        assert!(close(&module.forward(&x), &eager(&x)));
                        assert!(close(&plain.call(&x).unwrap(), &x.softmax(-1, Kind::Float)));
                        let pair = (x.shallow_clone(), (round % 2 == 0).then(|| x.shallow_clone()));
                        let (_, y) = function.call(&pair).unwrap();
                        assert_eq!(y.map(|y| close(&y, &(&x + 1.0))), pair.1.map(|_| true));
                    }
                });
            }
        });
        for (captures, fused, eager) in [counts(&module), counts(&function), counts(&plain)] {
            assert_eq!((captures + fused, eager), (80, 0));
            assert!(captures <= 4);
        }
    }
}

/// A TorchScript model of two tensors.
fn script(device: Device) -> CModule {
    let inputs = [draw(device), draw(device)];
    let mut forward = |x: &[Tensor]| vec![(&x[0] * 2.0 + &x[1]).relu()];
    CModule::create_by_tracing("Two", "forward", &inputs, &mut forward).unwrap()
}

#[test]
fn a_script_takes_and_gives_its_values() {
    setup();
    let _threads = THREADS.read();
    let _no_grad = tch::no_grad_guard();
    tch::jit::set_tensor_expr_fuser_enabled(false);
    for device in devices() {
        let fused = fuse(script(device));
        let (a, b) = (draw(device), draw(device));
        let inputs = [IValue::Tensor(a.shallow_clone()), IValue::Tensor(b.shallow_clone())];
        let eager = (&a * 2.0 + &b).relu();
        for _ in 0..3 {
            let IValue::Tensor(ours) = fused.forward_is(&inputs).unwrap() else { panic!("no tensor") };
            assert!(close(&ours, &eager));
            assert!(close(&fused.forward_ts(&[&a, &b].map(Tensor::shallow_clone)).unwrap(), &eager));
        }
        assert_eq!(counts(&fused), (2, 4, 0), "{:?}", fused.stats());
        assert!(fused.explain_is(&inputs).unwrap().kernels_fused > 0);
    }
}

/// Members by key, numbers and what is absent choose the plan.
#[test]
fn values_of_scripts_go_in() {
    setup();
    let _threads = THREADS.read();
    let _no_grad = tch::no_grad_guard();
    fn model(inputs: &[IValue]) -> Tensor {
        let [IValue::GenericDict(entries), IValue::Int(power), mask] = inputs else { panic!("other values") };
        let sum = entries.iter().fold(Tensor::zeros([4, 8], (Kind::Float, Device::Cpu)), |sum, entry| {
            let (IValue::String(key), IValue::Tensor(x)) = entry else { panic!("other entries") };
            sum + x * key.len() as f64
        });
        let sum = sum.pow_tensor_scalar(*power);
        if let IValue::Tensor(mask) = mask { sum.masked_fill(mask, 0.0) } else { sum }
    }
    let fused = fuse(model);
    let entry = |key: &str| (IValue::String(key.into()), IValue::Tensor(draw(Device::Cpu)));
    let none = || IValue::None;
    for _ in 0..2 {
        for inputs in [
            [IValue::GenericDict(vec![entry("a"), entry("bb")]), IValue::Int(2), none()],
            [IValue::GenericDict(vec![entry("bb"), entry("a")]), IValue::Int(2), none()],
            [IValue::GenericDict(vec![entry("a"), entry("bb")]), IValue::Int(3), none()],
            [
                IValue::GenericDict(vec![entry("a")]),
                IValue::Int(3),
                IValue::Tensor(draw(Device::Cpu).gt(0.0)),
            ],
        ] {
            assert!(close(&fused.call(&inputs[..]).unwrap(), &model(&inputs)));
        }
    }
    assert_eq!(counts(&fused), (4, 4, 0), "{:?}", fused.stats());
}

/// An error of the model is the call's, and no reason to run eager from then on.
#[test]
fn errors_of_a_model_are_the_callers() {
    setup();
    let _threads = THREADS.read();
    let _no_grad = tch::no_grad_guard();
    let fused = fuse(script(Device::Cpu));
    let x = draw(Device::Cpu);
    let error = fused.forward_is(&[IValue::Tensor(x.shallow_clone())]).unwrap_err();
    assert!(matches!(error, tilefuse::Error::Torch(_)), "{error}");
    let error = fused.explain_is(&[IValue::Tensor(x.shallow_clone())]).unwrap_err();
    assert!(matches!(error, tilefuse::Error::Torch(_)), "{error}");
    let inputs = [IValue::Tensor(x.shallow_clone()), IValue::Tensor(x)];
    for _ in 0..2 {
        fused.forward_is(&inputs).unwrap();
    }
    assert_eq!((counts(&fused).1, counts(&fused).2), (1, 0));
}

/// A `Values` that gives other parts than it takes is an error of its own, not a wrong result.
struct Crooked(Tensor);

impl Values for Crooked {
    fn flatten_into(&self, parts: &mut tilefuse::values::Flattener) {
        parts.tensor(&self.0);
        parts.count(1);
    }

    fn unflatten_from(parts: &mut tilefuse::values::Unflattener<'_>) -> Result<Crooked, tilefuse::Error> {
        parts.tensor().map(Crooked)
    }
}

/// What cannot be taken apart runs the model itself, with a reason.
struct Opaque(Tensor);

impl Values for Opaque {
    fn flatten_into(&self, parts: &mut tilefuse::values::Flattener) {
        parts.refuse("it is opaque");
    }

    fn unflatten_from(parts: &mut tilefuse::values::Unflattener<'_>) -> Result<Opaque, tilefuse::Error> {
        parts.tensor().map(Opaque)
    }
}

#[test]
fn values_that_do_not_fit_are_errors_or_run_eager() {
    setup();
    let _threads = THREADS.read();
    let _no_grad = tch::no_grad_guard();
    let x = draw(Device::Cpu);
    let crooked = fuse(|x: &Tensor| Crooked(x + 1.0));
    for _ in 0..2 {
        let Err(error) = crooked.call(&x) else { panic!("no error") };
        assert!(matches!(error, tilefuse::Error::Values(_)), "{error}");
    }

    let out = fuse(|x: &Tensor| Opaque(x + 1.0));
    let into = fuse(|x: &Opaque| &x.0 + 1.0);
    for _ in 0..3 {
        assert!(close(&out.call(&x).unwrap().0, &(&x + 1.0)));
        assert!(close(&into.call(&Opaque(x.shallow_clone())).unwrap(), &(&x + 1.0)));
    }
    assert_eq!(out.stats().eager_calls.get("it is opaque"), Some(&2));
    assert_eq!(into.stats().eager_calls.get("it is opaque"), Some(&3));
    // Where every call is to run a plan, neither is let by.
    let strict = || tilefuse::Options { strict: tilefuse::Strict::Plan, ..Default::default() };
    let out = tilefuse::fuse_with(|x: &Tensor| Opaque(x + 1.0), strict());
    let into = tilefuse::fuse_with(|x: &Opaque| &x.0 + 1.0, strict());
    for _ in 0..2 {
        assert!(matches!(out.call(&x), Err(tilefuse::Error::RunsEager(_))));
        assert!(matches!(into.call(&Opaque(x.shallow_clone())), Err(tilefuse::Error::RunsEager(_))));
    }
}
