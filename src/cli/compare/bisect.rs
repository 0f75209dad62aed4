//! `tilefuse compare --bisect`: which rewrite, and which operator, makes results other than eager's.

use std::fmt::Write;

use super::{Case, Outcome, compare};
use crate::cli::Failure;
use crate::cli::peers::Python;
use crate::{Hint, Options};

/// What was found; a rewrite and an operator, of so many.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bisection {
    /// How many rewrites there are.
    rewrites: u64,
    /// The first that makes a difference, and the pass that makes it; none where there is one without any.
    rewrite: Option<(u64, String)>,
    /// How many operators were captured.
    operators: u64,
    /// The first that makes a difference where it is compiled and those behind it are not, and what is said of it; none where there
    /// is a difference with none compiled.
    operator: Option<(u64, String)>,
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

/// Finds what makes a difference, in a model that has so many operators and differs with these options.
fn find(
    options: &Options,
    (rewrites, operators): (u64, u64),
    trial: &mut dyn FnMut(Options) -> Result<Trial, Failure>,
) -> Result<Bisection, Failure> {
    let rewrite = least(rewrites, |limit| {
        Ok(trial(Options { max_rewrites: Some(limit), ..options.clone() })?.difference.is_some())
    })?;
    let rewrite = match rewrite {
        None => None,
        Some(at) => {
            let last = trial(Options { max_rewrites: Some(at), ..options.clone() })?.last;
            Some((at, last.unwrap_or_else(|| String::from("no pass"))))
        }
    };
    let compiled = |first: u64| {
        let eager = (first..operators).map(|at| Hint::eager(&format!("#{at}")));
        Options { hints: options.hints.iter().cloned().chain(eager).collect(), ..options.clone() }
    };
    let mut said = trial(options.clone())?.difference.unwrap_or_default();
    let operator = least(operators, |first| {
        let difference = trial(compiled(first))?.difference;
        let differs = difference.is_some();
        if let Some(difference) = difference {
            said = difference;
        }
        Ok(differs)
    })?;
    Ok(Bisection { rewrites, rewrite, operators, operator: operator.map(|first| (first - 1, said)) })
}

/// Bisects a case that differed.
pub(crate) fn bisect(case: &Case, batch: Option<i64>, outcome: &Outcome) -> Result<Bisection, Failure> {
    let counts = (outcome.rewrites, outcome.ops_captured as u64);
    find(&case.options, counts, &mut |options| {
        let trial = compare(&Case { options, seconds: 0.0, ..case.clone() }, batch, &mut Python::none())?;
        let Outcome { difference, last_rewrite: last, .. } = trial;
        Ok(Trial { difference, last })
    })
}

impl Bisection {
    /// For a reader.
    pub(crate) fn text(&self) -> String {
        let mut text = match &self.rewrite {
            None => String::from(
                "different without any rewrite: the capture, what makes it functional, or code generation\n",
            ),
            Some((at, pass)) => format!(
                "equal with {} of {} rewrites, different with {at}, which {pass} makes: \
                 `tilefuse explain --max-rewrites {at} --print-after {}` shows it\n",
                at - 1,
                self.rewrites,
                pass.split(['/', ' ']).next().unwrap_or(pass)
            ),
        };
        let _ = match &self.operator {
            None => writeln!(text, "different with every operator in libtorch"),
            Some((at, said)) => writeln!(
                text,
                "equal with {at} of {} operators compiled, different with operator #{at}: {said}; `--hint eager=#{at}` leaves it \
                 to libtorch",
                self.operators
            ),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of 40 operators and 214 rewrites, of which one each is wrong.
    fn model(rewrite: u64, operator: u64) -> impl FnMut(Options) -> Result<Trial, Failure> {
        move |options| {
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
            assert_eq!(found.rewrite, Some((rewrite, String::from("simplify/cse"))));
            // A command that is understood: a pass, not what it calls its rewrite.
            let text = found.text();
            let pass = text.split("--print-after ").nth(1).and_then(|rest| rest.split('`').next()).unwrap();
            assert!(crate::cli::explain::pass(pass).is_ok(), "{text}");
            assert_eq!(found.operator, Some((operator, String::from("output 0"))));
        }
        let found = find(&Options::default(), (214, 40), &mut model(0, 22)).unwrap();
        assert_eq!(found.rewrite, None);
        assert!(found.text().contains("different with operator #22"));
    }
}
