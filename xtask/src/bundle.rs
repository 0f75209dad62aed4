//! `cargo xtask bundle`: the program, the GPU tests and the benchmarks for a machine that has a GPU and
//! torch, but no Rust.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{output, run, run_quietly};
use crate::progress::Step;
use crate::setup::setup;
use crate::workspace::Workspace;

/// Starts a program of the bundle with torch's libraries.
const RUN: &str = include_str!("bundle/run.sh");

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

/// Builds with optimisation and packs `target/bundle` and `target/bundle.tar.xz`.
pub(crate) fn bundle(workspace: &Workspace) -> Result<()> {
    setup(workspace)?;
    let mut executables = build(workspace)?;
    executables.retain(|executable| executable.kind != Kind::Test || needs_gpu(workspace, executable));
    let folder = workspace.target.join("bundle");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    gather(&executables, &folder)?;
    pack(workspace)
}

/// Builds every program, test and benchmark, and returns those that are worth bundling.
fn build(workspace: &Workspace) -> Result<Vec<Executable>> {
    let mut command = workspace.cargo();
    command.args(["build", "--release", "--workspace", "--exclude=xtask"]);
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

/// Whether one of the program's tests is for a GPU; those are named so.
fn needs_gpu(workspace: &Workspace, test: &Executable) -> bool {
    let mut command = Command::new(&test.path);
    let listed = output(command.arg("--list").current_dir(&workspace.root)).unwrap_or_default();
    names_gpu_test(&listed)
}

fn names_gpu_test(listed: &str) -> bool {
    let mut tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    tests.any(|name| name.contains("cuda") || name.contains("gpu"))
}

/// Copies the programs, stripped, and writes the script that starts them.
fn gather(executables: &[Executable], folder: &Path) -> Result<()> {
    for executable in executables {
        let place = folder.join(match executable.kind {
            Kind::Program => "bin",
            Kind::Test => "tests",
            Kind::Bench => "benches",
        });
        fs::create_dir_all(&place)?;
        let copy = place.join(&executable.name);
        run(Command::new("strip").arg("-o").arg(&copy).arg(&executable.path))?;
        println!("{:>5.1} MB  {}", megabytes(&copy)?, copy.display());
    }
    let script = folder.join("run.sh");
    fs::write(&script, RUN)?;
    Ok(fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?)
}

fn pack(workspace: &Workspace) -> Result<()> {
    let archive = workspace.target.join("bundle.tar.xz");
    let step = Step::begin("packing");
    let mut command = Command::new("tar");
    // All programs hold the same LLVM: a window over several of them stores it once.
    let code = if cfg!(target_arch = "x86_64") { "--x86 " } else { "" };
    command.env("XZ_OPT", format!("--threads=1 {code}--lzma2=preset=6,dict=192MiB"));
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
        assert_eq!(check("bench", "suite", false), Some((Kind::Bench, "tilefuse-codegen-suite".into())));
        assert_eq!(check("lib", "tilefuse_codegen", false), None);
        assert_eq!(package_name("path+file:///clone/xtask#0.1.0"), Some("xtask"));
        assert_eq!(executable("{\"reason\":\"build-finished\",\"success\":true}"), None);
    }

    #[test]
    fn a_gpu_test_is_known_by_its_name() {
        assert!(names_gpu_test("launch::add_on_cuda: test\n\n1 test, 0 benchmarks\n"));
        assert!(!names_gpu_test("cache::flips: test\n\n1 test, 0 benchmarks\n"));
        assert!(!names_gpu_test("cuda: benchmark\n"));
    }
}
