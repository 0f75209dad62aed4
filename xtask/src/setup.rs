//! `cargo xtask setup`: finds or installs what a build needs, and points `.deps` at it.
//!
//! `.cargo/config.toml` exports the links in `.deps` to every build, so that plain cargo commands work
//! afterwards. Downloads go to the user's cache, which all clones share. What is there already is used; the
//! task changes nothing where nothing is missing.

mod apt;
mod cache;
mod facts;
mod links;
mod llvm;
mod ptxas;
mod python;
mod torch;

use anyhow::{Result, bail};

use crate::workspace::Workspace;
use facts::Facts;

/// Something that only the user can do; the message says what.
#[derive(Debug)]
pub(crate) struct NeedsUser(pub(crate) String);

impl std::fmt::Display for NeedsUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NeedsUser {}

/// Makes sure that the compiler, LLVM, libtorch and `ptxas` are there, and that `.deps` names them.
pub(crate) fn setup(workspace: &Workspace) -> Result<()> {
    let facts = Facts::probe(workspace)?;
    let facts = if facts.is_complete() { facts } else { install_missing(workspace)? };
    links::point(workspace, &facts)?;
    eprint!("{}", facts.summary());
    Ok(())
}

/// Installs under the cache's lock. Everything is looked up again there, as another set-up may just have ended.
fn install_missing(workspace: &Workspace) -> Result<Facts> {
    let _lock = cache::lock(&workspace.cache)?;
    let mut facts = Facts::probe(workspace)?;
    let packages = facts.missing_packages();
    if !packages.is_empty() {
        apt::install(&packages, &facts.missing_summary())?;
        facts = Facts::probe(workspace)?;
    }
    if facts.torch.is_none() {
        torch::install(workspace, facts.python()?)?;
        facts = Facts::probe(workspace)?;
    }
    if facts.ptxas.is_none() {
        ptxas::install(workspace, facts.python()?)?;
        facts = Facts::probe(workspace)?;
    }
    if !facts.is_complete() {
        bail!("still missing after the installation:\n{}", facts.missing_summary());
    }
    Ok(facts)
}
