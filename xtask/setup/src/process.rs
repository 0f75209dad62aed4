//! Running other programs.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::progress::Step;

/// How many of a failed program's last lines are shown.
const TAIL: usize = 30;

/// The program of this name on `PATH`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| is_executable(file))
}

/// Whether the path is a file that may be executed.
pub fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// What the program writes to its standard output, trimmed; `None` where it cannot start or fails.
pub fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs the program on the terminal; fails unless it ends with status 0.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", show(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", show(command));
    }
    Ok(())
}

/// Runs the program quietly, its latest line beside the step's name; an error holds its last lines.
pub fn run_quietly(command: &mut Command, step: &Step) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {}", show(command)))?;
    let tail = follow(&mut child, step);
    let status = child.wait()?;
    if !status.success() {
        bail!("{} ended with {status}:\n{}", show(command), Vec::from(tail).join("\n"));
    }
    Ok(())
}

/// The command as a person would type it.
pub fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| quote(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a POSIX shell where it needs that.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:+,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Shows the child's lines, and the bytes that it has written to disk, until it closes both its streams.
fn follow(child: &mut Child, step: &Step) -> VecDeque<String> {
    let id = child.id();
    let (sender, lines) = mpsc::channel();
    forward(child.stdout.take(), sender.clone());
    forward(child.stderr.take(), sender);
    let mut tail = VecDeque::new();
    loop {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => {
                if tail.len() == TAIL {
                    tail.pop_front();
                }
                tail.push_back(line);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return tail,
        }
        step.detail(&status_line(written_bytes(id), tail.back()));
    }
}

fn forward(stream: Option<impl Read + Send + 'static>, lines: Sender<String>) {
    let Some(stream) = stream else { return };
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if !line.trim().is_empty() && lines.send(line).is_err() {
                return;
            }
        }
    });
}

fn status_line(written: u64, line: Option<&String>) -> String {
    let line = line.map_or("", |line| line.trim());
    match written >> 20 {
        0 => line.to_owned(),
        megabytes => format!("{megabytes} MB written · {line}"),
    }
}

fn written_bytes(process: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
    let field = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    field.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_they_are_typed() {
        let mut command = Command::new("pip");
        command.args(["install", "nvidia-cuda-runtime==13.0.*", "it's"]);
        assert_eq!(show(&command), r"pip install 'nvidia-cuda-runtime==13.0.*' 'it'\''s'");
    }

    #[test]
    fn a_failing_program_leaves_its_last_lines() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; echo last >&2; exit 3"]);
        let message = run_quietly(&mut command, &Step::begin("shell")).unwrap_err().to_string();
        assert!(message.contains("exit status: 3") && message.contains("last"), "{message}");
    }

    #[test]
    fn output_is_there_only_on_success() {
        assert_eq!(output(Command::new("sh").args(["-c", "echo yes"])).as_deref(), Some("yes"));
        assert_eq!(output(Command::new("sh").args(["-c", "echo no; exit 1"])), None);
        assert_eq!(output(&mut Command::new("no-such-program-here")), None);
    }
}
