//! Finds or installs what a build with Tilefuse needs: libtorch 2.11, LLVM 22 and a C++20 compiler.
//!
//! The program `tilefuse-setup` does that for a project and writes it into the project's `.cargo/config.toml`
//! ([`project`]); `cargo xtask setup` does it for a clone of Tilefuse. This crate builds with neither libtorch nor LLVM.
//! Downloads go to the user's cache, which all projects share. What is there already is used, and nothing changes where
//! nothing is missing.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod apt;
mod browser;
mod cache;
mod facts;
mod llvm;
pub mod process;
pub mod progress;
pub mod project;
mod ptxas;
mod python;
mod torch;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use facts::Facts;

/// Something that only the user can do; the message says what.
#[derive(Debug)]
pub struct NeedsUser(pub String);

impl std::fmt::Display for NeedsUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NeedsUser {}

/// What a set-up looks for, and where first.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where an earlier set-up found libtorch.
    pub libtorch: Option<PathBuf>,
    /// Where an earlier set-up found LLVM.
    pub llvm: Option<PathBuf>,
    /// Whether `ptxas` is needed, as Tilefuse's own checks need it.
    pub ptxas: bool,
    /// Whether a browser is wanted, as the tests of pages want it: where none can be installed, the set-up goes on without.
    pub browser: bool,
    /// The folder for downloads; it need not exist.
    pub cache: PathBuf,
    /// The command that the user runs again after doing what only the user can do.
    pub command: &'static str,
}

/// What a set-up found.
#[derive(Debug)]
pub struct Found(Facts);

impl Found {
    /// The folder of libtorch, with `include` and `lib`; no link.
    pub fn libtorch(&self) -> Option<&Path> {
        self.0.torch.as_ref().map(|torch| &*torch.root)
    }

    /// The folder of LLVM, with `bin/llvm-config`; no link.
    pub fn llvm(&self) -> Option<&Path> {
        self.0.llvm.as_ref().map(|llvm| &*llvm.prefix)
    }

    /// The `ptxas` program.
    pub fn ptxas(&self) -> Option<&Path> {
        self.0.ptxas.as_ref().map(|ptxas| &*ptxas.program)
    }

    /// Whether nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    /// One line for each thing that was found, with its version and place.
    pub fn summary(&self) -> String {
        self.0.summary()
    }

    /// One line for each thing that is missing, and for each candidate that was passed over.
    pub fn missing(&self) -> String {
        self.0.missing_summary()
    }
}

/// Looks for everything, and installs nothing.
pub fn find(request: &Request) -> Result<Found> {
    Facts::probe(request).map(Found)
}

/// Looks for everything, and installs what is missing.
pub fn find_or_install(request: &Request) -> Result<Found> {
    let facts = Facts::probe(request)?;
    if facts.has_all() { Ok(Found(facts)) } else { install_missing(request).map(Found) }
}

/// Installs under the cache's lock. Everything is looked up again there, as another set-up may just have ended.
fn install_missing(request: &Request) -> Result<Facts> {
    let _lock = cache::lock(&request.cache)?;
    let mut facts = Facts::probe(request)?;
    let packages = facts.missing_packages();
    if !packages.is_empty() {
        apt::install(&packages, &facts.missing_summary(), request.command)?;
        facts = Facts::probe(request)?;
    }
    if facts.torch.is_none() {
        torch::install(request, facts.python()?)?;
        facts = Facts::probe(request)?;
    }
    if facts.lacks_ptxas() {
        ptxas::install(request, facts.python()?)?;
        facts = Facts::probe(request)?;
    }
    if !facts.is_complete() {
        bail!("still missing after the installation:\n{}", facts.missing_summary());
    }
    if facts.lacks_browser() {
        let packages = [browser::package()];
        match apt::install(&packages, browser::MISSING, request.command) {
            Ok(()) => facts = Facts::probe(request)?,
            Err(error) => eprintln!("{error:#}\nTests of pages are skipped until then."),
        }
    }
    Ok(facts)
}

/// The folder for downloads that all projects of this user share.
pub fn cache_folder() -> Result<PathBuf> {
    cache_folder_in(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
        .context("neither XDG_CACHE_HOME nor HOME names a folder to keep downloads in")
}

/// `$XDG_CACHE_HOME/tilefuse`, else `$HOME/.cache/tilefuse`; relative paths count as unset, as the XDG
/// specification says.
fn cache_folder_in(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let base = xdg.and_then(absolute).or_else(|| home.and_then(absolute).map(|home| home.join(".cache")))?;
    Some(base.join("tilefuse"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(xdg: Option<&str>, home: Option<&str>, expected: Option<&str>) {
        assert_eq!(cache_folder_in(xdg.map(Into::into), home.map(Into::into)), expected.map(PathBuf::from));
    }

    #[test]
    fn the_cache_follows_xdg_then_home() {
        check(Some("/xdg"), Some("/home/u"), Some("/xdg/tilefuse"));
        check(Some("relative"), Some("/home/u"), Some("/home/u/.cache/tilefuse"));
        check(None, Some("/home/u"), Some("/home/u/.cache/tilefuse"));
        check(Some(""), None, None);
    }
}
