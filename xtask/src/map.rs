//! What `ARCHITECTURE.md` and `docs/invariants.md` name: files and tests exist.

use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The folders with tests that the pages name.
const SOURCES: [&str; 4] = ["codegen", "fusion", "src", "tests"];

/// The pages.
const PAGES: [&str; 2] = ["ARCHITECTURE.md", "docs/invariants.md"];

/// What a page writes as code, within one line.
fn quoted(page: &str) -> impl Iterator<Item = &str> {
    page.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The text of all Rust files of a folder.
fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *text += &std::fs::read_to_string(path).unwrap();
        }
    }
}

#[test]
fn files_and_tests_that_the_map_names_exist() {
    let root = Path::new(ROOT);
    let pages = PAGES.map(|page| std::fs::read_to_string(root.join(page)).unwrap());
    let mut text = String::new();
    SOURCES.iter().for_each(|folder| sources(&root.join(folder), &mut text));
    let is_path = |name: &str| name.contains('/') && !name.contains([' ', '*']);
    let is_test = |name: &str| {
        name.matches('_').count() > 1
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let missing = pages.iter().flat_map(|page| quoted(page)).filter(|name| {
        is_path(name) && !root.join(name).exists() || is_test(name) && !text.contains(&format!("fn {name}("))
    });
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&str>::new());
}
