//! The command line of `cargo xtask`.

use std::path::PathBuf;

/// What `cargo xtask help` prints.
pub(crate) const USAGE: &str = "\
usage: cargo xtask TASK

  setup              find or install libtorch 2.11, LLVM 22, a C++20 compiler and ptxas
  demo [MODEL] ...   set up, build, then compare a fused model with eager and explain its plan
                     (GPT-2 where no model is named; what follows goes to `tilefuse compare` and
                     `tilefuse explain`)
  test [ARG]...      set up, then run every test; arguments go to `cargo test`
  ptxas [--all] [--program FILE | --from DIR]
                     assemble every kernel of the model zoo for sm_80 and sm_90a; fails on register spills.
                     --program names a tilefuse that is built already, --from a folder of kernels (*.ptx)
                     that were written already, and --all lists every kernel
  bundle [--dev]     pack the program, the tests that run on a GPU and the benchmarks for a machine without Rust;
                     with --dev unoptimised, as tests are built
  benchmarks [--check]
                     write the tables and the picture of README.md and docs/benchmarks.md from benches/results;
                     with --check, fail where they are not what would be written
  help               this text
";

/// A task with its options.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    Setup,
    /// Arguments of `tilefuse compare` and `explain`, the model first.
    Demo(Vec<String>),
    /// Arguments of `cargo test`.
    Test(Vec<String>),
    Ptxas(PtxasOptions),
    Bundle(Profile),
    /// Whether generated text is only checked.
    Benchmarks {
        check: bool,
    },
}

/// How programs are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Dev,
    Release,
}

/// Options of `cargo xtask ptxas`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PtxasOptions {
    /// The `tilefuse` program that writes the kernels; built where it is not named.
    pub(crate) program: Option<PathBuf>,
    /// List every kernel, not only the heaviest.
    pub(crate) all: bool,
    /// A folder of kernels to assemble instead of the zoo's.
    pub(crate) from: Option<PathBuf>,
}

/// A command line that is not understood.
#[derive(Debug)]
pub(crate) struct UsageError(String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n\n{USAGE}", self.0)
    }
}

impl std::error::Error for UsageError {}

/// Reads the arguments that follow the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Task, UsageError> {
    let mut arguments = arguments.into_iter();
    let Some(task) = arguments.next() else { return Err(UsageError("no task was named".into())) };
    let rest: Vec<String> = arguments.collect();
    match task.as_str() {
        "help" | "--help" | "-h" => Ok(Task::Help),
        "demo" => Ok(Task::Demo(demo_arguments(rest))),
        "test" => Ok(Task::Test(rest)),
        "setup" => alone(Task::Setup, &rest),
        "bundle" if rest == ["--dev"] => Ok(Task::Bundle(Profile::Dev)),
        "bundle" => alone(Task::Bundle(Profile::Release), &rest),
        "benchmarks" if rest == ["--check"] => Ok(Task::Benchmarks { check: true }),
        "benchmarks" => alone(Task::Benchmarks { check: false }, &rest),
        "ptxas" => ptxas_options(rest).map(Task::Ptxas),
        other => Err(UsageError(format!("`{other}` is no task"))),
    }
}

fn alone(task: Task, rest: &[String]) -> Result<Task, UsageError> {
    match rest.first() {
        None => Ok(task),
        Some(extra) => Err(UsageError(format!("`{extra}` is one argument too many"))),
    }
}

fn demo_arguments(mut rest: Vec<String>) -> Vec<String> {
    if rest.first().is_none_or(|first| first.starts_with('-')) {
        rest.insert(0, "gpt2".into());
    }
    rest
}

fn ptxas_options(rest: Vec<String>) -> Result<PtxasOptions, UsageError> {
    let mut options = PtxasOptions::default();
    let mut rest = rest.into_iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--all" => options.all = true,
            "--program" => options.program = Some(path(&argument, rest.next())?),
            "--from" => options.from = Some(path(&argument, rest.next())?),
            other => return Err(UsageError(format!("ptxas knows no `{other}`"))),
        }
    }
    Ok(options)
}

fn path(option: &str, value: Option<String>) -> Result<PathBuf, UsageError> {
    value.map(PathBuf::from).ok_or_else(|| UsageError(format!("{option} names no path")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str) -> Result<Task, UsageError> {
        parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn tasks_and_their_options() {
        assert_eq!(check("setup").unwrap(), Task::Setup);
        assert_eq!(check("bundle").unwrap(), Task::Bundle(Profile::Release));
        assert_eq!(check("bundle --dev").unwrap(), Task::Bundle(Profile::Dev));
        assert_eq!(check("benchmarks").unwrap(), Task::Benchmarks { check: false });
        assert_eq!(check("benchmarks --check").unwrap(), Task::Benchmarks { check: true });
        assert_eq!(check("test -p xtask -- plan").unwrap(), {
            Task::Test(["-p", "xtask", "--", "plan"].map(String::from).into())
        });
        let options = PtxasOptions { all: true, from: Some("kernels".into()), program: None };
        assert_eq!(check("ptxas --all --from kernels").unwrap(), Task::Ptxas(options));
    }

    #[test]
    fn demo_takes_gpt2_where_no_model_is_named() {
        assert_eq!(check("demo").unwrap(), Task::Demo(vec!["gpt2".into()]));
        assert_eq!(check("demo --device cuda").unwrap(), {
            Task::Demo(["gpt2", "--device", "cuda"].map(String::from).into())
        });
        assert_eq!(check("demo llama").unwrap(), Task::Demo(vec!["llama".into()]));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, word) in [
            ("", "no task"),
            ("built", "`built`"),
            ("setup now", "`now`"),
            ("ptxas --from", "--from"),
            ("ptxas -x", "`-x`"),
        ] {
            let message = check(line).unwrap_err().to_string();
            assert!(message.contains(word) && message.contains("usage:"), "{line}: {message}");
        }
    }
}
