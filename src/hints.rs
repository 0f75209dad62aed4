//! What a user asks of the compiler about parts of a model.

use std::collections::BTreeSet;

use indexmap::{IndexMap, IndexSet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tilefuse_fusion::{Declined, Graph, Hints, Op};

use crate::paths::{Covered, Pattern};
use crate::{Options, Strict};

/// What the compiler is to do with some operators of a model: those of a module, by its path in the `VarStore` or its
/// [`scope`](crate::scope), with those within it, or those of a name. A path may leave out what all modules of the model lie in, as
/// plans do. Hints that no operator of a call is meant by are in [`Explanation::unmatched`](crate::Explanation::unmatched).
///
/// ```
/// use tilefuse::{Hint, Options};
///
/// let hints = vec![
///     Hint::eager("h.*.attn"),       // the attention of every layer runs in libtorch
///     Hint::separate("ln_f"),        // the last norm has kernels of its own
///     Hint::together("h.0.mlp"),     // one kernel wherever one can be built, whatever it costs
///     Hint::eager("aten::softmax"),  // every softmax
///     Hint::tolerance("head", 1e-5), // within a hundred-thousandth of eager's, or in libtorch
/// ];
/// let options = Options { hints, ..Options::default() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    of: String,
    effect: Effect,
}

/// What a hint asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Eager,
    Separate,
    Together,
    Tolerance(Relative),
}

impl From<Effect> for PatternOption {
    fn from(effect: Effect) -> PatternOption {
        match effect {
            Effect::Eager => PatternOption::Eager,
            Effect::Separate => PatternOption::Separate,
            Effect::Together => PatternOption::Together,
            Effect::Tolerance(_) => PatternOption::Tolerance,
        }
    }
}

/// A number that is not negative and no NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Relative(f64);

impl Eq for Relative {}

impl Hint {
    /// These operators run in libtorch, as in eager. A `*` in the pattern stands for any one part of a path; `#23` is the operator
    /// of this number in a plan.
    pub fn eager(of: &str) -> Hint {
        Hint { of: of.to_owned(), effect: Effect::Eager }
    }

    /// These operators are in no kernel with others: each module that a path covers in none with what is outside of it, each
    /// operator that a name or `*` covers in one of its own.
    pub fn separate(of: &str) -> Hint {
        Hint { of: of.to_owned(), effect: Effect::Separate }
    }

    /// These operators are in one kernel wherever one can be built, also where the cost model expects it to be slower.
    pub fn together(of: &str) -> Hint {
        Hint { of: of.to_owned(), effect: Effect::Together }
    }

    /// What these operators give to others, or to the caller, is eager's but for `relative` times the largest of the elements of each
    /// tensor; NaN and infinities are where eager has them, and integers are equal. Each module that a path covers and each operator
    /// that a name covers is compared as a whole, by what it gives to operators outside of it.
    ///
    /// That is found out while the plan is compiled: the plan, with the rounding of all that comes before in it, runs on the inputs of
    /// the captured call, and so do libtorch's operators. What differs by more is left to libtorch, and where that does not suffice,
    /// with everything that it is computed from; where a model writes its inputs or parameters, no such run is made, and this is done
    /// at once. For other inputs the difference may be another one. The results that are compared are written to memory, which the
    /// plan holds to the end of a call. A number that is negative or NaN counts as 0.
    pub fn tolerance(of: &str, relative: f64) -> Hint {
        Hint { of: of.to_owned(), effect: Effect::Tolerance(Relative(relative.max(0.0))) }
    }
}

impl Hint {
    /// The captured calls that it covers, and by what.
    fn origins(&self, graph: &Graph, modules: &[String]) -> IndexMap<u32, Covered> {
        let pattern = Pattern::new(&self.of, modules.iter().map(String::as_str));
        let of = |(origin, operator): (usize, &String)| {
            let module = modules.get(origin).map_or("", String::as_str);
            Some((origin as u32, pattern.covered(operator, module)?))
        };
        graph.origins.iter().enumerate().filter_map(of).collect()
    }
}

/// As it is read from a text.
impl std::fmt::Display for Hint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.effect {
            Effect::Eager => write!(f, "eager={}", self.of),
            Effect::Separate => write!(f, "separate={}", self.of),
            Effect::Together => write!(f, "together={}", self.of),
            Effect::Tolerance(Relative(relative)) => write!(f, "tolerance:{relative:e}={}", self.of),
        }
    }
}

impl std::str::FromStr for Hint {
    type Err = String;

    fn from_str(text: &str) -> Result<Hint, String> {
        let unknown = || {
            format!(
                "`{text}` is none of eager=PATTERN, separate=PATTERN, together=PATTERN and tolerance:NUMBER=PATTERN, as in \
                 tolerance:1e-5=h.*.attn"
            )
        };
        let (effect, of) = text.split_once('=').filter(|(_, of)| !of.is_empty()).ok_or_else(unknown)?;
        match effect {
            "eager" => Ok(Hint::eager(of)),
            "separate" => Ok(Hint::separate(of)),
            "together" => Ok(Hint::together(of)),
            _ => {
                let number = effect.strip_prefix("tolerance:").and_then(|number| number.parse::<f64>().ok());
                let relative = number.filter(|number| *number >= 0.0).ok_or_else(unknown)?;
                Ok(Hint::tolerance(of, relative))
            }
        }
    }
}

/// Applies hints to a functional graph, whose origins are the captured calls, of these modules.
pub(crate) fn apply(hints: &[Hint], graph: &mut Graph, modules: &[String]) -> Hints {
    let mut found = Hints::default();
    let mut regions = IndexSet::new();
    for (position, hint) in hints.iter().enumerate() {
        let origins = hint.origins(graph, modules);
        match hint.effect {
            // Looked at once there are kernels: see `tolerances`.
            Effect::Tolerance(_) => {}
            Effect::Eager => keep(graph, &origins, &hint.of),
            Effect::Together => {
                origins.keys().for_each(|&origin| found.keep_together(origin, position as u32));
            }
            Effect::Separate => origins.into_iter().for_each(|(origin, covered)| {
                let operator = (covered == Covered::Operator).then_some(origin);
                let (region, _) = regions.insert_full((position, operator, covered));
                found.keep_separate(origin, region as u32, &hint.of);
            }),
        }
    }
    found
}

/// What is said of a pattern that no operator is meant by.
pub(crate) const UNMATCHED: &str = "no operator has this name, and none is of such a module";

/// A pattern that no operator of a call is meant by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnmatchedPattern {
    /// What the pattern was given to.
    pub option: PatternOption,
    /// The pattern.
    pub pattern: String,
}

/// What takes patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PatternOption {
    /// [`Hint::eager`].
    Eager,
    /// [`Hint::separate`].
    Separate,
    /// [`Hint::together`].
    Together,
    /// [`Hint::tolerance`].
    Tolerance,
    /// [`Strict::Kernels`].
    Strict,
}

/// With the name of the option on the command line: `hint eager=h.*.atn`.
impl std::fmt::Display for UnmatchedPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.option {
            PatternOption::Eager => "hint eager=",
            PatternOption::Separate => "hint separate=",
            PatternOption::Together => "hint together=",
            PatternOption::Tolerance => "hint tolerance=",
            PatternOption::Strict => "strict ",
        })?;
        f.write_str(&self.pattern)
    }
}

impl UnmatchedPattern {
    /// The same as a whole sentence.
    pub(crate) fn text(&self) -> String {
        format!("{self}: {UNMATCHED}")
    }
}

/// The hints, and the patterns of [`Strict::Kernels`], that no call of a functional graph is meant by.
pub(crate) fn unmatched(options: &Options, graph: &Graph, modules: &[String]) -> Vec<UnmatchedPattern> {
    let hints = options.hints.iter().filter(|hint| hint.origins(graph, modules).is_empty());
    let of_hint = |hint: &Hint| UnmatchedPattern { option: hint.effect.into(), pattern: hint.of.clone() };
    let mut found: Vec<UnmatchedPattern> = hints.map(of_hint).collect();
    if let Strict::Kernels(patterns) = &options.strict {
        // All operators of a model that has none are computed by kernels.
        let patterns = patterns.iter().filter(|pattern| *pattern != "*");
        let strict = patterns.filter(|of| Hint::eager(of).origins(graph, modules).is_empty());
        let of_strict = |of: &String| UnmatchedPattern { option: PatternOption::Strict, pattern: of.clone() };
        found.extend(strict.map(of_strict));
    }
    found
}

/// Warns of patterns that no operator is meant by.
pub(crate) fn warn(unmatched: &[UnmatchedPattern]) {
    unmatched.iter().for_each(|of| tracing::warn!("{}", of.text()));
}

/// Operators whose results must be within a tolerance of eager's.
#[derive(Clone, Debug)]
pub(crate) struct Tolerated {
    /// The pattern of the hint.
    pub(crate) of: String,
    /// The module, or the operator.
    pub(crate) part: String,
    /// Relative to the largest element of each result.
    pub(crate) relative: f64,
    /// The captured calls.
    pub(crate) origins: BTreeSet<u32>,
}

/// What hints of a tolerance cover in a functional graph, whose origins are the captured calls, of these modules: each module, and
/// each operator that is covered by its name, by itself.
pub(crate) fn tolerances(hints: &[Hint], graph: &Graph, modules: &[String]) -> Vec<Tolerated> {
    let mut found = Vec::new();
    for hint in hints {
        let Effect::Tolerance(Relative(relative)) = hint.effect else { continue };
        let mut parts: IndexMap<String, BTreeSet<u32>> = IndexMap::new();
        for (origin, covered) in hint.origins(graph, modules) {
            let part = match covered {
                Covered::Operator => graph.origins[origin as usize].clone(),
                Covered::Module(path) => path,
            };
            parts.entry(part).or_default().insert(origin);
        }
        found.extend(parts.into_iter().map(|(part, origins)| {
            let of = hint.of.clone();
            Tolerated { of, part, relative, origins }
        }));
    }
    found
}

/// Keeps the calls of these origins in libtorch.
fn keep(graph: &mut Graph, origins: &IndexMap<u32, Covered>, of: &str) {
    let ids: Vec<_> = graph.ids().collect();
    for id in ids {
        let node = graph.node(id);
        if matches!(node.op, Op::Aten(_)) && node.origin.is_some_and(|origin| origins.contains_key(&origin)) {
            let reason = format!("the hint `eager` for {of} keeps it there");
            graph.keep_call(id, Declined::new(reason, format!("without the hint `eager` for {of}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Hint;

    #[test]
    fn hints_are_parsed() {
        assert_eq!("separate=h.*.mlp".parse(), Ok(Hint::separate("h.*.mlp")));
        assert_eq!("tolerance:1e-5=h.*".parse(), Ok(Hint::tolerance("h.*", 1e-5)));
        assert_eq!(Hint::tolerance("h", f64::NAN), Hint::tolerance("h", 0.0));
        for text in ["eager=*", "separate=h.*.mlp", "together=#23", "tolerance:1.5e-5=h.*", "tolerance:0e0=h"]
        {
            assert_eq!(text.parse::<Hint>().map(|hint| hint.to_string()), Ok(text.to_owned()));
        }
        let wrong = [
            "separate",
            "near=x",
            "eager=",
            "tolerance=h",
            "tolerance:x=h",
            "tolerance:-1=h",
            "tolerance:nan=h",
        ];
        assert!(wrong.iter().all(|text| text.parse::<Hint>().is_err()));
    }
}
