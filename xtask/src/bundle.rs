//! `cargo xtask bundle`: the program, the tests and the benchmarks for a machine that has a GPU and torch, but no Rust.
//!
//! All test programs are in it but those that a package declares to have nothing for a GPU, in its manifest:
//!
//! ```toml
//! [package.metadata.bundle]
//! host-only = ["lib", "ptx"]
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tilefuse_setup::process::{run, run_quietly};
use tilefuse_setup::progress::Step;

use crate::arguments::Profile;
use crate::gpu_tests;
use crate::setup::setup;
use crate::workspace::Workspace;

/// Starts a program of the bundle with torch's libraries.
const RUN: &str = include_str!("bundle/run.sh");

/// Runs the test programs of the bundle, and counts.
const TESTS: &str = include_str!("bundle/tests.py");

/// Files, and folders of files, of the repository that tests read.
const FILES: [&str; 8] = [
    "kernels",
    "tests/tilefuse/reasons.txt",
    "tests/tilefuse/reasons_of_host.txt",
    "tests/tilefuse/samples.txt",
    "tests/tilefuse/layers.pt",
    "tests/tilefuse/nvtx_log.c",
    "docs/plan.schema.json",
    "docs/diff.schema.json",
];

/// The largest archive that is worth sending around.
const LIMIT: u64 = 60 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Program,
    Test,
    Bench,
}

/// A program that cargo built.
#[derive(Debug, PartialEq, Eq)]
struct Executable {
    kind: Kind,
    /// Its package and target, as in `tilefuse-codegen-launch`.
    name: String,
    path: PathBuf,
}

/// Builds, and packs `target/bundle` and `target/bundle.tar.xz`.
pub(crate) fn bundle(workspace: &Workspace, profile: Profile) -> Result<()> {
    setup(workspace)?;
    let host_only = host_only(workspace)?;
    let mut executables = build(workspace, profile)?;
    executables.retain(|one| one.kind != Kind::Test || !host_only.contains(&one.name));
    let folder = workspace.target.join("bundle");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    gather(&executables, &folder)?;
    for name in FILES {
        copy_files(&workspace.root.join(name), &folder.join("files").join(name))?;
    }
    fs::write(folder.join("COMMIT"), gpu_tests::commit(&workspace.root).unwrap_or_default())?;
    pack(workspace)
}

/// The test programs that manifests declare to have nothing for a GPU, by the names of [`Executable`].
fn host_only(workspace: &Workspace) -> Result<BTreeSet<String>> {
    let mut command = workspace.cargo();
    command.args(["metadata", "--no-deps", "--offline", "--format-version=1"]);
    let output = command.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    Ok(declared(&serde_json::from_slice(&output.stdout)?))
}

fn declared(metadata: &Value) -> BTreeSet<String> {
    let all = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let of = |package: Value| {
        let targets = all(&package["metadata"]["bundle"]["host-only"]).into_iter();
        let name = package["name"].as_str().unwrap_or_default().to_owned();
        targets.filter_map(move |target| Some(format!("{name}-{}", target.as_str()?)))
    };
    all(&metadata["packages"]).into_iter().flat_map(of).collect()
}

/// Builds every program, test and benchmark.
fn build(workspace: &Workspace, profile: Profile) -> Result<Vec<Executable>> {
    let mut command = workspace.cargo();
    command.args(["build", "--workspace", "--exclude=xtask"]);
    command.args((profile == Profile::Release).then_some("--release"));
    command.args(["--lib", "--bins", "--tests", "--benches", "--message-format=json-render-diagnostics"]);
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let mut executables = Vec::new();
    for line in BufReader::new(child.stdout.take().context("cargo has no output")?).lines() {
        executables.extend(executable(&line?));
    }
    let status = child.wait()?;
    ensure!(status.success(), "the build ended with {status}");
    Ok(executables)
}

/// Reads one message of cargo's; `None` where it announces no program.
fn executable(message: &str) -> Option<Executable> {
    let message: Value = serde_json::from_str(message).ok()?;
    let path = PathBuf::from(message["executable"].as_str()?);
    let target = &message["target"];
    let name = target["name"].as_str()?;
    let is_test = message["profile"]["test"].as_bool()?;
    let kind = match target["kind"][0].as_str()? {
        "bench" => Kind::Bench,
        "bin" if !is_test => Kind::Program,
        _ if is_test => Kind::Test,
        _ => return None,
    };
    let name = match (kind, target["kind"][0].as_str()?) {
        (Kind::Program, _) => name.to_owned(),
        (_, "lib") => format!("{}-lib", package_name(message["package_id"].as_str()?)?),
        // A program and a file of tests may have one name.
        (_, "bin") => format!("{}-bin-{name}", package_name(message["package_id"].as_str()?)?),
        _ => format!("{}-{name}", package_name(message["package_id"].as_str()?)?),
    };
    Some(Executable { kind, name, path })
}

/// The name in `path+file:///clone/codegen#tilefuse-codegen@0.1.0`; where the folder has the package's name,
/// cargo leaves that out, as in `path+file:///clone/xtask#0.1.0`.
fn package_name(id: &str) -> Option<&str> {
    let (path, package) = id.rsplit_once('#')?;
    package.split_once('@').map(|(name, _)| name).or_else(|| path.rsplit('/').next())
}

/// Copies the programs, stripped, and writes the scripts that start them.
fn gather(executables: &[Executable], folder: &Path) -> Result<()> {
    for executable in executables {
        let place = folder.join(match executable.kind {
            Kind::Program => "bin",
            Kind::Test => "tests",
            Kind::Bench => "benches",
        });
        fs::create_dir_all(&place)?;
        let copy = place.join(&executable.name);
        anyhow::ensure!(!copy.exists(), "two programs of the bundle are {}", copy.display());
        run(Command::new("strip").arg("-o").arg(&copy).arg(&executable.path))?;
        println!("{:>5.1} MB  {}", megabytes(&copy)?, copy.display());
    }
    fs::write(folder.join("tests.py"), TESTS)?;
    let script = folder.join("run.sh");
    fs::write(&script, RUN)?;
    Ok(fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?)
}

/// Copies a file, or the files of a folder, without its folders.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    if from.is_file() {
        to.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::copy(from, to)?;
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn pack(workspace: &Workspace) -> Result<()> {
    let archive = workspace.target.join("bundle.tar.xz");
    let step = Step::begin("packing");
    let mut command = Command::new("tar");
    // All programs hold the same LLVM: a window over several of them stores it once. No filter for branches, which would make the same
    // code of two programs differ.
    command.env("XZ_OPT", "--threads=1 --lzma2=preset=2,dict=256MiB,mf=hc4");
    command.arg("-cJf").arg(&archive).arg("-C").arg(&workspace.target).arg("bundle");
    run_quietly(&mut command, &step).context("packing takes tar and xz (package xz-utils)")?;
    let size = megabytes(&archive)?;
    step.end(&format!("{size:.1} MB in {}", archive.display()));
    ensure!(fs::metadata(&archive)?.len() <= LIMIT, "the archive is larger than {} MB", LIMIT >> 20);
    Ok(())
}

fn megabytes(file: &Path) -> Result<f64> {
    Ok(fs::metadata(file)?.len() as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: &str, name: &str, is_test: bool) -> Option<(Kind, String)> {
        let message = serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": "path+file:///clone/codegen#tilefuse-codegen@0.1.0",
            "target": { "kind": [kind], "name": name },
            "profile": { "test": is_test },
            "executable": "/clone/target/release/deps/it",
        });
        executable(&message.to_string()).map(|executable| (executable.kind, executable.name))
    }

    #[test]
    fn programs_tests_and_benchmarks_are_told_apart() {
        assert_eq!(check("bin", "tilefuse", false), Some((Kind::Program, "tilefuse".into())));
        assert_eq!(check("lib", "tilefuse_codegen", true), Some((Kind::Test, "tilefuse-codegen-lib".into())));
        assert_eq!(check("test", "launch", true), Some((Kind::Test, "tilefuse-codegen-launch".into())));
        assert_eq!(check("bin", "launch", true), Some((Kind::Test, "tilefuse-codegen-bin-launch".into())));
        assert_eq!(check("bench", "suite", false), Some((Kind::Bench, "tilefuse-codegen-suite".into())));
        assert_eq!(check("lib", "tilefuse_codegen", false), None);
        assert_eq!(package_name("path+file:///clone/xtask#0.1.0"), Some("xtask"));
        assert_eq!(executable("{\"reason\":\"build-finished\",\"success\":true}"), None);
    }

    #[test]
    fn manifests_declare_what_is_left_out() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "a", "metadata": { "bundle": { "host-only": ["lib", "ptx"] } } },
            { "name": "b", "metadata": null },
        ] });
        assert_eq!(declared(&metadata), ["a-lib", "a-ptx"].map(String::from).into());
    }

    /// All that tests read by `files()`, but what they do without where it is not there.
    #[test]
    fn files_that_tests_read_are_in_a_bundle() {
        const OPTIONAL: [&str; 1] = ["README.md"];
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/tilefuse"));
        let mut found = 0;
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            for rest in text.split("files().join(\"").skip(1) {
                let name = rest.split('"').next().unwrap();
                let is_packed = FILES.iter().any(|file| Path::new(name).starts_with(file));
                assert!(is_packed || OPTIONAL.contains(&name), "{}: {name}", path.display());
                found += 1;
            }
        }
        assert!(found > 5, "{found} files");
    }

    /// A bundle of shell scripts in the place of test programs, and what `run.sh --tests` says of it last.
    fn run_tests(programs: &[(&str, &str)], options: &[&str]) -> Option<(bool, String)> {
        let folder = std::env::temp_dir().join(format!("bundle-{}-{}", std::process::id(), programs[0].0));
        fs::create_dir_all(folder.join("tests")).unwrap();
        fs::write(folder.join("tests.py"), TESTS).unwrap();
        fs::write(folder.join("COMMIT"), "0123456789abcdef-dirty").unwrap();
        for (name, text) in programs {
            let file = folder.join("tests").join(name);
            fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let output = Command::new("python3").arg(folder.join("tests.py")).arg("tests").args(options).output();
        fs::remove_dir_all(&folder).unwrap();
        // Machines without Python have no bundle to run.
        let output = output.ok()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = said.lines().last().unwrap_or_default().to_owned();
        Some((output.status.success(), last))
    }

    const PASSES: &str = "echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out'";

    #[test]
    fn tests_of_a_bundle_end_with_one_line() {
        let skips =
            format!("echo 'skipped, no device: none' >&2; echo '12 GPU cases skipped, no device'; {PASSES}");
        let Some((ok, line)) = run_tests(&[("good", PASSES), ("skips", &skips)], &[]) else { return };
        let counts = "ok: 2 programs: 6 passed, 0 failed, 2 ignored, 13 skipped, 0 crashed in ";
        assert!(ok && line.starts_with(counts), "{line}");
        assert!(line.ends_with("commit 0123456789ab"), "{line}");
    }

    #[test]
    fn a_program_of_a_bundle_that_crashes_or_says_nothing_fails() {
        let cases = [
            ("crash", "kill -SEGV $$"),
            ("silent", "exit 0"),
            ("slow", "sleep 60"),
            ("status", "echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured'; exit 3"),
        ];
        for case in cases {
            let Some((ok, line)) = run_tests(&[case, ("z", PASSES)], &["--seconds", "5"]) else { return };
            assert!(!ok && line.starts_with("FAILED: 2 programs: "), "{}: {line}", case.0);
            assert!(line.contains(" 1 crashed"), "{}: {line}", case.0);
        }
        let fails =
            ("fails", "echo 'test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured'; exit 101");
        let Some((ok, line)) = run_tests(&[fails], &[]) else { return };
        assert!(!ok && line.contains("3 passed, 2 failed, 0 ignored, 0 skipped, 0 crashed"), "{line}");
    }
}
