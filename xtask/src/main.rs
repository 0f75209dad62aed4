//! Set-up and checks of the Tilefuse workspace.
fn main() {}
