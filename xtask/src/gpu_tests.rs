//! The last run of all tests on a machine with a GPU, which is kept in `benches/results/gpu_tests.jsonl`, and how much has
//! changed since.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use tilefuse_setup::process::output;

/// What `run.sh --tests --json` of a bundle appends to; a run in parts has a line for each.
const FILE: &str = "benches/results/gpu_tests.jsonl";

/// The folders of what runs on a GPU, and of its tests.
const SOURCES: [&str; 4] = ["src", "fusion", "codegen", "tests"];

/// The lines of one run, added up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    date: String,
    card: String,
    commit: String,
    passed: u64,
    /// Tests that failed, and programs that crashed.
    failed: u64,
    skipped: u64,
}

/// The commit that is checked out, with `-dirty` behind it where files differ; `None` where there is no git history.
pub(crate) fn commit(root: &Path) -> Option<String> {
    let git = |arguments: &[&str]| output(Command::new("git").current_dir(root).args(arguments));
    let head = git(&["rev-parse", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { head } else { format!("{head}-dirty") })
}

/// The last run; `None` where none was kept.
pub(crate) fn last(root: &Path) -> Result<Option<Run>> {
    match std::fs::read_to_string(root.join(FILE)) {
        Ok(text) => read(&text),
        Err(_) => Ok(None),
    }
}

/// The last line, with those before it that are the other parts of the same run.
fn read(text: &str) -> Result<Option<Run>> {
    let mut run: Option<Run> = None;
    let mut parts = BTreeSet::new();
    for line in text.lines().rev().filter(|line| !line.trim().is_empty()) {
        let row: Value = serde_json::from_str(line).with_context(|| format!("{FILE}: {line}"))?;
        let word = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let found = run.get_or_insert_with(|| Run {
            date: word("date"),
            card: word("card"),
            commit: word("commit"),
            ..Run::default()
        });
        let same = (&found.date, &found.commit) == (&word("date"), &word("commit"));
        if !same || !parts.insert(word("shard")) {
            break;
        }
        found.passed += number("passed");
        found.failed += number("failed") + number("crashed");
        found.skipped += number("skipped");
        if row["shard"].is_null() {
            break;
        }
    }
    Ok(run)
}

impl Run {
    /// Whether the run is no proof that the tests pass on a GPU.
    pub(crate) fn failed(&self) -> bool {
        self.failed > 0 || self.passed == 0 || self.card == "no GPU"
    }

    /// What passed and failed, where and when, and what has changed since.
    pub(crate) fn sentence(&self, root: &Path) -> String {
        let Self { date, card, commit, passed, failed, skipped } = self;
        let commit = commit.strip_suffix("-dirty").unwrap_or(commit);
        let short = commit.get(..12).unwrap_or(commit);
        let since =
            since(root, commit).unwrap_or_else(|| String::from("its age is not known: no git history of it"));
        let proof = if self.failed() { "no proof: " } else { "" };
        format!(
            "GPU tests: {proof}{passed} passed, {failed} failed, {skipped} skipped on {card}, {date}, commit {short}; \
             {since}"
        )
    }
}

/// How much of [`SOURCES`] has changed since a commit.
fn since(root: &Path, commit: &str) -> Option<String> {
    let git = |arguments: &[&str]| {
        let paths = ["--"].into_iter().chain(SOURCES);
        output(Command::new("git").current_dir(root).args(arguments).args(paths))
    };
    let commits = git(&["rev-list", "--count", &format!("{commit}..HEAD")])?;
    let changes = git(&["diff", "--numstat", commit])?;
    let count = |text: &str| text.parse::<u64>().unwrap_or(0);
    let lines: u64 = changes.lines().map(|line| line.split('\t').take(2).map(count).sum::<u64>()).sum();
    if commits == "0" && lines == 0 {
        return Some(String::from("nothing has changed since"));
    }
    Some(format!("since then {commits} commits, {lines} lines of {} changed", SOURCES.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Says how old the kept run is; it fails where that run did, not where it is old, so that who has no GPU can land.
    #[test]
    fn the_kept_run_passed_and_is_so_old() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let said = match last(root).unwrap() {
            Some(run) => {
                assert!(!run.failed(), "{}", run.sentence(root));
                run.sentence(root)
            }
            None => String::from("GPU tests: no run is kept"),
        };
        // Not by a macro, whose output the harness keeps to itself.
        let _ = std::io::stderr().write_all(format!("{said}\n").as_bytes());
    }

    #[test]
    fn parts_of_one_run_are_added() {
        let line = |commit: &str, passed: u64, failed: u64, shard: &str| {
            format!(
                r#"{{"date":"2026-11-23","card":"H","commit":"{commit}","passed":{passed},"failed":0,"crashed":{failed},"skipped":1{shard}}}"#
            )
        };
        let [first, second] = [r#","shard":"1/2""#, r#","shard":"2/2""#];
        let text = [line("a", 9, 9, ""), line("b", 3, 0, first), line("b", 4, 1, second)].join("\n");
        let run = read(&text).unwrap().unwrap();
        assert_eq!((run.commit.as_str(), run.passed, run.failed, run.skipped), ("b", 7, 1, 2));
        assert!(run.failed());
        let run = read(&[line("b", 3, 0, ""), line("b", 5, 0, "")].join("\n")).unwrap().unwrap();
        assert_eq!((run.passed, run.failed()), (5, false));
        assert_eq!(read("").unwrap(), None);
        assert!(read("{").is_err());
    }

    #[test]
    fn the_age_is_said_or_said_to_be_unknown() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let run = Run { commit: "0000000000000000".into(), passed: 1, ..Run::default() };
        assert!(run.sentence(root).ends_with("its age is not known: no git history of it"));
        if let Some(head) = commit(root) {
            let run = Run { commit: head, ..run };
            assert!(run.sentence(root).contains("since"), "{}", run.sentence(root));
        }
    }
}
