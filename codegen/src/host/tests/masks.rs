//! Loads of which lanes are masked off.

use super::*;

/// Of the rows that are there the first 8 of 16 columns, and minus infinity elsewhere: of a vector of 16 lanes that takes two registers
/// one has no lane that may be set.
const HALVES: &str = "
kernel @halves(%x: ptr<f32> len(64), %y: ptr<f32> len(64)) {
  %row = program_id 0
  %n = const 16 : i32
  %first = map mul %row, %n
  %start = splat %first [16]
  %cols = range 0 16
  %at = map add %start, %cols
  %rows = const 3 : i32
  %is_row = map lt %row, %rows
  %in_row = splat %is_row [16]
  %most = const 8 : i32
  %mosts = splat %most [16]
  %in_columns = map lt %cols, %mosts
  %inside = map and %in_row, %in_columns
  %a = load %x, %at, mask %inside
  %none = const -inf : f32
  %nones = splat %none [16]
  %b = map select %inside, %a, %nones
  store %y, %at, %b
}";

#[test]
fn a_register_without_lanes_that_are_set_reads_nothing() {
    for text in
        [HALVES.to_owned(), HALVES.replace("f32", "f64"), HALVES.replace("map lt %cols", "map ge %cols")]
    {
        let args: Vec<Arg> = match text.contains("f64") {
            true => [floats(64).into_iter().map(f64::from).collect(), vec![0.0; 64]]
                .map(|x| Arg::buffer(f64::wrap(x)))
                .into(),
            false => [floats(64), vec![0.0; 64]].map(|x| Arg::buffer(f32::wrap(x))).into(),
        };
        check_text(&text, &args, [4, 1, 1], 0.0);
    }
}
