//! Programs of many seeds through the fused path, and what became of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use tch::{Device, Tensor};

use super::check::{AUDITED, Model, Outcome, Subject, check, check_on, hold_generators};
use super::program::{Mode, Program, Values};
use super::{Planting, generate, shrink};
use crate::rng::Rng;
use crate::{Audit, CudaGraphs, Error, Explanation, Fused, Hint, Options, Prepack, Products, fuse_with};

/// A fused program.
struct FusedProgram(Fused<Model>);

impl Subject for FusedProgram {
    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        match catch_unwind(AssertUnwindSafe(|| self.0.call(inputs))) {
            Ok(result) => result.map_err(|e| e.to_string()),
            Err(panic) => Err(format!("panicked: {}", panic_text(panic.as_ref()))),
        }
    }

    fn is_done(&self) -> bool {
        self.0.stats().eager_calls.contains_key(&Error::NotPlanted.to_string())
    }

    fn clear(&self) {
        self.0.clear();
    }

    fn given_by_eager(&self) -> u64 {
        let stats = self.0.stats();
        stats.captures + stats.audits + stats.eager_calls.values().sum::<u64>()
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?")
}

thread_local! {
    /// Where this thread last panicked.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// From now on panics print nothing, and the place of each is kept for the report on its program.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(String::new, |l| format!(" at {}:{}", l.file(), l.line()));
        let _ = PLACE.try_with(|p| p.replace(place));
    }));
}

/// What a panic says and where it was, in one line.
pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let place = PLACE.with(RefCell::take);
    let text = panic_text(panic).lines().next().unwrap_or_default().chars().take(300).collect::<String>();
    format!("panicked{place}: {text}")
}

/// Whether a device still computes: after a fault in a kernel, CUDA answers everything with an error.
pub(crate) fn works(device: Device) -> bool {
    let one = Tensor::f_ones([1], (tch::Kind::Float, device));
    one.and_then(|t| t.f_double_value(&[0])).is_ok()
}

/// How one program ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// What the comparison says.
    pub outcome: Outcome,
    /// Operators captured.
    pub captured: usize,
    /// Kernel launches of a call.
    pub kernels: usize,
    /// libtorch calls of a call.
    pub externs: usize,
    /// Why calls ran eager, where they did.
    pub eager: Option<String>,
}

/// How the reasons begin, or their parts, that are defects of this project, and not of the program.
const DEFECTS: &[&str] = &["LLVM", "internal", "object"];

/// Runs a program fused and compares it with eager.
pub fn run_fused(program: &Program, seed: u64, device: Device) -> Result<Ran, Error> {
    run_fused_with(program, seed, device, &options(seed))
}

/// As [`run_fused`], with a fault in the plan.
pub(super) fn run_with_fault(
    program: &Program,
    seed: u64,
    device: Device,
    planting: Planting,
) -> Result<Ran, Error> {
    // Hints may leave no place for it.
    let options = Options { fault: Some(planting), hints: Vec::new(), ..options(seed) };
    run_fused_with(program, seed, device, &options)
}

fn run_fused_with(program: &Program, seed: u64, device: Device, options: &Options) -> Result<Ran, Error> {
    let wrap = |model| FusedProgram(fuse_with(model, options.clone()));
    ran(program, check(program, seed, device, wrap)?, seed, device)
}

/// As [`run_fused`], for a program whose storages have given data: it captures on these, and runs on them in another
/// order, and twice more on them as they are.
pub fn run_given(program: &Program, device: Device) -> Result<Ran, Error> {
    let [given, shuffled] = given_draws(program, device)?;
    let draws = [("capturing", &given), ("second", &shuffled), ("third", &given), ("fourth", &given)];
    let draws = draws.map(|(name, draw)| (name, draw.as_slice()));
    let never = Options { audit: Audit::Never, ..Options::default() };
    ran(program, check_on(program, &draws, |model| FusedProgram(fuse_with(model, never.clone())))?, 0, device)
}

/// Runs a program eager on the draws of [`run_given`].
pub fn run_given_eager(program: &Program, device: Device) -> Result<(), Error> {
    let _no_grad = tch::no_grad_guard();
    let draws = given_draws(program, device)?;
    let _generators = hold_generators(program);
    for draw in draws {
        // What eager rejects is no failure here.
        let _ = program.run(&program.views(&draw)?, Mode::Native);
    }
    Ok(())
}

/// The given data, and the same in another order. On a GPU, where libtorch takes offsets and the like unchecked, only
/// if they are accepted in that order on the CPU.
fn given_draws(program: &Program, device: Device) -> Result<[Vec<Tensor>; 2], Error> {
    let given = program.draw(0, device);
    let accepted = device == Device::Cpu || {
        let _no_grad = tch::no_grad_guard();
        let _generators = hold_generators(program);
        let shuffled = program.draw_shuffled(1, Device::Cpu)?;
        program.run(&program.views(&shuffled)?, Mode::Native).is_ok()
    };
    let other = if accepted { program.draw_shuffled(1, device)? } else { program.draw(0, device) };
    Ok([given, other])
}

fn ran(
    program: &Program,
    (mut outcome, FusedProgram(fused)): (Outcome, FusedProgram),
    seed: u64,
    device: Device,
) -> Result<Ran, Error> {
    let eager = fused.stats().eager_calls.keys().next().cloned();
    if let (Outcome::Same { .. }, Some(reason)) = (&outcome, &eager)
        && is_defect(reason, program)
    {
        outcome = Outcome::Different(format!("failed: not compiled: {reason}"));
    }
    let (mut captured, mut kernels, mut externs) = (program.len(), 0, 0);
    if eager.is_none() && matches!(outcome, Outcome::Same { .. }) {
        match audited(&fused, program, seed, device) {
            Ok(plan) => {
                (captured, kernels, externs) = (plan.ops_captured, plan.kernels_fused, plan.extern_ops);
            }
            Err(error) => outcome = Outcome::Different(format!("after an audit: {error}")),
        }
    }
    Ok(Ran { outcome, captured, kernels, externs, eager })
}

/// Whether a program that ran eager for a reason shows a defect of this project: a generated program has no operator whose
/// result's shape depends on more than the signature.
fn is_defect(reason: &str, program: &Program) -> bool {
    let generated = !program.storages.iter().any(|s| matches!(s.values, Values::Data(_)));
    let other_result = generated && reason == Error::OtherResult.to_string();
    other_result || reason.split(": ").any(|part| DEFECTS.iter().any(|defect| part.starts_with(defect)))
}

/// The programs are judged by their first three calls, the last two of which run plans; the fourth is recorded again.
/// Products are kernels, calls, or either, whatever is quicker on this machine; a plan on a GPU is a CUDA graph from its second
/// run on in every fourth program.
fn options(seed: u64) -> Options {
    let products = [Products::Generated, Products::Library, Products::Generated, Products::Predicted];
    let prepack_weights = if seed & 4 == 0 { Prepack::default() } else { Prepack::Never };
    let products = products[(seed & 3) as usize];
    let cuda_graphs = if seed & 24 == 0 { CudaGraphs::Always } else { CudaGraphs::Auto };
    let hints = hints(&mut Rng::new(seed ^ HINTS));
    let audit = Audit::Every(AUDITED);
    Options { audit, products, prepack_weights, cuda_graphs, hints, ..Options::default() }
}

/// What seeds of hints differ in from those of programs.
const HINTS: u64 = 0x68_69_6e_74;

/// None in most programs, else some for operators that may be there.
fn hints(rng: &mut Rng) -> Vec<Hint> {
    if !rng.chance(0.15) {
        return Vec::new();
    }
    let hint = |rng: &mut Rng| {
        let make = *rng.pick(&[Hint::eager, Hint::separate, Hint::together]);
        make(&format!("#{}", rng.below(16)))
    };
    (0..1 + rng.below(3)).map(|_| hint(rng)).collect()
}

/// The plan of a program after one more call. A program depends on nothing but its tensors, so that it still has one.
fn audited(fused: &Fused<Model>, program: &Program, seed: u64, device: Device) -> Result<Explanation, Error> {
    let _no_grad = tch::no_grad_guard();
    let _generators = hold_generators(program);
    // What a call writes, it may not take again: an index out of range, for one.
    if program.ops.iter().any(super::OpCall::writes) {
        return explain(fused, program, seed, device);
    }
    let given = accepted(program, seed, device)?;
    fused.run_with(&given, |model, inputs| model(inputs))?;
    explain(fused, program, seed, device)
}

/// The inputs of a draw that eager does not reject, if one of those of [`check`] is such; first the one whose parameters the
/// model has by then.
fn accepted(program: &Program, seed: u64, device: Device) -> Result<Vec<Tensor>, Error> {
    let draw = |seed| program.draw(seed, device);
    let runs = |seed| program.views(&draw(seed)).is_ok_and(|views| program.run(&views, Mode::Native).is_ok());
    let seeds = super::check::seeds(seed);
    let seed = seeds.into_iter().rev().find(|&seed| runs(seed)).unwrap_or(seed);
    let views = program.views(&draw(seed))?;
    let given = program.inputs.iter().zip(views).filter(|(i, _)| !i.param).map(|(_, t)| t);
    Ok(given.collect())
}

fn explain(fused: &Fused<Model>, program: &Program, seed: u64, device: Device) -> Result<Explanation, Error> {
    let _no_grad = tch::no_grad_guard();
    let given = accepted(program, seed, device)?;
    fused.explain_with(&given, |model, inputs| model(inputs))
}

/// The plan of a program.
pub fn plan_of(program: &Program, seed: u64, device: Device) -> Result<Explanation, Error> {
    let (_, FusedProgram(fused)) =
        check(program, seed, device, |model| FusedProgram(fuse_with(model, options(seed))))?;
    let _generators = hold_generators(program);
    explain(&fused, program, seed, device)
}

/// The block programs that a program's plan would have on a GPU, planned without one.
pub fn gpu_programs_of(
    program: &Program,
    seed: u64,
    target: tilefuse_codegen::ptx::Target,
) -> Result<Vec<tilefuse_block::Program>, Error> {
    let _no_grad = tch::no_grad_guard();
    let _generators = hold_generators(program);
    let views = program.views(&program.draw(seed, Device::Cpu))?;
    let forward = |given: &[Tensor]| {
        program.run(given, Mode::Native).unwrap_or_else(|error| std::panic::panic_any(error.to_string()))
    };
    catch_unwind(AssertUnwindSafe(|| crate::engine::gpu_programs(&views, &forward, target)))
        .unwrap_or_else(|panic| Err(Error::Torch(panicked(panic.as_ref()))))
}

/// A program that differs from eager, or rounds more.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    /// Its seed.
    pub seed: u64,
    /// In what it differs.
    pub difference: String,
    /// The text of a small program that fails alike.
    pub program: String,
}

/// Counts over many programs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Programs run.
    pub programs: usize,
    /// Programs that ran fused.
    pub fused: usize,
    /// Operators captured in those that ran fused.
    pub operators: usize,
    /// Kernel launches of a call, summed over programs.
    pub kernels: usize,
    /// libtorch calls of a call, summed over programs.
    pub externs: usize,
    /// Programs that eager and fused both rejected.
    pub rejected: usize,
    /// Programs whose rounding differs by more than eager's own error, but not by more than rounding can.
    pub noisy: usize,
    /// Programs whose rounding differs by more than that, by a small part of the values.
    pub rounded: Vec<Failed>,
    /// Programs that draw random numbers and are not close to eager.
    pub unjudged: Vec<Failed>,
    /// Programs that ran eager, by reason: how many, and the seed of one.
    pub eager: BTreeMap<String, (usize, u64)>,
    /// Programs that differ from eager.
    pub failed: Vec<Failed>,
    /// Whether a program left the device unusable, so that those after it could not run.
    pub device_lost: bool,
}

impl Tally {
    /// Generates, runs and counts the program of a seed; one that fails is shrunk by at most `tries` runs. A panic
    /// outside of the fused call, such as libtorch's for a fault that a kernel left behind, is a failure too.
    pub fn run(&mut self, seed: u64, device: Device, tries: usize) -> Result<(), Error> {
        let ran = catch_unwind(AssertUnwindSafe(|| self.run_one(seed, device, tries)));
        let failed = ran.as_ref().err().map(|panic| panicked(panic.as_ref()));
        if let Some(difference) = failed {
            let program = catch_unwind(|| generate(seed).to_string()).unwrap_or_default();
            self.programs += 1;
            self.failed.push(Failed { seed, difference, program });
        }
        if !matches!(ran, Ok(Ok(()))) {
            self.lose(device);
        }
        ran.unwrap_or(Ok(()))
    }

    fn lose(&mut self, device: Device) {
        self.device_lost |= device.is_cuda() && !works(device);
    }

    fn run_one(&mut self, seed: u64, device: Device, tries: usize) -> Result<(), Error> {
        // One thread an operator, and for every fourth program two: kernels run on libtorch's team.
        tch::set_num_threads(if seed.is_multiple_of(4) { 2 } else { 1 });
        let program = generate(seed);
        let ran = run_fused(&program, seed, device)?;
        self.programs += 1;
        match &ran.outcome {
            Outcome::Different(_) | Outcome::Rounding(_) | Outcome::Unjudged(_) => {
                self.lose(device);
                let tries = if self.device_lost { 0 } else { tries };
                let (outcome, program) = smallest(&ran.outcome, &program, seed, device, tries);
                let failed = |difference| Failed { seed, difference, program: program.to_string() };
                match outcome {
                    Outcome::Rounding(rounding) => self.rounded.push(failed(rounding.to_string())),
                    Outcome::Unjudged(place) => self.unjudged.push(failed(place)),
                    Outcome::Different(difference) => self.failed.push(failed(difference)),
                    _ => {}
                }
            }
            Outcome::BothFail => self.rejected += 1,
            Outcome::Same { noisy } => self.noisy += usize::from(*noisy),
        }
        match ran.eager {
            Some(reason) => self.count_eager(&reason, 1, seed),
            None => {
                self.fused += 1;
                self.operators += ran.captured;
                self.kernels += ran.kernels;
                self.externs += ran.externs;
            }
        }
        Ok(())
    }

    /// Counts programs that ran eager for a reason.
    pub fn count_eager(&mut self, reason: &str, count: usize, seed: u64) {
        self.eager.entry(general(reason)).or_insert((0, seed)).0 += count;
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: Tally) {
        self.programs += other.programs;
        self.fused += other.fused;
        self.operators += other.operators;
        self.kernels += other.kernels;
        self.externs += other.externs;
        self.rejected += other.rejected;
        self.noisy += other.noisy;
        for (reason, (count, seed)) in other.eager {
            self.count_eager(&reason, count, seed);
        }
        self.rounded.extend(other.rounded);
        self.unjudged.extend(other.unjudged);
        self.failed.extend(other.failed);
        self.device_lost |= other.device_lost;
    }

    /// The counts in one line.
    pub fn summary(&self) -> String {
        let lost = if self.device_lost { "; the device was lost" } else { "" };
        format!(
            "{} programs, {} fused with {} operators in {} kernels and {} libtorch calls; {} rejected by both, {} eager, \
             {} with more rounding, {} roundings, {} not judged, {} differences{lost}",
            self.programs,
            self.fused,
            self.operators,
            self.kernels,
            self.externs,
            self.rejected,
            self.eager.values().map(|e| e.0).sum::<usize>(),
            self.noisy,
            self.rounded.len(),
            self.unjudged.len(),
            self.failed.len()
        )
    }
}

/// The smallest program found that has an outcome like this one, and its outcome.
fn smallest(
    outcome: &Outcome,
    program: &Program,
    seed: u64,
    device: Device,
    tries: usize,
) -> (Outcome, Program) {
    if tries == 0 {
        return (outcome.clone(), program.clone());
    }
    let small = shrink(program, tries, &mut |p| alike(&outcome_of(p, seed, device), outcome));
    let again = outcome_of(&small, seed, device);
    if alike(&again, outcome) { (again, small) } else { (outcome.clone(), program.clone()) }
}

/// A program's outcome; a panic and a program that cannot run are differences.
fn outcome_of(program: &Program, seed: u64, device: Device) -> Outcome {
    match catch_unwind(AssertUnwindSafe(|| run_fused(program, seed, device))) {
        Ok(Ok(ran)) => ran.outcome,
        Ok(Err(error)) => Outcome::Different(format!("not run: {error}")),
        Err(panic) => Outcome::Different(panicked(panic.as_ref())),
    }
}

/// Whether two outcomes are faults of one sort; where calls failed, with the same words but for numbers.
fn alike(a: &Outcome, b: &Outcome) -> bool {
    let rough =
        |text: &str| text.split(|c: char| c.is_ascii_digit() || c == '%').next_back().map(str::to_owned);
    let failed = |t: &str| ["failed:", "not run:"].iter().any(|word| t.contains(word));
    let rejects = |t: &str| t.contains("eager rejects");
    match (a, b) {
        (Outcome::Rounding(_), Outcome::Rounding(_)) | (Outcome::Unjudged(_), Outcome::Unjudged(_)) => true,
        (Outcome::Different(a), Outcome::Different(b)) => {
            failed(a) == failed(b) && rejects(a) == rejects(b) && (!failed(a) || rough(a) == rough(b))
        }
        _ => false,
    }
}

/// A reason without what is particular to one program.
pub(crate) fn general(reason: &str) -> String {
    reason.split(|c: char| c.is_ascii_digit()).collect::<Vec<_>>().join("N")
}
