//! What a user asks of the compiler, and what it says of its calls: hints, `Options::strict`, scopes and counts.

use tch::nn::{self, Module};
use tch::{CModule, IValue, Kind, Tensor};
use tilefuse::{Error, Explanation, Hint, Options, PatternOption, StepReport, Strict, UnmatchedPattern};

use crate::common::{F32, device, files, setup};

type Function = fn(&[Tensor]) -> Vec<Tensor>;

/// Three pointwise operators, of two scopes.
fn scoped(x: &[Tensor]) -> Vec<Tensor> {
    let first = {
        let _scope = tilefuse::scope("h.0");
        x[0].exp()
    };
    let _scope = tilefuse::scope("h.1");
    vec![first.sin().cos()]
}

fn modules(plan: &Explanation) -> Vec<Vec<String>> {
    let of = |step: &StepReport| match step {
        StepReport::Kernel { modules, .. } | StepReport::Extern { modules, .. } => modules.clone(),
    };
    plan.steps.iter().map(of).collect()
}

/// A TorchScript file with modules in modules.
fn layers() -> CModule {
    let file = files().join("tests/tilefuse/layers.pt");
    let mut module = CModule::load_on_device(file, device()).unwrap();
    module.f_set_eval().unwrap();
    module
}

fn with(hints: Vec<Hint>) -> Options {
    Options { hints, ..Options::default() }
}

#[test]
fn hints_keep_modules_separate_and_operators_eager() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let x = Tensor::randn([70, 33], *F32);
    let eager = scoped(&[x.shallow_clone()]).remove(0);
    let check = |hints: Vec<Hint>| {
        let fused = tilefuse::fuse_with(scoped as Function, with(hints));
        for _ in 0..2 {
            let ours = fused.call(&[x.shallow_clone()]).unwrap().remove(0);
            assert!(ours.allclose(&eager, 1e-5, 1e-6, false));
        }
        fused.explain(&[x.shallow_clone()]).unwrap()
    };
    let plan = check(Vec::new());
    assert_eq!((plan.kernels_fused, plan.extern_ops), (1, 0));
    assert_eq!(modules(&plan), [["h.0", "h.1"]]);
    let plan = check(vec![Hint::separate("h.1")]);
    assert_eq!((plan.kernels_fused, plan.extern_ops), (2, 0));
    assert_eq!(modules(&plan), [["h.0"], ["h.1"]]);
    assert!(plan.edges.iter().any(|edge| edge.verdict.starts_with("cut: the hint `separate` for ")));
    // Modules and operators are separate from each other, too.
    for (hint, kernels) in [("h.*", 2), ("*", 3), ("sin", 3), ("#2", 2), ("h", 1), ("h.2", 1)] {
        assert_eq!(check(vec![Hint::separate(hint)]).kernels_fused, kernels, "{hint}");
    }
    for (hint, kernels, calls) in [("h.1", 1, 2), ("aten::sin", 2, 1), ("*", 0, 3), ("h.2", 1, 0)] {
        let plan = check(vec![Hint::eager(hint)]);
        assert_eq!((plan.kernels_fused, plan.extern_ops), (kernels, calls), "{hint}");
        let why = format!("the hint `eager` for {hint} keeps it there");
        let said = |step: &StepReport| matches!(step, StepReport::Extern { reason, .. } if reason.as_deref() == Some(&*why));
        assert_eq!(plan.steps.iter().filter(|step| said(step)).count(), calls);
    }
}

/// The results of a model under a hint, in the second call, and its plan.
fn under(hint: Hint, model: Function, x: &Tensor) -> (Vec<Tensor>, Explanation) {
    let fused = tilefuse::fuse_with(model, with(vec![hint]));
    let input = || [x.copy()];
    fused.call(&input()).unwrap();
    let results = fused.call(&input()).unwrap();
    assert_eq!(fused.stats().fused_calls, 1);
    (results, fused.explain(&input()).unwrap())
}

fn reasons(plan: &Explanation) -> Vec<String> {
    let of = |step: &StepReport| match step {
        StepReport::Extern { reason, .. } => reason.clone(),
        StepReport::Kernel { .. } => None,
    };
    plan.steps.iter().filter_map(of).collect()
}

#[test]
fn kernels_within_a_tolerance_stay_and_others_are_left_to_libtorch() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let x = Tensor::randn([70, 33], *F32);
    let eager = scoped(&[x.copy()]);
    let (results, plan) = under(Hint::tolerance("h.*", 1e-5), scoped, &x);
    assert_eq!((results.len(), plan.kernels_fused, plan.extern_ops), (1, 1, 0));
    assert!(results[0].allclose(&eager[0], 1e-5, 1e-6, false));
    assert_eq!(plan.tolerances.iter().map(|t| t.part.as_str()).collect::<Vec<_>>(), ["h.0", "h.1"]);
    for tolerance in &plan.tolerances {
        let by = tolerance.difference.unwrap();
        assert!(by > 0.0 && by <= 1e-5, "{tolerance:?}");
        let said = format!(
            "the hint `tolerance` for h.* asks for 1.0e-5 of {}, and in the plan it differs from eager's by {by:.1e}",
            tolerance.part
        );
        assert_eq!(tolerance.reason, said);
        assert!(plan.to_string().replace("\n  ", " ").contains(&said), "{plan}");
    }
    // The first exponential alone is left to libtorch for its own sake, and for that of what is computed from it.
    let (_, plan) = under(Hint::tolerance("h.0", 0.0), scoped, &x);
    assert_eq!((plan.kernels_fused, plan.extern_ops, plan.tolerances[0].difference), (1, 1, Some(0.0)));
    let said = &reasons(&plan)[0];
    assert!(
        said.starts_with("the hint `tolerance` for h.0 asks for 0.0e0 of h.0, and as kernels it differs"),
        "{said}"
    );
    assert!(said.ends_with(": libtorch computes it"), "{said}");
    let (results, plan) = under(Hint::tolerance("h.1", 0.0), scoped, &x);
    assert_eq!((plan.kernels_fused, plan.extern_ops), (0, 3));
    assert_eq!(results[0], eager[0]);
    let all = reasons(&plan);
    assert_eq!(all.len(), 3);
    assert!(
        all.iter().all(|said| said.ends_with(": libtorch computes it and what it is computed from")),
        "{all:?}"
    );
}

#[test]
fn a_tolerance_is_met_where_nothing_can_be_compared() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let x = Tensor::randn([7, 5], *F32);
    let model: Function = |x| {
        let first = x[0].exp();
        let _ = x[0].shallow_clone().fill_(1.0);
        let _scope = tilefuse::scope("h");
        vec![first.sin(), first.relu()]
    };
    let eager = model(&[x.copy()]);
    let (results, plan) = under(Hint::tolerance("aten::sin", 1e-3), model, &x);
    assert_eq!(results[0], eager[0]);
    assert_eq!((plan.extern_ops, plan.tolerances[0].difference), (2, None));
    assert!(reasons(&plan).iter().all(|said| said.contains("since the model writes inputs or parameters")));
}

#[test]
fn random_numbers_are_the_same_with_a_tolerance() {
    if !crate::common::is_alone("hints::random_numbers_are_the_same_with_a_tolerance") {
        return;
    }
    setup();
    let _no_grad = tch::no_grad_guard();
    let x = Tensor::randn([64, 64], *F32);
    let model: Function = |x| vec![x[0].dropout(0.5, true).matmul(&x[0]).softmax(-1, None)];
    let fused = tilefuse::fuse_with(model, with(vec![Hint::tolerance("*", 1e-4)]));
    for call in 0..2 {
        tch::manual_seed(7);
        let eager = model(&[x.shallow_clone()]);
        let after = Tensor::randn([3], *F32);
        tch::manual_seed(7);
        let ours = fused.call(&[x.shallow_clone()]).unwrap();
        assert!(ours[0].allclose(&eager[0], 1e-4, 1e-5, false), "{call}");
        assert_eq!(Tensor::randn([3], *F32), after, "{call}");
    }
    assert_eq!(fused.stats().fused_calls, 1);
}

#[test]
fn hints_cover_the_modules_of_a_var_store() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let vs = nn::VarStore::new(crate::common::device());
    let root = vs.root();
    let model = nn::seq()
        .add(nn::linear(&root / "mlp" / "up", 16, 32, Default::default()))
        .add_fn(|x| x.gelu("none"))
        .add(nn::linear(&root / "mlp" / "down", 32, 16, Default::default()))
        .add(nn::layer_norm(&root / "norm", vec![16], Default::default()));
    let x = Tensor::randn([8, 16], *F32);
    let eager = model.forward(&x);
    let fused = tilefuse::fuse_with(model, with(vec![Hint::eager("mlp")])).named(&vs);
    for _ in 0..2 {
        assert!(fused.forward(&x).allclose(&eager, 1e-5, 1e-5, false));
    }
    let plan = fused.explain(&x).unwrap();
    assert_eq!(plan.extern_ops, 3, "two products, and what is between them");
    assert!(plan.kernels_fused >= 1);
}

#[test]
fn strict_calls_are_errors_where_something_is_left() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let x = [Tensor::randn([7, 5], *F32)];
    let strict = |strict: Strict| Options { strict, ..Options::default() };
    // A value that is read out of the data.
    let reads: Function = |x| vec![&x[0] * x[0].sum(Kind::Float).double_value(&[])];
    let fused = tilefuse::fuse_with(reads, strict(Strict::Plan));
    for _ in 0..2 {
        assert!(matches!(fused.call(&x), Err(Error::RunsEager(_))));
    }
    assert!(fused.stats().eager_calls.is_empty());
    // An operator without a lowering.
    let sorts: Function = |x| vec![x[0].sort(1, false).0.relu()];
    let all = || Strict::Kernels(vec![String::from("*")]);
    let fused = tilefuse::fuse_with(sorts, strict(all()));
    for _ in 0..2 {
        let Err(Error::Unfused { operators, plan }) = fused.call(&x) else { panic!("no error") };
        assert_eq!(operators.len(), 1, "{operators:?}");
        assert!(operators[0].starts_with("aten::sort"), "{operators:?}");
        assert_eq!(plan.extern_ops, 1);
    }
    assert_eq!(fused.explain(&x).unwrap().extern_ops, 1);
    let others = Strict::Kernels(vec![String::from("aten::relu")]);
    for (model, wanted) in [(sorts, others), (sorts, Strict::Plan), (scoped as Function, all())] {
        let fused = tilefuse::fuse_with(model, strict(wanted));
        for _ in 0..2 {
            fused.call(&x).unwrap();
        }
        assert_eq!(fused.stats().fused_calls, 1);
    }
}

/// A hint that cannot be followed, and one that names nothing, say so; what strictness names has to be there.
#[test]
fn hints_that_change_nothing_say_so() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let x = [Tensor::randn([7, 5], *F32)];
    let sorts: Function = |x| vec![x[0].exp().sort(1, false).0.relu()];
    let hints = vec![Hint::together("*"), Hint::eager("no.such")];
    let plan = tilefuse::fuse_with(sorts, with(hints)).explain(&x).unwrap();
    let unmet: Vec<&str> = plan.cuts().filter(|cut| cut.unmet).map(|cut| cut.producer.as_str()).collect();
    assert_eq!(unmet[..2], ["aten::exp #0", "aten::sort #1"]);
    let unmatched = UnmatchedPattern { option: PatternOption::Eager, pattern: String::from("no.such") };
    assert_eq!(plan.unmatched, [unmatched]);
    let text = plan.summary();
    let said = "1 x exp -> sort, not in one kernel as the hint `together` asks, cut: ";
    assert!(
        text.contains(said) && text.contains("\nhint eager=no.such: no operator has this name"),
        "{text}"
    );
    assert_eq!(plan.text(false).matches("as the hint `together` asks").count(), 2, "{text}");
    let strict = Strict::Kernels(vec![String::from("exp"), String::from("no.such")]);
    let fused = tilefuse::fuse_with(sorts, Options { strict, ..Options::default() });
    let Err(Error::Unfused { operators, .. }) = fused.call(&x) else { panic!("no error") };
    assert_eq!(operators, ["no.such (no operator has this name, and none is of such a module)"]);
}

#[test]
fn counts_say_which_guard_failed() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(scoped as Function);
    let x = Tensor::randn([7, 5], *F32);
    let call = |x: &Tensor| drop(fused.call(&[x.shallow_clone()]).unwrap());
    call(&x);
    assert!(fused.stats().guard_misses.is_empty());
    let others = [
        x.narrow(0, 0, 3).contiguous(),
        x.narrow(0, 0, 2).contiguous(),
        x.to_kind(Kind::Double),
        x.unsqueeze(0),
        x.tr(),
    ];
    for other in &others {
        call(other);
        call(other);
    }
    let stats = fused.stats();
    let said = |guard: &str| {
        let miss = stats.guard_misses.get(guard).unwrap_or_else(|| panic!("{guard}: {stats:?}"));
        (miss.calls, miss.expected.clone(), miss.found.clone())
    };
    let texts = |calls: u64, expected: &str, found: &str| (calls, expected.to_owned(), found.to_owned());
    assert_eq!(said("size 0 of input 0"), texts(2, "3", "2"));
    assert_eq!(said("dtype of input 0"), texts(2, "f64", "f32"));
    assert_eq!(said("rank of input 0"), texts(1, "3", "2"));
    assert_eq!((stats.captures, stats.compiles), (6, 6));
    assert!(stats.compile_us > 0);
    assert!(fused.call(&[x.shallow_clone(), x.shallow_clone()]).is_ok());
    let stats = fused.stats();
    assert_eq!(stats.guard_misses["number of inputs"].found, "2");
}

#[test]
fn counts_say_why_a_model_was_captured_again() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let vs = nn::VarStore::new(crate::common::device());
    let mut fused = tilefuse::fuse(nn::linear(vs.root(), 8, 4, Default::default())).named(&vs);
    let x = Tensor::randn([3, 8], *F32);
    let _ = (fused.forward(&x), fused.forward(&x));
    assert!(fused.stats().recaptures.is_empty());
    let shared = fused.model().ws.shallow_clone();
    let _ = &mut fused;
    // The same parameter, with other memory of another shape.
    tch::no_grad(|| {
        let mut weight = shared;
        weight.set_data(&Tensor::randn([5, 8], *F32));
        let mut bias = fused.model().bs.as_ref().unwrap().shallow_clone();
        bias.set_data(&Tensor::randn([5], *F32));
    });
    let y = fused.forward(&x);
    assert_eq!(y.size(), [3, 5]);
    let recaptures = fused.stats().recaptures;
    let why = recaptures.keys().next().unwrap();
    assert!(why.starts_with("a parameter was replaced, moved or reshaped: its size 0 is 5, not 4"), "{why}");
}

/// Operators of a TorchScript file are of the modules that call them: activations and sums too, of which no parameter says where they
/// are. `layers.py` wrote the file.
#[test]
fn operators_of_a_file_are_named_by_its_modules() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let module = layers();
    let names = module.named_parameters().unwrap();
    let fused = tilefuse::fuse_with(module, with(vec![Hint::separate("*")])).with_names(names);
    let plan = fused.explain_is(&[IValue::Tensor(Tensor::randn([4, 8], *F32))]).unwrap();
    let layer = |at: usize| {
        ["norm", "mlp.up", "mlp.act", "mlp.down", "squash", ""]
            .map(|part| format!("h.{at}.{part}").trim_end_matches('.').to_owned())
    };
    let expected = layer(0).into_iter().chain(layer(1)).chain(["head", "probabilities"].map(String::from));
    assert_eq!(modules(&plan), expected.map(|module| vec![module]).collect::<Vec<_>>(), "{plan}");
}

/// By step: the lines of source that it names.
fn lines(plan: &Explanation) -> Vec<Vec<String>> {
    let of = |step: &StepReport| match step {
        StepReport::Kernel { lines, .. } | StepReport::Extern { lines, .. } => lines.clone(),
    };
    plan.steps.iter().map(of).collect()
}

#[test]
fn steps_name_the_lines_that_call_their_operators() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let first = line!() + 2;
    fn squashed(x: &Tensor) -> Tensor {
        x.tanh()
    }
    let second = line!() + 1;
    let model = |x: &[Tensor]| vec![(squashed(&x[0]) * 2.0).softmax(-1, Kind::Float)];
    let options = Options { source_lines: true, ..Options::default() };
    let fused = tilefuse::fuse_with(model, options);
    let plan = fused.explain(&[Tensor::randn([4, 8], *F32)]).unwrap();
    let at = |line: u32| format!("tests/tilefuse/hints.rs:{line}");
    // A program without line tables, as a release build of a package, knows no lines.
    if !cfg!(debug_assertions) && lines(&plan).iter().all(Vec::is_empty) {
        return;
    }
    assert_eq!(lines(&plan), [vec![at(first), at(second)]], "{plan}");
    let text = plan.text(false);
    assert!(text.contains(&format!("at {}, {}", at(first), at(second))), "{text}");
    let unasked = tilefuse::fuse(model).explain(&[Tensor::randn([4, 8], *F32)]).unwrap();
    assert_eq!(lines(&unasked), [Vec::<String>::new()]);
}

#[test]
fn operators_of_a_file_name_the_lines_that_it_was_made_of() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let module = layers();
    let options = Options { source_lines: true, ..with(vec![Hint::separate("*")]) };
    let fused = tilefuse::fuse_with(module, options);
    let plan = fused.explain_is(&[IValue::Tensor(Tensor::randn([4, 8], *F32))]).unwrap();
    // This file has no table of the lines that it was made of: those of its own text are named.
    assert!(lines(&plan).iter().flatten().all(|line| line.contains(".py:")), "{:?}", lines(&plan));
    assert!(lines(&plan).iter().all(|lines| !lines.is_empty()), "{:?}", lines(&plan));
}
