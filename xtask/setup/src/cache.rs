//! The user's cache: installed by one process at a time, and never seen half-filled.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use anyhow::{Context, Result};

use crate::Request;
use crate::process::run_quietly;
use crate::progress::Step;
use crate::python::{self, Python};

const PARTIAL: &str = ".partial-";

/// Waits until no other set-up installs anything. The lock ends with the returned file, or with this process.
pub(crate) fn lock(cache: &Path) -> Result<File> {
    fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let path = cache.join("setup.lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let step = Step::begin("waiting for another set-up to end");
            file.lock()?;
            step.end("it ended");
        }
        Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the cache"),
    }
    Ok(file)
}

/// Runs `pip install` into a folder aside, and renames that to `folder` in the cache when it is whole. The
/// caller holds the lock.
pub(crate) fn install_wheels(
    request: &Request,
    python: &Python,
    folder: &str,
    what: &str,
    arguments: &[&str],
) -> Result<()> {
    let step = Step::begin(format!("installing {what}"));
    remove_leftovers(&request.cache)?;
    // A pip that outlived its killed set-up still writes to a folder of its own.
    let partial = request.cache.join(format!("{PARTIAL}{folder}-{}", std::process::id()));
    let (site, temporary) = (partial.join("site"), partial.join("tmp"));
    fs::create_dir_all(&temporary).with_context(|| format!("cannot create {}", temporary.display()))?;
    let mut command = python::pip(python, &partial, &step)?;
    command.args(["install", "--no-input", "--no-compile", "--no-cache-dir", "--progress-bar=off"]);
    command.args(["--disable-pip-version-check", "--no-warn-script-location", "--retries=10"]);
    command.args(arguments).arg("--target").arg(&site);
    // pip unpacks in TMPDIR, and /tmp is often too small for torch.
    command.env("TMPDIR", &temporary).env("PIP_USER", "0").env("PIP_REQUIRE_VIRTUALENV", "0");
    run_quietly(&mut command, &step)?;
    replace(&request.cache.join(folder), &site, &partial)?;
    step.end("installed");
    Ok(())
}

/// Puts `site` in the place of `folder`, and removes `partial` with all that is left in it.
fn replace(folder: &Path, site: &Path, partial: &Path) -> Result<()> {
    if folder.exists() {
        fs::rename(folder, partial.join("replaced"))?;
    }
    fs::rename(site, folder).with_context(|| format!("cannot rename to {}", folder.display()))?;
    fs::remove_dir_all(partial).with_context(|| format!("cannot remove {}", partial.display()))
}

/// Removes what interrupted set-ups left behind, as far as nothing writes there any more.
fn remove_leftovers(cache: &Path) -> Result<()> {
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_go_and_a_whole_folder_takes_their_place() {
        let cache = std::env::temp_dir().join(format!("tilefuse-setup-cache-{}", std::process::id()));
        let partial = cache.join(".partial-torch");
        fs::create_dir_all(partial.join("site/torch")).unwrap();
        fs::create_dir_all(cache.join("torch/stale")).unwrap();
        replace(&cache.join("torch"), &partial.join("site"), &partial).unwrap();
        assert!(cache.join("torch/torch").exists() && !cache.join("torch/stale").exists());
        fs::create_dir_all(partial.join("tmp")).unwrap();
        remove_leftovers(&cache).unwrap();
        assert!(!partial.exists() && cache.join("torch").exists());
        fs::remove_dir_all(&cache).unwrap();
    }
}
