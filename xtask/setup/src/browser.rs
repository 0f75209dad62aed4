//! A browser for the tests of pages.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt;
use crate::process::{find_program, output};

/// What a user without one reads.
pub(crate) const MISSING: &str = "  a browser (chromium), in which pages are tested\n";

const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser that runs.
#[derive(Debug)]
pub(crate) struct Browser {
    pub(crate) program: PathBuf,
    pub(crate) version: String,
}

/// Where it may be, best first.
pub(crate) fn candidates() -> Vec<PathBuf> {
    PROGRAMS.into_iter().filter_map(find_program).collect()
}

/// Checks that it runs: Ubuntu's package is a script until its snap is there.
pub(crate) fn inspect(program: &Path) -> Result<Browser, String> {
    let place = program.display();
    let said =
        output(Command::new(program).arg("--version")).ok_or_else(|| format!("{place} does not run"))?;
    let version = version(&said).ok_or_else(|| format!("{place} does not tell its version"))?;
    Ok(Browser { program: program.to_path_buf(), version })
}

/// The package of this distribution.
pub(crate) fn package() -> &'static str {
    package_of(apt::os_release("ID").as_deref())
}

fn package_of(distribution: Option<&str>) -> &'static str {
    if distribution == Some("ubuntu") { "chromium-browser" } else { "chromium" }
}

fn version(said: &str) -> Option<String> {
    let is_version = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    said.split_whitespace().find(is_version).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read() {
        let said = "Chromium 140.0.7339.80 built on Debian GNU/Linux 12 (bookworm)";
        assert_eq!(version(said).as_deref(), Some("140.0.7339.80"));
        assert_eq!(version("requires the chromium snap to be installed"), None);
    }

    #[test]
    fn the_package_is_the_distributions() {
        assert_eq!(package_of(Some("ubuntu")), "chromium-browser");
        assert_eq!((package_of(Some("debian")), package_of(None)), ("chromium", "chromium"));
    }
}
