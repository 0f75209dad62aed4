//! One program, fused against eager.

use std::collections::HashMap;

use tch::{Device, Kind, Tensor};

use super::judge::{Difference, difference, errors, factor, specials_of};
use super::program::{Mode, Program, copies};
use crate::Error;
use crate::torch::Meta;

/// A program as a model: a function of its inputs that holds its parameters.
pub type Model = Box<dyn Fn(&[Tensor]) -> Vec<Tensor> + Send>;

/// What a program's model is wrapped in.
pub trait Subject {
    /// Calls it. A panic of the model is an error.
    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String>;
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
    /// In what they differ.
    Different(String),
}

/// Checks a program: `wrap` makes a subject of the model, which captures on one draw of inputs and parameters and is
/// judged on another. Returns the subject, to ask it how it ran.
pub fn check<S: Subject>(
    program: &Program,
    seed: u64,
    device: Device,
    wrap: impl FnOnce(Model) -> S,
) -> Result<(Outcome, S), Error> {
    let _no_grad = tch::no_grad_guard();
    let first = program.draw(seed, device);
    let second = program.draw(seed ^ 0x5bd1_e995, device);
    let held = copies(&first, Mode::Native);
    let subject = wrap(model(program, &held)?);
    let mut noisy = false;
    let mut earlier: Option<Vec<Tensor>> = None;
    for (round, draw) in [&first, &second, &second].into_iter().enumerate() {
        let trial = Trial { program, draw, held: &held };
        match trial.compare(&subject)? {
            (Outcome::Same { noisy: more }, results) => {
                noisy |= more;
                let repeated = earlier.replace(results);
                if let (2, Some(before), Some(now)) = (round, repeated, earlier.as_ref())
                    && let Some(text) = unstable(&before, now)
                {
                    return Ok((Outcome::Different(text), subject));
                }
            }
            (Outcome::Different(text), _) => {
                let run = ["capturing", "second", "third"][round];
                return Ok((Outcome::Different(format!("{run} run: {text}")), subject));
            }
            (Outcome::BothFail, _) if round == 2 => return Ok((Outcome::BothFail, subject)),
            (Outcome::BothFail, _) => {}
        }
    }
    Ok((Outcome::Same { noisy }, subject))
}

/// The program as a function of its inputs; parameters are read from `held`.
fn model(program: &Program, held: &[Tensor]) -> Result<Model, Error> {
    let views = program.views(held)?;
    let program = program.clone();
    Ok(Box::new(move |given| {
        let mut given = given.iter();
        let view = |(input, held): (&super::Input, &Tensor)| {
            if input.param { held.shallow_clone() } else { given.next().unwrap_or(held).shallow_clone() }
        };
        let views: Vec<Tensor> = program.inputs.iter().zip(&views).map(view).collect();
        program.run(&views, Mode::Native).unwrap_or_else(|error| std::panic::panic_any(error.to_string()))
    }))
}

fn unstable(before: &[Tensor], now: &[Tensor]) -> Option<String> {
    before.iter().zip(now).enumerate().find_map(|(at, (a, b))| {
        difference(a, b, true).map(|d| format!("output {at} changes from run to run: {d:?}"))
    })
}

/// One call with one draw.
struct Trial<'a> {
    program: &'a Program,
    draw: &'a [Tensor],
    /// The storages that the model's parameters view.
    held: &'a [Tensor],
}

/// What a run left behind.
struct Left {
    outputs: Vec<Tensor>,
    storages: Vec<Tensor>,
}

impl Trial<'_> {
    fn compare<S: Subject>(&self, subject: &S) -> Result<(Outcome, Vec<Tensor>), Error> {
        let eager = self.run(Mode::Native);
        let ours = self.ours(subject)?;
        let outcome = match (eager, ours) {
            (Err(_), Err(_)) => Outcome::BothFail,
            (Err(error), Ok(_)) => {
                Outcome::Different(format!("eager rejects the inputs: {}", first_line(&error.to_string())))
            }
            (Ok(_), Err(text)) => Outcome::Different(format!("failed: {}", first_line(&text))),
            (Ok(eager), Ok(ours)) => {
                let outcome = self.judge(&eager, &ours)?;
                return Ok((outcome, ours.outputs));
            }
        };
        Ok((outcome, Vec::new()))
    }

    fn run(&self, mode: Mode<'_>) -> Result<Left, Error> {
        let storages = copies(self.draw, mode);
        let outputs = self.program.run(&self.program.views(&storages)?, mode)?;
        Ok(Left { outputs, storages })
    }

    fn ours<S: Subject>(&self, subject: &S) -> Result<Result<Left, String>, Error> {
        let fresh = copies(self.draw, Mode::Native);
        for (held, value) in self.held.iter().zip(self.draw) {
            held.shallow_clone().copy_(value);
        }
        let views = self.program.views(&fresh)?;
        let given: Vec<Tensor> =
            self.program.inputs.iter().zip(views).filter(|(i, _)| !i.param).map(|(_, t)| t).collect();
        let storages = (0..fresh.len()).map(|at| {
            let param = self.program.inputs.iter().any(|i| i.storage == at && i.param);
            if param { self.held[at].shallow_clone() } else { fresh[at].shallow_clone() }
        });
        let storages = storages.collect();
        Ok(subject.call(&given).map(|outputs| Left { outputs, storages }))
    }

    fn judge(&self, eager: &Left, ours: &Left) -> Result<Outcome, Error> {
        if eager.outputs.len() != ours.outputs.len() {
            let message = format!("{} outputs instead of {}", ours.outputs.len(), eager.outputs.len());
            return Ok(Outcome::Different(message));
        }
        if let Some(text) = aliasing(eager, ours) {
            return Ok(Outcome::Different(text));
        }
        let writes = self.program.ops.iter().any(super::OpCall::in_place);
        let outputs = self.program.outputs.iter().map(|o| o.exact);
        let exact: Vec<bool> = outputs.chain(eager.storages.iter().map(|_| !writes)).collect();
        let mut rounding = Vec::new();
        for (at, ((e, o), exact)) in eager.all().zip(ours.all()).zip(exact).enumerate() {
            match difference(e, o, exact) {
                None => {}
                Some(Difference::Rounding(text)) => rounding.push((at, text)),
                Some(Difference::Plain(text)) => return Ok(Outcome::Different(self.place(at, &text))),
                Some(Difference::Specials)
                    if self.run(Mode::Double)?.get(at).is_some_and(|exact| specials_of(o, exact)) => {}
                Some(Difference::Specials) => {
                    return Ok(Outcome::Different(self.place(at, "NaN or infinities in other places")));
                }
            }
        }
        if rounding.is_empty() {
            Ok(Outcome::Same { noisy: false })
        } else {
            self.second_opinion(eager, ours, &rounding)
        }
    }

    fn place(&self, at: usize, text: &str) -> String {
        match at.checked_sub(self.program.outputs.len()) {
            None => format!("output {at}: {text}"),
            Some(storage) => format!("storage s{storage} after the call: {text}"),
        }
    }

    /// Whether rounding explains differences: first by the error of an `f64` run, then by that of runs with random
    /// rounding errors.
    fn second_opinion(
        &self,
        eager: &Left,
        ours: &Left,
        rounding: &[(usize, String)],
    ) -> Result<Outcome, Error> {
        let double = self.run(Mode::Double)?;
        let mut noise: Option<Vec<Left>> = None;
        for (at, text) in rounding {
            let (Some(e), Some(o), Some(exact)) = (eager.get(*at), ours.get(*at), double.get(*at)) else {
                continue;
            };
            let Some((eager_error, our_error)) = errors(e, o, exact) else { continue };
            if our_error <= factor(e.kind()) * eager_error {
                continue;
            }
            if noise.is_none() {
                noise = Some(self.noise()?);
            }
            let noisy = noise
                .iter()
                .flatten()
                .filter_map(|n| n.get(*at)?.size().eq(&exact.size()).then(|| n.get(*at))?);
            let expected = noisy.filter_map(|n| errors(n, n, exact)).map(|e| e.0).fold(eager_error, f64::max);
            if our_error > 4.0 * expected {
                let more = format!(
                    "{text}; error against f64 {our_error:.3e}, eager's {eager_error:.3e}, noise {expected:.3e}"
                );
                return Ok(Outcome::Different(self.place(*at, &more)));
            }
        }
        Ok(Outcome::Same { noisy: noise.is_some() })
    }

    fn noise(&self) -> Result<Vec<Left>, Error> {
        let storages = copies(self.draw, Mode::Native);
        let values = self.program.run_all(&self.program.views(&storages)?, Mode::Native)?;
        let kinds: HashMap<u32, Kind> = values.into_iter().map(|(id, t)| (id, t.kind())).collect();
        (0..3).map(|_| self.run(Mode::Noisy(&kinds))).collect()
    }
}

impl Left {
    fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.outputs.iter().chain(&self.storages)
    }

    fn get(&self, at: usize) -> Option<&Tensor> {
        self.all().nth(at)
    }

    /// The storage that an output lies in, if it is one of the program's.
    fn home(&self, output: &Tensor) -> Option<usize> {
        let address = |t: &Tensor| Meta::of(t).map_or(0, |m| m.storage_data);
        let at = address(output);
        self.storages.iter().position(|s| at != 0 && address(s) == at)
    }
}

fn aliasing(eager: &Left, ours: &Left) -> Option<String> {
    eager.outputs.iter().zip(&ours.outputs).enumerate().find_map(|(at, (e, o))| {
        let (want, got) = (eager.home(e), ours.home(o));
        let word = |s: Option<usize>| s.map_or(String::from("memory of its own"), |s| format!("s{s}"));
        (want != got && e.numel() > 0)
            .then(|| format!("output {at} lies in {} instead of {}", word(got), word(want)))
    })
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(300).collect()
}
