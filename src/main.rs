//! The `tilefuse` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    tilefuse::cli::main()
}
