//! The links in `.deps`, which `.cargo/config.toml` exports to every build.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};
use tilefuse_setup::{Found, NeedsUser};

/// Points `.deps/libtorch`, `.deps/llvm` and `.deps/ptxas` at what was found.
pub(crate) fn point(deps: &Path, found: &Found) -> Result<()> {
    fs::create_dir_all(deps).with_context(|| format!("cannot create {}", deps.display()))?;
    let targets = [("libtorch", found.libtorch()), ("llvm", found.llvm()), ("ptxas", found.ptxas())];
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
