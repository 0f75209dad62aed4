//! PTX of whole kernels, assembled where `ptxas` is at hand.

#![allow(clippy::unwrap_used)]

#[path = "support/kernels.rs"]
mod kernels;
#[path = "support/ptxas.rs"]
mod ptxas;

use tilefuse_block::{Elem, Program};
use tilefuse_codegen::Error;
use tilefuse_codegen::cache::{Cache, CacheOptions};
use tilefuse_codegen::ptx::{PtxOptions, Target, compile_ptx, compile_ptx_cached};

/// Compiles for every target, assembles, and returns the text for Hopper.
fn assemble(program: &Program) -> String {
    let mut hopper = String::new();
    for target in Target::ALL {
        let ptx = compile_ptx(program, target, &PtxOptions::default()).unwrap();
        if let Some(report) = ptxas::assemble(&ptx.text, target.name()) {
            assert_eq!(report.spill_bytes, 0, "{} {target}\n{}", program.name, report.log);
        }
        if target == Target::Sm90a {
            hopper = ptx.text;
        }
    }
    hopper
}

#[test]
fn vector_add_moves_16_bytes_at_a_time() {
    for (elem, n) in [(Elem::F32, 1 << 20), (Elem::F32, 1_000_000), (Elem::Bf16, 1 << 20), (Elem::F16, 1000)]
    {
        let text = assemble(&kernels::vector_add(elem, n, 1024, 4).unwrap());
        assert!(text.contains("ld.global.v4.b32"), "{elem} {n}\n{text}");
        assert!(text.contains("st.global.v4.b32"), "{elem} {n}\n{text}");
    }
}

#[test]
fn row_kernels_stay_in_registers() {
    let sizes =
        [(Elem::F32, 1024, 1, 4), (Elem::Bf16, 768, 4, 4), (Elem::F32, 100, 1, 1), (Elem::F16, 4096, 1, 4)];
    for (elem, cols, tile, warps) in sizes {
        for program in [
            kernels::layer_norm(elem, cols, tile, warps).unwrap(),
            kernels::softmax(elem, cols, tile, warps).unwrap(),
            kernels::bias_gelu_residual(elem, cols, tile, warps).unwrap(),
        ] {
            let text = assemble(&program);
            assert!(text.contains("ld.global.v4.b32"), "{program}\n{text}");
            assert!(text.contains("st.global.v4.b32"), "{program}\n{text}");
        }
    }
}

#[test]
fn written_kernels_assemble() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels");
    let mut texts = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let ptx = assemble(&tilefuse_block::parse_valid(&text).unwrap());
        assert!(!ptx.contains(".local"), "{text}");
        texts += 1;
    }
    assert!(texts >= 3);
}

#[test]
fn kernels_come_back_from_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&CacheOptions::in_folder(folder.path()));
    let options = PtxOptions::default();
    let program = kernels::vector_add(Elem::F32, 1000, 256, 2).unwrap();
    let first = compile_ptx_cached(&program, Target::Sm90a, &options, &cache).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(compile_ptx_cached(&program, Target::Sm90a, &options, &cache).unwrap(), first);
    assert_eq!(compile_ptx(&program, Target::Sm90a, &options).unwrap(), first);
    assert_eq!(compile_ptx_cached(&program, Target::Sm80, &options, &cache).unwrap().target, Target::Sm80);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

/// Compiles for Hopper and returns the number of warps; nothing may spill.
fn warps(program: Program) -> tilefuse_codegen::Result<u32> {
    let ptx = compile_ptx(&program, Target::Sm90a, &PtxOptions::default())?;
    if let Some(report) = ptxas::assemble(&ptx.text, "sm_90a") {
        assert_eq!(report.spill_bytes, 0, "{program}{}", report.log);
    }
    Ok(ptx.threads / 32)
}

#[test]
fn large_tiles_get_more_warps_or_an_error() {
    for elem in [Elem::F32, Elem::Bf16] {
        for cols in [1024, 4096, 8192, 16384] {
            assert!(warps(kernels::softmax(elem, cols, 1, 2).unwrap()).is_ok());
            assert!(warps(kernels::layer_norm(elem, cols, 1, 2).unwrap()).is_ok());
        }
        assert!(warps(kernels::softmax(elem, 16384, 1, 1).unwrap()).unwrap() > 1);
        let error = warps(kernels::softmax(elem, 1 << 18, 1, 4).unwrap()).unwrap_err();
        assert!(matches!(error, Error::TileTooLarge { .. }), "{error}");
    }
}
