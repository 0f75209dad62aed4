//! The tilefuse program.
fn main() {}
