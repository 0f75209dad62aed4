//! Numbers of 16 bits in registers and in memory.

use tilefuse_block::{Elem, Literal};

use super::*;

/// Sums of what rows hold after a sum of two rows was stored there.
const STORED_AND_SUMMED: &str = "
kernel @stored(%x: ptr<f16> len(4096), %y: ptr<f16> len(4096), %z: ptr<f32> len(4)) {
  %row = program_id 0
  %n = const 1024 : i32
  %first = map mul %row, %n
  %start = splat %first [1024]
  %cols = range 0 1024
  %at = map add %start, %cols
  %a = load %x, %at
  %b = load %y, %at
  %c = cast %a f32
  %d = cast %b f32
  %e = map add %c, %d
  %f = cast %e f16
  store %y, %at, %f
  %g = cast %f f32
  %sum = reduce sum %g axis 0
  store %z, %row, %sum
}";

#[test]
fn what_is_stored_and_computed_on_is_narrowed_once() {
    for isa in [Isa::Avx2, Isa::Avx512] {
        let program = STORED_AND_SUMMED.trim().parse().unwrap();
        let code = HostKernel::assembly(&program, &HostOptions { isa }).unwrap();
        let count = |what: &str| code.lines().filter(|line| line.contains(what)).count();
        // Two operands are widened for each sum, and the sum once more.
        assert_eq!(count("vcvtph2ps"), 3 * count("vcvtps2ph"), "{code}");
        assert!(count("vcvtps2ph") > 0);
    }
}

#[test]
fn what_is_stored_is_what_is_computed_on() {
    let halves = || {
        let numbers = floats(4096).into_iter().map(|x| Literal::of(Elem::F16, f64::from(x)));
        Arg::buffer(Data::from_literals(Elem::F16, numbers))
    };
    let zeros = Arg::buffer(f32::wrap(vec![0.0; 4]));
    check_text(STORED_AND_SUMMED, &[halves(), halves(), zeros], [4, 1, 1], 1e-5);
}
