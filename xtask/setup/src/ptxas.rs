//! `ptxas`: assembles PTX, so that a machine without a GPU can check every kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::{find_program, output};
use crate::{Request, cache, python::Python};

const FOLDER: &str = "ptxas-13.0";

/// An assembler that is new enough.
#[derive(Debug)]
pub(crate) struct Ptxas {
    pub(crate) program: PathBuf,
    pub(crate) version: String,
}

/// Where it may be, best first: torch's wheel ships one, and so does a CUDA toolkit beside it.
pub(crate) fn candidates(request: &Request, torch: Option<&Path>) -> Vec<PathBuf> {
    let site = torch.and_then(Path::parent);
    let beside = torch.map(|torch| torch.join("bin/ptxas")).into_iter();
    beside
        .chain(site.map(in_wheel))
        .chain(find_program("ptxas"))
        .chain([PathBuf::from("/usr/local/cuda/bin/ptxas"), in_wheel(&request.cache.join(FOLDER))])
        .collect()
}

/// Checks that it runs and is new enough; an error is a sentence that says why it does not serve.
pub(crate) fn inspect(program: &Path) -> Result<Ptxas, String> {
    let place = program.display();
    let text =
        output(Command::new(program).arg("--version")).ok_or_else(|| format!("{place} does not run"))?;
    let release = release(&text).ok_or_else(|| format!("{place} does not tell its release"))?;
    if release < (12, 8) {
        return Err(format!("{place} is of CUDA {}.{}, and 12.8 is needed", release.0, release.1));
    }
    Ok(Ptxas { program: program.to_path_buf(), version: format!("{}.{}", release.0, release.1) })
}

/// Installs NVIDIA's compiler wheel into the cache.
pub(crate) fn install(request: &Request, python: &Python) -> Result<()> {
    let arguments = ["--no-deps", "nvidia-cuda-nvcc==13.0.*"];
    cache::install_wheels(request, python, FOLDER, "ptxas 13.0", &arguments)
}

fn in_wheel(site: &Path) -> PathBuf {
    site.join("nvidia/cu13/bin/ptxas")
}

fn release(text: &str) -> Option<(u32, u32)> {
    let (_, rest) = text.split_once("release ")?;
    let (major, rest) = rest.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read() {
        let text =
            "ptxas: NVIDIA (R) Ptx optimizing assembler\nCuda compilation tools, release 13.0, V13.0.88\n";
        assert_eq!(release(text), Some((13, 0)));
        assert_eq!(release("no such thing"), None);
    }
}
