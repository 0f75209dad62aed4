//! `tilefuse compare --bisect`: which kernel's result differs most from eager's, and which rewrite, and which operator, makes results
//! other than eager's.

use std::fmt::Write;

use indicatif::ProgressBar;
use serde::Serialize;

use super::kernels::{Differences, written};
use super::{Case, Outcome, compare};
use crate::cli::Failure;
use crate::cli::peers::Python;
use crate::{Hint, Options};

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Bisection {
    /// By how much results of kernels differ.
    #[serde(flatten)]
    differences: Differences,
    /// What makes the model's results differ; absent where they are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<Cause>,
}

/// A rewrite and an operator, of so many, that make results differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Cause {
    /// How many rewrites there are.
    rewrites: u64,
    /// The first that makes a difference; none where there is one without any.
    rewrite: Option<Rewrite>,
    /// How many operators were captured.
    operators: u64,
    /// The first that makes a difference where it is compiled and those behind it are not; none where there is a difference with
    /// none compiled.
    operator: Option<Operator>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Rewrite {
    /// Its position, from 1.
    number: u64,
    /// The pass that makes it.
    pass: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Operator {
    /// Its position, from 0.
    number: u64,
    /// What is said of the difference.
    difference: String,
}

/// What became of a model under some options.
pub(crate) struct Trial {
    /// The difference from eager; none where there is none.
    difference: Option<String>,
    /// The pass that made the last rewrite.
    last: Option<String>,
}

/// The least of `1..=most` for which something holds that holds for `most` and for all above the least; `None` where it holds
/// for 0.
fn least(most: u64, mut holds: impl FnMut(u64) -> Result<bool, Failure>) -> Result<Option<u64>, Failure> {
    if holds(0)? {
        return Ok(None);
    }
    let (mut below, mut at) = (0, most);
    while at - below > 1 {
        let middle = below + (at - below) / 2;
        if holds(middle)? { at = middle } else { below = middle }
    }
    Ok(Some(at))
}

/// Trials that [`least`] makes at most.
fn most_trials(most: u64) -> u64 {
    1 + u64::from(u64::BITS - most.saturating_sub(1).leading_zeros())
}

/// Tries a model under some options, which are said in words.
type Try<'a> = dyn FnMut(Options, String) -> Result<Trial, Failure> + 'a;

/// Finds what makes a difference, in a model that has so many operators and differs with these options.
fn find(options: &Options, (rewrites, operators): (u64, u64), trial: &mut Try<'_>) -> Result<Cause, Failure> {
    let mut limited = |limit| {
        let what = format!("with {limit} of {rewrites} rewrites");
        trial(Options { max_rewrites: Some(limit), ..options.clone() }, what)
    };
    let rewrite = match least(rewrites, |limit| Ok(limited(limit)?.difference.is_some()))? {
        None => None,
        Some(number) => {
            let last = limited(number)?.last;
            Some(Rewrite { number, pass: last.unwrap_or_else(|| String::from("no pass")) })
        }
    };
    let compiled = |first: u64| {
        let eager = (first..operators).map(|at| Hint::eager(&format!("#{at}")));
        Options { hints: options.hints.iter().cloned().chain(eager).collect(), ..options.clone() }
    };
    let mut said = trial(options.clone(), String::from("with all of it"))?.difference.unwrap_or_default();
    let operator = least(operators, |first| {
        let what = format!("with {first} of {operators} operators compiled");
        let difference = trial(compiled(first), what)?.difference;
        let differs = difference.is_some();
        if let Some(difference) = difference {
            said = difference;
        }
        Ok(differs)
    })?;
    let operator = operator.map(|first| Operator { number: first - 1, difference: said });
    Ok(Cause { rewrites, rewrite, operators, operator })
}

/// Compilations of [`bisect`] at most.
pub(crate) fn steps(outcome: &Outcome) -> u64 {
    let causes = || most_trials(outcome.rewrites) + most_trials(outcome.ops_captured as u64) + 2;
    2 + if outcome.ok { 0 } else { causes() }
}

/// Bisects a case that was compared; a bar of [`steps`] says what is tried.
pub(crate) fn bisect(
    case: &Case,
    batch: Option<i64>,
    outcome: &Outcome,
    bar: &ProgressBar,
) -> Result<Bisection, Failure> {
    let with = |options| Case { options, seconds: 0.0, ..case.clone() };
    let planned = |options: Options| {
        bar.set_message(format!("{}: each kernel beside eager's operators", case.name));
        let plan = compare(&with(options), batch, &mut Python::none()).map(|(_, plan)| plan);
        bar.inc(1);
        plan
    };
    let mut differences = Differences::default();
    if let Some(plan) = planned(case.options.clone())?
        && plan.updates.is_empty()
    {
        let kept = written(&plan).into_iter().map(|operator| Hint::tolerance(&operator, f64::INFINITY));
        let hints = case.options.hints.iter().cloned().chain(kept).collect();
        if let Some(plan) = planned(Options { hints, ..case.options.clone() })? {
            differences = Differences::of(&plan);
        }
    }
    if outcome.ok {
        return Ok(Bisection { differences, cause: None });
    }
    let counts = (outcome.rewrites, outcome.ops_captured as u64);
    let cause = find(&case.options, counts, &mut |options, what| {
        bar.set_message(format!("{}: {what}", case.name));
        let (Outcome { difference, last_rewrite: last, .. }, _) =
            compare(&with(options), batch, &mut Python::none())?;
        bar.inc(1);
        Ok(Trial { difference, last })
    })?;
    Ok(Bisection { differences, cause: Some(cause) })
}

impl Bisection {
    /// For a reader.
    pub(crate) fn text(&self) -> String {
        let mut text = match &self.cause {
            None => String::from("nothing differs from eager by more than rounding\n"),
            Some(_) => String::new(),
        };
        text.push_str(&self.differences.text());
        if let Some(cause) = &self.cause {
            text.push_str(&cause.text());
        }
        text
    }
}

impl Cause {
    fn text(&self) -> String {
        let mut text = match &self.rewrite {
            None => String::from(
                "different without any rewrite: the capture, what makes it functional, or code generation\n",
            ),
            Some(Rewrite { number, pass }) => format!(
                "equal with {} of {} rewrites, different with {number}, which {pass} makes: \
                 `tilefuse explain --max-rewrites {number} --print-after {}` shows it\n",
                number - 1,
                self.rewrites,
                pass.split(['/', ' ']).next().unwrap_or(pass)
            ),
        };
        let _ = match &self.operator {
            None => writeln!(text, "different with every operator in libtorch"),
            Some(Operator { number, difference }) => writeln!(
                text,
                "equal with {number} of {} operators compiled, different with operator #{number}: {difference}; \
                 `--hint eager=#{number}` leaves it to libtorch",
                self.operators
            ),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::model::Which;
    use crate::faults::{Fault, Planting};
    use crate::options::{Audit, Products};

    /// A model of 40 operators and 214 rewrites, of which one each is wrong.
    fn model(rewrite: u64, operator: u64) -> impl FnMut(Options, String) -> Result<Trial, Failure> {
        move |options, _| {
            let made = options.max_rewrites.unwrap_or(214).min(214);
            let compiled = !options.hints.contains(&Hint::eager(&format!("#{operator}")));
            let wrong = made >= rewrite && compiled;
            let last =
                Some(if made == rewrite { "simplify/cse" } else { "vertical-fusion/merge" }.to_owned());
            Ok(Trial { difference: wrong.then(|| String::from("output 0")), last })
        }
    }

    #[test]
    fn the_wrong_rewrite_and_the_wrong_operator_are_found() {
        for (rewrite, operator) in [(1, 0), (114, 22), (214, 39)] {
            let found = find(&Options::default(), (214, 40), &mut model(rewrite, operator)).unwrap();
            assert_eq!(found.rewrite, Some(Rewrite { number: rewrite, pass: String::from("simplify/cse") }));
            // A command that is understood: a pass, not what it calls its rewrite.
            let text = found.text();
            let pass = text.split("--print-after ").nth(1).and_then(|rest| rest.split('`').next()).unwrap();
            assert!(crate::cli::explain::pass(pass).is_ok(), "{text}");
            let first = Operator { number: operator, difference: String::from("output 0") };
            assert_eq!(found.operator, Some(first));
        }
        let found = find(&Options::default(), (214, 40), &mut model(0, 22)).unwrap();
        assert_eq!(found.rewrite, None);
        assert!(found.text().contains("different with operator #22"));
    }

    /// The bar has no more steps than it needs, and each says what is tried.
    #[test]
    fn no_more_is_tried_than_is_said_before() {
        for most in [0, 1, 2, 3, 40, 214, 256, 257] {
            for wrong in 1..=most {
                let mut tries = 0;
                let found = least(most, |at| {
                    tries += 1;
                    Ok(at >= wrong)
                });
                assert_eq!(found.unwrap(), Some(wrong));
                assert!(tries <= most_trials(most), "{tries} of {}", most_trials(most));
            }
        }
        let (mut said, mut model) = (Vec::new(), model(114, 22));
        let mut trial = |options, what| {
            said.push(what);
            model(options, String::new())
        };
        find(&Options::default(), (214, 40), &mut trial).unwrap();
        assert_eq!(said[..2], ["with 0 of 214 rewrites", "with 107 of 214 rewrites"]);
        assert!(said.contains(&String::from("with 20 of 40 operators compiled")), "{said:?}");
    }

    /// A small model with a fault.
    fn case(model: &str, fault: Option<Planting>) -> Case {
        // Kernels that read what kernels write, without measurements.
        let options =
            Options { fault, products: Products::Generated, audit: Audit::Never, ..Options::default() };
        let (which, device) = (Which::find(model).unwrap(), tch::Device::Cpu);
        let name = model.to_owned();
        Case { name, which, inputs: None, device, dtype: None, options, seconds: 0.0, repro: None }
    }

    /// What bisecting finds of it.
    fn bisected(case: &Case) -> Bisection {
        let (outcome, _) = compare(case, None, &mut Python::none()).unwrap();
        assert_eq!(outcome.ok, case.options.fault.is_none());
        let bar = ProgressBar::hidden();
        let found = bisect(case, None, &outcome, &bar).unwrap();
        assert!(bar.position() > 0 && bar.position() <= steps(&outcome), "{} tries", bar.position());
        assert!(bar.message().starts_with(&case.name), "{}", bar.message());
        found
    }

    #[test]
    fn the_pass_behind_a_planted_fault_is_found() {
        let found = bisected(&case("gpt2-tiny", Some(Planting { fault: Fault::ArenaOverlap, choice: 0 })));
        let cause = found.cause.as_ref().unwrap();
        let rewrite = cause.rewrite.as_ref().unwrap();
        assert!(rewrite.number > 1 && rewrite.number <= cause.rewrites, "{rewrite:?}");
        assert!(found.text().contains(&format!("which {} makes", rewrite.pass)));
        assert!(cause.operator.as_ref().unwrap().difference.contains("over the tolerance"), "{cause:?}");
    }

    #[test]
    fn the_kernel_that_computes_something_else_is_named() {
        let fault = Planting { fault: Fault::FunctionMistaken, choice: 0 };
        let found = bisected(&case("mlp8x1024-tiny", Some(fault)));
        let kernel = found.differences.kernel.as_ref().unwrap();
        assert_eq!(kernel.operators, ["aten::linear #3", "aten::gelu #4", "aten::layer_norm #5"]);
        assert_eq!(
            (&*kernel.result, &kernel.modules[..]),
            ("aten::layer_norm #5", &["3".into(), "5".into()][..])
        );
        assert!(kernel.difference.is_some_and(|difference| difference > 0.5), "{kernel:?}");
        let cause = found.cause.as_ref().unwrap();
        // A kernel has the function once `lower` makes one of an operator.
        assert_eq!(cause.rewrite.as_ref().map(|rewrite| &*rewrite.pass), Some("lower"));
        assert!(found.text().contains("that of aten::layer_norm #5 differs most from eager's, by "));
        let data = serde_json::to_value(&found).unwrap();
        assert_eq!(data["kernel"]["step"], kernel.step);
        assert_eq!(data["cause"]["rewrite"]["pass"], "lower");
    }

    #[test]
    fn nothing_differs_where_there_is_no_fault() {
        let case = case("gpt2-tiny", None);
        let found = bisected(&case);
        let kernel = found.differences.kernel.as_ref().unwrap();
        assert!(kernel.difference.unwrap() < 1e-5, "{kernel:?}");
        assert_eq!((found.differences.compared, &found.cause), (14, &None));
        let text = found.text();
        assert!(
            text.starts_with("nothing differs from eager by more than rounding\nof 14 results"),
            "{text}"
        );
    }
}
