//! `cargo xtask setup`: finds or installs what a build needs, and points `.deps` at it.
//!
//! `.cargo/config.toml` exports the links in `.deps` to every build, so that plain cargo commands work
//! afterwards.

use anyhow::Result;
use tilefuse_setup::{Request, find_or_install};

use crate::links;
use crate::workspace::Workspace;

/// Makes sure that the compiler, LLVM, libtorch and `ptxas` are there, and that `.deps` names them; and a browser for
/// the tests of pages, where one can be had.
pub(crate) fn setup(workspace: &Workspace) -> Result<()> {
    let deps = workspace.deps();
    let found = find_or_install(&Request {
        libtorch: Some(deps.join("libtorch")),
        llvm: Some(deps.join("llvm")),
        ptxas: true,
        browser: true,
        cache: workspace.cache.clone(),
        command: "cargo xtask setup",
    })?;
    links::point(&deps, &found)?;
    eprint!("{}", found.summary());
    Ok(())
}
