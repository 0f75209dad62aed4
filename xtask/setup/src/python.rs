//! Python 3: what it has, and a pip to install wheels with.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::{find_program, output, run_quietly};
use crate::progress::Step;

/// Asks without importing torch, which takes seconds and needs every CUDA library.
const QUESTIONS: &str = "
import os, sys
from importlib.util import find_spec
def there(name):
    try:
        return find_spec(name)
    except (ImportError, ValueError):
        return None
torch = there('torch')
print(*sys.version_info[:2])
print(there('pip') is not None)
print(there('ensurepip') is not None and there('venv') is not None)
print(os.path.dirname(torch.origin) if torch and torch.origin else '')
";

/// The `python3` on `PATH`.
#[derive(Debug)]
pub(crate) struct Python {
    pub(crate) version: (u32, u32),
    pub(crate) pip: bool,
    /// Whether a virtual environment with a pip of its own can be made.
    pub(crate) ensurepip: bool,
    /// The folder of its torch package.
    pub(crate) torch: Option<PathBuf>,
}

/// Asks the `python3` on `PATH` what it has.
pub(crate) fn probe() -> Option<Python> {
    parse(&output(Command::new(find_program("python3")?).args(["-c", QUESTIONS]))?)
}

/// The Debian packages without which there is no pip.
pub(crate) fn missing_packages(python: Option<&Python>) -> &'static [&'static str] {
    match python {
        None => &["python3", "python3-pip"],
        Some(python) if python.pip || python.ensurepip => &[],
        Some(_) => &["python3-pip"],
    }
}

/// The command that runs pip: Python's own, else that of a virtual environment made in `folder`.
pub(crate) fn pip(python: &Python, folder: &Path, step: &Step) -> Result<Command> {
    let program = if python.pip {
        PathBuf::from("python3")
    } else {
        let environment = folder.join("venv");
        run_quietly(Command::new("python3").args(["-m", "venv"]).arg(&environment), step)?;
        environment.join("bin/python3")
    };
    let mut command = Command::new(program);
    command.args(["-m", "pip"]);
    Ok(command)
}

fn parse(answers: &str) -> Option<Python> {
    let mut lines = answers.lines();
    let (major, minor) = lines.next()?.split_once(' ')?;
    let version = (major.parse().ok()?, minor.parse().ok()?);
    let pip = lines.next()? == "True";
    let ensurepip = lines.next()? == "True";
    let torch = lines.next().filter(|path| !path.is_empty()).map(PathBuf::from);
    Some(Python { version, pip, ensurepip, torch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_are_read() {
        let python = parse("3 11\nTrue\nFalse\n/site/torch\n").unwrap();
        assert_eq!((python.version, python.pip, python.ensurepip), ((3, 11), true, false));
        assert_eq!(python.torch.as_deref(), Some(Path::new("/site/torch")));
        assert_eq!(parse("3 12\nTrue\nTrue").unwrap().torch, None);
        assert!(parse("").is_none());
    }
}
