use super::*;
use crate::examples;

fn check(pass: Pass, file: &str) {
    examples::check(&format!("ptx/{file}"), |program| shown(program, Target::Sm80, &[pass]).unwrap());
}

#[test]
fn facts() {
    check(Pass::Facts, "axis.rs");
}

#[test]
fn loop_versioning() {
    examples::check("ptx/version_loops.rs", |program| {
        let mut program = program.clone();
        crate::ptx::version_loops::version_loops(&mut program);
        tilefuse_block::passes::dce(&mut program);
        tilefuse_block::verify(&program).unwrap();
        program.to_string()
    });
}

#[test]
fn layouts() {
    check(Pass::Layout, "assign_layouts.rs");
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
    check(Pass::Pipeline, "software_pipeline.rs");
}

#[test]
fn warp_specialisation() {
    examples::check("ptx/warp_specialize.rs", |program| {
        shown(program, Target::Sm90a, &[Pass::Pipeline]).unwrap()
    });
}

#[test]
fn ping_pong() {
    examples::check("ptx/warp_specialize/ping_pong.rs", |program| {
        shown(program, Target::Sm90a, &[Pass::Pipeline, Pass::Shared]).unwrap()
    });
}

#[test]
fn rotation() {
    examples::check("ptx/rotate.rs", |program| shown(program, Target::Sm90a, &[Pass::Pipeline]).unwrap());
}

#[test]
fn conversions() {
    check(Pass::Convert, "convert_layout.rs");
}

#[test]
fn shared_memory() {
    check(Pass::Shared, "shared.rs");
}

#[test]
fn barriers() {
    check(Pass::Barriers, "barrier.rs");
}

/// On Hopper, four warps multiply together, and the product of one iteration runs on into the next.
#[test]
fn products_of_warpgroups_run_on() {
    let text =
        "kernel @long(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %z: ptr<f32> align(16), %n: i32) {
      %none = const 0 : i32  %step = const 8192 : i32
      %i = range 0 8192  %left = reshape %i [128, 64]  %right = reshape %i [64, 128]
      %zero = const 0.0 : tile<128x128xf32>
      %sum = for %k in %none..%n step %step with (%acc = %zero) {
        %kx = splat %k [128, 64]  %at_x = map add %left, %kx  %u = load %x, %at_x
        %ky = splat %k [64, 128]  %at_y = map add %right, %ky  %v = load %y, %at_y
        %next = dot %u, %v, %acc
        yield %next
      }
      %j = range 0 16384  %at = reshape %j [128, 128]  store %z, %at, %sum
    }";
    let program = tilefuse_block::parse_valid(text).unwrap();
    let shown = shown(&program, Target::Sm90a, &[Pass::Pipeline, Pass::Shared, Pass::Barriers]).unwrap();
    let notes: Vec<&str> =
        shown.lines().filter_map(|line| line.split_once("// ")).map(|(_, note)| note).collect();
    expect_test::expect![[r#"
        sm_90a: 4 warps, about 144 registers a thread
        shared memory: 98304 bytes of stages at 0
        pipeline: 3 stages of 32768 bytes: %u 16384 bytes at 0, %v 16384 bytes at 16384
        pipeline: %next runs on into the next iteration
        barriers: other threads may yet read that shared memory
        barriers: other threads read operands that were loaded ahead
        pipeline: runs ahead, to shared memory
        pipeline: runs ahead, to shared memory"#]]
    .assert_eq(&notes.join("\n"));
}

/// Rows of halves that begin at odd elements change layout for their store, in the memory of stages that are not needed any more.
#[test]
fn rows_that_are_not_aligned_are_stored_along_rows() {
    let text =
        "kernel @odd(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %z: ptr<bf16> align(16), %n: i32) {
      %none = const 0 : i32  %step = const 4096 : i32
      %i = range 0 4096  %left = reshape %i [64, 64]  %right = reshape %i [64, 64]
      %zero = const 0.0 : tile<64x64xf32>
      %sum = for %k in %none..%n step %step with (%acc = %zero) {
        %kx = splat %k [64, 64]  %at_x = map add %left, %kx  %u = load %x, %at_x
        %ky = splat %k [64, 64]  %at_y = map add %right, %ky  %v = load %y, %at_y
        %next = dot %u, %v, %acc
        yield %next
      }
      %r = range 0 64  %rows = expand_dims %r axis 1  %wide = const 61 : tile<64x1xi32>
      %down = map mul %rows, %wide  %a = broadcast %down [64, 64]
      %columns = expand_dims %r axis 0  %b = broadcast %columns [64, 64]
      %at = map add %a, %b  %end = const 61 : tile<64x64xi32>  %inside = map lt %b, %end
      %narrow = cast %sum bf16
      store %z, %at, %narrow, mask %inside
    }";
    let program = tilefuse_block::parse_valid(text).unwrap();
    let passes = [Pass::Coalesce, Pass::Vectorize, Pass::Convert, Pass::Shared, Pass::Barriers];
    let shown = shown(&program, Target::Sm90a, &passes).unwrap();
    let after_store = shown.lines().skip_while(|line| !line.contains("store %z"));
    let lines = shown.lines().filter(|line| line.contains("// shared memory: ")).chain(after_store);
    let notes = lines.filter_map(|line| line.split_once("// ")).map(|(_, note)| note);
    let notes = notes.collect::<Vec<_>>().join("\n");
    expect_test::expect![[r#"
        shared memory: 65536 bytes of stages at 0; 9216 bytes of scratch at 0
        coalesce: runs of 64 along axis 1, through [2 warps, 32 regs] x [32 lanes, 2 warps]
        vectorize: 1 x bf16 an instruction, 2 bytes, mask uniform
        convert: %narrow: [8 lanes, 2 regs, 4 warps] x [2 regs, 4 lanes, 8 regs] -> [2 warps, 32 regs] x [32 lanes, 2 warps], through shared memory, written by 2 and read by 1
        shared: 9216 bytes of scratch
        barriers: other threads may yet read that shared memory
        barriers: other threads read what is put into shared memory"#]].assert_eq(&notes);
}

/// How many elements of each group a mask leaves is counted where the elements are.
#[test]
fn counts_lie_as_the_sums_beside_them() {
    let text = "kernel @means(%x: ptr<bf16> align(16), %y: ptr<f32> align(16), %n: i32) warps(16) {
      %i = range 0 8192  %most = splat %n [8192]  %inside = map lt %i, %most
      %u = load %x, %i, mask %inside  %v = cast %u f32
      %zero = const 0.0 : tile<8192xf32>  %one = const 1.0 : tile<8192xf32>
      %own = map select %inside, %v, %zero  %some = map select %inside, %one, %zero
      %a = reshape %own [2048, 4]  %b = reshape %some [2048, 4]
      %sum = reduce sum %a axis 1  %count = reduce sum %b axis 1
      %mean = map div %sum, %count  %all = reduce sum %mean axis 0
      store %y, %n, %all
    }";
    let program = tilefuse_block::parse_valid(text).unwrap();
    let shown = shown(&program, Target::Sm90a, &[Pass::Convert]).unwrap();
    assert!(!shown.contains("convert: "), "{shown}");
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
            let everywhere = matches!(pass, Pass::Facts | Pass::Layout | Pass::Coalesce | Pass::Vectorize);
            assert!(!everywhere || shown.contains(&format!("// {}: ", pass.name())));
        }
    }
}
