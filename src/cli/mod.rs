//! The `tilefuse` program.

mod args;
mod bench;
mod compare;
mod doctor;
mod dump;
mod explain;
mod inputs;
mod kernel;
mod manifest;
mod model;
mod peers;
mod plot;
mod random;
mod reference;
mod report;
mod samples;
mod stages;
mod times;

use std::io::Write as _;
use std::process::ExitCode;

pub use args::main;

/// Why the program ends with another status than 0.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Printed on standard error; empty if everything was said already.
    pub(crate) message: String,
    /// The status: 1 where outputs differ or less is fused than was asked for, 2 where the request cannot be carried out.
    pub(crate) status: u8,
}

impl Failure {
    /// A request that cannot be carried out.
    pub(crate) fn usage(message: String) -> Failure {
        Failure { message, status: 2 }
    }

    fn exit(&self) -> ExitCode {
        if !self.message.is_empty() {
            // Nobody may be listening, which changes nothing of the status.
            let _ = writeln!(
                std::io::stderr(),
                "{}",
                report::wrapped_error(&format!("tilefuse: {}", self.message))
            );
        }
        ExitCode::from(self.status)
    }
}

impl From<crate::Error> for Failure {
    fn from(error: crate::Error) -> Failure {
        let status = if matches!(error, crate::Error::Unfused { .. }) { 1 } else { 2 };
        Failure { message: error.to_string(), status }
    }
}

/// The part of a message of libtorch or a panic that says what is wrong, in one line.
pub(crate) fn one_line(text: &str) -> String {
    let text = text.replace("\\n", "\n");
    let text = text.trim_start_matches("called `Result::unwrap()` on an `Err` value: Torch(\"");
    let telling = text.lines().map(str::trim).filter(|l| !l.is_empty());
    // TorchScript puts the cause last, after the frames of the script.
    let error = telling.clone().rfind(|l| l.contains("Error: ") && !l.starts_with("The following"));
    let line = error.or_else(|| telling.clone().next()).unwrap_or("no message");
    line.chars().take(300).collect()
}
