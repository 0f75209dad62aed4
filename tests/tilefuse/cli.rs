//! The program: bad input ends with one clear line and status 2.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tilefuse")).args(args).output().unwrap()
}

fn rejected(args: &[&str], expected: &str) {
    let output = run(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
    assert!(said.contains(expected), "{args:?}: {said}");
    assert!(!said.contains("panicked") && !said.contains("stack backtrace"), "{args:?}: {said}");
    assert_eq!(said.trim().lines().count(), 1, "{args:?}: {said}");
}

#[test]
fn bad_input_is_named_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.pt");
    std::fs::write(&file, "PK\u{3}\u{4} this is no archive").unwrap();
    let file = file.to_str().unwrap();
    rejected(&["compare", "no-such-model"], "there is no model and no file");
    rejected(&["compare", file, "--input", "f32[2]"], "is not a TorchScript file");
    rejected(&["compare", file], "is not a TorchScript file");
    rejected(&["compare", "mlp8x1024-tiny", "--input", "f32[1,2", "--seconds", "0"], "there is no ]");
    rejected(&["compare", "mlp8x1024-tiny", "--input", "f32[3,7]", "--seconds", "0"], "the model failed");
    rejected(&["compare", "mlp8x1024-tiny", "--input", "i64[3]{0..9}", "--seconds", "0"], "the model failed");
    rejected(
        &["compare", "kernel:softmax", "--input", "f32[2]", "--input", "f32[2]", "--seconds", "0"],
        "takes",
    );
    rejected(&["compare", "mlp8x1024-tiny", "--device", "abacus"], "is none of cpu, cuda, cuda:N");
    rejected(&["compare", "mlp8x1024-tiny", "--dtype", "f33"], "is none of f32");
    if tilefuse::torch::cuda_devices().is_err() {
        rejected(&["compare", "mlp8x1024-tiny", "--device", "cuda"], "CUDA is not available");
    }
}

#[test]
fn a_manifest_goes_on_after_a_bad_case() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cases.jsonl");
    let lines = r#"{"name":"good","model":"mlp8x1024-tiny"}
{"name":"bad","model":"no-such-model"}
{"model":
{"name":"empty","model":"kernel:softmax","inputs":["f32[0,4]"]}
"#;
    std::fs::write(&path, lines).unwrap();
    let output = run(&["compare", "--manifest", path.to_str().unwrap(), "--seconds", "0"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.trim().ends_with("2 passed, 2 failed, 0 skipped"), "{said}");
}

#[test]
fn an_unwritable_cache_is_a_warning() {
    let output = Command::new(env!("CARGO_BIN_EXE_tilefuse"))
        .args(["compare", "mlp8x1024-tiny", "--seconds", "0", "--json"])
        .env("TILEFUSE_CACHE", "/proc/no/such/folder")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}
