//! The table of `ARCHITECTURE.md`: which crates the crates of the workspace may depend on. Below it, which modules of `fusion/src` may
//! use which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
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

/// The modules of `fusion/src`, floor by floor, those of the folder `rewrite` among them. Each may use those that stand before it.
const FLOORS: [&[&str]; 8] = [
    // What all others are made of.
    &["types", "combiner", "contraction", "hints", "index", "machine", "promote", "rewrite_limit", "taken"],
    // Calls, and block kernels, which nodes of graphs have.
    &["block_kernel", "recording", "args", "convolution", "library_form"],
    // Graphs.
    &["graph", "eval", "text", "verify"],
    // Kernels as expressions over a loop domain.
    &["kernel", "place"],
    // Rewrites of graphs.
    &[
        "functionalize",
        "simplify",
        "lower",
        "tuple_reductions",
        "softmax",
        "select_attention",
        "gathered_products",
        "sliced_products",
        "select_library",
        "channels_last",
    ],
    // Block programs.
    &["schedule", "epilogue", "contract"],
    // Groups of nodes, and plans.
    &["plan"],
    &["pipeline"],
];

/// The Rust files of a folder, those of tests left out.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if path.is_dir() && stem != "tests" {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !stem.ends_with("tests") {
            found.push(path);
        }
    }
}

/// The code of a file, without comments and without its tests, which come last.
fn code(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.collect::<Vec<_>>().join("\n")
}

/// The identifier that a text begins with.
fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// The names that a path with this rest, behind `crate::`, begins with.
fn first_names(rest: &str) -> Vec<&str> {
    let Some(list) = rest.strip_prefix('{') else { return vec![identifier(rest)] };
    let (mut names, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, c) in list.char_indices() {
        match c {
            ',' if depth == 0 => {
                names.push(identifier(list[start..at].trim_start()));
                start = at + 1;
            }
            '{' => depth += 1,
            '}' if depth == 0 => {
                names.push(identifier(list[start..at].trim_start()));
                break;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}

/// The module of each name that the crate exports from one.
fn exports(library: &str) -> BTreeMap<&str, &str> {
    let uses = library.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let uses = uses.filter_map(|path| path.split_once("::"));
    uses.flat_map(|(module, rest)| first_names(rest).into_iter().map(move |name| (name, module))).collect()
}

#[test]
fn modules_of_fusion_use_only_those_before_them() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fusion/src"));
    let library = code(&root.join("lib.rs")).replace("pub use rewrite::", "pub use ");
    let exports = exports(&library);
    let order: Vec<&str> = FLOORS.concat();
    let (mut all, mut wrong) = (Vec::new(), BTreeSet::new());
    files(root, &mut all);
    for file in &all {
        let inside = file.strip_prefix(root).unwrap();
        let inside = inside.strip_prefix("rewrite").unwrap_or(inside);
        let first = inside.iter().next().and_then(|part| part.to_str()).unwrap();
        let module = first.trim_end_matches(".rs");
        if library.contains(&format!("#[cfg(test)]\nmod {module};")) || ["lib", "mod"].contains(&module) {
            continue;
        }
        let position = |name: &str| order.iter().position(|known| *known == name);
        let own = position(module)
            .unwrap_or_else(|| panic!("{module} is not in the order of the modules of fusion/src"));
        let code = code(file).replace("crate::rewrite::", "crate::");
        for name in code.split("crate::").skip(1).flat_map(first_names) {
            let used = exports.get(name).copied().unwrap_or(name);
            if position(used).is_none_or(|used| used > own) {
                wrong.insert(format!("{} must not use {used}", inside.display()));
            }
        }
    }
    assert_eq!(wrong, BTreeSet::new());
}
