//! One program, fused against eager.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::{Device, Kind, Tensor};

use super::program::{Mode, Program, copies};
use super::sequence::{Events, Held, Returned, lock};
use crate::Error;
use crate::judge::{Difference, Measured, compare, form, measure};
use crate::torch::{Flags, Meta};

/// The largest error, in that of runs with random rounding errors.
const MAX_OF_NOISE: f64 = 4.0;

/// Runs with random rounding errors, and those where so few leave doubt.
const MIN_NOISY_RUNS: usize = 3;
const MAX_NOISY_RUNS: usize = 16;

/// Such runs where they say what is NaN or infinite, which may hang on one rounding: so many, and where some of the elements in
/// question, but not all, have come out both ways.
const RUNS_OF_SPECIALS: usize = 64;
const MAX_RUNS_OF_SPECIALS: usize = 512;

/// A program as a model: a function of its inputs that holds its parameters.
pub type Model = Box<dyn Fn(&[Tensor]) -> Vec<Tensor> + Send>;

/// What a program's model is wrapped in.
pub trait Subject {
    /// Calls it. A panic of the model is an error.
    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String>;

    /// Whether further calls would show nothing.
    fn is_done(&self) -> bool {
        false
    }

    /// Forgets what it learnt of earlier calls.
    fn clear(&self) {}

    /// A number that grows with each call whose results are eager's: one that is recorded, or that no plan answers.
    fn given_by_eager(&self) -> u64 {
        0
    }
}

/// The result of checking one program.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The same results as eager.
    Same {
        /// Numbers differed by more than the tolerance and by more than eager's own error allows, but by no more than
        /// repeated runs with random rounding errors do.
        noisy: bool,
    },
    /// Eager and fused both rejected the inputs.
    BothFail,
    /// Numbers differed by more than repeated runs with random rounding errors do, but the error is small.
    Rounding(Rounding),
    /// Results that no run in `f64` judges, since it would draw other random numbers, are not close to eager's: which.
    Unjudged(String),
    /// In what they differ.
    Different(String),
}

/// An error against `f64` that is larger than eager's and than that of runs with random rounding errors, and small
/// relative to the values.
#[derive(Clone, Debug, PartialEq)]
pub struct Rounding {
    /// The run and the result.
    pub place: String,
    /// Largest difference from eager.
    pub max_abs: f64,
    /// Largest error against `f64`.
    pub ours: f64,
    /// Eager's.
    pub eager: f64,
    /// That of runs with random rounding errors.
    pub noise: f64,
    /// Ours, relative to the exact value or to 1, whichever is larger.
    pub relative: f64,
}

impl std::fmt::Display for Rounding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Rounding { place, max_abs, ours, eager, noise, relative } = self;
        write!(
            f,
            "{place}: largest difference {max_abs:.3e}; error against f64 {ours:.3e} (relative {relative:.3e}), \
             eager's {eager:.3e}, noise {noise:.3e}"
        )
    }
}

/// Checks a program: `wrap` makes a subject of the model, which captures on one draw of inputs and parameters and is
/// judged on another. Returns the subject, to ask it how it ran.
pub fn check<S: Subject>(
    program: &Program,
    seed: u64,
    device: Device,
    wrap: impl FnOnce(Model) -> S,
) -> Result<(Outcome, S), Error> {
    let [first, second] = seeds(seed).map(|seed| program.draw(seed, device));
    let draws: [(&str, &[Tensor]); 4] =
        [("capturing", &first), ("second", &second), ("third", &second), ("fourth", &second)];
    let draws = &draws[..if has_params(program) { 4 } else { 3 }];
    let other = program.with_other_layouts(seed).filter(|_| seed.is_multiple_of(3));
    let other = other.map(|other| (other.draw(seed ^ 0x2545_f491, device), other));
    let other = other.as_ref().map(|(draw, other)| (other, &draw[..]));
    check_in_turn(program, draws, (Events::of(seed), other), wrap)
}

/// Whether a program's model has parameters.
fn has_params(program: &Program) -> bool {
    program.inputs.iter().any(|input| input.param)
}

/// The seeds of the draws that a program is checked on.
pub(super) fn seeds(seed: u64) -> [u64; 2] {
    [seed, seed ^ 0x5bd1_e995]
}

/// As [`check`], on named draws, of which the model captures on the first. A draw that eager rejects is none of the
/// model's where another draw is not rejected; two runs in turn on one draw must agree to the bit.
pub fn check_on<S: Subject>(
    program: &Program,
    draws: &[(&str, &[Tensor])],
    wrap: impl FnOnce(Model) -> S,
) -> Result<(Outcome, S), Error> {
    check_in_turn(program, draws, (Events::default(), None), wrap)
}

/// The same, with what happens between the calls, and a program that differs in the layouts of its arguments, and a draw of it, for
/// calls of the same model between those of the last draw.
fn check_in_turn<S: Subject>(
    program: &Program,
    draws: &[(&str, &[Tensor])],
    (events, other): (Events, Option<(&Program, &[Tensor])>),
    wrap: impl FnOnce(Model) -> S,
) -> Result<(Outcome, S), Error> {
    let _no_grad = tch::no_grad_guard();
    let _generators = hold_generators(program);
    let mut held = Held::new(program, draws.first().map_or(&[], |d| d.1))?;
    let device = held.storages.first().map_or(Device::Cpu, Tensor::device);
    let given = if events.gives { program.with_given_parameter() } else { None };
    let state = Arc::new(AtomicBool::new(false));
    let subject = wrap(model(program, &held, &state));
    let mut noisy = false;
    let (mut rounding, mut unjudged) = (None, None);
    let mut earlier: Option<(&[Tensor], Vec<Tensor>)> = None;
    let mut rejected = 0;
    let mut returned = Returned::default();
    for (at, &(run, draw)) in draws.iter().enumerate() {
        if subject.is_done() {
            break;
        }
        if events.exchanges && at == 2 && given.is_none() && !program.is_given_parameters() {
            // A result may be a parameter: one that lives on elsewhere is exchanged unseen, until an audit.
            (earlier, returned) = (None, Returned::default());
            held.exchange(program, draw)?;
        }
        if events.clears && at + 1 == draws.len() {
            subject.clear();
        }
        if events.writes {
            returned.write();
        }
        let by_eager = subject.given_by_eager();
        let called = given.as_ref().filter(|_| at == 0).unwrap_or(program);
        let trial = Trial { program: called, draw, held: &held, run };
        let (outcome, left) = trial.compare(&subject)?;
        let (results, arguments) = left.map_or_else(Default::default, |left| (left.outputs, left.storages));
        let [then, now] = std::mem::take(&mut returned).then_and_now();
        if let Some(text) = unstable(&then, &now, true).filter(|_| !events.writes) {
            let text = format!("{run} run: what the run before returned was written: {text}");
            return Ok((Outcome::Different(text), subject));
        }
        returned = Returned::new(&results, &arguments);
        match outcome {
            Outcome::Different(text) => return Ok((Outcome::Different(text), subject)),
            Outcome::BothFail => {
                rejected += 1;
                earlier = None;
                continue;
            }
            Outcome::Same { noisy: more } => noisy |= more,
            Outcome::Rounding(found) => rounding = rounding.or(Some(found)),
            Outcome::Unjudged(place) => unjudged = unjudged.or(Some(place)),
        }
        // What eager gives is no plan's result to the bit.
        let is_of_plan = subject.given_by_eager() == by_eager;
        if let Some((before, old)) = &earlier
            && is_of_plan
            && std::ptr::eq(*before, draw)
            && !program.leaves_values_open()
            // Each run is compared with eager for itself.
            && !program.sums_atomically(device)
            && let Some(text) = unstable(old, &results, true)
            && !trial.eager_changes(unstable(old, &results, false).is_none(), None)?
        {
            return Ok((Outcome::Different(text), subject));
        }
        earlier = (is_of_plan && !events.writes).then_some((draw, results));
    }
    if rejected == draws.len() {
        return Ok((Outcome::BothFail, subject));
    }
    if let (Some((other, elsewhere)), Some(&(_, draw)), false) = (other, draws.last(), subject.is_done()) {
        let calls = [
            (other, elsewhere, "first in another layout"),
            (other, elsewhere, "second in another layout"),
            (program, draw, "back in the first layout"),
            (other, elsewhere, "third in another layout"),
        ];
        for (program, draw, run) in calls {
            let trial = Trial { program, draw, held: &held, run };
            match trial.compare(&subject)?.0 {
                Outcome::Different(text) => return Ok((Outcome::Different(text), subject)),
                Outcome::BothFail => break,
                Outcome::Same { noisy: more } => noisy |= more,
                Outcome::Rounding(found) => rounding = rounding.or(Some(found)),
                Outcome::Unjudged(place) => unjudged = unjudged.or(Some(place)),
            }
        }
    }
    if let (Some(changed), Some((_, draw))) = (program.changed(), draws.last()) {
        state.store(true, Ordering::Relaxed);
        let trial = Trial { program: &changed, draw, held: &held, run: "audited" };
        // A plan of the state before may answer until an audit has seen the new one.
        for _ in 0..AUDITED {
            let _ = trial.ours(&subject)?;
        }
        if let (outcome @ Outcome::Different(_), _) = trial.compare(&subject)? {
            return Ok((outcome, subject));
        }
    }
    let outcome = match (unjudged, rounding) {
        (Some(place), _) => Outcome::Unjudged(place),
        (None, Some(rounding)) => Outcome::Rounding(rounding),
        (None, None) => Outcome::Same { noisy },
    };
    Ok((outcome, subject))
}

/// Holds libtorch's generators, which are the process's, where a program may draw random numbers.
pub(super) fn hold_generators(program: &Program) -> Option<MutexGuard<'static, ()>> {
    program.takes_seed().then(generators)
}

/// Holds the generators, and seeds them.
pub(super) fn seeded() -> MutexGuard<'static, ()> {
    let held = generators();
    seed();
    held
}

fn seed() {
    seed_with(SEED);
}

fn seed_with(number: i64) {
    // libtorch looks for CUDA once, when generators are seeded, and only after its CUDA part is loaded.
    let _ = crate::torch::cuda_devices();
    tch::manual_seed(number);
}

/// Held while random numbers are drawn.
fn generators() -> MutexGuard<'static, ()> {
    static GENERATORS: Mutex<()> = Mutex::new(());
    GENERATORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls among which an audit is: more than the draws, which are compared with each other to the bit.
pub(super) const AUDITED: u64 = 5;

/// The program as a function of its inputs; parameters are read from `held`. Where `state` is set, it is the program that
/// [`Program::changed`] gives.
fn model(program: &Program, held: &Held, state: &Arc<AtomicBool>) -> Model {
    let views = held.shared();
    let changed = program.changed();
    let (program, state) = (program.clone(), Arc::clone(state));
    Box::new(move |given| {
        let mut given = given.iter();
        let view = |(input, held): (&super::Input, &Tensor)| {
            if input.param { held.shallow_clone() } else { given.next().unwrap_or(held).shallow_clone() }
        };
        let views: Vec<Tensor> = program.inputs.iter().zip(&*lock(&views)).map(view).collect();
        let program = changed.as_ref().filter(|_| state.load(Ordering::Relaxed)).unwrap_or(&program);
        program.run(&views, Mode::Native).unwrap_or_else(|error| std::panic::panic_any(error.to_string()))
    })
}

fn unstable(before: &[Tensor], now: &[Tensor], bits: bool) -> Option<String> {
    before.iter().zip(now).enumerate().find_map(|(at, (a, b))| {
        compare(&visible(a), &visible(b), bits, None)
            .err()
            .map(|d| format!("output {at} changes from run to run: {d}"))
    })
}

/// One call with one draw.
struct Trial<'a> {
    program: &'a Program,
    draw: &'a [Tensor],
    /// What the model holds.
    held: &'a Held,
    /// What the call is named in a report.
    run: &'a str,
}

/// The seed of libtorch's generators before each run, so that eager and fused draw the same numbers.
const SEED: i64 = 0;

/// What a run left behind.
struct Left {
    outputs: Vec<Tensor>,
    storages: Vec<Tensor>,
}

impl Trial<'_> {
    /// Seeds the generators, which are held, where the program may draw.
    fn seed(&self) {
        if self.program.takes_seed() {
            seed();
        }
    }

    /// What a call gives beside eager, and what it left behind where both gave something.
    fn compare<S: Subject>(&self, subject: &S) -> Result<(Outcome, Option<Left>), Error> {
        let eager = self.run(Mode::Native);
        let ours = self.ours(subject)?;
        let outcome = match (eager, ours) {
            (Err(_), Err(_)) => Outcome::BothFail,
            (Err(error), Ok(_)) => self.different("eager rejects the inputs", first_line(&error.to_string())),
            (Ok(_), Err(text)) => self.different("failed", first_line(&text)),
            (Ok(eager), Ok(ours)) => {
                let outcome = self.judge(&eager, &ours)?;
                return Ok((outcome, Some(ours)));
            }
        };
        Ok((outcome, None))
    }

    /// Whether eager itself gives other bits from run to run, as some of libtorch's functions do that sum in parallel; or
    /// other numbers, as those do that sum much or write elements in any order; in all outputs, or in one result.
    fn eager_changes(&self, bits: bool, result: Option<usize>) -> Result<bool, Error> {
        const RUNS: usize = 32;
        let run = || {
            let left = self.run(Mode::Native)?;
            let one = |at: usize| left.get(at).map(Tensor::shallow_clone).into_iter().collect();
            Ok::<Vec<Tensor>, Error>(
                result.map_or_else(|| left.outputs.iter().map(Tensor::shallow_clone).collect(), one),
            )
        };
        let first = run()?;
        for _ in 1..RUNS {
            if unstable(&first, &run()?, bits).is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn run(&self, mode: Mode<'_>) -> Result<Left, Error> {
        self.run_on(copies(self.draw, mode), mode)
    }

    /// The run in `f64`, on the CPU: some of libtorch's functions for CUDA have constants of `f32` in them (`hardswish`).
    fn exact(&self, kinds: &HashMap<u32, Kind>) -> Result<Left, Error> {
        let storages = copies(self.draw, Mode::Double(kinds));
        self.run_on(storages.iter().map(|s| s.to_device(Device::Cpu)).collect(), Mode::Double(kinds))
    }

    fn run_on(&self, storages: Vec<Tensor>, mode: Mode<'_>) -> Result<Left, Error> {
        self.seed();
        self.run_seeded(storages, mode)
    }

    fn run_seeded(&self, storages: Vec<Tensor>, mode: Mode<'_>) -> Result<Left, Error> {
        let outputs = self.program.run(&self.program.views(&storages)?, mode)?;
        Ok(Left { outputs, storages })
    }

    fn ours<S: Subject>(&self, subject: &S) -> Result<Result<Left, String>, Error> {
        let fresh = copies(self.draw, Mode::Native);
        for (held, value) in self.held.storages.iter().zip(self.draw) {
            // A write, even of what is there, makes plans stale that take the contents for constant.
            if held.size() == value.size() && !held.equal(value) {
                held.shallow_clone().copy_(value);
            }
        }
        // An input may share a parameter's memory.
        let storages = fresh.into_iter().zip(&self.held.storages).enumerate().map(|(at, (fresh, held))| {
            let param = self.program.inputs.iter().any(|i| i.storage == at && i.param);
            if param { held.shallow_clone() } else { fresh }
        });
        let storages: Vec<Tensor> = storages.collect();
        let views = self.program.views(&storages)?;
        let inputs = self.program.inputs.iter().zip(views).filter(|(i, _)| !i.param);
        let given = |(input, view)| self.held.parameter(self.program, input).unwrap_or(view);
        let given: Vec<Tensor> = inputs.map(given).collect();
        self.seed();
        Ok(subject.call(&given).map(|outputs| Left { outputs, storages }))
    }

    fn judge(&self, eager: &Left, ours: &Left) -> Result<Outcome, Error> {
        if eager.outputs.len() != ours.outputs.len() {
            let message = format!("{} instead of {}", ours.outputs.len(), eager.outputs.len());
            return Ok(self.different("outputs", message));
        }
        if let Some(text) = aliasing(eager, ours) {
            return Ok(self.different("memory", text));
        }
        let pairs = || eager.outputs.iter().zip(&ours.outputs);
        let different = pairs().enumerate().find_map(|(at, (e, o))| Some((at, representation(e, o)?)));
        if let Some((at, text)) = different {
            return Ok(self.different(&self.place(at), text));
        }
        let writes = self.program.ops.iter().any(super::OpCall::writes);
        let outputs = self.program.outputs.iter().map(|o| o.exact);
        let bits: Vec<bool> = outputs.chain(eager.storages.iter().map(|_| !writes)).collect();
        let mut open = Vec::new();
        for (at, ((e, o), bits)) in eager.all().zip(ours.all()).zip(bits).enumerate() {
            let values = at >= eager.outputs.len() || !self.program.leaves_values_open();
            match compare(&visible(e), &visible(o), bits, None) {
                Ok(_) => {}
                Err(Difference::Plain(_) | Difference::Specials | Difference::Numbers(_))
                    if !values && form(&visible(e), &visible(o)).is_none() => {}
                Err(Difference::Plain(text)) => {
                    let open = self.is_of_signs(at, &visible(e), &visible(o), bits)?;
                    if !open && !self.eager_changes(bits, Some(at))? {
                        return Ok(self.different(&self.place(at), text));
                    }
                }
                Err(Difference::Specials | Difference::Numbers(_)) => open.push(at),
            }
        }
        if open.is_empty() {
            Ok(Outcome::Same { noisy: false })
        } else {
            self.second_opinion(eager, ours, &open)
        }
    }

    /// Whether a result differs from eager's only in elements that depend on the sign of a zero or NaN that is a maximum or
    /// minimum.
    fn is_of_signs(&self, at: usize, eager: &Tensor, ours: &Tensor, bits: bool) -> Result<bool, Error> {
        if !self.program.has_extrema() || form(eager, ours).is_some() {
            return Ok(false);
        }
        let [positive, negative] = [1.0, -1.0].map(|sign| self.run(Mode::Signs(sign)));
        let (positive, negative) = (positive?, negative?);
        let (Some(positive), Some(negative)) = (positive.get(at), negative.get(at)) else { return Ok(false) };
        let same = visible(positive).eq_tensor(&visible(negative));
        Ok(same.size() == eager.size() && compare(eager, &ours.where_self(&same, eager), bits, None).is_ok())
    }

    fn different(&self, place: &str, what: impl std::fmt::Display) -> Outcome {
        Outcome::Different(format!("{} run: {place}: {what}", self.run))
    }

    fn place(&self, at: usize) -> String {
        match at.checked_sub(self.program.outputs.len()) {
            None => format!("output {at}"),
            Some(storage) => format!("storage s{storage} after the call"),
        }
    }

    /// Judges the results `open`, which are not close to eager's, by an `f64` run, and where eager's own error does not
    /// explain ours, by runs with random rounding errors.
    fn second_opinion(&self, eager: &Left, ours: &Left, open: &[usize]) -> Result<Outcome, Error> {
        if self.program.draws() {
            return Ok(self.without_f64(eager, ours, open));
        }
        let kinds = self.kinds()?;
        let double = match self.exact(&kinds) {
            Ok(double) => double,
            Err(error) => return self.without_double(eager, ours, open, &error),
        };
        let mut noise: Option<Vec<Left>> = None;
        let mut rounding = None;
        for &at in open {
            let (Some(e), Some(o), Some(exact)) = (eager.get(at), ours.get(at), double.get(at)) else {
                return Ok(self.different(&self.place(at), "absent"));
            };
            if !exact.defined() && e.defined() {
                return self.without_double(
                    eager,
                    ours,
                    &[at],
                    &Error::Torch(String::from("a call of it fails")),
                );
            }
            let (e, mut o) = (visible(e), visible(o));
            let exact = visible(exact).to_device(e.device());
            let mut compared = compare(&e, &o, false, Some(&exact));
            if compared == Err(Difference::Specials)
                && let Some(decided) = self.without_noisy_specials((&e, &o, &exact), at, &kinds)?
            {
                o = decided;
                compared = compare(&e, &o, false, Some(&exact));
            }
            let measured = match compared {
                Ok(_) => continue,
                Err(Difference::Numbers(measured)) => measured,
                // As attention of libtorch's on a CPU, whose kernels read memory that nobody wrote.
                Err(Difference::Specials) if self.eager_changes(false, Some(at))? => continue,
                Err(other) => return Ok(self.different(&self.place(at), other)),
            };
            let runs = match &mut noise {
                Some(runs) => runs,
                None => noise.insert(self.noise(Mode::Noisy(&kinds), 0..MIN_NOISY_RUNS)?),
            };
            let mut found = self.rounding(at, &measured, &exact, runs);
            if found.ours > MAX_OF_NOISE * found.noise && runs.len() < MAX_NOISY_RUNS {
                // The largest error of a few runs in one number may be small by chance.
                runs.extend(self.noise(Mode::Noisy(&kinds), runs.len()..MAX_NOISY_RUNS)?);
                found = self.rounding(at, &measured, &exact, runs);
            }
            if found.ours <= MAX_OF_NOISE * found.noise {
                continue;
            }
            let coarsest = self.program.outputs.get(at).and_then(|o| self.program.coarsest(o.id, &kinds));
            if !measured.may_be_rounding(coarsest.unwrap_or(e.kind())) {
                if self.eager_changes(false, Some(at))? || self.is_of_signs(at, &e, &o, false)? {
                    continue;
                }
                return Ok(Outcome::Different(found.to_string()));
            }
            rounding = rounding.or(Some(found));
        }
        Ok(rounding.map_or(Outcome::Same { noisy: noise.is_some() }, Outcome::Rounding))
    }

    /// Judges results where no `f64` run draws the same random numbers: the error of eager is not known.
    fn without_f64(&self, eager: &Left, ours: &Left, open: &[usize]) -> Outcome {
        let far = open.iter().find(|&&at| {
            let (Some(e), Some(o)) = (eager.get(at), ours.get(at)) else { return true };
            let (e, o) = (e.to_kind(Kind::Double), o.to_kind(Kind::Double));
            let finite = e.isfinite().logical_and(&o.isfinite());
            let largest = |t: &Tensor| t.masked_select(&finite).abs().max().double_value(&[]);
            let some = finite.any().int64_value(&[]) != 0;
            some && largest(&(&e - &o)) > 1e-2 * largest(&e).max(1.0)
        });
        let Some(&at) = far else { return Outcome::Same { noisy: true } };
        Outcome::Unjudged(format!(
            "{} run: {}: not close, and it draws random numbers",
            self.run,
            self.place(at)
        ))
    }

    /// The difference of the first of the results `open`, where the program does not run in `f64`.
    fn without_double(
        &self,
        eager: &Left,
        ours: &Left,
        open: &[usize],
        error: &Error,
    ) -> Result<Outcome, Error> {
        let at = open.first().copied().unwrap_or_default();
        let (Some(e), Some(o)) = (eager.get(at), ours.get(at)) else {
            return Ok(self.different(&self.place(at), "absent"));
        };
        let difference =
            compare(&visible(e), &visible(o), false, None).err().map_or(String::new(), |d| d.to_string());
        let error = first_line(&error.to_string());
        Ok(self.different(&self.place(at), format!("{difference}; it does not run in f64: {error}")))
    }

    /// The errors of a result beside that of `noise`.
    fn rounding(&self, at: usize, measured: &Measured, exact: &Tensor, noise: &[Left]) -> Rounding {
        let place = format!("{} run: {}", self.run, self.place(at));
        let own =
            measured.errors.map_or((f64::INFINITY, 0.0, f64::INFINITY), |e| (e.ours, e.eager, e.relative));
        let errors = noise.iter().filter_map(|n| {
            let n = visible(n.get(at)?);
            measure(&n, &n, Some(exact))?.errors
        });
        let noise = errors.map(|e| e.eager).fold(own.1, f64::max);
        Rounding { place, max_abs: measured.max_abs, ours: own.0, eager: own.1, noise, relative: own.2 }
    }

    /// The types of all values.
    fn kinds(&self) -> Result<HashMap<u32, Kind>, Error> {
        let storages = copies(self.draw, Mode::Native);
        let values = self.program.run_all(&self.program.views(&storages)?, Mode::Native)?;
        Ok(values.into_iter().filter(|(_, t)| t.defined()).map(|(id, t)| (id, t.kind())).collect())
    }

    /// The runs of these numbers in a mode with random rounding errors: each has its own, the same ones whenever it is run.
    fn noise(&self, mode: Mode<'_>, numbers: Range<usize>) -> Result<Vec<Left>, Error> {
        let _generators = (!self.program.takes_seed()).then(generators);
        let run = |number: usize| {
            let storages = copies(self.draw, mode);
            seed_with(SEED + 1 + number as i64);
            self.run_seeded(storages, mode)
        };
        numbers.map(run).collect()
    }

    /// Our result with eager's elements where one is NaN or infinite and the other is finite or otherwise so, and ours is not as in
    /// `f64` either, if runs with random rounding errors differ in each of these as well: where a rounding decides whether `1` or a number above it is the operand
    /// of an `atanh`, or whether a product is within the range of its type, either result is right.
    fn without_noisy_specials(
        &self,
        (eager, ours, exact): (&Tensor, &Tensor, &Tensor),
        at: usize,
        kinds: &HashMap<u32, Kind>,
    ) -> Result<Option<Tensor>, Error> {
        if exact.size() != ours.size() || !eager.is_floating_point() {
            return Ok(None);
        }
        // 0 for finite numbers, 1 for NaN, 2 and 3 for infinities.
        let class = |t: &Tensor| {
            let of = |is: Tensor, number: i64| is.to_kind(Kind::Int64) * number;
            of(t.isnan(), 1) + of(t.isposinf(), 2) + of(t.isneginf(), 3)
        };
        let count = |t: &Tensor| t.count_nonzero(None::<i64>).int64_value(&[]);
        let is_exact = class(&exact.to_kind(ours.kind())).eq_tensor(&class(ours));
        let differ = class(eager).ne_tensor(&class(ours)).logical_and(&is_exact.logical_not());
        let (all, mut unexplained, mut first) = (count(&differ), differ.shallow_clone(), None);
        for number in 0..MAX_RUNS_OF_SPECIALS {
            let left = count(&unexplained);
            if left == 0 || (number >= RUNS_OF_SPECIALS && left == all) {
                break;
            }
            // Of many runs no more is kept than what they say of this result.
            // What is between operators may have the range of its type, or that of the type in which kernels compute.
            let mode = if number % 2 == 0 { Mode::Noisy(kinds) } else { Mode::Bounded(kinds) };
            let runs = self.noise(mode, number..number + 1)?;
            let Some(run) = runs.first().and_then(|run| run.get(at)) else { return Ok(None) };
            let run = class(&visible(run).to_kind(ours.kind()).to_device(ours.device()));
            let same = run.eq_tensor(first.get_or_insert_with(|| run.shallow_clone()));
            unexplained = unexplained.logical_and(&same);
        }
        Ok((count(&unexplained) == 0).then(|| eager.where_self(&differ, ours)))
    }
}

impl Left {
    fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.outputs.iter().chain(&self.storages)
    }

    fn get(&self, at: usize) -> Option<&Tensor> {
        self.all().nth(at)
    }
}

/// How two results differ in what is not in their values: whether they are defined, their layout, and the bits for a
/// conjugation or negation that was not carried out.
fn representation(eager: &Tensor, ours: &Tensor) -> Option<String> {
    const BITS: [(Flags, &str); 5] = [
        (Flags::CONJ, "conjugate"),
        (Flags::NEG, "negative"),
        (Flags::SPARSE, "sparse"),
        (Flags::QUANTIZED, "quantised"),
        (Flags::STRIDED, "strided"),
    ];
    if eager.defined() != ours.defined() {
        return Some(format!("defined: {} instead of {}", ours.defined(), eager.defined()));
    }
    let flags = |t: &Tensor| Meta::of(t).map_or(Flags::default(), |m| m.flags);
    let (e, o) = (flags(eager), flags(ours));
    let differs = BITS.iter().find(|(flag, _)| e.contains(*flag) != o.contains(*flag));
    differs.map(|(flag, word)| format!("{word}: {} instead of {}", o.contains(*flag), e.contains(*flag)))
}

/// `c10::ScalarType::UInt16`, before those of 32 and 64 bits.
const UINT16: i8 = 27;
const UINT64: i8 = 29;

/// The values of a result as a strided tensor of real numbers.
fn visible(t: &Tensor) -> Tensor {
    if !t.defined() {
        return Tensor::zeros([0], (Kind::Float, Device::Cpu));
    }
    let (flags, dtype) = Meta::of(t).map_or((Flags::default(), 0), |m| (m.flags, m.dtype));
    if (UINT16..=UINT64).contains(&dtype) {
        // Types that tch does not know.
        return t.view_dtype([Kind::Int16, Kind::Int, Kind::Int64][usize::from((dtype - UINT16) as u8)]);
    }
    let t = match flags {
        f if f.contains(Flags::QUANTIZED) => t.dequantize(),
        f if !f.contains(Flags::STRIDED) => t.to_dense(None, false),
        _ => t.shallow_clone(),
    };
    let complex = matches!(t.kind(), Kind::ComplexHalf | Kind::ComplexFloat | Kind::ComplexDouble);
    if complex { t.resolve_conj().view_as_real() } else { t }
}

/// The first pair of results and storages that share memory in only one of two runs, or at another distance.
fn aliasing(eager: &Left, ours: &Left) -> Option<String> {
    let metas = |left: &Left| left.all().map(|t| Meta::of(t).ok()).collect::<Vec<_>>();
    let (want, got) = (metas(eager), metas(ours));
    let distance = |metas: &[Option<Meta>], i: usize, j: usize| -> Option<i64> {
        let (a, b) = (metas[i].as_ref()?, metas[j].as_ref()?);
        let shared = a.storage_data != 0 && a.storage_data == b.storage_data && a.numel > 0 && b.numel > 0;
        shared.then(|| b.data as i64 - a.data as i64)
    };
    let name = |at: usize| match at.checked_sub(eager.outputs.len()) {
        None => format!("output {at}"),
        Some(storage) => format!("s{storage}"),
    };
    let word = |d: Option<i64>| d.map_or(String::from("in other memory"), |d| format!("{d} bytes on"));
    let pairs = (0..want.len().min(got.len())).flat_map(|i| (i + 1..want.len()).map(move |j| (i, j)));
    let mut pairs = pairs.map(|(i, j)| (i, j, distance(&want, i, j), distance(&got, i, j)));
    let (i, j, want, got) = pairs.find(|(_, _, want, got)| want != got)?;
    Some(format!("from {}, {} lies {} instead of {}", name(i), name(j), word(got), word(want)))
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(300).collect()
}
