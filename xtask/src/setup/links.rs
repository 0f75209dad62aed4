//! The links in `.deps`, which `.cargo/config.toml` exports to every build.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};

use super::NeedsUser;
use super::facts::Facts;
use crate::workspace::Workspace;

/// Points `.deps/libtorch`, `.deps/llvm` and `.deps/ptxas` at what was found.
pub(super) fn point(workspace: &Workspace, facts: &Facts) -> Result<()> {
    let deps = workspace.deps();
    fs::create_dir_all(&deps).with_context(|| format!("cannot create {}", deps.display()))?;
    let targets = [
        ("libtorch", facts.torch.as_ref().map(|torch| torch.root.as_path())),
        ("llvm", facts.llvm.as_ref().map(|llvm| llvm.prefix.as_path())),
        ("ptxas", facts.ptxas.as_ref().map(|ptxas| ptxas.program.as_path())),
    ];
    targets.into_iter().try_for_each(|(name, target)| match target {
        Some(target) => link(&deps.join(name), target),
        None => Ok(()),
    })
}

/// Makes `link` name `target`, in one step; leaves a link alone that does so already, and its time with it.
fn link(link: &Path, target: &Path) -> Result<()> {
    if link.canonicalize().is_ok_and(|now| target.canonicalize().is_ok_and(|then| now == then)) {
        return Ok(());
    }
    if link.symlink_metadata().is_ok_and(|data| !data.is_symlink()) {
        let place = link.display();
        return Err(NeedsUser(format!("{place} is in the way: it is no link, and does not serve")).into());
    }
    let fresh = link.with_extension(format!("{}", std::process::id()));
    symlink(target, &fresh).with_context(|| format!("cannot create {}", fresh.display()))?;
    fs::rename(&fresh, link).with_context(|| format!("cannot replace {}", link.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_made_replaced_and_left_alone() {
        let folder = std::env::temp_dir().join(format!("xtask-links-{}", std::process::id()));
        fs::create_dir_all(folder.join("a")).unwrap();
        fs::create_dir_all(folder.join("b")).unwrap();
        let place = folder.join("link");
        for target in ["a", "b", "b"] {
            link(&place, &folder.join(target)).unwrap();
            assert_eq!(fs::read_link(&place).unwrap(), folder.join(target));
        }
        let in_the_way = link(&folder.join("a"), &folder.join("b")).unwrap_err();
        assert!(in_the_way.is::<NeedsUser>());
        fs::remove_dir_all(&folder).unwrap();
    }
}
