//! Where things lie: the workspace, the user's cache, and the cargo that started this program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The folders that every task works in.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's output folder.
    pub(crate) target: PathBuf,
    /// The folder that every clone of this user shares; it need not exist.
    pub(crate) cache: PathBuf,
}

impl Workspace {
    /// Finds the workspace from the manifest folder that cargo names (at run time, so that a moved clone works).
    pub(crate) fn locate() -> Result<Self> {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("run this through `cargo xtask`")?;
        let root = Path::new(&manifest).parent().context("xtask has no parent folder")?.to_path_buf();
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |t| root.join(t));
        let cache = cache_folder(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
            .context("neither XDG_CACHE_HOME nor HOME names a folder to keep downloads in")?;
        Ok(Self { root, target, cache })
    }

    /// The folder of links to the libraries that this clone is built with.
    pub(crate) fn deps(&self) -> PathBuf {
        self.root.join(".deps")
    }

    /// The cargo that started this program, run in the workspace's root.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root);
        command
    }
}

/// `$XDG_CACHE_HOME/tilefuse`, else `$HOME/.cache/tilefuse`; relative paths count as unset, as the XDG
/// specification says.
fn cache_folder(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let base = xdg.and_then(absolute).or_else(|| home.and_then(absolute).map(|home| home.join(".cache")))?;
    Some(base.join("tilefuse"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(xdg: Option<&str>, home: Option<&str>, expected: Option<&str>) {
        assert_eq!(cache_folder(xdg.map(Into::into), home.map(Into::into)), expected.map(PathBuf::from));
    }

    #[test]
    fn the_cache_follows_xdg_then_home() {
        check(Some("/xdg"), Some("/home/u"), Some("/xdg/tilefuse"));
        check(Some("relative"), Some("/home/u"), Some("/home/u/.cache/tilefuse"));
        check(None, Some("/home/u"), Some("/home/u/.cache/tilefuse"));
        check(Some(""), None, None);
    }
}
