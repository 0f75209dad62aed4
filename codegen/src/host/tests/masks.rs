//! Loads of which lanes are masked off: of a vector that takes two registers one has no lane that may be set, which LLVM 22 reads whole
//! where it sees that.

use super::*;

/// The first 3 of 8 columns, doubled, without those of the first row.
const COLUMNS: &str = "
kernel @halves(%x: ptr<f64> len(256), %y: ptr<f64> len(256)) {
  %r = range 0 16
  %rows = expand_dims %r axis 1
  %s = range 0 8
  %columns = expand_dims %s axis 0
  %width = const 16 : tile<16x1xi32>
  %begins = map mul %rows, %width
  %down = broadcast %begins [16, 8]
  %across = broadcast %columns [16, 8]
  %at = map add %down, %across
  %first = const 1 : tile<16x1xi32>
  %is_row = map ge %rows, %first
  %most = const 3 : tile<1x8xi32>
  %is_column = map lt %columns, %most
  %in_row = broadcast %is_row [16, 8]
  %in_column = broadcast %is_column [16, 8]
  %inside = map and %in_row, %in_column
  %a = load %x, %at, mask %inside
  %b = map add %a, %a
  store %y, %at, %b
}";

/// Maxima of dilated windows over a slice of images.
const WINDOWS: &str = include_str!("masks.tile");

#[test]
fn half_a_vector_without_lanes_that_are_set_reads_nothing() {
    let doubles = |len| Arg::buffer(f64::wrap(floats(len).into_iter().map(f64::from).collect()));
    check_text(COLUMNS, &[doubles(256), doubles(256)], [1, 1, 1], 0.0);
    check_text(WINDOWS, &[f32s(1404), f32s(594)], [6, 1, 1], 0.0);
}
