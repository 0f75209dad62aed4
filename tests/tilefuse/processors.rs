//! The whole path on processors that have less than this one: by the variable that limits what generated code may use, and
//! where there is an emulator of processors, on emulated ones.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::skipped;

/// What is run for each processor, by the names of tests.
const TESTS: [&str; 7] = [
    "conv::neighbours_become_part_of_the_kernel",
    "conv_transposed::a_filter_for_each_channel",
    "conv_transposed::one_axis_and_three",
    "products::transposed_batched_and_strided_operands_are_read_where_they_lie",
    "products::what_is_not_finite_stays_so",
    "sdpa::tensors_are_read_where_they_lie",
    "sdpa::written_out_attention_is_the_same_kernel",
];

/// Models and kernels that are compared with eager, with sizes where the zoo's are large.
const MODELS: [&[&str]; 5] = [
    &["llama-tiny"],
    &["resnet18-tiny"],
    &["kernel:softmax", "--input", "f32[9,1003]"],
    &["kernel:layer_norm", "--input", "bf16[9,1003]", "--input", "bf16[1003]", "--input", "bf16[1003]"],
    &["kernel:sum_dim0", "--input", "f32[201,107]"],
];

/// Tests and comparisons by generated kernels, with a cache of their own.
fn with_cache(mut command: Command, folder: &Path) -> Output {
    command
        .env("TILEFUSE_CACHE", folder.join("cache"))
        .env("TILEFUSE_PRODUCTS", "generated")
        .env("TILEFUSE_PREPACK", "always");
    command.output().unwrap()
}

#[track_caller]
fn succeeded(output: &Output, what: &str) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {said}\n{wrong}");
    said
}

fn program(processor: &str) -> Command {
    let mut command = Command::new(crate::common::program());
    command.env("TILEFUSE_HOST_CPU", processor);
    command
}

/// What generated code is made for.
fn described(processor: &str, folder: &Path) -> String {
    let mut doctor = program(processor);
    doctor.arg("doctor");
    succeeded(&with_cache(doctor, folder), processor)
}

#[track_caller]
fn whole_path(processor: &str, bits: u32) {
    let folder = tempfile::tempdir().unwrap();
    let doctor = described(processor, folder.path());
    assert!(doctor.contains(&format!("{processor}, vectors of {bits} bits")), "{doctor}");
    let mut tests = Command::new(std::env::current_exe().unwrap());
    tests.env("TILEFUSE_HOST_CPU", processor).arg("--exact").args(TESTS);
    let said = succeeded(&with_cache(tests, folder.path()), processor);
    assert!(said.contains(&format!("{} passed", TESTS.len())), "{processor}: {said}");
    for model in MODELS {
        let mut compare = program(processor);
        compare.arg("compare").args(model).args(["--seconds", "0"]);
        let said = succeeded(&with_cache(compare, folder.path()), &format!("{processor}: {model:?}"));
        assert!(said.contains("ok;"), "{processor}: {model:?}: {said}");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn code_for_avx2_computes_the_same() {
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        whole_path("x86-64-v3", 256);
    } else {
        skipped("no AVX2: this processor has no such instructions");
    }
}

#[test]
fn code_for_every_processor_computes_the_same() {
    whole_path(if cfg!(target_arch = "aarch64") { "armv8-a" } else { "x86-64" }, 128);
}

/// Generated code has no instructions of another processor.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_variable_limits_what_code_uses() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fma.tile");
    let text = "kernel @k(%x: ptr<f32>, %y: ptr<f32>) {\n  %i = range 0 64\n  %v = load %x, %i\n  \
                %w = map fma %v, %v, %v\n  store %y, %i, %w\n}\n";
    std::fs::write(&file, text).unwrap();
    let listing = |processor: &str| {
        let mut kernel = program(processor);
        kernel.arg("kernel").arg(&file).args(["--emit", "asm"]);
        succeeded(&with_cache(kernel, folder.path()), processor)
    };
    let (wide, narrow) = (listing("x86-64-v3"), listing("x86-64"));
    assert!(!wide.contains("zmm") && !narrow.contains("ymm") && !narrow.contains("vfmadd"), "{narrow}");
    if described("native", folder.path()).contains(" 512 ") {
        assert!(wide.contains("ymm") && wide.contains("vfmadd"), "{wide}");
        assert!(listing("native").contains("zmm"));
    }
    // What is none leaves it at what the machine has.
    assert_eq!(listing("abacus"), listing("native"));
}

/// Two processors of an emulator, with vectors of 256 bits and of 128: what they have is found out there.
#[cfg(target_arch = "x86_64")]
#[test]
fn emulated_processors() {
    let emulator = "qemu-x86_64";
    if Command::new(emulator).arg("--version").output().is_err() {
        skipped("no emulator: there is no qemu-x86_64 on this machine");
        return;
    }
    let run = |processor: &'static str| {
        let folder = tempfile::tempdir().unwrap();
        let mut compare = Command::new(emulator);
        compare.args(["-cpu", processor]).arg(crate::common::program()).arg("compare");
        compare.args(["kernel:linear_bias_gelu", "--seconds", "0"]);
        compare.args(["--input", "f32[5,33]", "--input", "f32[17,33]", "--input", "f32[17]"]);
        // The emulator reads all lanes of a masked load, those behind a tensor too, which must not be memory that nobody may
        // read: processors do not touch them.
        compare.env("MALLOC_TOP_PAD_", (64 << 20).to_string());
        let said = succeeded(&with_cache(compare, folder.path()), processor);
        assert!(said.contains("ok;") && said.contains("1 + 0 of libtorch"), "{processor}: {said}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run("Haswell"));
        scope.spawn(|| run("qemu64"));
    });
}
