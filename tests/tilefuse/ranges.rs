//! NVTX ranges of a call on a GPU, as NVTX hands them to a profiler: here to a library of ours, which writes them down.

use std::process::Command;

use crate::common::{files, has_gpu, program, skipped};

#[test]
fn steps_on_a_gpu_are_ranges_within_their_modules() {
    if !has_gpu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [library, log] = ["nvtx_log.so", "log"].map(|name| folder.path().join(name));
    let source = files().join("tests/tilefuse/nvtx_log.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    if !built.is_ok_and(|status| status.success()) {
        return skipped("no C compiler");
    }
    let compare = |ranges: &str| {
        let mut command = Command::new(program());
        command.args(["compare", "gpt2-tiny", "--device", "cuda", "--seconds", "0"]);
        command.envs([("TILEFUSE_NVTX", ranges), ("TILEFUSE_CUDA_GRAPHS", "off")]);
        command.env("NVTX_INJECTION64_PATH", &library).env("NVTX_LOG", &log);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(&log).unwrap_or_default()
    };
    let is_module = |line: &&str| line.trim_start().starts_with("transformer");
    assert_eq!(compare("0").lines().filter(is_module).count(), 0);
    let ranges = compare("1");
    let modules: Vec<&str> = ranges.lines().filter(is_module).collect();
    // A call is one tree of modules, and each is within those that its name begins with.
    for expected in [
        "transformer",
        "  transformer.h",
        "    transformer.h.1",
        "      transformer.h.1.mlp",
        "    transformer.h.0",
    ] {
        assert!(modules.contains(&expected), "no {expected:?} in\n{ranges}");
    }
    let depth = |line: &str| (line.len() - line.trim_start().len()) / 2;
    assert!(modules.iter().all(|line| depth(line) == line.matches('.').count()), "{ranges}");
    // Within them are the steps.
    let is_step = |line: &&str| line.trim_start().starts_with("fused_") && depth(line) > 1;
    assert!(ranges.lines().filter(is_step).count() > 5, "{ranges}");
}
