//! The assembler, where there is one.

#![allow(dead_code, unreachable_pub)]

use std::path::PathBuf;
use std::process::Command;

/// What the assembler says of a kernel.
pub struct Report {
    pub spill_bytes: u64,
    pub registers: u64,
    pub log: String,
}

fn program() -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let bundled = root.join("../.deps/libtorch/bin/ptxas");
    let path = std::env::var_os("PATH")?;
    std::iter::once(bundled)
        .chain(std::env::split_paths(&path).map(|dir| dir.join("ptxas")))
        .find(|candidate| candidate.is_file())
}

/// Assembles PTX; `None`, with a message, where there is no assembler. A refusal fails the test.
pub fn assemble(text: &str, target: &str) -> Option<Report> {
    let Some(ptxas) = program() else {
        eprintln!("skipped: no ptxas");
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernel.ptx");
    std::fs::write(&file, text).unwrap();
    let output = Command::new(ptxas)
        .args(["-v", "-arch", target, "-o"])
        .arg(folder.path().join("kernel.cubin"))
        .arg(&file)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{log}\n{text}");
    Some(Report { spill_bytes: sum(&log, "bytes spill"), registers: sum(&log, "registers"), log })
}

/// The sum of the numbers before a word.
fn sum(log: &str, word: &str) -> u64 {
    let before = |at: usize| log[..at].trim_end().rsplit(' ').next().and_then(|n| n.parse::<u64>().ok());
    log.match_indices(word).filter_map(|(at, _)| before(at)).sum()
}
