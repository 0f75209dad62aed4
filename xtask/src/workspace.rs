//! Where things lie: the workspace, the user's cache, and the cargo that started this program.

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
        Ok(Self { root, target, cache: tilefuse_setup::cache_folder()? })
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
