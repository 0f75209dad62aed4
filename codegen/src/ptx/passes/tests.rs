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
        shared memory: 98304 bytes of stages
        pipeline: 3 stages of 32768 bytes: %u 16384 bytes at 0, %v 16384 bytes at 16384
        pipeline: %next runs on into the next iteration
        barriers: other threads may yet read that shared memory
        barriers: other threads read operands that were loaded ahead
        pipeline: runs ahead, to shared memory
        pipeline: runs ahead, to shared memory"#]]
    .assert_eq(&notes.join("\n"));
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
