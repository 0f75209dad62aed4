//! Maxima and minima of numbers that are not finite, and of zeros, in vectors of all lengths.

use super::*;

const EDGES: [f32; 16] = [
    0.0,
    -0.0,
    f32::NAN,
    -f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    1e-45,
    -1e-45,
    1.0,
    -1.0,
    1.5,
    -2.5,
];

#[test]
fn all_pairs_of_edges() {
    let pairs = |of: fn(usize) -> usize| Arg::buffer(f32::wrap((0..256).map(|i| EDGES[of(i)]).collect()));
    let args = [pairs(|i| i % 16), pairs(|i| i / 16), Arg::buffer(f32::wrap(vec![1.0; 256]))];
    for function in ["max", "min", "fmax", "fmin"] {
        for lanes in [1, 2, 4, 8, 16, 64, 256] {
            let text = format!(
                "
kernel @f(%x: ptr<f32>, %y: ptr<f32>, %z: ptr<f32>) {{
  %id = program_id 0
  %many = const {lanes} : i32
  %first = map mul %id, %many
  %start = splat %first [{lanes}]
  %lanes = range 0 {lanes}
  %at = map add %start, %lanes
  %a = load %x, %at
  %b = load %y, %at
  %c = map {function} %a, %b
  store %z, %at, %c
}}"
            );
            check_text(&text, &args, [256 / lanes, 1, 1], 0.0);
        }
    }
}

/// Rows of which each has one edge among numbers, and rows of edges alone.
#[test]
fn rows_of_edges() {
    let mixed = |i: usize| if i % 64 == i / 64 * 3 { EDGES[i / 64 % 16] } else { (i % 7) as f32 - 3.0 };
    let alone = |i: usize| EDGES[i / 64 % 2 * 4 + i % 2];
    let values: Vec<f32> = (0..1024).map(mixed).chain((0..1024).map(alone)).collect();
    let args = [Arg::buffer(f32::wrap(values)), Arg::buffer(f32::wrap(vec![1.0; 32]))];
    for function in ["max", "min"] {
        let text = format!(
            "
kernel @f(%x: ptr<f32>, %z: ptr<f32>) {{
  %id = program_id 0
  %many = const 64 : i32
  %first = map mul %id, %many
  %start = splat %first [64]
  %lanes = range 0 64
  %at = map add %start, %lanes
  %a = load %x, %at
  %c = reduce {function} %a axis 0
  store %z, %id, %c
}}"
        );
        check_text(&text, &args, [32, 1, 1], 0.0);
    }
}

/// Where a processor has an instruction for it, running maxima do without the functions that order zeros step by step.
#[test]
fn avx_512_orders_zeros_in_one_instruction() {
    let program = "
kernel @f(%x: ptr<f32>, %z: ptr<f32>) {
  %at = range 0 256
  %a = load %x, %at
  %c = reduce max %a axis 0
  %all = splat %c [256]
  store %z, %at, %all
}";
    let program = program.trim().parse().unwrap();
    let ir = |isa| HostKernel::llvm_ir(&program, &HostOptions { isa }).unwrap();
    assert!(!ir(Isa::Avx2).contains("range.ps"));
    if Target::new(Isa::Native).has_avx512() {
        assert!(ir(Isa::Native).contains("range.ps.512"));
    }
}
