//! The table of `ARCHITECTURE.md`: which crates the crates of the workspace may depend on.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// Crates that only some may know: their own crates, libtorch, LLVM and CUDA.
const GUARDED: [&str; 12] = [
    "tilefuse",
    "tilefuse-fusion",
    "tilefuse-block",
    "tilefuse-codegen",
    "tilefuse-macros",
    "tilefuse-models",
    "tilefuse-setup",
    "tch",
    "torch-sys",
    "inkwell",
    "llvm-sys",
    "cudarc",
];

/// What each crate may know of [`GUARDED`].
const ALLOWED: [(&str, &[&str]); 8] = [
    (
        "tilefuse",
        &[
            "tilefuse-fusion",
            "tilefuse-block",
            "tilefuse-codegen",
            "tilefuse-macros",
            "tilefuse-models",
            "tch",
            "torch-sys",
        ],
    ),
    ("tilefuse-fusion", &["tilefuse-block"]),
    ("tilefuse-block", &[]),
    ("tilefuse-codegen", &["tilefuse-block", "inkwell", "llvm-sys", "cudarc"]),
    ("tilefuse-macros", &[]),
    ("tilefuse-models", &["tch", "torch-sys"]),
    ("tilefuse-setup", &[]),
    ("xtask", &["tilefuse-setup"]),
];

/// The dependencies of each crate of the workspace, those of tests and build scripts among them.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let name = |item: &Value| item["name"].as_str().unwrap().to_owned();
    let crates = metadata["packages"].as_array().unwrap().iter();
    crates.map(|p| (name(p), p["dependencies"].as_array().unwrap().iter().map(name).collect())).collect()
}

#[test]
fn each_crate_knows_only_what_it_may() {
    for (name, dependencies) in dependencies() {
        let allowed = ALLOWED.iter().find(|(owner, _)| *owner == name).map(|(_, allowed)| *allowed);
        let allowed = allowed.unwrap_or_else(|| panic!("{name} is not in the table of ARCHITECTURE.md"));
        for dependency in &dependencies {
            let known = GUARDED.contains(&dependency.as_str()) && !allowed.contains(&dependency.as_str());
            assert!(!known, "{name} must not know {dependency}");
        }
    }
}
