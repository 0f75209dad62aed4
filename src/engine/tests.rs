use tch::{Device, Kind, Tensor};
use tilefuse_block::{OpKind, Program, ScalarFn};
use tilefuse_fusion::pipeline::{Context, plan};
use tilefuse_fusion::plan::{KernelKind, Plan, StepKind};
use tilefuse_fusion::{BlockKernelKind, Profile};

use super::compile::{fitting, graph_of};
use crate::{Audit, Error, Kernel, Operator, Options, args};

/// Calls a fused model on several draws, with `between` in between, and compares each call with eager.
fn follows_eager(model: impl Fn(&[Tensor]) -> Vec<Tensor>, between: impl Fn()) {
    let fused = crate::fuse_with(&model, Options { audit: Audit::Never, ..Options::default() });
    let _no_grad = tch::no_grad_guard();
    for call in 0..3 {
        let x = [Tensor::randn([4], (Kind::Float, Device::Cpu))];
        let (eager, ours) = (model(&x), fused.call(&x).unwrap());
        for (a, b) in eager.iter().zip(&ours) {
            assert!(a.allclose(b, 1e-5, 1e-6, false), "call {call}: eager {a}, fused {b}");
        }
        between();
    }
    assert_eq!(fused.stats().fused_calls + fused.stats().captures, 3);
    assert!(fused.stats().eager_calls.is_empty(), "{:?}", fused.stats());
}

#[test]
fn a_buffer_is_filled_by_hand_then_by_constants_then_with_computed_data() {
    let model = |x: &[Tensor]| {
        let buffer = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]);
        let y = &x[0] + &buffer;
        let _ = buffer.narrow(0, 0, 1).fill_(9.0);
        let z = &x[0] * &buffer;
        buffer.narrow(0, 1, 2).copy_(&x[0].narrow(0, 0, 2));
        vec![y, z, buffer * 2.0]
    };
    follows_eager(model, || ());
}

#[test]
fn a_lone_number_of_the_model_that_is_read_into_the_trace_is_compiled_in_until_it_changes() {
    let scale = Tensor::from(2f32);
    let model = |x: &[Tensor]| vec![&x[0] * &scale, &x[0] + scale.exp().double_value(&[])];
    follows_eager(model, || ());
    follows_eager(model, || scale.shallow_clone().copy_(&(&scale + 1.0)));
}

const TWICE: &str = "kernel @twice(%x: ptr<f32>, %y: ptr<f32>) {
    %i = range 0 64  %v = load %x, %i  %w = map add %v, %v  store %y, %i, %w
}";

/// The functions that a program computes, if it doubles anything.
fn doublings(program: &Program) -> Option<usize> {
    let (mut maps, mut doubles) = (0, false);
    program.walk(&mut |op| {
        maps += usize::from(matches!(op.kind, OpKind::Map(_)));
        doubles |= op.kind == OpKind::Map(ScalarFn::Add) && op.args[0] == op.args[1];
    });
    doubles.then_some(maps)
}

/// The plan of a model around an operator that doubles, for a device that takes no such program of more than so many
/// functions, and the reasons why the operator is no kernel.
fn plan_for(most: usize) -> (Plan, Vec<String>) {
    let kernel = Kernel::parse(TWICE).unwrap();
    let launch = move |i: &[Tensor], o: &[Tensor]| kernel.launch(1, &args![&i[0], &o[0]]);
    let twice = Operator::new(&format!("test::twice{most}"), |i| Ok(vec![i[0].clone()]), launch).unwrap();
    let _no_grad = tch::no_grad_guard();
    let profile = Profile::gpu(132, 4200.0);
    let model = |x: &[Tensor]| vec![twice.call(&[&(&x[0] + 1.0)]).unwrap() + 3.0];
    let graph = graph_of(&[Tensor::randn([64], (Kind::Float, Device::Cpu))], &model, &profile).unwrap();
    let first = plan(&graph, &profile).unwrap();
    let mut compile =
        |programs: &[Program]| match programs.iter().find(|p| doublings(p).is_some_and(|maps| maps > most)) {
            Some(p) => Err(Error::Codegen(tilefuse_codegen::Error::TileTooLarge {
                program: p.name.clone(),
                resource: "registers a thread",
                needed: 300,
                limit: 255,
            })),
            None => Ok(()),
        };
    let (plan, ()) = fitting(graph, first, &mut Context::new(&profile), &mut compile).unwrap();
    let reason = |kind: &StepKind| match kind {
        StepKind::Extern(call) => call.reason.clone(),
        StepKind::Kernel(_) => None,
    };
    let reasons = plan.steps.iter().filter_map(|step| reason(&step.kind)).collect();
    (plan, reasons)
}

fn custom_kernels(plan: &Plan) -> usize {
    let custom = |kind: &StepKind| matches!(kind, StepKind::Kernel(k) if k.kind == KernelKind::Block(BlockKernelKind::Custom));
    plan.steps.iter().filter(|step| custom(&step.kind)).count()
}

#[test]
fn an_operator_that_is_too_large_with_its_neighbours_is_left_alone() {
    let (all, reasons) = plan_for(100);
    assert_eq!((all.steps.len(), custom_kernels(&all), reasons.len()), (1, 1, 0));
    let most = all.programs.iter().find_map(doublings).unwrap();
    let (alone, reasons) = plan_for(most - 1);
    assert_eq!((alone.steps.len(), custom_kernels(&alone), reasons.len()), (3, 1, 0));
    let too_large = "cut: together their tiles are too large for the device";
    assert!(alone.decisions.iter().any(|decision| decision.verdict.to_string() == too_large));
}

#[test]
fn an_operator_that_is_too_large_by_itself_is_called() {
    let (called, reasons) = plan_for(0);
    assert_eq!(custom_kernels(&called), 0);
    assert!(reasons[0].contains("registers a thread"), "{reasons:?}");
}

/// What a random program compiles to for a GPU, without one; `None` where it runs eager on any device.
fn compiles_for_a_gpu(seed: u64) -> Option<Result<(), Error>> {
    let program = crate::random::generate(seed);
    let views = program.views(&program.draw(seed, Device::Cpu)).ok()?;
    // Some programs are wrong in eager, too; and some write what they read.
    program.run(&program.views(&program.draw(seed, Device::Cpu)).ok()?, crate::random::Mode::Native).ok()?;
    let (mut inputs, mut held) = (Vec::new(), Vec::new());
    for (input, view) in program.inputs.iter().zip(&views) {
        if input.param { &mut held } else { &mut inputs }.push(view.shallow_clone());
    }
    let model = |given: &[Tensor]| {
        let (mut given, mut held) = (given.iter(), held.iter());
        let view = |input: &crate::random::Input| if input.param { held.next() } else { given.next() };
        let views: Vec<Tensor> =
            program.inputs.iter().map(view).map(|t| t.unwrap().shallow_clone()).collect();
        program.run(&views, crate::random::Mode::Native).unwrap()
    };
    let profile = Profile::gpu(132, 4200.0).with_clusters();
    let graph = graph_of(&inputs, &model, &profile).ok()?;
    let compile = |programs: &[Program]| programs.iter().try_for_each(super::compile::fits);
    let plan = plan(&graph, &profile).map_err(|e| Error::Internal(e.to_string()));
    Some(plan.and_then(|first| {
        let mut compile = |programs: &[Program]| compile(programs).map_err(Error::Codegen);
        fitting(graph, first, &mut Context::new(&profile), &mut compile).map(|_| ())
    }))
}

/// Seeds of programs that were refused once, and others.
#[test]
fn random_programs_compile_for_a_gpu() {
    let _no_grad = tch::no_grad_guard();
    let count = std::env::var("TILEFUSE_TEST_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let known = [727_629, 732_669, 729_507, 721_144, 728_373, 732_127];
    let mut compiled = 0;
    for seed in known.into_iter().chain(0..count) {
        let Some(result) = compiles_for_a_gpu(seed) else { continue };
        compiled += 1;
        result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert!(compiled > count / 2, "{compiled} of {count}");
}
