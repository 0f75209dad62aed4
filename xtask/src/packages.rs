//! What is packed to be published: every file that a packed source reads when it is compiled is packed, too.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Text in front of the name of a file, in quotes.
const READS: [&str; 4] = ["include_str!(\"", "include_bytes!(\"", "include!(\"", "#[path = \""];

fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let output = Command::new(cargo).args(arguments).current_dir(root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The folder and the name of each crate that is published.
fn published() -> Vec<(PathBuf, String)> {
    let metadata = cargo(&["metadata", "--no-deps", "--offline", "--format-version=1"]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let text = |item: &Value| item.as_str().unwrap().to_owned();
    let crates = metadata["packages"].as_array().unwrap().iter().filter(|item| item["publish"].is_null());
    crates
        .map(|item| {
            (Path::new(&text(&item["manifest_path"])).parent().unwrap().to_owned(), text(&item["name"]))
        })
        .collect()
}

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        if part == Component::ParentDir {
            plain.pop();
        } else {
            plain.push(part);
        }
        plain
    })
}

#[test]
fn packed_sources_find_what_they_include() {
    for (folder, name) in published() {
        let list = cargo(&["package", "--list", "--offline", "--allow-dirty", "--package", &name]);
        let packed: BTreeSet<PathBuf> = list.lines().map(PathBuf::from).collect();
        for file in packed.iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")) {
            let source = std::fs::read_to_string(folder.join(file)).unwrap();
            for read in READS.iter().flat_map(|read| source.split(read).skip(1)) {
                let read = read.split('"').next().unwrap();
                // Modules of one file that name another are in the folder of the file.
                let read = plain(&file.parent().unwrap().join(read));
                assert!(
                    packed.contains(&read),
                    "{name}: {} reads {}, which is not packed",
                    file.display(),
                    read.display()
                );
            }
        }
    }
}
