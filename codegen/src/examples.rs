//! Examples in the documentation of passes, which are their tests.

use std::ops::Range;

use tilefuse_block::{Program, parse_valid};

/// Where the examples of a file's documentation are.
fn fences(source: &str) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let mut end = 0;
    let mut open = None;
    for line in source.split_inclusive('\n') {
        match (line.trim_end(), open) {
            ("//! ```text", None) => open = Some(end + line.len()),
            ("//! ```", Some(start)) => {
                out.push(start..end);
                open = None;
            }
            _ => {}
        }
        end += line.len();
    }
    out
}

/// Checks the example of a pass, whose file is given from the crate's sources on: `make` makes the second block of its
/// documentation of the program in the first. With `UPDATE_EXPECT`, writes the second.
pub(crate) fn check(file: &str, make: impl Fn(&Program) -> String) {
    let path = format!("{}/src/{file}", env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(&path).unwrap();
    let fences = fences(&source);
    let [before, after] = fences.as_slice() else {
        panic!("{file} has no example of a program and its notes")
    };
    let lines = source[before.clone()].lines().map(|line| line.trim_start_matches("//!"));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let program = parse_valid(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
    let made: String = make(&program).lines().map(|line| format!("//! {line}\n")).collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let updated = format!("{}{made}{}", &source[..after.start], &source[after.end..]);
        return std::fs::write(&path, updated).unwrap();
    }
    assert_eq!(source[after.clone()], made, "{file}: run with UPDATE_EXPECT=1 to update");
}
