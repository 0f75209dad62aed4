//! PTX of whole kernels, assembled where `ptxas` is at hand.

#![allow(clippy::unwrap_used)]

#[path = "support/kernels.rs"]
mod kernels;
#[path = "support/ptxas.rs"]
mod ptxas;

use tilefuse_block::{Elem, Program};
use tilefuse_codegen::Error;
use tilefuse_codegen::host::{HostKernel, HostOptions};
use tilefuse_codegen::ptx::{PtxOptions, Target, compile_ptx};

/// Compiles for every target, assembles, and returns the text for Hopper.
fn assemble(program: &Program) -> String {
    let mut hopper = String::new();
    for target in Target::ALL {
        let ptx = compile_ptx(program, target, &PtxOptions::default()).unwrap();
        if let Some(report) = ptxas::assemble(&ptx.text, target.name()) {
            assert_eq!(report.spill_bytes, 0, "{} {target}\n{}", program.name, report.log);
            // Advice of these numbers says that products of warpgroups do not overlap.
            assert!(!report.log.contains("(C75"), "{} {target}\n{}", program.name, report.log);
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

/// Grouped products, whose sizes are read from memory, copy 16 bytes at a time ahead of their use where matrices are aligned; elsewhere
/// they load and store single elements, in layouts of their own.
#[test]
fn grouped_products_copy_16_bytes_at_a_time() {
    let program = tilefuse_block::parse_valid(include_str!("gpu/grouped.tile")).unwrap();
    let text = assemble(&program);
    for wide in ["cp.async.cg.shared.global", "wgmma.mma_async", "st.global.v4.b32"] {
        assert!(text.contains(wide), "{wide}\n{text}");
    }
    assert!(text.contains("ld.global.b16") && !text.contains("ld.global.v4.b32"), "{text}");
}

/// With as many stages as a program asks for, all but two are waited for at the beginning of an iteration.
/// The larger and the smaller of 16-bit floats are found two at a time, and what widens them before is gone.
#[test]
fn bounds_of_16_bit_floats_are_applied_in_pairs() {
    for kind in ["bf16", "f16"] {
        let text = format!(
            "kernel @bounded(%x: ptr<{kind}> align(16), %y: ptr<{kind}> align(16), %z: ptr<f32>) warps(4) {{
  %i = range 0 1024
  %v = load %x, %i
  %a = cast %v f32
  %zero = const 0.0 : tile<1024xf32>
  %m = map max %a, %zero
  %r = cast %m {kind}
  store %y, %i, %r
  %top = reduce max %m axis 0
  %at = const 0 : i32
  store %z, %at, %top
}}"
        );
        let ptx = assemble(&tilefuse_block::parse_valid(&text).unwrap());
        // Of eight elements of a thread: four pairs are bounded, three are combined.
        assert_eq!(ptx.matches(&format!("max.NaN.{kind}x2")).count(), 7, "{ptx}");
    }
}

#[test]
fn programs_choose_stages() {
    let mut program: Program = LANGUAGE[0].2.parse().unwrap();
    let waits = |program: &Program| -> Vec<bool> {
        let ptx = compile_ptx(program, Target::Sm80, &PtxOptions::default()).unwrap();
        let text: Vec<String> = ptx.text.split_whitespace().map(str::to_owned).collect();
        let waits = |groups: u32| [String::from("cp.async.wait_group"), format!("{groups};")];
        (0..8).map(|groups| text.windows(2).any(|pair| *pair == waits(groups))).collect()
    };
    // No more than four fit.
    for (stages, groups) in [(2, 0), (3, 1), (4, 2), (8, 2)] {
        program.stages = Some(stages);
        // The last loads, which nothing uses, are always waited for.
        let expected: Vec<bool> = (0..8).map(|g| g == 0 || g == groups).collect();
        assert_eq!(waits(&program), expected, "{stages} stages");
    }
    program.stages = Some(1);
    assert_eq!(waits(&program), [false; 8]);
}

/// What depends on thousands of operations one after the other is compiled like anything else.
#[test]
fn long_chains_have_room() {
    let mut text =
        String::from("kernel @long(%x: ptr<f32>, %n: i32) {\n%r = range 0 64\n%a0 = splat %n [64]\n");
    let chain: String =
        (1..20_000).map(|i| format!("%a{i} = map {} %a{}, %r\n", ["add", "xor"][i % 2], i - 1)).collect();
    text += &chain;
    text += "%v = load %x, %a19999 store %x, %r, %v }";
    let program = tilefuse_block::parse_valid(&text).unwrap();
    tilefuse_codegen::ptx::emit_llvm(&program, Target::Sm80).unwrap();
    HostKernel::llvm_ir(&program, &HostOptions::default()).unwrap();
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

/// Kernels of the kinds that people write, each a few lines; nothing of them may lie in local memory.
const LANGUAGE: [(&str, &str, &str); 6] = [
    (
        "wgmma.mma_async",
        "matmul",
        "kernel @matmul(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %z: ptr<f32> align(16), %n: i32) warps(8) {
           %zero = const 0 : i32  %step = const 32 : i32
           %r = range 0 128  %rows = expand_dims %r axis 1  %c = range 0 32  %cols = expand_dims %c axis 0
           %rb = broadcast %rows [128, 32]  %cb = broadcast %cols [128, 32]  %wide = const 4096 : tile<128x32xi32>
           %ro = map mul %rb, %wide  %left = map add %ro, %cb
           %k = expand_dims %c axis 1  %kb = broadcast %k [32, 128]  %n0 = expand_dims %r axis 0
           %nb = broadcast %n0 [32, 128]  %high = const 4096 : tile<32x128xi32>  %ko = map mul %kb, %high
           %right = map add %ko, %nb  %none = const 0.0 : tile<128x128xf32>
           %sum = for %i in %zero..%n step %step with (%acc = %none) {
             %f = splat %i [128, 32]  %la = map add %left, %f  %a = load %x, %la
             %g = splat %i [32, 128]  %go = map mul %g, %high  %ra = map add %right, %go  %b = load %y, %ra
             %next = dot %a, %b, %acc
             yield %next
           }
           %mb = broadcast %rows [128, 128]  %mc = expand_dims %r axis 0  %mcb = broadcast %mc [128, 128]
           %mw = const 4096 : tile<128x128xi32>  %mo = map mul %mb, %mw  %at = map add %mo, %mcb
           store %z, %at, %sum
         }",
    ),
    (
        "shfl.sync.idx",
        "cumsum",
        "kernel @cumsum(%x: ptr<f32> align(16)) warps(4) {
           %i = range 0 2048  %v = load %x, %i
           %s = scan %v axis 0 (%a, %b) { %c = map add %a, %b yield %c }
           store %x, %i, %s
         }",
    ),
    (
        "red.shared",
        "histogram",
        "kernel @histogram(%x: ptr<i32> align(16), %y: ptr<i32> align(16)) warps(4) {
           %i = range 0 4096  %v = load %x, %i  %h = histogram %v bins 256  %b = range 0 256
           %old = atomic add %y, %b, %h order relaxed
         }",
    ),
    (
        "atom.acq_rel.gpu.global.min.u32",
        "maximum",
        "kernel @maximum(%x: ptr<f32> align(16), %y: ptr<f32> align(16)) warps(4) {
           %i = range 0 1024  %v = load %x, %i  %m = reduce max %v axis 0  %zero = const 0 : i32
           %old = atomic max %y, %zero, %m
         }",
    ),
    (
        "atom.acq_rel.gpu.global",
        "scatter",
        "kernel @scatter(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %at: ptr<i32> align(16)) warps(4) {
           %i = range 0 1024  %v = load %x, %i  %j = load %at, %i  %old = atomic add %y, %j, %v
         }",
    ),
    (
        "bar",
        "sort_step",
        "kernel @sort_step(%x: ptr<f32> align(16)) warps(4) {
           %i = range 0 1024  %v = load %x, %i  %one = const 1 : tile<1024xi32>  %j = map xor %i, %one
           %w = gather %v, %j axis 0  %lo = map min %v, %w  %hi = map max %v, %w  %even = map and %i, %one
           %zero = const 0 : tile<1024xi32>  %first = map eq %even, %zero  %s = map select %first, %lo, %hi
           store %x, %i, %s
         }",
    ),
];

#[test]
fn kernels_of_the_language_assemble() {
    for (instruction, name, text) in LANGUAGE {
        let program = tilefuse_block::parse_valid(text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let ptx = assemble(&program);
        assert!(!ptx.contains(".local"), "{name}\n{ptx}");
        assert!(ptx.contains(instruction), "{name}\n{ptx}");
        if let Ok(folder) = std::env::var("DUMP_PTX") {
            std::fs::write(format!("{folder}/{name}.ptx"), &ptx).unwrap();
        }
    }
}

/// LLVM 22 makes invalid code of such a comparison, if it sees the whole of it.
#[test]
fn floats_whose_bits_are_other_floats_assemble() {
    for (from, to) in [("bf16", "f16"), ("f16", "bf16")] {
        let text = format!(
            "kernel @bits(%n: i32, %y: ptr<bool>) {{
               %x = cast %n {from}  %z = bitcast %x {to}  %zero = const 0.0 : {to}  %c = map ne %z, %zero
               %at = const 0 : i32  store %y, %at, %c
             }}"
        );
        assemble(&tilefuse_block::parse_valid(&text).unwrap_or_else(|e| panic!("{e}")));
    }
}

#[test]
fn debugging_assembles() {
    let text = "kernel @debug(%x: ptr<f32>) warps(2) {
      %i = range 0 64  %v = load %x, %i  print \"value\" %v  %zero = const 0.0 : tile<64xf32>
      %good = map ge %v, %zero  assert %good \"is not negative\"
    }";
    let program = tilefuse_block::parse_valid(text).unwrap_or_else(|e| panic!("{e}"));
    for target in Target::ALL {
        let ptx = compile_ptx(&program, target, &PtxOptions::default()).unwrap();
        assert!(ptx.text.contains("vprintf") && ptx.text.contains("__assertfail"), "{}", ptx.text);
        ptxas::assemble(&ptx.text, target.name());
    }
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
        let error = warps(kernels::softmax(elem, 1 << 20, 1, 4).unwrap()).unwrap_err();
        assert!(matches!(error, Error::TileTooLarge { .. }), "{error}");
    }
}
