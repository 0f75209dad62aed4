use super::*;

/// Where the examples of a file's documentation are.
fn fences(source: &str) -> Vec<std::ops::Range<usize>> {
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

/// Checks the example of a pass: the program in the first block of its file's documentation becomes the second. With
/// `UPDATE_EXPECT`, writes the second.
fn check(pass: Pass, file: &str) {
    let path = format!("{}/src/ptx/{file}", env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(&path).unwrap();
    let fences = fences(&source);
    let [before, after] = fences.as_slice() else {
        panic!("{file} has no example of a program and its notes")
    };
    let lines = source[before.clone()].lines().map(|line| line.trim_start_matches("//!"));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let program = tilefuse_block::parse_valid(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
    let made = shown(&program, Target::Sm80, &[pass]).unwrap();
    let made: String = made.lines().map(|line| format!("//! {line}\n")).collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let updated = format!("{}{made}{}", &source[..after.start], &source[after.end..]);
        return std::fs::write(&path, updated).unwrap();
    }
    assert_eq!(source[after.clone()], made, "{file}: run with UPDATE_EXPECT=1 to update");
}

#[test]
fn facts() {
    check(Pass::Facts, "axis.rs");
}

#[test]
fn layouts() {
    check(Pass::Layout, "layout.rs");
}

#[test]
fn coalescing() {
    check(Pass::Coalesce, "coalesce.rs");
}

#[test]
fn vectorisation() {
    check(Pass::Vectorize, "vectorize.rs");
}

#[test]
fn pipelining() {
    check(Pass::Pipeline, "pipeline.rs");
}

#[test]
fn names_are_found() {
    for pass in Pass::ALL {
        assert_eq!(Pass::from_name(pass.name()), Some(pass));
        assert_eq!(Pass::ALL[pass as usize], pass);
    }
    assert_eq!(Pass::from_name("magic"), None);
}

#[test]
fn what_is_shown_reads_back() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels");
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let program = tilefuse_block::parse_valid(&text).unwrap();
        let expanded = after(&program, Target::Sm90a, Pass::Expand).unwrap();
        for pass in Pass::ALL {
            let shown = after(&program, Target::Sm90a, pass).unwrap();
            let again: Program = shown.parse().unwrap();
            assert_eq!(again.to_string(), expanded);
            let decides = !matches!(pass, Pass::Expand | Pass::Pipeline);
            assert!(!decides || shown.contains(&format!("// {}: ", pass.name())));
        }
    }
}
