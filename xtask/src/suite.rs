//! `cargo xtask test`: every test, and how many there were.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::gpu_tests;
use crate::setup::setup;
use crate::workspace::Workspace;

/// Tests of one or more test programs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    programs: usize,
    passed: usize,
    failed: usize,
    ignored: usize,
}

/// Sets up, then runs `cargo test` with the arguments, over the whole workspace unless they choose packages.
pub(crate) fn test(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    setup(workspace)?;
    let start = Instant::now();
    let mut command = workspace.cargo();
    command.args(cargo_arguments(arguments)).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start cargo")?;
    let mut tally = Tally::default();
    for line in BufReader::new(child.stdout.take().context("cargo has no output")?).lines() {
        let line = line?;
        println!("{line}");
        tally.count(&line);
    }
    let status = child.wait()?;
    println!("\n{} ({:.0} s)", tally.sentence(), start.elapsed().as_secs_f64());
    if let Some(run) = gpu_tests::last(&workspace.root)? {
        println!("{}", run.sentence(&workspace.root));
    }
    if !status.success() {
        bail!("cargo test ended with {status}");
    }
    Ok(())
}

/// Goes on after a failure, so that the counts are of all tests.
fn cargo_arguments(arguments: &[String]) -> Vec<&str> {
    let own = arguments.iter().take_while(|argument| *argument != "--");
    let chooses = own.into_iter().any(|argument| {
        argument.starts_with("-p") || argument.starts_with("--package") || argument == "--workspace"
    });
    let scope: &[&str] = if chooses { &[] } else { &["--workspace"] };
    let arguments = arguments.iter().map(String::as_str);
    ["test", "--no-fail-fast"].into_iter().chain(scope.iter().copied()).chain(arguments).collect()
}

impl Tally {
    /// Adds the line where it is the one that sums up a test program.
    fn count(&mut self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        self.programs += 1;
        for count in counts.split("; ") {
            let Some((number, kind)) = count.split_once(' ') else { continue };
            let number = number.parse().unwrap_or(0);
            match kind {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }

    fn sentence(&self) -> String {
        let Self { programs, passed, failed, ignored } = self;
        let ran = passed + failed;
        format!("{ran} tests ran in {programs} programs: {passed} passed, {failed} failed, {ignored} ignored")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_programs_are_added() {
        let mut tally = Tally::default();
        for line in [
            "test cast ... ok",
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
        ] {
            tally.count(line);
        }
        assert_eq!(tally, Tally { programs: 2, passed: 15, failed: 2, ignored: 1 });
        assert!(tally.sentence().starts_with("17 tests ran in 2 programs: 15 passed, 2 failed"));
    }

    #[test]
    fn the_workspace_is_tested_unless_packages_are_chosen() {
        let check = |line: &str, expected: &str| {
            let arguments: Vec<String> = line.split_whitespace().map(String::from).collect();
            assert_eq!(cargo_arguments(&arguments).join(" "), expected);
        };
        check("", "test --no-fail-fast --workspace");
        check("-p tilefuse-block", "test --no-fail-fast -p tilefuse-block");
        check("-- -p", "test --no-fail-fast --workspace -- -p");
    }
}
