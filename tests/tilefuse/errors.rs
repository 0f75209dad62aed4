//! Errors of `#[tilefuse::kernel]` stand at the line that is wrong: each file of `tests/errors/` goes through rustc, and
//! has exactly the errors that its comments `//~` announce.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use crate::common::{setup, skipped};

/// The library that these tests were linked with: the newest one beside them; none where they were moved.
fn library() -> Option<PathBuf> {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let libraries = entries.filter(|p| name(p).starts_with("libtilefuse-") && name(p).ends_with(".rlib"));
    libraries.max_by_key(|path| path.metadata().and_then(|m| m.modified()).unwrap())
}

/// The errors of a file: lines and messages.
fn errors(file: &Path, library: &Path) -> Vec<(usize, String)> {
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "--error-format", "json"])
        .arg("--extern")
        .arg(format!("tilefuse={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", library.parent().unwrap().display()))
        .arg("--out-dir")
        .arg(out.path())
        .arg(file)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut found = Vec::new();
    for line in text.lines() {
        let message: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let spans = message["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
        if message["level"] == "error" {
            for span in spans.iter().filter(|span| span["is_primary"] == true) {
                let line = span["line_start"].as_u64().unwrap() as usize;
                found.push((line, message["rendered"].as_str().unwrap_or_default().to_owned()));
            }
        }
    }
    assert!(!found.is_empty(), "{}: no errors\n{text}", file.display());
    found
}

#[test]
fn errors_stand_at_their_lines() {
    let Some(library) = library() else { return skipped("no library: the tests lie elsewhere") };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/errors");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let text = std::fs::read_to_string(&file).unwrap();
        let found = errors(&file, &library);
        for (index, line) in text.lines().enumerate() {
            let here: Vec<&String> = found.iter().filter(|e| e.0 == index + 1).map(|e| &e.1).collect();
            match line.split_once("//~ ") {
                Some((_, expected)) => assert!(
                    here.iter().any(|message| message.contains(expected)),
                    "{}:{}: no {expected:?}\n{found:#?}",
                    file.display(),
                    index + 1
                ),
                None => assert!(here.is_empty(), "{}:{}: {here:#?}", file.display(), index + 1),
            }
        }
        files += 1;
    }
    assert!(files >= 4);
}

#[tilefuse::kernel]
fn ten(x: Ptr<f32>, n: i64) {
    store(x + range(0, 10), 1.0, range(0, 10).lt(n));
}

#[test]
fn a_tile_of_ten_is_refused_with_its_line() {
    setup();
    let line = line!() - 6;
    let x = Tensor::zeros([10], (Kind::Float, Device::Cpu));
    let error = ten.launch(1i64, (&x, 10)).unwrap_err().to_string();
    let place = format!("{}:{line}:", file!());
    assert!(error.contains(&place) && error.contains("powers of two"), "{error}\n{place}");
}
