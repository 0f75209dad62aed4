//! What is fetched ahead of its use, and that this changes no result.

use super::*;

/// Softmax of rows of 512 elements of tensors of so many.
fn softmax(len: u64) -> String {
    format!(
        "
kernel @softmax(%x: ptr<f32> align(16) len({len}), %y: ptr<f32> align(16) len({len})) {{
  %row = program_id 0
  %n = const 512 : i32
  %first = map mul %row, %n
  %start = splat %first [512]
  %cols = range 0 512
  %at = map add %start, %cols
  %v = load %x, %at
  %max = reduce max %v axis 0
  %top = splat %max [512]
  %down = map sub %v, %top
  %e = map exp %down
  %total = reduce sum %e axis 0
  %sum = splat %total [512]
  %out = map div %e, %sum
  store %y, %at, %out
}}"
    )
}

/// A sum of two tensors of so many elements.
fn add(len: u64) -> String {
    format!(
        "
kernel @add(%x: ptr<f32> len({len}), %y: ptr<f32> len({len})) {{
  %id = program_id 0
  %n = const 1024 : i32
  %first = map mul %id, %n
  %start = splat %first [1024]
  %lanes = range 0 1024
  %at = map add %start, %lanes
  %a = load %x, %at
  %b = load %y, %at
  %c = map add %a, %b
  store %y, %at, %c
}}"
    )
}

/// Blocks of 64 x 64 elements of rows of 1024.
fn blocks(len: u64) -> String {
    format!(
        "
kernel @blocks(%x: ptr<f32> len({len}), %y: ptr<f32> len({len})) {{
  %id = program_id 0
  %n = const 64 : i32
  %first = map mul %id, %n
  %start = splat %first [64]
  %lanes = range 0 64
  %cols = map add %start, %lanes
  %pitch = const 1024 : tile<64xi32>
  %rows = map mul %lanes, %pitch
  %down = expand_dims %rows axis 1
  %downs = broadcast %down [64, 64]
  %across = expand_dims %cols axis 0
  %acrosses = broadcast %across [64, 64]
  %at = map add %downs, %acrosses
  %v = load %x, %at
  %w = map add %v, %v
  store %y, %at, %w
}}"
    )
}

/// How often lines are fetched for writing and for reading, as the IR says it.
fn fetches(text: &str) -> (usize, usize) {
    let program = text.trim().parse().unwrap();
    let ir = HostKernel::llvm_ir(&program, &HostOptions { isa: Isa::Avx2 }).unwrap();
    let count = |write: u32| {
        let fetches = |line: &&str| line.contains("call void @llvm.prefetch");
        ir.lines().filter(fetches).filter(|line| line.contains(&format!("i32 {write}, i32 3, i32 1"))).count()
    };
    (count(1), count(0))
}

#[test]
fn large_results_and_the_next_rows_are_fetched_ahead() {
    // Beside the sum of exponentials: for each vector of two registers a line to write, and one of the next row.
    assert_eq!(fetches(&softmax(1 << 20)), (1, 1));
    assert_eq!(fetches(&softmax(1 << 10)), (0, 0));
    // In the loop of the store.
    let (write, read) = fetches(&add(1 << 20));
    assert!(write > 0 && read == 0);
    assert_eq!(fetches(&add(1 << 10)), (0, 0));
}

#[test]
fn vectors_that_are_unrolled_in_one_line_fetch_it_once() {
    // Vectors of 32 and of 16 bytes: half and a quarter as many lines.
    let vectors = |text: &str| {
        let program = text.trim().parse().unwrap();
        let ir = HostKernel::llvm_ir(&program, &HostOptions { isa: Isa::Avx2 }).unwrap();
        ir.lines().filter(|line| line.trim_start().starts_with("store <8 x ")).count()
    };
    let (wide, narrow) = (add(1 << 20), add(1 << 20).replace("f32", "f16"));
    assert_eq!((vectors(&wide), fetches(&wide).0), (4, 2));
    assert_eq!((vectors(&narrow), fetches(&narrow).0), (4, 1));
}

#[test]
fn short_rows_that_lie_apart_are_fetched_some_rows_ahead() {
    let ir = |text: &str| {
        let program = text.trim().parse().unwrap();
        HostKernel::llvm_ir(&program, &HostOptions { isa: Isa::Avx2 }).unwrap()
    };
    // Four rows of 256 bytes, 4096 bytes apart; what follows in a row is of other instances.
    let (apart, dense) = (ir(&blocks(1 << 20)), ir(&add(1 << 20)));
    assert!(apart.contains("i64 16384") && !apart.contains("i64 1024\n"), "{apart}");
    assert!(dense.contains("i64 1024\n") && !dense.contains("i64 16384"), "{dense}");
    assert!(fetches(&blocks(1 << 20)).0 > 0);
    assert_eq!(fetches(&blocks(1 << 17)), (0, 0));
}

#[test]
fn fetching_ahead_changes_no_result() {
    let len = 1 << 18;
    let zeros = Arg::buffer(f32::wrap(vec![0.0; len]));
    // The last instances fetch beyond the ends.
    check_text(&softmax(len as u64), &[f32s(len), zeros], [(len / 512) as u32, 1, 1], 1e-6);
    check_text(&add(len as u64), &[f32s(len), f32s(len)], [(len / 1024) as u32, 1, 1], 0.0);
    let zeros = Arg::buffer(f32::wrap(vec![0.0; len]));
    check_text(&blocks(len as u64), &[f32s(len), zeros], [16, 1, 1], 0.0);
}
